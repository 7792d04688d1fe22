// Threads: the loop's, and one writer per transfer that takes complete blocks in order, feeds them to the FileSink and
// posts the result back to the loop. The loop never touches the disk, the writer never touches the connection.
#include "app/transfer/receiver.hpp"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace farhaul::app::transfer {
namespace {

/// What the writer tells the loop after each block, and at its end.
struct WriterResult {
    std::optional<std::uint32_t> free_block;
    std::uint64_t bytes = 0;  // of the block
    std::vector<SinkFailure> failures;
    bool ended = false;   // the sink has said its last word
    bool closed = false;  // the thread is done; nothing unfinished is left on the disk
};

/// Feeds blocks to a sink.
class WriterThread {
 public:
    WriterThread(std::unique_ptr<FileSink> sink, std::function<void(WriterResult)> tell)
        : sink_(std::move(sink)), tell_(std::move(tell)) {
        thread_ = std::thread([this] { run(); });
    }
    ~WriterThread() {
        finish();
        thread_.join();
    }
    void submit(std::uint32_t index, std::span<const std::byte> block) {
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back({index, block});
        }
        wake_.notify_one();
    }
    /// No more blocks will come; what is queued is still written.
    void finish() {
        {
            const std::lock_guard lock(mutex_);
            finish_ = true;
        }
        wake_.notify_one();
    }
    /// Only after `ended` or `closed` was told.
    const FileSink& sink() const { return *sink_; }

 private:
    struct Work {
        std::uint32_t index;
        std::span<const std::byte> block;
    };
    void run() {
        for (;;) {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return finish_ || !queue_.empty(); });
            if (queue_.empty()) break;
            const Work work = queue_.front();
            queue_.pop_front();
            lock.unlock();
            const bool had_ended = sink_->ended();
            sink_->consume(work.block);
            tell_({.free_block = work.index,
                   .bytes = work.block.size(),
                   .failures = sink_->take_failures(),
                   .ended = sink_->ended() && !had_ended,
                   .closed = false});
        }
        sink_->abandon();
        tell_({.free_block = {}, .bytes = 0, .failures = {}, .ended = false, .closed = true});
    }

    std::unique_ptr<FileSink> sink_;
    std::function<void(WriterResult)> tell_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Work> queue_;
    bool finish_ = false;
    std::thread thread_;
};

struct Block {
    std::unique_ptr<std::byte[]> bytes;
};

}  // namespace

struct Receiver::State {
    /// One transfer. Its life: blocks -> the sink ends -> Finish is written -> acknowledged, or the peer closes -> the
    /// writer closes -> gone.
    struct Transfer {
        Transfer(State& owner_in, std::uint64_t id_in) : owner(owner_in), id(id_in) {}
        State& owner;
        std::uint64_t id;
        udp::Connected connected;
        Offer offer;
        std::uint32_t blocks = 0;
        std::vector<Block> ring;
        std::deque<std::pair<std::uint32_t, std::optional<std::uint64_t>>>
            posted;                                               // in order: block and, once complete, its length
        std::map<std::uint64_t, std::vector<std::byte>> replies;  // being written
        std::uint64_t next_reply = 0;
        std::unique_ptr<WriterThread> writer;
        std::unique_ptr<reliable::Connection> connection;  // fills the ring: destroyed first
        TimePoint started;
        std::uint64_t bytes = 0;
        bool answered = false;  // Finish is on its way: what happens to the connection from here on is no failure
        bool closing = false;
        TransferReport report;

        void start();
        void post(std::uint32_t index);
        void on_block(std::uint32_t index, Result<reliable::ReceiveResult> result);
        void on_result(WriterResult result);
        void send_failures(const std::vector<SinkFailure>& failures);
        void send_reply(std::vector<std::byte> reply, bool last);
        void fill_report(const FileSink& sink);
        void on_failure(const Error& error);
        /// Ends the connection and lets the writer wind up.
        void close();
    };

    State(udp::RealLoop& loop_in, ReceiverOptions options_in, ReceiverEvents events_in)
        : loop(loop_in), options(std::move(options_in)), events(std::move(events_in)) {}

    udp::RequestAnswer on_request(const udp::IncomingRequest& request);
    void on_accepted(udp::Connected connected);
    void remove(std::uint64_t id);
    void show_progress();

    udp::RealLoop& loop;
    ReceiverOptions options;
    ReceiverEvents events;
    std::unique_ptr<udp::UdpEndpoint> endpoint;
    std::map<std::uint64_t, std::unique_ptr<Transfer>> transfers;
    std::uint64_t next_id = 0;
    bool interrupted = false;
    // Tasks that writers posted may outlive this.
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
};

udp::RequestAnswer Receiver::State::on_request(const udp::IncomingRequest& request) {
    const auto refuse = [](std::string reason) { return udp::RequestAnswer::refuse(std::move(reason)); };
    auto offer = decode_offer(request.blob);
    if (!offer) return refuse(offer.error().message);
    if (interrupted) return refuse("it is shutting down");
    if (options.once && next_id > 0) return refuse("it was started with --once and has its transfer already");
    if (transfers.size() >= options.max_transfers)
        return refuse(fmt::format("it is busy with {} transfers: try again later, or raise its --max-transfers",
                                  transfers.size()));
    const auto blocks =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(offer->blocks, options.memory / offer->block_bytes));
    if (blocks < kMinBlocks)
        return refuse(fmt::format(
            "blocks of {} do not fit its memory of {}: use a smaller --memory here or a larger --memory there",
            format_size(offer->block_bytes), format_size(options.memory)));
    // Tell the sender now rather than after the first gigabyte.
    auto sink = FileSink::open(options.sink);
    if (!sink) return refuse(sink.error().message);
    udp::ConnectParameters own = request.parameters;
    own.max_messages = std::min(request.parameters.max_messages, blocks);
    own.channels = std::min(request.parameters.channels, options.channels);
    return udp::RequestAnswer::accept(own, encode(Answer{.accepted = true, .blocks = blocks, .reason = {}}));
}

void Receiver::State::on_accepted(udp::Connected connected) {
    auto offer = decode_offer(connected.blob);
    auto sink = FileSink::open(options.sink);
    if (!offer || !sink || interrupted || (options.once && next_id > 0))
        return;  // the wire closes, which tells the sender
    const std::uint64_t id = next_id++;
    auto transfer = std::make_unique<Transfer>(*this, id);
    transfer->offer = *offer;
    transfer->connected = std::move(connected);
    transfer->blocks = std::min(
        static_cast<std::uint32_t>(std::min<std::uint64_t>(offer->blocks, options.memory / offer->block_bytes)),
        transfer->connected.parameters.max_messages);
    transfer->writer =
        std::make_unique<WriterThread>(std::move(*sink), [this, id, still = std::weak_ptr(alive)](WriterResult result) {
            auto shared = std::make_shared<WriterResult>(std::move(result));
            loop.post([this, id, still, shared] {
                if (still.expired()) return;
                const auto found = transfers.find(id);
                if (found != transfers.end()) found->second->on_result(std::move(*shared));
            });
        });
    Transfer& started = *transfer;
    transfers.emplace(id, std::move(transfer));
    if (events.started) events.started(started.connected.peer.to_string(), started.offer);
    started.start();
}

void Receiver::State::remove(std::uint64_t id) {
    const auto found = transfers.find(id);
    if (found == transfers.end()) return;
    const auto transfer = std::move(found->second);
    transfers.erase(found);
    if (events.ended) events.ended(transfer->report);
}

void Receiver::State::show_progress() {
    if (!events.progress) return;
    std::uint64_t done = 0, total = 0;
    for (const auto& [id, transfer] : transfers) {
        done += transfer->bytes;
        total += transfer->offer.total_bytes;
    }
    events.progress(done, total);
}

void Receiver::State::Transfer::start() {
    started = owner.loop.now();
    report.peer = connected.peer.to_string();
    report.scheme = offer.scheme;
    report.round_trip = connected.round_trip;
    report.payload_bytes = connected.parameters.payload_bytes;
    report.outcome = Outcome::kInterrupted;
    report.exit_code = kExitFailure;
    auto made = reliable::Connection::create(
        owner.loop, *connected.wire,
        queue_pair_config(offer, connected.parameters, blocks, BitRate{}, connected.round_trip, owner.options.timeout),
        connection_config(offer, connected.round_trip, owner.options.timeout));
    if (!made) {
        on_failure(made.error());
        return;
    }
    connection = std::move(*made);
    connection->on_failure([this](const Error& error) { on_failure(error); });
    ring.resize(blocks);
    for (std::uint32_t i = 0; i < blocks && !closing; ++i) {
        ring[i].bytes = std::make_unique_for_overwrite<std::byte[]>(offer.block_bytes);
        post(i);
    }
}

void Receiver::State::Transfer::post(std::uint32_t index) {
    posted.emplace_back(index, std::nullopt);
    auto result =
        connection->receive(ring[index].bytes.get(), offer.block_bytes,
                            [this, index](Result<reliable::ReceiveResult> r) { on_block(index, std::move(r)); });
    if (!result) on_failure(result.error());
}

void Receiver::State::Transfer::on_block(std::uint32_t index, Result<reliable::ReceiveResult> result) {
    if (!result || closing) return;  // on_failure() follows
    for (auto& [block, length] : posted)
        if (block == index) {
            length = result->length;
            break;
        }
    while (!posted.empty() && posted.front().second) {
        const auto [block, length] = posted.front();
        posted.pop_front();
        writer->submit(block, {ring[block].bytes.get(), static_cast<std::size_t>(*length)});
    }
}

void Receiver::State::Transfer::on_result(WriterResult result) {
    bytes += result.bytes;
    if (result.closed) {
        // A sink that the loop never heard the end of: the connection failed first. Everything may have been there all
        // the same.
        if (!answered && writer->sink().ended()) fill_report(writer->sink());
        if (!answered) report.files = writer->sink().files_stored();
        owner.remove(id);
        return;
    }
    for (const SinkFailure& failure : result.failures)
        if (owner.events.warning) owner.events.warning(failure.message);
    owner.show_progress();
    if (closing) return;
    send_failures(result.failures);
    if (result.ended) {
        const FileSink& sink = writer->sink();
        fill_report(sink);
        answered = true;
        std::vector<std::byte> reply(kReplyBytes);
        BlockWriter out(reply);
        out.add(FinishRecord{sink.outcome(), sink.files_stored(), sink.bytes_stored(), sink.files_failed(),
                             sink.message()});
        reply.resize(out.size());
        send_reply(std::move(reply), true);
    } else if (result.free_block && !answered) {
        post(*result.free_block);
    }
}

void Receiver::State::Transfer::fill_report(const FileSink& sink) {
    report.outcome = sink.outcome();
    report.exit_code = exit_code_of(sink.outcome());
    report.message = sink.message();
    report.files = sink.files_stored();
    report.bytes = sink.bytes_stored();
    report.files_failed = sink.files_failed();
    report.elapsed = owner.loop.now() - started;
    if (report.files == 1 && offer.total_files == 1) {
        report.digest = sink.last_digest();
        report.path = sink.last_path();
    }
}

void Receiver::State::Transfer::send_failures(const std::vector<SinkFailure>& failures) {
    std::vector<std::byte> reply(kReplyBytes);
    BlockWriter out(reply);
    const auto flush = [&] {
        if (out.empty()) return;
        std::vector<std::byte> bytes_out(reply.begin(), reply.begin() + static_cast<std::ptrdiff_t>(out.size()));
        send_reply(std::move(bytes_out), false);
        out = BlockWriter(reply);
    };
    for (const SinkFailure& failure : failures) {
        const FileFailedRecord record{failure.index, failure.outcome, failure.message};
        if (!out.add(record)) {
            flush();
            out.add(record);
        }
    }
    flush();
}

void Receiver::State::Transfer::send_reply(std::vector<std::byte> reply, bool last) {
    if (!connection || closing) return;
    const std::uint64_t number = next_reply++;
    const auto& kept = replies[number] = std::move(reply);
    auto status = connection->write(kept.data(), kept.size(), [this, number, last](Status done) {
        replies.erase(number);
        if (done && last) close();
    });
    if (!status) on_failure(status.error());
}

void Receiver::State::Transfer::on_failure(const Error& error) {
    if (closing) return;
    if (!answered) {
        report.outcome = Outcome::kFailed;
        report.exit_code = exit_code_of(error.code);
        report.message = error.message;
        report.elapsed = owner.loop.now() - started;
        report.bytes = bytes;
    }
    close();
}

void Receiver::State::Transfer::close() {
    if (closing) return;
    closing = true;
    if (connection) {
        const auto arrivals = connection->queue_pair().counters().arrivals;
        report.packets_sent = arrivals.accepted;
        report.packets_resent = arrivals.duplicate;
    }
    // May be inside one of the connection's callbacks: it goes in the next turn of the loop.
    owner.loop.post([state = &owner, still = std::weak_ptr(owner.alive), transfer_id = id] {
        if (still.expired()) return;
        const auto found = state->transfers.find(transfer_id);
        if (found == state->transfers.end()) return;
        found->second->connection.reset();
        found->second->connected.wire.reset();
        found->second->writer->finish();
    });
}

Receiver::Receiver(udp::RealLoop& loop, ReceiverOptions options, ReceiverEvents events)
    : state_(std::make_unique<State>(loop, std::move(options), std::move(events))) {}

Receiver::~Receiver() = default;

Status Receiver::listen() {
    State& s = *state_;
    auto sink = FileSink::open(s.options.sink);
    if (!sink) return propagate(sink);
    s.loop.update_now();
    auto options = udp_options(s.options.timeout, s.options.channels);
    options.bind = s.options.listen;
    auto endpoint = udp::UdpEndpoint::open(s.loop, options);
    if (!endpoint) return propagate(endpoint);
    s.endpoint = std::move(*endpoint);
    // Not before: who gets the port is the receiver of this folder.
    if (const std::size_t stale = (*sink)->remove_stale(); stale > 0 && s.events.warning)
        s.events.warning(
            fmt::format("removed {} partial file{} of a receiver that was killed", stale, stale == 1 ? "" : "s"));
    s.endpoint->listen([&s](const udp::IncomingRequest& request) { return s.on_request(request); },
                       [&s](udp::Connected connected) { s.on_accepted(std::move(connected)); });
    return {};
}

const udp::Address& Receiver::local_address() const { return state_->endpoint->local_address(); }
std::size_t Receiver::transfers() const { return state_->transfers.size(); }

void Receiver::interrupt() {
    State& s = *state_;
    s.interrupted = true;
    if (s.endpoint) s.endpoint->stop_listening();
    const Error error{ErrorCode::kClosed, "the receiver was interrupted"};
    std::vector<std::uint64_t> ids;
    ids.reserve(s.transfers.size());
    for (const auto& [id, transfer] : s.transfers) ids.push_back(id);
    for (const std::uint64_t id : ids) {
        const auto found = s.transfers.find(id);
        if (found == s.transfers.end()) continue;
        State::Transfer& transfer = *found->second;
        if (transfer.connection) transfer.connection->abort(error);
        transfer.on_failure(error);
    }
}

}  // namespace farhaul::app::transfer
