#include "daemon/control_socket.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace farhaul::daemon {

namespace {

constexpr const char* kSuffix = ".sock";

std::optional<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) return std::nullopt;
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
}

const sockaddr* generic(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

void limit_waiting(int fd, int seconds) {
    const timeval limit{.tv_sec = seconds, .tv_usec = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

Status make_folder(const std::string& folder) {
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "cannot make " + folder);
    struct stat status{};
    if (::lstat(folder.c_str(), &status) != 0) return fail_errno(errno, folder);
    if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid())
        return fail(ErrorCode::kIo, "{} is not a folder of yours: remove it, or set FARHAUL_RUN_DIR", folder);
    return {};
}

/// Nothing: nobody is behind the socket.
std::optional<std::string> ask(const std::string& path) {
    const auto address = address_of(path);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!address || fd < 0) {
        if (fd >= 0) ::close(fd);
        return "";
    }
    limit_waiting(fd, 5);
    std::optional<std::string> document = "";
    if (::connect(fd, generic(*address), sizeof(*address)) != 0) {
        if (errno == ECONNREFUSED) document.reset();
    } else {
        char piece[4096];
        ssize_t size = 0;
        while ((size = ::recv(fd, piece, sizeof(piece), 0)) > 0)
            document->append(piece, static_cast<std::size_t>(size));
    }
    ::close(fd);
    return document;
}

}  // namespace

std::string run_folder() {
    if (const char* folder = std::getenv("FARHAUL_RUN_DIR"); folder != nullptr && *folder != '\0') return folder;
    if (::geteuid() == 0) return "/run/dpfs";
    if (const char* folder = std::getenv("XDG_RUNTIME_DIR"); folder != nullptr && *folder != '\0')
        return std::string(folder) + "/dpfs";
    return "/tmp/dpfs-" + std::to_string(::geteuid());
}

Result<ControlSocket> ControlSocket::open(const std::string& folder) {
    if (auto made = make_folder(folder); !made) return propagate(made);
    std::string path = folder + "/" + std::to_string(::getpid()) + kSuffix;
    const auto address = address_of(path);
    if (!address) return fail(ErrorCode::kInvalidArgument, "{} is too long for a socket's name", path);
    ControlSocket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), path);
    if (socket.fd_ < 0) return fail_errno(errno, "cannot make a socket");
    ::unlink(path.c_str());  // of a process that had our number before
    const mode_t before = ::umask(0177);
    const int bound = ::bind(socket.fd_, generic(*address), sizeof(*address));
    const int error = errno;
    ::umask(before);
    if (bound != 0) return fail_errno(error, "cannot bind " + path);
    if (::listen(socket.fd_, 16) != 0) return fail_errno(errno, "cannot listen on " + path);
    return socket;
}

ControlSocket::ControlSocket(ControlSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

ControlSocket::~ControlSocket() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(path_.c_str());
}

void ControlSocket::answer(const std::function<std::string()>& document) {
    for (;;) {
        const int client = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) return;
        limit_waiting(client, 1);
        const std::string text = document();
        for (std::size_t sent = 0; sent < text.size();) {
            const ssize_t step = ::send(client, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
            if (step <= 0) break;
            sent += static_cast<std::size_t>(step);
        }
        ::close(client);
    }
}

std::vector<std::string> ask_all(const std::string& folder) {
    std::vector<std::string> documents;
    DIR* entries = ::opendir(folder.c_str());
    if (entries == nullptr) return documents;
    while (const dirent* entry = ::readdir(entries)) {
        const std::string name = entry->d_name;
        if (!name.ends_with(kSuffix)) continue;
        const std::string path = folder + "/" + name;
        auto document = ask(path);
        if (!document) {
            ::unlink(path.c_str());
        } else if (!document->empty()) {
            documents.push_back(std::move(*document));
        }
    }
    ::closedir(entries);
    return documents;
}

}  // namespace farhaul::daemon
