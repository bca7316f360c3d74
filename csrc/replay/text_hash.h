#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvplan/replay.h"

namespace kvplan::detail {

/// Chained 16-byte hashes of a request's blocks: two are equal where the tokens up to there are.
/// Not cryptographic, which a replay has no need of.
class TextHash {
 public:
  static constexpr int64_t kBytes = 16;
  using Hash = std::array<uint64_t, 2>;

  /// Hash i covers the first `(i + 1) * block_size + lookahead` tokens.
  TextHash(const Trace& trace, const TraceRequest& request, int64_t block_size, int64_t lookahead);

  /// How many hashes so many tokens have.
  int64_t count(int64_t num_tokens) const;
  Hash next();
  int64_t num_done() const { return num_done_; }

 private:
  void take(int64_t num_tokens);
  void mix(uint64_t value);

  const Trace* trace_;
  const TraceRequest* request_;
  int64_t block_size_;
  int64_t lookahead_;
  int64_t num_done_ = 0;
  int64_t position_ = 0;  // tokens taken
  size_t part_ = 0;       // of the request, the output after the last
  int64_t offset_ = 0;    // in the part
  Hash state_{0x9e3779b97f4a7c15, 0xd1b54a32d192ed03};
};

}  // namespace kvplan::detail
