#include "backend/memory/acl.hpp"

#include <cerrno>
#include <cstring>

namespace farhaul::backend::memory {

namespace {

enum AclTag : std::uint16_t {
    kUserObject = 0x01,
    kUser = 0x02,
    kGroupObject = 0x04,
    kGroup = 0x08,
    kMask = 0x10,
    kOther = 0x20,
};

constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kNoId = ~std::uint32_t{0};

// The form of the attribute; little-endian, as is every host that this runs on.
struct RawEntry {
    std::uint16_t tag;
    std::uint16_t perm;
    std::uint32_t id;
};
static_assert(sizeof(RawEntry) == 8);

bool has_id(std::uint16_t tag) { return tag == kUser || tag == kGroup; }

AclEntry* find(Acl& acl, std::uint16_t tag) {
    for (AclEntry& entry : acl) {
        if (entry.tag == tag) return &entry;
    }
    return nullptr;
}

/// Tags in the right order, each that must be there is there, once.
bool valid(const Acl& acl) {
    std::uint16_t last = 0;
    std::uint32_t seen = 0;
    for (const AclEntry& entry : acl) {
        const bool known = entry.tag != 0 && entry.tag <= kOther && (entry.tag & (entry.tag - 1)) == 0;
        if (!known || (entry.perm & ~7u) != 0) return false;
        if (entry.tag < last || (entry.tag == last && !has_id(entry.tag))) return false;
        if (has_id(entry.tag) && entry.id == kNoId) return false;
        last = entry.tag;
        seen |= entry.tag;
    }
    constexpr std::uint32_t kNeeded = kUserObject | kGroupObject | kOther;
    return (seen & kNeeded) == kNeeded && ((seen & (kUser | kGroup)) == 0 || (seen & kMask) != 0);
}

}  // namespace

std::expected<Acl, int> parse_acl(std::span<const std::byte> value) {
    std::uint32_t version = 0;
    if (value.size() < sizeof(version)) return std::unexpected(EINVAL);
    std::memcpy(&version, value.data(), sizeof(version));
    if (version != kVersion) return std::unexpected(EOPNOTSUPP);
    value = value.subspan(sizeof(version));
    if (value.size() % sizeof(RawEntry) != 0) return std::unexpected(EINVAL);
    Acl acl;
    acl.reserve(value.size() / sizeof(RawEntry));
    for (; !value.empty(); value = value.subspan(sizeof(RawEntry))) {
        RawEntry raw;
        std::memcpy(&raw, value.data(), sizeof(raw));
        acl.push_back({.tag = raw.tag, .perm = raw.perm, .id = has_id(raw.tag) ? raw.id : kNoId});
    }
    if (!acl.empty() && !valid(acl)) return std::unexpected(EINVAL);
    return acl;
}

std::vector<std::byte> format_acl(const Acl& acl) {
    std::vector<std::byte> value(sizeof(kVersion) + acl.size() * sizeof(RawEntry));
    std::memcpy(value.data(), &kVersion, sizeof(kVersion));
    std::size_t at = sizeof(kVersion);
    for (const AclEntry& entry : acl) {
        const RawEntry raw{.tag = entry.tag, .perm = entry.perm, .id = entry.id};
        std::memcpy(value.data() + at, &raw, sizeof(raw));
        at += sizeof(raw);
    }
    return value;
}

AclMode mode_of(const Acl& acl) {
    AclMode mode{.permissions = 0, .complete = true};
    std::uint32_t group = 0;
    for (const AclEntry& entry : acl) {
        switch (entry.tag) {
            case kUserObject:
                mode.permissions |= std::uint32_t{entry.perm} << 6;
                break;
            case kGroupObject:
                group = entry.perm;
                break;
            case kOther:
                mode.permissions |= entry.perm;
                break;
            case kMask:
                mode.complete = false;
                break;
            default:
                mode.complete = false;
        }
    }
    for (const AclEntry& entry : acl) {
        if (entry.tag == kMask) group = entry.perm;
    }
    mode.permissions |= group << 3;
    return mode;
}

void change_mode(Acl& acl, std::uint32_t permissions) {
    const auto bits = [&](unsigned shift) { return static_cast<std::uint16_t>((permissions >> shift) & 7); };
    AclEntry* group = find(acl, kMask);
    if (group == nullptr) group = find(acl, kGroupObject);
    group->perm = bits(3);
    find(acl, kUserObject)->perm = bits(6);
    find(acl, kOther)->perm = bits(0);
}

Inherited inherit(const Acl& default_acl, std::uint32_t permissions) {
    Acl acl = default_acl;
    const auto limit = [&](AclEntry& entry, unsigned shift) {
        entry.perm = static_cast<std::uint16_t>(entry.perm & (permissions >> shift) & 7);
    };
    AclEntry* group = find(acl, kMask);
    if (group == nullptr) group = find(acl, kGroupObject);
    limit(*find(acl, kUserObject), 6);
    limit(*group, 3);
    limit(*find(acl, kOther), 0);
    const AclMode mode = mode_of(acl);
    Inherited result{.permissions = mode.permissions, .access = std::nullopt};
    if (!mode.complete) result.access = std::move(acl);
    return result;
}

}  // namespace farhaul::backend::memory
