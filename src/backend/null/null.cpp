#include "backend/null/null.hpp"

#include <cerrno>
#include <cstring>
#include <limits>

#include <sys/stat.h>

namespace farhaul::backend {

namespace {

using fuse::Attributes;
using fuse::Entry;
using fuse::Handle;
using fuse::kRootNode;
using fuse::Name;
using fuse::NodeId;
using fuse::Request;

constexpr NodeId kFileNode = 2;
constexpr std::string_view kFileName = "null";
constexpr std::uint64_t kFileSize = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) & ~4095ull;

class NullFileSystem final : public fuse::FileSystem {
 public:
    explicit NullFileSystem(NullOptions options) : options_(options) {}

    void lookup(Request& request, NodeId parent, Name name) override {
        if (parent != kRootNode) return request.reply_error(parent == kFileNode ? ENOTDIR : ESTALE);
        if (name != kFileName) return request.reply_error(ENOENT);
        Entry entry;
        entry.node = kFileNode;
        entry.attributes = attributes(kFileNode);
        entry.attribute_timeout = entry.entry_timeout = options_.timeout;
        request.reply_entry(entry);
    }
    void getattr(Request& request, NodeId node, const Handle*) override {
        if (!known(node)) return request.reply_error(ESTALE);
        request.reply_attributes(attributes(node), options_.timeout);
    }
    void setattr(Request& request, NodeId node, const fuse::AttributeChange&) override {
        getattr(request, node, nullptr);  // a truncation vanishes like a write
    }
    void open(Request& request, NodeId node, std::uint32_t, bool) override {
        if (node != kFileNode) return request.reply_error(node == kRootNode ? EISDIR : ESTALE);
        request.reply_open({.keep_cache = true, .no_flush = true, .parallel_direct_writes = true});
    }
    void read(Request& request, const fuse::ReadRequest& read) override {
        if (read.node != kFileNode) return request.reply_error(EBADF);
        const std::uint64_t left = kFileSize - std::min(kFileSize, read.offset);
        std::size_t size = static_cast<std::size_t>(std::min<std::uint64_t>(left, read.size));
        const std::size_t result = size;
        if (options_.zero) {
            for (const iovec& piece : request.data_out()) {
                const std::size_t step = std::min(piece.iov_len, size);
                std::memset(piece.iov_base, 0, step);
                size -= step;
            }
        }
        request.reply_data(result);
    }
    void write(Request& request, const fuse::WriteRequest& write) override {
        if (write.node != kFileNode) return request.reply_error(EBADF);
        request.reply_written(write.size);
    }
    void flush(Request& request, NodeId, Handle, std::uint64_t) override { request.reply_ok(); }
    void fsync(Request& request, NodeId, Handle, bool) override { request.reply_ok(); }
    void fsyncdir(Request& request, NodeId, Handle, bool) override { request.reply_ok(); }
    void readdir(Request& request, NodeId node, Handle, std::uint64_t offset) override {
        if (node != kRootNode) return request.reply_error(known(node) ? ENOTDIR : ESTALE);
        fuse::DirectoryWriter writer(request);
        const auto add = [&](std::uint64_t cookie, std::string_view name, NodeId ino, std::uint32_t type) {
            return offset >= cookie || writer.add(name, ino, type, cookie);
        };
        [[maybe_unused]] const bool all = add(1, ".", kRootNode, S_IFDIR >> 12) &&
                                          add(2, "..", kRootNode, S_IFDIR >> 12) &&
                                          add(3, kFileName, kFileNode, S_IFREG >> 12);
        request.reply_directory(writer);
    }
    void statfs(Request& request, NodeId) override {
        fuse::FileSystemStatistics statistics;
        statistics.blocks = statistics.blocks_free = statistics.blocks_available = kFileSize / statistics.block_size;
        statistics.files = 2;
        request.reply_statfs(statistics);
    }

 private:
    static bool known(NodeId node) { return node == kRootNode || node == kFileNode; }
    static Attributes attributes(NodeId node) {
        Attributes attributes;
        attributes.ino = node;
        attributes.mode = node == kRootNode ? S_IFDIR | 0755 : S_IFREG | 0666;
        attributes.nlink = node == kRootNode ? 2 : 1;
        attributes.size = node == kRootNode ? 0 : kFileSize;
        return attributes;
    }
    NullOptions options_;
};

}  // namespace

std::unique_ptr<fuse::FileSystem> make_null(NullOptions options) { return std::make_unique<NullFileSystem>(options); }

}  // namespace farhaul::backend
