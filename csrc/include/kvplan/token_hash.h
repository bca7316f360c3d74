#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvplan/export.h"

namespace kvplan {

/// What the bytes that SHA-256 sees look like; names as in vLLM's `--prefix-caching-hash-algo`.
enum class TokenHashAlgorithm : uint8_t {
  kSha256,      ///< Python's pickle, protocol 5: vLLM's default
  kSha256Cbor,  ///< canonical CBOR
};

using TokenHash = std::array<uint8_t, 32>;

/// Hashes blocks of tokens, each over its parent's hash, byte by byte as vLLM does for blocks
/// without extra keys. Mirrors vllm/v1/core/kv_cache_utils.py::hash_block_tokens (0.33).
///
/// SHA-256 is that of libcrypto (OpenSSL), which is loaded when the first hasher is made. An object
/// is for one thread at a time.
class KVPLAN_API TokenHasher {
 public:
  /// Tokens of the largest block: what Python still pickles as one frame, rounded down.
  static constexpr int64_t kMaxBlockTokens = 8192;

  /// `block_size`: tokens of a block. `num_lookahead_tokens`: tokens behind a block that its hash
  /// covers too, `CacheManager::num_hash_lookahead_tokens`. Throws InvalidArgument if their sum is
  /// not in 1..kMaxBlockTokens, Unsupported if there is no libcrypto.
  TokenHasher(TokenHashAlgorithm algorithm, int64_t block_size, int64_t num_lookahead_tokens = 0);

  /// The parent of a request's first block. `seed`: vLLM's default, or the value of its
  /// PYTHONHASHSEED; at most 255 bytes of ASCII, else InvalidArgument.
  /// Mirrors vllm/v1/core/kv_cache_utils.py::init_none_hash (0.33).
  TokenHash none_hash(std::string_view seed = "vllm-none-hash");

  /// Hashes `hashes.size()` blocks, the first one over `parent`. `tokens`: at least as many blocks
  /// of token ids and the last one's lookahead, not negative. Throws InvalidArgument and leaves
  /// `hashes` undefined.
  void hash_blocks(const TokenHash& parent, std::span<const int32_t> tokens,
                   std::span<TokenHash> hashes);

  int64_t block_size() const noexcept { return block_size_; }

 private:
  struct Block {
    std::span<const int32_t> tokens;
    std::span<const int32_t> lookahead;
  };
  size_t write_pickle(const TokenHash& parent, const Block& block);
  size_t write_cbor(const TokenHash& parent, const Block& block);
  TokenHash sha256(size_t num_bytes);

  TokenHashAlgorithm algorithm_;
  int64_t block_size_;
  int64_t num_lookahead_tokens_;
  std::vector<uint8_t> bytes_;  // what is hashed next
};

}  // namespace kvplan
