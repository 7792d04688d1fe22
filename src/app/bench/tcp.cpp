#include "app/bench/tcp.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "io/unique_fd.hpp"

namespace farhaul::app::bench {
namespace {

constexpr std::uint64_t kTcpMagic = 0x3250435448414846ull;
constexpr std::size_t kBufferBytes = 1u << 20;

struct Hello {
    std::uint64_t magic, total;
    std::uint64_t acknowledged;  // bytes after each of which the server says a word
};

std::string error_text(int error) { return std::generic_category().message(error); }

void set_timeout(int fd, Duration timeout) {
    const timeval t{.tv_sec = timeout.nanoseconds() / 1'000'000'000,
                    .tv_usec = timeout.nanoseconds() % 1'000'000'000 / 1000};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

void serve(int fd) {
    set_timeout(fd, Duration::from_milliseconds(60'000));
    Hello hello{};
    std::size_t have = 0;
    while (have < sizeof hello) {
        const ssize_t got = ::recv(fd, reinterpret_cast<char*>(&hello) + have, sizeof hello - have, 0);
        if (got <= 0) return;
        have += static_cast<std::size_t>(got);
    }
    if (hello.magic != kTcpMagic || hello.acknowledged == 0) return;
    const auto buffer = std::make_unique<std::byte[]>(kBufferBytes);
    std::uint64_t left = hello.total;
    do {
        std::uint64_t until_word = std::min(left, hello.acknowledged);
        left -= until_word;
        while (until_word > 0) {
            const ssize_t got = ::recv(fd, buffer.get(),
                                       static_cast<std::size_t>(std::min<std::uint64_t>(until_word, kBufferBytes)), 0);
            if (got <= 0) return;
            until_word -= static_cast<std::uint64_t>(got);
        }
        const char done = 1;
        if (::send(fd, &done, 1, MSG_NOSIGNAL) != 1) return;
    } while (left > 0);
}

}  // namespace

struct TcpServer::State {
    struct Client {
        io::UniqueFd fd;
        std::jthread thread;
    };
    explicit State(udp::RealLoop& loop_in) : loop(loop_in) {}
    ~State() {
        if (listener) loop.remove_fd(listener.get());
        for (Client& client : clients) ::shutdown(client.fd.get(), SHUT_RDWR);  // ends its thread, which is joined
    }
    void accept() {
        io::UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) return;
        if (clients.size() >= 64) clients.pop_front();  // joins: long done, or it waits for its turn
        const int raw = fd.get();
        clients.push_back({std::move(fd), std::jthread([raw] {
                               serve(raw);
                               ::shutdown(raw, SHUT_RDWR);
                           })});
    }
    udp::RealLoop& loop;
    io::UniqueFd listener;
    std::list<Client> clients;
};

TcpServer::TcpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
TcpServer::~TcpServer() = default;

Result<std::unique_ptr<TcpServer>> TcpServer::open(udp::RealLoop& loop, const udp::Address& address) {
    auto state = std::make_unique<State>(loop);
    state->listener.reset(::socket(address.sockaddr_ptr()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!state->listener) return fail(ErrorCode::kIo, "cannot make a TCP socket: {}", error_text(errno));
    const int on = 1, off = 0;
    ::setsockopt(state->listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.is_ipv6()) ::setsockopt(state->listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (::bind(state->listener.get(), address.sockaddr_ptr(), address.length()) != 0 ||
        ::listen(state->listener.get(), 16) != 0)
        return fail(ErrorCode::kIo, "cannot listen on TCP {}: {}", address.to_string(), error_text(errno));
    State* raw = state.get();
    auto added = loop.add_fd(raw->listener.get(), EPOLLIN, [raw](std::uint32_t) { raw->accept(); });
    if (!added) return propagate(added);
    return std::unique_ptr<TcpServer>(new TcpServer(std::move(state)));
}

Result<BandwidthRow> run_tcp_client(const udp::Address& server, const std::string& algorithm, std::uint64_t bytes,
                                    std::uint64_t iterations, bool one_at_a_time, Duration timeout) {
    const io::UniqueFd fd(::socket(server.sockaddr_ptr()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) return fail(ErrorCode::kIo, "cannot make a TCP socket: {}", error_text(errno));
    if (!algorithm.empty() && ::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, algorithm.c_str(),
                                           static_cast<socklen_t>(algorithm.size())) != 0)
        return fail(ErrorCode::kUnsupported,
                    "this kernel does not offer the congestion control '{}' ({}); see "
                    "/proc/sys/net/ipv4/tcp_available_congestion_control",
                    algorithm, error_text(errno));
    set_timeout(fd.get(), timeout);
    const auto failed = [&](const char* what) {
        const int error = errno;
        const bool late = error == EAGAIN || error == EINPROGRESS;
        return fail(late ? ErrorCode::kTimeout : ErrorCode::kPeerGone, "{} {}: {}", what, server.to_string(),
                    late ? "no byte moved within the time limit" : error_text(error));
    };
    if (::connect(fd.get(), server.sockaddr_ptr(), server.length()) != 0) return failed("cannot connect by TCP to");
    const TimePoint start = udp::RealLoop::clock();
    const std::uint64_t total = bytes * iterations;
    const Hello hello{kTcpMagic, total, std::max<std::uint64_t>(1, one_at_a_time ? bytes : total)};
    if (::send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello))
        return failed("cannot send by TCP to");
    const std::vector<std::byte> buffer(kBufferBytes, std::byte{0x5a});
    std::vector<std::int64_t> completions;
    std::uint64_t left = total;
    do {
        std::uint64_t until_word = std::min(left, hello.acknowledged);
        left -= until_word;
        while (until_word > 0) {
            const ssize_t sent =
                ::send(fd.get(), buffer.data(),
                       static_cast<std::size_t>(std::min<std::uint64_t>(until_word, kBufferBytes)), MSG_NOSIGNAL);
            if (sent <= 0) return failed("cannot send by TCP to");
            until_word -= static_cast<std::uint64_t>(sent);
        }
        char done = 0;
        const ssize_t got = ::recv(fd.get(), &done, 1, 0);
        if (got < 0) return failed("no word by TCP from");
        if (got == 0)
            return fail(ErrorCode::kPeerGone, "the TCP server {} closed before it had everything", server.to_string());
        if (one_at_a_time) completions.push_back((udp::RealLoop::clock() - start).nanoseconds());
    } while (left > 0);
    BandwidthRow row;
    row.bytes = bytes;
    row.iterations = iterations;
    row.seconds = (udp::RealLoop::clock() - start).seconds();
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
        row.packets_resent = info.tcpi_total_retrans;
        if (info.tcpi_snd_mss > 0)
            row.packets_sent = (total + info.tcpi_snd_mss - 1) / info.tcpi_snd_mss + info.tcpi_total_retrans;
    }
    fill_rates(row, completions, one_at_a_time ? 1 : 0);
    return row;
}

}  // namespace farhaul::app::bench
