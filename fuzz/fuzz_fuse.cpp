// A hostile client: arbitrary bytes as requests to a session over memory:, in lists cut anywhere. Nothing may crash,
// leak, be touched outside the lists, or end more than once; every reply's length is what was written.
//
// The input is a list of requests: two bytes of length, one of room, one that says how the lists are cut and how much
// of the header is mended (so that most requests get past it), then the bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/memory/memory.hpp"
#include "fuse/session.hpp"

using namespace farhaul;

namespace {

struct FuzzRequest final : fuse::Request {
    FuzzRequest(std::vector<std::byte> in, std::size_t room, std::size_t piece)
        : in_bytes(std::move(in)), out_bytes(room) {
        cut(in_bytes, in_list, piece);
        cut(out_bytes, out_list, piece);
        prepare(in_list, out_list);
    }
    static void cut(std::vector<std::byte>& bytes, std::vector<iovec>& list, std::size_t piece) {
        if (piece == 0) piece = bytes.size() + 1;
        for (std::size_t at = 0; at < bytes.size(); at += piece)
            list.push_back({bytes.data() + at, std::min(piece, bytes.size() - at)});
    }
    void complete(std::size_t size) override {
        if (ended || size > out_bytes.size()) std::abort();
        ended = true;
        if (size == 0) return;
        fuse_out_header header;
        std::memcpy(&header, out_bytes.data(), sizeof(header));
        if (header.len != size || header.error > 0 || header.error < -511) std::abort();
    }
    std::vector<std::byte> in_bytes, out_bytes;
    std::vector<iovec> in_list, out_list;
    bool ended = false;
};

timespec tick() {
    static std::int64_t now = 1'000'000'000;
    return {++now / 1000, now % 1000 * 1'000'000};
}

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof(T));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    backend::MemoryOptions options;
    options.size = 16 << 20;
    options.max_inodes = 1000;
    const auto file_system = backend::make_memory(options, tick);
    fuse::Session session(*file_system);
    // Requests that wait for a lock stay until the end, when the session ends them.
    std::vector<std::unique_ptr<FuzzRequest>> waiting;
    const auto run = [&](std::vector<std::byte> bytes, std::size_t room, std::size_t piece) {
        auto request = std::make_unique<FuzzRequest>(std::move(bytes), room, piece);
        session.handle(*request);
        if (!request->ended) waiting.push_back(std::move(request));
    };
    std::uint64_t unique = 0;
    const auto init = [&] {
        fuse_in_header header{};
        header.opcode = FUSE_INIT;
        header.unique = unique += 2;
        fuse_init_in in{};
        in.major = 7;
        in.minor = 45;
        in.flags = in.flags2 = ~0u;
        header.len = sizeof(header) + sizeof(in);
        std::vector<std::byte> bytes;
        append(bytes, header);
        append(bytes, in);
        run(bytes, 4096, 0);
    };
    init();

    while (size >= 4) {
        std::size_t length = (data[0] | data[1] << 8) & 0x0fff;
        const std::size_t room = std::size_t{data[2]} * 16 + (data[3] >> 7) * 65536;
        const std::size_t piece = data[3] & 0x0f;
        const bool mend = (data[3] & 0x40) == 0;
        data += 4;
        size -= 4;
        if (length > size) length = size;
        std::vector<std::byte> bytes(length);
        if (length != 0) std::memcpy(bytes.data(), data, length);
        data += length;
        size -= length;
        if (mend && bytes.size() >= sizeof(fuse_in_header)) {
            fuse_in_header header;
            std::memcpy(&header, bytes.data(), sizeof(header));
            header.len = static_cast<std::uint32_t>(bytes.size());
            header.opcode %= fuse::abi::kOpcodes;
            header.nodeid %= 8;
            header.unique = unique += 2;
            header.total_extlen &= 3;
            std::memcpy(bytes.data(), &header, sizeof(header));
        }
        run(std::move(bytes), room, piece);
        if (!session.initialized()) init();
    }
    session.disconnect();
    for (const auto& request : waiting)
        if (!request->ended) std::abort();
    return 0;
}
