// The classic transport: one thread, its own descriptors of /dev/fuse, one io_uring.
//
// A slot holds one request from the read to the end of its reply: a piece for the headers (80 bytes: fuse_in_header and
// fuse_write_in, so that the data of a WRITE begin on a page) and a payload for everything else, both ways.
//
// A thread works in one of two ways. Measured with a file system that answers at once (4 KiB reads, two cores), a plain
// read(2) that waits and a write(2) are a tenth faster than io_uring with one request under way, and a quarter with 32;
// with one that answers later, a thread that waits in read(2) sees nothing of what its io_uring has finished. So:
//
//   plainly    while nothing is under way: read(2), handle, write(2).
//   by ring    from the first request that is not answered at once, until kCalm requests in a row were: the loop
//   queues,
//              and starts with one system call, the replies that became due and a fetch; then it waits.
//
// A fetch is a poll for which the kernel wakes one thread only (EPOLLEXCLUSIVE), linked to a read. While requests come
// faster than they are taken, further reads are added to it, twice as many as last time, up to kMostExtraReads: they
// take what is there in the same system call. Reads that find nothing wait (io_uring does so on non-blocking files,
// too) and the next fetch waits for them; if it has to, the next one is half as large. The descriptor of the ring is
// non-blocking, since a request that was polled may have gone to another thread; that of read(2) is not, and a reply
// goes to the one from which the request came, as the kernel wants it.
//
// A request that the file system answers later keeps its slot meanwhile. A reply from a foreign thread is written by
// that thread, which then hands the slot back. A thread that waits in read(2) is told to look up by a signal (SIGURG,
// whose default is to do nothing). Where io_uring is forbidden, as in many containers, the plain way is the only one.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <pthread.h>
#include <sys/uio.h>

#include "base/result.hpp"
#include "fuse/request.hpp"
#include "hal/dev_fuse/pages.hpp"
#include "hal/dev_fuse/service.hpp"
#include "io/ring.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::hal {

class DeviceQueue {
 public:
    /// Two descriptors of the connection: one that is non-blocking, and one that waits. `slots`: requests under way at
    /// once.
    static Result<std::unique_ptr<DeviceQueue>> create(Service& service, io::UniqueFd polled, io::UniqueFd waiting,
                                                       unsigned slots);
    ~DeviceQueue();

    /// The thread: returns when the connection has ended or Service::stop is set, and all requests are answered.
    void run();
    /// From any thread, after a flag of the service has changed; again and again until finished(), for a signal may
    /// come just before the read that it is meant to interrupt.
    void wake();
    bool finished() const { return finished_.load(); }

 private:
    static constexpr std::size_t kHeaderSize = sizeof(fuse_in_header) + sizeof(fuse_write_in);
    static constexpr unsigned kMostExtraReads = 7;
    static constexpr unsigned kCalm = 64;

    class Slot : public fuse::Request, public io::Operation {
     public:
        enum class State { kFree, kReading, kServed, kWriting };
        using Request::prepare;
        void complete(std::size_t reply_size) override;

        DeviceQueue* queue = nullptr;
        State state = State::kFree;
        int device = -1;  // from which the request came
        std::byte* payload = nullptr;
        std::array<iovec, 2> in{};
        std::array<iovec, 2> out{};
        std::array<iovec, 2> transfer{};  // of the read, then of the reply: prepare() changes the others
        fuse_out_header reply{};
        std::array<std::byte, kHeaderSize> header{};
    };

    DeviceQueue(Service& service, io::UniqueFd polled, io::UniqueFd waiting, unsigned slots);
    void serve_plainly();
    void serve_by_ring();
    void serve_without_ring();
    bool quiet() const;
    bool may_leave_ring() const;
    void fetch();
    void cancel_reads();
    Slot& take_free(int device);
    void received(Slot& slot, std::int32_t result);
    void receive_failed(std::int32_t result);
    void replied(Slot& slot, std::int32_t result);
    void reply_failed(Slot& slot, int error);
    void release(Slot& slot);
    void take_back();
    void finish();
    bool over() const;

    Service& service_;
    io::UniqueFd polled_;
    io::UniqueFd waiting_;
    std::unique_ptr<io::Ring> ring_;  // nullptr: io_uring is forbidden here
    std::size_t payload_size_;
    Pages memory_;
    std::vector<std::unique_ptr<Slot>> slots_;
    std::vector<Slot*> free_;
    unsigned reads_under_way_ = 0;
    unsigned replies_under_way_ = 0;
    unsigned replies_queued_ = 0;  // since the last submission
    unsigned calm_ = kCalm;        // requests in a row that were answered at once
    bool plainly_ = true;          // replies by write(2)
    bool leaving_ = false;         // the reads were cancelled
    unsigned extra_reads_ = 0;
    unsigned rounds_ = 2;  // of the loop since the last fetch was queued

    std::atomic<bool> finished_{false};
    std::mutex mutex_;             // guards what follows, and the end of the ring against wake()
    std::vector<Slot*> returned_;  // by foreign threads
    std::condition_variable slot_returned_;
    pthread_t thread_{};
    bool running_ = false;
};

}  // namespace farhaul::hal
