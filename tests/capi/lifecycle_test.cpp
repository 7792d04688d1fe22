// What happens around transfers: destruction in flight, regions in use, peers that vanish, and whole runs as other
// clients make them.
#include <algorithm>
#include <array>
#include <optional>

#include <sys/socket.h>
#include <unistd.h>

#include "loopback.hpp"
#include "published_client.h"

namespace farhaul::capi_test {
namespace {

sdr_qp_attr slow_attributes() {
    sdr_qp_attr attributes = small_attributes();
    attributes.rate_limit = 2;  // Mbit/s: 60,000 bytes take 300 ms
    return attributes;
}

class Lifecycle : public LoopbackTest {};

TEST_F(Lifecycle, SenderIsDestroyedWithSendsInFlight) {
    connect(slow_attributes());
    std::array<sdr_recv_handle*, 4> receives{};
    std::array<sdr_send_handle*, 4> sends{};
    for (auto& receive : receives) receive = b.post_receive(60000);
    for (auto& send : sends) send = a.post_send(a.send_request(60000));
    EXPECT_EQ(sdr_mr_dereg(a.region), SDR_ERROR);  // four sends read from it
    EXPECT_NE(std::string(sdr_last_error()).find("4 receives or sends"), std::string::npos) << sdr_last_error();
    a.close_qp();
    EXPECT_EQ(sdr_mr_dereg(a.region), SDR_SUCCESS) << sdr_last_error();
    a.region = nullptr;
    a.memory.clear();
    a.memory.shrink_to_fit();  // a sanitizer sees whoever still reads it
    for (auto* send : sends) {
        int done = 0;
        EXPECT_EQ(sdr_send_poll(send, &done, nullptr), SDR_ERROR);
        EXPECT_EQ(sdr_streaming_send_end(send), SDR_ERROR);
        EXPECT_EQ(sdr_send_release(send), SDR_ERROR);
    }
    for (auto* receive : receives) EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
}

TEST_F(Lifecycle, ReceiverIsDestroyedWithReceivesInFlight) {
    connect(slow_attributes());
    sdr_recv_handle* receive = b.post_receive(60000);
    sdr_recv_handle* second = b.post_receive(100, 60000);
    sdr_send_handle* send = a.post_send(a.send_request(60000));
    std::uint32_t in = 0, chunks = 0;
    ASSERT_TRUE(eventually([&] { return sdr_recv_progress_get(receive, &in, &chunks) == SDR_SUCCESS && in > 0; }));
    EXPECT_EQ(sdr_mr_dereg(b.region), SDR_ERROR);
    b.close_qp();
    const std::vector<std::uint8_t> before = b.memory;
    EXPECT_EQ(sdr_mr_dereg(b.region), SDR_SUCCESS) << sdr_last_error();
    b.region = nullptr;
    EXPECT_EQ(sdr_recv_progress_get(receive, &in, &chunks), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(receive), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(second), SDR_ERROR);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // packets go on coming
    EXPECT_EQ(b.memory, before);
    // The sender hears of it, or at least is not held up by it.
    int done = 0;
    int code = SDR_RETRY;
    EXPECT_TRUE(eventually([&] { return (code = sdr_send_poll(send, &done, nullptr)) != SDR_RETRY; }));
    if (code == SDR_ERROR) expect_success(sdr_send_release(send));
}

TEST_F(Lifecycle, EverythingIsCreatedAndDestroyedManyTimes) {
    for (int i = 0; i < 20; ++i) {
        connect();
        sdr_recv_handle* receive = b.post_receive(5000);
        sdr_send_handle* send = a.post_send(a.send_request(5000));
        if (i % 2 == 0) {
            finish_send(send);
            EXPECT_TRUE(eventually([&] { return all_in(receive, 5); }));
        }
        if (i % 3 == 0) expect_success(sdr_recv_complete(receive));
        a.close();
        b.close();
    }
}

TEST_F(Lifecycle, RegionIsHeldByReceivesOnly) {
    connect();
    sdr_recv_handle* first = b.post_receive(10);
    sdr_recv_handle* second = b.post_receive(10, 100);
    sdr_recv_handle* empty = b.post_receive(0);
    EXPECT_EQ(sdr_mr_dereg(b.region), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(second), SDR_SUCCESS);
    EXPECT_EQ(sdr_mr_dereg(b.region), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(first), SDR_SUCCESS);
    EXPECT_EQ(sdr_mr_dereg(b.region), SDR_SUCCESS) << sdr_last_error();
    b.region = nullptr;
    EXPECT_EQ(sdr_recv_complete(empty), SDR_SUCCESS);
}

TEST_F(Lifecycle, PeerThatNeverAnswersBreaksTheConnection) {
    sdr_qp_attr_ext attributes{};
    attributes.struct_size = sizeof(attributes);
    attributes.control_timeout_ns = 300'000'000;
    attributes.initial_rtt_ns = 1'000'000;
    attributes.send_enable = attributes.recv_enable = 1;
    a.open(kMemory);
    b.open(kMemory);
    a.qp = sdr_qp_create_ext(a.context, &attributes);
    b.qp = sdr_qp_create_ext(b.context, &attributes);
    ASSERT_NE(a.qp, nullptr) << sdr_last_error();
    ASSERT_NE(b.qp, nullptr) << sdr_last_error();
    auto info_b = info_of(b.qp);
    ASSERT_EQ(sdr_qp_connect(a.qp, info_b.data()), SDR_SUCCESS);  // but b never connects
    sdr_recv_handle* receive = a.post_receive(1000);
    sdr_recv_handle* empty = a.post_receive(0);
    sdr_qp_state state = SDR_QP_CREATED;
    std::array<char, 300> text{};
    ASSERT_TRUE(eventually([&] {
        return sdr_qp_state_get(a.qp, &state, text.data(), text.size()) == SDR_SUCCESS && state == SDR_QP_BROKEN;
    }));
    EXPECT_STRNE(text.data(), "");
    std::array<char, 4> cut{};
    EXPECT_EQ(sdr_qp_state_get(a.qp, &state, cut.data(), cut.size()), SDR_SUCCESS);
    EXPECT_EQ(std::strlen(cut.data()), 3u);
    // Everything that would wait for ever says so instead.
    std::uint8_t* bitmap = nullptr;
    std::size_t bytes = 0;
    std::uint32_t word = 0, chunks = 0;
    std::uint64_t wide = 0;
    EXPECT_EQ(sdr_recv_bitmap_get(receive, &bitmap, &bytes), SDR_ERROR);
    EXPECT_NE(std::string(sdr_last_error()).find("broken"), std::string::npos) << sdr_last_error();
    EXPECT_NE(bitmap, nullptr);
    EXPECT_EQ(bytes, 1u);
    EXPECT_EQ(sdr_recv_progress_get(receive, &word, &chunks), SDR_ERROR);
    EXPECT_EQ(sdr_recv_imm_get(receive, &word), SDR_ERROR);
    EXPECT_EQ(sdr_recv_length_get(receive, &wide), SDR_ERROR);
    EXPECT_EQ(sdr_recv_bitmap_get(empty, &bitmap, &bytes), SDR_SUCCESS);  // nothing is missing in it
    EXPECT_EQ(sdr_recv_length_get(empty, &wide), SDR_SUCCESS);
    sdr_recv_wr again = a.receive_request(10);
    sdr_recv_handle* none = nullptr;
    EXPECT_EQ(sdr_recv_post(a.qp, &again, &none), SDR_ERROR);
    sdr_send_wr send = a.send_request(10);
    sdr_send_handle* send_handle = nullptr;
    EXPECT_EQ(sdr_send_post(a.qp, &send, &send_handle), SDR_ERROR);
    EXPECT_EQ(sdr_qp_send_capacity_get(a.qp, &wide), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
    EXPECT_EQ(sdr_recv_complete(empty), SDR_SUCCESS);
}

TEST_F(Lifecycle, SpinningCallersDoNotStarveEachOther) {
    connect();
    // One thread spins on posting receives, one on posting sends, while the data has to flow.
    constexpr std::uint32_t kMessages = 300;
    std::thread receiver([&] {
        for (std::uint32_t i = 0; i < kMessages; ++i) {
            sdr_recv_handle* receive = b.post_receive(700, i % 16 * 1024);
            ASSERT_NE(receive, nullptr);
            ASSERT_TRUE(eventually([&] { return all_in(receive, 1); })) << i;
            ASSERT_EQ(sdr_recv_complete(receive), SDR_SUCCESS);
        }
    });
    for (std::uint32_t i = 0; i < kMessages; ++i) finish_send(a.post_send(a.send_request(700)));
    receiver.join();
}

void run_published(const published_options& options) {
    std::array<int, 2> fds{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
    std::array<char, 200> server_error{}, client_error{};
    int server_status = -1;
    std::thread server([&] {
        server_status = published_server(&options, fds[0], server_error.data(), server_error.size());
        shutdown(fds[0], SHUT_RDWR);
    });
    const int client_status = published_client(&options, fds[1], client_error.data(), client_error.size());
    shutdown(fds[1], SHUT_RDWR);
    server.join();
    close(fds[0]);
    close(fds[1]);
    EXPECT_EQ(server_status, 0) << server_error.data();
    EXPECT_EQ(client_status, 0) << client_error.data();
}

TEST(PublishedClient, RunsOnOneChannel) {
    run_published({.message_bytes = 16384,
                   .in_flight = 8,
                   .iterations = 100,
                   .channels = 1,
                   .chunk_bytes = 2048,
                   .mtu_bytes = 512});
}
TEST(PublishedClient, RunsOnEightChannels) {
    run_published({.message_bytes = 32768,
                   .in_flight = 4,
                   .iterations = 40,
                   .channels = 8,
                   .chunk_bytes = 4096,
                   .mtu_bytes = 1024});
}

}  // namespace
}  // namespace farhaul::capi_test
