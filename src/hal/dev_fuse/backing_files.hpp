// Backing files by ioctls of the mount's descriptor (Linux 6.9). Need CAP_SYS_ADMIN.
#pragma once

#include <cerrno>

#include <sys/ioctl.h>

#include "fuse/abi.hpp"
#include "fuse/types.hpp"

namespace farhaul::hal {

class DeviceBackingFiles final : public fuse::BackingFiles {
 public:
    explicit DeviceBackingFiles(int device) : device_(device) {}
    std::int32_t open(int fd) override {
        fuse::abi::BackingMap map{.fd = fd, .flags = 0, .padding = 0};
        const int id = ::ioctl(device_, fuse::abi::kDevIocBackingOpen, &map);
        return id < 0 ? -errno : id > 0 ? id : -EINVAL;
    }
    void close(std::int32_t id) override {
        auto number = static_cast<std::uint32_t>(id);
        ::ioctl(device_, fuse::abi::kDevIocBackingClose, &number);
    }

 private:
    int device_;
};

}  // namespace farhaul::hal
