#include "backend/source.hpp"

#include <charconv>
#include <cstdlib>
#include <span>
#include <utility>

#include "backend/memory/memory.hpp"
#include "backend/mirror/mirror.hpp"
#include "backend/null/null.hpp"
#include "base/units.hpp"
#include "io/wall_clock.hpp"

namespace farhaul::backend {

namespace {

/// An option of a source whose settings are a T.
template <typename T>
struct Rule {
    const char* name;
    const char* value;    // what --help calls it; "": the option has none
    const char* meaning;  // for --help
    Status (*set)(T& options, const std::string& value);
};

template <typename T>
Status apply(const char* source, std::span<const Rule<T>> rules, T& settings, const std::vector<Option>& options) {
    for (const Option& option : options) {
        const Rule<T>* found = nullptr;
        for (const Rule<T>& rule : rules) {
            if (option.name == rule.name) found = &rule;
        }
        if (found == nullptr) return fail(ErrorCode::kInvalidArgument, "{}: has no option '{}'", source, option.name);
        const bool wants_value = found->value[0] != '\0';
        if (wants_value != option.has_value)
            return fail(ErrorCode::kInvalidArgument, "option '{}' of {}: {} a value", option.name, source,
                        wants_value ? "needs" : "takes no");
        if (auto set = found->set(settings, option.value); !set)
            return fail(set.error().code, "option '{}={}' of {}: {}", option.name, option.value, source,
                        set.error().message);
    }
    return {};
}

Status set_bool(bool& to, const std::string& value) {
    if (value != "yes" && value != "no") return fail(ErrorCode::kInvalidArgument, "is yes or no");
    to = value == "yes";
    return {};
}

/// Seconds, as mount options have them ("1", "0.5"), or with a unit ("25ms").
Status set_seconds(Duration& to, const std::string& value) {
    char* end = nullptr;
    const double seconds = std::strtod(value.c_str(), &end);
    if (!value.empty() && *end == '\0') {
        if (!(seconds >= 0) || seconds > 1e9) return fail(ErrorCode::kInvalidArgument, "is at least 0 seconds");
        to = Duration::from_seconds(seconds);
        return {};
    }
    auto parsed = parse_duration(value);
    if (!parsed) return propagate(parsed);
    to = *parsed;
    return {};
}

Status set_size(std::uint64_t& to, const std::string& value) {
    auto parsed = parse_size(value);
    if (!parsed) return propagate(parsed);
    to = *parsed;
    return {};
}

Status set_number(std::uint32_t& to, const std::string& value, int base = 10) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), to, base);
    if (error != std::errc() || end != value.data() + value.size())
        return fail(ErrorCode::kInvalidArgument, "is a number{}", base == 8 ? " in octal" : "");
    return {};
}

Status set_id(std::optional<std::uint32_t>& to, const std::string& value) {
    std::uint32_t id = 0;
    if (auto set = set_number(id, value); !set) return set;
    to = id;
    return {};
}

Status not_one_of(const char* words) { return fail(ErrorCode::kInvalidArgument, "is one of {}", words); }

using Value = const std::string&;

constexpr Rule<NullOptions> kNullRules[] = {
    {"zero", "yes|no", "no: reads leave the client's memory as it is (yes)",
     [](NullOptions& o, Value v) { return set_bool(o.zero, v); }},
};

constexpr Rule<MemoryOptions> kMemoryRules[] = {
    {"size", "SIZE", "room for data (1GiB)",
     [](MemoryOptions& o, Value v) {
         if (auto set = set_size(o.size, v); !set) return set;
         return o.size != 0 ? Status{} : fail(ErrorCode::kInvalidArgument, "is more than 0");
     }},
    {"nr_inodes", "N", "files and names at most (one per page of size)",
     [](MemoryOptions& o, Value v) {
         std::uint32_t number = 0;
         auto set = set_number(number, v);
         o.max_inodes = number;
         return set;
     }},
    {"mode", "OCTAL", "permissions of the root (1777)",
     [](MemoryOptions& o, Value v) {
         auto set = set_number(o.mode, v, 8);
         o.mode &= 07777;
         return set;
     }},
    {"uid", "UID", "owner of the root (0)", [](MemoryOptions& o, Value v) { return set_number(o.uid, v); }},
    {"gid", "GID", "group of the root (0)", [](MemoryOptions& o, Value v) { return set_number(o.gid, v); }},
    {"attr_timeout", "SECONDS", "how long the client caches names and attributes (1)",
     [](MemoryOptions& o, Value v) { return set_seconds(o.timeout, v); }},
    // One timeout for both here; taken so that the same options fit every source.
    {"entry_timeout", "SECONDS", "the same", [](MemoryOptions& o, Value v) { return set_seconds(o.timeout, v); }},
    {"keep_cache", "", "file contents stay in the client's cache between two opens",
     [](MemoryOptions& o, Value) {
         o.keep_cache = true;
         return Status{};
     }},
};

constexpr Rule<MirrorOptions> kMirrorRules[] = {
    {"cache", "auto|always|never", "what the client may cache (auto)",
     [](MirrorOptions& o, Value v) {
         using Cache = MirrorOptions::Cache;
         if (v != "auto" && v != "always" && v != "never") return not_one_of("auto, always, never");
         o.cache = v == "auto" ? Cache::kAuto : v == "always" ? Cache::kAlways : Cache::kNever;
         return Status{};
     }},
    {"attr_timeout", "SECONDS", "how long the client caches attributes, with cache=auto (1)",
     [](MirrorOptions& o, Value v) { return set_seconds(o.attribute_timeout, v); }},
    {"entry_timeout", "SECONDS", "how long it caches names, with cache=auto (1)",
     [](MirrorOptions& o, Value v) { return set_seconds(o.entry_timeout, v); }},
    {"negative_timeout", "SECONDS", "how long it caches that there is no such name (0)",
     [](MirrorOptions& o, Value v) { return set_seconds(o.negative_timeout, v); }},
    {"direct_io", "", "past this host's page cache where size and alignment allow it",
     [](MirrorOptions& o, Value) {
         o.direct_io = true;
         return Status{};
     }},
    {"squash_uid", "UID", "what is created belongs to this user, whoever asks",
     [](MirrorOptions& o, Value v) { return set_id(o.squash_uid, v); }},
    {"squash_gid", "GID", "and to this group", [](MirrorOptions& o, Value v) { return set_id(o.squash_gid, v); }},
    {"sync", "as-asked|always|never", "when data is on stable storage: never is unsafe (as-asked)",
     [](MirrorOptions& o, Value v) {
         using Sync = MirrorOptions::Sync;
         if (v != "as-asked" && v != "always" && v != "never") return not_one_of("as-asked, always, never");
         o.sync = v == "as-asked" ? Sync::kAsAsked : v == "always" ? Sync::kAlways : Sync::kNever;
         return Status{};
     }},
    {"xattr", "yes|no", "serve extended attributes (yes)",
     [](MirrorOptions& o, Value v) { return set_bool(o.xattr, v); }},
    {"xattr_prefix", "PREFIX", "extended attributes have this prefix on the host",
     [](MirrorOptions& o, Value v) {
         o.xattr_prefix = v;
         return Status{};
     }},
    {"inode_file_handles", "auto|always|never", "keep inodes by file handle instead of a descriptor (auto)",
     [](MirrorOptions& o, Value v) {
         using Handles = MirrorOptions::FileHandles;
         if (v != "auto" && v != "always" && v != "never") return not_one_of("auto, always, never");
         o.file_handles = v == "auto" ? Handles::kAutomatic : v == "always" ? Handles::kAlways : Handles::kNever;
         return Status{};
     }},
    {"announce_submounts", "", "mount points below the directory get a device number of their own",
     [](MirrorOptions& o, Value) {
         o.announce_submounts = true;
         return Status{};
     }},
    {"posix_locks", "yes|no", "fcntl locks are locks on the host's files (yes)",
     [](MirrorOptions& o, Value v) { return set_bool(o.posix_locks, v); }},
    {"flock", "yes|no", "the same for flock (yes)", [](MirrorOptions& o, Value v) { return set_bool(o.flock, v); }},
    {"posix_acl", "yes|no", "serve POSIX ACLs where the host's file system has them (yes)",
     [](MirrorOptions& o, Value v) { return set_bool(o.posix_acl, v); }},
};

template <typename T>
void list(std::vector<OptionHelp>& help, const char* source, std::span<const Rule<T>> rules) {
    for (const Rule<T>& rule : rules) help.push_back({source, rule.name, rule.value, rule.meaning});
}

using Opened = Result<std::unique_ptr<fuse::FileSystem>>;

}  // namespace

std::vector<Option> split_options(const std::string& text) {
    std::vector<Option> options;
    Option option;
    bool started = false;
    const auto end_option = [&] {
        if (started) options.push_back(std::exchange(option, {}));
        started = false;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
        char c = text[i];
        if (c == ',') {
            end_option();
            continue;
        }
        if (c == '\\' && i + 1 < text.size()) {
            c = text[++i];
        } else if (c == '=' && !option.has_value) {
            option.has_value = started = true;
            continue;
        }
        started = true;
        (option.has_value ? option.value : option.name) += c;
    }
    end_option();
    return options;
}

std::vector<OptionHelp> source_options() {
    std::vector<OptionHelp> help;
    list<NullOptions>(help, "null", kNullRules);
    list<MemoryOptions>(help, "memory", kMemoryRules);
    list<MirrorOptions>(help, "mirror", kMirrorRules);
    return help;
}

Opened open_source(const std::string& source, const std::vector<Option>& given) {
    const std::size_t colon = source.find(':');
    const std::string kind = source.substr(0, colon);
    const std::string rest = colon == std::string::npos ? "" : source.substr(colon + 1);
    if (colon == std::string::npos)
        return fail(ErrorCode::kInvalidArgument,
                    "'{}' is no source: it starts with null:, memory: or mirror: (mirror:{} for a directory)", source,
                    source);
    std::vector<Option> options = given;
    const auto add_own = [&] {
        for (Option& option : split_options(rest)) options.push_back(std::move(option));
    };
    if (kind == "null") {
        add_own();
        NullOptions settings;
        if (auto applied = apply<NullOptions>("null", kNullRules, settings, options); !applied)
            return propagate(applied);
        return make_null(settings);
    }
    if (kind == "memory") {
        add_own();
        MemoryOptions settings;
        if (auto applied = apply<MemoryOptions>("memory", kMemoryRules, settings, options); !applied)
            return propagate(applied);
        return make_memory(settings, io::wall_clock);
    }
    if (kind == "mirror") {
        MirrorOptions settings;
        settings.directory = rest;
        if (auto applied = apply<MirrorOptions>("mirror", kMirrorRules, settings, options); !applied)
            return propagate(applied);
        if (rest.empty()) return fail(ErrorCode::kInvalidArgument, "mirror: which directory? mirror:/srv/data");
        return make_mirror(std::move(settings));
    }
    return fail(ErrorCode::kInvalidArgument, "'{}:' is no kind of source: use null:, memory: or mirror:DIR", kind);
}

}  // namespace farhaul::backend
