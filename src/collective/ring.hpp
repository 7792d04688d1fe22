// Collectives over a ring of reliable connections: allreduce, reduce-scatter, allgather, broadcast.
//
// A rank has one connection to each neighbour; the schemes of the two may differ. Data goes to the right only: step by
// step as schedule.hpp has it, each segment one Write. The other direction carries bad news.
//
// A rank that dies. Its neighbours notice: their connections fail after ConnectionConfig::peer_timeout (with keepalive
// on). The left one tells its own left neighbour who is gone, by a Write without bytes whose immediate is the rank, and
// so it goes round. The right one waits for that news to come to it, or kLinger, before it gives up: if it left at once
// its right neighbour would take it for the dead one. So every rank ends with an error that names the rank which died,
// within peer_timeout + kLinger and the trip round the ring.
//
// Memory. Operations work in place. A Write reads the buffer until the peer has acknowledged it, and the final value of
// a chunk may arrive before the acknowledgement of the partial one: then the right neighbour has all of what it needs,
// only the sender does not know it yet, and what it sends again lands nowhere.
//
// Like all protocols here: on the Loop's thread, callbacks come from the Loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/loop.hpp"
#include "base/result.hpp"
#include "collective/reduction.hpp"
#include "collective/schedule.hpp"
#include "reliable/connection.hpp"

namespace farhaul::collective {

struct RingConfig {
    std::uint32_t rank = 0;   ///< below ranks
    std::uint32_t ranks = 1;  ///< 1 .. 65536
    /// Bytes of a Write; the same at all ranks. A multiple of 8, 4 KiB or more.
    std::uint64_t segment_bytes = 4u << 20;
    /// Most memory for what comes to be combined; at least one segment is taken. Less than the whole message means that
    /// receives are posted as memory becomes free.
    std::uint64_t scratch_bytes = 256u << 20;
    /// Virtual time: what the host combines, bytes per second. 0: in no time (or, with real buffers, in what it takes).
    double reduce_bytes_per_second = 0;
};

/// One operation. All ranks give the same kind, count, type, operation and root.
struct Collective {
    Kind kind = Kind::kAllreduce;
    /// `count` elements, in place. reduce-scatter: rank r finds its result in chunk_of(count, .., r), what is elsewhere
    /// is not specified; allgather: rank r's part is there. Null on a metadata-only wire.
    std::byte* buffer = nullptr;
    std::uint64_t count = 0;
    DataType type = DataType::kFloat32;
    Operation operation = Operation::kSum;
    std::uint32_t root = 0;
};

class Ring {
 public:
    static constexpr Duration kLinger = Duration::from_milliseconds(1000);
    static constexpr std::size_t kMostOperations = 64;

    /// Takes the connections to the neighbours, unused so far; their wires outlive the ring. Both have segment_bytes or
    /// more in a message, and keepalive on. A ring of one rank has none. Errors: kInvalidArgument; of posting the
    /// receive for bad news.
    static Result<std::unique_ptr<Ring>> create(Loop& loop, std::unique_ptr<reliable::Connection> left,
                                                std::unique_ptr<reliable::Connection> right, const RingConfig& config);
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    /// Queues an operation and posts its receives: half a round trip before start() spares the left neighbour's wait
    /// for them. Up to kMostOperations may be queued, each with a buffer of its own. Errors: kInvalidArgument; kRetry
    /// when there are too many; the error of a ring that failed.
    Status prepare(const Collective& collective);
    /// Begins the oldest that was not begun; its writes follow those of the one before. `done`: the result is there, or
    /// why it will never be; the buffer may be read but not changed. `released`, after success only: the neighbour has
    /// all that we sent, the buffer may be changed.
    void start(std::function<void(Status)> done, std::function<void()> released = {});

    /// Ends this rank's part, now and for good, and tells the others that this rank is gone.
    void abort(const Error& error);
    bool failed() const { return error_.has_value(); }
    /// Bad news is still on its way to the left neighbour: do not close the connections yet. At most kLinger long.
    bool lingering() const { return linger_.armed(); }
    const RingConfig& config() const { return config_; }
    /// Null in a ring of one rank.
    reliable::Connection* left() { return left_.get(); }
    reliable::Connection* right() { return right_.get(); }

 private:
    struct Slot {
        std::vector<std::byte> bytes;
        bool used = false;
    };
    struct Running {
        Collective collective;
        Schedule schedule;
        std::vector<bool> received;
        std::uint64_t posted = 0, complete = 0, written = 0, acknowledged = 0;
        bool started = false, told = false;
        std::function<void(Status)> done;
        std::function<void()> released;

        bool has_result() const { return complete == schedule.receives.size(); }
        bool is_sent() const { return acknowledged == schedule.writes.size(); }
    };
    struct Reduction {
        Running* running;
        std::uint64_t receive;
        std::size_t slot;
        TimePoint ends;
    };
    Ring(Loop& loop, std::unique_ptr<reliable::Connection> left, std::unique_ptr<reliable::Connection> right,
         const RingConfig& config);
    Status listen();
    void post_receives();
    bool post(Running& running);
    std::optional<std::size_t> free_slot(const Collective& collective, std::uint64_t bytes);
    void on_received(Running& running, std::uint64_t receive, std::size_t slot,
                     const Result<reliable::ReceiveResult>& result);
    void finish_receive(Running& running, std::uint64_t receive, std::size_t slot);
    void on_reduced();
    void tell_left(std::uint32_t culprit);
    void pump();
    void check(const Running& running);
    void report();
    void on_left_failure(const Error& error);
    void on_right_failure(const Error& error);
    void on_bad_news(const Result<reliable::ReceiveResult>& result);
    void on_linger();
    void fail(const Error& error, std::uint32_t culprit);
    Error gone(std::uint32_t rank, const Error& error) const;

    static constexpr std::size_t kNoSlot = ~std::size_t{0};
    Loop& loop_;
    RingConfig config_;

    std::deque<std::unique_ptr<Running>> running_;  // in the order of prepare()
    std::vector<Slot> slots_;
    std::size_t most_slots_;
    std::deque<Reduction> reductions_;  // in virtual time
    TimePoint reducer_free_;

    std::optional<Error> error_;      // of the ring, for good
    std::optional<Error> left_gone_;  // while the news of it is waited for
    std::array<std::byte, 8> news_{};
    Timer report_timer_, reduce_timer_, linger_;
    // Last, so that they go first: nothing is called or written to afterwards.
    std::unique_ptr<reliable::Connection> left_, right_;
};

}  // namespace farhaul::collective
