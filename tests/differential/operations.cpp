#include "operations.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

namespace farhaul::differential {

namespace {

constexpr std::size_t kMostFiles = 24;

Outcome outcome(long result, std::string detail = {}) {
    return result < 0 ? Outcome{-1, errno, {}} : Outcome{result, 0, std::move(detail)};
}
Outcome done(long result) { return result < 0 ? Outcome{-1, errno, {}} : Outcome{0, 0, {}}; }

std::uint64_t hash(const char* bytes, std::size_t size) {
    std::uint64_t value = 0xcbf29ce484222325ull;
    for (std::size_t i = 0; i < size; ++i) value = (value ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3ull;
    return value;
}

/// Without execution by the group, S_ISGID of a file is a relic that goes when somebody writes who is in none of his
/// groups the file's. A file system behind FUSE does not learn of the other groups: left out.
std::string mode_text(mode_t mode) {
    if (S_ISREG(mode) && (mode & S_IXGRP) == 0) mode &= ~mode_t{S_ISGID};
    return fmt::format("{:o}", mode);
}

}  // namespace

std::string to_string(const Outcome& outcome) {
    if (outcome.error != 0) return fmt::format("{} ({})", strerrorname_np(outcome.error), outcome.error);
    return fmt::format("{} {}", outcome.result, outcome.detail.substr(0, 600));
}

std::string describe_stat(const struct stat& stat) {
    std::string text =
        fmt::format("mode={} nlink={} uid={} gid={}", mode_text(stat.st_mode), stat.st_nlink, stat.st_uid, stat.st_gid);
    if (S_ISREG(stat.st_mode) || S_ISLNK(stat.st_mode)) text += fmt::format(" size={}", stat.st_size);
    if (S_ISCHR(stat.st_mode) || S_ISBLK(stat.st_mode))
        text += fmt::format(" rdev={}:{}", major(stat.st_rdev), minor(stat.st_rdev));
    return text;
}

Process::Process(std::vector<Root> roots, std::string folder, bool verbose, std::string watch)
    : roots_(std::move(roots)), folder_(std::move(folder)), verbose_(verbose), watch_(std::move(watch)) {}

Process::~Process() {
    for (const OpenFile& file : files_)
        for (const int fd : file.fds) ::close(fd);
}

std::string Process::at(std::size_t root, const std::string& path) const {
    std::string full = roots_[root].path;
    if (!folder_.empty()) full += "/" + folder_;
    return full + "/" + path;
}

// Few names, so that they meet.
std::string Process::random_name() {
    const auto draw = random_.below(100);
    if (draw < 88) return std::string(1, static_cast<char>('a' + random_.below(16)));
    if (draw < 92) return std::string(255, 'L');
    if (draw < 93) return std::string(256, 'X');
    if (draw < 96) return "name with space";
    return "\xc3\xa9\n\x01";
}

std::string Process::random_path() {
    std::string path;
    // Half of the time something that existed a moment ago, or a name in it: otherwise most operations would end at
    // ENOENT.
    if (!known_.empty() && random_.below(2) == 0) {
        path = known_[random_.below(known_.size())];
        if (random_.below(3) == 0) path += "/" + random_name();
        if (path.size() < 2000) return path;
        path.clear();
    }
    const auto depth = random_.below(20);
    const std::size_t components = depth < 9 ? 1 : depth < 16 ? 2 : depth < 19 ? 3 : 5;
    for (std::size_t i = 0; i < components; ++i) {
        if (i > 0) path += "/";
        const auto special = random_.below(60);
        path += i > 0 && special == 0 && folder_.empty() ? ".." : special == 1 ? "." : random_name();
    }
    if (random_.below(60) == 0) path += "/";
    return path;
}

void Process::draw() {
    static const std::pair<const char*, unsigned> kKinds[] = {
        {"open", 16},       {"close", 9},     {"pread", 8},       {"pwrite", 9},    {"read", 4},      {"write", 5},
        {"lseek", 3},       {"ftruncate", 3}, {"truncate", 3},    {"fallocate", 4}, {"copy", 3},      {"fsync", 1},
        {"syncfs", 1},      {"fstat", 3},     {"lstat", 4},       {"stat", 3},      {"statx", 2},     {"access", 2},
        {"readlink", 2},    {"symlink", 3},   {"mknod", 2},       {"mkdir", 5},     {"unlink", 4},    {"rmdir", 3},
        {"rename", 6},      {"renameat2", 4}, {"link", 3},        {"linkfd", 1},    {"chmod", 3},     {"fchmod", 2},
        {"chown", 3},       {"fchown", 1},    {"lchown", 1},      {"utimens", 3},   {"futimens", 1},  {"setxattr", 3},
        {"getxattr", 2},    {"listxattr", 2}, {"removexattr", 2}, {"fsetxattr", 1}, {"fgetxattr", 1}, {"setacl", 2},
        {"getdents", 4},    {"flock", 2},     {"setlk", 3},       {"getlk", 2},     {"ofd", 1},       {"mmap", 2},
        {"ioctl", 1},       {"dup", 1},       {"umask", 1},       {"statvfs", 1},   {"preadv", 1},    {"pwritev", 1},
        {"readdirseek", 1},
    };
    static const unsigned kTotal = [] {
        unsigned total = 0;
        for (const auto& kind : kKinds) total += kind.second;
        return total;
    }();
    auto pick = random_.below(kTotal);
    for (const auto& [name, weight] : kKinds) {
        if (pick < weight) {
            kind_ = name;
            break;
        }
        pick -= weight;
    }
    path_ = random_path();
    other_path_ = random_path();
    name_ = random_name();
    static const mode_t kModes[] = {0644,  0600,  0755,  0700,  0666,  0777, 0444, 0,
                                    04755, 02755, 02770, 01777, 06711, 0555, 0222};
    mode_ = kModes[random_.below(3) == 0 ? random_.below(std::size(kModes)) : 4 + random_.below(2)];
    if (!set_id_ && (kind_ == "chmod" || kind_ == "fchmod")) mode_ &= 01777;
    // The very end of the range is only read: tmpfs itself does not find data in its last pages again (SEEK_DATA).
    const bool reads = kind_ == "pread" || kind_ == "preadv";
    const auto far = reads ? random_.below(40) : 2 + random_.below(38);
    offset_ = far == 0   ? random_.below(8ull << 40)
              : far == 1 ? static_cast<std::uint64_t>(INT64_MAX) - random_.below(8192)
              : far == 2 ? random_.below(8ull << 40)
              : far < 7  ? random_.below(4 << 20)
                         : random_.below(40'000);
    offset2_ = random_.below(60'000);
    size_ = random_.below(12) == 0 ? random_.below(400'000) : random_.below(9'000);
    if (random_.below(4) == 0) {
        offset_ &= ~4095ull;
        size_ = (size_ + 4095) & ~4095ull;
    }
    value_ = random_();
    file_ = files_.empty() ? 0 : random_.below(files_.size());
    file2_ = files_.empty() ? 0 : random_.below(files_.size());
    flags_ = 0;
    if (kind_ == "write" || kind_ == "pwrite" || kind_ == "pwritev") {
        payload_.resize(size_);
        Random bytes(value_);
        for (std::size_t i = 0; i < payload_.size(); i += 8) {
            const std::uint64_t word = bytes();
            std::memcpy(payload_.data() + i, &word, std::min<std::size_t>(8, payload_.size() - i));
        }
    }
    if (kind_ == "open") {
        static const int kAccess[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR};
        flags_ = kAccess[random_.below(5)] | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
        const auto maybe = [&](int flag, unsigned percent) {
            if (random_.below(100) < percent) flags_ |= flag;
        };
        maybe(O_CREAT, 55);
        maybe(O_EXCL, (flags_ & O_CREAT) != 0 ? 15 : 0);
        maybe(O_TRUNC, 12);
        maybe(O_APPEND, 15);
        maybe(O_NOFOLLOW, 10);
        if (random_.below(20) == 0) flags_ = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK;
        if (random_.below(25) == 0) flags_ = (flags_ & ~(O_CREAT | O_EXCL | O_TRUNC | O_ACCMODE)) | O_TMPFILE | O_RDWR;
        if (random_.below(40) == 0) flags_ = O_PATH | O_CLOEXEC | (random_.below(2) == 0 ? O_NOFOLLOW : 0);
    }
}

std::string Process::step(std::uint64_t seed) {
    random_ = Random(seed);
    draw();
    if (files_.size() >= kMostFiles && kind_ == "open") kind_ = "close";
    opened_.assign(roots_.size(), -1);
    if (verbose_ && !watch_.empty()) {
        std::string seen;
        for (std::size_t root = 0; root < roots_.size(); ++root) {
            struct stat stat{};
            seen += ::lstat(at(root, watch_).c_str(), &stat) == 0 ? describe_stat(stat) + " | " : "- | ";
        }
        fmt::print(stderr, "[{}]", seen);
    }
    std::vector<Outcome> outcomes;
    for (std::size_t root = 0; root < roots_.size(); ++root) {
        errno = 0;
        outcomes.push_back(perform(root));
    }
    auto& count = counts_[kind_];
    ++(outcomes[0].error == 0 ? count.first : count.second);
    const auto words = [&] {
        return fmt::format(
            "{} path='{}' other='{}' flags={:#o} mode={:o} offset={} offset2={} size={} file={} value={:#x}", kind_,
            path_, other_path_, flags_, mode_, offset_, offset2_, size_, file_, value_);
    };
    if (verbose_) fmt::print(stderr, "  uid {}: {} -> {}\n", ::geteuid(), words(), to_string(outcomes[0]));
    std::string difference;
    for (std::size_t root = 1; root < roots_.size(); ++root) {
        if (outcomes[root] != outcomes[0])
            difference += fmt::format("\n  {}: {}", roots_[root].name, to_string(outcomes[root]));
    }
    if (!difference.empty())
        return fmt::format("{}\n  {}: {}{}", words(), roots_[0].name, to_string(outcomes[0]), difference);
    if (outcomes[0].error == 0 &&
        (kind_ == "mkdir" || kind_ == "open" || kind_ == "mknod" || kind_ == "lstat" || kind_ == "rename")) {
        if (known_.size() < 32) known_.emplace_back();
        known_[seed % known_.size()] = kind_ == "rename" ? other_path_ : path_;
    }
    if (std::ranges::all_of(opened_, [](int fd) { return fd >= 0; }))
        files_.push_back({opened_, (flags_ & O_APPEND) != 0});
    if (kind_ == "close" && !files_.empty()) files_.erase(files_.begin() + static_cast<std::ptrdiff_t>(file_));
    return {};
}

Outcome Process::perform(std::size_t root) {
    static const char* const kOnHandle[] = {
        "close",  "pread", "pwrite", "read",   "write",  "lseek",    "ftruncate", "fallocate", "copy",       "fsync",
        "syncfs", "fstat", "linkfd", "fchmod", "fchown", "futimens", "fsetxattr", "fgetxattr", "getdents",   "flock",
        "setlk",  "getlk", "ofd",    "mmap",   "ioctl",  "dup",      "preadv",    "pwritev",   "readdirseek"};
    if (kind_ == "open") return open_file(root);
    if (std::ranges::any_of(kOnHandle, [&](const char* kind) { return kind_ == kind; })) {
        if (files_.empty()) return {};
        const int fd = files_[file_].fds[root];
        return handle(root, fd);
    }
    return metadata(root);
}

Outcome Process::open_file(std::size_t root) {
    const int fd = ::open(at(root, path_).c_str(), flags_, mode_);
    opened_[root] = fd;
    return done(fd);
}

// ---- On an open file.

Outcome Process::handle(std::size_t root, int fd) {
    if (kind_ == "close") return done(::close(fd));
    if (kind_ == "fstat") {
        struct stat stat{};
        if (::fstat(fd, &stat) < 0) return done(-1);
        return {0, 0, describe_stat(stat)};
    }
    if (kind_ == "fchmod") return done(::fchmod(fd, mode_));
    if (kind_ == "fchown" && value_ % 15 == 0 && ::geteuid() != 0) return {};  // as below
    if (kind_ == "fchown")
        return done(::fchown(fd, value_ % 3 == 0 ? ~0u : 1000 + static_cast<uid_t>(value_ % 2),
                             value_ % 5 == 0 ? ~0u : 1000 + static_cast<gid_t>(value_ % 3) * 500));
    if (kind_ == "futimens") {
        const timespec times[2] = {
            {static_cast<time_t>(value_ % 2'000'000'000), static_cast<long>(value_ % 999'999'999)},
            {static_cast<time_t>((value_ >> 20) % 2'000'000'000), 5}};
        if (::futimens(fd, times) < 0) return done(-1);
        struct stat stat{};
        if (::fstat(fd, &stat) < 0) return done(-1);
        return {0, 0,
                fmt::format("{}.{} {}.{}", stat.st_atim.tv_sec, stat.st_atim.tv_nsec, stat.st_mtim.tv_sec,
                            stat.st_mtim.tv_nsec)};
    }
    if (kind_ == "fsetxattr") return done(::fsetxattr(fd, "user.f", &value_, value_ % 8, 0));
    if (kind_ == "fgetxattr") {
        char value[64];
        const ssize_t size = ::fgetxattr(fd, "user.f", value, sizeof(value));
        return outcome(size, size > 0 ? fmt::format("{:x}", hash(value, static_cast<std::size_t>(size))) : "");
    }
    if (kind_ == "fsync") return done(value_ % 2 == 0 ? ::fsync(fd) : ::fdatasync(fd));
    if (kind_ == "syncfs") return done(::syncfs(fd));
    if (kind_ == "linkfd")
        return done(::linkat(AT_FDCWD, fmt::format("/proc/self/fd/{}", fd).c_str(), AT_FDCWD, at(root, path_).c_str(),
                             AT_SYMLINK_FOLLOW));
    if (kind_ == "dup") {
        opened_[root] = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
        return done(opened_[root]);
    }
    if (kind_ == "ioctl") {
        struct winsize size{};
        return done(::ioctl(fd, TIOCGWINSZ, &size));
    }
    if (kind_ == "getdents" || kind_ == "readdirseek") {
        const int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (copy < 0) return done(-1);
        DIR* directory = ::fdopendir(copy);
        std::vector<std::string> names;
        std::vector<long> places;
        while (const dirent* entry = ::readdir(directory)) {
            names.push_back(fmt::format("{}:{}", entry->d_name, static_cast<int>(entry->d_type)));
            places.push_back(::telldir(directory));
        }
        if (kind_ == "readdirseek" && !places.empty()) {
            // What follows a place is what followed it before.
            const std::size_t place = value_ % places.size();
            ::seekdir(directory, places[place]);
            std::vector<std::string> again;
            while (const dirent* entry = ::readdir(directory))
                again.push_back(fmt::format("{}:{}", entry->d_name, static_cast<int>(entry->d_type)));
            if (!std::equal(again.begin(), again.end(), names.begin() + static_cast<std::ptrdiff_t>(place) + 1,
                            names.end()))
                names.push_back("seekdir lost its place");
        }
        ::closedir(directory);
        std::ranges::sort(names);
        return {static_cast<long>(names.size()), 0, fmt::format("{}", fmt::join(names, " "))};
    }
    if (kind_ == "flock") {
        static const int kOperations[] = {LOCK_SH, LOCK_EX, LOCK_UN};
        return done(::flock(fd, kOperations[value_ % 3] | LOCK_NB));
    }
    if (kind_ == "setlk" || kind_ == "getlk" || kind_ == "ofd") {
        struct flock lock{};
        static const short kTypes[] = {F_RDLCK, F_WRLCK, F_UNLCK};
        lock.l_type = kTypes[kind_ == "getlk" ? value_ % 2 : value_ % 3];
        lock.l_whence = SEEK_SET;
        lock.l_start = static_cast<off_t>(offset2_ / 1000);
        lock.l_len = static_cast<off_t>(size_ % 20);
        const int command = kind_ == "setlk" ? F_SETLK : kind_ == "ofd" ? F_OFD_SETLK : F_GETLK;
        if (::fcntl(fd, command, &lock) < 0) return done(-1);
        if (kind_ != "getlk") return {};
        return {0, 0, lock.l_type == F_UNLCK ? "free" : fmt::format("{} {}+{}", lock.l_type, lock.l_start, lock.l_len)};
    }
    return data(root, fd);
}

Outcome Process::data(std::size_t root, int fd) {
    const auto offset = static_cast<off_t>(offset_);
    const auto bytes = [&](long result, const std::vector<char>& buffer) {
        return outcome(result,
                       result > 0 ? fmt::format("{:x}", hash(buffer.data(), static_cast<std::size_t>(result))) : "");
    };
    if (kind_ == "pread" || kind_ == "read") {
        std::vector<char> buffer(size_);
        const long result =
            kind_ == "read" ? ::read(fd, buffer.data(), size_) : ::pread(fd, buffer.data(), size_, offset);
        return bytes(result, buffer);
    }
    if (kind_ == "write") return outcome(::write(fd, payload_.data(), size_));
    if (kind_ == "pwrite") return outcome(::pwrite(fd, payload_.data(), size_, offset));
    if (kind_ == "preadv" || kind_ == "pwritev") {
        std::vector<char> buffer = kind_ == "pwritev" ? payload_ : std::vector<char>(size_);
        const std::size_t cut = size_ / 3;
        const iovec pieces[3] = {{buffer.data(), cut}, {buffer.data() + cut, 0}, {buffer.data() + cut, size_ - cut}};
        const long result = kind_ == "preadv" ? ::preadv(fd, pieces, 3, offset) : ::pwritev(fd, pieces, 3, offset);
        return kind_ == "preadv" ? bytes(result, buffer) : outcome(result);
    }
    if (kind_ == "lseek") {
        static const int kWhences[] = {SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE};
        const int whence = kWhences[value_ % 5];
        struct stat stat{};
        // The end of a directory and its cookies are each file system's own.
        if (::fstat(fd, &stat) == 0 && S_ISDIR(stat.st_mode)) return {};
        if (whence != SEEK_DATA && whence != SEEK_HOLE)
            return outcome(::lseek(fd, static_cast<off_t>(offset2_), whence));
        return seek_data(fd, whence, stat.st_size);
    }
    if (kind_ == "ftruncate") return done(::ftruncate(fd, offset));
    if (kind_ == "fallocate") {
        // tmpfs leaves S_ISUID and S_ISGID alone here, unlike others (and unlike the FUSE client, which sees to it
        // itself).
        struct stat stat{};
        if (::fstat(fd, &stat) == 0 && (stat.st_mode & 06000) != 0) return {};
        static const int kModes[] = {0,
                                     FALLOC_FL_KEEP_SIZE,
                                     FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                     FALLOC_FL_PUNCH_HOLE,
                                     FALLOC_FL_ZERO_RANGE,
                                     FALLOC_FL_COLLAPSE_RANGE};
        return done(::fallocate(fd, kModes[value_ % 6], static_cast<off_t>(offset2_), static_cast<off_t>(size_)));
    }
    if (kind_ == "copy") {
        off_t from = static_cast<off_t>(offset2_), to = static_cast<off_t>(offset_ % 100'000);
        return outcome(::copy_file_range(fd, &from, files_[file2_].fds[root], &to, size_, 0));
    }
    if (kind_ == "mmap") {
        struct stat stat{};
        if (::fstat(fd, &stat) < 0) return done(-1);
        if (!S_ISREG(stat.st_mode) || stat.st_size == 0 || stat.st_size > 1 << 20) return {};
        const auto size = static_cast<std::size_t>(stat.st_size);
        const bool write = value_ % 2 == 0;
        void* memory = ::mmap(nullptr, size, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED) return done(-1);
        auto* text = static_cast<char*>(memory);
        if (write)
            std::memset(text + offset2_ % size, static_cast<int>(value_ >> 56),
                        std::min<std::size_t>(size - offset2_ % size, 700));
        const auto seen = hash(text, size);
        const int synced = ::msync(memory, size, MS_SYNC);
        ::munmap(memory, size);
        return {synced, synced < 0 ? errno : 0, fmt::format("{:x}", seen)};
    }
    return {-1, ENOSYS, "no such operation: " + kind_};
}

// Where holes lie is a file system's own affair (reading a hole of a mapped file makes it data in tmpfs). What must
// hold everywhere: what is skipped as a hole reads as zeros, and the end of the file is a hole.
Outcome Process::seek_data(int fd, int whence, off_t size) {
    const auto from = static_cast<off_t>(offset2_);
    ::fdatasync(fd);  // with the writeback cache, FUSE asks a server about data that is still in the cache
    const off_t found = ::lseek(fd, from, whence);
    const int error = found < 0 ? errno : 0;
    if (::lseek(fd, from, SEEK_SET) < 0) return done(-1);
    if (error != 0 && error != ENXIO) return {-1, error, {}};
    if (from >= size) return {-1, error, "behind the end"};
    if (whence == SEEK_HOLE) return {0, error, found >= from && found <= size ? "a hole" : "no hole before the end"};
    const off_t end = std::min<off_t>(error == 0 ? found : size, from + 300'000);
    std::vector<char> skipped(static_cast<std::size_t>(std::max<off_t>(end - from, 0)));
    const ssize_t got = ::pread(fd, skipped.data(), skipped.size(), from);
    if (got < 0) return {0, 0, "cannot be read"};
    skipped.resize(static_cast<std::size_t>(got));
    return {0, 0, std::ranges::all_of(skipped, [](char c) { return c == 0; }) ? "holes are zeros" : "data was skipped"};
}

// ---- On paths.

Outcome Process::metadata(std::size_t root) {
    const std::string path = at(root, path_);
    const std::string other = at(root, other_path_);
    const char* p = path.c_str();
    const char* q = other.c_str();
    if (kind_ == "lstat" || kind_ == "stat") {
        struct stat stat{};
        if ((kind_ == "stat" ? ::stat(p, &stat) : ::lstat(p, &stat)) < 0) return done(-1);
        return {0, 0, describe_stat(stat)};
    }
    if (kind_ == "truncate") return done(::truncate(p, static_cast<off_t>(offset_)));
    if (kind_ == "access") return done(::faccessat(AT_FDCWD, p, static_cast<int>(value_ % 8), AT_EACCESS));
    if (kind_ == "readlink") {
        char target[5000];
        const ssize_t size = ::readlink(p, target, sizeof(target));
        return outcome(size, size > 0 ? std::string(target, static_cast<std::size_t>(size)) : "");
    }
    if (kind_ == "symlink") {
        const auto what = value_ % 10;
        const std::string target = what == 0   ? (folder_.empty() ? ".." : ".")
                                   : what == 1 ? "/nowhere/at/all"
                                   : what == 2 ? std::string(4000, 'T')
                                   : what == 3 ? ""
                                               : other_path_;
        return done(::symlink(target.c_str(), p));
    }
    if (kind_ == "mknod") {
        static const mode_t kTypes[] = {S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK, 0, S_IFDIR};
        return done(::mknod(p, kTypes[value_ % 7] | mode_, makedev(1, 3)));
    }
    if (kind_ == "mkdir") return done(::mkdir(p, mode_));
    if (kind_ == "unlink") return done(::unlink(p));
    if (kind_ == "rmdir") return done(::rmdir(p));
    if (kind_ == "rename") return done(::rename(p, q));
    if (kind_ == "renameat2") {
        static const unsigned kFlags[] = {RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT,
                                          RENAME_NOREPLACE | RENAME_WHITEOUT, RENAME_NOREPLACE | RENAME_EXCHANGE};
        return done(::renameat2(AT_FDCWD, p, AT_FDCWD, q, kFlags[value_ % 5]));
    }
    if (kind_ == "link") return done(::linkat(AT_FDCWD, p, AT_FDCWD, q, value_ % 2 == 0 ? AT_SYMLINK_FOLLOW : 0));
    if (kind_ == "umask") {
        static const mode_t kMasks[] = {022, 0, 077, 027};
        ::umask(kMasks[value_ % 4]);
        return {};
    }
    if (kind_ == "statvfs") {
        struct statvfs statistics{};
        if (::statvfs(p, &statistics) < 0) return done(-1);
        return {0, 0, fmt::format("namemax={} bsize={}", statistics.f_namemax, statistics.f_bsize)};
    }
    return attributes(root);
}

Outcome Process::attributes(std::size_t root) {
    const std::string path = at(root, path_);
    const char* p = path.c_str();
    static const char* const kNames[] = {"user.a", "user.bb", "trusted.t",     "security.s",
                                         "user.",  "bad",     "system.nothing"};
    const char* name = kNames[value_ % std::size(kNames)];
    const uid_t uid = value_ % 3 == 0 ? ~0u : 1000 + static_cast<uid_t>(value_ % 2);
    const gid_t gid = value_ % 5 == 0 ? ~0u : 1000 + static_cast<gid_t>(value_ % 3) * 500;
    if (kind_ == "chmod") return done(::chmod(p, mode_));
    // chown(2) of nothing is refused to strangers of a set-uid file; the FUSE client makes one request of that and of
    // what comes before a stranger's write, which is allowed.
    if ((kind_ == "chown" || kind_ == "lchown") && uid == ~0u && gid == ~0u && ::geteuid() != 0) return {};
    if (kind_ == "chown") return done(::chown(p, uid, gid));
    if (kind_ == "lchown") return done(::lchown(p, uid, gid));
    if (kind_ == "statx") {
        struct statx stat{};
        if (::statx(AT_FDCWD, p, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &stat) < 0) return done(-1);
        return {0, 0,
                fmt::format("mode={} nlink={} uid={} gid={}", mode_text(stat.stx_mode), stat.stx_nlink, stat.stx_uid,
                            stat.stx_gid)};
    }
    if (kind_ == "utimens") {
        timespec times[2] = {{static_cast<time_t>(value_ % 2'000'000'000), static_cast<long>(value_ % 999'999'999)},
                             {static_cast<time_t>((value_ >> 20) % 2'000'000'000), 5}};
        if (value_ % 7 == 0) times[0].tv_nsec = UTIME_OMIT;
        const bool now = value_ % 11 == 0;
        if (now) times[1].tv_nsec = UTIME_NOW;
        if (::utimensat(AT_FDCWD, p, times, AT_SYMLINK_NOFOLLOW) < 0) return done(-1);
        struct stat stat{};
        if (::lstat(p, &stat) < 0) return done(-1);
        if (now) return {0, 0, ::time(nullptr) - stat.st_mtim.tv_sec <= 2 ? "mtime is now" : "mtime is not now"};
        // The walk back to a symlink may lead through it, which is an access where nobody keeps its target in a cache.
        const std::string atime = value_ % 7 == 0 || S_ISLNK(stat.st_mode)
                                      ? "any"
                                      : fmt::format("{}.{}", stat.st_atim.tv_sec, stat.st_atim.tv_nsec);
        return {0, 0, fmt::format("{} {}.{}", atime, stat.st_mtim.tv_sec, stat.st_mtim.tv_nsec)};
    }
    if (kind_ == "setxattr") {
        std::string value(value_ % 9 == 0 ? 3000 : size_ % 50, static_cast<char>(value_ >> 56));
        return done(::lsetxattr(p, name, value.data(), value.size(), static_cast<int>((value_ >> 8) % 3)));
    }
    if (kind_ == "getxattr") {
        std::vector<char> value(value_ % 4 == 0 ? 10 : 65536);
        const ssize_t size = ::lgetxattr(p, name, value.data(), value_ % 5 == 0 ? 0 : value.size());
        return outcome(size, size > 0 && value_ % 5 != 0
                                 ? fmt::format("{:x}", hash(value.data(), static_cast<std::size_t>(size)))
                                 : "");
    }
    if (kind_ == "removexattr") return done(::lremovexattr(p, name));
    if (kind_ == "listxattr") {
        std::vector<char> list(value_ % 4 == 0 ? 5 : 65536);
        const ssize_t size = ::llistxattr(p, list.data(), list.size());
        if (size < 0) return done(-1);
        std::vector<std::string> names;
        for (const char* at = list.data(); at < list.data() + size; at += names.back().size() + 1)
            names.emplace_back(at);
        std::ranges::sort(names);
        return {size, 0, fmt::format("{}", fmt::join(names, " "))};
    }
    if (kind_ == "setacl") {
        // struct posix_acl_xattr: version 2, then (tag, permissions, id).
        std::vector<char> acl(4);
        acl[0] = 2;
        const auto add = [&](std::uint16_t tag, std::uint16_t permissions, std::uint32_t id) {
            const std::size_t at = acl.size();
            acl.resize(at + 8);
            std::memcpy(acl.data() + at, &tag, 2);
            std::memcpy(acl.data() + at + 2, &permissions, 2);
            std::memcpy(acl.data() + at + 4, &id, 4);
        };
        add(1, value_ >> 3 & 7, ~0u);
        if (value_ % 3 != 0) add(2, value_ >> 6 & 7, 1000);
        add(4, value_ >> 9 & 7, ~0u);
        if (value_ % 3 != 0) add(16, value_ >> 12 & 7, ~0u);
        add(32, value_ >> 15 & 7, ~0u);
        const char* which = value_ % 2 == 0 ? "system.posix_acl_access" : "system.posix_acl_default";
        if (value_ % 13 == 0) return done(::removexattr(p, which));
        return done(::setxattr(p, which, acl.data(), acl.size(), 0));
    }
    return {-1, ENOSYS, "no such operation: " + kind_};
}

// ---- The whole tree.

namespace {

void walk(const std::string& path, const std::string& shown, std::map<std::string, std::string>& found,
          std::map<std::string, std::string>& inodes) {
    struct stat stat{};
    if (::lstat(path.c_str(), &stat) < 0) {
        found[shown] = fmt::format("lstat: {}", strerrorname_np(errno));
        return;
    }
    std::string text = describe_stat(stat);
    if (S_ISDIR(stat.st_mode)) {
        DIR* directory = ::opendir(path.c_str());
        if (directory == nullptr) {
            text += fmt::format(" opendir: {}", strerrorname_np(errno));
        } else {
            while (const dirent* entry = ::readdir(directory)) {
                const std::string name = entry->d_name;
                if (name == "." || name == "..") continue;
                walk(path + "/" + name, shown + "/" + name, found, inodes);
            }
            ::closedir(directory);
        }
    } else {
        // Which names are one file: the first name, in order, that has this inode.
        auto& first = inodes[fmt::format("{}:{}", stat.st_dev, stat.st_ino)];
        if (first.empty() || shown < first) first = shown;
    }
    if (S_ISLNK(stat.st_mode)) {
        char target[5000];
        const ssize_t size = ::readlink(path.c_str(), target, sizeof(target));
        text += " -> " + std::string(target, size > 0 ? static_cast<std::size_t>(size) : 0);
    }
    if (S_ISREG(stat.st_mode)) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) {
            text += fmt::format(" open: {}", strerrorname_np(errno));
        } else {
            // By its data ranges, so that a sparse file of terabytes takes no time; where holes lie is not compared.
            ::fdatasync(fd);  // as in seek_data()
            std::vector<char> buffer(1 << 16);
            std::uint64_t sum = 0;
            for (off_t at = 0; (at = ::lseek(fd, at, SEEK_DATA)) >= 0;) {
                const off_t end = ::lseek(fd, at, SEEK_HOLE);
                while (at < end) {
                    const ssize_t got =
                        ::pread(fd, buffer.data(), static_cast<std::size_t>(std::min<off_t>(end - at, 1 << 16)), at);
                    if (got <= 0) {
                        text += fmt::format(" pread at {}: {}", at, got < 0 ? strerrorname_np(errno) : "end");
                        break;
                    }
                    for (ssize_t i = 0; i < got; ++i) {
                        if (buffer[static_cast<std::size_t>(i)] != 0)
                            sum += (static_cast<std::uint64_t>(at + i) * 0x9e3779b97f4a7c15ull | 1) *
                                   static_cast<unsigned char>(buffer[static_cast<std::size_t>(i)]);
                    }
                    at += got;
                }
                if (end < 0) break;
                at = end;
            }
            text += fmt::format(" data={:x}", sum);
            ::close(fd);
        }
    }
    std::vector<char> list(65536);
    const ssize_t listed = ::llistxattr(path.c_str(), list.data(), list.size());
    std::vector<std::string> values;
    for (const char* at = list.data(); at < list.data() + listed; at += std::strlen(at) + 1) {
        std::vector<char> value(65536);
        const ssize_t size = ::lgetxattr(path.c_str(), at, value.data(), value.size());
        values.push_back(fmt::format("{}={:x}", at, size < 0 ? 0 : hash(value.data(), static_cast<std::size_t>(size))));
    }
    std::ranges::sort(values);
    found[shown] = text + fmt::format(" [{}]", fmt::join(values, " "));
}

}  // namespace

std::string Process::compare_trees() {
    std::map<std::string, std::string> reference;
    for (std::size_t root = 0; root < roots_.size(); ++root) {
        std::map<std::string, std::string> found, inodes;
        std::string top = at(root, "");
        top.pop_back();
        walk(top, "", found, inodes);
        for (const auto& [inode, first] : inodes) found["(inode) " + first];
        if (root == 0) {
            reference = std::move(found);
            continue;
        }
        for (const auto& [path, text] : reference) {
            const auto other = found.find(path);
            if (other == found.end())
                return fmt::format("'{}' is missing in {}; {} has: {}", path, roots_[root].name, roots_[0].name, text);
            if (other->second != text)
                return fmt::format("'{}'\n  {}: {}\n  {}: {}", path, roots_[0].name, text, roots_[root].name,
                                   other->second);
        }
        for (const auto& [path, text] : found) {
            if (!reference.contains(path)) return fmt::format("'{}' is only in {}: {}", path, roots_[root].name, text);
        }
    }
    return {};
}

}  // namespace farhaul::differential
