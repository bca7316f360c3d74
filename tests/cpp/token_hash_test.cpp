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

TEST(TokenHash, LookaheadTokensAreExtraKeys) {
  // By vLLM 0.33.0's get_request_block_hasher: the second of two blocks of 4 tokens.
  struct Case {
    TokenHashAlgorithm algorithm;
    int64_t num_lookahead;
    const char* expected;
  };
  constexpr auto kPickle = TokenHashAlgorithm::kSha256;
  constexpr auto kCbor = TokenHashAlgorithm::kSha256Cbor;
  const std::vector<int32_t> tokens = {0, 1, 255, 256, 65535, 65536, INT32_MAX,
                                       7, 8, 9,   10,  11,    12,    13};
  for (const Case& c : {
           Case{kPickle, 1, "c003917884005cfea9d43c973cc2e9b817ff18686098c083f3a5dc5cb91f98b5"},
           Case{kPickle, 2, "f70d0475746d1e57f036301df903d75b0d114f75e0e1bcbcf8eed120fcca17d1"},
           Case{kPickle, 3, "4abd7b28d4c9b977b927aaf5dd31f9c97e2bd1508f75b5d65acac27e7e271721"},
           Case{kPickle, 6, "90601ae747c22baeb34d1596b271f8cc19dbde0442e79996fd6ac3dcf74f5ec5"},
           Case{kCbor, 1, "ac1da1b8807891468bd557c965abfe7dd6a5dc90fafbb18092d879b3fac99fb9"},
           Case{kCbor, 6, "9181d171cc6942c035bd8d9ad186a29047c4140cb327f0e2b551e109a207ff30"},
       }) {
    TokenHasher hasher(c.algorithm, 4, c.num_lookahead);
    std::array<TokenHash, 2> hashes;
    const auto needed = std::span(tokens).first(8 + static_cast<size_t>(c.num_lookahead));
    hasher.hash_blocks(hasher.none_hash(), needed, hashes);
    EXPECT_EQ(hex(hashes[1]), c.expected) << c.num_lookahead;
    EXPECT_THROW(hasher.hash_blocks(hasher.none_hash(), needed.first(needed.size() - 1), hashes),
                 InvalidArgument);
  }
  for (const int64_t lookahead : {int64_t{-1}, TokenHasher::kMaxBlockTokens, INT64_MAX}) {
    EXPECT_THROW(TokenHasher(kPickle, 4, lookahead), InvalidArgument) << lookahead;
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
