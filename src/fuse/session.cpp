#include "fuse/session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fuse/arguments.hpp"

namespace farhaul::fuse {

namespace {

constexpr std::uint32_t kPage = 4096;
/// More arguments than the largest operation has (SETXATTR: 64 KiB of value): nobody honest sends more.
constexpr std::size_t kMostArguments = 72 * 1024;

bool has_reply(std::uint32_t opcode) {
    return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT;
}

/// Bytes behind the reply's header that a successful reply has, where that is fixed.
std::size_t reply_size(std::uint32_t opcode) {
    switch (opcode) {
        case FUSE_LOOKUP:
        case FUSE_MKNOD:
        case FUSE_MKDIR:
        case FUSE_SYMLINK:
        case FUSE_LINK:
            return sizeof(fuse_entry_out);
        case FUSE_CREATE:
        case abi::kTmpfile:
            return sizeof(fuse_entry_out) + sizeof(fuse_open_out);
        case FUSE_GETATTR:
        case FUSE_SETATTR:
            return sizeof(fuse_attr_out);
        case abi::kStatx:
            return sizeof(abi::StatxOut);
        case FUSE_OPEN:
        case FUSE_OPENDIR:
            return sizeof(fuse_open_out);
        case FUSE_WRITE:
        case FUSE_COPY_FILE_RANGE:
            return sizeof(fuse_write_out);
        case abi::kCopyFileRange64:
            return sizeof(abi::CopyFileRangeOut);
        case FUSE_STATFS:
            return sizeof(fuse_statfs_out);
        case FUSE_GETLK:
            return sizeof(fuse_lk_out);
        case FUSE_LSEEK:
            return sizeof(fuse_lseek_out);
        case FUSE_BMAP:
            return sizeof(fuse_bmap_out);
        case FUSE_INIT:
            return sizeof(abi::InitOut);
        case FUSE_READLINK:
            return 1;
        default:
            return 0;
    }
}

/// Operations that change the file system whatever their arguments are.
bool changes(std::uint32_t opcode) {
    switch (opcode) {
        case FUSE_SETATTR:
        case FUSE_SYMLINK:
        case FUSE_MKNOD:
        case FUSE_MKDIR:
        case FUSE_UNLINK:
        case FUSE_RMDIR:
        case FUSE_RENAME:
        case FUSE_RENAME2:
        case FUSE_LINK:
        case FUSE_WRITE:
        case FUSE_SETXATTR:
        case FUSE_REMOVEXATTR:
        case FUSE_CREATE:
        case abi::kTmpfile:
        case FUSE_FALLOCATE:
        case FUSE_COPY_FILE_RANGE:
        case abi::kCopyFileRange64:
            return true;
        default:
            return false;
    }
}

/// The group in the extensions, if there is one; they were cut to fit, but are the client's otherwise.
void take_supplementary_group(std::span<const std::byte> extensions, Caller& caller) {
    while (extensions.size() >= sizeof(fuse_ext_header)) {
        fuse_ext_header head;
        std::memcpy(&head, extensions.data(), sizeof(head));
        if (head.size < sizeof(head) || head.size > extensions.size()) return;
        struct {
            abi::SuppGroups groups;
            std::uint32_t first;
        } body;
        if (head.type == abi::kExtGroups && head.size >= sizeof(head) + sizeof(body)) {
            std::memcpy(&body, extensions.data() + sizeof(head), sizeof(body));
            if (body.groups.nr_groups != 0) {
                caller.supplementary_gid = body.first;
                caller.has_supplementary_gid = true;
            }
        }
        extensions = extensions.subspan(head.size);
    }
}

}  // namespace

Session::Session(FileSystem& file_system, Options options, Clock clock)
    : file_system_(file_system), options_(options), clock_(clock) {
    options_.max_write = std::clamp<std::uint32_t>((options_.max_write + kPage - 1) / kPage * kPage, kPage, 32u << 20);
}

Session::~Session() { disconnect(); }

void Session::disconnect() {
    if (initialized_.exchange(false)) file_system_.destroy();
}

std::size_t Session::max_reply() const { return sizeof(fuse_out_header) + options_.max_write; }

OperationCounters& Session::counters_of(std::uint32_t opcode) {
    OperationCounters* counters = counters_[opcode].load(std::memory_order_acquire);
    if (counters != nullptr) return *counters;
    const std::scoped_lock lock(counters_mutex_);
    if (counters_owned_[opcode] == nullptr) {
        counters_owned_[opcode] = std::make_unique<OperationCounters>();
        counters_[opcode].store(counters_owned_[opcode].get(), std::memory_order_release);
    }
    return *counters_owned_[opcode];
}

void Session::reject(Request& request, int error_number) {
    malformed_.fetch_add(1, std::memory_order_relaxed);
    if (!has_reply(request.opcode()) || (request.reply_header_ == nullptr && request.scattered_header_.empty()))
        return request.complete(0);
    request.reply_error(error_number);
}

void Session::handle(Request& request) {
    request.session_ = this;
    request.counters_ = nullptr;
    request.header_ = {};
    request.scattered_header_.clear();
    const bool has_room = request.take_reply_header();
    const std::size_t in_size = total_size(request.in_);
    fuse_in_header& header = request.header_;
    ScatterReader reader(request.in_);
    if (in_size < sizeof(header) || reader.read(&header, sizeof(header)) != sizeof(header)) {
        header = {};
        return reject(request, EINVAL);
    }
    request.caller_ = {.uid = header.uid, .gid = header.gid, .pid = header.pid};
    if (header.opcode < abi::kOpcodes && operation_name(header.opcode) != nullptr)
        request.counters_ = &counters_of(header.opcode);
    if (clock_ != nullptr) request.started_ns_ = clock_();
    if (!has_room && has_reply(header.opcode)) return reject(request, EINVAL);
    const std::size_t extensions = std::size_t{header.total_extlen} * 8;
    if (header.len != in_size || extensions > in_size - sizeof(header)) return reject(request, EINVAL);

    // The data of a WRITE and the list of a BATCH_FORGET stay where they are; all else is small and copied.
    std::size_t size = in_size - sizeof(header);
    if (header.opcode == FUSE_WRITE) size = std::min(size, sizeof(fuse_write_in));
    if (header.opcode == FUSE_BATCH_FORGET) size = std::min(size, sizeof(fuse_batch_forget_in));
    if (header.opcode == FUSE_IOCTL) size = std::min(size, sizeof(fuse_ioctl_in));
    if (size > kMostArguments) return reject(request, E2BIG);
    std::span<std::byte> bytes(request.inline_arguments_.data(), std::min(size, request.inline_arguments_.size()));
    if (size > bytes.size()) {
        if (request.long_arguments_.size() < size) request.long_arguments_.resize(size);
        bytes = std::span(request.long_arguments_).first(size);
    }
    reader.read(bytes.data(), bytes.size());
    if (extensions != 0 && bytes.size() == in_size - sizeof(header)) {
        take_supplementary_group(bytes.last(extensions), request.caller_);
        bytes = bytes.first(bytes.size() - extensions);
    }
    Arguments arguments(bytes);

    switch (header.opcode) {
        case FUSE_INIT:
            return init(request, arguments);
        case FUSE_INTERRUPT: {
            const auto in = arguments.take<fuse_interrupt_in>();
            if (arguments.end() != 0) return reject(request, EINVAL);
            return interrupt(request, in.unique);
        }
        default:
            break;
    }
    if (!initialized()) return reject(request, EIO);
    if (header.nodeid == 0 && header.opcode != FUSE_DESTROY && header.opcode != FUSE_BATCH_FORGET)
        return reject(request, EINVAL);
    if (reply_size(header.opcode) > request.out_size_) return reject(request, EINVAL);
    if (options_.read_only && changes(header.opcode)) return request.reply_error(EROFS);
    dispatch(request, arguments);
}

// ---- INIT.

std::uint64_t Session::negotiate(std::uint64_t offered) const {
    const Wishes wishes = file_system_.wishes();
    std::uint64_t wanted = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_AUTO_INVAL_DATA | FUSE_ASYNC_DIO |
                           FUSE_ABORT_ERROR | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS | FUSE_INIT_EXT | FUSE_SETXATTR_EXT |
                           abi::kCreateSuppGroup | abi::kDirectIoAllowMmap;
    const auto want = [&](bool condition, std::uint64_t flags) {
        if (condition) wanted |= flags;
    };
    want(wishes.posix_locks, FUSE_POSIX_LOCKS);
    want(wishes.flock, FUSE_FLOCK_LOCKS);
    want(wishes.posix_acl && options_.posix_acl, FUSE_POSIX_ACL | FUSE_DONT_MASK);
    want(wishes.handle_kill_priv, FUSE_HANDLE_KILLPRIV_V2);
    want(wishes.atomic_o_trunc, FUSE_ATOMIC_O_TRUNC);
    want(wishes.readdirplus, FUSE_DO_READDIRPLUS);
    want(wishes.readdirplus && !options_.readdirplus_always, FUSE_READDIRPLUS_AUTO);
    want(wishes.parallel_directory_operations, FUSE_PARALLEL_DIROPS);
    want(wishes.export_support, FUSE_EXPORT_SUPPORT);
    want(wishes.submounts, FUSE_SUBMOUNTS);
    want(options_.writeback_cache, FUSE_WRITEBACK_CACHE);
    want(options_.over_io_uring, abi::kOverIoUring);
    // The kernel has either its own dirty pages of a file or the backing file's.
    want(options_.passthrough && wishes.passthrough && backing_files_ != nullptr && !options_.writeback_cache,
         abi::kPassthrough);
    return wanted & offered & ~options_.never;
}

void Session::init(Request& request, Arguments& arguments) {
    // Before 7.36 the struct ended with `flags`, and a client of a higher major version may say anything behind the
    // version.
    struct Version {
        std::uint32_t major, minor;
    };
    const auto version = arguments.take<Version>();
    if (version.major < abi::kMajor) return reject(request, EPROTO);
    if (sizeof(abi::InitOut) > request.out_size_) return reject(request, EINVAL);
    abi::InitOut out{};
    out.major = abi::kMajor;
    if (version.major > abi::kMajor) return request.finish_with(&out, sizeof(out));  // it will ask again, with ours
    struct Limits {
        std::uint32_t max_readahead, flags;
    };
    const auto limits = arguments.take<Limits>();
    if (arguments.error() != 0) return reject(request, EINVAL);
    if (version.minor < abi::kOldestMinor) return reject(request, EPROTO);
    std::uint64_t offered = limits.flags;
    if ((offered & FUSE_INIT_EXT) != 0 && arguments.remaining() >= sizeof(std::uint32_t))
        offered |= std::uint64_t{arguments.take<std::uint32_t>()} << 32;

    const std::scoped_lock lock(init_mutex_);
    if (initialized()) return reject(request, EIO);
    connection_.minor = std::min(version.minor, abi::kMinor);
    connection_.flags = negotiate(offered);
    connection_.max_write = options_.max_write;
    // Without MAX_PAGES a request has 32 pages.
    if (!connection_.has(FUSE_MAX_PAGES)) connection_.max_write = std::min(options_.max_write, 32 * kPage);
    connection_.backing_files = connection_.has(abi::kPassthrough) ? backing_files_ : nullptr;
    connection_.max_readahead = std::min(limits.max_readahead, options_.max_readahead);

    out.minor = abi::kMinor;
    out.max_readahead = connection_.max_readahead;
    out.flags = static_cast<std::uint32_t>(connection_.flags);
    out.flags2 = static_cast<std::uint32_t>(connection_.flags >> 32);
    out.max_background = options_.max_background;
    out.congestion_threshold = static_cast<std::uint16_t>(options_.max_background / 4 * 3);
    out.max_write = connection_.max_write;
    out.time_gran = 1;
    // 1: backing files may not be on a stacked file system themselves, and one (overlayfs) may be stacked on this.
    if (connection_.has(abi::kPassthrough)) out.max_stack_depth = 1;
    if (connection_.has(FUSE_MAX_PAGES)) out.max_pages = static_cast<std::uint16_t>(connection_.max_write / kPage);
    file_system_.init(connection_);
    initialized_.store(true, std::memory_order_release);
    request.finish_with(&out, sizeof(out));
}

// ---- INTERRUPT.

void Session::interrupt(Request& request, std::uint64_t unique) {
    if (initialized() && unique != 0) {
        // Remembered first: the SETLKW that it means looks after it has begun to wait, so one of the two finds the
        // other.
        {
            const std::scoped_lock lock(interrupts_mutex_);
            early_interrupts_[next_early_interrupt_++ % kEarlyInterrupts] = unique;
        }
        if (file_system_.interrupt(unique)) {
            const std::scoped_lock lock(interrupts_mutex_);
            std::ranges::replace(early_interrupts_, unique, std::uint64_t{0});
        }
    }
    request.reply_none();
}

void Session::set_lock(Request& request, const LockRequest& lock) {
    const std::uint64_t unique = request.unique();
    file_system_.setlk(request, lock);
    if (!lock.wait) return;
    bool interrupted = false;
    {
        const std::scoped_lock guard(interrupts_mutex_);
        if (const auto early = std::ranges::find(early_interrupts_, unique); early != early_interrupts_.end()) {
            *early = 0;
            interrupted = true;
        }
    }
    if (interrupted) file_system_.interrupt(unique);
}

}  // namespace farhaul::fuse
