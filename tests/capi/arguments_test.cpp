// Every function with what it must refuse: nulls, values out of range, wrong states, handles that are gone.
#include <array>
#include <cstdio>

#include "loopback.hpp"
#include "published_client.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FARHAUL_SANITIZED
#endif
#endif

namespace farhaul::capi_test {
namespace {

bool error_mentions(const std::string& word) {
    const std::string text = sdr_last_error();
    EXPECT_NE(text.find(word), std::string::npos) << "last error: " << text;
    return text.find(word) != std::string::npos;
}

TEST(Texts, NameEveryCode) {
    EXPECT_STREQ(sdr_strerror(SDR_SUCCESS), "success");
    EXPECT_STRNE(sdr_strerror(SDR_ERROR), sdr_strerror(SDR_RETRY));
    EXPECT_NE(sdr_strerror(4711), nullptr);
    EXPECT_NE(std::string(sdr_version()).find('.'), std::string::npos);
    std::thread fresh([] { EXPECT_STREQ(sdr_last_error(), ""); });  // the text is per thread
    fresh.join();
}

TEST(Contexts, OpenEveryKindOfDevice) {
    for (const char* name : {"lo", "127.0.0.1", "udp:127.0.0.1", "udp"}) {
        sdr_dev_attr attributes{};
        sdr_context* context = sdr_context_create(name, &attributes);
        ASSERT_NE(context, nullptr) << name << ": " << sdr_last_error();
        EXPECT_EQ(sdr_context_destroy(context), SDR_SUCCESS);
    }
}

TEST(Contexts, RefuseUnknownDevicesAndSayWhatThereIs) {
    sdr_dev_attr attributes{};
    for (const char* name :
         {"", "mlx5_0", "udp:", "udp:nowhere.invalid", "udp:eth0:x", "999.1.1.1", "udp:1.2.3.4:99999"}) {
        EXPECT_EQ(sdr_context_create(name, &attributes), nullptr) << name;
        error_mentions("lo (127.0.0.1)");
    }
    EXPECT_EQ(sdr_context_create("192.0.2.77", &attributes), nullptr);  // an address, but not of this host
    error_mentions("lo (127.0.0.1)");
    EXPECT_EQ(sdr_context_create("0.0.0.0", &attributes), nullptr);
    error_mentions("one of this host's");
    attributes.num_channels = 17;
    EXPECT_EQ(sdr_context_create("lo", &attributes), nullptr);
    error_mentions("num_channels");
    attributes = {.num_channels = 1, .log_max_qps = 33};
    EXPECT_EQ(sdr_context_create("lo", &attributes), nullptr);
    error_mentions("log_max_qps");
}

TEST(Contexts, RefuseNullAndSecondDestruction) {
    sdr_dev_attr attributes{};
    EXPECT_EQ(sdr_context_create(nullptr, &attributes), nullptr);
    error_mentions("dev_name");
    EXPECT_EQ(sdr_context_create("lo", nullptr), nullptr);
    error_mentions("dev_attr");
    EXPECT_EQ(sdr_context_destroy(nullptr), SDR_ERROR);
    sdr_context* context = sdr_context_create("lo", &attributes);
    ASSERT_NE(context, nullptr);
    EXPECT_EQ(sdr_context_destroy(context), SDR_SUCCESS);
    EXPECT_EQ(sdr_context_destroy(context), SDR_ERROR);
    EXPECT_EQ(sdr_mr_reg(context, &attributes, 1, SDR_ACCESS_REMOTE_WRITE), nullptr);
    sdr_qp_attr small = small_attributes();
    EXPECT_EQ(sdr_qp_create(context, &small), nullptr);
}

TEST(Contexts, AreNotDestroyedUnderTheirChildren) {
    sdr_dev_attr attributes{.num_channels = 1, .log_max_qps = 1};
    sdr_context* context = sdr_context_create("lo", &attributes);
    ASSERT_NE(context, nullptr);
    sdr_qp_attr small = small_attributes();
    sdr_qp* first = sdr_qp_create(context, &small);
    sdr_qp* second = sdr_qp_create(context, &small);
    ASSERT_NE(first, nullptr);
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(sdr_qp_create(context, &small), nullptr);  // 2^1 are there
    error_mentions("log_max_qps");
    EXPECT_EQ(sdr_context_destroy(context), SDR_ERROR);
    error_mentions("2 queue pairs");
    EXPECT_EQ(sdr_qp_destroy(first), SDR_SUCCESS);
    EXPECT_EQ(sdr_qp_destroy(first), SDR_ERROR);
    EXPECT_EQ(sdr_qp_destroy(second), SDR_SUCCESS);
    char byte = 0;
    sdr_mr* region = sdr_mr_reg(context, &byte, 1, SDR_ACCESS_REMOTE_WRITE);
    ASSERT_NE(region, nullptr);
    EXPECT_EQ(sdr_context_destroy(context), SDR_ERROR);
    error_mentions("1 memory regions");
    EXPECT_EQ(sdr_mr_dereg(region), SDR_SUCCESS);
    EXPECT_EQ(sdr_context_destroy(context), SDR_SUCCESS);
}

class OneContext : public testing::Test {
 protected:
    void SetUp() override {
        sdr_dev_attr attributes{};
        context = sdr_context_create("lo", &attributes);
        ASSERT_NE(context, nullptr) << sdr_last_error();
    }
    void TearDown() override { EXPECT_EQ(sdr_context_destroy(context), SDR_SUCCESS) << sdr_last_error(); }
    void refused(const sdr_qp_attr& attributes, const std::string& word) {
        sdr_qp_attr copy = attributes;
        EXPECT_EQ(sdr_qp_create(context, &copy), nullptr) << word;
        error_mentions(word);
    }
    void refused(const sdr_qp_attr_ext& attributes, const std::string& word) {
        EXPECT_EQ(sdr_qp_create_ext(context, &attributes), nullptr) << word;
        error_mentions(word);
    }
    static sdr_qp_attr_ext extended() {
        sdr_qp_attr_ext attributes{};
        attributes.struct_size = sizeof(attributes);
        attributes.send_enable = 1;
        return attributes;
    }
    sdr_context* context = nullptr;
};

TEST_F(OneContext, RefusesQueuePairsThatCannotBe) {
    EXPECT_EQ(sdr_qp_create(context, nullptr), nullptr);
    EXPECT_EQ(sdr_qp_create(nullptr, nullptr), nullptr);
    sdr_qp_attr attributes = small_attributes();
    set_odd(attributes.mtu, 7);
    refused(attributes, "mtu");
    attributes = small_attributes();
    attributes.bitmap_chunk_size_log_bytes = 7;  // half a packet
    refused(attributes, "bitmap_chunk_size_log_bytes");
    attributes.bitmap_chunk_size_log_bytes = 15;  // 128 packets
    refused(attributes, "bitmap_chunk_size_log_bytes");
    attributes.bitmap_chunk_size_log_bytes = 0xffff'ffff;
    refused(attributes, "bitmap_chunk_size_log_bytes");
    attributes = small_attributes();
    attributes.max_log_num_msgs = 11;
    refused(attributes, "max_log_num_msgs");
    attributes = small_attributes();
    attributes.max_in_flight_log_bytes = 13;  // 16 messages of half a chunk
    refused(attributes, "max_in_flight_log_bytes");
    attributes.max_in_flight_log_bytes = ~std::size_t{0};
    refused(attributes, "max_in_flight_log_bytes");
    attributes.max_in_flight_log_bytes = 31;  // messages of 2^27 bytes: more than 2^18 packets of 256
    refused(attributes, "packets");
    attributes = small_attributes();
    attributes.send_enable = attributes.recv_enable = 0;
    refused(attributes, "send_enable");
}

TEST_F(OneContext, AcceptsEveryMtu) {
    for (int mtu = SDR_MTU_64; mtu <= SDR_MTU_4096; ++mtu) {
        sdr_qp_attr attributes = small_attributes();
        attributes.mtu = static_cast<sdr_mtu>(mtu);
        attributes.bitmap_chunk_size_log_bytes = static_cast<std::uint32_t>(mtu + 6);
        sdr_qp* qp = sdr_qp_create(context, &attributes);
        ASSERT_NE(qp, nullptr) << mtu << ": " << sdr_last_error();
        EXPECT_EQ(sdr_qp_destroy(qp), SDR_SUCCESS);
    }
}

TEST_F(OneContext, RefusesExtendedAttributesOutOfRange) {
    EXPECT_EQ(sdr_qp_create_ext(context, nullptr), nullptr);
    auto attributes = extended();
    attributes.struct_size = sizeof(attributes) - 1;
    refused(attributes, "struct_size");
    attributes = extended();
    attributes.reserved0 = 1;
    refused(attributes, "reserved");
    attributes = extended();
    attributes.payload_bytes = 63;
    refused(attributes, "payload_bytes");
    attributes.payload_bytes = 65484;
    refused(attributes, "payload_bytes");
    attributes = extended();
    attributes.packets_per_chunk = 65;
    refused(attributes, "packets_per_chunk");
    attributes = extended();
    attributes.max_messages = 1025;
    refused(attributes, "max_messages");
    attributes = extended();
    attributes.immediate_message_bits = 10;  // 10 + 0 + 0
    refused(attributes, "immediate split");
    attributes = extended();
    attributes.max_message_bytes = (1ull << 30) + 1;
    refused(attributes, "packet");
    attributes = extended();
    attributes.control_timeout_ns = ~0ull;
    refused(attributes, "control_timeout_ns");
    attributes = extended();
    attributes.send_enable = 0;
    refused(attributes, "send_enable");
}

TEST_F(OneContext, QueuePairCallsRefuseNullAndUnconnected) {
    sdr_qp_attr attributes = small_attributes();
    sdr_qp* qp = sdr_qp_create(context, &attributes);
    ASSERT_NE(qp, nullptr) << sdr_last_error();
    std::size_t size = 0;
    EXPECT_EQ(sdr_qp_info_size_get(nullptr, &size), SDR_ERROR);
    EXPECT_EQ(sdr_qp_info_size_get(qp, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_qp_info_get(nullptr, &size), SDR_ERROR);
    EXPECT_EQ(sdr_qp_info_get(qp, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_qp_connect(nullptr, &size), SDR_ERROR);
    EXPECT_EQ(sdr_qp_connect(qp, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_qp_destroy(nullptr), SDR_ERROR);

    sdr_recv_wr receive{};
    sdr_recv_handle* receive_handle = reinterpret_cast<sdr_recv_handle*>(&receive);
    EXPECT_EQ(sdr_recv_post(nullptr, &receive, &receive_handle), SDR_ERROR);
    EXPECT_EQ(sdr_recv_post(qp, nullptr, &receive_handle), SDR_ERROR);
    EXPECT_EQ(sdr_recv_post(qp, &receive, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_recv_post(qp, &receive, &receive_handle), SDR_ERROR);
    error_mentions("not connected");
    EXPECT_EQ(receive_handle, nullptr);
    sdr_send_wr send{};
    sdr_send_handle* send_handle = nullptr;
    EXPECT_EQ(sdr_send_post(nullptr, &send, &send_handle), SDR_ERROR);
    EXPECT_EQ(sdr_send_post(qp, nullptr, &send_handle), SDR_ERROR);
    EXPECT_EQ(sdr_send_post(qp, &send, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_send_post(qp, &send, &send_handle), SDR_ERROR);
    error_mentions("not connected");
    sdr_send_start_wr start{};
    EXPECT_EQ(sdr_streaming_send_start(nullptr, &start, &send_handle), SDR_ERROR);
    EXPECT_EQ(sdr_streaming_send_start(qp, nullptr, &send_handle), SDR_ERROR);
    EXPECT_EQ(sdr_streaming_send_start(qp, &start, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_streaming_send_start(qp, &start, &send_handle), SDR_ERROR);
    sdr_send_start_ext_wr start_ext{};
    start_ext.struct_size = sizeof(start_ext);
    EXPECT_EQ(sdr_streaming_send_start_ext(qp, nullptr, &send_handle), SDR_ERROR);
    EXPECT_EQ(sdr_streaming_send_start_ext(qp, &start_ext, &send_handle), SDR_ERROR);
    error_mentions("not connected");

    sdr_qp_state state = SDR_QP_BROKEN;
    std::array<char, 8> text{"garbage"};
    EXPECT_EQ(sdr_qp_state_get(nullptr, &state, nullptr, 0), SDR_ERROR);
    EXPECT_EQ(sdr_qp_state_get(qp, nullptr, nullptr, 0), SDR_ERROR);
    EXPECT_EQ(sdr_qp_state_get(qp, &state, text.data(), text.size()), SDR_SUCCESS);
    EXPECT_EQ(state, SDR_QP_CREATED);
    EXPECT_STREQ(text.data(), "");
    std::uint64_t bytes = 7;
    EXPECT_EQ(sdr_qp_send_capacity_get(qp, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_qp_send_capacity_get(qp, &bytes), SDR_ERROR);
    EXPECT_EQ(bytes, 0u);
    sdr_qp_stats stats{};
    EXPECT_EQ(sdr_qp_stats_get(qp, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_qp_stats_get(qp, &stats), SDR_ERROR);
    error_mentions("struct_size");
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(sdr_qp_stats_get(qp, &stats), SDR_SUCCESS);
    EXPECT_EQ(stats.packets_sent, 0u);
    EXPECT_EQ(sdr_qp_destroy(qp), SDR_SUCCESS);
    EXPECT_EQ(sdr_qp_info_size_get(qp, &size), SDR_ERROR);
    error_mentions("any more");
}

TEST(Handles, NullIsRefusedEverywhere) {
    std::uint32_t word = 0;
    std::uint64_t wide = 0;
    std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
    int flag = 0;
    EXPECT_EQ(sdr_recv_imm_get(nullptr, &word), SDR_ERROR);
    EXPECT_EQ(sdr_recv_bitmap_get(nullptr, &bytes, &size), SDR_ERROR);
    EXPECT_EQ(sdr_recv_bitmap_chunk_expand(nullptr, 0, &wide), SDR_ERROR);
    EXPECT_EQ(sdr_recv_length_get(nullptr, &wide), SDR_ERROR);
    EXPECT_EQ(sdr_recv_progress_get(nullptr, &word, &word), SDR_ERROR);
    EXPECT_EQ(sdr_recv_complete(nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_streaming_send_continue(nullptr, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_streaming_send_end(nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_send_poll(nullptr, &flag, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_send_release(nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_mr_dereg(nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_mr_lkey_get(nullptr, &word), SDR_ERROR);
    EXPECT_EQ(sdr_mr_rkey_get(nullptr, &word), SDR_ERROR);
}

TEST_F(OneContext, RegistersMemory) {
    std::array<std::byte, 64> memory{};
    EXPECT_EQ(sdr_mr_reg(nullptr, memory.data(), 1, SDR_ACCESS_REMOTE_WRITE), nullptr);
    EXPECT_EQ(sdr_mr_reg(context, nullptr, 1, SDR_ACCESS_REMOTE_WRITE), nullptr);
    error_mentions("NULL");
    EXPECT_EQ(sdr_mr_reg(context, memory.data(), ~std::size_t{0}, SDR_ACCESS_REMOTE_WRITE), nullptr);
    error_mentions("wrap");
    EXPECT_EQ(register_with_flags(context, memory.data(), 1, 2), nullptr);
    error_mentions("access flags");
    sdr_mr* whole = sdr_mr_reg(context, memory.data(), memory.size(), SDR_ACCESS_REMOTE_WRITE);
    sdr_mr* empty = sdr_mr_reg(context, nullptr, 0, SDR_ACCESS_REMOTE_WRITE);
    sdr_mr* again = sdr_mr_reg(context, memory.data(), memory.size(), SDR_ACCESS_REMOTE_WRITE);
    ASSERT_NE(whole, nullptr);
    ASSERT_NE(empty, nullptr);
    ASSERT_NE(again, nullptr);
    std::uint32_t key_whole = 0, key_empty = 0, key_again = 0, remote = 0;
    EXPECT_EQ(sdr_mr_lkey_get(whole, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_mr_rkey_get(whole, nullptr), SDR_ERROR);
    EXPECT_EQ(sdr_mr_lkey_get(whole, &key_whole), SDR_SUCCESS);
    EXPECT_EQ(sdr_mr_lkey_get(empty, &key_empty), SDR_SUCCESS);
    EXPECT_EQ(sdr_mr_lkey_get(again, &key_again), SDR_SUCCESS);
    EXPECT_EQ(sdr_mr_rkey_get(whole, &remote), SDR_SUCCESS);
    EXPECT_NE(key_whole, 0u);
    EXPECT_NE(key_whole, key_again);
    EXPECT_NE(key_whole, key_empty);
    EXPECT_NE(remote, 0u);
    EXPECT_EQ(sdr_mr_dereg(whole), SDR_SUCCESS);
    EXPECT_EQ(sdr_mr_dereg(whole), SDR_ERROR);
    error_mentions("any more");
    EXPECT_EQ(sdr_mr_lkey_get(whole, &key_whole), SDR_ERROR);
    EXPECT_EQ(sdr_mr_dereg(empty), SDR_SUCCESS);
    EXPECT_EQ(sdr_mr_dereg(again), SDR_SUCCESS);
}

/// Resident memory of this process in KiB.
std::size_t resident_kib() {
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    std::size_t total = 0, resident = 0;
    if (file == nullptr || std::fscanf(file, "%zu %zu", &total, &resident) != 2) ADD_FAILURE() << "no /proc/self/statm";
    if (file != nullptr) std::fclose(file);
    return resident * 4;
}

TEST_F(OneContext, RegisteringForEverKeepsMemoryFlat) {
    std::array<std::byte, 4096> memory{};
    const auto cycle = [&](int times) {
        std::uint32_t last = 0;
        for (int i = 0; i < times; ++i) {
            sdr_mr* region = sdr_mr_reg(context, memory.data(), memory.size(), SDR_ACCESS_REMOTE_WRITE);
            ASSERT_NE(region, nullptr);
            std::uint32_t key = 0;
            ASSERT_EQ(sdr_mr_lkey_get(region, &key), SDR_SUCCESS);
            ASSERT_NE(key, last);
            last = key;
            ASSERT_EQ(sdr_mr_dereg(region), SDR_SUCCESS);
        }
    };
    cycle(2'000);
    const std::size_t before = resident_kib();
    cycle(100'000);
#if defined(__SANITIZE_ADDRESS__) || defined(FARHAUL_SANITIZED)
    const std::size_t slack = 64 << 10;  // sanitizers keep freed memory for a while
#else
    const std::size_t slack = 2 << 10;  // a leak of a region per cycle would be 10 MiB
#endif
    EXPECT_LT(resident_kib(), before + slack);
}

}  // namespace
}  // namespace farhaul::capi_test
