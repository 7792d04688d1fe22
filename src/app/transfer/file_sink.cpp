#include "app/transfer/file_sink.hpp"

#include <cerrno>
#include <climits>
#include <set>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "app/transfer/part_files.hpp"

namespace farhaul::app::transfer {
namespace {

// Files wait for a common sync until there are so many of them or so many bytes.
constexpr std::size_t kMostPending = 64;
constexpr std::uint64_t kMostPendingBytes = 64u << 20;
// A file from this size on is synced at once by itself.
constexpr std::uint64_t kLargeFile = 8u << 20;
// Up to this many files are synced one by one; more cost less when their file system is synced as a whole.
constexpr std::size_t kSyncOneByOne = 4;
// Names looked at in search of stale part files: about 0.1 s, and 10 ms.
constexpr std::size_t kMostEntriesAtStart = 100'000;
constexpr std::size_t kMostEntriesPerFolder = 10'000;

std::string error_text(int error) {
    std::string text = std::generic_category().message(error);
    if (error == EMFILE) text += " (raise the limit of `ulimit -n`)";
    return text;
}

Outcome outcome_of(int error) {
    switch (error) {
        case ENOSPC:
        case EDQUOT:
            return Outcome::kNoSpace;
        case EACCES:
        case EPERM:
        case EROFS:
            return Outcome::kNotPermitted;
        case EEXIST:
            return Outcome::kExists;
        case ELOOP:
        case ENOTDIR:
            return Outcome::kNameRefused;
        default:
            return Outcome::kFailed;
    }
}

timespec timespec_of(std::int64_t ns) {
    std::int64_t seconds = ns / 1'000'000'000, rest = ns % 1'000'000'000;
    if (rest < 0) rest += 1'000'000'000, --seconds;
    return {.tv_sec = seconds, .tv_nsec = rest};
}

int rename_without_replacing(int folder, const char* from, const char* to) {
    if (::renameat2(folder, from, folder, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    // A file system that cannot: a hard link fails if the name exists.
    if (::linkat(folder, from, folder, to, 0) != 0) return -1;
    return ::unlinkat(folder, from, 0);
}

}  // namespace

Result<std::unique_ptr<FileSink>> FileSink::open(const SinkOptions& options) {
    std::unique_ptr<FileSink> sink(new FileSink(options));
    auto root = std::make_shared<Folder>();
    // The target is the user's own choice: a symlink there is followed.
    root->fd.reset(::open(options.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!root->fd && errno == ENOENT)
        return fail(ErrorCode::kIo, "the folder '{}' is not there: make it with `mkdir -p`, or name another with --out",
                    options.folder);
    if (!root->fd) return fail(ErrorCode::kIo, "cannot open the folder '{}': {}", options.folder, error_text(errno));
    if (::faccessat(root->fd.get(), ".", W_OK | X_OK, AT_EACCESS) != 0)
        return fail(ErrorCode::kIo, "cannot write to the folder '{}': {}", options.folder, error_text(errno));
    sink->folders_.push_back(std::move(root));
    return sink;
}

std::size_t FileSink::remove_stale() const {
    return remove_stale_parts(folders_[0]->fd.get(), kMaxDepth, kMostEntriesAtStart);
}

FileSink::~FileSink() { abandon(); }

void FileSink::abandon() {
    if (file_) remove_temporary(*file_);
    file_.reset();
    commit();
}

void FileSink::report(std::uint32_t index, Outcome outcome, std::string message) {
    ++files_failed_;
    if (first_failure_ == Outcome::kOk) first_failure_ = outcome;
    failures_.push_back({index, outcome, std::move(message)});
}

bool FileSink::end(Outcome outcome, std::string message) {
    outcome_ = outcome;
    message_ = std::move(message);
    if (outcome != Outcome::kOk) abandon();
    ended_ = true;
    return false;
}

bool FileSink::broken(const std::string& what) {
    return end(Outcome::kProtocol, "the sender broke the protocol: " + what);
}

bool FileSink::fail_file(Outcome outcome, const std::string& message) {
    file_->failed = outcome;
    remove_temporary(*file_);
    report(file_->index, outcome, fmt::format("'{}': {}", file_->path, message));
    return outcome == Outcome::kNoSpace ? end(outcome, failures_.back().message) : true;
}

bool FileSink::fail_file_errno(int error, const std::string& what) {
    return fail_file(outcome_of(error), what + ": " + error_text(error));
}

bool FileSink::consume(std::span<const std::byte> block) {
    if (ended_) return false;
    BlockReader reader(block);
    for (;;) {
        auto record = reader.next();
        if (!record) return broken(record.error().message);
        if (!*record) return true;
        if (!std::visit([this](const auto& r) { return take(r); }, **record)) return false;
    }
}

bool FileSink::take(const FolderRecord& record) {
    if (file_) return broken("a folder inside a file");
    if (folders_.size() > kMaxDepth) return broken("more than 200 folders inside each other");
    Folder& parent = *folders_.back();
    auto folder = std::make_shared<Folder>();
    folder->path = parent.path + printable(record.name) + "/";
    folder->attributes = record.attributes;
    folder->broken = parent.broken;
    if (parent.broken == Outcome::kOk) {
        if (auto checked = check_name(record.name); !checked) {
            folder->broken = Outcome::kNameRefused;
            report(kNoFile, folder->broken, checked.error().message);
        } else {
            const std::string name(record.name);
            folder->created = ::mkdirat(parent.fd.get(), name.c_str(), 0700) == 0;
            int error = folder->created || errno == EEXIST ? 0 : errno;
            if (error == 0) {
                do {
                    folder->fd.reset(
                        ::openat(parent.fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
                    error = folder->fd ? 0 : errno;
                } while (let_go_of_files(error));
            }
            if (error != 0) {
                folder->broken = outcome_of(error);
                report(kNoFile, folder->broken,
                       fmt::format("cannot make the folder '{}': {}", folder->path,
                                   error == ELOOP || error == ENOTDIR ? "something that is not a folder has that name"
                                                                      : error_text(error)));
                if (folder->broken == Outcome::kNoSpace) return end(Outcome::kNoSpace, failures_.back().message);
            }
        }
    }
    // Where the walk at the start did not get to.
    if (folder->fd && !folder->created) remove_stale_parts(folder->fd.get(), 0, kMostEntriesPerFolder);
    folders_.push_back(std::move(folder));
    return true;
}

bool FileSink::take(const FolderEndRecord&) {
    if (file_) return broken("a folder ends inside a file");
    if (folders_.size() <= 1) return broken("the end of a folder that never began");
    if (folders_.back()->created) pending_.push_back({.file = {}, .folder = folders_.back()});
    folders_.pop_back();
    if (pending_.size() >= kMostPending) commit();
    return true;
}

bool FileSink::take(const FileRecord& record) {
    if (file_) return broken("a file inside a file");
    if (record.index != next_index_++) return broken(fmt::format("file number {} out of order", record.index));
    file_.emplace();
    file_->folder = folders_.back();
    file_->index = record.index;
    file_->name = record.name;
    file_->path = folders_.back()->path + printable(record.name);
    file_->size = record.size;
    file_->attributes = record.attributes;
    digest_.reset();
    if (file_->folder->broken != Outcome::kOk) return fail_file(file_->folder->broken, "its folder could not be made");
    if (auto checked = check_name(record.name); !checked)
        return fail_file(Outcome::kNameRefused, checked.error().message);
    struct stat there{};
    if (::fstatat(file_->folder->fd.get(), file_->name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISDIR(there.st_mode)) return fail_file(Outcome::kExists, "a folder has that name");
        if (!options_.replace) return fail_file(Outcome::kExists, "exists already and is kept (--no-clobber)");
    }
    struct statvfs space{};
    if (::fstatvfs(file_->folder->fd.get(), &space) == 0 && space.f_frsize > 0 && space.f_blocks > 0 &&
        record.size / space.f_frsize > space.f_bavail)
        return fail_file(Outcome::kNoSpace, fmt::format("no space: it needs {} bytes, {} are free", record.size,
                                                        static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize));
    return create_temporary();
}

bool FileSink::let_go_of_files(int error) {
    if ((error != EMFILE && error != ENFILE) || pending_.empty()) return false;
    commit();
    return true;
}

bool FileSink::create_temporary() {
    for (int attempt = 0; attempt < 16; ++attempt) {
        std::string name = part_name(file_->name);
        const int fd =
            ::openat(file_->folder->fd.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 && !lock_part(fd)) {
            ::close(fd);  // a receiver that starts just now took it for a stale one
            continue;
        }
        if (fd >= 0) {
            file_->fd.reset(fd);
            file_->temporary = std::move(name);
            return true;
        }
        if (errno == EEXIST) continue;
        if (!let_go_of_files(errno)) break;
    }
    return fail_file_errno(errno, "cannot create it");
}

bool FileSink::take(const DataRecord& record) {
    if (!file_) return broken("data outside of a file");
    if (record.bytes.size() > file_->size - file_->written) return broken("more data than the file's size");
    if (file_->failed != Outcome::kOk) {
        file_->written += record.bytes.size();
        return true;
    }
    return write_file(record.bytes);
}

bool FileSink::write_file(std::span<const std::byte> bytes) {
    digest_.update(bytes);
    while (!bytes.empty()) {
        const ssize_t wrote = ::pwrite(file_->fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(file_->written));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return fail_file_errno(wrote < 0 ? errno : ENOSPC, "cannot write it");
        file_->written += static_cast<std::uint64_t>(wrote);
        bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    }
    return true;
}

bool FileSink::take(const FileEndRecord& record) {
    if (!file_) return broken("the end of a file that never began");
    ++files_ended_;
    bytes_ended_ += file_->size;
    if (file_->failed == Outcome::kOk) {
        if (file_->written != file_->size) return broken("a file that is shorter than it was announced");
        auto digest = digest_.finish();
        if (!digest) {
            if (!fail_file(Outcome::kFailed, digest.error().message)) return false;
        } else if (*digest != record.digest) {
            if (!fail_file(Outcome::kIntegrity, fmt::format("checksum differs: sent {}, written {}",
                                                            to_hex(record.digest), to_hex(*digest))))
                return false;
        } else {
            file_->digest = *digest;
            const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                       timespec_of(file_->attributes.modified_ns)};
            // Attributes are best effort: a file system without them still gets the data.
            if (::fchmod(file_->fd.get(), file_->attributes.mode & 0777u) != 0 ||
                ::futimens(file_->fd.get(), times) != 0)
                errno = 0;
            const std::uint64_t size = file_->size;
            pending_.push_back({.file = std::move(file_), .folder = {}});
            pending_bytes_ += size;
            file_.reset();
            if (size >= kLargeFile || pending_.size() >= kMostPending || pending_bytes_ >= kMostPendingBytes) commit();
            return first_failure_ != Outcome::kNoSpace || end(Outcome::kNoSpace, failures_.back().message);
        }
    }
    file_.reset();
    return true;
}

bool FileSink::take(const FileAbandonedRecord& record) {
    if (!file_) return broken("a file that never began is abandoned");
    if (file_->failed == Outcome::kOk &&
        !fail_file(Outcome::kAbandoned, "abandoned by the sender: " + printable(record.message)))
        return false;
    file_.reset();
    return true;
}

bool FileSink::take(const EndRecord& record) {
    if (file_ || folders_.size() != 1) return broken("the transfer ends inside a file or folder");
    if (record.files != files_ended_ || record.bytes != bytes_ended_)
        return broken(fmt::format("{} files and {} bytes announced, {} and {} received", record.files, record.bytes,
                                  files_ended_, bytes_ended_));
    commit();
    if (files_failed_ == 0) return end(Outcome::kOk, {});
    return end(first_failure_, files_failed_ == 1
                                   ? failures_.empty() ? "one file was not stored" : failures_.back().message
                                   : fmt::format("{} files or folders were not stored", files_failed_));
}

// --- giving files their names ---

void FileSink::sync_pending() {
    std::size_t files = 0;
    for (const Pending& p : pending_) files += p.file.has_value();
    std::set<dev_t> synced;
    for (Pending& p : pending_) {
        if (!p.file) continue;
        int error = 0;
        if (files <= kSyncOneByOne) {
            error = ::fsync(p.file->fd.get()) == 0 ? 0 : errno;
        } else {
            struct stat status{};
            if (::fstat(p.file->fd.get(), &status) != 0 || !synced.contains(status.st_dev)) {
                error = ::syncfs(p.file->fd.get()) == 0 ? 0 : errno;
                if (error == 0) synced.insert(status.st_dev);
            }
        }
        if (error != 0) {
            p.file->failed = outcome_of(error);
            report(p.file->index, p.file->failed,
                   fmt::format("'{}': cannot write it to the disk: {}", p.file->path, error_text(error)));
        }
    }
}

void FileSink::name_file(File& file) {
    const int folder = file.folder->fd.get();
    const int renamed = options_.replace ? ::renameat(folder, file.temporary.c_str(), folder, file.name.c_str())
                                         : rename_without_replacing(folder, file.temporary.c_str(), file.name.c_str());
    if (renamed != 0) {
        file.failed = outcome_of(errno);
        report(file.index, file.failed, fmt::format("'{}': cannot give it its name: {}", file.path, error_text(errno)));
        remove_temporary(file);
        return;
    }
    file.temporary.clear();
    ++files_stored_;
    bytes_stored_ += file.size;
    last_digest_ = file.digest;
    last_path_ = file.path;
}

void FileSink::remove_temporary(File& file) {
    file.fd.reset();
    if (!file.temporary.empty()) ::unlinkat(file.folder->fd.get(), file.temporary.c_str(), 0);
    file.temporary.clear();
}

void FileSink::commit() {
    if (options_.sync) sync_pending();
    std::set<std::shared_ptr<Folder>> changed;
    for (Pending& p : pending_) {
        if (p.file) {
            if (p.file->failed != Outcome::kOk) {
                remove_temporary(*p.file);
                continue;
            }
            name_file(*p.file);
            changed.insert(p.file->folder);
        } else {
            const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                       timespec_of(p.folder->attributes.modified_ns)};
            if (::fchmod(p.folder->fd.get(), p.folder->attributes.mode & 0777u) != 0 ||
                ::futimens(p.folder->fd.get(), times) != 0)
                errno = 0;
        }
    }
    // The names are part of what was promised: sync the folders as well.
    if (options_.sync)
        for (const auto& folder : changed) ::fsync(folder->fd.get());
    pending_.clear();
    pending_bytes_ = 0;
}

}  // namespace farhaul::app::transfer
