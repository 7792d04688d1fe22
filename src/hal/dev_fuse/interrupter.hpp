// When the connection has ended, a lock request may still wait for a lock that nobody will release: told that its
// caller was interrupted, it ends.
#pragma once

#include <array>
#include <cstdint>

#include <sys/uio.h>

#include "fuse/request.hpp"
#include "fuse/session.hpp"

namespace farhaul::hal {

class Interrupter : public fuse::Request {
 public:
    void interrupt(fuse::Session& session, std::uint64_t unique) {
        message_ = {};
        message_.header.len = sizeof(message_);
        message_.header.opcode = FUSE_INTERRUPT;
        message_.header.unique = unique | 1;  // the kernel's own interrupts are numbered so
        message_.body.unique = unique;
        in_ = {iovec{&message_, sizeof(message_)}};
        out_ = {iovec{&reply_, sizeof(reply_)}};
        prepare(in_, out_);
        session.handle(*this);
    }

 private:
    void complete(std::size_t) override {}
    struct Message {
        fuse_in_header header;
        fuse_interrupt_in body;
    };
    Message message_{};
    fuse_out_header reply_{};
    std::array<iovec, 1> in_{};
    std::array<iovec, 1> out_{};
};

}  // namespace farhaul::hal
