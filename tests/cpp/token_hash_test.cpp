#include "kvplan/token_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "kvplan/errors.h"

namespace kvplan {
namespace {

std::string hex(const TokenHash& hash) {
  std::string text;
  for (const uint8_t byte : hash) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

// Two blocks with the tokens at which the encodings change their length.
const std::vector<int32_t> kTokens = {0, 255, 256, 65535, 65536, 2147483647, 1, 2};

std::vector<std::string> chain(TokenHashAlgorithm algorithm) {
  TokenHasher hasher(algorithm, 4);
  std::array<TokenHash, 2> hashes;
  const TokenHash none = hasher.none_hash();
  hasher.hash_blocks(none, kTokens, hashes);
  return {hex(none), hex(hashes[0]), hex(hashes[1])};
}

// The expected values are Python's: hashlib over pickle.dumps(..., protocol=5), and over CBOR.
TEST(TokenHash, PickleChain) {
  EXPECT_EQ(chain(TokenHashAlgorithm::kSha256),
            (std::vector<std::string>{
                "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
                "a460e553ebf9a4709aec4c9f4b483550241baed2a0bb0b60e35dc02dbfa7abbe",
                "e2bb0d15cca1ed023b86d265da25ec1c86a798fe7782894160f17023c384ab86"}));
}

TEST(TokenHash, CborChain) {
  EXPECT_EQ(chain(TokenHashAlgorithm::kSha256Cbor),
            (std::vector<std::string>{
                "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
                "ac4716c6516c955443a912119f547a53b5cbade21786e22b105cff33e170f208",
                "e94336f0e2dfc3a0ea153d7253695b06803ea1d34c404d4fd3a91ae6b8295435"}));
}

TEST(TokenHash, ShortTuplesArePickledOtherwise) {
  const std::array<const char*, 3> expected = {
      "1876a790824e1c62cc68ce0472a1542ccc7bf2d1d5c9e53827fc516bb9f88601",
      "66db7535153fbbe3e336f2586c6246706bd213d5680ce68709abac0acabe3d24",
      "11222bda924e6f5b065e26e0d6fcf5ed3af84fad32aabe5aa2d440a7b89eed44"};
  const std::vector<int32_t> tokens = {0, 1, 2};
  for (size_t size = 1; size <= 3; ++size) {
    TokenHasher hasher(TokenHashAlgorithm::kSha256, static_cast<int64_t>(size));
    std::array<TokenHash, 1> hash;
    hasher.hash_blocks(hasher.none_hash(), tokens, hash);
    EXPECT_EQ(hex(hash[0]), expected[size - 1]) << size;
  }
}

TEST(TokenHash, RefusesBadInput) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, TokenHasher::kMaxBlockTokens + 1}) {
    EXPECT_THROW(TokenHasher(TokenHashAlgorithm::kSha256, size), InvalidArgument) << size;
  }
  EXPECT_THROW(TokenHasher(static_cast<TokenHashAlgorithm>(9), 4), InvalidArgument);
  TokenHasher hasher(TokenHashAlgorithm::kSha256, 4);
  EXPECT_THROW(hasher.none_hash(std::string(256, '7')), InvalidArgument);
  EXPECT_THROW(hasher.none_hash("\xc3\xa4"), InvalidArgument);
  std::array<TokenHash, 2> hashes;
  EXPECT_THROW(hasher.hash_blocks({}, std::vector<int32_t>{1, 2, 3, 4, 5}, hashes),
               InvalidArgument);
  const std::vector<int32_t> negative = {1, 2, -3, 4};
  EXPECT_THROW(hasher.hash_blocks({}, negative, std::span(hashes).first(1)), InvalidArgument);
}

}  // namespace
}  // namespace kvplan
