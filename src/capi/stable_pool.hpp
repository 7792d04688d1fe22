// Where the objects behind the C pointers live: never unmapped, so that a pointer that was released or destroyed can be
// recognised (its `magic` is not the live one) instead of being a use after free. Released objects rest behind a queue
// before they are handed out again, which keeps a late second release from hitting a new owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

namespace farhaul::capi {

/// First word of every object behind a C pointer. Distinct per type, so that a pointer of the wrong kind is noticed as
/// well.
enum class Magic : std::uint32_t {
    kReleased = 0,
    kContext = 0x5344'5243,
    kQueuePair = 0x5344'5251,
    kRegion = 0x5344'524d,
    kSend = 0x5344'5253,
    kReceive = 0x5344'5252,
};

/// T has `std::atomic<Magic> magic` and `static constexpr Magic kMagic`; the owner sets T's fields and calls publish().
template <typename T>
class StablePool {
 public:
    /// The pool of the process. Never destroyed: pointers may be used from other static destructors.
    static StablePool& instance() {
        static auto* pool = new StablePool;
        return *pool;
    }

    T* acquire() {
        const std::lock_guard lock(mutex_);
        if (resting_.size() > kResting) {
            T* object = resting_.front();
            resting_.pop_front();
            return object;
        }
        return &storage_.emplace_back();
    }
    static void publish(T* object) { object->magic.store(T::kMagic, std::memory_order_release); }
    /// The object's fields must be empty again.
    void release(T* object) {
        object->magic.store(Magic::kReleased, std::memory_order_release);
        const std::lock_guard lock(mutex_);
        resting_.push_back(object);
    }
    /// Whether `object` is alive. Null is not.
    static bool live(const T* object) {
        return object != nullptr && object->magic.load(std::memory_order_acquire) == T::kMagic;
    }

 private:
    static constexpr std::size_t kResting = 256;
    std::mutex mutex_;
    std::deque<T> storage_;
    std::deque<T*> resting_;
};

}  // namespace farhaul::capi
