// The TUN path between two network namespaces, with the kernel's own TCP and UDP. Needs root; skipped otherwise.
#include "link/realtime/tun_path.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

namespace farhaul::link {
namespace {

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

/// Calls `work` on a thread inside a network namespace: the sockets that it makes stay there.
void inside(const std::string& name, const std::function<void()>& work) {
    std::thread([&] {
        const io::UniqueFd ns(::open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC));
        ASSERT_EQ(::setns(ns.get(), CLONE_NEWNET), 0);
        work();
    }).join();
}

sockaddr_in address_of(const char* host, std::uint16_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    ::inet_pton(AF_INET, host, &a.sin_addr);
    return a;
}

class TunPathTest : public testing::Test {
 protected:
    void SetUp() override {
        if (::geteuid() != 0) GTEST_SKIP() << "network namespaces and TUN devices need root";
        if (::access("/dev/net/tun", R_OK | W_OK) != 0)
            GTEST_SKIP() << "/dev/net/tun is missing: the kernel has no TUN driver";
        a_ = "fh-a-" + std::to_string(::getpid());
        b_ = "fh-b-" + std::to_string(::getpid());
        if (!run("ip netns add " + a_)) GTEST_SKIP() << "`ip netns add` does not work here";
        ASSERT_TRUE(run("ip netns add " + b_));
    }
    void TearDown() override {
        path_.reset();
        if (!a_.empty()) run("ip netns del " + a_);
        if (!b_.empty()) run("ip netns del " + b_);
    }
    void start(const LinkConfig& forward, const LinkConfig& backward) {
        auto f = LinkModel::create(forward, {}, 1);
        auto b = LinkModel::create(backward, {}, 2);
        ASSERT_TRUE(f && b);
        auto path = TunPath::create(
            {.network_namespace = a_, .addresses = {"10.77.0.1/24", "fd77::1/64"}, .routes = {"10.99.0.0/16"}},
            {.network_namespace = b_, .addresses = {"10.77.0.2/24", "fd77::2/64"}, .routes = {}},
            LinkPair{std::move(*f), std::move(*b)});
        ASSERT_TRUE(path.has_value()) << path.error().message;
        path_ = std::move(*path);
    }
    void step() {
        const auto ok = path_->step(Duration::from_milliseconds(1));
        ASSERT_TRUE(ok.has_value()) << ok.error().message;
    }
    std::string a_, b_;
    std::unique_ptr<TunPath> path_;
    RealClock clock_;
};

TEST_F(TunPathTest, TcpCrossesALossyLink) {
    const LinkConfig link{.rate = BitRate::from_gigabits(1),
                          .delay = Duration::from_milliseconds(2),
                          .queue_bytes = 4 << 20,
                          .loss = {5e-3, 1},
                          .reorder_probability = 1e-3,
                          .reorder_delay = Duration::from_milliseconds(1),
                          .duplicate_probability = 1e-3,
                          .corrupt_probability = 2e-3};
    start(link, link);
    io::UniqueFd listener, sender, receiver;
    const sockaddr_in server = address_of("10.77.0.2", 5001);
    inside(b_, [&] {
        listener.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&server), sizeof server), 0)
            << std::strerror(errno);
        ASSERT_EQ(::listen(listener.get(), 1), 0);
    });
    inside(a_, [&] {
        sender.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        ::connect(sender.get(), reinterpret_cast<const sockaddr*>(&server), sizeof server);
    });
    const std::size_t total = 4 << 20;
    std::vector<std::byte> data(total), received;
    Random random(1);
    for (auto& b : data) b = static_cast<std::byte>(random());
    std::size_t sent = 0;
    std::vector<std::byte> piece(1 << 18);
    bool shut = false;
    while (received.size() < total && clock_.now() < TimePoint() + Duration::from_seconds(30)) {
        step();
        if (HasFatalFailure()) return;
        if (!receiver) receiver.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
        if (sent < total) {
            const ssize_t n = ::send(sender.get(), data.data() + sent, total - sent, MSG_NOSIGNAL);
            if (n > 0) sent += static_cast<std::size_t>(n);
        } else if (!shut) {
            shut = ::shutdown(sender.get(), SHUT_WR) == 0;
        }
        for (ssize_t n = 1; receiver && n > 0;) {
            n = ::recv(receiver.get(), piece.data(), piece.size(), 0);
            if (n > 0) received.insert(received.end(), piece.begin(), piece.begin() + n);
        }
    }
    EXPECT_TRUE(received == data) << received.size() << " of " << total << " bytes arrived";
    const auto report = path_->report();
    const auto& forward = report.directions[kForward];
    EXPECT_GT(forward.model.dropped_loss, 0u);
    EXPECT_GT(forward.model.corrupted, 0u);
    EXPECT_LE(forward.model.offered_bytes / forward.model.offered_packets, 1500u);
    EXPECT_GE(forward.model.offered_packets, total / 1448);
    EXPECT_EQ(forward.lost_before_model, 0u);
    EXPECT_EQ(forward.unusable_packets, 0u);
    EXPECT_EQ(forward.sent_packets + forward.waiting_packets,
              forward.model.delivered_packets + forward.model.duplicated);
}

TEST_F(TunPathTest, UdpArrivesIntactOrNotAtAll) {
    // Half of the packets are damaged on the way: the receiving kernel must notice every one.
    start({.rate = BitRate::from_gigabits(1), .delay = Duration::from_milliseconds(1), .corrupt_probability = 0.5}, {});
    for (const bool v6 : {false, true}) {
        SCOPED_TRACE(v6 ? "IPv6" : "IPv4");
        io::UniqueFd sender, receiver;
        sockaddr_storage server{};
        socklen_t length = sizeof(sockaddr_in);
        if (v6) {
            auto& s = reinterpret_cast<sockaddr_in6&>(server);
            s.sin6_family = AF_INET6;
            s.sin6_port = htons(5002);
            ::inet_pton(AF_INET6, "fd77::2", &s.sin6_addr);
            length = sizeof s;
        } else {
            reinterpret_cast<sockaddr_in&>(server) = address_of("10.77.0.2", 5002);
        }
        const auto* address = reinterpret_cast<const sockaddr*>(&server);
        // A new IPv6 address cannot be used until its duplicates were looked for.
        bool bound = false;
        while (!bound && clock_.now() < TimePoint() + Duration::from_seconds(8)) {
            inside(b_, [&] {
                receiver.reset(::socket(server.ss_family, SOCK_DGRAM | SOCK_NONBLOCK, 0));
                const int bytes = 4 << 20;
                ::setsockopt(receiver.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
                bound = ::bind(receiver.get(), address, length) == 0;
            });
            step();
        }
        ASSERT_TRUE(bound) << std::strerror(errno);
        inside(a_, [&] {
            sender.reset(::socket(server.ss_family, SOCK_DGRAM | SOCK_NONBLOCK, 0));
            ASSERT_EQ(::connect(sender.get(), address, length), 0) << std::strerror(errno);
        });
        const auto before = path_->report().directions[kForward];
        std::vector<std::byte> data(1000);
        const int packets = 400;
        int accepted = 0;
        for (int i = 0; i < packets; ++i) {
            for (std::size_t k = 0; k < data.size(); ++k) data[k] = static_cast<std::byte>(i + static_cast<int>(k));
            accepted += ::send(sender.get(), data.data(), data.size(), 0) == static_cast<ssize_t>(data.size());
        }
        ASSERT_EQ(accepted, packets);
        std::uint64_t received = 0;
        const TimePoint begin = clock_.now();
        do {
            step();
            if (HasFatalFailure()) return;
            for (;;) {
                std::vector<std::byte> got(2000);
                const ssize_t n = ::recv(receiver.get(), got.data(), got.size(), 0);
                if (n < 0) break;
                ++received;
                ASSERT_EQ(n, 1000);
                for (std::size_t k = 1; k < 1000; ++k)
                    ASSERT_EQ(got[k], static_cast<std::byte>(std::to_integer<unsigned>(got[0]) + k))
                        << "damage was not noticed";
            }
        } while (path_->report().directions[kForward].waiting_packets != 0 ||
                 clock_.now() - begin < Duration::from_milliseconds(50));
        const auto after = path_->report().directions[kForward];
        const std::uint64_t offered = after.model.offered_packets - before.model.offered_packets;
        const std::uint64_t corrupted = after.model.corrupted - before.model.corrupted;
        EXPECT_GE(offered, static_cast<std::uint64_t>(packets));
        EXPECT_GE(received + corrupted, static_cast<std::uint64_t>(packets));
        EXPECT_LE(received + corrupted, offered);
        EXPECT_GT(received, 100u);
    }
}

TEST_F(TunPathTest, SaysWhatIsWrong) {
    const auto error = [&](TunConfig a) {
        auto device = TunDevice::open(a);
        return device ? std::string() : device.error().message;
    };
    EXPECT_NE(error({.network_namespace = "fh-no-such-namespace"}).find("ip netns add"), std::string::npos);
    EXPECT_NE(error({.network_namespace = a_, .addresses = {"10.77.0.1/33"}}).find("prefix"), std::string::npos);
    EXPECT_NE(error({.network_namespace = a_, .addresses = {"10.77.0/24"}}).find("address"), std::string::npos);
    EXPECT_NE(error({.network_namespace = a_, .mtu = 100}).find("MTU"), std::string::npos);
    EXPECT_NE(error({.network_namespace = a_, .name = "a-name-that-is-too-long"}).find("name"), std::string::npos);
}

}  // namespace
}  // namespace farhaul::link
