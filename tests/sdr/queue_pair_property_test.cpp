// Whole conversations under a seed: messages of random size over a wire that loses, duplicates, delays and reorders
// data and control, with a tiny id space, early completions, and repair by a reliability layer that is nothing but a
// timer and a look at the receiver's bitmap.
//
// After every step that could break it: no bit without its payload, no byte outside a buffer, nothing touched after
// complete_receive(), every message ends.
#include <gtest/gtest.h>

#include "fake_wire.hpp"
#include "sdr/queue_pair.hpp"

namespace farhaul::sdr {
namespace {

using testing::GuardedBuffer;
using testing::message_bytes;
using testing::Pair;
using testing::pattern;

struct Conversation {
    struct Message {
        std::uint64_t length = 0;
        std::uint64_t posted = 0;
        std::optional<std::uint32_t> immediate;
        bool announce_length = false;
        bool complete_early = false;
        std::vector<std::byte> bytes;
        std::unique_ptr<GuardedBuffer> buffer;
        std::vector<std::byte> at_completion;
        SendHandle* send = nullptr;
        MessageSlot* slot = nullptr;
        bool done = false;
    };

    explicit Conversation(std::uint64_t seed) : random(seed), pair(make_config(random), seed) {
        testing::Faults faults;
        faults.loss = random.chance(0.3) ? 0 : random.uniform() * 0.3;
        faults.datagram_loss = random.chance(0.3) ? 0 : random.uniform() * 0.3;
        faults.duplicate = random.chance(0.5) ? 0 : random.uniform() * 0.3;
        faults.reorder = random.chance(0.5) ? 0 : random.uniform();
        faults.partial_burst = random.chance(0.5) ? 0 : random.uniform() * 0.5;
        faults.reorder_delay = Duration::from_microseconds(static_cast<std::int64_t>(random.below(8000)));
        // Sometimes a packet is so late that its message id has been used many times since.
        if (random.chance(0.2)) faults.reorder = 0.05, faults.reorder_delay = Duration::from_milliseconds(400);
        pair.faults(faults);
        const auto channels = static_cast<std::uint32_t>(random.between(1, 4));
        const bool concurrent = random.chance(0.3);
        for (FakeWireLimits limits : {&pair.wire_a.limits_, &pair.wire_b.limits_}) {
            limits->channels = channels;
            limits->concurrent_channels = concurrent;
        }
        in_order = !concurrent && faults.reorder == 0 && random.chance(0.3);
        pair.open();
        messages.resize(random.between(1, 12));
        for (std::size_t n = 0; n < messages.size(); ++n) {
            Message& m = messages[n];
            const std::uint64_t most =
                std::min<std::uint64_t>(pair.config.max_message_bytes, 60ull * pair.config.payload_bytes);
            m.length = random.chance(0.1) ? 0 : random.between(0, most);
            m.posted = random.chance(0.5) ? m.length : random.between(m.length, pair.config.max_message_bytes);
            if (random.chance(0.6)) m.immediate = static_cast<std::uint32_t>(random());
            m.announce_length = random.chance(0.5);
            m.complete_early = random.chance(0.15);
            m.bytes = message_bytes(n, m.length);
            m.buffer = std::make_unique<GuardedBuffer>(m.posted);
        }
        pair.events_b.when_progress = [this](MessageSlot& slot) { check_bits(messages[slot.sequence()]); };
    }
    using FakeWireLimits = WireLimits*;

    static QueuePairConfig make_config(Random& random) {
        QueuePairConfig config;
        constexpr ImmediateLayout kLayouts[] = {{1, 27, 4}, {2, 22, 8}, {3, 27, 2}, {10, 18, 4}};
        config.layout = kLayouts[random.below(4)];
        config.payload_bytes =
            static_cast<std::uint32_t>(random.chance(0.2) ? random.between(1, 3) : random.between(4, 65));
        config.packets_per_chunk = static_cast<std::uint32_t>(random.between(1, random.chance(0.5) ? 5 : 64));
        config.max_messages = static_cast<std::uint32_t>(random.between(1, std::min(4u, config.layout.message_ids())));
        config.max_message_bytes = random.between(1, 70ull * config.payload_bytes);
        config.initial_rtt = Duration::from_milliseconds(static_cast<std::int64_t>(random.between(1, 50)));
        config.control_timeout = Duration::from_milliseconds(60'000);
        if (random.chance(0.3))
            config.rate_limit = BitRate::from_bits_per_second(random.between(1'000'000, 100'000'000));
        return config;
    }

    void check_bits(const Message& m) {
        const MessageSlot& slot = *m.slot;
        const std::uint32_t payload = pair.config.payload_bytes;
        for (std::uint32_t c = 0; c < slot.chunks(); ++c) {
            const std::uint64_t bits = slot.chunk_packets(c);
            const std::uint32_t count = slot.packets_in_chunk(c);
            EXPECT_EQ(slot.chunk_complete(c), static_cast<std::uint32_t>(std::popcount(bits)) == count);
            for (std::uint32_t i = 0; i < count; ++i) {
                if ((bits >> i & 1) == 0) continue;
                const std::uint64_t from =
                    (static_cast<std::uint64_t>(c) * pair.config.packets_per_chunk + i) * payload;
                const std::uint64_t to = std::min(from + payload, slot.length());
                EXPECT_LE(to, m.length) << "a bit behind the end of what was sent";
                if (to > m.length) return;
                EXPECT_TRUE(std::equal(m.bytes.begin() + static_cast<std::ptrdiff_t>(from),
                                       m.bytes.begin() + static_cast<std::ptrdiff_t>(to), m.buffer->data() + from))
                    << "bit without payload: packet " << c * pair.config.packets_per_chunk + i;
            }
        }
    }

    void post() {
        while (next_post < messages.size()) {
            Message& m = messages[next_post];
            auto slot = pair.b->post_receive(m.buffer->data(), m.posted, static_cast<std::uint32_t>(next_post),
                                             {.in_order = in_order});
            if (!slot) {
                EXPECT_EQ(slot.error().code, ErrorCode::kRetry);
                return;
            }
            m.slot = *slot;
            ++next_post;
        }
    }
    void start() {
        while (next_start < messages.size() && pair.a->can_start_send()) {
            Message& m = messages[next_start];
            EXPECT_EQ(pair.a->next_send_capacity(), m.posted);
            EXPECT_EQ(pair.a->next_send_tag(), next_start);
            auto send = pair.a->start_send(
                {.immediate = m.immediate, .length = m.announce_length ? std::optional(m.length) : std::nullopt});
            ASSERT_TRUE(send) << send.error().message;
            m.send = *send;
            // In pieces of some packets, shuffled when the length is known.
            std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
            for (std::uint64_t at = 0; at < m.length;) {
                const std::uint64_t size = std::min(m.length - at, random.between(1, 20) * pair.config.payload_bytes);
                ranges.emplace_back(at, size);
                at += size;
            }
            if (m.announce_length && !in_order)
                for (std::size_t i = ranges.size(); i > 1; --i) std::swap(ranges[i - 1], ranges[random.below(i)]);
            for (const auto& [at, size] : ranges)
                ASSERT_TRUE(
                    pair.a->continue_send(**send, at, m.bytes.data() + at, size, random.chance(0.1) && !in_order));
            ASSERT_TRUE(pair.a->end_send(**send));
            ++next_start;
        }
    }
    /// What a reliability layer would do: repeat what is missing.
    void repair() {
        for (std::size_t n = 0; n < next_start; ++n) {
            Message& m = messages[n];
            if (m.done || m.length == 0 || !pair.a->injected(*m.send)) continue;
            const std::uint64_t chunk_bytes =
                static_cast<std::uint64_t>(pair.config.packets_per_chunk) * pair.config.payload_bytes;
            bool behind = false;
            for (std::uint64_t at = 0; at < m.length; at += chunk_bytes) {
                const auto chunk = static_cast<std::uint32_t>(at / chunk_bytes);
                if (m.slot->chunk_complete(chunk) && !behind) continue;
                behind = in_order;
                ASSERT_TRUE(pair.a->continue_send(*m.send, at, m.bytes.data() + at,
                                                  std::min(chunk_bytes, m.length - at), true));
            }
        }
    }
    void complete() {
        for (std::size_t n = 0; n < next_start; ++n) {
            Message& m = messages[n];
            if (m.done) continue;
            std::uint32_t value = 0;
            const bool early = m.complete_early && random.chance(0.02);
            const bool whole =
                m.slot->complete() && m.slot->length() == m.length && (!m.immediate || m.slot->immediate(&value));
            if (!early && !whole) continue;
            check_bits(m);
            if (whole) {
                EXPECT_TRUE(std::equal(m.bytes.begin(), m.bytes.end(), m.buffer->data()));
                if (m.immediate) {
                    EXPECT_EQ(value, *m.immediate);
                }
            }
            pair.b->complete_receive(*m.slot);
            m.at_completion.assign(m.buffer->data(), m.buffer->data() + m.posted);
            m.done = true;
            pair.a->release_send(*m.send);
        }
    }
    bool finished() const {
        return std::all_of(messages.begin(), messages.end(), [](const Message& m) { return m.done; });
    }
    void run() {
        TimePoint next_repair;
        bool poll = false;
        const TimePoint end = pair.loop.now() + Duration::from_seconds(60);
        while (!finished() && pair.loop.now() < end && !::testing::Test::HasFailure()) {
            post();
            start();
            if (pair.loop.now() >= next_repair) {
                repair();
                next_repair = pair.loop.now() + Duration::from_milliseconds(10);
            }
            complete();
            pair.loop.run_for(Duration::from_microseconds(500));
            poll = !poll;
            if (poll) {
                pair.wire_a.sink_->poll();
                pair.wire_b.sink_->poll();
            }
        }
        EXPECT_TRUE(finished());
        pair.loop.run_for(Duration::from_milliseconds(500));  // what was late comes now
        for (const Message& m : messages) {
            EXPECT_TRUE(m.buffer->guards_intact());
            EXPECT_TRUE(std::equal(m.at_completion.begin(), m.at_completion.end(), m.buffer->data()))
                << "touched after completion";
        }
        for (QueuePair* each : {pair.a.get(), pair.b.get()}) {
            EXPECT_EQ(each->counters().malformed_datagrams, 0u);
            EXPECT_EQ(each->counters().arrivals.out_of_bounds, 0u);
        }
        EXPECT_EQ(pair.events_a.errors + pair.events_b.errors, 0);
    }

    Random random;
    Pair pair;
    bool in_order = false;
    std::vector<Message> messages;
    std::size_t next_post = 0, next_start = 0;
};

TEST(QueuePairProperty, EveryConversationEndsAndIsExact) {
    const testing::Seeds seeds(3000);
    for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
        SCOPED_TRACE(fmt::format("seed {0}; replay with: FARHAUL_SEED={0}", seed));
        Conversation(seed).run();
        if (HasFailure()) FAIL() << "seed " << seed << "; replay with: FARHAUL_SEED=" << seed;
    }
}

/// The same seed gives the same conversation, event for event.
TEST(QueuePairProperty, ASeedReplays) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const auto run = [&] {
            Conversation conversation(seed);
            conversation.run();
            const QueuePairCounters& c = conversation.pair.a->counters();
            return fmt::format("{} {} {} {} {}", conversation.pair.loop.now().nanoseconds(), c.packets_sent,
                               c.datagrams_sent, c.control_retransmissions,
                               conversation.pair.b->counters().arrivals.duplicate);
        };
        EXPECT_EQ(run(), run());
    }
}

}  // namespace
}  // namespace farhaul::sdr
