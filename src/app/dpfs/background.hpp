// A program that goes into the background once it has begun: the one who started it learns whether it did.
#pragma once

namespace farhaul::app::dpfs {

class Background {
 public:
    /// Forks. The parent waits until the child has called started(), and exits with its word or, if the child died,
    /// with kExitFailure; the child returns from here, in a session of its own. To be called before any thread is made.
    /// `stay`: does nothing at all, nor does started() then.
    explicit Background(bool stay);
    /// The child: lets the parent exit with kExitOk, goes to "/", closes the terminal, and logs to syslog from now on.
    void started();

 private:
    int pipe_ = -1;
};

}  // namespace farhaul::app::dpfs
