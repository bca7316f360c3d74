#include "kvplan/token_hash.h"

#include <algorithm>
#include <string>

#include "kvplan/errors.h"
#include "token_hash/libcrypto.h"

namespace kvplan {
namespace {

// The longest encoding of a token, and of all else: header, parent, array head, trailer.
constexpr size_t kMaxTokenBytes = 5;
constexpr size_t kOtherBytes = 64;
constexpr size_t kMaxSeedBytes = 255;

/// Appends to memory that is known to be large enough.
class Writer {
 public:
  explicit Writer(uint8_t* start) : start_(start), end_(start) {}

  void byte(uint8_t value) { *end_++ = value; }
  void bytes(const void* data, size_t size) {
    const auto* first = static_cast<const uint8_t*>(data);
    end_ = std::copy(first, first + size, end_);
  }
  void little_endian(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void big_endian(uint64_t value, int size) {
    for (int i = size - 1; i >= 0; --i) byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  size_t size() const { return static_cast<size_t>(end_ - start_); }

 private:
  uint8_t* start_;
  uint8_t* end_;
};

// Opcodes of Python's pickle.
constexpr uint8_t kProto = 0x80, kFrame = 0x95, kShortBinBytes = 'C', kShortBinUnicode = 0x8c;
constexpr uint8_t kBinInt1 = 'K', kBinInt2 = 'M', kBinInt = 'J', kNone = 'N', kMark = '(';
constexpr uint8_t kTuple = 't', kTuple1 = 0x85, kTuple3 = 0x87, kMemoize = 0x94, kStop = '.';
constexpr size_t kFrameStart = 11;  // protocol, frame opcode, length

/// The pickle of what `content` writes; its length is known only afterwards.
template <typename Content>
size_t write_framed(uint8_t* start, Content&& content) {
  Writer body(start + kFrameStart);
  content(body);
  body.byte(kStop);
  Writer head(start);
  head.byte(kProto);
  head.byte(5);
  head.byte(kFrame);
  head.little_endian(body.size(), 8);
  return kFrameStart + body.size();
}

// Major types of CBOR, in the first three bits of a head.
constexpr uint8_t kUnsigned = 0x00, kByteString = 0x40, kText = 0x60, kArray = 0x80;
constexpr uint8_t kNull = 0xf6;

void write_head(Writer& out, uint8_t major, uint64_t value) {
  if (value < 24) {
    out.byte(static_cast<uint8_t>(major | value));
    return;
  }
  const int log2_size = value < 0x100 ? 0 : value < 0x10000 ? 1 : 2;
  out.byte(static_cast<uint8_t>(major | (24 + log2_size)));
  out.big_endian(value, 1 << log2_size);
}

}  // namespace

TokenHasher::TokenHasher(TokenHashAlgorithm algorithm, int64_t block_size,
                         int64_t num_lookahead_tokens)
    : algorithm_(algorithm), block_size_(block_size), num_lookahead_tokens_(num_lookahead_tokens) {
  if (algorithm != TokenHashAlgorithm::kSha256 && algorithm != TokenHashAlgorithm::kSha256Cbor) {
    throw InvalidArgument("token hash algorithm " + std::to_string(static_cast<int>(algorithm)) +
                          " is unknown");
  }
  if (block_size < 1 || block_size > kMaxBlockTokens || num_lookahead_tokens < 0 ||
      num_lookahead_tokens > kMaxBlockTokens - block_size) {
    throw InvalidArgument("blocks of " + std::to_string(block_size) + " tokens and " +
                          std::to_string(num_lookahead_tokens) +
                          " behind them cannot be hashed: at least 1, at most " +
                          std::to_string(kMaxBlockTokens) + " in all");
  }
  libcrypto_sha256();
  const size_t content = std::max(
      static_cast<size_t>(block_size + num_lookahead_tokens) * kMaxTokenBytes, kMaxSeedBytes);
  bytes_.resize(kOtherBytes + content);
}

TokenHash TokenHasher::none_hash(std::string_view seed) {
  const bool ascii = std::all_of(seed.begin(), seed.end(), [](char c) { return (c & 0x80) == 0; });
  if (seed.size() > kMaxSeedBytes || !ascii) {
    throw InvalidArgument("the seed of the none hash is at most " + std::to_string(kMaxSeedBytes) +
                          " bytes of ASCII, not " + std::to_string(seed.size()) +
                          (ascii ? "" : " bytes of something else"));
  }
  if (algorithm_ == TokenHashAlgorithm::kSha256Cbor) {
    Writer out(bytes_.data());
    write_head(out, kText, seed.size());
    out.bytes(seed.data(), seed.size());
    return sha256(out.size());
  }
  return sha256(write_framed(bytes_.data(), [&](Writer& out) {
    out.byte(kShortBinUnicode);
    out.byte(static_cast<uint8_t>(seed.size()));
    out.bytes(seed.data(), seed.size());
    out.byte(kMemoize);
  }));
}

void TokenHasher::hash_blocks(const TokenHash& parent, std::span<const int32_t> tokens,
                              std::span<TokenHash> hashes) {
  const auto size = static_cast<size_t>(block_size_);
  const auto ahead = static_cast<size_t>(num_lookahead_tokens_);
  if (!hashes.empty() &&
      (tokens.size() < ahead || (tokens.size() - ahead) / size < hashes.size())) {
    throw InvalidArgument(std::to_string(hashes.size()) + " blocks of " +
                          std::to_string(block_size_) + " tokens, and " + std::to_string(ahead) +
                          " behind them, wanted, but there are " + std::to_string(tokens.size()) +
                          " tokens");
  }
  const auto used = tokens.first(hashes.empty() ? 0 : hashes.size() * size + ahead);
  const auto negative = std::find_if(used.begin(), used.end(), [](int32_t t) { return t < 0; });
  if (negative != used.end()) {
    throw InvalidArgument("token id " + std::to_string(*negative) + " is negative");
  }
  const TokenHash* last = &parent;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const Block block{tokens.subspan(i * size, size), tokens.subspan((i + 1) * size, ahead)};
    hashes[i] = sha256(algorithm_ == TokenHashAlgorithm::kSha256 ? write_pickle(*last, block)
                                                                 : write_cbor(*last, block));
    last = &hashes[i];
  }
}

namespace {

/// The tuple of the tokens, behind None if there is one.
void pickle_tuple(Writer& out, std::span<const int32_t> tokens, bool begins_with_none) {
  const size_t size = tokens.size() + (begins_with_none ? 1 : 0);
  const bool is_short = size <= 3;
  if (!is_short) out.byte(kMark);
  if (begins_with_none) out.byte(kNone);
  for (const int32_t token : tokens) {
    if (token <= 0xff) {
      out.byte(kBinInt1);
      out.little_endian(static_cast<uint64_t>(token), 1);
    } else if (token <= 0xffff) {
      out.byte(kBinInt2);
      out.little_endian(static_cast<uint64_t>(token), 2);
    } else {
      out.byte(kBinInt);
      out.little_endian(static_cast<uint64_t>(token), 4);
    }
  }
  out.byte(is_short ? static_cast<uint8_t>(kTuple1 + size - 1) : kTuple);
  out.byte(kMemoize);
}

}  // namespace

// (parent, tokens, None), or (parent, tokens, (None, *lookahead))
size_t TokenHasher::write_pickle(const TokenHash& parent, const Block& block) {
  return write_framed(bytes_.data(), [&](Writer& out) {
    out.byte(kShortBinBytes);
    out.byte(static_cast<uint8_t>(parent.size()));
    out.bytes(parent.data(), parent.size());
    out.byte(kMemoize);
    pickle_tuple(out, block.tokens, false);
    if (block.lookahead.empty()) {
      out.byte(kNone);
    } else {
      pickle_tuple(out, block.lookahead, true);
    }
    out.byte(kTuple3);
    out.byte(kMemoize);
  });
}

// [parent, tokens, null], or [parent, tokens, [null, *lookahead]]
size_t TokenHasher::write_cbor(const TokenHash& parent, const Block& block) {
  Writer out(bytes_.data());
  write_head(out, kArray, 3);
  write_head(out, kByteString, parent.size());
  out.bytes(parent.data(), parent.size());
  write_head(out, kArray, block.tokens.size());
  for (const int32_t t : block.tokens) write_head(out, kUnsigned, static_cast<uint64_t>(t));
  if (!block.lookahead.empty()) write_head(out, kArray, block.lookahead.size() + 1);
  out.byte(kNull);
  for (const int32_t t : block.lookahead) write_head(out, kUnsigned, static_cast<uint64_t>(t));
  return out.size();
}

TokenHash TokenHasher::sha256(size_t num_bytes) {
  const Sha256& function = libcrypto_sha256();
  alignas(64) std::array<unsigned char, Sha256::kStateBytes> state;
  TokenHash digest;
  function.init(state.data());
  function.update(state.data(), bytes_.data(), num_bytes);
  function.final(digest.data(), state.data());
  return digest;
}

}  // namespace kvplan
