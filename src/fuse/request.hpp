// One request of a client: two scatter lists, what the session decoded of the first, and the reply that goes into the
// second.
//
// Life of a request: a HAL owns it, fills in the lists and hands it to Session::handle(); the session calls the file
// system; the file system, at once or later and on any thread, calls exactly one reply_*() function; that calls
// complete(), by which the HAL sends the reply. From the reply on, the request and all that it lent (names, spans,
// scratch) belong to the HAL again.
//
// The lists may overlap each other (FUSE over io_uring has one buffer for both ways): write nothing to data_out() while
// data_in() is still needed. Names and fixed arguments are copies and not affected.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include <sys/uio.h>

#include "fuse/abi.hpp"
#include "fuse/scatter.hpp"
#include "fuse/types.hpp"

namespace farhaul::io {
class Ring;
}

namespace farhaul::fuse {

class DirectoryWriter;
class OperationCounters;
class Session;

class Request {
 public:
    Request() = default;
    virtual ~Request() = default;
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    // ---- What was asked.
    std::uint32_t opcode() const { return header_.opcode; }
    /// Names the request for interrupt(); not used twice on one connection.
    std::uint64_t unique() const { return header_.unique; }
    NodeId node() const { return header_.nodeid; }
    const Caller& caller() const { return caller_; }

    /// The data of a WRITE: exactly as many bytes as it says.
    std::span<const iovec> data_in() const { return in_; }
    /// Where the reply's data go, behind its header: for READ, READDIR, GETXATTR, LISTXATTR at most as many bytes as
    /// were asked for. Fill it from its start, then call reply_data().
    std::span<const iovec> data_out() const { return out_; }
    std::size_t data_out_size() const { return out_size_; }

    /// The io_uring of the thread that handles this request, if that thread has one and reaps it; nullptr otherwise. To
    /// be used on that thread only, from within the call of the file system or from a completion of the same ring.
    io::Ring* ring() const { return ring_; }

    /// Memory for the file system's own state of this request, until the reply: no allocation per request.
    static constexpr std::size_t kScratchSize = 192;
    template <typename T, typename... Args>
    T& make_scratch(Args&&... args) {
        static_assert(sizeof(T) <= kScratchSize && alignof(T) <= alignof(std::max_align_t));
        static_assert(std::is_trivially_destructible_v<T>, "nobody calls its destructor");
        return *new (scratch_.data()) T{std::forward<Args>(args)...};
    }

    // ---- The reply: exactly one of these, from any thread.
    /// `error_number`: an errno value, 1 to 511. Anything else becomes EIO.
    void reply_error(int error_number);
    /// Of operations without a result.
    void reply_ok();
    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK. An entry whose node is 0 is a name that does not exist (LOOKUP only).
    void reply_entry(const Entry& entry);
    /// GETATTR, SETATTR, STATX.
    void reply_attributes(const Attributes& attributes, Duration timeout);
    /// OPEN, OPENDIR.
    void reply_open(const OpenFile& file);
    /// CREATE, TMPFILE.
    void reply_create(const Entry& entry, const OpenFile& file);
    /// READ, READLINK, GETXATTR, LISTXATTR: `size` bytes of data_out() are filled in.
    void reply_data(std::size_t size);
    /// The same, from memory of the file system's. ERANGE if GETXATTR or LISTXATTR asked for less; READ, READLINK are
    /// cut.
    void reply_bytes(std::span<const std::byte> bytes);
    /// GETXATTR and LISTXATTR with a size of 0 ask how long the value is.
    void reply_xattr_size(std::size_t size);
    /// WRITE, COPY_FILE_RANGE: bytes taken.
    void reply_written(std::size_t size);
    void reply_statfs(const FileSystemStatistics& statistics);
    void reply_lock(const FileLock& lock);
    void reply_seek(std::uint64_t offset);
    void reply_block(std::uint64_t block);
    /// READDIR, READDIRPLUS.
    void reply_directory(const DirectoryWriter& directory);
    /// FORGET and BATCH_FORGET, which have no reply.
    void reply_none();

 protected:
    // ---- For the HAL.
    /// Called once per request: the first `reply_size` bytes of the out list given to prepare() are the reply; 0: there
    /// is none to send. On whichever thread replied. The request may be prepared again from within.
    virtual void complete(std::size_t reply_size) = 0;

    /// Takes the lists of the next request. Both are changed in place and must stay until complete(). `ring` as ring().
    void prepare(std::span<iovec> in, std::span<iovec> out, io::Ring* ring = nullptr) {
        in_ = in;
        out_ = out;
        ring_ = ring;
    }

 private:
    friend class Session;
    friend class DirectoryWriter;

    /// Cuts the reply's header off the out list; false if there is no room for one.
    bool take_reply_header();
    /// Writes the header, counts, completes. `payload` bytes behind the header are in place.
    void finish(int error_number, std::size_t payload);
    void finish_with(const void* payload, std::size_t size);

    fuse_in_header header_{};
    Caller caller_;
    std::span<iovec> in_;
    std::span<iovec> out_;
    std::size_t out_size_ = 0;
    io::Ring* ring_ = nullptr;
    Session* session_ = nullptr;
    OperationCounters* counters_ = nullptr;
    std::uint64_t started_ns_ = 0;

    // Where the reply's header goes: one piece, unless the client's list is so odd that it falls into several.
    std::byte* reply_header_ = nullptr;
    std::vector<iovec> scattered_header_;

    // Arguments are copied here before they are judged: behind the lists is memory that a hostile client may change
    // meanwhile.
    static constexpr std::size_t kInlineArguments = 640;  // two names and the largest fixed part
    std::array<std::byte, kInlineArguments> inline_arguments_;
    std::vector<std::byte> long_arguments_;
    alignas(std::max_align_t) std::array<std::byte, kScratchSize> scratch_;
};

/// Fills the reply of a READDIR or READDIRPLUS request.
class DirectoryWriter {
 public:
    explicit DirectoryWriter(Request& request)
        : writer_(request.data_out()), plus_(request.opcode() == FUSE_READDIRPLUS) {}

    /// READDIRPLUS was asked for: entries are to be looked up and added with add_plus().
    bool plus() const { return plus_; }
    /// Is there room for an entry with a name of so many bytes? To be asked before an entry is looked up.
    bool fits(std::size_t name_length) const;
    /// An entry that is not looked up. `type` as d_type; `next_offset`: where a later READDIR goes on behind this
    /// entry. In a READDIRPLUS reply the client then holds no lookup of it ("." and ".." must be added this way).
    /// False: no room.
    bool add(std::string_view name, std::uint64_t ino, std::uint32_t type, std::uint64_t next_offset);
    /// An entry that was looked up: the client holds one lookup more of entry.node. False: no room, and it does not.
    bool add_plus(std::string_view name, const Entry& entry, std::uint64_t next_offset);
    std::size_t size() const { return writer_.written(); }

 private:
    bool write_dirent(std::string_view name, std::uint64_t ino, std::uint32_t type, std::uint64_t next_offset);
    ScatterWriter writer_;
    bool plus_;
};

}  // namespace farhaul::fuse
