// Little-endian cursors over byte spans, for control messages. The reader never runs past its span: it turns bad and
// stays bad.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace farhaul {

class ByteReader {
 public:
    explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

    template <typename T>
        requires std::is_unsigned_v<T>
    T read() {
        T value{};
        if (rest_.size() < sizeof(T)) {
            ok_ = false;
            return value;
        }
        std::memcpy(&value, rest_.data(), sizeof(T));
        rest_ = rest_.subspan(sizeof(T));
        return value;
    }
    /// The next `size` bytes, or an empty span and a bad reader.
    std::span<const std::byte> read_bytes(std::size_t size) {
        if (rest_.size() < size) {
            ok_ = false;
            return {};
        }
        auto bytes = rest_.first(size);
        rest_ = rest_.subspan(size);
        return bytes;
    }
    bool ok() const { return ok_; }
    std::size_t remaining() const { return rest_.size(); }

 private:
    std::span<const std::byte> rest_;
    bool ok_ = true;
};

class ByteWriter {
 public:
    explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

    template <typename T>
        requires std::is_unsigned_v<T>
    void write(T value) {
        const std::size_t at = out_.size();
        out_.resize(at + sizeof(T));
        std::memcpy(out_.data() + at, &value, sizeof(T));
    }
    void write_bytes(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
    std::size_t size() const { return out_.size(); }

 private:
    std::vector<std::byte>& out_;
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire format is little-endian; add byte swaps to bytes.hpp for this host");

}  // namespace farhaul
