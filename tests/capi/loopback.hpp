// Two contexts in one process, connected over the loopback interface, for the tests of the C API.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sdr.h"
#include "sdr_mr.h"

namespace farhaul::capi_test {

/// Spins, as callers of this API do, until `done` or for 20 s (sanitizers are slow). Returns the last `done()`.
inline bool eventually(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
        if (std::chrono::steady_clock::now() > end) return done();
        std::this_thread::yield();
    }
    return true;
}

inline std::uint8_t pattern(std::size_t index, std::uint32_t seed) {
    return static_cast<std::uint8_t>((index * 167 + index / 251 + seed * 59 + 1) & 0xff);
}
inline void fill(std::uint8_t* bytes, std::size_t size, std::uint32_t seed) {
    for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(i, seed);
}

/// 256-byte packets in chunks of 1 KiB; 16 messages of up to 64 KiB.
inline sdr_qp_attr small_attributes() {
    sdr_qp_attr attributes{};
    attributes.bitmap_chunk_size_log_bytes = 10;
    attributes.max_in_flight_log_bytes = 20;
    attributes.max_log_num_msgs = 4;
    attributes.mtu = SDR_MTU_256;
    attributes.send_enable = 1;
    attributes.recv_enable = 1;
    attributes.rate_limit = 0;
    return attributes;
}

inline std::vector<std::uint8_t> info_of(sdr_qp* qp) {
    std::size_t size = 0;
    EXPECT_EQ(sdr_qp_info_size_get(qp, &size), SDR_SUCCESS);
    std::vector<std::uint8_t> info(size);
    EXPECT_EQ(sdr_qp_info_get(qp, info.data()), SDR_SUCCESS);
    return info;
}

inline void expect_success(int code) { EXPECT_EQ(code, SDR_SUCCESS) << sdr_last_error(); }

/// A value that a C caller can put into an enum field, and C++ cannot.
template <typename Enum>
void set_odd(Enum& field, unsigned value) {
    static_assert(sizeof(field) == sizeof(value));
    std::memcpy(&field, &value, sizeof(value));
}

/// One side: a context, a queue pair, and a registered buffer.
struct Side {
    sdr_context* context = nullptr;
    sdr_qp* qp = nullptr;
    sdr_mr* region = nullptr;
    std::uint32_t lkey = 0;
    std::vector<std::uint8_t> memory;

    void open(std::size_t memory_bytes, std::uint32_t channels = 1) {
        sdr_dev_attr device{};
        device.num_channels = channels;
        context = sdr_context_create("127.0.0.1", &device);
        ASSERT_NE(context, nullptr) << sdr_last_error();
        memory.assign(memory_bytes, 0);
        region = sdr_mr_reg(context, memory.data(), memory.size(), SDR_ACCESS_REMOTE_WRITE);
        ASSERT_NE(region, nullptr) << sdr_last_error();
        ASSERT_EQ(sdr_mr_lkey_get(region, &lkey), SDR_SUCCESS);
    }
    std::uint64_t address(std::size_t offset = 0) const {
        return reinterpret_cast<std::uintptr_t>(memory.data()) + offset;
    }
    void close_qp() {
        if (qp != nullptr) expect_success(sdr_qp_destroy(qp));
        qp = nullptr;
    }
    void close() {
        close_qp();
        if (region != nullptr) expect_success(sdr_mr_dereg(region));
        if (context != nullptr) expect_success(sdr_context_destroy(context));
        region = nullptr;
        context = nullptr;
    }

    sdr_recv_wr receive_request(std::uint32_t length, std::size_t offset = 0) const {
        return {.max_length = length, .lkey = lkey, .address = address(offset)};
    }
    sdr_recv_handle* post_receive(std::uint32_t length, std::size_t offset = 0) {
        sdr_recv_wr request = receive_request(length, offset);
        sdr_recv_handle* handle = nullptr;
        EXPECT_EQ(sdr_recv_post(qp, &request, &handle), SDR_SUCCESS) << sdr_last_error();
        return handle;
    }
    sdr_send_wr send_request(std::uint32_t length, std::size_t offset = 0) const {
        return {.opcode = SDR_WR_WRITE,
                .imm_value = 0,
                .length = length,
                .lkey = lkey,
                .local_addr = address(offset),
                .remote_offset = 0};
    }
    /// Posts until the clear-to-send is here.
    sdr_send_handle* post_send(sdr_send_wr request) {
        sdr_send_handle* handle = nullptr;
        int code = SDR_RETRY;
        EXPECT_TRUE(eventually([&] { return (code = sdr_send_post(qp, &request, &handle)) != SDR_RETRY; }));
        EXPECT_EQ(code, SDR_SUCCESS) << sdr_last_error();
        return handle;
    }
};

/// Polls until the send is done; the handle is released then.
inline void finish_send(sdr_send_handle* handle) {
    ASSERT_NE(handle, nullptr);
    int done = 0;
    int code = SDR_RETRY;
    sdr_send_status status{~0u};
    EXPECT_TRUE(eventually([&] { return (code = sdr_send_poll(handle, &done, &status)) != SDR_RETRY; }));
    EXPECT_EQ(code, SDR_SUCCESS) << sdr_last_error();
    EXPECT_EQ(done, 1);
    EXPECT_EQ(status.flags, 0u);
}

inline bool chunk_in(const std::uint8_t* bitmap, std::size_t chunk) {
    return (__atomic_load_n(bitmap + chunk / 8, __ATOMIC_ACQUIRE) >> (chunk % 8) & 1) != 0;
}

/// Whether the first `chunks` bits of the handle's bitmap are set.
inline bool all_in(sdr_recv_handle* handle, std::size_t chunks) {
    std::uint8_t* bitmap = nullptr;
    std::size_t bytes = 0;
    if (sdr_recv_bitmap_get(handle, &bitmap, &bytes) != SDR_SUCCESS) return false;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
        if (!chunk_in(bitmap, chunk)) return false;
    return true;
}

class LoopbackTest : public testing::Test {
 protected:
    static constexpr std::size_t kMemory = 1 << 20;

    void connect(sdr_qp_attr attributes = small_attributes(), std::uint32_t channels = 1) {
        a.open(kMemory, channels);
        b.open(kMemory, channels);
        ASSERT_NE(a.context, nullptr);
        ASSERT_NE(b.context, nullptr);
        a.qp = sdr_qp_create(a.context, &attributes);
        ASSERT_NE(a.qp, nullptr) << sdr_last_error();
        b.qp = sdr_qp_create(b.context, &attributes);
        ASSERT_NE(b.qp, nullptr) << sdr_last_error();
        join();
    }
    void connect(sdr_qp_attr_ext attributes, std::uint32_t channels = 1) {
        attributes.struct_size = sizeof(attributes);
        a.open(kMemory, channels);
        b.open(kMemory, channels);
        a.qp = sdr_qp_create_ext(a.context, &attributes);
        ASSERT_NE(a.qp, nullptr) << sdr_last_error();
        b.qp = sdr_qp_create_ext(b.context, &attributes);
        ASSERT_NE(b.qp, nullptr) << sdr_last_error();
        join();
    }
    void join() {
        auto info_a = info_of(a.qp);
        auto info_b = info_of(b.qp);
        ASSERT_EQ(sdr_qp_connect(a.qp, info_b.data()), SDR_SUCCESS) << sdr_last_error();
        ASSERT_EQ(sdr_qp_connect(b.qp, info_a.data()), SDR_SUCCESS) << sdr_last_error();
    }
    void TearDown() override {
        a.close();
        b.close();
    }
    sdr_qp_stats stats(sdr_qp* qp) {
        sdr_qp_stats value{};
        value.struct_size = sizeof(value);
        EXPECT_EQ(sdr_qp_stats_get(qp, &value), SDR_SUCCESS) << sdr_last_error();
        return value;
    }
    /// Bytes [from, to) of b's memory are still zero.
    bool untouched(std::size_t from, std::size_t to) const {
        for (std::size_t i = from; i < to; ++i)
            if (b.memory[i] != 0) return false;
        return true;
    }

    Side a;  ///< sends
    Side b;  ///< receives
};

}  // namespace farhaul::capi_test
