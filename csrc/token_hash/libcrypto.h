#pragma once

#include <cstddef>

namespace kvplan {

/// SHA-256 of the libcrypto that the process finds. Its low-level functions, since they keep the
/// state in the caller's memory: a short message takes a third of the time of the one-shot call.
struct Sha256 {
  using Init = int (*)(void* state);
  using Update = int (*)(void* state, const void* data, size_t size);
  using Final = int (*)(unsigned char* digest, void* state);

  /// More than the 112 bytes of SHA256_CTX in every OpenSSL, LibreSSL and BoringSSL.
  static constexpr size_t kStateBytes = 256;

  Init init;
  Update update;
  Final final;
};

/// Loaded at the first call, so that nothing needs OpenSSL's headers. Throws Unsupported if no
/// libcrypto with these functions is found.
const Sha256& libcrypto_sha256();

}  // namespace kvplan
