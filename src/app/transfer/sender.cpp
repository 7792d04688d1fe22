// Threads: the loop's (sockets, protocol, everything here but the reader) and the reader's, which fills blocks. They
// meet in a pool of blocks under a mutex; a filled block wakes the loop.
#include "app/transfer/sender.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "wire/udp/worker_pool.hpp"

namespace farhaul::app::transfer {
namespace {

// Blocks beyond the window, for reading ahead.
constexpr std::uint32_t kReadAhead = 4;
constexpr std::uint32_t kReplyBuffers = 8;
// After the last word: how long to stay for the receiver to learn that we have it. It closes the connection when it
// does.
constexpr Duration kLongestLinger = Duration::from_milliseconds(1000);

struct Block {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t used = 0;
};

/// Fills blocks ahead of the network.
class ReaderThread {
 public:
    ReaderThread(FileSource& source, std::uint32_t block_bytes, std::uint32_t blocks, std::function<void()> ready)
        : source_(source), block_bytes_(block_bytes), ready_callback_(std::move(ready)), blocks_(blocks) {
        for (std::uint32_t i = 0; i < blocks; ++i) {
            // Untouched memory costs nothing: a small transfer never uses most of its window.
            blocks_[i].bytes = std::make_unique_for_overwrite<std::byte[]>(block_bytes);
            free_.push_back(i);
        }
        thread_ = std::thread([this] { run(); });
    }
    ~ReaderThread() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        thread_.join();
    }
    /// The next filled block, if there is one.
    bool take(std::uint32_t& index) {
        const std::lock_guard lock(mutex_);
        if (ready_.empty()) return false;
        index = ready_.front();
        ready_.pop_front();
        return true;
    }
    const Block& block(std::uint32_t index) const { return blocks_[index]; }
    void give_back(std::uint32_t index) {
        {
            const std::lock_guard lock(mutex_);
            free_.push_front(index);  // the one used last is the warmest
        }
        wake_.notify_one();
    }
    bool finished() {
        const std::lock_guard lock(mutex_);
        return finished_;
    }

 private:
    void run() {
        for (;;) {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return stop_ || !free_.empty(); });
            if (stop_) return;
            const std::uint32_t index = free_.front();
            free_.pop_front();
            lock.unlock();
            Block& block = blocks_[index];
            block.used = source_.fill({block.bytes.get(), block_bytes_});
            lock.lock();
            if (block.used > 0)
                ready_.push_back(index);
            else
                finished_ = true;
            lock.unlock();
            ready_callback_();
            if (block.used == 0) return;
        }
    }

    FileSource& source_;
    std::size_t block_bytes_;
    std::function<void()> ready_callback_;
    std::vector<Block> blocks_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::uint32_t> free_, ready_;
    bool stop_ = false, finished_ = false;
    std::thread thread_;
};

}  // namespace

struct Sender::State {
    State(udp::RealLoop& loop_in, SenderOptions options_in, std::vector<WalkRoot> roots, SenderEvents events_in)
        : loop(loop_in),
          options(std::move(options_in)),
          events(std::move(events_in)),
          single_root(roots.size() == 1),
          first_name(roots.empty() ? std::string() : roots.front().name),
          source(std::move(roots), [this](const std::string& message, bool) { warn_from_reader(message); }),
          linger(loop.timers(), [](void* self) { static_cast<State*>(self)->over = true; }, this) {}

    void warn_from_reader(const std::string& message) {
        loop.post([this, message, still = std::weak_ptr(alive)] {
            if (!still.expired() && events.warning) events.warning(message);
        });
    }
    void on_connected(Result<udp::Connected> result);
    bool start();
    void post_reply_buffer(std::uint32_t index);
    void on_reply(std::uint32_t index, Result<reliable::ReceiveResult> result);
    void pump();
    void on_written(std::uint32_t index, Status status);
    void on_failure(const Error& error);
    void fail_with(const Error& error);
    void finish(const FinishRecord& record);
    void complete_report();

    udp::RealLoop& loop;
    SenderOptions options;
    SenderEvents events;
    bool single_root;
    std::string first_name;
    FileSource source;
    std::unique_ptr<udp::UdpEndpoint> endpoint;
    udp::Connected connected;
    std::uint32_t blocks = 0;
    std::vector<std::byte> reply_buffers;
    std::unique_ptr<ReaderThread> reader;
    std::unique_ptr<udp::WorkerPool> encoders;         // of parity, if the scheme has any
    std::unique_ptr<reliable::Connection> connection;  // sends from the reader's blocks: destroyed first
    Timer linger;
    std::uint32_t in_flight = 0;
    std::uint64_t acknowledged = 0;
    TimePoint started;
    bool finished = false;  // the receiver has said its last word, or something failed: the report stands
    bool over = false;
    TransferReport report;
    // Tasks that the reader posted may outlive this.
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
};

void Sender::State::fail_with(const Error& error) {
    if (finished) return;
    finished = over = true;
    report.outcome = Outcome::kFailed;
    report.exit_code = exit_code_of(error.code);
    report.message = error.message;
    report.elapsed = loop.now() - started;
}

void Sender::State::on_connected(Result<udp::Connected> result) {
    if (!result) return fail_with(result.error());
    connected = std::move(*result);
    auto answer = decode_answer(connected.blob);
    if (!answer) return fail_with(answer.error());
    if (!answer->accepted) return fail_with({ErrorCode::kProtocol, "the receiver refused: " + answer->reason});
    blocks = std::min({answer->blocks, options.offer.blocks, connected.parameters.max_messages});
    started = loop.now();
    if (!start()) return;
    report.round_trip = connected.round_trip;
    report.payload_bytes = connected.parameters.payload_bytes;
    if (events.connected) events.connected(report);
}

bool Sender::State::start() {
    auto config = connection_config(options.offer, connected.round_trip, options.timeout);
    if (config.scheme.kind == reliable::Scheme::Kind::kAuto) {
        encoders = std::make_unique<udp::WorkerPool>(
            udp::WorkerPool::default_threads(), [this](std::function<void()> done) { loop.post(std::move(done)); });
        config.executor = encoders.get();
    }
    auto made = reliable::Connection::create(loop, *connected.wire,
                                             queue_pair_config(options.offer, connected.parameters, blocks,
                                                               options.rate, connected.round_trip, options.timeout),
                                             config);
    if (!made) {
        fail_with(made.error());
        return false;
    }
    connection = std::move(*made);
    connection->on_failure([this](const Error& error) { on_failure(error); });
    reply_buffers.resize(std::size_t{kReplyBuffers} * kReplyBytes);
    for (std::uint32_t i = 0; i < std::min(kReplyBuffers, blocks); ++i) post_reply_buffer(i);
    reader = std::make_unique<ReaderThread>(source, options.offer.block_bytes, blocks + kReadAhead, [this] {
        loop.post([this, still = std::weak_ptr(alive)] {
            if (!still.expired() && reader) pump();
        });
    });
    return true;
}

void Sender::State::post_reply_buffer(std::uint32_t index) {
    auto posted = connection->receive(
        reply_buffers.data() + std::size_t{index} * kReplyBytes, kReplyBytes,
        [this, index](Result<reliable::ReceiveResult> result) { on_reply(index, std::move(result)); });
    if (!posted) fail_with(posted.error());
}

void Sender::State::on_reply(std::uint32_t index, Result<reliable::ReceiveResult> result) {
    if (!result) return;  // on_failure() follows
    BlockReader records(
        {reply_buffers.data() + std::size_t{index} * kReplyBytes, static_cast<std::size_t>(result->length)});
    while (!finished) {
        auto record = records.next();
        if (!record)
            return fail_with({ErrorCode::kProtocol, "the receiver broke the protocol: " + record.error().message});
        if (!*record) break;
        if (const auto* failed = std::get_if<FileFailedRecord>(&**record)) {
            if (failed->index != kNoFile) source.give_up(failed->index);
            if (events.warning) events.warning("receiver: " + printable(failed->message, kMaxMessageBytes));
        } else if (const auto* last = std::get_if<FinishRecord>(&**record)) {
            return finish(*last);
        } else {
            return fail_with(
                {ErrorCode::kProtocol, "the receiver broke the protocol: it sent a record of the sender's"});
        }
    }
    if (!finished) post_reply_buffer(index);
}

void Sender::State::finish(const FinishRecord& record) {
    finished = true;
    report.elapsed = loop.now() - started;
    report.outcome = record.outcome;
    report.exit_code = exit_code_of(record.outcome);
    report.files = record.files_stored;
    report.files_failed = record.files_failed;
    report.bytes = record.bytes_stored;
    if (record.outcome != Outcome::kOk) report.message = "receiver: " + printable(record.message, kMaxMessageBytes);
    linger.arm(loop.now() + std::min(kLongestLinger, connected.round_trip * 3 + Duration::from_milliseconds(20)));
}

void Sender::State::pump() {
    std::uint32_t index = 0;
    while (!finished && in_flight < blocks && reader->take(index)) {
        const Block& block = reader->block(index);
        auto status = connection->write(block.bytes.get(), block.used,
                                        [this, index](Status done) { on_written(index, std::move(done)); });
        if (!status) return fail_with(status.error());
        ++in_flight;
    }
}

void Sender::State::on_written(std::uint32_t index, Status status) {
    if (!status) return;  // on_failure() follows
    --in_flight;
    acknowledged += reader->block(index).used;
    reader->give_back(index);
    if (events.progress) events.progress(acknowledged);
    pump();
}

void Sender::State::on_failure(const Error& error) {
    // After the last word the receiver closes: that is the end, not an error.
    if (finished)
        over = true;
    else
        fail_with(error);
}

void Sender::State::complete_report() {
    report.peer = options.peer.to_string();
    report.scheme = options.offer.scheme;
    if (!connection) return;
    const auto counters = connection->counters();
    report.packets_sent = counters.packets_first + counters.packets_resent;
    report.packets_resent = counters.packets_resent;
    report.round_trip = connected.round_trip;
    report.payload_bytes = connected.parameters.payload_bytes;
    connection.reset();
    reader.reset();  // joins: the source is ours from here on
    report.skipped = source.skipped();
    if (report.exit_code != kExitOk) return;
    if (source.sent().files == 1 && source.sent().folders == 0 && single_root) {
        report.digest = source.last_digest();
        report.path = first_name;
    }
    if (source.failed() > 0) {
        report.exit_code = kExitFailure;
        report.outcome = Outcome::kFailed;
        report.files_failed = source.failed();
        report.message = fmt::format("{} of what was named could not be read", source.failed());
    }
}

Sender::Sender(udp::RealLoop& loop, SenderOptions options, std::vector<WalkRoot> roots, SenderEvents events) {
    state_ = std::make_unique<State>(loop, std::move(options), std::move(roots), std::move(events));
}

Sender::~Sender() = default;

TransferReport Sender::run() {
    State& s = *state_;
    s.loop.update_now();
    s.started = s.loop.now();
    auto options = udp_options(s.options.timeout, s.options.channels);
    auto endpoint = udp::UdpEndpoint::open(s.loop, options);
    if (!endpoint) {
        s.fail_with(endpoint.error());
    } else {
        s.endpoint = std::move(*endpoint);
        udp::ConnectParameters wanted;
        wanted.payload_bytes =
            s.options.offer.payload_bytes > 0 ? s.options.offer.payload_bytes : udp::kMaxPayloadBytes;
        wanted.max_messages = s.options.offer.blocks;
        wanted.max_message_bytes = s.options.offer.block_bytes;
        wanted.channels = s.options.channels;
        wanted.checksum = s.options.checksum;
        s.endpoint->connect(s.options.peer, wanted, encode(s.options.offer),
                            [&s](Result<udp::Connected> r) { s.on_connected(std::move(r)); });
        s.loop.run_until([&s] { return s.over; });
    }
    s.complete_report();
    s.connected.wire.reset();
    return s.report;
}

void Sender::interrupt() {
    State& s = *state_;
    if (s.finished) {
        s.over = true;
        return;
    }
    const Error error{ErrorCode::kClosed, "interrupted"};
    s.fail_with(error);
    if (s.connection) s.connection->abort(error);
}

}  // namespace farhaul::app::transfer
