// A session is what one client (a mount, a virtio-fs device) and one file system have between them: it agrees on
// features, turns requests into calls of the FileSystem and judges everything that comes from the client on the way.
//
// A session does no I/O and starts no thread. After INIT, handle() may be called from several threads at once.
//
// What the client sends is checked before the file system sees it:
//   the length in the header is that of the in list; the operation's struct and names fit exactly     EINVAL
//   the operation is known (ENOSYS), INIT came first and once (EIO), the node id is not 0             EINVAL
//   names: 1 to 255 bytes (ENAMETOOLONG), no '/', not "." or ".." (EINVAL; LOOKUP may have them if agreed on)
//   the reply fits into the out list                                                                   EINVAL
//   reads and writes: at most what INIT agreed on, below 2^63                                          EINVAL
// A request without room for a reply header ends without a reply. All such requests are counted (malformed()).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "fuse/counters.hpp"
#include "fuse/file_system.hpp"

namespace farhaul::fuse {

class Arguments;

struct SessionOptions {
    std::uint32_t max_write = 1 << 20;      ///< bytes in one WRITE or READ; 4 KiB to 32 MiB, rounded up to pages
    std::uint32_t max_readahead = 1 << 20;  ///< bytes
    std::uint16_t max_background = 256;     ///< read-ahead, write-back and asynchronous requests in flight
    bool writeback_cache = false;     ///< the client may delay writes; only for a file system that nobody else changes
    bool readdirplus_always = false;  ///< false: the client decides by what it sees
    bool posix_acl = true;            ///< if the file system serves them
    bool read_only = false;           ///< everything that would change something is answered EROFS
    bool over_io_uring = false;       ///< the HAL can take requests over io_uring
    bool passthrough = true;          ///< if the HAL, the client and the file system can; not with writeback_cache
    std::uint64_t never = 0;          ///< INIT flags to refuse, whatever else says (for tests and hunting faults)
};

class Session {
 public:
    using Options = SessionOptions;
    /// Nanoseconds of a clock that never goes back, for latencies; without one none are counted.
    using Clock = std::uint64_t (*)();

    explicit Session(FileSystem& file_system, Options options = {}, Clock clock = nullptr);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    /// As disconnect().
    ~Session();

    /// Serves one request, whose lists were prepared. Ends in exactly one complete() of it, now or later.
    void handle(Request& request);

    /// The client is gone without a DESTROY (unmounted by force, device reset). No request may be under way. The next
    /// request must be INIT.
    void disconnect();

    /// Before the first request: the HAL's, which must live as long as the session serves.
    void offer(BackingFiles& files) { backing_files_ = &files; }

    bool initialized() const { return initialized_.load(std::memory_order_acquire); }
    /// After INIT.
    const Connection& connection() const { return connection_; }
    const Options& options() const { return options_; }
    /// Bytes of out list that every request to this session may need: header and the largest read.
    std::size_t max_reply() const;

    // ---- Figures.
    const OperationCounters* counters(std::uint32_t opcode) const {
        return opcode < abi::kOpcodes ? counters_[opcode].load(std::memory_order_acquire) : nullptr;
    }
    std::uint64_t malformed() const { return malformed_.load(std::memory_order_relaxed); }

 private:
    friend class Request;
    void init(Request& request, Arguments& arguments);
    void dispatch(Request& request, Arguments& arguments);
    void dispatch_name(Request& request, Arguments& arguments);
    void dispatch_file(Request& request, Arguments& arguments);
    void dispatch_data(Request& request, Arguments& arguments);
    void batch_forget(Request& request, Arguments& arguments);
    void interrupt(Request& request, std::uint64_t unique);
    void set_lock(Request& request, const LockRequest& lock);
    void reject(Request& request, int error_number);
    std::uint64_t negotiate(std::uint64_t offered) const;
    OperationCounters& counters_of(std::uint32_t opcode);

    FileSystem& file_system_;
    Options options_;
    Clock clock_;
    BackingFiles* backing_files_ = nullptr;
    Connection connection_;
    std::atomic<bool> initialized_{false};
    std::atomic<std::uint64_t> malformed_{0};
    std::mutex init_mutex_;
    // Made when an operation is first seen: most clients use a third of them.
    std::array<std::atomic<OperationCounters*>, abi::kOpcodes> counters_{};
    std::mutex counters_mutex_;
    std::array<std::unique_ptr<OperationCounters>, abi::kOpcodes> counters_owned_;

    // INTERRUPT may overtake the SETLKW that it means: the last few that met nothing are remembered.
    static constexpr std::size_t kEarlyInterrupts = 64;
    std::mutex interrupts_mutex_;
    std::array<std::uint64_t, kEarlyInterrupts> early_interrupts_{};
    std::size_t next_early_interrupt_ = 0;
};

}  // namespace farhaul::fuse
