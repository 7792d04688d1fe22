// What a session lets through and what it refuses, request by request.
#include "fuse/session.hpp"

#include <random>
#include <set>

#include <gtest/gtest.h>

#include "recording.hpp"

namespace farhaul::fuse_test {
namespace {

using fuse::Session;

struct Rig {
    RecordingFileSystem file_system;
    Session session;
    Client client{session};
    explicit Rig(Session::Options options = {}) : session(file_system, options) {
        EXPECT_EQ(client.init().error, 0);
        file_system.calls.clear();
    }
    /// Runs it on node 5 with exactly as much room as `room` says.
    std::unique_ptr<RawRequest> run(const Bytes& bytes, std::size_t out_size) {
        auto request = std::make_unique<RawRequest>(bytes, out_size, client.piece);
        session.handle(*request);
        EXPECT_EQ(request->ended(), 1);
        return request;
    }
};

class EveryOperation : public testing::TestWithParam<std::size_t> {
 protected:
    const Sample sample = samples()[GetParam()];
    std::size_t room() const { return sizeof(fuse_out_header) + std::max(sample.reply, sample.room); }
};

TEST_P(EveryOperation, ReachesTheFileSystemWithItsArguments) {
    for (const std::size_t piece : {0, 1, 3, 16, 41}) {
        Rig rig;
        rig.client.piece = piece;
        const auto request = rig.run(rig.client.build(sample.opcode, 5, sample.arguments), room());
        ASSERT_EQ(rig.file_system.calls.size(), 1u) << sample.title << ", pieces of " << piece;
        EXPECT_EQ(rig.file_system.calls[0], sample.call);
        const auto header = request->header();
        EXPECT_EQ(header.error, -sample.error);
        EXPECT_EQ(header.unique, rig.client.last_unique);
        EXPECT_EQ(header.len, sizeof(fuse_out_header) + (sample.error == 0 ? sample.reply : 0));
        EXPECT_EQ(request->reply_size(), header.len) << "the length in the header is what was written";
        EXPECT_EQ(rig.session.malformed(), 0u);
    }
}

TEST_P(EveryOperation, CutShortOrTooLongIsEinval) {
    Rig rig;
    for (std::size_t size = 0; size <= sample.arguments.size() + 1; ++size) {
        if (size == sample.arguments.size()) continue;
        Bytes arguments = sample.arguments;
        arguments.resize(size, std::byte{1});
        if (sample.opcode == FUSE_IOCTL && size > sample.arguments.size()) continue;  // may carry data
        const auto request = rig.run(rig.client.build(sample.opcode, 5, arguments), room());
        EXPECT_EQ(request->header().error, -EINVAL) << sample.title << " with " << size << " bytes of arguments";
    }
    EXPECT_TRUE(rig.file_system.calls.empty()) << rig.file_system.last();
}

TEST_P(EveryOperation, WhoseHeaderLiesAboutItsLengthIsEinval) {
    Rig rig;
    for (const std::int64_t difference : {-1, 1, 8, -8, 1 << 20, -40, -1000}) {
        Bytes bytes = rig.client.build(sample.opcode, 5, sample.arguments);
        const auto length = static_cast<std::uint32_t>(static_cast<std::int64_t>(bytes.size()) + difference);
        std::memcpy(bytes.data(), &length, sizeof(length));
        EXPECT_EQ(rig.run(bytes, room())->header().error, -EINVAL);
    }
    EXPECT_TRUE(rig.file_system.calls.empty());
}

TEST_P(EveryOperation, WhoseReplyDoesNotFitIsRefusedBeforeItDoesAnything) {
    if (sample.reply == 0 && sample.room == 0) return;
    for (std::size_t out = 0; out < room(); ++out) {
        if (sample.opcode == FUSE_READLINK && out > sizeof(fuse_out_header)) break;  // is cut instead
        Rig rig;
        const auto request = rig.run(rig.client.build(sample.opcode, 5, sample.arguments), out);
        EXPECT_TRUE(rig.file_system.calls.empty()) << sample.title << " with room for " << out;
        if (out < sizeof(fuse_out_header)) {
            EXPECT_EQ(request->reply_size(), 0u);
        } else {
            EXPECT_EQ(request->header().error, -EINVAL);
            EXPECT_EQ(request->reply_size(), sizeof(fuse_out_header));
        }
        EXPECT_EQ(rig.session.malformed(), 1u);
    }
}

TEST_P(EveryOperation, OnNodeZeroOrBeforeInitIsRefused) {
    Rig rig;
    EXPECT_EQ(rig.run(rig.client.build(sample.opcode, 0, sample.arguments), room())->header().error, -EINVAL);
    RecordingFileSystem fresh;
    Session session(fresh);
    Client client(session);
    RawRequest request(client.build(sample.opcode, 5, sample.arguments), room());
    session.handle(request);
    EXPECT_EQ(request.header().error, -EIO);
    EXPECT_TRUE(rig.file_system.calls.empty());
    EXPECT_TRUE(fresh.calls.empty());
}

TEST_P(EveryOperation, ThatTakesANameTakesNoBadOne) {
    if (!sample.names) return;
    // All samples that say so end with their name and its NUL.
    Bytes head = sample.arguments;
    head.pop_back();
    while (!head.empty() && head.back() != std::byte{0} && std::isalpha(static_cast<int>(head.back()))) head.pop_back();
    const auto with = [&](std::string_view name, bool terminator = true) {
        Bytes arguments = head;
        for (const char c : name) arguments.push_back(static_cast<std::byte>(c));
        if (terminator) arguments.push_back(std::byte{0});
        return arguments;
    };
    Rig rig;
    const auto error_of = [&](const Bytes& arguments) {
        return -rig.run(rig.client.build(sample.opcode, 5, arguments), room())->header().error;
    };
    for (const char* bad : {"", ".", "..", "/", "a/b", "../x", "x/", "/etc"}) {
        EXPECT_EQ(error_of(with(bad)), EINVAL) << sample.title << " of '" << bad << "'";
    }
    EXPECT_EQ(error_of(with("name", false)), EINVAL) << "no terminator";
    EXPECT_EQ(error_of(with(std::string_view("a\0b", 3))), EINVAL) << "two strings where there is one";
    EXPECT_EQ(error_of(with(std::string(256, 'n'))), ENAMETOOLONG);
    EXPECT_EQ(error_of(with(std::string(5000, 'n'))), ENAMETOOLONG);
    EXPECT_TRUE(rig.file_system.calls.empty()) << rig.file_system.last();
    EXPECT_EQ(error_of(with(std::string(255, 'n'))), 0);
    EXPECT_EQ(error_of(with("...")), 0);
}

INSTANTIATE_TEST_SUITE_P(Fuse, EveryOperation, testing::Range<std::size_t>(0, samples().size()), [](const auto& param) {
    std::string name = samples()[param.param].title;
    std::ranges::replace(name, ' ', '_');
    return name;
});

TEST(FuseSession, TheSamplesCoverEveryOperation) {
    std::set<std::uint32_t> covered{FUSE_INIT,      FUSE_DESTROY, FUSE_FORGET, FUSE_BATCH_FORGET,
                                    FUSE_INTERRUPT, FUSE_SETLKW,  FUSE_POLL};
    for (const Sample& sample : samples()) covered.insert(sample.opcode);
    for (std::uint32_t opcode = 0; opcode < fuse::abi::kOpcodes; ++opcode) {
        EXPECT_EQ(covered.contains(opcode), fuse::operation_name(opcode) != nullptr) << opcode;
    }
}

TEST(FuseSession, KnownOperationsThatNobodyServesAreNotMalformed) {
    Rig rig;
    EXPECT_EQ(rig.client.call_with(FUSE_POLL, 5, fuse_poll_in{}).error, ENOSYS);
    EXPECT_EQ(rig.session.malformed(), 0u);
    ASSERT_NE(rig.session.counters(FUSE_POLL), nullptr);
}

TEST(FuseSession, UnknownOperationsAreEnosys) {
    Rig rig;
    std::uint64_t unknown = 0;
    for (const std::uint32_t opcode : {0u, 7u, 19u, 41u, 48u, 49u, 54u, 4096u, 0xffffffffu}) {
        EXPECT_EQ(rig.client.call(opcode, 5, {}).error, ENOSYS) << opcode;
        EXPECT_EQ(rig.session.malformed(), ++unknown);
    }
}

TEST(FuseSession, InitAgreesOnlyOnWhatWasOffered) {
    for (int bit = 0; bit < 64; ++bit) {
        RecordingFileSystem file_system;
        Session session(file_system);
        Client client(session);
        const std::uint64_t flag = std::uint64_t{1} << bit;
        const auto reply = client.init(flag);
        ASSERT_EQ(reply.error, 0);
        ASSERT_EQ(reply.data.size(), sizeof(fuse::abi::InitOut));
        const auto out = reply.as<fuse::abi::InitOut>();
        // Without INIT_EXT the upper half was not offered either.
        const std::uint64_t agreed = out.flags | (std::uint64_t{out.flags2} << 32);
        EXPECT_EQ(agreed & flag, 0u) << "flag " << bit;
        if (flag == FUSE_INIT_EXT) {
            EXPECT_EQ(out.flags2, 0u);
        }
        EXPECT_EQ(out.major, 7u);
        EXPECT_LE(out.max_readahead, 1u << 20);
        EXPECT_EQ(out.max_write, flag == FUSE_MAX_PAGES ? 128u << 10 : 1u << 20);
        if (flag != FUSE_MAX_PAGES) {
            EXPECT_EQ(out.max_pages, 256);
        }
    }
}

TEST(FuseSession, InitDefaultsSuitARemoteTenant) {
    Rig rig;
    const auto& connection = rig.session.connection();
    for (const std::uint64_t flag :
         {std::uint64_t{FUSE_PARALLEL_DIROPS}, std::uint64_t{FUSE_DO_READDIRPLUS}, std::uint64_t{FUSE_AUTO_INVAL_DATA},
          std::uint64_t{FUSE_HANDLE_KILLPRIV_V2}, std::uint64_t{FUSE_POSIX_ACL}, std::uint64_t{FUSE_ASYNC_DIO}})
        EXPECT_TRUE(connection.has(flag)) << flag;
    EXPECT_FALSE(connection.has(FUSE_WRITEBACK_CACHE));
    EXPECT_TRUE(Rig({.writeback_cache = true}).session.connection().has(FUSE_WRITEBACK_CACHE));
    EXPECT_EQ(connection.max_write, 1u << 20);
    EXPECT_EQ(connection.minor, 41u);
}

TEST(FuseSession, PassthroughNeedsBothSidesAndAHal) {
    class Files final : public fuse::BackingFiles {
        std::int32_t open(int) override { return -EPERM; }
        void close(std::int32_t) override {}
    } files;
    const auto agreed = [&](bool hal, fuse::SessionOptions options, std::uint64_t without = 0, bool wish = true) {
        RecordingFileSystem file_system;
        file_system.wish.passthrough = wish;
        Session session(file_system, options);
        if (hal) session.offer(files);
        Client client(session);
        const auto out = client.init(without).as<fuse::abi::InitOut>();
        const bool flag = session.connection().has(fuse::abi::kPassthrough);
        EXPECT_EQ(out.max_stack_depth, flag ? 1u : 0u);
        EXPECT_EQ(session.connection().backing_files, flag ? &files : nullptr);
        return flag;
    };
    EXPECT_TRUE(agreed(true, {}));
    EXPECT_FALSE(agreed(false, {}));
    EXPECT_FALSE(agreed(true, {.passthrough = false}));
    EXPECT_FALSE(agreed(true, {.writeback_cache = true}));
    EXPECT_FALSE(agreed(true, {}, fuse::abi::kPassthrough));
    EXPECT_FALSE(agreed(true, {}, 0, false));
}

TEST(FuseSession, InitOfOtherVersions) {
    RecordingFileSystem file_system;
    Session session(file_system);
    Client client(session);
    EXPECT_EQ(client.init(0, 27).error, EPROTO);
    const auto version = [&](std::uint32_t major, std::uint32_t minor) {
        Bytes arguments;
        append(arguments, major);
        append(arguments, minor);
        return client.call(FUSE_INIT, 0, arguments);
    };
    EXPECT_EQ(version(6, 40).error, EPROTO);
    EXPECT_EQ(version(7, 40).error, EINVAL) << "too short for 7.x";
    const auto newer = version(8, 0);
    EXPECT_EQ(newer.error, 0);
    EXPECT_EQ(newer.as<fuse::abi::InitOut>().major, 7u);
    EXPECT_TRUE(file_system.calls.empty()) << "nothing is agreed yet";
    EXPECT_EQ(client.init(0, 99).error, 0);
    EXPECT_EQ(session.connection().minor, fuse::abi::kMinor);
    EXPECT_EQ(client.init().error, EIO) << "twice";
}

TEST(FuseSession, AfterDestroyAClientMayStartAgain) {
    Rig rig;
    EXPECT_EQ(rig.client.call(FUSE_DESTROY, 0, {}).error, 0);
    EXPECT_EQ(rig.file_system.last(), "destroy");
    EXPECT_EQ(rig.client.getattr(1).error, EIO);
    EXPECT_EQ(rig.client.init().error, 0);
    EXPECT_EQ(rig.client.getattr(1).error, 0);
    rig.session.disconnect();
    EXPECT_EQ(rig.file_system.last(), "destroy");
    EXPECT_EQ(rig.client.getattr(1).error, EIO);
}

TEST(FuseSession, ForgetsHaveNoReply) {
    Rig rig;
    rig.client.forget(7, 3);
    EXPECT_EQ(rig.file_system.last(), "forget 7 3");
    Bytes arguments;
    append(arguments, fuse_batch_forget_in{.count = 3, .dummy = 0});
    for (const std::uint64_t node : {8, 0, 9}) append(arguments, fuse_forget_one{.nodeid = node, .nlookup = 2});
    const auto request = rig.client.start(FUSE_BATCH_FORGET, 0, arguments, 0);
    EXPECT_EQ(request->reply_size(), 0u);
    EXPECT_EQ(rig.file_system.calls, (std::vector<std::string>{"forget 7 3", "forget 8 2", "forget 9 2"}));
    for (const std::uint32_t count : {2u, 4u, 0u, 0xffffffffu}) {  // says another number than it carries
        std::memcpy(arguments.data(), &count, sizeof(count));
        EXPECT_EQ(rig.client.start(FUSE_BATCH_FORGET, 0, arguments, 64)->reply_size(), 0u);
    }
    EXPECT_EQ(rig.file_system.calls.size(), 3u);
    EXPECT_EQ(rig.session.malformed(), 4u);
}

TEST(FuseSession, AnInterruptFindsTheLockThatWaitsEvenIfItComesFirst) {
    Rig rig;
    Bytes arguments;
    append(arguments, Client::lock(9, 4, 1, 2, F_WRLCK));
    auto waits = rig.client.start(FUSE_SETLKW, 5, arguments);
    EXPECT_EQ(waits->ended(), 0);
    rig.client.interrupt(rig.client.last_unique);
    EXPECT_EQ(waits->ended(), 1);
    EXPECT_EQ(waits->header().error, -EINTR);

    const Bytes late = rig.client.build(FUSE_SETLKW, 5, arguments);
    rig.client.interrupt(rig.client.last_unique);
    RawRequest request(late, 256);
    rig.session.handle(request);
    EXPECT_EQ(request.ended(), 1);
    EXPECT_EQ(request.header().error, -EINTR);
}

TEST(FuseSession, LocksThatWereNotAgreedOnAreRefused) {
    RecordingFileSystem file_system;
    file_system.wish.flock = false;
    Session session(file_system);
    Client client(session);
    client.init();
    EXPECT_EQ(client.setlk(5, 9, 4, 0, 1, F_WRLCK).error, 0);
    EXPECT_EQ(client.setlk(5, 9, 4, 0, 1, F_WRLCK, true).error, ENOSYS);
    EXPECT_EQ(client.setlk(5, 9, 4, 5, 1, F_WRLCK).error, EINVAL) << "ends before it starts";
    EXPECT_EQ(client.setlk(5, 9, 4, 0, 1, 77).error, EINVAL);
}

TEST(FuseSession, ReadOnlyAnswersErofs) {
    Rig rig({.read_only = true});
    for (const Sample& sample : samples()) {
        static const std::set<std::string> kReads = {"lookup",
                                                     "getattr",
                                                     "getattr of a handle",
                                                     "statx",
                                                     "readlink",
                                                     "read",
                                                     "statfs",
                                                     "release",
                                                     "releasedir",
                                                     "fsync",
                                                     "fsyncdir",
                                                     "getxattr",
                                                     "getxattr size",
                                                     "getxattr too small",
                                                     "listxattr",
                                                     "flush",
                                                     "opendir",
                                                     "readdir",
                                                     "readdirplus",
                                                     "getlk",
                                                     "setlk",
                                                     "flock",
                                                     "access",
                                                     "bmap",
                                                     "lseek",
                                                     "syncfs",
                                                     "ioctl"};
        const auto error =
            rig.client.call(sample.opcode, 5, sample.arguments, std::max(sample.room, sample.reply)).error;
        EXPECT_EQ(error, kReads.contains(sample.title) ? sample.error : EROFS) << sample.title;
    }
    EXPECT_EQ(rig.client.open(5, O_RDONLY).error, 0);
    for (const std::uint32_t flags : {O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC})
        EXPECT_EQ(rig.client.open(5, flags).error, EROFS);
}

TEST(FuseSession, OffsetsAndSizesStayWithinAFile) {
    Rig rig;
    const std::uint64_t most = INT64_MAX;
    EXPECT_EQ(rig.client.read(5, 9, most - 10, 10).error, 0);
    EXPECT_EQ(rig.client.read(5, 9, most - 9, 10).error, EINVAL);
    EXPECT_EQ(rig.client.read(5, 9, UINT64_MAX, 10).error, EINVAL);
    EXPECT_EQ(rig.client.write(5, 9, most - 5, "hello").error, 0);
    EXPECT_EQ(rig.client.write(5, 9, most - 4, "hello").error, EINVAL);
    const Bytes large((1 << 20) + 1);
    EXPECT_EQ(rig.client.write(5, 9, 0, std::span(large).first(1 << 20)).error, 0);
    EXPECT_EQ(rig.client.write(5, 9, 0, large).error, EINVAL) << "more than INIT agreed on";
}

TEST(FuseSession, TheCallerAndTheGroupThatMatters) {
    Rig rig;
    rig.client.uid = 1000;
    rig.client.gid = 100;
    rig.client.pid = 77;
    rig.client.lookup(1, "x");
    EXPECT_EQ(rig.file_system.callers.back().uid, 1000u);
    EXPECT_EQ(rig.file_system.callers.back().gid, 100u);
    EXPECT_EQ(rig.file_system.callers.back().pid, 77u);
    EXPECT_FALSE(rig.file_system.callers.back().has_supplementary_gid);

    const auto with_extension = [&](std::uint32_t size, std::uint32_t groups) {
        Bytes arguments;
        append(arguments, fuse_mkdir_in{.mode = 0755, .umask = 0});
        append_string(arguments, "dir");
        const std::size_t before = arguments.size();
        append(arguments, fuse_ext_header{.size = size, .type = fuse::abi::kExtGroups});
        append(arguments, groups);
        append(arguments, std::uint32_t{555});
        Bytes bytes = rig.client.build(FUSE_MKDIR, 5, arguments);
        const auto words = static_cast<std::uint16_t>((arguments.size() - before) / 8);
        std::memcpy(bytes.data() + offsetof(fuse_in_header, total_extlen), &words, sizeof(words));
        return rig.run(bytes, 256)->header().error;
    };
    EXPECT_EQ(with_extension(16, 1), 0);
    EXPECT_TRUE(rig.file_system.callers.back().has_supplementary_gid);
    EXPECT_EQ(rig.file_system.callers.back().supplementary_gid, 555u);
    // Extensions that lie are left alone.
    for (const std::uint32_t size : {0u, 4u, 8u, 17u, 0xffffffffu}) {
        EXPECT_EQ(with_extension(size, 1), 0);
        EXPECT_FALSE(rig.file_system.callers.back().has_supplementary_gid) << size;
    }
    EXPECT_EQ(with_extension(16, 0), 0);
    EXPECT_FALSE(rig.file_system.callers.back().has_supplementary_gid);
}

TEST(FuseSession, ListingsAreCutAtWholeEntries) {
    for (const bool plus : {false, true}) {
        const std::size_t head = plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
        for (std::uint32_t size = 1; size < 900; ++size) {
            Rig rig;
            const auto reply = rig.client.readdir(5, 9, 0, size, plus);
            ASSERT_EQ(reply.error, 0);
            EXPECT_LE(reply.data.size(), size);
            const auto entries = Client::entries_of(reply, plus);
            std::size_t expected = 0, used = 0;
            for (; expected < 5; ++expected) {
                used += FUSE_DIRENT_ALIGN(head + 4 + expected);
                if (used > size) break;
            }
            ASSERT_EQ(entries.size(), expected) << size;
            for (std::size_t i = 0; i < expected; ++i) {
                EXPECT_EQ(entries[i].name, "name" + std::string(i, 'x'));
                EXPECT_EQ(entries[i].next, i + 1);
                EXPECT_EQ(entries[i].node, plus ? 42u : 0u);
            }
        }
    }
}

TEST(FuseSession, ErrnosThatTheKernelWouldNotTakeBecomeEio) {
    struct Odd final : fuse::FileSystem {
        int error = 0;
        void getattr(fuse::Request& request, fuse::NodeId, const fuse::Handle*) override { request.reply_error(error); }
    } file_system;
    Session session(file_system);
    Client client(session);
    client.init();
    for (const int error : {0, -1, -EINVAL, 512, 100000}) {
        file_system.error = error;
        EXPECT_EQ(client.getattr(1).error, EIO);
    }
    file_system.error = 511;
    EXPECT_EQ(client.getattr(1).error, 511);
}

TEST(FuseSession, GarbageEndsOnceAndStaysInsideItsLists) {
    const char* seeds_text = std::getenv("FARHAUL_SEEDS");
    const int seeds = seeds_text != nullptr ? std::atoi(seeds_text) : 3000;
    const auto all = samples();
    for (int seed = 0; seed < seeds; ++seed) {
        std::mt19937_64 random(static_cast<std::uint64_t>(seed));
        const auto below = [&](std::uint64_t n) { return random() % n; };
        Rig rig;
        for (int i = 0; i < 20; ++i) {
            const Sample& sample = all[below(all.size())];
            Bytes bytes = rig.client.build(sample.opcode, below(4), sample.arguments);
            if (below(3) == 0) bytes.resize(below(bytes.size() + 64));
            for (auto flips = below(4); flips > 0 && !bytes.empty(); --flips)
                bytes[below(bytes.size())] = static_cast<std::byte>(random());
            if (bytes.size() >= 4 && below(2) == 0) {  // past the first check
                const auto length = static_cast<std::uint32_t>(bytes.size());
                std::memcpy(bytes.data(), &length, sizeof(length));
            }
            RawRequest request(bytes, below(200), below(50));
            rig.session.handle(request);
            if (rig.file_system.waiting != nullptr) std::exchange(rig.file_system.waiting, nullptr)->reply_ok();
            ASSERT_EQ(request.ended(), 1) << "seed " << seed;
            if (request.reply_size() != 0) {
                ASSERT_EQ(request.header().len, request.reply_size()) << "seed " << seed;
            }
            if (!rig.session.initialized()) rig.client.init();
        }
    }
}

TEST(FuseCounters, CountRequestsErrorsBytesAndLatencies) {
    RecordingFileSystem file_system;
    static std::uint64_t now = 0;
    Session session(file_system, {}, [] { return now += 1000; });
    Client client(session);
    client.init();
    client.read(5, 9, 0, 100);
    client.read(5, 9, 0, 50);
    client.write(5, 9, 0, "hello");
    client.getxattr(5, "user.a", 2);
    EXPECT_EQ(session.counters(FUSE_READ)->requests, 2u);
    EXPECT_EQ(session.counters(FUSE_READ)->bytes_out, 150u);
    EXPECT_EQ(session.counters(FUSE_WRITE)->bytes_in, 5u);
    EXPECT_EQ(session.counters(FUSE_GETXATTR)->errors, 1u);
    EXPECT_EQ(session.counters(FUSE_MKDIR), nullptr);
    EXPECT_EQ(session.counters(FUSE_READ)->latency.count(), 2u);
    EXPECT_NEAR(static_cast<double>(session.counters(FUSE_READ)->latency.quantile(0.5)), 1000, 125);
}

TEST(FuseCounters, QuantilesAreRightWithinAnEighth) {
    for (const std::uint64_t scale : {1ull, 10ull, 1000ull, 1'000'000ull}) {
        fuse::LatencyHistogram histogram;
        EXPECT_EQ(histogram.quantile(0.5), 0u);
        for (std::uint64_t i = 1; i <= 1000; ++i) histogram.record(i * scale);
        for (const double fraction : {0.01, 0.5, 0.99, 0.999, 1.0}) {
            const double exact = fraction * 1000 * static_cast<double>(scale);
            EXPECT_GE(static_cast<double>(histogram.quantile(fraction)), exact - 1);
            EXPECT_LE(static_cast<double>(histogram.quantile(fraction)), exact * 1.126 + 1);
        }
    }
    fuse::LatencyHistogram histogram;
    histogram.record(UINT64_MAX);
    EXPECT_GT(histogram.quantile(1), 200'000'000'000u);
}

}  // namespace
}  // namespace farhaul::fuse_test
