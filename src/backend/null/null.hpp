// `null:`: answers at once. The root holds one file, "null", of 8 EiB less a page, whose reads return zeros and whose
// writes vanish. For measuring what is around it: HAL and protocol.
#pragma once

#include <memory>

#include "fuse/file_system.hpp"

namespace farhaul::backend {

struct NullOptions {
    /// READ fills the client's memory with zeros. False: it is left as it is (measures the protocol without the copy;
    /// only for clients that may see what was in their own buffers).
    bool zero = true;
    Duration timeout = Duration::from_seconds(3600);  ///< of names and attributes
};

std::unique_ptr<fuse::FileSystem> make_null(NullOptions options = {});

}  // namespace farhaul::backend
