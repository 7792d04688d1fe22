// The classic transport: one thread, one descriptor of /dev/fuse, one io_uring.
//
// A slot holds one request from the read to the end of its reply: a piece for the headers (80 bytes: fuse_in_header and
// fuse_write_in, so that the data of a WRITE begin on a page) and a payload for everything else, both ways.
//
// The loop queues, and starts with one system call: the replies that became due, and a fetch; then it waits. A fetch is
// a poll for which the kernel wakes one thread only (EPOLLEXCLUSIVE), linked to a read. While requests come faster than
// they are taken, further reads are added to it, twice as many as last time, up to kMostExtraReads: they take what is
// there in the same system call. Reads that find nothing wait (io_uring does so on non-blocking files, too) and the
// next fetch waits for them; if it has to, the next one is half as large. The device is non-blocking, since a request
// that was polled may have gone to another thread.
//
// A request that the file system answers later keeps its slot meanwhile. A reply from a foreign thread is written by
// that thread, which then hands the slot back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

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
    /// `device`: a non-blocking descriptor. `slots`: requests under way at once.
    static Result<std::unique_ptr<DeviceQueue>> create(Service& service, io::UniqueFd device, unsigned slots);
    ~DeviceQueue();

    /// The thread: returns when the connection has ended or Service::stop is set, and all requests are answered.
    void run();
    /// From any thread, after a flag of the service has changed.
    void wake();

 private:
    static constexpr std::size_t kHeaderSize = sizeof(fuse_in_header) + sizeof(fuse_write_in);
    static constexpr unsigned kMostExtraReads = 7;

    class Slot : public fuse::Request, public io::Operation {
     public:
        enum class State { kFree, kReading, kServed, kWriting };
        using Request::prepare;
        void complete(std::size_t reply_size) override;

        DeviceQueue* queue = nullptr;
        State state = State::kFree;
        std::byte* payload = nullptr;
        std::array<iovec, 2> in{};
        std::array<iovec, 2> out{};
        std::array<iovec, 2> transfer{};  // of the read, then of the reply: prepare() changes the others
        fuse_out_header reply{};
        std::array<std::byte, kHeaderSize> header{};
    };
    DeviceQueue(Service& service, io::UniqueFd device, unsigned slots);
    void fetch();
    Slot& take_free();
    void received(Slot& slot, std::int32_t result);
    void receive_failed(std::int32_t result);
    void replied(Slot& slot, std::int32_t result);
    void reply_failed(Slot& slot, int error);
    void release(Slot& slot);
    void take_back();
    void finish();
    bool over() const;

    Service& service_;
    io::UniqueFd device_;
    std::unique_ptr<io::Ring> ring_;
    std::size_t payload_size_;
    Pages memory_;
    std::vector<std::unique_ptr<Slot>> slots_;
    std::vector<Slot*> free_;
    unsigned reads_under_way_ = 0;
    unsigned replies_queued_ = 0;  // since the last submission
    unsigned extra_reads_ = 0;
    unsigned rounds_ = 2;  // of the loop since the last fetch was queued

    std::mutex mutex_;             // guards what follows, and the end of the ring against wake()
    std::vector<Slot*> returned_;  // by foreign threads
};

}  // namespace farhaul::hal
