// A mirror of a scratch directory, and a client of it in the same process.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../fuse/client.hpp"
#include "backend/mirror/mirror.hpp"
#include "io/ring.hpp"

namespace farhaul::mirror_test {

namespace fs = std::filesystem;
using backend::MirrorOptions;
using fuse_test::Bytes;
using fuse_test::Client;
using fuse_test::Reply;

/// A folder that goes with the test.
class Scratch {
 public:
    Scratch() : Scratch(fs::temp_directory_path()) {}
    explicit Scratch(const fs::path& where) {
        std::string name = (where / "farhaul-mirror-XXXXXX").string();
        path_ = ::mkdtemp(name.data()) != nullptr ? name : "";
        ::chmod(path_.c_str(), 0755);
    }
    ~Scratch() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }

 private:
    std::string path_;
};

/// Where thousands of files are made at once: memory, if there is such a place.
inline fs::path place_for_many_files() {
    return ::access("/dev/shm", W_OK | X_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
}

inline void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
inline std::string get(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
inline struct stat stat_of(const std::string& path) {
    struct stat stat{};
    EXPECT_EQ(::lstat(path.c_str(), &stat), 0) << path;
    return stat;
}
inline std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
    return count;
}

/// A mirror with a session, after INIT.
class Mounted {
 public:
    explicit Mounted(MirrorOptions options, fuse::SessionOptions session = {}, std::uint64_t without = 0,
                     fuse::BackingFiles* backing_files = nullptr) {
        auto made = backend::make_mirror(std::move(options));
        if (!made) {
            ADD_FAILURE() << made.error().message;
            std::abort();
        }
        file_system_ = std::move(*made);
        session_ = std::make_unique<fuse::Session>(*file_system_, session);
        if (backing_files != nullptr) session_->offer(*backing_files);
        client_ = std::make_unique<Client>(*session_);
        EXPECT_EQ(client_->init(without).error, 0);
    }
    explicit Mounted(const Scratch& scratch) : Mounted(MirrorOptions{.directory = scratch.path()}) {}
    Client* operator->() { return client_.get(); }
    Client& client() { return *client_; }
    fuse::Session& session() { return *session_; }
    fuse::FileSystem& file_system() { return *file_system_; }

 private:
    std::unique_ptr<fuse::FileSystem> file_system_;
    std::unique_ptr<fuse::Session> session_;
    std::unique_ptr<Client> client_;
};

inline constexpr std::uint64_t kRoot = fuse::kRootNode;

/// A request that is served by a ring of this thread.
class RingRequest final : public fuse::Request {
 public:
    RingRequest(Bytes in, std::size_t out_size, io::Ring& ring) : in_bytes_(std::move(in)), out_bytes_(out_size) {
        in_list_ = {in_bytes_.data(), in_bytes_.size()};
        out_list_ = {out_bytes_.data(), out_bytes_.size()};
        prepare({&in_list_, 1}, {&out_list_, 1}, &ring);
    }
    bool ended() const { return ended_; }
    Reply reply() const {
        fuse_out_header header{};
        std::memcpy(&header, out_bytes_.data(), sizeof(header));
        return {.error = -header.error,
                .data = Bytes(out_bytes_.begin() + sizeof(header),
                              out_bytes_.begin() + static_cast<std::ptrdiff_t>(size_))};
    }

 private:
    void complete(std::size_t size) override {
        size_ = size;
        ended_ = true;
    }
    Bytes in_bytes_, out_bytes_;
    iovec in_list_{}, out_list_{};
    std::size_t size_ = 0;
    bool ended_ = false;
};

}  // namespace farhaul::mirror_test
