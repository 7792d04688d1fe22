// Where a daemon can be asked how it does: a UNIX socket, mode 0600, named PID.sock in a folder that all daemons of a
// user share. Whoever connects gets one JSON document, and the connection is closed. A daemon that was killed leaves
// its socket behind; whoever finds it dead removes it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace farhaul::daemon {

/// $FARHAUL_RUN_DIR if that is set; /run/dpfs for root; otherwise $XDG_RUNTIME_DIR/dpfs, or /tmp/dpfs-UID without it.
std::string run_folder();

class ControlSocket {
 public:
    /// Makes the folder if need be. Fails if the folder belongs to someone else.
    static Result<ControlSocket> open(const std::string& folder = run_folder());
    ~ControlSocket();
    ControlSocket(ControlSocket&& other) noexcept;
    ControlSocket& operator=(ControlSocket&&) = delete;

    /// Readable when somebody has connected.
    int fd() const { return fd_; }
    const std::string& path() const { return path_; }
    /// Answers everybody who has connected. A client that does not read is given up after a second.
    void answer(const std::function<std::string()>& document);

 private:
    ControlSocket(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    int fd_ = -1;
    std::string path_;
};

/// The documents of all living daemons in the folder, in no order. Sockets of dead ones are removed.
std::vector<std::string> ask_all(const std::string& folder = run_folder());

}  // namespace farhaul::daemon
