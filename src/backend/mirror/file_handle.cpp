#include "backend/mirror/file_handle.hpp"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include <fcntl.h>

namespace farhaul::backend::mirror {

namespace {
struct Buffer {
    alignas(file_handle) unsigned char bytes[sizeof(file_handle) + MAX_HANDLE_SZ];
    file_handle* get() { return reinterpret_cast<file_handle*>(bytes); }
};
constexpr std::size_t kData = offsetof(file_handle, f_handle);
}  // namespace

std::string file_handle_of(int directory, const char* name) {
    Buffer buffer;
    file_handle* handle = buffer.get();
    handle->handle_bytes = MAX_HANDLE_SZ;
    int mount = 0;
    if (::name_to_handle_at(directory, name, handle, &mount, name[0] == '\0' ? AT_EMPTY_PATH : 0) != 0) return {};
    if (handle->handle_bytes > MAX_HANDLE_SZ) return {};
    std::string out(sizeof(int) + handle->handle_bytes, '\0');
    std::memcpy(out.data(), &handle->handle_type, sizeof(int));
    std::memcpy(out.data() + sizeof(int), buffer.bytes + kData, handle->handle_bytes);
    return out;
}

int open_file_handle(int mount, const std::string& text) {
    if (text.size() < sizeof(int) || text.size() - sizeof(int) > MAX_HANDLE_SZ) {
        errno = ESTALE;
        return -1;
    }
    Buffer buffer;
    file_handle* handle = buffer.get();
    handle->handle_bytes = static_cast<unsigned>(text.size() - sizeof(int));
    std::memcpy(&handle->handle_type, text.data(), sizeof(int));
    std::memcpy(buffer.bytes + kData, text.data() + sizeof(int), handle->handle_bytes);
    return ::open_by_handle_at(mount, handle, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

bool can_use_file_handles(int fd) {
    const std::string handle = file_handle_of(fd, "");
    if (handle.empty()) return false;
    const Fd mount(::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return mount && Fd(open_file_handle(mount.get(), handle));
}

}  // namespace farhaul::backend::mirror
