// The relay over loopback in real time, with short runs: what arrives, what does not, and that it is accounted for.
#include "link/realtime/udp_relay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <netinet/udp.h>

namespace farhaul::link {
namespace {

/// A socket of a test peer on loopback.
class Peer {
 public:
    explicit Peer(const char* address = "127.0.0.1:0") {
        auto socket = UdpSocket::listening(*parse_endpoint(address, true));
        EXPECT_TRUE(socket.has_value()) << socket.error().message;
        socket_ = std::move(*socket);
        const int off = 0;
        ::setsockopt(socket_.fd(), SOL_UDP, 104, &off, sizeof off);  // UDP_GRO: one datagram per receive
    }
    Endpoint address() const { return *socket_.local(); }
    void send(const Endpoint& to, std::uint32_t number, std::size_t bytes) {
        std::vector<std::byte> data(bytes);
        for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(number + i);
        if (bytes >= sizeof number) std::memcpy(data.data(), &number, sizeof number);
        ASSERT_EQ(::sendto(socket_.fd(), data.data(), data.size(), 0, to.get(), to.length),
                  static_cast<ssize_t>(bytes));
    }
    void send_segmented(const Endpoint& to, const std::vector<std::byte>& data, std::uint16_t segment) {
        iovec io{const_cast<std::byte*>(data.data()), data.size()};
        alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof segment)> control{};
        msghdr m{};
        m.msg_name = const_cast<sockaddr*>(to.get());
        m.msg_namelen = to.length;
        m.msg_iov = &io;
        m.msg_iovlen = 1;
        m.msg_control = control.data();
        m.msg_controllen = control.size();
        auto* c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_UDP;
        c->cmsg_type = 103;  // UDP_SEGMENT
        c->cmsg_len = CMSG_LEN(sizeof segment);
        std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
        ASSERT_EQ(::sendmsg(socket_.fd(), &m, 0), static_cast<ssize_t>(data.size()));
    }
    /// The next datagram, if there is one.
    bool receive(std::vector<std::byte>& data, Endpoint& from) {
        data.resize(65536);
        from.length = sizeof from.address;
        const ssize_t n = ::recvfrom(socket_.fd(), data.data(), data.size(), MSG_DONTWAIT,
                                     reinterpret_cast<sockaddr*>(&from.address), &from.length);
        if (n < 0) return false;
        data.resize(static_cast<std::size_t>(n));
        return true;
    }

 private:
    UdpSocket socket_;
};

struct Setup {
    LinkConfig forward{}, backward{};
    Duration client_idle = Duration::from_seconds(60);
    std::size_t max_clients = 1024;
    const char* listen = "127.0.0.1:0";
};

std::unique_ptr<UdpRelay> make_relay(const Endpoint& target, const Setup& setup) {
    auto forward = LinkModel::create(setup.forward, {}, 1);
    auto backward = LinkModel::create(setup.backward, {}, 2);
    EXPECT_TRUE(forward && backward);
    auto relay = UdpRelay::create({*parse_endpoint(setup.listen, true), target, setup.client_idle, setup.max_clients},
                                  LinkPair{std::move(*forward), std::move(*backward)});
    EXPECT_TRUE(relay.has_value()) << relay.error().message;
    return std::move(*relay);
}

struct Datagram {
    std::vector<std::byte> data;
    Endpoint from;
};

/// What a peer received so far: read while the relay runs, since without privileges a socket's buffer holds about 90
/// datagrams.
void collect(Peer& peer, std::vector<Datagram>& into) {
    for (Datagram d; peer.receive(d.data, d.from);) into.push_back(d);
}

/// Runs the relay until nothing is on its way and it was idle for a while; what `peer` receives meanwhile.
std::vector<Datagram> drain(UdpRelay& relay, Peer& peer) {
    const RealClock clock;
    TimePoint quiet;
    std::uint64_t last = 0;
    std::vector<Datagram> received;
    while (clock.now() < TimePoint() + Duration::from_seconds(10)) {
        EXPECT_TRUE(relay.step(Duration::from_milliseconds(2)).has_value());
        collect(peer, received);
        const auto r = relay.report();
        const auto offered = r.directions[0].model.offered_packets + r.directions[1].model.offered_packets;
        const auto waiting = r.directions[0].waiting_packets + r.directions[1].waiting_packets;
        if (offered != last || waiting != 0) quiet = clock.now();
        last = offered;
        if (clock.now() - quiet > Duration::from_milliseconds(20)) return received;
    }
    ADD_FAILURE() << "the relay did not come to rest";
    return received;
}

std::uint32_t number_of(const std::vector<std::byte>& data) {
    std::uint32_t n = 0;
    if (data.size() >= sizeof n) std::memcpy(&n, data.data(), sizeof n);
    return n;
}

TEST(Relay, ForwardsBothWaysForSeveralClients) {
    Peer server, first, second;
    auto relay = make_relay(server.address(), {});
    for (std::uint32_t i = 0; i < 50; ++i) {
        first.send(relay->local(), 1000 + i, 100 + i);
        second.send(relay->local(), 2000 + i, 1400);
    }
    const auto requests = drain(*relay, server);
    EXPECT_EQ(relay->report().clients, 2u);
    std::map<std::uint32_t, Endpoint> source;  // by thousand
    for (const auto& [data, from] : requests) {
        const std::uint32_t n = number_of(data), client = n / 1000;
        ASSERT_EQ(data.size(), client == 1 ? 100 + n % 1000 : 1400u);
        for (std::size_t i = 4; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<std::byte>(n + i));
        if (source.contains(client)) {
            ASSERT_TRUE(source[client] == from) << "one client, one socket upstream";
        }
        source[client] = from;
        server.send(from, n + 500, 60);  // the answer finds its client
    }
    EXPECT_EQ(requests.size(), 100u);
    ASSERT_EQ(source.size(), 2u);
    EXPECT_FALSE(source[1] == source[2]);
    drain(*relay, server);
    std::vector<std::byte> data;
    Endpoint from;
    for (auto* peer : {&first, &second}) {
        std::uint32_t expected = peer == &first ? 1500 : 2500;
        while (peer->receive(data, from)) {
            EXPECT_EQ(number_of(data), expected++);
            EXPECT_TRUE(from == relay->local());
        }
        EXPECT_EQ(expected, peer == &first ? 1550u : 2550u);
    }
    const auto report = relay->report();
    for (const auto& d : report.directions) {
        EXPECT_EQ(d.model.offered_packets, 100u);
        EXPECT_EQ(d.sent_packets, 100u);
        EXPECT_EQ(d.lost_before_model + d.lost_after_model + d.unusable_packets, 0u);
        EXPECT_EQ(d.lateness.count(), 100u);
    }
}

TEST(Relay, LosesWhatTheModelLosesAndDelaysTheRest) {
    Peer server, client;
    const LinkConfig link{
        .rate = BitRate::from_gigabits(1), .delay = Duration::from_milliseconds(20), .loss = {0.2, 3}};
    auto relay = make_relay(server.address(), {.forward = link, .backward = {}});
    const std::uint32_t n = 2000;
    const RealClock clock;
    TimePoint first_arrival = TimePoint::never();
    std::vector<Datagram> arrived;
    for (std::uint32_t i = 0; i < n; ++i) {
        client.send(relay->local(), i, 1472);
        if (i % 20 != 19) continue;
        ASSERT_TRUE(relay->step(Duration()).has_value());
        collect(server, arrived);
        if (!arrived.empty()) first_arrival = std::min(first_arrival, clock.now());
    }
    for (auto& d : drain(*relay, server)) arrived.push_back(std::move(d));
    EXPECT_GE(first_arrival, TimePoint() + Duration::from_milliseconds(20)) << "nothing arrives before the delay";
    // The same model says which.
    auto model = LinkModel::create(link, {}, 1);
    std::set<std::uint32_t> expected;
    for (std::uint32_t i = 0; i < n; ++i)
        if (model->offer(TimePoint(), 1500).dropped == DropReason::kNone) expected.insert(i);
    std::set<std::uint32_t> received;
    std::uint32_t last = 0;
    for (const auto& d : arrived) {
        EXPECT_GE(number_of(d.data), last) << "in order";
        last = number_of(d.data);
        received.insert(last);
    }
    EXPECT_EQ(received, expected);
    EXPECT_EQ(relay->report().directions[0].model.offered_bytes, n * 1500u) << "with UDP and IP headers";
}

TEST(Relay, TheModelDecidesOnEachDatagramOfASuperPacket) {
    Peer server, client;
    const LinkConfig link{.loss = {0.3, 1}, .duplicate_probability = 0.1};
    auto relay = make_relay(server.address(), {.forward = link, .backward = {}});
    std::uint32_t number = 0;
    const std::uint32_t segments = 40, segment = 1000, last = 300;
    std::vector<Datagram> arrived;
    for (int super = 0; super < 10; ++super) {
        std::vector<std::byte> data((segments - 1) * segment + last);
        for (std::uint32_t s = 0; s < segments; ++s, ++number) std::memcpy(&data[s * segment], &number, sizeof number);
        client.send_segmented(relay->local(), data, segment);
        ASSERT_TRUE(relay->step(Duration()).has_value());
        collect(server, arrived);
    }
    for (auto& d : drain(*relay, server)) arrived.push_back(std::move(d));
    auto model = LinkModel::create(link, {}, 1);
    std::vector<std::uint32_t> expected;
    for (std::uint32_t i = 0; i < number; ++i) {
        const Fate fate = model->offer(TimePoint(), 1000);
        if (fate.dropped == DropReason::kNone) expected.push_back(i);
        if (fate.duplicated) expected.push_back(i);
    }
    std::vector<std::uint32_t> received;
    for (const auto& d : arrived) {
        received.push_back(number_of(d.data));
        EXPECT_EQ(d.data.size(), number_of(d.data) % segments == segments - 1 ? last : segment);
    }
    EXPECT_EQ(received, expected);
}

TEST(Relay, CorruptsOneBit) {
    Peer server, client;
    auto relay = make_relay(server.address(), {.forward = {.corrupt_probability = 1}, .backward = {}});
    for (std::uint32_t i = 0; i < 20; ++i) client.send(relay->local(), 7, 64);
    client.send(relay->local(), 7, 0);  // nothing to flip
    const auto arrived = drain(*relay, server);
    std::vector<std::byte> original(64);
    for (std::size_t i = 0; i < 64; ++i) original[i] = static_cast<std::byte>(7 + i);
    const std::uint32_t seven = 7;
    std::memcpy(original.data(), &seven, sizeof seven);
    EXPECT_EQ(arrived.size(), 21u);
    for (const auto& d : arrived) {
        if (d.data.empty()) continue;
        ASSERT_EQ(d.data.size(), 64u);
        int bits = 0;
        for (std::size_t i = 0; i < 64; ++i) bits += std::popcount(std::to_integer<unsigned>(d.data[i] ^ original[i]));
        EXPECT_EQ(bits, 1);
    }
}

TEST(Relay, ForgetsIdleClientsAndLimitsTheirNumber) {
    Peer server, a, b, c;
    auto relay =
        make_relay(server.address(),
                   {.forward = {}, .backward = {}, .client_idle = Duration::from_milliseconds(100), .max_clients = 2});
    a.send(relay->local(), 1, 10);
    b.send(relay->local(), 2, 10);
    c.send(relay->local(), 3, 10);
    drain(*relay, server);
    EXPECT_EQ(relay->report().clients, 2u);
    EXPECT_EQ(relay->report().directions[0].unusable_packets, 1u);
    EXPECT_NE(relay->report().notes.back().find("clients"), std::string::npos);
    const RealClock clock;
    while (relay->report().clients != 0 && clock.now() < TimePoint() + Duration::from_seconds(5))
        ASSERT_TRUE(relay->step(Duration::from_milliseconds(10)).has_value());
    EXPECT_EQ(relay->report().clients, 0u);
    c.send(relay->local(), 4, 10);
    drain(*relay, server);
    EXPECT_EQ(relay->report().directions[0].sent_packets, 3u);
}

TEST(Relay, AnswersFromTheAddressThatWasAsked) {
    Peer server, client;
    auto relay = make_relay(server.address(), {.forward = {}, .backward = {}, .listen = ":0"});
    Endpoint other = relay->local();
    other = *parse_endpoint(fmt::format("127.0.0.2:{}", ntohs(reinterpret_cast<sockaddr_in&>(other.address).sin_port)),
                            false);
    client.send(other, 1, 10);
    const auto requests = drain(*relay, server);
    ASSERT_EQ(requests.size(), 1u);
    server.send(requests[0].from, 2, 10);
    const auto answers = drain(*relay, client);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_TRUE(answers[0].from == other) << answers[0].from.to_string();
}

TEST(Relay, SurvivesATargetThatIsNotThere) {
    Peer client;
    Endpoint nobody;
    {
        Peer gone;
        nobody = gone.address();
    }
    auto relay = make_relay(nobody, {});
    for (std::uint32_t i = 0; i < 20; ++i) {
        client.send(relay->local(), i, 10);
        ASSERT_TRUE(relay->step(Duration::from_milliseconds(2)).has_value());
    }
    drain(*relay, client);
    const auto report = relay->report();
    EXPECT_EQ(report.directions[0].sent_packets, 20u);
    ASSERT_FALSE(report.notes.empty());
    EXPECT_NE(report.notes.back().find("refused"), std::string::npos);
}

TEST(Endpoints, AreReadAsUsersWriteThem) {
    EXPECT_EQ(parse_endpoint("127.0.0.1:80", false)->to_string(), "127.0.0.1:80");
    EXPECT_EQ(parse_endpoint("[::1]:18520", false)->to_string(), "[::1]:18520");
    EXPECT_EQ(parse_endpoint(":18520", true)->to_string(), "0.0.0.0:18520");
    for (const char* text : {"", "host", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:0",
                             ":80", "::1:80", "[::1]", "1.2.3.4:-1"})
        EXPECT_FALSE(parse_endpoint(text, false).has_value()) << text;
}

TEST(Lateness, QuantilesAreWithinABucket) {
    Lateness lateness;
    EXPECT_EQ(lateness.quantile(0.5), Duration());
    for (int i = 1; i <= 1000; ++i) lateness.add(Duration::from_microseconds(i));
    EXPECT_NEAR(lateness.quantile(0.5).seconds(), 500e-6, 65e-6);
    EXPECT_NEAR(lateness.quantile(0.99).seconds(), 990e-6, 125e-6);
    EXPECT_EQ(lateness.max(), Duration::from_milliseconds(1));
    lateness.add(Duration::from_seconds(-1));  // early is not late
    lateness.add(Duration::max());
    EXPECT_EQ(lateness.max(), Duration::max());
}

}  // namespace
}  // namespace farhaul::link
