// Whole transfers over loopback UDP: real sockets, real threads, real files; both ends in this process unless one has
// to die.
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "app/transfer/receiver.hpp"
#include "app/transfer/sender.hpp"
#include "scratch_folder.hpp"

namespace fs = std::filesystem;
using namespace farhaul;
using namespace farhaul::app;
using namespace farhaul::app::transfer;

namespace {

constexpr Duration kShort = Duration::from_milliseconds(1500);

/// A receiver on a thread of its own.
class RunningReceiver {
 public:
    explicit RunningReceiver(ReceiverOptions options) {
        options.listen = *udp::parse_address("127.0.0.1:0", udp::AddressUse::kListen);
        options.timeout = kShort;
        options.sink.sync = false;
        loop_ = std::move(*udp::RealLoop::create());
        ReceiverEvents events;
        events.ended = [this](const TransferReport& report) {
            const std::lock_guard lock(mutex_);
            reports_.push_back(report);
        };
        receiver_ = std::make_unique<Receiver>(*loop_, options, events);
        const auto status = receiver_->listen();
        EXPECT_TRUE(status) << (status ? "" : status.error().message);
        address_ = receiver_->local_address();
        thread_ = std::thread([this] {
            loop_->run();
            receiver_->interrupt();
            loop_->run_until([this] { return receiver_->transfers() == 0; }, Duration::from_milliseconds(10'000));
            left_over_ = receiver_->transfers();
            receiver_.reset();
        });
    }
    ~RunningReceiver() { stop(); }
    void stop() {
        if (!thread_.joinable()) return;
        loop_->stop();
        thread_.join();
        EXPECT_EQ(left_over_, 0u);
    }
    const udp::Address& address() const { return address_; }
    std::vector<TransferReport> reports() {
        const std::lock_guard lock(mutex_);
        return reports_;
    }
    /// Waits for the n-th transfer to end.
    std::optional<TransferReport> wait_for_report(std::size_t n = 0) {
        for (int i = 0; i < 1000; ++i) {
            if (auto all = reports(); all.size() > n) return all[n];
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return std::nullopt;
    }

 private:
    std::unique_ptr<udp::RealLoop> loop_;
    std::unique_ptr<Receiver> receiver_;
    udp::Address address_;
    std::thread thread_;
    std::mutex mutex_;
    std::vector<TransferReport> reports_;
    std::size_t left_over_ = 0;
};

struct Sending {
    reliable::Scheme scheme = reliable::Scheme::kSelectiveRepeatNack;
    BitRate rate = BitRate::from_gigabits(0.5);
    std::uint32_t payload_bytes = 1400;
    std::function<void(udp::RealLoop&, Sender&)> prepare{};
    std::vector<std::string>* warnings = nullptr;
};

TransferReport send(const std::vector<std::string>& paths, const udp::Address& peer, const Sending& sending = {}) {
    auto loop = udp::RealLoop::create();
    auto roots = walk_roots(paths);
    EXPECT_TRUE(roots);
    const SourceTotals totals = count_tree(*roots);
    SenderOptions options;
    options.peer = peer;
    options.rate = sending.rate;
    options.timeout = kShort;
    options.offer.scheme = sending.scheme;
    options.offer.payload_bytes = sending.payload_bytes;
    options.offer.block_bytes = 256u << 10;
    options.offer.blocks = 16;
    options.offer.total_files = totals.files;
    options.offer.total_bytes = totals.bytes;
    SenderEvents events;
    events.warning = [&](const std::string& text) {
        if (sending.warnings) sending.warnings->push_back(text);
    };
    Sender sender(**loop, options, *roots, events);
    if (sending.prepare) sending.prepare(**loop, sender);
    return sender.run();
}

bool wait_until(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

bool has_partial_file(const std::string& folder) {
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".part") return true;
    return false;
}

}  // namespace

TEST(TransferLoopback, TreeArrivesByEveryScheme) {
    ScratchFolder from;
    fs::create_directories(from / "t/a/b");
    fs::create_directories(from / "t/empty");
    write_file(from / "t/large", random_text(3'000'000, 1));
    write_file(from / "t/nothing", "");
    for (int i = 0; i < 300; ++i)
        write_file(from / ("t/a/b/" + std::to_string(i)), random_text(static_cast<std::size_t>(i) * 3, 2));
    for (const auto scheme :
         {reliable::Scheme::kGoBackN, reliable::Scheme::kSelectiveRepeat, reliable::Scheme::kSelectiveRepeatNack}) {
        ScratchFolder to;
        RunningReceiver receiver({.sink = {.folder = to.string()}});
        const TransferReport report = send({(from / "t").string()}, receiver.address(), {.scheme = scheme});
        EXPECT_EQ(report.exit_code, kExitOk) << report.message;
        EXPECT_EQ(report.files, 302u);
        const auto theirs = receiver.wait_for_report();
        ASSERT_TRUE(theirs);
        EXPECT_EQ(theirs->exit_code, kExitOk) << theirs->message;
        EXPECT_EQ(theirs->bytes, report.bytes);
        EXPECT_EQ(theirs->scheme, scheme) << "the sender chooses";
        EXPECT_EQ(tree(from / "t"), tree(to / "t"));
    }
}

TEST(TransferLoopback, SingleFileReportsItsDigestOnBothSides) {
    ScratchFolder from, to;
    write_file(from / "abc", "abc");
    RunningReceiver receiver({.sink = {.folder = to.string()}});
    const TransferReport report = send({(from / "abc").string()}, receiver.address());
    ASSERT_TRUE(report.digest);
    // FIPS 180-2, appendix B.1.
    EXPECT_EQ(to_hex(*report.digest), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const auto theirs = receiver.wait_for_report();
    ASSERT_TRUE(theirs && theirs->digest);
    EXPECT_EQ(*theirs->digest, *report.digest);
}

TEST(TransferLoopback, SeveralAtOnceWhileStrangersShout) {
    ScratchFolder from, to;
    for (const char* name : {"one", "two", "three"})
        write_file(from / name, random_text(2'000'000, static_cast<std::uint64_t>(name[0])));
    RunningReceiver receiver({.sink = {.folder = to.string()}});
    std::atomic<bool> over{false};
    std::thread stranger([&] {
        const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
        Random random(9);
        while (!over) {
            const std::string garbage = random_text(random() % 1500, random());
            ::sendto(fd, garbage.data(), garbage.size(), 0, receiver.address().sockaddr_ptr(),
                     receiver.address().length());
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        ::close(fd);
    });
    std::vector<std::thread> senders;
    std::atomic<int> good{0};
    for (const char* name : {"one", "two", "three"})
        senders.emplace_back([&, name] {
            const TransferReport report =
                send({(from / name).string()}, receiver.address(), {.rate = BitRate::from_gigabits(0.1)});
            if (report.exit_code == kExitOk)
                ++good;
            else
                ADD_FAILURE() << name << ": " << report.message;
        });
    for (auto& sender : senders) sender.join();
    over = true;
    stranger.join();
    EXPECT_EQ(good, 3);
    EXPECT_EQ(tree(fs::path(from.string())), tree(fs::path(to.string())));
}

TEST(TransferLoopback, KilledSenderLeavesNoPartialFile) {
    ScratchFolder from, to;
    write_file(from / "f", random_text(20'000'000, 1));
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    // Forked before this process has threads.
    const pid_t child = ::fork();
    if (child == 0) {
        std::uint16_t port = 0;
        if (::read(ends[0], &port, sizeof port) != sizeof port) ::_exit(1);
        send({(from / "f").string()},
             *udp::parse_address("127.0.0.1:" + std::to_string(port), udp::AddressUse::kConnect),
             {.rate = BitRate::from_bits_per_second(20'000'000)});
        ::_exit(0);
    }
    RunningReceiver receiver({.sink = {.folder = to.string()}});
    const std::uint16_t port = receiver.address().port();
    ASSERT_EQ(::write(ends[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
    EXPECT_TRUE(wait_until([&] { return has_partial_file(to.string()); })) << "the transfer did not begin";
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    ::close(ends[1]);
    const auto report = receiver.wait_for_report();
    ASSERT_TRUE(report) << "the receiver does not notice that its sender is gone";
    EXPECT_EQ(report->exit_code, kExitPeer) << report->message;
    EXPECT_TRUE(tree(fs::path(to.string())).empty());
}

TEST(TransferLoopback, InterruptedSenderTellsTheReceiver) {
    ScratchFolder from, to;
    write_file(from / "f", random_text(20'000'000, 1));
    RunningReceiver receiver({.sink = {.folder = to.string()}});
    std::thread interrupter;
    const TransferReport report =
        send({(from / "f").string()}, receiver.address(),
             {.rate = BitRate::from_bits_per_second(20'000'000), .prepare = [&](udp::RealLoop& loop, Sender& sender) {
                  interrupter = std::thread([&] {
                      EXPECT_TRUE(wait_until([&] { return has_partial_file(to.string()); }));
                      loop.post([&] { sender.interrupt(); });
                  });
              }});
    interrupter.join();
    EXPECT_EQ(report.exit_code, kExitFailure);
    const auto theirs = receiver.wait_for_report();
    ASSERT_TRUE(theirs);
    EXPECT_NE(theirs->exit_code, kExitOk);
    EXPECT_LT(theirs->elapsed, Duration::from_milliseconds(1400)) << "told, not timed out";
    EXPECT_TRUE(tree(fs::path(to.string())).empty());
}

TEST(TransferLoopback, InterruptedReceiverTellsTheSender) {
    ScratchFolder from, to;
    write_file(from / "f", random_text(20'000'000, 1));
    RunningReceiver receiver({.sink = {.folder = to.string()}});
    std::thread interrupter([&] {
        EXPECT_TRUE(wait_until([&] { return has_partial_file(to.string()); }));
        receiver.stop();
    });
    const TransferReport report =
        send({(from / "f").string()}, receiver.address(), {.rate = BitRate::from_bits_per_second(20'000'000)});
    interrupter.join();
    EXPECT_NE(report.exit_code, kExitOk);
    EXPECT_FALSE(report.message.empty());
    EXPECT_TRUE(tree(fs::path(to.string())).empty());
}

TEST(TransferLoopback, NobodyListens) {
    ScratchFolder from, to;
    write_file(from / "f", "x");
    udp::Address address;
    {
        RunningReceiver receiver({.sink = {.folder = to.string()}});
        address = receiver.address();
    }
    const TransferReport report = send({(from / "f").string()}, address);
    EXPECT_EQ(report.exit_code, kExitPeer);
}

TEST(TransferLoopback, ReceiverThatCannotWriteRefusesAtOnce) {
    ScratchFolder from, to;
    write_file(from / "f", "x");
    fs::create_directory(to / "out");
    RunningReceiver receiver({.sink = {.folder = (to / "out").string()}});
    fs::remove(to / "out");
    const TransferReport report = send({(from / "f").string()}, receiver.address());
    EXPECT_EQ(report.exit_code, kExitFailure);
    EXPECT_NE(report.message.find("out"), std::string::npos) << report.message;
}

TEST(TransferLoopback, KeptFilesFailAndTheRestArrives) {
    ScratchFolder from, to;
    fs::create_directories(from / "t");
    fs::create_directories(to / "t");
    write_file(from / "t/kept", random_text(5'000'000, 1));
    write_file(from / "t/new", "new");
    write_file(to / "t/kept", "old");
    RunningReceiver receiver({.sink = {.folder = to.string(), .replace = false}});
    std::vector<std::string> warnings;
    const TransferReport report = send({(from / "t").string()}, receiver.address(), {.warnings = &warnings});
    EXPECT_EQ(report.exit_code, kExitFailure);
    EXPECT_EQ(report.outcome, Outcome::kExists);
    EXPECT_EQ(report.files_failed, 1u);
    ASSERT_FALSE(warnings.empty());
    EXPECT_NE(warnings[0].find("kept"), std::string::npos);
    EXPECT_EQ(read_file(to / "t/kept"), "old");
    EXPECT_EQ(read_file(to / "t/new"), "new");
}

TEST(TransferLoopback, FullDiskEndsBothSidesWithTheReason) {
    ScratchFolder from, to;
    write_file(from / "f", random_text(3'000'000, 1));
    if (::mount("none", to.string().c_str(), "tmpfs", 0, "size=1m") != 0)
        GTEST_SKIP() << "needs root to mount a small file system";
    {
        RunningReceiver receiver({.sink = {.folder = to.string()}});
        const TransferReport report = send({(from / "f").string()}, receiver.address());
        EXPECT_EQ(report.exit_code, kExitNoSpace) << report.message;
        const auto theirs = receiver.wait_for_report();
        EXPECT_TRUE(theirs && theirs->exit_code == kExitNoSpace);
        EXPECT_TRUE(tree(fs::path(to.string())).empty());
    }
    ::umount(to.string().c_str());
}

TEST(TransferLoopback, OnlyOneTransferWithOnce) {
    ScratchFolder from, to;
    write_file(from / "f", "x");
    RunningReceiver receiver({.sink = {.folder = to.string()}, .once = true});
    EXPECT_EQ(send({(from / "f").string()}, receiver.address()).exit_code, kExitOk);
    EXPECT_EQ(send({(from / "f").string()}, receiver.address()).exit_code, kExitFailure);
}

TEST(TransferLoopback, PortInUseIsAnError) {
    ScratchFolder to;
    RunningReceiver receiver({.sink = {.folder = to.string()}});
    auto loop = udp::RealLoop::create();
    Receiver second(**loop, {.listen = receiver.address(), .sink = {.folder = to.string()}}, {});
    EXPECT_FALSE(second.listen());
}
