#include "sdr/control.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bytes.hpp"
#include "base/units.hpp"

namespace farhaul::sdr {

namespace {

constexpr std::uint8_t kClearToSend = 1;
constexpr std::uint8_t kMessageInfo = 2;
constexpr std::size_t kHeaderBytes = 32;  // without the acknowledgement words
constexpr std::size_t kRecordBytes = 30;  // the longer of the two
constexpr std::size_t kRecordCountOffset = 2;
constexpr std::size_t kMaxWords = ControlChannel::kWindow / 64;
constexpr std::uint32_t kFreeSends = 3;   // a record rides along until it was sent so often
constexpr std::size_t kMaxRiders = 8;     // records that ride along in one datagram
constexpr std::size_t kRiderSearch = 64;  // newest records that are looked at for that
constexpr std::uint8_t kMaxBackoff = 2;   // the time-out doubles so often
constexpr int kFirstCopy = 32;            // copies of a record that does not ride along, as shares of a round trip
constexpr int kSecondCopy = 8;
constexpr Duration kMinCopyWait = Duration::from_microseconds(100);  // shorter ones gain little: no copies then
constexpr Duration kMinTimeout = Duration::from_milliseconds(1);
constexpr Duration kMaxRtt = Duration::from_seconds(60);

std::uint64_t stamp_of(TimePoint time) { return static_cast<std::uint64_t>(time.nanoseconds()) + 1; }

}  // namespace

/// One record's body, read before it is known whether it is wanted.
class RecordReader {
 public:
    explicit RecordReader(ByteReader& reader) : type_(reader.read<std::uint8_t>()) {
        message_ = reader.read<std::uint64_t>();
        length_ = reader.read<std::uint64_t>();
        if (type_ == kMessageInfo) flag_ = reader.read<std::uint8_t>();
        value_ = reader.read<std::uint32_t>();
        ok_ = reader.ok() && (type_ == kClearToSend || type_ == kMessageInfo) && flag_ <= 1;
    }
    bool ok() const { return ok_; }
    bool hand_to(ControlSink& sink) const {
        if (type_ == kClearToSend) return sink.on_clear_to_send({message_, length_, value_});
        return sink.on_message_info({message_, length_, flag_ != 0 ? std::optional(value_) : std::nullopt});
    }

 private:
    std::uint8_t type_;
    std::uint8_t flag_ = 0;
    std::uint32_t value_;
    std::uint64_t message_;
    std::uint64_t length_;
    bool ok_;
};

ControlChannel::ControlChannel(Loop& loop, Wire& wire, const ControlConfig& config, ControlSink& sink)
    : loop_(loop),
      wire_(wire),
      config_(config),
      sink_(sink),
      flush_timer_(
          loop.timers(), [](void* self) { static_cast<ControlChannel*>(self)->send_pending(); }, this),
      retransmit_timer_(
          loop.timers(), [](void* self) { static_cast<ControlChannel*>(self)->on_retransmit(); }, this),
      copy_timer_(
          loop.timers(), [](void* self) { static_cast<ControlChannel*>(self)->on_copy(); }, this),
      smoothed_rtt_(config.initial_rtt),
      rtt_variance_(config.initial_rtt / 8) {
    datagram_.reserve(config.max_datagram_bytes);
}

void ControlChannel::queue(const ClearToSend& record) {
    push({.type = kClearToSend,
          .value = record.tag,
          .message = record.sequence,
          .length = record.length,
          .first_sent = {},
          .last_sent = {}});
}

void ControlChannel::queue(const MessageInfo& record) {
    push({.type = kMessageInfo,
          .has_immediate = record.immediate.has_value(),
          .value = record.immediate.value_or(0),
          .message = record.sequence,
          .length = record.length,
          .first_sent = {},
          .last_sent = {}});
}

void ControlChannel::push(const Record& record) {
    if (stopped_) return;
    outgoing_.push_back(record);
    flush_timer_.arm_no_later_than(loop_.now());
}

void ControlChannel::stop() {
    stopped_ = true;
    flush_timer_.disarm();
    retransmit_timer_.disarm();
    copy_timer_.disarm();
    outgoing_.clear();
    unsent_ = 0;
}

Duration ControlChannel::base_timeout() const {
    return std::max({smoothed_rtt_ + smoothed_rtt_ / 2, smoothed_rtt_ + rtt_variance_ * 4, kMinTimeout});
}

// --- sending ---

void ControlChannel::begin_datagram() {
    datagram_.clear();
    datagram_records_ = 0;
    ByteWriter writer(datagram_);
    std::array<std::uint64_t, kMaxWords> words{};
    std::size_t used = 0;
    for (std::uint64_t sequence = next_expected_ + 1; sequence < highest_seen_; ++sequence) {
        if ((received_[sequence % kWindow / 64] >> (sequence % 64) & 1) == 0) continue;
        const std::uint64_t bit = sequence - next_expected_ - 1;
        words[bit / 64] |= 1ull << (bit % 64);
        used = bit / 64 + 1;
    }
    used = std::min(used, (config_.max_datagram_bytes - kHeaderBytes - kRecordBytes) / 8);
    writer.write(static_cast<std::uint8_t>(DatagramKind::kRecords));
    writer.write(static_cast<std::uint8_t>(used));
    writer.write(std::uint16_t{0});  // records: set by finish_datagram()
    writer.write(next_expected_);
    writer.write(std::uint64_t{0});  // stamp: set by finish_datagram()
    writer.write(echo_);
    const std::int64_t held_us = echo_ == 0 ? 0 : (loop_.now() - echo_received_).nanoseconds() / 1000;
    writer.write(static_cast<std::uint32_t>(std::min<std::int64_t>(held_us, 0xffffffff)));
    for (std::size_t i = 0; i < used; ++i) writer.write(words[i]);
    acknowledge_ = false;
    echo_ = 0;
}

bool ControlChannel::has_room() const { return datagram_.size() + kRecordBytes <= config_.max_datagram_bytes; }

void ControlChannel::add_record(std::size_t index) {
    Record& record = outgoing_[index];
    ByteWriter writer(datagram_);
    writer.write(first_outgoing_ + index);
    writer.write(record.type);
    writer.write(record.message);
    writer.write(record.length);
    if (record.type == kMessageInfo) writer.write(static_cast<std::uint8_t>(record.has_immediate));
    writer.write(record.value);
    ++datagram_records_;
    ++counters_.records_sent;
    if (record.sends++ == 0) record.first_sent = loop_.now();
    record.last_sent = loop_.now();
}

bool ControlChannel::wants_copy(const Record& record) const {
    return !record.acknowledged && record.sends < kFreeSends && record.last_sent != loop_.now();
}

/// Fills what room is left with records that were sent before now, the newest first: those had the fewest chances.
/// Returns whether it left any.
bool ControlChannel::ride_along() {
    std::size_t riders = 0;
    const std::size_t lowest = unsent_ > kRiderSearch ? unsent_ - kRiderSearch : 0;
    for (std::size_t i = unsent_; i > lowest; --i) {
        if (!wants_copy(outgoing_[i - 1])) continue;
        if (riders == kMaxRiders || !has_room()) return true;
        add_record(i - 1);
        ++riders;
    }
    return false;
}

void ControlChannel::copy_later(int share) {
    const Duration wait = smoothed_rtt_ / share;
    if (wait >= kMinCopyWait) copy_timer_.arm_no_later_than(loop_.now() + wait);
}

void ControlChannel::on_copy() {
    if (stopped_ || unsent_ == 0) return;
    const std::size_t lowest = unsent_ > kRiderSearch ? unsent_ - kRiderSearch : 0;
    bool wanted = false;
    for (std::size_t i = unsent_; i > lowest && !wanted; --i) wanted = wants_copy(outgoing_[i - 1]);
    if (!wanted) return;
    begin_datagram();
    const bool more = ride_along();
    finish_datagram();
    copy_later(more ? kFirstCopy : kSecondCopy);
}

void ControlChannel::finish_datagram() {
    std::memcpy(datagram_.data() + kRecordCountOffset, &datagram_records_, sizeof datagram_records_);
    if (datagram_records_ > 0) {
        const std::uint64_t stamp = stamp_of(loop_.now());
        std::memcpy(datagram_.data() + 12, &stamp, sizeof stamp);
        retransmit_timer_.arm_no_later_than(loop_.now() + base_timeout());
    }
    ++counters_.datagrams_sent;
    wire_.send_datagram(datagram_);
}

void ControlChannel::send_pending() {
    if (stopped_) return;
    flush_timer_.disarm();
    const std::size_t end = std::min<std::size_t>(outgoing_.size(), kWindow);
    if (unsent_ >= end && !acknowledge_) return;
    begin_datagram();
    const bool fresh = unsent_ < end;
    while (unsent_ < end) {
        if (!has_room()) {
            finish_datagram();
            begin_datagram();
        }
        add_record(unsent_++);
    }
    ride_along();
    finish_datagram();
    if (fresh) copy_later(kFirstCopy);
}

void ControlChannel::on_retransmit() {
    if (stopped_) return;
    const TimePoint now = loop_.now();
    bool open = false;
    TimePoint next = TimePoint::never();
    for (std::size_t i = 0; i < unsent_; ++i) {
        Record& record = outgoing_[i];
        if (record.acknowledged) continue;
        // Only after it was repeated: a process that was stopped for long finds the answers still waiting to be read.
        if (record.backoff == kMaxBackoff && now >= record.first_sent + config_.timeout) {
            stop();
            sink_.on_control_timeout(
                {ErrorCode::kPeerGone, fmt::format("no answer from the peer for {}: it is gone or unreachable",
                                                   format_duration(config_.timeout))});
            return;
        }
        if (now >= record.last_sent + timeout_of(record)) {
            if (open && !has_room()) {
                finish_datagram();
                open = false;
            }
            if (!open) begin_datagram();
            open = true;
            record.backoff = static_cast<std::uint8_t>(std::min<int>(record.backoff + 1, kMaxBackoff));
            ++counters_.retransmissions;
            add_record(i);
        }
        next = std::min(next, record.last_sent + timeout_of(record));
        if (record.backoff == kMaxBackoff) next = std::min(next, record.first_sent + config_.timeout);
    }
    if (open) {
        ride_along();
        finish_datagram();
    }
    if (next != TimePoint::never()) retransmit_timer_.arm(next);
}

// --- receiving ---

void ControlChannel::receive(std::span<const std::byte> datagram) {
    if (stopped_) return;
    if (!parse(datagram)) ++counters_.malformed;
    if (acknowledge_ || unsent_ < std::min<std::size_t>(outgoing_.size(), kWindow))
        flush_timer_.arm_no_later_than(loop_.now());
}

bool ControlChannel::parse(std::span<const std::byte> datagram) {
    ByteReader reader(datagram);
    const auto kind = reader.read<std::uint8_t>();
    const auto word_count = reader.read<std::uint8_t>();
    const auto record_count = reader.read<std::uint16_t>();
    const auto cumulative = reader.read<std::uint64_t>();
    const auto stamp = reader.read<std::uint64_t>();
    const auto echo = reader.read<std::uint64_t>();
    const auto echo_delay_us = reader.read<std::uint32_t>();
    if (!reader.ok() || kind != static_cast<std::uint8_t>(DatagramKind::kRecords) || word_count > kMaxWords)
        return false;
    std::array<std::uint64_t, kMaxWords> words{};
    for (std::size_t i = 0; i < word_count; ++i) words[i] = reader.read<std::uint64_t>();
    if (!reader.ok() || !take_acknowledgements(cumulative, {words.data(), word_count})) return false;
    measure(echo, echo_delay_us);
    bool good = true;
    for (std::uint32_t i = 0; i < record_count; ++i) {
        const auto sequence = reader.read<std::uint64_t>();
        RecordReader record(reader);
        if (!record.ok() || !take_record(sequence, record)) {
            good = false;
            if (!record.ok())
                break;  // what follows cannot be read; a record that is only untrue leaves the others good
        }
    }
    if (acknowledge_ && stamp != 0) {
        echo_ = stamp;
        echo_received_ = loop_.now();
    }
    return good && reader.remaining() == 0;
}

bool ControlChannel::take_acknowledgements(std::uint64_t cumulative, std::span<const std::uint64_t> words) {
    if (cumulative > first_outgoing_ + unsent_) return false;
    for (std::size_t word = 0; word < words.size(); ++word) {
        for (std::uint64_t bits = words[word]; bits != 0; bits &= bits - 1) {
            const std::uint64_t sequence =
                cumulative + 1 + word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits));
            if (sequence >= first_outgoing_ + unsent_) return false;
            if (sequence >= first_outgoing_) outgoing_[sequence - first_outgoing_].acknowledged = true;
        }
    }
    while (unsent_ > 0 && (first_outgoing_ < cumulative || outgoing_.front().acknowledged)) {
        outgoing_.pop_front();
        ++first_outgoing_;
        --unsent_;
    }
    if (unsent_ == 0) {
        retransmit_timer_.disarm();
        copy_timer_.disarm();
    }
    return true;
}

bool ControlChannel::take_record(std::uint64_t sequence, RecordReader& record) {
    if (sequence >= next_expected_ && sequence - next_expected_ >= kWindow) return false;
    acknowledge_ = true;
    if (sequence < next_expected_) return true;
    std::uint64_t& word = received_[sequence % kWindow / 64];
    const std::uint64_t bit = 1ull << (sequence % 64);
    if ((word & bit) != 0) return true;
    word |= bit;
    highest_seen_ = std::max(highest_seen_, sequence + 1);
    while (next_expected_ < highest_seen_) {
        std::uint64_t& next_word = received_[next_expected_ % kWindow / 64];
        const std::uint64_t next_bit = 1ull << (next_expected_ % 64);
        if ((next_word & next_bit) == 0) break;
        next_word &= ~next_bit;
        ++next_expected_;
    }
    return record.hand_to(sink_);
}

void ControlChannel::measure(std::uint64_t echo, std::uint32_t delay_us) {
    const std::uint64_t now = stamp_of(loop_.now());
    if (echo == 0 || echo > now) return;
    const Duration sample =
        Duration::from_nanoseconds(static_cast<std::int64_t>(now - echo)) - Duration::from_microseconds(delay_us);
    if (sample < Duration() || sample > kMaxRtt) return;
    if (!measured_) {
        measured_ = true;
        smoothed_rtt_ = sample;
        rtt_variance_ = sample / 8;
        return;
    }
    // RFC 6298, section 2.3.
    const Duration difference = sample > smoothed_rtt_ ? sample - smoothed_rtt_ : smoothed_rtt_ - sample;
    rtt_variance_ = (rtt_variance_ * 3 + difference) / 4;
    smoothed_rtt_ = (smoothed_rtt_ * 7 + sample) / 8;
}

}  // namespace farhaul::sdr
