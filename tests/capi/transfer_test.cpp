// Messages through the C API, over loopback sockets. Nothing is retransmitted by the API, so that messages here stay
// well below what the smallest socket buffer holds, or are paced, or are repaired by the test as a reliability layer
// would.
#include <algorithm>
#include <array>

#include "loopback.hpp"

namespace farhaul::capi_test {
namespace {

constexpr std::size_t kChunk = 1024;
constexpr std::size_t kPacket = 256;

std::size_t chunks_of(std::size_t length) { return (length + kChunk - 1) / kChunk; }

class Sizes : public LoopbackTest, public testing::WithParamInterface<std::uint32_t> {};

// One-shot, posted with exactly the length and with more; payload, tail, bitmap, packet bits, length, immediate, and
// nothing outside.
TEST_P(Sizes, ArriveWithTheirTails) {
    connect();
    const std::uint32_t length = GetParam();
    for (const std::uint32_t spare : {0u, 5000u}) {
        SCOPED_TRACE(spare);
        std::ranges::fill(b.memory, std::uint8_t{0});
        fill(a.memory.data(), length, length + spare);
        sdr_recv_handle* receive = b.post_receive(length + spare, 4096);
        ASSERT_NE(receive, nullptr);
        auto request = a.send_request(length);
        request.opcode = SDR_WR_WRITE_WITH_IMM;
        request.imm_value = 0xdead0000u + length;
        finish_send(a.post_send(request));

        std::uint64_t got = ~0ull;
        ASSERT_TRUE(eventually([&] { return sdr_recv_length_get(receive, &got) == SDR_SUCCESS; }));
        EXPECT_EQ(got, length);
        std::uint32_t in = 1, chunks = 0;
        ASSERT_TRUE(
            eventually([&] { return sdr_recv_progress_get(receive, &in, &chunks) == SDR_SUCCESS && in == chunks; }));
        EXPECT_EQ(chunks, chunks_of(length));
        std::uint8_t* bitmap = nullptr;
        std::size_t bytes = 0;
        ASSERT_EQ(sdr_recv_bitmap_get(receive, &bitmap, &bytes), SDR_SUCCESS);
        EXPECT_NE(bitmap, nullptr);
        EXPECT_EQ(bytes, (chunks_of(length) + 7) / 8);
        for (std::size_t chunk = 0; chunk < bytes * 8; ++chunk)
            EXPECT_EQ(chunk_in(bitmap, chunk), chunk < chunks_of(length)) << chunk;
        for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
            std::uint64_t packets = 0;
            EXPECT_EQ(sdr_recv_bitmap_chunk_expand(receive, chunk, &packets), SDR_SUCCESS);
            const std::size_t here = std::min(kChunk, length - chunk * kChunk);
            EXPECT_EQ(packets, (1ull << ((here + kPacket - 1) / kPacket)) - 1) << chunk;
        }
        std::uint64_t packets = 0;
        EXPECT_EQ(sdr_recv_bitmap_chunk_expand(receive, chunks, &packets), SDR_ERROR);
        std::uint32_t immediate = 0;
        ASSERT_TRUE(eventually([&] { return sdr_recv_imm_get(receive, &immediate) == SDR_SUCCESS; }));
        EXPECT_EQ(immediate, 0xdead0000u + length);
        EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + length, b.memory.begin() + 4096));
        EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
        EXPECT_TRUE(untouched(0, 4096));
        EXPECT_TRUE(untouched(4096 + length, b.memory.size()));
    }
}
INSTANTIATE_TEST_SUITE_P(Transfer, Sizes,
                         testing::Values(0u, 1u, 255u, 256u, 257u, 1023u, 1024u, 1025u, 8192u, 8193u, 9000u, 33333u,
                                         60000u));

class Transfer : public LoopbackTest {};

TEST_F(Transfer, WithoutImmediateNoneIsInvented) {
    connect();
    sdr_recv_handle* receive = b.post_receive(3000);
    finish_send(a.post_send(a.send_request(3000)));
    ASSERT_TRUE(eventually([&] { return all_in(receive, 3); }));
    std::uint32_t immediate = 0;
    const int code = sdr_recv_imm_get(receive, &immediate);
    EXPECT_TRUE(code == SDR_RETRY || (code == SDR_SUCCESS && immediate == 0)) << code << ' ' << immediate;
    EXPECT_EQ(sdr_recv_imm_get(receive, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
}

TEST_F(Transfer, SixteenMessagesInFlightMatchByOrder) {
    connect();
    constexpr std::uint32_t kStride = 8192;
    std::array<sdr_recv_handle*, 16> receives{};
    std::array<sdr_send_handle*, 16> sends{};
    for (std::uint32_t round = 0; round < 8; ++round) {
        SCOPED_TRACE(round);
        for (std::uint32_t i = 0; i < 16; ++i) receives[i] = b.post_receive(kStride, i * kStride);
        sdr_recv_wr extra = b.receive_request(kStride);
        sdr_recv_handle* none = nullptr;
        EXPECT_EQ(sdr_recv_post(b.qp, &extra, &none), SDR_RETRY);  // 16 are open
        EXPECT_EQ(none, nullptr);
        for (std::uint32_t i = 0; i < 16; ++i) {
            const std::uint32_t length = kStride - i * 111;
            fill(a.memory.data() + i * kStride, length, round * 16 + i);
            auto request = a.send_request(length, i * kStride);
            request.opcode = SDR_WR_WRITE_WITH_IMM;
            request.imm_value = round * 16 + i;
            sends[i] = a.post_send(request);
        }
        // The last ones first: any order of completion must do.
        for (std::uint32_t i = 16; i-- > 0;) {
            std::uint32_t immediate = 0;
            ASSERT_TRUE(eventually([&] { return sdr_recv_imm_get(receives[i], &immediate) == SDR_SUCCESS; })) << i;
            EXPECT_EQ(immediate, round * 16 + i);
            ASSERT_TRUE(eventually([&] { return all_in(receives[i], chunks_of(kStride - i * 111)); })) << i;
            EXPECT_EQ(std::memcmp(a.memory.data() + i * kStride, b.memory.data() + i * kStride, kStride - i * 111), 0)
                << i;
            EXPECT_EQ(sdr_recv_complete(receives[i]), SDR_SUCCESS);
        }
        for (sdr_send_handle* send : sends) finish_send(send);
    }
}

TEST_F(Transfer, SendsWaitForTheirReceives) {
    connect();
    auto request = a.send_request(100);
    sdr_send_handle* send = nullptr;
    std::uint64_t capacity = 9;
    EXPECT_EQ(sdr_send_post(a.qp, &request, &send), SDR_RETRY);
    EXPECT_EQ(send, nullptr);
    sdr_send_start_wr start{.opcode = SDR_WR_WRITE, .imm_value = 0};
    EXPECT_EQ(sdr_streaming_send_start(a.qp, &start, &send), SDR_RETRY);
    EXPECT_EQ(sdr_qp_send_capacity_get(a.qp, &capacity), SDR_RETRY);
    EXPECT_EQ(capacity, 0u);
    sdr_recv_handle* receive = b.post_receive(100);
    ASSERT_TRUE(eventually([&] { return sdr_qp_send_capacity_get(a.qp, &capacity) == SDR_SUCCESS; }));
    EXPECT_EQ(capacity, 100u);
    finish_send(a.post_send(request));
    ASSERT_TRUE(eventually([&] { return all_in(receive, 1); }));
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
}

TEST_F(Transfer, UnpolledSendsUseUpTheMessages) {
    connect();
    std::array<sdr_recv_handle*, 16> receives{};
    std::array<sdr_send_handle*, 16> sends{};
    for (auto& receive : receives) receive = b.post_receive(64);
    for (auto& send : sends) send = a.post_send(a.send_request(64));
    for (auto* receive : receives) {
        ASSERT_TRUE(eventually([&] { return all_in(receive, 1); }));
        EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    }
    sdr_recv_handle* receive = b.post_receive(64);
    std::uint64_t capacity = 0;
    auto request = a.send_request(64);
    sdr_send_handle* more = nullptr;
    EXPECT_EQ(sdr_send_post(a.qp, &request, &more), SDR_RETRY);
    EXPECT_EQ(sdr_qp_send_capacity_get(a.qp, &capacity), SDR_RETRY);
    for (auto* send : sends) finish_send(send);
    finish_send(a.post_send(request));
    ASSERT_TRUE(eventually([&] { return all_in(receive, 1); }));
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
}

TEST_F(Transfer, StreamsInAnyOrderAndAgain) {
    connect();
    constexpr std::uint32_t kLength = 10 * kChunk + 300;
    fill(a.memory.data(), kLength, 5);
    sdr_recv_handle* receive = b.post_receive(kLength);
    sdr_send_start_wr start{.opcode = SDR_WR_WRITE_WITH_IMM, .imm_value = 0x1234'5678};
    sdr_send_handle* send = nullptr;
    ASSERT_TRUE(eventually([&] { return sdr_streaming_send_start(a.qp, &start, &send) != SDR_RETRY; }));
    ASSERT_NE(send, nullptr) << sdr_last_error();
    int done = 1;
    EXPECT_EQ(sdr_send_poll(send, &done, nullptr), SDR_RETRY);  // not ended
    EXPECT_EQ(done, 0);
    EXPECT_EQ(sdr_send_poll(send, nullptr, nullptr), SDR_ERROR);
    for (const int repeat : {0, 1}) {
        SCOPED_TRACE(repeat);
        for (std::uint64_t chunk = 11; chunk-- > 0;) {
            sdr_send_continue_wr piece{.length = chunk == 10 ? 300u : static_cast<std::uint32_t>(kChunk),
                                       .local_addr = a.address(chunk * kChunk),
                                       .lkey = a.lkey,
                                       .remote_offset = chunk};
            EXPECT_EQ(sdr_streaming_send_continue(send, &piece), SDR_SUCCESS) << sdr_last_error();
        }
    }
    ASSERT_TRUE(eventually([&] { return all_in(receive, 11); }));
    std::uint32_t immediate = 0;
    ASSERT_TRUE(eventually([&] { return sdr_recv_imm_get(receive, &immediate) == SDR_SUCCESS; }));
    EXPECT_EQ(immediate, 0x1234'5678u);
    EXPECT_EQ(sdr_streaming_send_end(send), SDR_SUCCESS) << sdr_last_error();
    EXPECT_EQ(sdr_streaming_send_end(send), SDR_ERROR);
    sdr_send_continue_wr late{.length = kChunk, .local_addr = a.address(), .lkey = a.lkey, .remote_offset = 0};
    EXPECT_EQ(sdr_streaming_send_continue(send, &late), SDR_ERROR);
    finish_send(send);
    EXPECT_EQ(sdr_streaming_send_continue(send, &late), SDR_ERROR);
    EXPECT_EQ(sdr_send_poll(send, &done, nullptr), SDR_ERROR);
    EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data(), kLength), 0);
    EXPECT_TRUE(untouched(kLength, b.memory.size()));
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    EXPECT_EQ(stats(a.qp).packets_sent, 2u * 42u);  // 10 chunks of 4 packets and a tail of 2, twice
    EXPECT_TRUE(eventually([&] { return stats(b.qp).packets_duplicate + stats(b.qp).packets_stale == 42; }));
    EXPECT_EQ(stats(b.qp).packets_accepted, 42u);
}

TEST_F(Transfer, StreamOfKnownLengthIsAnnouncedBeforeItIsComplete) {
    connect();
    sdr_recv_handle* receive = b.post_receive(20000);
    sdr_send_start_ext_wr start{
        .struct_size = sizeof(start), .opcode = SDR_WR_WRITE, .imm_value = 0, .total_length = 20001};
    sdr_send_handle* send = nullptr;
    int code = SDR_RETRY;
    ASSERT_TRUE(eventually([&] { return (code = sdr_streaming_send_start_ext(a.qp, &start, &send)) != SDR_RETRY; }));
    EXPECT_EQ(code, SDR_ERROR);  // longer than the receive; the message is not started
    start.struct_size = 1;
    EXPECT_EQ(sdr_streaming_send_start_ext(a.qp, &start, &send), SDR_ERROR);
    start = {.struct_size = sizeof(start), .opcode = SDR_WR_WRITE, .imm_value = 0, .total_length = 2 * kChunk + 1};
    ASSERT_EQ(sdr_streaming_send_start_ext(a.qp, &start, &send), SDR_SUCCESS) << sdr_last_error();
    std::uint64_t length = 0;
    sdr_send_continue_wr piece{.length = kChunk, .local_addr = a.address(), .lkey = a.lkey, .remote_offset = 0};
    EXPECT_EQ(sdr_streaming_send_continue(send, &piece), SDR_SUCCESS);
    ASSERT_TRUE(eventually([&] { return sdr_recv_length_get(receive, &length) == SDR_SUCCESS; }));
    EXPECT_EQ(length, 2 * kChunk + 1);
    std::uint32_t in = 0, chunks = 0;
    EXPECT_EQ(sdr_recv_progress_get(receive, &in, &chunks), SDR_SUCCESS);
    EXPECT_EQ(chunks, 3u);
    EXPECT_EQ(sdr_send_release(send), SDR_SUCCESS);
    EXPECT_EQ(sdr_send_release(send), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
}

TEST_F(Transfer, OneShotLandsAtItsOffset) {
    connect();
    fill(a.memory.data(), 1500, 3);
    sdr_recv_handle* receive = b.post_receive(16 * kChunk);
    auto request = a.send_request(1500);
    request.remote_offset = 9;
    finish_send(a.post_send(request));
    ASSERT_TRUE(eventually([&] {
        std::uint8_t* bitmap = nullptr;
        std::size_t bytes = 0;
        return sdr_recv_bitmap_get(receive, &bitmap, &bytes) == SDR_SUCCESS && bytes == 2 && chunk_in(bitmap, 9) &&
               chunk_in(bitmap, 10);
    }));
    std::uint8_t* bitmap = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(sdr_recv_bitmap_get(receive, &bitmap, &bytes), SDR_SUCCESS);
    for (std::size_t chunk = 0; chunk < 9; ++chunk) EXPECT_FALSE(chunk_in(bitmap, chunk));
    EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data() + 9 * kChunk, 1500), 0);
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    EXPECT_TRUE(untouched(0, 9 * kChunk));
}

TEST_F(Transfer, WrongKeysBoundsSizesAndStatesChangeNothing) {
    connect();
    sdr_recv_handle* handle = nullptr;
    const auto bad_receive = [&](std::uint32_t length, std::uint32_t lkey, std::uint64_t address) {
        sdr_recv_wr request{.max_length = length, .lkey = lkey, .address = address};
        EXPECT_EQ(sdr_recv_post(b.qp, &request, &handle), SDR_ERROR) << length << ' ' << lkey << ' ' << address;
        EXPECT_STRNE(sdr_last_error(), "");
    };
    bad_receive(100, b.lkey + 1, b.address());
    bad_receive(100, 0, b.address());
    bad_receive(100, b.lkey, b.address() - 1);
    bad_receive(100, b.lkey, b.address(b.memory.size() - 99));
    bad_receive(100, b.lkey, b.address(b.memory.size() + 1));
    bad_receive(100, b.lkey, ~0ull - 50);
    bad_receive(100, b.lkey, 0);
    bad_receive(65537, b.lkey, b.address());  // above M
    sdr_recv_handle* receive = b.post_receive(1000, b.memory.size() - 1000);

    sdr_send_handle* send = nullptr;
    std::uint64_t capacity = 0;
    ASSERT_TRUE(eventually([&] { return sdr_qp_send_capacity_get(a.qp, &capacity) == SDR_SUCCESS; }));
    const auto bad_send = [&](sdr_send_wr request) {
        EXPECT_EQ(sdr_send_post(a.qp, &request, &send), SDR_ERROR);
        EXPECT_STRNE(sdr_last_error(), "");
        EXPECT_EQ(send, nullptr);
    };
    auto request = a.send_request(100);
    request.lkey ^= 1;
    bad_send(request);
    request = a.send_request(100, a.memory.size() - 99);
    bad_send(request);
    request = a.send_request(100);
    request.local_addr = ~0ull - 10;
    bad_send(request);
    bad_send(a.send_request(1001));  // more than was posted
    request = a.send_request(100);
    request.remote_offset = 1;
    bad_send(request);
    request.remote_offset = ~0ull;
    bad_send(request);
    request.remote_offset = ~0ull / kChunk;
    bad_send(request);
    request = a.send_request(100);
    set_odd(request.opcode, 7);
    bad_send(request);

    // None of these has used up the place of the first message.
    sdr_send_start_wr start{.opcode = SDR_WR_WRITE, .imm_value = 0};
    ASSERT_EQ(sdr_streaming_send_start(a.qp, &start, &send), SDR_SUCCESS) << sdr_last_error();
    const auto bad_piece = [&](std::uint32_t length, std::uint64_t address, std::uint32_t lkey, std::uint64_t offset) {
        sdr_send_continue_wr piece{.length = length, .local_addr = address, .lkey = lkey, .remote_offset = offset};
        EXPECT_EQ(sdr_streaming_send_continue(send, &piece), SDR_ERROR);
    };
    bad_piece(100, a.address(), a.lkey ^ 1, 0);
    bad_piece(100, a.address(a.memory.size()), a.lkey, 0);
    bad_piece(1001, a.address(), a.lkey, 0);
    bad_piece(1, a.address(), a.lkey, 1);
    bad_piece(1, a.address(), a.lkey, ~0ull);
    EXPECT_EQ(sdr_streaming_send_continue(send, nullptr), SDR_ERROR);
    fill(a.memory.data(), 1000, 8);
    sdr_send_continue_wr piece{.length = 1000, .local_addr = a.address(), .lkey = a.lkey, .remote_offset = 0};
    EXPECT_EQ(sdr_streaming_send_continue(send, &piece), SDR_SUCCESS) << sdr_last_error();
    EXPECT_EQ(sdr_streaming_send_end(send), SDR_SUCCESS);
    finish_send(send);
    ASSERT_TRUE(eventually([&] { return all_in(receive, 1); }));
    EXPECT_EQ(sdr_recv_bitmap_get(receive, nullptr, &std::array<std::size_t, 1>{}[0]), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    EXPECT_TRUE(untouched(0, b.memory.size() - 1000));
    EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data() + b.memory.size() - 1000, 1000), 0);
}

TEST_F(Transfer, DirectionsThatAreNotEnabledAreRefused) {
    sdr_qp_attr sender = small_attributes();
    sender.recv_enable = 0;
    sdr_qp_attr receiver = small_attributes();
    receiver.send_enable = 0;
    a.open(kMemory);
    b.open(kMemory);
    a.qp = sdr_qp_create(a.context, &sender);
    b.qp = sdr_qp_create(b.context, &receiver);
    join();
    sdr_recv_wr receive = a.receive_request(10);
    sdr_recv_handle* handle = nullptr;
    EXPECT_EQ(sdr_recv_post(a.qp, &receive, &handle), SDR_ERROR);
    sdr_send_wr send = b.send_request(10);
    sdr_send_handle* send_handle = nullptr;
    EXPECT_EQ(sdr_send_post(b.qp, &send, &send_handle), SDR_ERROR);
    handle = b.post_receive(10);
    finish_send(a.post_send(a.send_request(10)));
    EXPECT_TRUE(eventually([&] { return all_in(handle, 1); }));
    EXPECT_EQ(sdr_recv_complete(handle), SDR_SUCCESS);
}

TEST_F(Transfer, ConnectChecksThePeersInformation) {
    a.open(kMemory);
    b.open(kMemory);
    sdr_qp_attr mine = small_attributes();
    a.qp = sdr_qp_create(a.context, &mine);
    const auto refused_with = [&](sdr_qp_attr theirs, const std::string& word) {
        sdr_qp* other = sdr_qp_create(b.context, &theirs);
        ASSERT_NE(other, nullptr) << sdr_last_error();
        auto info = info_of(other);
        EXPECT_EQ(sdr_qp_connect(a.qp, info.data()), SDR_ERROR) << word;
        EXPECT_NE(std::string(sdr_last_error()).find(word), std::string::npos) << sdr_last_error();
        EXPECT_EQ(sdr_qp_destroy(other), SDR_SUCCESS);
    };
    sdr_qp_attr theirs = mine;
    theirs.mtu = SDR_MTU_512;
    refused_with(theirs, "mtu");
    theirs = mine;
    theirs.bitmap_chunk_size_log_bytes = 11;
    refused_with(theirs, "chunk size");
    std::vector<std::uint8_t> garbage(4096, 0x5a);
    EXPECT_EQ(sdr_qp_connect(a.qp, garbage.data()), SDR_ERROR);
    b.qp = sdr_qp_create(b.context, &mine);
    auto info_b = info_of(b.qp);
    for (std::size_t at :
         {std::size_t{0}, std::size_t{9}, std::size_t{13}, std::size_t{20}, std::size_t{70}, info_b.size() - 1}) {
        auto damaged = info_b;
        damaged[at] ^= 0x40;
        EXPECT_EQ(sdr_qp_connect(a.qp, damaged.data()), SDR_ERROR) << at;
    }
    join();  // still possible
    EXPECT_EQ(sdr_qp_connect(a.qp, info_b.data()), SDR_ERROR);
    EXPECT_NE(std::string(sdr_last_error()).find("connected already"), std::string::npos) << sdr_last_error();
    sdr_qp_state state = SDR_QP_CREATED;
    EXPECT_EQ(sdr_qp_state_get(a.qp, &state, nullptr, 0), SDR_SUCCESS);
    EXPECT_EQ(state, SDR_QP_CONNECTED);
}

TEST_F(Transfer, EarlyCompletionKeepsLatePacketsOut) {
    sdr_qp_attr attributes = small_attributes();
    attributes.rate_limit = 4;  // Mbit/s: 60,000 bytes take about 150 ms
    connect(attributes);
    for (std::uint32_t round = 0; round < 3; ++round) {
        SCOPED_TRACE(round);
        std::ranges::fill(b.memory, std::uint8_t{0});
        std::ranges::fill(a.memory, std::uint8_t{0xee});
        sdr_recv_handle* receive = b.post_receive(60000);
        sdr_send_handle* send = a.post_send(a.send_request(60000));
        std::uint8_t* bitmap = nullptr;
        std::size_t bytes = 0;
        ASSERT_TRUE(eventually(
            [&] { return sdr_recv_bitmap_get(receive, &bitmap, &bytes) == SDR_SUCCESS && chunk_in(bitmap, 3); }));
        EXPECT_FALSE(chunk_in(bitmap, 58));
        ASSERT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
        const std::vector<std::uint8_t> before = b.memory;
        for (std::size_t i = 0; i < bytes; ++i) EXPECT_EQ(__atomic_load_n(bitmap + i, __ATOMIC_RELAXED), 0) << i;
        EXPECT_EQ(sdr_recv_complete(receive), SDR_ERROR);  // a second time
        EXPECT_EQ(sdr_recv_bitmap_get(receive, &bitmap, &bytes), SDR_ERROR);
        std::uint32_t immediate = 0;
        EXPECT_EQ(sdr_recv_imm_get(receive, &immediate), SDR_ERROR);
        finish_send(send);
        // What is on the way when the send is done arrives soon; all of it counts as stale.
        const auto sent = stats(a.qp).packets_sent;
        EXPECT_TRUE(eventually([&] {
            const auto now = stats(b.qp);
            return now.packets_accepted + now.packets_stale == sent;
        }));
        EXPECT_EQ(b.memory, before);
    }
    EXPECT_GT(stats(b.qp).packets_stale, 0u);
    // The connection goes on.
    sdr_recv_handle* receive = b.post_receive(100);
    finish_send(a.post_send(a.send_request(100)));
    EXPECT_TRUE(eventually([&] { return all_in(receive, 1); }));
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
}

/// A message of 1 MiB as a reliability layer would send it: streamed, and repaired by the bitmap until all is in.
void transfer_repaired(Side& from, Side& to, std::uint32_t length, std::uint64_t chunk_bytes) {
    fill(from.memory.data(), length, 77);
    sdr_recv_handle* receive = to.post_receive(length);
    sdr_send_start_wr start{.opcode = SDR_WR_WRITE_WITH_IMM, .imm_value = 99};
    sdr_send_handle* send = nullptr;
    ASSERT_TRUE(eventually([&] { return sdr_streaming_send_start(from.qp, &start, &send) != SDR_RETRY; }));
    ASSERT_NE(send, nullptr) << sdr_last_error();
    const std::uint64_t chunks = (length + chunk_bytes - 1) / chunk_bytes;
    std::uint8_t* bitmap = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(sdr_recv_bitmap_get(receive, &bitmap, &bytes), SDR_SUCCESS);
    bool complete = false;
    for (int attempt = 0; attempt < 200 && !complete; ++attempt) {
        for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
            if (chunk_in(bitmap, chunk)) continue;
            const std::uint64_t at = chunk * chunk_bytes;
            sdr_send_continue_wr piece{
                .length = static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk_bytes, length - at)),
                .local_addr = from.address(at),
                .lkey = from.lkey,
                .remote_offset = chunk};
            ASSERT_EQ(sdr_streaming_send_continue(send, &piece), SDR_SUCCESS) << sdr_last_error();
        }
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
        while (!(complete = all_in(receive, chunks)) && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
    }
    EXPECT_TRUE(complete);
    EXPECT_EQ(sdr_streaming_send_end(send), SDR_SUCCESS);
    finish_send(send);
    std::uint32_t immediate = 0;
    EXPECT_TRUE(eventually([&] { return sdr_recv_imm_get(receive, &immediate) == SDR_SUCCESS; }));
    EXPECT_EQ(immediate, 99u);
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    EXPECT_EQ(std::memcmp(from.memory.data(), to.memory.data(), length), 0);
}

TEST_F(Transfer, LargeMessagesAreRepairedByTheBitmap) {
    sdr_qp_attr_ext attributes{};
    attributes.payload_bytes = 1400;
    attributes.packets_per_chunk = 8;
    attributes.send_enable = attributes.recv_enable = 1;
    connect(attributes);
    transfer_repaired(a, b, (1 << 20) - 17, 8 * 1400);
    transfer_repaired(b, a, 1 << 20, 8 * 1400);
}

TEST_F(Transfer, SeveralChannelsShareAMessage) {
    sdr_qp_attr_ext attributes{};
    attributes.payload_bytes = 1000;
    attributes.packets_per_chunk = 16;
    attributes.rate_limit_bps = 4'000'000'000;
    attributes.send_enable = attributes.recv_enable = 1;
    connect(attributes, 3);
    for (int i = 0; i < 3; ++i) transfer_repaired(a, b, (1 << 20) - 500, 16 * 1000);
    // Early completion beside running channel threads: the buffer is the caller's again.
    sdr_recv_handle* receive = b.post_receive(1 << 20);
    sdr_send_handle* send = a.post_send(a.send_request(1 << 20));
    ASSERT_TRUE(eventually([&] {
        std::uint32_t in = 0, chunks = 0;
        return sdr_recv_progress_get(receive, &in, &chunks) == SDR_SUCCESS && in > 0;
    }));
    ASSERT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    std::ranges::fill(b.memory, std::uint8_t{0x77});
    finish_send(send);
    const auto sent = stats(a.qp).packets_sent;
    eventually([&] {
        const auto now = stats(b.qp);
        return now.packets_accepted + now.packets_duplicate + now.packets_stale >= sent;
    });
    EXPECT_TRUE(std::ranges::all_of(b.memory, [](std::uint8_t byte) { return byte == 0x77; }));
}

TEST_F(Transfer, OtherSplitOfTheImmediate) {
    sdr_qp_attr_ext attributes{};
    attributes.payload_bytes = 64;
    attributes.packets_per_chunk = 1;
    attributes.max_messages = 4;
    attributes.immediate_message_bits = 8;
    attributes.immediate_packet_bits = 22;
    attributes.immediate_fragment_bits = 2;
    attributes.checksum_disable = 1;
    attributes.send_enable = attributes.recv_enable = 1;
    connect(attributes);
    // More messages than ids, so that generations are used.
    for (std::uint32_t i = 0; i < 600; ++i) {
        const std::uint32_t length = i % 7 * 50;
        fill(a.memory.data(), length, i);
        sdr_recv_handle* receive = b.post_receive(400);
        auto request = a.send_request(length);
        request.opcode = SDR_WR_WRITE_WITH_IMM;
        request.imm_value = i * 0x0101'0101u;
        finish_send(a.post_send(request));
        std::uint32_t immediate = 0;
        ASSERT_TRUE(eventually([&] { return sdr_recv_imm_get(receive, &immediate) == SDR_SUCCESS; })) << i;
        ASSERT_EQ(immediate, i * 0x0101'0101u);
        std::uint64_t got = 0;
        ASSERT_TRUE(eventually([&] { return sdr_recv_length_get(receive, &got) == SDR_SUCCESS; })) << i;
        ASSERT_EQ(got, length);
        ASSERT_TRUE(eventually([&] { return all_in(receive, (length + 63) / 64); })) << i;
        ASSERT_EQ(std::memcmp(a.memory.data(), b.memory.data(), length), 0) << i;
        ASSERT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    }
}

}  // namespace
}  // namespace farhaul::capi_test
