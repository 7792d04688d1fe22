#include <cerrno>

#include <fcntl.h>

#include "backend/mirror/mirror_file_system.hpp"

namespace farhaul::backend::mirror {

int MirrorFileSystem::try_lock(const LockWaiters::Waiter& waiter) {
    if (waiter.lock.flock) return set_flock(waiter.file->fd.get(), waiter.lock.lock.type);
    return set_record_lock(*waiter.file->inode, waiter.file->fd.get(), waiter.lock);
}

void MirrorFileSystem::getlk(Request& request, const fuse::LockRequest& lock) {
    const FilePtr file = files_.find(lock.handle, false);
    if (file == nullptr) return request.reply_error(EBADF);
    fuse::FileLock found = lock.lock;
    if (const int error = get_record_lock(*file->inode, file->fd.get(), lock.owner, found); error != 0)
        return request.reply_error(error);
    request.reply_lock(found);
}

void MirrorFileSystem::setlk(Request& request, const fuse::LockRequest& lock) {
    FilePtr file = files_.find(lock.handle, false);
    // Directories can be locked as a whole.
    if (file == nullptr && lock.flock) file = files_.find(lock.handle, true);
    if (file == nullptr) return request.reply_error(EBADF);
    LockWaiters::Waiter waiter{&request, lock, std::move(file)};
    const int error = try_lock(waiter);
    if (error == EAGAIN && lock.wait) {
        const std::uint64_t unique = request.unique();
        const bool directory = waiter.file->directory;
        waiters_.wait(std::move(waiter));
        // The open file ended meanwhile, and destroy() may have missed who waits through it.
        if (files_.find(lock.handle, directory) == nullptr) waiters_.interrupt(unique);
        return;
    }
    // Unlocked, or less locked than it was.
    if (error == 0 && lock.lock.type != F_WRLCK) waiters_.wake();
    if (error != 0) return request.reply_error(error);
    request.reply_ok();
}

bool MirrorFileSystem::interrupt(std::uint64_t unique) { return waiters_.interrupt(unique); }

}  // namespace farhaul::backend::mirror
