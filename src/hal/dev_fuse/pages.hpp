// Page-aligned memory that costs nothing until it is touched.
#pragma once

#include <cstddef>
#include <utility>

#include <sys/mman.h>

namespace farhaul::hal {

class Pages {
 public:
    Pages() = default;
    Pages(Pages&& other) noexcept : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Pages& operator=(Pages&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Pages() {
        if (base_ != nullptr) ::munmap(base_, size_);
    }
    /// Empty if there is no room. `size`: a multiple of the page.
    static Pages map(std::size_t size) {
        Pages pages;
        void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base != MAP_FAILED) pages.base_ = static_cast<std::byte*>(base), pages.size_ = size;
        return pages;
    }
    std::byte* data() const { return base_; }
    std::size_t size() const { return size_; }
    explicit operator bool() const { return base_ != nullptr; }

 private:
    std::byte* base_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace farhaul::hal
