// The transfer protocol and both disk sides, without a network: what the source emits goes straight into the sink.
#include <map>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iterator>

#include <gtest/gtest.h>

#include "app/transfer/file_sink.hpp"
#include "app/transfer/file_source.hpp"
#include "app/transfer/part_files.hpp"
#include "app/transfer/protocol.hpp"
#include "base/random.hpp"
#include "scratch_folder.hpp"

namespace fs = std::filesystem;
using namespace farhaul;
using namespace farhaul::app::transfer;

namespace {

using Folder = app::ScratchFolder;
using app::random_text;
using app::read_file;
using app::tree;
using app::write_file;

struct Warnings {
    std::vector<std::string> texts;
    TreeWalker::Warn callback() {
        return [this](const std::string& text, bool) { texts.push_back(text); };
    }
};

/// Pumps blocks of `block_bytes` from source to sink; returns the sink for its results.
std::unique_ptr<FileSink> transfer(FileSource& source, const SinkOptions& options,
                                   std::size_t block_bytes = kMinBlockBytes) {
    auto sink = FileSink::open(options);
    EXPECT_TRUE(sink) << (sink ? "" : sink.error().message);
    std::vector<std::byte> block(block_bytes);
    for (;;) {
        const std::size_t used = source.fill(block);
        if (used == 0 || !(*sink)->consume(std::span(block).first(used))) return std::move(*sink);
    }
}

using Bytes = std::vector<std::byte>;
template <typename... Records>
Bytes block_of(const Records&... records) {
    Bytes block(1 << 16);
    BlockWriter writer(block);
    const auto add = [&](const auto& record) {
        if constexpr (std::is_same_v<std::decay_t<decltype(record)>, DataRecord>) {
            auto room = writer.data_room(record.bytes.size());
            ASSERT_EQ(room.size(), record.bytes.size());
            std::copy(record.bytes.begin(), record.bytes.end(), room.begin());
            writer.commit_data(room.size());
        } else {
            ASSERT_TRUE(writer.add(record));
        }
    };
    (add(records), ...);
    block.resize(writer.size());
    return block;
}

Digest digest_of(std::string_view text) {
    DigestStream stream;
    stream.update(std::as_bytes(std::span(text)));
    return *stream.finish();
}
DataRecord data_of(std::string_view text) { return {std::as_bytes(std::span(text))}; }

}  // namespace

TEST(TransferProtocol, HandshakeRoundTrip) {
    Offer offer;
    offer.scheme = reliable::Scheme::kGoBackN;
    offer.payload_bytes = 1448;
    offer.blocks = 77;
    offer.total_bytes = 1ull << 40;
    auto back = decode_offer(encode(offer));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->scheme, offer.scheme);
    EXPECT_EQ(back->payload_bytes, 1448u);
    EXPECT_EQ(back->blocks, 77u);
    EXPECT_EQ(back->total_bytes, 1ull << 40);
    auto answer = decode_answer(encode(Answer{.accepted = false, .blocks = 0, .reason = "no\x1b[2Jroom"}));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->reason, "no?[2Jroom") << "control characters of the peer must not reach the terminal";
}

TEST(TransferProtocol, HandshakeRefusesEveryTruncationAndBadFields) {
    const Bytes good = encode(Offer{});
    for (std::size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(decode_offer(std::span(good).first(n))) << n;
    Offer bad;
    bad.blocks = 0;
    EXPECT_FALSE(decode_offer(encode(bad)));
    bad = Offer{};
    bad.block_bytes = kMaxBlockBytes + 1;
    EXPECT_FALSE(decode_offer(encode(bad)));
    Bytes scheme = good;
    scheme[6] = std::byte{99};
    EXPECT_FALSE(decode_offer(scheme));
    const Bytes answer = encode(Answer{.accepted = true, .blocks = 4, .reason = {}});
    for (std::size_t n = 0; n < answer.size(); ++n) EXPECT_FALSE(decode_answer(std::span(answer).first(n))) << n;
}

TEST(TransferProtocol, RecordsRoundTrip) {
    const Bytes block =
        block_of(FolderRecord{"d", {0755, -5}}, FileRecord{7, 3, "name", {0640, 1234567890123456789}}, data_of("abc"),
                 FileEndRecord{digest_of("abc")}, FileAbandonedRecord{"why"}, FolderEndRecord{}, EndRecord{1, 3},
                 FileFailedRecord{7, Outcome::kNoSpace, "full"}, FinishRecord{Outcome::kIntegrity, 1, 2, 3, "m"});
    BlockReader reader(block);
    std::vector<Record> records;
    for (;;) {
        auto record = reader.next();
        ASSERT_TRUE(record) << record.error().message;
        if (!*record) break;
        records.push_back(**record);
    }
    ASSERT_EQ(records.size(), 9u);
    EXPECT_EQ(std::get<FolderRecord>(records[0]).attributes.modified_ns, -5);
    EXPECT_EQ(std::get<FileRecord>(records[1]).name, "name");
    EXPECT_EQ(std::get<FileRecord>(records[1]).size, 3u);
    EXPECT_EQ(std::get<FileEndRecord>(records[3]).digest, digest_of("abc"));
    EXPECT_EQ(std::get<FileFailedRecord>(records[7]).outcome, Outcome::kNoSpace);
    EXPECT_EQ(std::get<FinishRecord>(records[8]).files_failed, 3u);
}

TEST(TransferProtocol, SetuidBitsDoNotSurvive) {
    const Bytes block = block_of(FileRecord{0, 0, "f", {06777, 0}});
    EXPECT_EQ(std::get<FileRecord>(**BlockReader(block).next()).attributes.mode, 0777u);
}

TEST(TransferProtocol, NoByteStringBreaksTheReader) {
    Random random(1);
    const Bytes good = block_of(FolderRecord{"d", {}}, FileRecord{0, 3, "name", {}}, data_of("abc"), FileEndRecord{},
                                EndRecord{1, 3}, FinishRecord{});
    std::size_t refused = 0;
    for (int round = 0; round < 20'000; ++round) {
        Bytes bytes = good;
        bytes.resize(random() % (good.size() + 1));
        for (std::size_t flips = random() % 4; flips > 0 && !bytes.empty(); --flips)
            bytes[random() % bytes.size()] = static_cast<std::byte>(random());
        BlockReader reader(bytes);
        for (;;) {
            auto record = reader.next();
            if (!record) {
                ++refused;
                break;
            }
            if (!*record) break;
            if (const auto* d = std::get_if<DataRecord>(&**record)) {
                EXPECT_GE(d->bytes.data(), bytes.data());
                EXPECT_LE(d->bytes.data() + d->bytes.size(), bytes.data() + bytes.size());
            }
        }
    }
    EXPECT_GT(refused, 1000u);
}

TEST(TransferProtocol, Names) {
    for (const char* good : {"a", "..a", "a..", "...", ".hidden", "ü", "with space", "-rf"})
        EXPECT_TRUE(check_name(good)) << good;
    for (const char* bad : {"", ".", "..", "/", "/etc/passwd", "a/b", "../x", "a/", "./a"})
        EXPECT_FALSE(check_name(bad)) << bad;
    EXPECT_FALSE(check_name(std::string_view("a\0b", 3)));
    EXPECT_TRUE(check_name(std::string(255, 'x')));
    EXPECT_FALSE(check_name(std::string(256, 'x')));
    EXPECT_EQ(printable("a\n\x1b\x7f\xc2\x9b b"), "a????? b");
}

TEST(TransferDisk, TreeArrivesWithModesTimesAndEmptyFolders) {
    Folder from, to;
    fs::create_directories(from / "top/sub/deeper");
    fs::create_directories(from / "top/empty");
    write_file(from / "top/a", "hello");
    write_file(from / "top/nothing", "");
    write_file(from / "top/sub/large", random_text(300'000, 1));
    for (int i = 0; i < 500; ++i)
        write_file(from / ("top/sub/deeper/small" + std::to_string(i)), random_text(static_cast<std::size_t>(i), 7));
    ASSERT_EQ(::chmod((from / "top/a").c_str(), 0741), 0);
    ASSERT_EQ(::chmod((from / "top/sub").c_str(), 0500), 0);
    const timespec times[2] = {{1, 2}, {1'000'000'000, 123456789}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (from / "top/a").c_str(), times, 0), 0);
    ASSERT_EQ(::utimensat(AT_FDCWD, (from / "top/sub").c_str(), times, 0), 0);
    Warnings warnings;
    auto roots = walk_roots({(from / "top").string() + "/"});
    ASSERT_TRUE(roots);
    EXPECT_EQ(count_tree(*roots).files, 503u);
    for (const std::size_t block_bytes : {std::size_t{kMinBlockBytes}, std::size_t{1} << 20}) {
        Folder target;
        FileSource source(*roots, warnings.callback());
        auto sink = transfer(source, {.folder = target.string(), .sync = block_bytes != kMinBlockBytes}, block_bytes);
        EXPECT_TRUE(sink->ended());
        EXPECT_EQ(sink->outcome(), Outcome::kOk) << sink->message();
        EXPECT_EQ(sink->files_stored(), 503u);
        EXPECT_EQ(source.sent().files, 503u);
        EXPECT_EQ(tree(from / "top"), tree(target / "top"));
        struct stat status{};
        ASSERT_EQ(::stat((target / "top/a").c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 07777u, 0741u);
        EXPECT_EQ(status.st_mtim.tv_sec, 1'000'000'000);
        EXPECT_EQ(status.st_mtim.tv_nsec, 123456789);
        ASSERT_EQ(::stat((target / "top/sub").c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 07777u, 0500u);
        EXPECT_EQ(status.st_mtim.tv_sec, 1'000'000'000);
        ::chmod((target / "top/sub").c_str(), 0700);
    }
    ::chmod((from / "top/sub").c_str(), 0700);
    EXPECT_TRUE(warnings.texts.empty());
}

TEST(TransferDisk, LinksAndSpecialFilesAreLeftOutWithAWarning) {
    Folder from, to;
    fs::create_directories(from / "t/in");
    write_file(from / "secret", "outside");
    fs::create_symlink("../../secret", from / "t/in/link");
    fs::create_directory_symlink("..", from / "t/loop");
    ASSERT_EQ(::mkfifo((from / "t/pipe").c_str(), 0600), 0);
    Warnings warnings;
    FileSource source(*walk_roots({(from / "t").string()}), warnings.callback());
    auto sink = transfer(source, {.folder = to.string()});
    EXPECT_EQ(sink->outcome(), Outcome::kOk);
    EXPECT_EQ(warnings.texts.size(), 3u);
    EXPECT_EQ(source.skipped(), 3u);
    EXPECT_EQ(source.failed(), 0u);
    EXPECT_EQ(tree(fs::path(to.string())), (std::map<std::string, std::string>{{"t", "/"}, {"t/in", "/"}}));
}

TEST(TransferDisk, RootsThatCannotBeSent) {
    Folder from;
    EXPECT_FALSE(walk_roots({(from / "missing").string()}));
    EXPECT_FALSE(walk_roots({"/"}));
    EXPECT_FALSE(walk_roots({"/dev/null"}));
    fs::create_directories(from / "x/same");
    fs::create_directories(from / "y/same");
    EXPECT_FALSE(walk_roots({(from / "x/same").string(), (from / "y/same").string()}));
    auto dot = walk_roots({(from / "x/same/..").string()});
    ASSERT_TRUE(dot);
    EXPECT_EQ((*dot)[0].name, "x");
}

TEST(TransferDisk, ExistingFilesAreReplacedOrKept) {
    Folder from, to;
    write_file(from / "f", "new");
    write_file(to / "f", "old");
    {
        FileSource source(*walk_roots({(from / "f").string()}), {});
        auto sink = transfer(source, {.folder = to.string(), .replace = false});
        EXPECT_EQ(sink->outcome(), Outcome::kExists);
        EXPECT_EQ(read_file(to / "f"), "old");
    }
    // A symlink that has the file's name is replaced, not written through.
    write_file(to / "elsewhere", "untouched");
    fs::remove(to / "f");
    fs::create_symlink("elsewhere", to / "f");
    FileSource source(*walk_roots({(from / "f").string()}), {});
    auto sink = transfer(source, {.folder = to.string()});
    EXPECT_EQ(sink->outcome(), Outcome::kOk);
    EXPECT_EQ(sink->last_digest(), digest_of("new"));
    EXPECT_EQ(tree(fs::path(to.string())),
              (std::map<std::string, std::string>{{"f", "new"}, {"elsewhere", "untouched"}}));
}

TEST(TransferDisk, HostileNamesAreRefusedAndTheRestArrives) {
    for (const char* name : {"../escape", "/tmp/escape", "..", ".", "", "a/b"}) {
        Folder to;
        fs::create_directory(to / "out");
        auto sink = *FileSink::open({.folder = (to / "out").string()});
        EXPECT_FALSE(sink->consume(block_of(
            FileRecord{0, 3, name, {}}, data_of("bad"), FileEndRecord{digest_of("bad")}, FolderRecord{name, {}},
            FileRecord{1, 3, "inside", {}}, data_of("bad"), FileEndRecord{digest_of("bad")}, FolderEndRecord{},
            FileRecord{2, 4, "good", {}}, data_of("good"), FileEndRecord{digest_of("good")}, EndRecord{3, 10})));
        EXPECT_EQ(sink->outcome(), Outcome::kNameRefused) << name;
        EXPECT_EQ(sink->files_failed(), 3u) << "the file, the folder, and what is in the folder";
        EXPECT_EQ(tree(fs::path(to.string())), (std::map<std::string, std::string>{{"out", "/"}, {"out/good", "good"}}))
            << name;
    }
}

TEST(TransferDisk, PlantedSymlinkIsNotFollowed) {
    Folder to, victim;
    fs::create_directory_symlink(victim.string(), to / "d");
    auto sink = *FileSink::open({.folder = to.string()});
    EXPECT_FALSE(sink->consume(block_of(FolderRecord{"d", {}}, FileRecord{0, 3, "f", {}}, data_of("bad"),
                                        FileEndRecord{digest_of("bad")}, FolderEndRecord{}, EndRecord{1, 3})));
    EXPECT_EQ(sink->outcome(), Outcome::kNameRefused);
    EXPECT_TRUE(tree(fs::path(victim.string())).empty());
}

TEST(TransferDisk, EveryBreachOfOrderEndsTheTransferAndLeavesNothing) {
    const FileRecord file{0, 3, "f", {}};
    const Digest digest = digest_of("abc");
    const std::vector<Bytes> breaches = {
        block_of(data_of("abc")),
        block_of(FileEndRecord{digest}),
        block_of(FileAbandonedRecord{"x"}),
        block_of(FolderEndRecord{}),
        block_of(file, file),
        block_of(file, FolderRecord{"d", {}}),
        block_of(file, FolderEndRecord{}),
        block_of(file, EndRecord{0, 0}),
        block_of(file, data_of("abcd")),
        block_of(file, data_of("ab"), FileEndRecord{digest}),
        block_of(FileRecord{1, 3, "f", {}}),
        block_of(file, data_of("abc"), FileEndRecord{digest}, FileRecord{5, 0, "g", {}}),
        block_of(EndRecord{1, 0}),
        block_of(FolderRecord{"d", {}}, EndRecord{0, 0}),
        block_of(FinishRecord{}),
        block_of(FileFailedRecord{}),
        Bytes(8, std::byte{0xff}),
    };
    for (std::size_t i = 0; i < breaches.size(); ++i) {
        Folder to;
        auto sink = *FileSink::open({.folder = to.string()});
        EXPECT_FALSE(sink->consume(breaches[i])) << i;
        EXPECT_EQ(sink->outcome(), Outcome::kProtocol) << i;
        EXPECT_FALSE(sink->consume(block_of(EndRecord{0, 0}))) << "after the end nothing is taken";
        for (const auto& [path, text] : tree(fs::path(to.string())))
            EXPECT_EQ(path.find(".part"), std::string::npos) << i << " left " << path;
    }
    Folder to;
    auto sink = *FileSink::open({.folder = to.string()});
    for (std::size_t depth = 0; depth < kMaxDepth; ++depth) ASSERT_TRUE(sink->consume(block_of(FolderRecord{"d", {}})));
    EXPECT_FALSE(sink->consume(block_of(FolderRecord{"d", {}})));
}

TEST(TransferDisk, WrongDigestLeavesTheOldFile) {
    Folder to;
    write_file(to / "f", "old");
    auto sink = *FileSink::open({.folder = to.string()});
    EXPECT_FALSE(sink->consume(
        block_of(FileRecord{0, 3, "f", {}}, data_of("abc"), FileEndRecord{digest_of("abd")}, EndRecord{1, 3})));
    EXPECT_EQ(sink->outcome(), Outcome::kIntegrity);
    EXPECT_EQ(tree(fs::path(to.string())), (std::map<std::string, std::string>{{"f", "old"}}));
}

TEST(TransferDisk, UnfinishedTransferKeepsWholeFilesOnly) {
    Folder to;
    {
        auto sink = *FileSink::open({.folder = to.string()});
        EXPECT_TRUE(
            sink->consume(block_of(FileRecord{0, 3, "whole", {}}, data_of("abc"), FileEndRecord{digest_of("abc")},
                                   FileRecord{1, 1000, "half", {}}, data_of("x"))));
        EXPECT_EQ(tree(fs::path(to.string())).size(), 2u) << "two temporary files";
    }
    EXPECT_EQ(tree(fs::path(to.string())), (std::map<std::string, std::string>{{"whole", "abc"}}));
}

TEST(TransferDisk, FileThatChangesSizeIsAbandoned) {
    for (const bool grows : {false, true}) {
        Folder from, to;
        write_file(from / "f", random_text(100'000, 3));
        write_file(from / "g", "other");
        Warnings warnings;
        FileSource source(*walk_roots({(from / "f").string(), (from / "g").string()}), warnings.callback());
        auto sink = *FileSink::open({.folder = to.string()});
        Bytes block(kMinBlockBytes);
        std::size_t used = source.fill(block);
        ASSERT_TRUE(sink->consume(std::span(block).first(used)));
        fs::resize_file(from / "f", grows ? 200'000 : 20'000);
        while ((used = source.fill(block)) > 0) sink->consume(std::span(block).first(used));
        EXPECT_TRUE(sink->ended());
        EXPECT_EQ(sink->outcome(), Outcome::kAbandoned);
        EXPECT_EQ(source.failed(), 1u);
        EXPECT_EQ(warnings.texts.size(), 1u);
        EXPECT_EQ(tree(fs::path(to.string())), (std::map<std::string, std::string>{{"g", "other"}}));
    }
}

TEST(TransferDisk, RestOfARefusedFileIsNotSent) {
    Folder from;
    write_file(from / "f", random_text(10'000'000, 3));
    FileSource source(*walk_roots({(from / "f").string()}), {});
    Bytes block(kMinBlockBytes);
    std::size_t blocks = 1;
    ASSERT_GT(source.fill(block), 0u);
    source.give_up(0);
    while (source.fill(block) > 0) ++blocks;
    EXPECT_EQ(blocks, 2u);
}

TEST(TransferDisk, PartFilesOfKilledReceiversAreRemovedAndNoOthers) {
    EXPECT_TRUE(is_part_name(part_name("x")));
    EXPECT_TRUE(is_part_name(part_name(std::string(255, 'n'))));
    EXPECT_LE(part_name(std::string(255, 'n')).size(), 255u);
    for (const char* other : {"", "x.farhaul-0123abcd.part", ".farhaul-0123abcd.part", ".x.farhaul-0123abc.part",
                              ".x.farhaul-0123abcG.part", ".x.farhaul-0123abcd.par", ".x.part", ".x.farhaul-.part"})
        EXPECT_FALSE(is_part_name(other)) << other;

    Folder to, outside;
    // A receiver that is killed in the middle of two files, one of them in a folder.
    for (const bool inside : {false, true}) {
        const pid_t child = ::fork();
        if (child == 0) {
            auto sink = FileSink::open({.folder = to.string(), .sync = false});
            const FileRecord file{0, 10, "f", {}};
            if (inside) (*sink)->consume(block_of(FolderRecord{"d", {.mode = 0755}}));
            (*sink)->consume(block_of(file, data_of("12345")));
            ::raise(SIGKILL);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        ASSERT_TRUE(WIFSIGNALED(status));
    }
    write_file(to / ".notes.farhaul-zzzzzzzz.part", "mine");
    write_file(to / "f", "old");
    write_file(outside / ".o.farhaul-01234567.part", "beyond a link");
    fs::create_directory_symlink(outside.string(), to / "link");
    fs::create_symlink("f", to / ".l.farhaul-01234567.part");
    ASSERT_EQ(std::distance(fs::recursive_directory_iterator(to.string()), {}), 7) << "two part files among them";

    // And one that is alive.
    auto living = FileSink::open({.folder = to.string(), .sync = false});
    ASSERT_TRUE((*living)->consume(block_of(FileRecord{0, 5, "g", {}}, data_of("1234"))));
    auto sink = FileSink::open({.folder = to.string(), .sync = false});
    EXPECT_EQ((*sink)->remove_stale(), 2u);
    EXPECT_EQ((*sink)->remove_stale(), 0u);
    ASSERT_TRUE((*living)->consume(block_of(data_of("5"), FileEndRecord{digest_of("12345")}, EndRecord{1, 5})) ||
                (*living)->outcome() == Outcome::kOk);
    EXPECT_EQ(read_file(to / "g"), "12345") << "a receiver at work loses nothing";
    EXPECT_EQ(read_file(to / "f"), "old");
    EXPECT_TRUE(fs::exists(to / ".notes.farhaul-zzzzzzzz.part"));
    EXPECT_TRUE(fs::exists(outside / ".o.farhaul-01234567.part"));
    EXPECT_TRUE(fs::is_symlink(to / ".l.farhaul-01234567.part"));
    EXPECT_TRUE(fs::is_empty(to / "d"));
}

TEST(TransferDisk, AMissingFolderComesWithAHint) {
    Folder to;
    const auto sink = FileSink::open({.folder = (to / "no").string()});
    ASSERT_FALSE(sink);
    EXPECT_NE(sink.error().message.find("mkdir"), std::string::npos) << sink.error().message;
}

TEST(TransferDisk, FileSizeLimitIsReported) {
    Folder from, to;
    write_file(from / "f", random_text(200'000, 3));
    const pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{100'000, 100'000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        FileSource source(*walk_roots({(from / "f").string()}), {});
        auto sink = *FileSink::open({.folder = to.string()});
        Bytes block(kMinBlockBytes);
        for (std::size_t used = 0; (used = source.fill(block)) > 0;)
            if (!sink->consume(std::span(block).first(used))) break;
        ::_exit(sink->outcome() == Outcome::kFailed && sink->files_failed() == 1 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(tree(fs::path(to.string())).empty());
}

TEST(TransferDisk, MoreSmallFilesThanMayBeOpen) {
    Folder from, to;
    for (int i = 0; i < 100; ++i) {
        write_file(from / "d" / std::to_string(i), "x");
        fs::create_directories(from / "d" / ("folder" + std::to_string(i)));
    }
    const pid_t child = ::fork();
    if (child == 0) {
        const rlimit limit{40, 40};
        ::setrlimit(RLIMIT_NOFILE, &limit);
        FileSource source(*walk_roots({(from / "d").string()}), {});
        const auto sink = transfer(source, {.folder = to.string()});
        ::_exit(sink->outcome() == Outcome::kOk && sink->files_failed() == 0 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(tree(from / "d"), tree(to / "d"));
}

TEST(TransferDisk, FullDiskEndsTheTransferAndLeavesNothing) {
    Folder from, to;
    write_file(from / "f", random_text(900'000, 3));
    if (::mount("none", to.string().c_str(), "tmpfs", 0, "size=1m") != 0)
        GTEST_SKIP() << "needs root to mount a small file system";
    {
        // One file that is announced too big, then two that fit one by one only.
        auto sink = *FileSink::open({.folder = to.string()});
        EXPECT_FALSE(sink->consume(block_of(FileRecord{0, 1ull << 60, "huge", {}})));
        EXPECT_EQ(sink->outcome(), Outcome::kNoSpace);
        write_file(to / "filler", random_text(400'000, 1));
        FileSource source(*walk_roots({(from / "f").string()}), {});
        auto second = transfer(source, {.folder = to.string()});
        EXPECT_EQ(second->outcome(), Outcome::kNoSpace) << second->message();
        // Announced small enough, then the space is taken by someone else.
        fs::remove(to / "filler");
        auto third = *FileSink::open({.folder = to.string()});
        EXPECT_TRUE(third->consume(block_of(FileRecord{0, 900'000, "f", {}})));
        write_file(to / "filler", random_text(1'000'000, 1));
        const std::string piece(50'000, 'x');
        bool going = true;
        for (int i = 0; i < 18 && going; ++i) going = third->consume(block_of(data_of(piece)));
        EXPECT_FALSE(going);
        EXPECT_EQ(third->outcome(), Outcome::kNoSpace);
        EXPECT_EQ(tree(fs::path(to.string())).size(), 1u) << "only the filler";
    }
    ::umount(to.string().c_str());
}
