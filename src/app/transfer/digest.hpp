// SHA-256 of a stream, by OpenSSL (which uses the CPU's SHA instructions where there are some).
#pragma once

#include <memory>
#include <span>

#include <openssl/evp.h>

#include "app/transfer/protocol.hpp"

namespace farhaul::app::transfer {

class DigestStream {
 public:
    DigestStream() : context_(EVP_MD_CTX_new()) { reset(); }
    void reset() { good_ = context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1; }
    void update(std::span<const std::byte> bytes) {
        if (good_) good_ = EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1;
    }
    /// Ends the stream; reset() before the next. Errors: kUnsupported when OpenSSL refuses (no memory, SHA-256
    /// disabled).
    Result<Digest> finish() {
        Digest digest{};
        unsigned int size = 0;
        if (good_)
            good_ = EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), &size) == 1;
        if (!good_ || size != digest.size())
            return fail(ErrorCode::kUnsupported, "OpenSSL cannot compute SHA-256 on this system");
        return digest;
    }

 private:
    struct Free {
        void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
    };
    std::unique_ptr<EVP_MD_CTX, Free> context_;
    bool good_ = false;
};

}  // namespace farhaul::app::transfer
