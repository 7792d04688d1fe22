// The transport over io_uring (Linux 6.14): requests come as completions of an io_uring, replies go as submissions.
//
// The kernel has one queue for each possible CPU and puts a request into that of the CPU on which the application runs.
// Each queue gets some entries, an entry being a header area and a payload buffer that serve both ways. An entry is
// registered once; its completion is a request; COMMIT_AND_FETCH sends the reply and lends the entry to the kernel
// again. So a thread pays one system call per batch, and none for reading or writing.
//
// A worker is one thread, on one CPU, with one io_uring. It serves that CPU's queue and, since there are queues even
// for CPUs that are absent, its share of those. The kernel uses the rings once every queue has an entry; until then and
// for what cannot go this way (FORGET, INTERRUPT) it uses the classic one. If registering fails it goes on with that
// alone.
//
// A reply from a foreign thread is handed to the worker, since only it may submit.
// Source: the kernel's Documentation/filesystems/fuse/fuse-io-uring.rst.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "base/result.hpp"
#include "fuse/abi.hpp"
#include "fuse/request.hpp"
#include "hal/dev_fuse/pages.hpp"
#include "hal/dev_fuse/service.hpp"
#include "io/ring.hpp"

namespace farhaul::hal {

class UringWorker {
 public:
    struct Share {
        int cpu = -1;  ///< to run on; -1: any
        std::vector<std::uint16_t> queues;
    };
    /// How the kernel's queues are spread over the CPUs that this process may use.
    static std::vector<Share> shares();

    /// `device`: descriptor of the mounted connection, which stays the caller's. `depth`: entries per queue.
    static Result<std::unique_ptr<UringWorker>> create(Service& service, Share share, unsigned depth);
    ~UringWorker();

    /// The thread: registers the entries and serves, until the connection has ended, or Service::stop is set and all
    /// requests are answered.
    void run(int device);
    /// From any thread, after a flag of the service has changed.
    void wake();

 private:
    class Entry : public fuse::Request, public io::Operation {
     public:
        enum class State { kLent, kServed, kOver };
        using Request::prepare;
        void complete(std::size_t reply_size) override;

        UringWorker* worker = nullptr;
        State state = State::kOver;
        std::uint16_t queue = 0;
        fuse::abi::UringRequestHeader* header = nullptr;
        std::byte* payload = nullptr;
        std::size_t reply_size = 0;
        std::uint64_t commit_id = 0;
        std::array<iovec, 2> registered{};
        std::array<iovec, 3> in{};
        std::array<iovec, 2> out{};
    };

    UringWorker(Service& service, Share share, unsigned depth);
    void command(Entry& entry, std::uint32_t operation);
    void received(Entry& entry, std::int32_t result);
    void serve(Entry& entry);
    void send(Entry& entry);
    void take_back();
    void end_entries();

    Service& service_;
    Share share_;
    int device_ = -1;
    std::unique_ptr<io::Ring> ring_;
    std::size_t payload_size_;
    Pages headers_;
    Pages payloads_;
    std::vector<std::unique_ptr<Entry>> entries_;
    unsigned live_ = 0;  // entries that are not over

    std::mutex mutex_;              // guards what follows, and the end of the ring against wake()
    std::vector<Entry*> returned_;  // by foreign threads
};

}  // namespace farhaul::hal
