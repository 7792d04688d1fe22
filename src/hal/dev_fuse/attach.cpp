#include "hal/dev_fuse/attach.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace farhaul::hal {

namespace {

constexpr const char* kDevice = "/dev/fuse";
constexpr const char* kHelper = "fusermount3";

struct FlagName {
    unsigned long flag;
    const char* set;
    const char* unset;
};
/// What fusermount3 has words for; `unset` where leaving it out would not do.
constexpr std::array kFlagNames = {
    FlagName{MS_RDONLY, "ro", "rw"},          FlagName{MS_NOSUID, "nosuid", nullptr},
    FlagName{MS_NODEV, "nodev", nullptr},     FlagName{MS_NOEXEC, "noexec", nullptr},
    FlagName{MS_NOATIME, "noatime", nullptr}, FlagName{MS_SYNCHRONOUS, "sync", nullptr},
    FlagName{MS_DIRSYNC, "dirsync", nullptr},
};

bool is_octal(char c) { return c >= '0' && c <= '7'; }

/// mountinfo writes blanks, newlines and backslashes as \040 and so on.
std::string unescape(std::string_view text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size() + 0 && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
            is_octal(text[i + 3])) {
            plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

/// fusermount3 splits its options at commas that have no backslash before them.
std::string escape_commas(const std::string& text) {
    std::string escaped;
    for (const char c : text) {
        if (c == ',' || c == '\\') escaped += '\\';
        escaped += c;
    }
    return escaped;
}

/// Runs the helper; returns its exit status, or -1 and errno. `extra`: an environment variable NAME=VALUE.
int run_helper(std::vector<std::string> arguments, const std::string& extra) {
    arguments.insert(arguments.begin(), kHelper);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    std::string own = extra;
    if (!own.empty()) environment.push_back(own.data());
    environment.push_back(nullptr);
    pid_t pid = 0;
    const int error = ::posix_spawnp(&pid, kHelper, nullptr, nullptr, argv.data(), environment.data());
    if (error != 0) {
        errno = error;
        return -1;
    }
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

Result<io::UniqueFd> receive_descriptor(int socket) {
    char byte = 0;
    iovec piece{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t received = 0;
    do received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (received < 0 && errno == EINTR);
    if (received < 0) return fail_errno(errno, "no answer from fusermount3");
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS)
        return fail(ErrorCode::kIo, "fusermount3 did not mount: its message is above");
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return io::UniqueFd(fd);
}

Result<io::UniqueFd> attach_by_helper(const MountOptions& options) {
    std::array<int, 2> pair{};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) < 0) return fail_errno(errno, "cannot make a socket pair");
    io::UniqueFd ours(pair[0]);
    io::UniqueFd theirs(pair[1]);
    ::fcntl(ours.get(), F_SETFD, FD_CLOEXEC);

    std::string words = "default_permissions";
    const auto add = [&words](const std::string& word) { words += "," + word; };
    for (const FlagName& name : kFlagNames) {
        if ((options.flags & name.flag) != 0) {
            add(name.set);
        } else if (name.unset != nullptr) {
            add(name.unset);
        }
    }
    add("fsname=" + escape_commas(options.source));
    add("subtype=" + options.subtype);
    if (options.allow_other) add("allow_other");
    if (options.max_read != 0) add("max_read=" + std::to_string(options.max_read));

    const int status =
        run_helper({"-o", words, "--", options.mountpoint}, "_FUSE_COMMFD=" + std::to_string(theirs.get()));
    if (status < 0)
        return fail_errno(errno, "cannot run fusermount3, which mounts for users other than root (install fuse3)");
    if (status != 0)
        return fail(ErrorCode::kIo, "fusermount3 refused to mount on {}: its message is above", options.mountpoint);
    theirs.reset();
    auto device = receive_descriptor(ours.get());
    if (device) ::fcntl(device->get(), F_SETFL, O_NONBLOCK);
    return device;
}

Result<io::UniqueFd> attach_as_root(const MountOptions& options, mode_t root_mode) {
    io::UniqueFd device(::open(kDevice, O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (!device) return fail_errno(errno, "cannot open /dev/fuse (does the kernel have FUSE: modprobe fuse?)");
    std::string data = fmt::format("fd={},rootmode={:o},user_id={},group_id={},default_permissions", device.get(),
                                   root_mode & S_IFMT, ::geteuid(), ::getegid());
    if (options.allow_other) data += ",allow_other";
    if (options.max_read != 0) data += fmt::format(",max_read={}", options.max_read);
    const std::string type = "fuse." + options.subtype;
    if (::mount(options.source.c_str(), options.mountpoint.c_str(), type.c_str(), options.flags, data.c_str()) != 0)
        return fail_errno(errno, "cannot mount on " + options.mountpoint);
    return device;
}

}  // namespace

std::vector<MountEntry> parse_mountinfo(std::string_view text) {
    std::vector<MountEntry> entries;
    std::istringstream lines{std::string(text)};
    std::string line;
    while (std::getline(lines, line)) {
        // id parent major:minor root mountpoint options [tags...] - type source superoptions
        std::istringstream words(line);
        std::string id, parent, root, options, word;
        MountEntry entry;
        if (!(words >> id >> parent >> entry.device_number >> root >> entry.mountpoint >> options)) continue;
        while (words >> word && word != "-") continue;
        if (word != "-" || !(words >> entry.type >> entry.source)) continue;
        entry.mountpoint = unescape(entry.mountpoint);
        entry.source = unescape(entry.source);
        entry.type = unescape(entry.type);
        entries.push_back(std::move(entry));
    }
    return entries;
}

std::vector<MountEntry> mount_entries() {
    std::ifstream file("/proc/self/mountinfo");
    std::ostringstream text;
    text << file.rdbuf();
    return parse_mountinfo(text.str());
}

std::optional<MountEntry> mounted_on(const std::string& mountpoint) {
    std::optional<MountEntry> found;
    for (MountEntry& entry : mount_entries())
        if (entry.mountpoint == mountpoint) found = std::move(entry);
    return found;
}

Result<std::string> resolve_mountpoint(const std::string& path) {
    const auto real = [](const std::string& of) -> std::optional<std::string> {
        std::array<char, PATH_MAX> buffer{};
        if (::realpath(of.c_str(), buffer.data()) == nullptr) return std::nullopt;
        return buffer.data();
    };
    if (const auto whole = real(path)) return *whole;
    if (errno == ENOTCONN || errno == ECONNABORTED) {  // the mount is dead, its place is not
        std::string trimmed = path;
        while (trimmed.size() > 1 && trimmed.ends_with('/')) trimmed.pop_back();
        const std::size_t slash = trimmed.rfind('/');
        const std::string parent =
            slash == std::string::npos ? "." : trimmed.substr(0, std::max<std::size_t>(slash, 1));
        if (const auto above = real(parent)) return (*above == "/" ? "" : *above) + "/" + trimmed.substr(slash + 1);
    }
    return fail_errno(errno, "mountpoint " + path);
}

Status detach_mount(const std::string& mountpoint, bool lazily) {
    if (::umount2(mountpoint.c_str(), UMOUNT_NOFOLLOW | (lazily ? MNT_DETACH : 0)) == 0) return {};
    if (errno == EBUSY) return fail(ErrorCode::kRetry, "{} is in use", mountpoint);
    if (errno != EPERM) return fail_errno(errno, "cannot unmount " + mountpoint);
    std::vector<std::string> arguments{"-u", "-q"};
    if (lazily) arguments.emplace_back("-z");
    arguments.insert(arguments.end(), {"--", mountpoint});
    const int status = run_helper(arguments, "");
    if (status == 0) return {};
    if (status < 0) return fail_errno(errno, "cannot run fusermount3");
    return fail(ErrorCode::kRetry, "fusermount3 did not unmount {}: it is in use, or not yours", mountpoint);
}

Result<unsigned> remove_dead_mounts(const std::string& mountpoint, const std::string& type) {
    constexpr unsigned kMost = 32;
    for (unsigned removed = 0; removed < kMost; ++removed) {
        // Not stat(2), which the kernel may answer from its cache. ECONNABORTED is what the first caller after the end
        // sees.
        struct statfs status{};
        if (::statfs(mountpoint.c_str(), &status) == 0 || (errno != ENOTCONN && errno != ECONNABORTED)) return removed;
        const auto entry = mounted_on(mountpoint);
        if (!entry || entry->type != type)
            return fail(ErrorCode::kIo, "{} is a dead mount of type {}; take it away with: umount -l {}", mountpoint,
                        entry ? entry->type : "unknown", mountpoint);
        if (auto detached = detach_mount(mountpoint, true); !detached) return propagate(detached);
    }
    return fail(ErrorCode::kIo, "more than {} dead mounts on {}", kMost, mountpoint);
}

Result<io::UniqueFd> attach_mount(const MountOptions& options) {
    struct stat status{};
    if (::stat(options.mountpoint.c_str(), &status) != 0) return fail_errno(errno, "mountpoint " + options.mountpoint);
    if (!S_ISDIR(status.st_mode) && !S_ISREG(status.st_mode))
        return fail(ErrorCode::kInvalidArgument, "mountpoint {} is neither a directory nor a regular file",
                    options.mountpoint);
    return ::geteuid() == 0 ? attach_as_root(options, status.st_mode) : attach_by_helper(options);
}

}  // namespace farhaul::hal
