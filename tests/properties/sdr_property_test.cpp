// Properties of queue pairs over thousands of random links, layouts, messages and accidents, each from one seed:
//   - where a packet's bit is set, the buffer holds that packet's bytes; where it is not, the buffer is as it was;
//   - nothing outside a posted buffer changes, and nothing in it after complete_receive(), however late packets come:
//   buffers are painted
//     anew and posted again at once;
//   - the announced length and immediate are the sender's;
//   - every message ends, and when all have, nothing goes on;
//   - a seed replays bit for bit.
// The tests play the reliability layer themselves: every now and then they look at the receiver's bitmap and send again
// what is missing.
#include <map>
#include <memory>
#include <optional>

#include "harness.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::properties {
namespace {

using sdr::MessageSlot;
using sdr::QueuePair;
using sdr::SendHandle;

struct Scenario {
    wire::SimLinkConfig link;
    sdr::QueuePairConfig queue_pair;
    std::uint32_t messages = 0;
    std::uint32_t buffers = 0;     ///< of the receiver, used again and again
    std::uint64_t most_bytes = 0;  ///< of a message
    double early = 0;              ///< share of receives completed before everything is in
    double vain = 0;               ///< share of looks at which packets that are in are sent again
    double streaming = 0;          ///< share of messages sent in pieces
    bool in_order = false;         ///< go-back-N slots
    bool in_callback = false;      ///< complete and post from inside on_receive_progress()
    bool both_ways = false;
    std::uint32_t restarts = 0;
    bool stale = false;  ///< inject packets of generations past
};

struct Message {
    std::vector<std::byte> content;
    std::uint64_t posted_bytes = 0;
    std::optional<std::uint32_t> immediate;
    bool length_at_start = false;
    bool early = false;
    bool streamed = false;
    bool done = false;
};

class Flow;

/// Two queue pairs over one link, and one or two flows of messages.
class World {
 public:
    World(const Scenario& what, std::uint64_t seed);
    ~World();
    void run();
    void fail(const std::string& text) {
        if (problem_.empty()) problem_ = fmt::format("{} (at {:.9f} s)", text, loop_.now().seconds());
    }
    Outcome outcome();

    const Scenario& scenario() const { return scenario_; }
    Random& random() { return random_; }

 private:
    friend class Flow;
    struct Side final : sdr::QueuePairListener {
        void on_receive_progress(MessageSlot& slot) override;
        void on_clear_to_send() override;
        void on_send_queue_low() override;
        void on_queue_pair_error(const Error& error) override { world->fail("queue pair error: " + error.message); }
        World* world = nullptr;
        wire::SimWire* wire = nullptr;
        std::unique_ptr<QueuePair> queue_pair;
        Flow* sends = nullptr;
        Flow* receives = nullptr;
    };

    void open();
    void restart();
    void look();
    bool all_done() const;

    Scenario scenario_;
    Random random_;
    wire::SimLoop loop_;
    wire::SimNetwork network_;
    Side sides_[2];
    std::vector<std::unique_ptr<Flow>> flows_;
    Timer look_timer_;
    Duration interval_;
    std::uint32_t restarts_left_;
    std::string problem_;
};

/// Messages from one side to the other.
class Flow {
 public:
    Flow(World& world, int from, std::uint64_t seed);
    void attach(QueuePair* sender, QueuePair* receiver, wire::SimWire* receiver_wire);
    void detach();
    void look();
    void post();
    void start();
    void on_progress(MessageSlot& slot);
    bool done() const { return finished_ == messages_.size(); }
    void check_idle_buffers();

 private:
    struct Receive {
        MessageSlot* slot;
        std::size_t message;
        PaintedBuffer* buffer;
        std::uint32_t looks_left;  // before an early completion
    };
    struct Send {
        SendHandle* handle;
        std::size_t message;
        std::uint64_t queued = 0;
        bool ended = false;
    };
    Receive* receive_of(std::size_t message);
    bool verify(const Receive& receive);
    bool finished(const Receive& receive) const;
    void finish(std::size_t index);
    void feed(Send& send);
    void resend(Send& send);
    void queue_range(Send& send, std::uint32_t first, std::uint32_t count);
    void inject_stale();

    World& world_;
    Random random_;
    QueuePair* sender_ = nullptr;
    QueuePair* receiver_ = nullptr;
    wire::SimWire* receiver_wire_ = nullptr;
    std::vector<Message> messages_;
    std::vector<std::size_t> order_;  // of this incarnation: message of each sequence number, undone ones first to last
    std::size_t next_post_ = 0, next_start_ = 0, finished_ = 0;
    std::vector<std::unique_ptr<PaintedBuffer>> buffers_;
    std::vector<PaintedBuffer*> free_;
    std::vector<Receive> receives_;
    std::vector<Send> sends_;
    bool busy_ = false;
};

// --- Flow ---

Flow::Flow(World& world, int from, std::uint64_t seed) : world_(world), random_(seed) {
    const Scenario& s = world.scenario();
    for (std::uint32_t i = 0; i < s.messages; ++i) {
        Message message;
        const std::uint64_t payload = s.queue_pair.payload_bytes;
        std::uint64_t size = 0;
        switch (random_.below(5)) {
            case 0:
                size = random_.below(3);
                break;  // nothing, or next to it
            case 1:
                size = payload * random_.below(s.most_bytes / payload + 1);
                break;  // whole packets
            case 2:
                size = payload * random_.below(s.most_bytes / payload + 1) + 1;
                break;  // a tail of one byte
            default:
                size = random_.below(s.most_bytes + 1);
        }
        size = std::min(size, s.most_bytes);
        message.content = message_content(seed + i * 7919 + static_cast<std::uint64_t>(from), size);
        message.posted_bytes = random_.chance(0.6) ? size : random_.between(size, s.most_bytes);
        if (random_.chance(0.5)) message.immediate = static_cast<std::uint32_t>(random_());
        message.length_at_start = random_.chance(0.5);
        message.early = random_.chance(s.early);
        message.streamed = random_.chance(s.streaming);
        messages_.push_back(std::move(message));
    }
    for (std::uint32_t i = 0; i < s.buffers; ++i) {
        buffers_.push_back(std::make_unique<PaintedBuffer>(s.most_bytes));
        free_.push_back(buffers_.back().get());
    }
}

void Flow::attach(QueuePair* sender, QueuePair* receiver, wire::SimWire* receiver_wire) {
    sender_ = sender;
    receiver_ = receiver;
    receiver_wire_ = receiver_wire;
    order_.clear();
    for (std::size_t i = 0; i < messages_.size(); ++i)
        if (!messages_[i].done) order_.push_back(i);
    next_post_ = next_start_ = 0;
}

/// Both queue pairs are gone, with whatever was under way.
void Flow::detach() {
    for (const Receive& receive : receives_) {
        if (!receive.buffer->guards_untouched(messages_[receive.message].posted_bytes))
            world_.fail("bytes outside a buffer changed before a restart");
        receive.buffer->repaint();
        free_.push_back(receive.buffer);
    }
    receives_.clear();
    sends_.clear();
    sender_ = receiver_ = nullptr;
}

Flow::Receive* Flow::receive_of(std::size_t message) {
    for (Receive& receive : receives_)
        if (receive.message == message) return &receive;
    return nullptr;
}

void Flow::post() {
    while (next_post_ < order_.size() && !free_.empty()) {
        const std::size_t index = order_[next_post_];
        Message& message = messages_[index];
        PaintedBuffer* buffer = free_.back();  // the one that was used last, so that its late packets still fly
        auto slot = receiver_->post_receive(buffer->data(), message.posted_bytes, static_cast<std::uint32_t>(index),
                                            {.in_order = world_.scenario().in_order});
        if (!slot) {
            if (slot.error().code != ErrorCode::kRetry) world_.fail("post_receive: " + slot.error().message);
            return;
        }
        free_.pop_back();
        if (!buffer->untouched()) return world_.fail("a free buffer was written to");
        receives_.push_back({*slot, index, buffer, message.early ? static_cast<std::uint32_t>(random_.below(6)) : 0});
        ++next_post_;
    }
}

/// Bits and bytes tell the same story.
bool Flow::verify(const Receive& receive) {
    const Message& message = messages_[receive.message];
    const MessageSlot& slot = *receive.slot;
    const std::uint64_t payload = world_.scenario().queue_pair.payload_bytes;
    const std::uint32_t per_chunk = world_.scenario().queue_pair.packets_per_chunk;
    if (slot.length() != message.posted_bytes && slot.length() != message.content.size()) {
        world_.fail(fmt::format("message {} has length {}, is {} of {} posted", receive.message, slot.length(),
                                message.content.size(), message.posted_bytes));
        return false;
    }
    std::uint32_t complete_chunks = 0;
    for (std::uint32_t chunk = 0; chunk < slot.chunks(); ++chunk) {
        const std::uint64_t bits = slot.chunk_packets(chunk);
        const std::uint32_t packets = slot.packets_in_chunk(chunk);
        if (packets < 64 && bits >> packets != 0) {
            world_.fail(
                fmt::format("chunk {} of message {} has bits beyond its {} packets", chunk, receive.message, packets));
            return false;
        }
        const bool full = static_cast<std::uint32_t>(std::popcount(bits)) == packets;
        const bool bit = (slot.chunk_bitmap()[chunk / 8] >> (chunk % 8) & 1) != 0;
        if (full != bit || bit != slot.chunk_complete(chunk)) {
            world_.fail(fmt::format("chunk {} of message {}: its bit says {}, its packets say {}", chunk,
                                    receive.message, bit, full));
            return false;
        }
        complete_chunks += full;
        for (std::uint32_t i = 0; i < packets; ++i) {
            const std::uint64_t offset = (static_cast<std::uint64_t>(chunk) * per_chunk + i) * payload;
            const std::uint64_t room = std::min(payload, message.posted_bytes - offset);
            const std::uint64_t sent =
                offset < message.content.size() ? std::min<std::uint64_t>(payload, message.content.size() - offset) : 0;
            const bool set = (bits >> i & 1) != 0;
            if (set && sent == 0) {
                world_.fail(fmt::format("packet {} of message {} is set but was never sent", offset / payload,
                                        receive.message));
                return false;
            }
            std::uint64_t filled = set ? sent : 0;
            // A short packet waits in the buffer for the announcement that it is the last: only then its bit is set.
            const bool may_wait = !set && sent > 0 && sent < payload && slot.length() != message.content.size();
            if (may_wait && !receive.buffer->untouched(offset, sent)) filled = sent;
            if (filled > 0 &&
                std::memcmp(receive.buffer->data() + offset, message.content.data() + offset, filled) != 0) {
                world_.fail(fmt::format("packet {} of message {} has bytes that were not sent", offset / payload,
                                        receive.message));
                return false;
            }
            if (!receive.buffer->untouched(offset + filled, room - filled)) {
                world_.fail(fmt::format("packet {} of message {}: bytes were written that its bit does not tell of",
                                        offset / payload, receive.message));
                return false;
            }
        }
    }
    if (complete_chunks != slot.chunks_complete() || slot.complete() != (complete_chunks == slot.chunks())) {
        world_.fail(fmt::format("message {} counts {} complete chunks, has {}", receive.message, slot.chunks_complete(),
                                complete_chunks));
        return false;
    }
    const std::uint64_t covered = std::min<std::uint64_t>(slot.packets() * payload, message.posted_bytes);
    if (!receive.buffer->guards_untouched(covered)) {
        world_.fail(fmt::format("bytes outside message {} changed", receive.message));
        return false;
    }
    std::uint32_t immediate = 0;
    if (slot.immediate(&immediate) && message.immediate && immediate != *message.immediate) {
        world_.fail(fmt::format("message {} has immediate {:#x}, sent was {:#x}", receive.message, immediate,
                                *message.immediate));
        return false;
    }
    return true;
}

bool Flow::finished(const Receive& receive) const {
    const Message& message = messages_[receive.message];
    std::uint32_t immediate = 0;
    return receive.slot->complete() && receive.slot->length() == message.content.size() &&
           (!message.immediate || receive.slot->immediate(&immediate));
}

void Flow::finish(std::size_t index) {
    const Receive receive = receives_[index];
    if (!verify(receive)) return;
    const std::uint64_t sequence = receive.slot->sequence();
    receiver_->complete_receive(*receive.slot);
    if (receive.slot->open() || receive.slot->sequence() != sequence)
        return world_.fail("complete_receive() left the slot open");
    receive.buffer->repaint();
    free_.push_back(receive.buffer);
    receives_.erase(receives_.begin() + static_cast<std::ptrdiff_t>(index));
    messages_[receive.message].done = true;
    ++finished_;
}

void Flow::on_progress(MessageSlot& slot) {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
        if (receives_[i].slot != &slot) continue;
        if (world_.scenario().in_callback && finished(receives_[i])) {
            finish(i);
            post();
        }
        return;
    }
    world_.fail("progress of a slot that is not open");
}

void Flow::start() {
    if (busy_) return;
    busy_ = true;
    while (sender_ != nullptr && next_start_ < order_.size() && sender_->can_start_send()) {
        const std::size_t index = order_[next_start_];
        const Message& message = messages_[index];
        if (sender_->next_send_capacity() != message.posted_bytes || sender_->next_send_tag() != index) {
            world_.fail(fmt::format("clear-to-send of message {}: {} bytes, tag {}", index,
                                    sender_->next_send_capacity(), sender_->next_send_tag()));
            break;
        }
        sdr::StartSend what;
        what.immediate = message.immediate;
        if (message.length_at_start) what.length = message.content.size();
        auto handle = sender_->start_send(what);
        if (!handle) {
            world_.fail("start_send although it can: " + handle.error().message);
            break;
        }
        ++next_start_;
        sends_.push_back({*handle, index});
        feed(sends_.back());
    }
    busy_ = false;
}

/// Queues all of the message, or the next piece of a streamed one.
void Flow::feed(Send& send) {
    const Message& message = messages_[send.message];
    const std::uint64_t payload = world_.scenario().queue_pair.payload_bytes;
    if (send.ended) return;
    const std::uint64_t left = message.content.size() - send.queued;
    std::uint64_t length = left;
    if (message.streamed && left > payload) length = std::min(left, payload * random_.between(1, left / payload));
    if (length > 0) {
        Status queued = sender_->continue_send(*send.handle, send.queued, message.content.data() + send.queued, length);
        if (!queued) return world_.fail("continue_send: " + queued.error().message);
        send.queued += length;
    }
    if (send.queued < message.content.size()) return;
    send.ended = true;
    if (Status ended = sender_->end_send(*send.handle); !ended) world_.fail("end_send: " + ended.error().message);
}

void Flow::queue_range(Send& send, std::uint32_t first, std::uint32_t count) {
    const Message& message = messages_[send.message];
    const std::uint64_t payload = world_.scenario().queue_pair.payload_bytes;
    const std::uint64_t offset = first * payload;
    const std::uint64_t length = std::min<std::uint64_t>(count * payload, send.queued - offset);
    Status queued = sender_->continue_send(*send.handle, offset, message.content.data() + offset, length,
                                           send.ended || random_.chance(0.5));
    if (!queued) world_.fail("continue_send again: " + queued.error().message);
}

void Flow::resend(Send& send) {
    const Receive* receive = receive_of(send.message);
    if (receive == nullptr || !sender_->injected(*send.handle)) return;
    const MessageSlot& slot = *receive->slot;
    const std::uint64_t payload = world_.scenario().queue_pair.payload_bytes;
    const std::uint32_t per_chunk = world_.scenario().queue_pair.packets_per_chunk;
    const auto queued = static_cast<std::uint32_t>((send.queued + payload - 1) / payload);
    if (world_.scenario().in_order) {
        if (slot.next_in_order() < queued) queue_range(send, slot.next_in_order(), queued - slot.next_in_order());
        return;
    }
    const bool in_vain = random_.chance(world_.scenario().vain);
    std::uint32_t run = 0;
    for (std::uint32_t packet = 0; packet <= queued; ++packet) {
        const bool missing = packet < queued && packet < slot.packets() &&
                             (in_vain || (slot.chunk_packets(packet / per_chunk) >> (packet % per_chunk) & 1) == 0);
        if (missing) {
            ++run;
        } else if (run > 0) {
            queue_range(send, packet - run, run);
            run = 0;
        }
    }
}

/// A packet of the slot's previous user: the generation before.
void Flow::inject_stale() {
    if (receives_.empty()) return;
    const auto& layout = world_.scenario().queue_pair.layout;
    const Receive& receive = receives_[random_.below(receives_.size())];
    const std::uint64_t sequence = receive.slot->sequence();
    const auto id = static_cast<std::uint32_t>(sequence % layout.message_ids());
    const auto generation = static_cast<std::uint32_t>(sequence / layout.message_ids());
    std::vector<std::byte> payload(world_.scenario().queue_pair.payload_bytes, std::byte{0xee});
    receiver_wire_->inject_packet(layout.encode(id, static_cast<std::uint32_t>(random_.below(2)), 0), generation - 1,
                                  payload);
    // And of this generation, but beyond the buffer.
    const std::uint32_t beyond = receive.slot->packets();
    if (beyond < layout.max_packets()) receiver_wire_->inject_packet(layout.encode(id, beyond, 0), generation, payload);
}

void Flow::look() {
    for (std::size_t i = 0; i < receives_.size();) {
        Receive& receive = receives_[i];
        if (random_.chance(0.2) && !verify(receive)) return;
        const bool enough = messages_[receive.message].early && receive.looks_left-- == 0;
        if (finished(receive) || enough)
            finish(i);
        else
            ++i;
        if (!world_.problem_.empty()) return;
    }
    if (world_.scenario().stale && random_.chance(0.3)) inject_stale();
    post();
    for (std::size_t i = 0; i < sends_.size();) {
        if (messages_[sends_[i].message].done) {
            sender_->release_send(*sends_[i].handle);
            sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
            continue;
        }
        feed(sends_[i]);
        resend(sends_[i]);
        ++i;
    }
    start();
}

void Flow::check_idle_buffers() {
    for (const PaintedBuffer* buffer : free_)
        if (!buffer->untouched()) return world_.fail("a buffer was written to after its receive was complete");
}

// --- World ---

World::World(const Scenario& what, std::uint64_t seed)
    : scenario_(what),
      random_(seed),
      network_(loop_),
      look_timer_(
          loop_.timers(), [](void* self) { static_cast<World*>(self)->look(); }, this),
      restarts_left_(what.restarts) {
    loop_.set_event_budget(20'000'000);
    interval_ = std::max(what.link.forward.delay + what.link.backward.delay + what.link.forward.jitter,
                         Duration::from_microseconds(200));
    auto ends = network_.connect(what.link, random_());
    if (!ends) {
        fail("connect: " + ends.error().message);
        return;
    }
    sides_[0].wire = ends->first;
    sides_[1].wire = ends->second;
    for (int from = 0; from < (what.both_ways ? 2 : 1); ++from) {
        flows_.push_back(std::make_unique<Flow>(*this, from, random_()));
        sides_[from].sends = flows_.back().get();
        sides_[1 - from].receives = flows_.back().get();
    }
    open();
}

World::~World() {
    for (Side& side : sides_) side.queue_pair.reset();
}

void World::open() {
    for (Side& side : sides_) {
        side.world = this;
        auto made = QueuePair::create(loop_, *side.wire, scenario_.queue_pair, &side);
        if (!made) return fail("create: " + made.error().message);
        side.queue_pair = std::move(*made);
    }
    for (std::size_t i = 0; i < flows_.size(); ++i)
        flows_[i]->attach(sides_[i].queue_pair.get(), sides_[1 - i].queue_pair.get(), sides_[1 - i].wire);
}

/// Both ends lose everything under way and connect anew: what still flies belongs to the connection before.
void World::restart() {
    const int first = random_.chance(0.5) ? 1 : 0;
    sides_[first].queue_pair.reset();
    sides_[1 - first].queue_pair.reset();
    for (auto& flow : flows_) flow->detach();
    sides_[0].wire->restart();
    open();
}

void World::look() {
    if (restarts_left_ > 0 && random_.chance(0.1)) {
        --restarts_left_;
        restart();
    }
    for (auto& flow : flows_)
        if (problem_.empty()) flow->look();
    if (problem_.empty() && !all_done()) look_timer_.arm(loop_.now() + interval_.scaled(0.5 + random_.uniform()));
}

bool World::all_done() const {
    return std::all_of(flows_.begin(), flows_.end(), [](const auto& flow) { return flow->done(); });
}

void World::run() {
    if (!problem_.empty()) return;
    look_timer_.arm(loop_.now());
    const auto going = [this] { return problem_.empty() && !all_done(); };
    if (Status status = loop_.run_while(going, TimePoint() + Duration::from_seconds(200)); !status)
        fail("not every message ended: " + status.error().message);
    if (!problem_.empty()) return;
    // When all is done, what is late comes and touches nothing, and then nothing goes on.
    look_timer_.disarm();
    const TimePoint end = loop_.now();
    if (Status status = loop_.run(); !status) fail("an idle queue pair does not rest: " + status.error().message);
    if (loop_.now() - end > Duration::from_seconds(100))
        fail(fmt::format("an idle queue pair was busy for {:.1f} s", (loop_.now() - end).seconds()));
    for (auto& flow : flows_) flow->check_idle_buffers();
}

Outcome World::outcome() {
    std::uint64_t hash = network_.trace_hash();
    const auto fold = [&hash](std::uint64_t value) {
        hash = (hash ^ value) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 31;
    };
    for (Side& side : sides_) {
        if (side.queue_pair == nullptr) continue;
        const auto& counters = side.queue_pair->counters();
        fold(counters.packets_sent);
        fold(counters.datagrams_sent);
        fold(counters.control_retransmissions);
        fold(counters.arrivals.accepted);
        fold(counters.arrivals.stale);
        if (counters.malformed_datagrams != 0) fail("a datagram of an honest peer was refused");
    }
    fold(static_cast<std::uint64_t>(loop_.now().nanoseconds()));
    fold(loop_.events());
    return {problem_, hash};
}

void World::Side::on_receive_progress(MessageSlot& slot) { receives->on_progress(slot); }
void World::Side::on_clear_to_send() {
    if (sends != nullptr) sends->start();
}
void World::Side::on_send_queue_low() {}

// --- scenarios ---

Scenario random_scenario(Random& random, const Hostility& hostility) {
    static constexpr sdr::ImmediateLayout kLayouts[] = {{10, 18, 4}, {8, 22, 2}, {3, 25, 4}, {2, 22, 8},
                                                        {1, 30, 1},  {1, 23, 8}, {4, 27, 1}, {6, 18, 8}};
    Scenario s;
    s.link = random_link(random, hostility);
    auto& qp = s.queue_pair;
    qp.layout = kLayouts[random.below(std::size(kLayouts))];
    qp.payload_bytes =
        static_cast<std::uint32_t>(random.chance(0.3) ? random.between(1, 64) : random.between(65, 4096));
    qp.packets_per_chunk = static_cast<std::uint32_t>(random.chance(0.3) ? 1 : random.between(1, 64));
    qp.max_messages =
        static_cast<std::uint32_t>(random.between(1, std::min<std::uint64_t>(qp.layout.message_ids(), 12)));
    const std::uint64_t most_packets = random.chance(0.1) ? 300 : random.chance(0.5) ? 60 : 8;
    s.most_bytes = std::min<std::uint64_t>(qp.payload_bytes * most_packets, 300 * 1024);
    s.most_bytes = std::min(s.most_bytes, static_cast<std::uint64_t>(qp.layout.max_packets()) * qp.payload_bytes);
    qp.max_message_bytes = std::max<std::uint64_t>(s.most_bytes, 1);
    const Duration trip = s.link.forward.delay + s.link.backward.delay;
    qp.initial_rtt = std::max(trip.scaled(0.2 + random.uniform() * 3), Duration::from_microseconds(1));
    qp.control_timeout = Duration::from_milliseconds(1'000'000);
    if (random.chance(0.3)) qp.rate_limit = BitRate::from_bits_per_second(random.between(5'000'000, 10'000'000'000));
    qp.overhead_bytes = static_cast<std::uint32_t>(random.below(60));
    s.link.layout = qp.layout;
    s.link.packets_per_chunk = qp.packets_per_chunk;
    s.link.limits.max_payload_bytes = qp.payload_bytes;
    s.link.limits.channels = static_cast<std::uint32_t>(random.chance(0.5) ? 1 : random.between(2, 5));
    s.link.limits.generation_bits = random.chance(0.5) ? 32 : static_cast<std::uint32_t>(random.between(8, 16));
    s.messages = static_cast<std::uint32_t>(random.between(1, 12));
    s.buffers = static_cast<std::uint32_t>(random.between(1, 6));
    s.streaming = random.chance(0.5) ? random.uniform() : 0;
    s.vain = random.chance(0.3) ? random.uniform() * 0.5 : 0;
    s.in_callback = random.chance(0.5);
    s.both_ways = random.chance(0.3);
    s.in_order = random.chance(0.15);
    return s;
}

Outcome play(const Scenario& scenario, std::uint64_t seed) {
    World world(scenario, seed);
    world.run();
    return world.outcome();
}

TEST(SdrProperties, MessagesArriveOverABadLink) {
    for_each_seed(0.4, 10, [](std::uint64_t seed) {
        Random random(seed);
        return play(random_scenario(random, {}), seed);
    });
}

TEST(SdrProperties, NothingIsTouchedAfterAnEarlyCompletion) {
    for_each_seed(0.3, 10, [](std::uint64_t seed) {
        Random random(seed + 1'000'000);
        Scenario s = random_scenario(random, {});
        s.early = random.uniform();
        s.vain = random.uniform();
        s.messages += 6;
        s.buffers = 1;
        s.stale = true;
        // Late enough to meet later messages of the same id.
        s.link.forward.reorder_probability = 0.3;
        s.link.forward.reorder_delay =
            Duration::from_microseconds(static_cast<std::int64_t>(random.between(10, 20'000)));
        return play(s, seed);
    });
}

TEST(SdrProperties, ATinyIdSpaceWrapsManyTimes) {
    for_each_seed(0.2, 10, [](std::uint64_t seed) {
        Random random(seed + 2'000'000);
        Scenario s = random_scenario(random, {});
        s.queue_pair.layout = random.chance(0.5) ? sdr::ImmediateLayout{1, 23, 8} : sdr::ImmediateLayout{2, 28, 2};
        s.link.layout = s.queue_pair.layout;
        s.queue_pair.max_messages = static_cast<std::uint32_t>(random.between(1, s.queue_pair.layout.message_ids()));
        s.queue_pair.payload_bytes = static_cast<std::uint32_t>(random.between(1, 300));
        s.link.limits.max_payload_bytes = s.queue_pair.payload_bytes;
        s.most_bytes = s.queue_pair.max_message_bytes = s.queue_pair.payload_bytes * random.between(1, 4);
        s.messages = static_cast<std::uint32_t>(random.between(30, 60));
        s.early = random.uniform() * 0.5;
        s.stale = true;
        s.link.forward.reorder_probability = 0.2;
        s.link.forward.reorder_delay =
            Duration::from_microseconds(static_cast<std::int64_t>(random.between(10, 5'000)));
        return play(s, seed);
    });
}

TEST(SdrProperties, PeersRestartInTheMiddle) {
    for_each_seed(0.1, 5, [](std::uint64_t seed) {
        Random random(seed + 3'000'000);
        Scenario s = random_scenario(random, {});
        s.restarts = static_cast<std::uint32_t>(random.between(1, 4));
        s.early = random.uniform() * 0.3;
        s.messages += 4;
        return play(s, seed);
    });
}

struct ErrorListener : sdr::QueuePairListener {
    explicit ErrorListener(wire::SimLoop& l) : loop(l) {}
    void on_queue_pair_error(const Error& error) override {
        errors.push_back(error);
        at = loop.now();
    }
    wire::SimLoop& loop;
    std::vector<Error> errors;
    TimePoint at;
};

TEST(SdrProperties, AVanishedPeerIsReportedInBoundedTimeAndThenAllIsQuiet) {
    for_each_seed(0.05, 10, [](std::uint64_t seed) -> Outcome {
        Random random(seed + 4'000'000);
        Scenario s = random_scenario(random, {.loss = 0.1});
        s.queue_pair.control_timeout =
            Duration::from_milliseconds(static_cast<std::int64_t>(random.between(100, 5'000)));
        wire::SimLoop loop;
        loop.set_event_budget(1'000'000);
        wire::SimNetwork network(loop);
        auto ends = network.connect(s.link, seed);
        if (!ends) return {ends.error().message, 0};
        ErrorListener here(loop), there(loop);
        auto survivor = QueuePair::create(loop, *ends->first, s.queue_pair, &here);
        auto victim = QueuePair::create(loop, *ends->second, s.queue_pair, &there);
        if (!survivor || !victim) return {"no queue pair", 0};
        std::vector<std::byte> memory(s.queue_pair.max_message_bytes);
        if (random.chance(0.5)) ends->second->kill();
        const TimePoint posted = loop.now();
        if (auto slot = (*survivor)->post_receive(memory.data(), memory.size()); !slot)
            return {slot.error().message, 0};
        ends->second->kill();
        if (Status status = loop.run(); !status) return {status.error().message, 0};
        if (here.errors.size() != 1) return {fmt::format("{} errors were reported", here.errors.size()), 0};
        if (here.errors[0].code != ErrorCode::kPeerGone && here.errors[0].code != ErrorCode::kTimeout)
            return {"odd error: " + here.errors[0].message, 0};
        const Duration waited = here.at - posted;
        if (waited < s.queue_pair.control_timeout ||
            waited > s.queue_pair.control_timeout * 3 + Duration::from_milliseconds(1'000))
            return {fmt::format("reported after {:.3f} s, the limit is {:.3f} s", waited.seconds(),
                                s.queue_pair.control_timeout.seconds()),
                    0};
        if ((*survivor)->post_receive(memory.data(), 1) || (*survivor)->start_send({}))
            return {"a failed queue pair takes orders", 0};
        return {{}, network.trace_hash()};
    });
}

}  // namespace
}  // namespace farhaul::properties
