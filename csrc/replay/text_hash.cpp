#include "replay/text_hash.h"

#include <algorithm>
#include <limits>

namespace kvplan::detail {
namespace {

/// A bijection that spreads every bit (the finalizer of SplitMix64).
constexpr uint64_t spread(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

TextHash::TextHash(const Trace& trace, const TraceRequest& request, int64_t block_size,
                   int64_t lookahead)
    : trace_(&trace), request_(&request), block_size_(block_size), lookahead_(lookahead) {}

int64_t TextHash::count(int64_t num_tokens) const {
  return std::max<int64_t>(0, num_tokens - lookahead_) / block_size_;
}

void TextHash::mix(uint64_t value) {
  state_[0] = spread(state_[0] ^ value) + state_[1];
  state_[1] = spread(state_[1] + value * 0x9e3779b97f4a7c15) ^ state_[0];
}

void TextHash::take(int64_t num_tokens) {
  if (request_->first_token) {
    const int32_t* ids = trace_->token_ids.data() + *request_->first_token + position_;
    for (int64_t i = 0; i < num_tokens; ++i) mix(static_cast<uint32_t>(ids[i]));
    position_ += num_tokens;
    return;
  }
  position_ += num_tokens;
  while (num_tokens > 0) {
    const bool is_output = part_ == request_->num_parts;
    const TextPart part = is_output ? TextPart{request_->output_text, 0}
                                    : trace_->parts[request_->first_part + part_];
    const int64_t length = is_output ? std::numeric_limits<int64_t>::max() : part.length;
    const int64_t taken = std::min(num_tokens, length - offset_);
    if (taken > 0) {
      mix(static_cast<uint64_t>(part.text));
      mix(static_cast<uint64_t>(offset_));
      mix(static_cast<uint64_t>(taken));
    }
    num_tokens -= taken;
    offset_ += taken;
    if (offset_ == length) {
      ++part_;
      offset_ = 0;
    }
  }
}

TextHash::Hash TextHash::next() {
  take((num_done_ + 1) * block_size_ + lookahead_ - position_);
  ++num_done_;
  return state_;
}

}  // namespace kvplan::detail
