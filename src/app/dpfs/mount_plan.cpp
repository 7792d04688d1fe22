#include "app/dpfs/mount_plan.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>

#include <unistd.h>

#include <fmt/format.h>

#include "app/nearest.hpp"
#include "base/units.hpp"

namespace farhaul::app::dpfs {

namespace {

template <typename T>
Status set_number(T& to, const std::string& value, T least, T most) {
    T number{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size() || number < least || number > most)
        return fail(ErrorCode::kInvalidArgument, "is a number from {} to {}", least, most);
    to = number;
    return {};
}

Status set_size(std::uint32_t& to, const std::string& value, std::uint64_t least, std::uint64_t most) {
    const auto size = parse_size(value);
    if (!size || *size < least || *size > most)
        return fail(ErrorCode::kInvalidArgument, "is a size from {} to {}", format_size(least), format_size(most));
    to = static_cast<std::uint32_t>(*size);
    return {};
}

/// A word that changes one flag of mount(2).
struct FlagWord {
    const char* name;
    unsigned long flag;
    bool sets;
};
constexpr std::array kFlagWords = {
    FlagWord{"ro", MS_RDONLY, true},
    FlagWord{"rw", MS_RDONLY, false},
    FlagWord{"nosuid", MS_NOSUID, true},
    FlagWord{"suid", MS_NOSUID, false},
    FlagWord{"nodev", MS_NODEV, true},
    FlagWord{"dev", MS_NODEV, false},
    FlagWord{"noexec", MS_NOEXEC, true},
    FlagWord{"exec", MS_NOEXEC, false},
    FlagWord{"noatime", MS_NOATIME, true},
    FlagWord{"atime", MS_NOATIME, false},
    FlagWord{"nodiratime", MS_NODIRATIME, true},
    FlagWord{"diratime", MS_NODIRATIME, false},
    FlagWord{"relatime", MS_RELATIME, true},
    FlagWord{"norelatime", MS_RELATIME, false},
    FlagWord{"strictatime", MS_STRICTATIME, true},
    FlagWord{"nostrictatime", MS_STRICTATIME, false},
    FlagWord{"lazytime", MS_LAZYTIME, true},
    FlagWord{"nolazytime", MS_LAZYTIME, false},
    FlagWord{"sync", MS_SYNCHRONOUS, true},
    FlagWord{"async", MS_SYNCHRONOUS, false},
    FlagWord{"dirsync", MS_DIRSYNC, true},
};

/// For mount(8), fstab(5) and systemd.mount(5); they mean nothing to the one who mounts.
constexpr std::array<std::string_view, 22> kIgnoredWords = {
    "defaults", "auto",    "noauto",  "user",     "nouser",
    "users",    "owner",   "group",   "nofail",   "_netdev",
    "comment",  "uhelper", "helper",  "nonempty", "default_permissions",
    "loud",     "silent",  "noowner", "nousers",  "nogroup",
    "mand",     "nomand"};

struct Word {
    const char* name;
    const char* value;  // what --help calls it; "": the word has none
    const char* meaning;
    Status (*set)(MountPlan& plan, const std::string& value);
};
constexpr Word kWords[] = {
    {"allow_other", "", "other users may enter (default for root)",
     [](MountPlan& plan, const std::string&) -> Status {
         plan.mount.allow_other = true;
         return {};
     }},
    {"noallow_other", "", "only who mounts may enter",
     [](MountPlan& plan, const std::string&) -> Status {
         plan.mount.allow_other = false;
         return {};
     }},
    {"fsname", "NAME", "the device that mount(8) shows (default: SOURCE)",
     [](MountPlan& plan, const std::string& value) -> Status {
         plan.mount.source = value;
         return {};
     }},
    {"io_uring", "auto|on|off", "take requests over io_uring (Linux 6.14; default auto: if root has turned it on)",
     [](MountPlan& plan, const std::string& value) -> Status {
         if (value == "auto") {
             plan.io_uring = IoUring::kAuto;
         } else if (value == "on") {
             plan.io_uring = IoUring::kOn;
         } else if (value == "off") {
             plan.io_uring = IoUring::kOff;
         } else {
             return fail(ErrorCode::kInvalidArgument, "is auto, on or off");
         }
         return {};
     }},
    {"threads", "N", "that read requests from /dev/fuse, 1 to 64 (default: one per CPU, at most 8)",
     [](MountPlan& plan, const std::string& value) { return set_number(plan.mount.threads, value, 1u, 64u); }},
    {"queue_depth", "N", "requests under way per thread or queue, 1 to 1024 (default 16, over io_uring 8)",
     [](MountPlan& plan, const std::string& value) { return set_number(plan.mount.queue_depth, value, 1u, 1024u); }},
    {"max_write", "SIZE", "largest read or write, 4KiB to 32MiB (default 1MiB)",
     [](MountPlan& plan, const std::string& value) { return set_size(plan.session.max_write, value, 4096, 32 << 20); }},
    {"max_read", "SIZE", "largest read, if smaller than max_write",
     [](MountPlan& plan, const std::string& value) { return set_size(plan.mount.max_read, value, 4096, 32 << 20); }},
    {"max_readahead", "SIZE", "most that the kernel reads ahead (default 1MiB)",
     [](MountPlan& plan, const std::string& value) { return set_size(plan.session.max_readahead, value, 0, 1 << 30); }},
    {"max_background", "N", "asynchronous requests in flight (default 256)",
     [](MountPlan& plan, const std::string& value) {
         return set_number<std::uint16_t>(plan.session.max_background, value, 1,
                                          std::numeric_limits<std::uint16_t>::max());
     }},
    {"writeback_cache", "", "the kernel may delay writes; only if nobody else changes the files",
     [](MountPlan& plan, const std::string&) -> Status {
         plan.session.writeback_cache = true;
         return {};
     }},
    {"passthrough", "auto|off",
     "the kernel reads and writes mirrored files by itself where it can (Linux 6.9; default auto); dpfs stat does not "
     "see that",
     [](MountPlan& plan, const std::string& value) -> Status {
         if (value != "auto" && value != "off") return fail(ErrorCode::kInvalidArgument, "is auto or off");
         plan.session.passthrough = value == "auto";
         return {};
     }},
    {"no_readdirplus", "", "list names only, never their attributes with them",
     [](MountPlan& plan, const std::string&) -> Status {
         plan.session.never |= FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO;
         return {};
     }},
    {"readdirplus_always", "", "list names with their attributes every time",
     [](MountPlan& plan, const std::string&) -> Status {
         plan.session.readdirplus_always = true;
         return {};
     }},
};

bool is_ignored(const std::string& name) {
    return std::ranges::find(kIgnoredWords, name) != kIgnoredWords.end() || name.starts_with("x-") ||
           name.starts_with("X-");
}

std::string kind_of(const std::string& source) { return source.substr(0, source.find(':')); }

std::string nearest_word(const std::string& name, const std::string& source) {
    std::vector<std::string> known;
    for (const FlagWord& word : kFlagWords) known.emplace_back(word.name);
    for (const Word& word : kWords) known.emplace_back(word.name);
    for (const std::string_view word : kIgnoredWords) known.emplace_back(word);
    for (const backend::OptionHelp& help : backend::source_options())
        if (help.source == kind_of(source)) known.push_back(help.name);
    return nearest(name, known);
}

Status take_word(MountPlan& plan, const backend::Option& option, bool sloppy) {
    for (const FlagWord& word : kFlagWords) {
        if (option.name != word.name) continue;
        if (option.has_value) return fail(ErrorCode::kInvalidArgument, "option '{}' takes no value", option.name);
        plan.mount.flags = word.sets ? plan.mount.flags | word.flag : plan.mount.flags & ~word.flag;
        return {};
    }
    for (const Word& word : kWords) {
        if (option.name != word.name) continue;
        if (option.has_value != (word.value[0] != '\0'))
            return fail(ErrorCode::kInvalidArgument, "option '{}' {} value", option.name,
                        option.has_value ? "takes no" : "needs a");
        if (auto set = word.set(plan, option.value); !set)
            return fail(ErrorCode::kInvalidArgument, "option '{}={}' {}", option.name, option.value,
                        set.error().message);
        return {};
    }
    if (is_ignored(option.name)) return {};
    if (option.name == "remount")
        return fail(ErrorCode::kInvalidArgument,
                    "option 'remount': a mount cannot change while it is there; unmount it first");
    const auto takes = [&](const backend::OptionHelp& help) {
        return help.source == kind_of(plan.source) && help.name == option.name;
    };
    if (std::ranges::any_of(backend::source_options(), takes)) {
        plan.source_options.push_back(option);
        return {};
    }
    if (sloppy) return {};
    const std::string meant = nearest_word(option.name, plan.source);
    return fail(ErrorCode::kInvalidArgument, "unknown option '{}'{}", option.name,
                meant.empty() ? std::string("; see dpfs mount --help") : fmt::format("; did you mean '{}'?", meant));
}

}  // namespace

Result<MountPlan> plan_mount(const std::string& source, const std::string& mountpoint,
                             const std::vector<std::string>& words, bool sloppy) {
    MountPlan plan;
    plan.source = source;
    plan.mount.mountpoint = mountpoint;
    plan.mount.source = source;
    plan.mount.allow_other = ::geteuid() == 0;
    for (const std::string& list : words) {
        for (const backend::Option& option : backend::split_options(list))
            if (auto taken = take_word(plan, option, sloppy); !taken) return propagate(taken);
    }
    plan.session.read_only = (plan.mount.flags & MS_RDONLY) != 0;
    return plan;
}

std::string describe_mount_words() {
    std::string text = "Options for -o (dpfs):\n";
    const auto line = [&text](const std::string& name, const std::string& value, const std::string& meaning) {
        text += fmt::format("  {:<26} {}\n", value.empty() ? name : name + "=" + value, meaning);
    };
    for (const Word& word : kWords) line(word.name, word.value, word.meaning);
    line("ro, nosuid, noatime, ...", "", "as mount(8); nosuid and nodev are the default");
    std::string source;
    for (const backend::OptionHelp& help : backend::source_options()) {
        if (help.source != source) text += fmt::format("Options for -o ({}:):\n", help.source);
        source = help.source;
        line(help.name, help.value, help.meaning);
    }
    return text;
}

}  // namespace farhaul::app::dpfs
