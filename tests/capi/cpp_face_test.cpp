// farhaul/sdr.hpp: owners, order of destruction, errors as values.
#include <farhaul/sdr.hpp>

#include <array>
#include <type_traits>

#include "loopback.hpp"

namespace farhaul::capi_test {
namespace {

static_assert(!std::is_copy_constructible_v<api::Context> && std::is_move_constructible_v<api::Context>);
static_assert(!std::is_copy_constructible_v<api::QueuePair> && std::is_move_constructible_v<api::QueuePair>);
static_assert(!std::is_copy_constructible_v<api::MemoryRegion> && std::is_move_constructible_v<api::MemoryRegion>);
static_assert(!std::is_copy_constructible_v<api::Receive> && std::is_nothrow_move_constructible_v<api::Receive>);
static_assert(!std::is_copy_constructible_v<api::Send> && std::is_nothrow_move_constructible_v<api::Send>);

struct End {
    api::QueuePair pair;
    api::MemoryRegion region;
};

End make_end(std::span<std::byte> memory) {
    // The context's owner goes away here: pair and region keep it open.
    auto context = api::Context::open("lo");
    EXPECT_TRUE(context) << context.error().message;
    auto pair = context->create_queue_pair(small_attributes());
    EXPECT_TRUE(pair) << pair.error().message;
    auto region = context->register_memory(memory);
    EXPECT_TRUE(region) << region.error().message;
    return {std::move(*pair), std::move(*region)};
}

void join(End& a, End& b) {
    auto info_a = a.pair.info();
    auto info_b = b.pair.info();
    ASSERT_TRUE(info_a && info_b);
    ASSERT_TRUE(a.pair.connect(*info_b));
    ASSERT_TRUE(b.pair.connect(*info_a));
    EXPECT_EQ(a.pair.state().value(), SDR_QP_CONNECTED);
}

TEST(CppFace, SendsAndReceives) {
    std::vector<std::byte> from(8192), to(8192);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = std::byte{pattern(i, 1)};
    End a = make_end(from);
    End b = make_end(to);
    join(a, b);
    auto early = a.pair.post_send(a.region, 0, 100);
    ASSERT_FALSE(early);
    EXPECT_TRUE(early.error().retry());
    auto receive = b.pair.post_receive(b.region);
    ASSERT_TRUE(receive) << receive.error().message;
    EXPECT_FALSE(receive->arrived().value());
    ASSERT_TRUE(eventually([&] { return a.pair.send_capacity().value_or(0) == 8192; }));
    auto send = a.pair.start_send(0xabcdu, 7000);
    ASSERT_TRUE(send) << send.error().message;
    EXPECT_TRUE(send->add(a.region, 0, 4096, 0));
    EXPECT_TRUE(send->add(a.region, 4096, 7000 - 4096, 4));
    EXPECT_FALSE(send->poll().value());
    EXPECT_TRUE(send->end());
    EXPECT_TRUE(eventually([&] { return send->poll().value(); }));
    EXPECT_EQ(send->get(), nullptr);
    ASSERT_TRUE(eventually([&] { return receive->arrived().value(); }));
    EXPECT_EQ(receive->length().value(), 7000u);
    ASSERT_TRUE(eventually([&] { return receive->immediate().has_value(); }));
    EXPECT_EQ(receive->immediate().value(), 0xabcdu);
    auto bitmap = receive->bitmap();
    ASSERT_TRUE(bitmap);
    EXPECT_EQ(bitmap->size(), 1u);
    for (std::size_t chunk = 0; chunk < 7; ++chunk) EXPECT_TRUE(api::Receive::chunk_in(*bitmap, chunk));
    EXPECT_FALSE(api::Receive::chunk_in(*bitmap, 7));
    EXPECT_EQ(receive->packets(0).value(), 0xfu);
    EXPECT_FALSE(receive->packets(7));
    EXPECT_TRUE(receive->complete());
    EXPECT_FALSE(receive->complete());
    EXPECT_TRUE(std::equal(from.begin(), from.begin() + 7000, to.begin()));
    EXPECT_EQ(a.pair.stats().value().bytes_sent, 7000u);
}

TEST(CppFace, OwnersMayGoInAnyOrder) {
    std::vector<std::byte> from(4096), to(4096);
    auto a = std::make_unique<End>(make_end(from));
    auto b = std::make_unique<End>(make_end(to));
    join(*a, *b);
    std::optional<api::Receive> receive = b->pair.post_receive(b->region, 0, 1000).value();
    std::optional<api::Send> send;
    ASSERT_TRUE(eventually([&] {
        auto posted = a->pair.post_send(a->region, 10, 1000, 5u);
        if (posted) send.emplace(std::move(*posted));
        return send.has_value();
    }));
    a.reset();  // the send keeps its queue pair, region and context
    b.reset();
    EXPECT_TRUE(eventually([&] { return receive->arrived().value(); }));
    std::optional<api::Receive> moved(std::move(*receive));
    receive.reset();
    EXPECT_TRUE(moved->arrived().value());
    send.reset();
    moved.reset();
}

TEST(CppFace, ErrorsHaveTexts) {
    auto nothing = api::Context::open("mlx5_0");
    ASSERT_FALSE(nothing);
    EXPECT_FALSE(nothing.error().retry());
    EXPECT_NE(nothing.error().message.find("mlx5_0"), std::string::npos);
    auto context = api::Context::open("lo", 2);
    ASSERT_TRUE(context);
    sdr_qp_attr_ext wrong{};
    wrong.payload_bytes = 1;
    wrong.send_enable = 1;
    auto pair = context->create_queue_pair(wrong);
    ASSERT_FALSE(pair);
    EXPECT_NE(pair.error().message.find("payload_bytes"), std::string::npos) << pair.error().message;
    wrong.payload_bytes = 1400;
    auto good = context->create_queue_pair(wrong);
    ASSERT_TRUE(good) << good.error().message;
    std::array<std::byte, 10> tiny{};
    EXPECT_FALSE(good->connect(tiny));
}

}  // namespace
}  // namespace farhaul::capi_test
