// A mount on this host: requests of the kernel's FUSE client, taken from /dev/fuse and served by one fuse::Session.
//
// Two transports, chosen at INIT:
// - classic: every thread has its own descriptors, cloned from the one that was mounted. It serves by read(2) and
//   write(2), and by an io_uring of its own while requests are under way (device_queue.hpp).
// - over io_uring: Linux 6.14 and later, when root has turned it on. One queue for each CPU, served by a thread on
//   that CPU; a request needs neither a read nor a write (uring_worker.hpp). FORGET and INTERRUPT still come the
//   classic way.
//
// Life: create() mounts and serves. The connection ends by unmount(), by umount(8), or when the kernel gives it up;
// ended_fd() tells. Then what is under way is interrupted and waited for, and the session is disconnected.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/mount.h>

#include "base/result.hpp"
#include "base/time.hpp"
#include "fuse/session.hpp"
#include "io/unique_fd.hpp"

namespace farhaul::hal {

struct MountOptions {
    std::string mountpoint;                      ///< a directory, or a regular file if the file system's root is one
    std::string source;                          ///< what mount(8) shows as the device
    std::string subtype = "dpfs";                ///< the type is "fuse." and this
    unsigned long flags = MS_NOSUID | MS_NODEV;  ///< MS_* of mount(2)
    bool allow_other = true;     ///< users other than the mounting one may enter; root only, see create()
    std::uint32_t max_read = 0;  ///< bytes in one READ, 4096 or more; 0: as the session says
    unsigned threads = 0;        ///< of the classic transport, 1 to 64; 0: one per CPU, at most 8
    unsigned queue_depth = 0;    ///< requests under way per thread, 1 to 1024; 0: 16, over io_uring 8
};

enum class Transport { kClassic, kIoUring };

/// Whether this kernel takes requests over io_uring now; if not, the message says why and what to do.
Status io_uring_available();

class DeviceBackingFiles;
class DeviceQueue;
class UringWorker;
struct Service;

class Mount {
 public:
    /// Mounts and starts to serve. As root by mount(2); otherwise through fusermount3(1), which allows `allow_other`
    /// only if /etc/fuse.conf does, so it is left out unless the option was asked for on purpose by the caller. A dead
    /// mount of the same type on the mountpoint (its server was killed) is taken away first, and that is logged. If the
    /// session wants `over_io_uring`, io_uring_available() must hold. The session must outlive the mount.
    static Result<std::unique_ptr<Mount>> create(fuse::Session& session, MountOptions options);
    /// As unmount().
    ~Mount();
    Mount(const Mount&) = delete;
    Mount& operator=(const Mount&) = delete;

    /// Waits until the kernel and the session have agreed (INIT): from then on the files are there.
    Status wait_until_ready(Duration limit);
    /// The transport that serves now.
    Transport transport() const;
    unsigned threads() const { return static_cast<unsigned>(threads_.size()); }
    const std::string& mountpoint() const { return options_.mountpoint; }

    /// Readable once the connection has ended, whoever ended it.
    int ended_fd() const;
    /// It ended by an error of this side, which was logged, not by being unmounted or given up.
    bool failed() const;
    /// Unmounts; a mount that is in use is written back and detached, and its open files fail from now on. Waits for
    /// what is under way. Must not be called by two threads at once.
    void unmount();

 private:
    Mount(fuse::Session& session, MountOptions options);
    Status attach();
    Status start_threads();
    void start_io_uring();
    void detach();

    fuse::Session& session_;
    MountOptions options_;
    io::UniqueFd device_;
    std::unique_ptr<DeviceBackingFiles> backing_files_;
    std::string device_number_;  // of the mounted file system, as mountinfo writes it
    std::unique_ptr<Service> service_;
    std::vector<std::unique_ptr<DeviceQueue>> queues_;
    std::vector<std::unique_ptr<UringWorker>> workers_;
    std::vector<std::thread> threads_;
    bool finished_ = false;
};

}  // namespace farhaul::hal
