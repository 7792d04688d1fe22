#include "app/transfer/file_source.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>

namespace farhaul::app::transfer {
namespace {

Attributes attributes_of(const struct stat& status) {
    return {.mode = status.st_mode & 0777u,
            .modified_ns = static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

bool same_time(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

}  // namespace

SourceTotals count_tree(const std::vector<WalkRoot>& roots) {
    SourceTotals totals;
    TreeWalker walker(roots, [](const std::string&, bool) {});
    for (;;) {
        const WalkStep step = walker.next();
        if (step.kind == WalkStep::Kind::kEnd) return totals;
        if (step.kind == WalkStep::Kind::kFolder) ++totals.folders;
        if (step.kind == WalkStep::Kind::kFile) {
            ++totals.files;
            totals.bytes += static_cast<std::uint64_t>(step.status.st_size);
        }
    }
}

FileSource::FileSource(std::vector<WalkRoot> roots, TreeWalker::Warn warn)
    : walker_(std::move(roots),
              [this](const std::string& message, bool failed) {
                  ++(failed ? failed_ : skipped_);
                  if (warn_) warn_(message, failed);
              }),
      warn_(std::move(warn)) {}

void FileSource::give_up(std::uint32_t index) {
    give_up_[index % kGiveUpSlots].store(std::uint64_t{index} + 1, std::memory_order_relaxed);
}

bool FileSource::given_up(std::uint32_t index) const {
    return give_up_[index % kGiveUpSlots].load(std::memory_order_relaxed) == std::uint64_t{index} + 1;
}

bool FileSource::open_file(const WalkStep& step) {
    OpenFile file;
    file.path = step.path;
    file.name = step.name;
    // O_NONBLOCK: should a pipe have taken the file's place meanwhile, opening it must not hang.
    file.fd.reset(::openat(step.parent_fd, step.open_name.c_str(),
                           O_RDONLY | O_CLOEXEC | O_NONBLOCK | (step.follow ? 0 : O_NOFOLLOW)));
    if (!file.fd || ::fstat(file.fd.get(), &file.status) != 0 || !S_ISREG(file.status.st_mode)) {
        ++failed_;
        if (warn_)
            warn_("cannot read '" + step.path + "': " +
                      (file.fd ? std::string("it is no longer a file") : std::generic_category().message(errno)),
                  true);
        return false;
    }
    ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    file.record.index = next_index_++;
    file.record.size = static_cast<std::uint64_t>(file.status.st_size);
    file.record.attributes = attributes_of(file.status);
    file_ = std::move(file);
    digest_.reset();
    return true;
}

bool FileSource::end_file(BlockWriter& writer) {
    OpenFile& file = *file_;
    if (file.abandoned.empty() && !file.digest) {
        struct stat now{};
        if (::fstat(file.fd.get(), &now) == 0 && now.st_size != file.status.st_size)
            file.abandoned = "it changed size while it was being sent";
        else if (!same_time(now.st_mtim, file.status.st_mtim) && warn_)
            warn_("'" + file.path + "' was written to while it was being sent: the copy may be a mixture", false);
    }
    if (file.abandoned.empty() && !file.digest) {
        auto digest = digest_.finish();
        if (digest)
            file.digest = *digest;
        else
            file.abandoned = digest.error().message;
    }
    if (file.digest) {
        if (!writer.add(FileEndRecord{*file.digest})) return false;
        last_digest_ = file.digest;
        ++sent_.files;
        sent_.bytes += file.record.size;
    } else {
        if (!writer.add(FileAbandonedRecord{file.abandoned})) return false;
        ++failed_;
        if (warn_ && !given_up(file.record.index)) warn_("'" + file.path + "' was not sent: " + file.abandoned, true);
    }
    file_.reset();
    return true;
}

bool FileSource::continue_file(BlockWriter& writer) {
    OpenFile& file = *file_;
    if (!file.digest && given_up(file.record.index)) file.abandoned = "the receiver refused it";
    if (!file.abandoned.empty() || file.done == file.record.size) return end_file(writer);
    const auto room = writer.data_room(file.record.size - file.done);
    if (room.empty()) return false;
    ssize_t got;
    do got = ::pread(file.fd.get(), room.data(), room.size(), static_cast<off_t>(file.done));
    while (got < 0 && errno == EINTR);
    if (got <= 0) {
        file.abandoned = got == 0 ? "it became shorter while it was being sent"
                                  : "cannot read it: " + std::generic_category().message(errno);
        return end_file(writer);
    }
    digest_.update(room.first(static_cast<std::size_t>(got)));
    writer.commit_data(static_cast<std::size_t>(got));
    file.done += static_cast<std::uint64_t>(got);
    return true;
}

bool FileSource::add_step(BlockWriter& writer) {
    switch (pending_->kind) {
        case WalkStep::Kind::kFolder: {
            if (!writer.add(FolderRecord{pending_->name, attributes_of(pending_->status)})) return false;
            ++sent_.folders;
            break;
        }
        case WalkStep::Kind::kFolderEnd:
            if (!writer.add(FolderEndRecord{})) return false;
            break;
        case WalkStep::Kind::kFile:
            if (!file_ && !open_file(*pending_)) break;
            file_->record.name = file_->name;
            if (!writer.add(file_->record)) return false;
            break;
        case WalkStep::Kind::kEnd:
            if (!writer.add(EndRecord{sent_.files, sent_.bytes})) return false;
            ended_ = true;
            break;
    }
    pending_.reset();
    return true;
}

std::size_t FileSource::fill(std::span<std::byte> block) {
    BlockWriter writer(block);
    while (!ended_) {
        if (!pending_ && !file_) pending_ = walker_.next();
        if (!(pending_ ? add_step(writer) : continue_file(writer))) break;
    }
    return writer.size();
}

}  // namespace farhaul::app::transfer
