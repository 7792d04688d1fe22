// A memory file system behind a session, with a clock that a test moves.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "../fuse/client.hpp"
#include "backend/memory/memory.hpp"

namespace farhaul::backend {

using fuse::kRootNode;
using fuse_test::Bytes;
using fuse_test::Client;
using fuse_test::Reply;

class MemoryTest : public testing::Test {
 protected:
    MemoryTest() { start({}); }
    void start(const MemoryOptions& options, const fuse::SessionOptions& session_options = {}) {
        session.reset();
        file_system = make_memory(options, [this] { return timespec{seconds.load(), 0}; });
        session = std::make_unique<fuse::Session>(*file_system, session_options);
        client = std::make_unique<Client>(*session);
        ASSERT_EQ(client->init().error, 0);
    }
    struct File {
        std::uint64_t node = 0;
        std::uint64_t handle = 0;
    };
    File create(std::string_view name, std::uint32_t mode = 0644, std::uint64_t parent = kRootNode) {
        const Reply reply = client->create(parent, name, O_RDWR | O_CREAT, mode);
        EXPECT_EQ(reply.error, 0) << name;
        return {.node = reply.node(), .handle = Client::created_handle(reply)};
    }
    fuse_attr attr(std::uint64_t node) {
        const Reply reply = client->getattr(node);
        EXPECT_EQ(reply.error, 0);
        return reply.attr();
    }
    std::string content(const File& file, std::uint64_t offset = 0, std::uint32_t size = 4096) {
        const Reply reply = client->read(file.node, file.handle, offset, size);
        EXPECT_EQ(reply.error, 0);
        return reply.text();
    }
    Reply fallocate(const File& file, std::uint32_t mode, std::uint64_t offset, std::uint64_t length) {
        fuse_fallocate_in in{};
        in.fh = file.handle;
        in.mode = mode;
        in.offset = offset;
        in.length = length;
        return client->call_with(FUSE_FALLOCATE, file.node, in);
    }
    /// The offset, or minus the errno.
    std::int64_t seek(const File& file, std::uint64_t offset, std::uint32_t whence) {
        fuse_lseek_in in{};
        in.fh = file.handle;
        in.offset = offset;
        in.whence = whence;
        const Reply reply = client->call_with(FUSE_LSEEK, file.node, in);
        if (!reply) return -reply.error;
        return static_cast<std::int64_t>(reply.as<fuse_lseek_out>().offset);
    }
    Reply truncate(std::uint64_t node, std::uint64_t size) {
        fuse_setattr_in in{};
        in.valid = FATTR_SIZE;
        in.size = size;
        return client->setattr(node, in);
    }
    Reply chmod(std::uint64_t node, std::uint32_t mode) {
        fuse_setattr_in in{};
        in.valid = FATTR_MODE;
        in.mode = mode;
        return client->setattr(node, in);
    }
    fuse_kstatfs statfs() { return client->call(FUSE_STATFS, kRootNode, {}).as<fuse_statfs_out>().st; }
    std::vector<std::string> names(std::uint64_t node, bool plus = false) {
        std::vector<std::string> all;
        for (const auto& entry : client->list(node, 4096, plus)) all.push_back(entry.name);
        return all;
    }

    std::atomic<std::int64_t> seconds{1000};
    std::unique_ptr<fuse::FileSystem> file_system;
    std::unique_ptr<fuse::Session> session;
    std::unique_ptr<Client> client;
};

}  // namespace farhaul::backend
