#include "kvplan/spec.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <variant>

#include "kvplan/checked.h"
#include "kvplan/config.h"
#include "planning/specs/spec_fields.h"

namespace kvplan {
namespace {

constexpr std::string_view kClassNames[kNumSpecKinds] = {
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "HiddenStateCacheSpec",
    "RSWASpec",
    "SinkFullAttentionSpec",
    "ChunkedLocalAttentionSpec",
    "SlidingWindowSpec",
    "SlidingWindowMLASpec",
    "CircularBufferSpec",
    "EncoderOnlyAttentionSpec",
    "CrossAttentionSpec",
    "MambaSpec",
    "HiSparseHotSpec",
    "HiSparseResidentSpec",
    "CustomSpec",
};

std::string name_of(const KVCacheSpec& s) { return std::string(class_name(s.kind)); }

[[noreturn]] void reject(const KVCacheSpec& spec, std::string_view field, int64_t value,
                         const char* limit) {
  throw InvalidArgument(name_of(spec) + ": " + std::string(field) + " must be " + limit + ", got " +
                        std::to_string(value));
}

void require(const KVCacheSpec& spec, std::string_view field, FieldRange range, int64_t value) {
  if (value < range.least) {
    const bool is_known = range.least == 0 || range.least == 1;
    const std::string limit = "at least " + std::to_string(range.least);
    reject(spec, field, value,
           !is_known ? limit.c_str() : (range.least == 1 ? "positive" : "0 or more"));
  }
  if (value > range.most)
    reject(spec, field, value, ("at most " + std::to_string(range.most)).c_str());
}

// One for each type of field.
void check(const KVCacheSpec&, std::string_view, FieldRange, bool) {}
void check(const KVCacheSpec&, std::string_view, FieldRange, const std::string&) {}
void check(const KVCacheSpec&, std::string_view, FieldRange, DType value) {
  dtype_size(value);  // which there must be
}
void check(const KVCacheSpec& s, std::string_view field, FieldRange range, int64_t value) {
  require(s, field, range, value);
}
void check(const KVCacheSpec& s, std::string_view field, FieldRange range, int32_t value) {
  require(s, field, range, value);
}
void check(const KVCacheSpec& s, std::string_view field, FieldRange range,
           const TokensPerState& value) {
  if (value.num == 0) reject(s, field, value.num, "positive");
  require(s, field, range, value.num);
}
void check(const KVCacheSpec& s, std::string_view field, FieldRange range,
           const BlockStrideAlignment& value) {
  using Kind = BlockStrideAlignment::Kind;
  if (value.kind > Kind::kMultipleOf) {
    reject(s, "block_stride_alignment.kind", static_cast<int64_t>(value.kind), "an enumerator");
  }
  if (value.kind != Kind::kNone) require(s, field, range, value.value);
}
void check(const KVCacheSpec& s, std::string_view field, FieldRange range,
           const CustomDemand& value) {
  const std::string name(field);
  require(s, name + ".extra_pages", range, value.extra_pages);
  if (value.cap_tokens) require(s, name + ".cap_tokens", range, *value.cap_tokens);
}
template <class T>
void check(const KVCacheSpec& s, std::string_view field, FieldRange range,
           const std::optional<T>& value) {
  if (value) check(s, field, range, *value);
}
template <class T>
void check(const KVCacheSpec& s, std::string_view field, FieldRange range,
           const std::vector<T>& values) {
  for (const T& v : values) check(s, field, range, v);
}

template <class T>
bool is_missing(const std::optional<T>& value) {
  return !value;
}
template <class T>
bool is_missing(const T&) {
  return false;
}

void check_fields(const KVCacheSpec& s) {
  for_each_field(s.kind, [&](const auto& field) {
    check(s, field.name, field.range, s.*field.member);
    if (field.use == FieldUse::kRequired && is_missing(s.*field.member)) {
      throw InvalidArgument(name_of(s) + " needs " + std::string(field.name));
    }
  });
}

void check_states(const KVCacheSpec& s) {
  if (!s.shapes.empty() && s.shapes.size() == s.dtypes.size()) return;
  throw InvalidArgument("MambaSpec: shapes and dtypes must hold one entry for each state, got " +
                        std::to_string(s.shapes.size()) + " and " +
                        std::to_string(s.dtypes.size()));
}

/// A member that some kind has as a field, whatever its type.
class AnyField {
 public:
  template <class T>
  explicit AnyField(const Field<T>& field) : name(field.name), member_(field.member) {}

  std::string_view name;
  bool same(const KVCacheSpec& a, const KVCacheSpec& b) const {
    return std::visit([&](auto member) { return a.*member == b.*member; }, member_);
  }
  bool operator==(const AnyField& other) const { return member_ == other.member_; }

 private:
  template <class... T>
  using Member = std::variant<T KVCacheSpec::*...>;
  Member<bool, int32_t, int64_t, DType, std::string, TokensPerState, BlockStrideAlignment,
         CustomDemand, std::optional<int64_t>, std::optional<std::string>, std::vector<DType>,
         std::vector<std::vector<int64_t>>>
      member_;
};

std::vector<AnyField> fields_of(SpecKind kind) {
  std::vector<AnyField> fields;
  for_each_field(kind, [&](const auto& field) { fields.emplace_back(field); });
  return fields;
}

using FieldsByKind = std::array<std::vector<AnyField>, kNumSpecKinds>;

/// For each kind the fields that others have and it has not.
FieldsByKind fields_of_other_kinds() {
  FieldsByKind others;
  for (int k = 0; k < kNumSpecKinds; ++k) {
    std::vector<AnyField> known = fields_of(static_cast<SpecKind>(k));
    for (int other = 0; other < kNumSpecKinds; ++other) {
      for (const AnyField& field : fields_of(static_cast<SpecKind>(other))) {
        if (std::find(known.begin(), known.end(), field) != known.end()) continue;
        known.push_back(field);
        others[static_cast<size_t>(k)].push_back(field);
      }
    }
  }
  return others;
}

/// Equality looks at the fields of a kind alone. Were any other member to count, specs could be
/// equal and their pages different.
void check_own_fields_only(const KVCacheSpec& s) {
  static const FieldsByKind others = fields_of_other_kinds();
  static const KVCacheSpec initial;
  for (const AnyField& field : others[static_cast<size_t>(s.kind)]) {
    if (field.same(s, initial)) continue;
    throw InvalidArgument(name_of(s) + " has no field " + std::string(field.name) +
                          ": leave it at its initial value");
  }
}

void normalize(TokensPerState& t) {
  constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();  // has no positive counterpart
  if (t.den == 0) throw InvalidArgument("tokens_per_state: the denominator is 0");
  if (t.num == kSmallest || t.den == kSmallest) {
    throw InvalidArgument("tokens_per_state: " + std::to_string(kSmallest) + " is out of range");
  }
  const int64_t divisor = std::gcd(t.num, t.den) * (t.den < 0 ? -1 : 1);
  t = {t.num / divisor, t.den / divisor};
}

// --- hashing and printing of field values -------------------------------------------------------

size_t mix(size_t seed, size_t value) {
  return (seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2))) *
         0xff51afd7ed558ccdULL;
}

template <class T>
size_t hash_of(const T& value) {
  return std::hash<T>()(value);
}
template <class T>
size_t hash_of(const std::optional<T>& value) {
  return value ? mix(1, hash_of(*value)) : 0;
}
size_t hash_of(const TokensPerState& v) { return mix(hash_of(v.num), hash_of(v.den)); }
size_t hash_of(const BlockStrideAlignment& v) {
  return mix(static_cast<size_t>(v.kind), hash_of(v.value));
}
size_t hash_of(const CustomDemand& v) { return mix(hash_of(v.cap_tokens), hash_of(v.extra_pages)); }
template <class T>
size_t hash_of(const std::vector<T>& values) {
  size_t h = values.size();
  for (const T& v : values) h = mix(h, hash_of(v));
  return h;
}

std::string repr(bool v) { return v ? "True" : "False"; }
std::string repr(int64_t v) { return std::to_string(v); }
std::string repr(int32_t v) { return std::to_string(v); }
std::string repr(const std::string& v) { return "'" + v + "'"; }
std::string repr(DType v) { return "'" + std::string(to_string(v)) + "'"; }
std::string repr(const TokensPerState& v) {
  const std::string num = std::to_string(v.num);
  return v.den == 1 ? num : "Fraction(" + num + ", " + std::to_string(v.den) + ")";
}
std::string repr(const BlockStrideAlignment& v) {
  switch (v.kind) {
    case BlockStrideAlignment::Kind::kNone:
      return "None";
    case BlockStrideAlignment::Kind::kBytes:
      return std::to_string(v.value);
    case BlockStrideAlignment::Kind::kMultipleOf:
      return "MultipleOf(" + std::to_string(v.value) + ")";
  }
  return "None";
}
template <class T>
std::string repr(const std::optional<T>& v) {
  return v ? repr(*v) : "None";
}
std::string repr(const CustomDemand& v) {
  return "CustomDemand(cap_tokens=" + repr(v.cap_tokens) +
         ", cap_includes_in_flight=" + repr(v.cap_includes_in_flight) +
         ", extra_pages=" + repr(v.extra_pages) + ")";
}
template <class T>
std::string repr(const std::vector<T>& values) {
  std::string s = "(";
  for (const T& v : values) s += repr(v) + ", ";
  if (values.size() > 1) s.resize(s.size() - 2);
  if (values.size() == 1) s.pop_back();
  return s + ")";
}

}  // namespace

std::string_view class_name(SpecKind kind) {
  const auto number = static_cast<size_t>(kind);
  if (number < std::size(kClassNames)) return kClassNames[number];
  throw InvalidArgument("no KV cache spec class has the number " + std::to_string(number));
}

SpecKind parse_spec_kind(std::string_view name) {
  std::string known;
  for (int i = 0; i < kNumSpecKinds; ++i) {
    if (kClassNames[i] == name) return static_cast<SpecKind>(i);
    known += (i == 0 ? "" : ", ") + std::string(kClassNames[i]);
  }
  throw InvalidArgument("unknown KV cache spec class '" + std::string(name) + "'; known: " + known);
}

KVCacheSpec default_spec(SpecKind kind) {
  KVCacheSpec spec;
  spec.kind = kind;
  spec.dcp_sharded = is_attention(kind);
  if (is_mla(kind) || kind == SpecKind::kSlidingWindowMLA) spec.head_size_v = 0;
  if (kind == SpecKind::kMamba) spec.tokens_per_state = {-1, 1};
  return spec;
}

void finalize(KVCacheSpec& s) {
  class_name(s.kind);  // which there must be
  check_own_fields_only(s);
  normalize(s.tokens_per_state);
  if (is_attention(s.kind) && s.head_size_v == -1) s.head_size_v = s.head_size;
  check_fields(s);
  if (s.kind == SpecKind::kSlidingWindowMLA && s.model_version &&
      *s.model_version != "deepseek_v4") {
    throw InconsistentSpec("Unsupported model version: " + *s.model_version);
  }
  if (s.cache_role != "sparse" && s.cache_role != "indexer") {
    throw InvalidArgument(name_of(s) + ": unknown cache_role '" + s.cache_role +
                          "'; known: sparse, indexer");
  }
  if (s.kind == SpecKind::kMamba) {
    check_states(s);
    parse_mamba_cache_mode(s.mamba_cache_mode);
  }
  if (s.kind == SpecKind::kCustom && s.custom_class.empty()) {
    throw InvalidArgument("CustomSpec: custom_class must name the plugin's class");
  }
  // vLLM pads only where the content does not end on the alignment already, so a padded size that
  // was handed in survives there.
  if (s.alignment) {
    const int64_t actual = unpadded_page_size_bytes(s);
    const int64_t padded = checked::round_up(actual, *s.alignment, "aligned page size");
    if (padded == actual || padded == s.page_size_padded) return;
    s.page_size_padded = padded;
  }
}

KVCacheSpec with_block_size(const KVCacheSpec& spec, int64_t block_size) {
  KVCacheSpec copy = spec;
  if (spec.kind == SpecKind::kCustom && spec.page_scales_with_block_size && block_size > 0) {
    const int64_t scaled = checked::mul(spec.page_size, block_size, "page size");
    if (scaled % spec.block_size != 0) {
      throw InconsistentSpec(spec.custom_class + ": a page of " + std::to_string(spec.page_size) +
                             " bytes for " + std::to_string(spec.block_size) +
                             " tokens does not scale to a block of " + std::to_string(block_size));
    }
    copy.page_size = scaled / spec.block_size;
  }
  copy.block_size = block_size;
  finalize(copy);
  return copy;
}

bool operator==(const KVCacheSpec& a, const KVCacheSpec& b) {
  if (a.kind != b.kind) return false;
  bool equal = true;
  for_each_field(a.kind, [&](const auto& field) {
    equal = equal && (!field.compared || a.*field.member == b.*field.member);
  });
  return equal;
}

size_t hash_value(const KVCacheSpec& spec) {
  size_t h = static_cast<size_t>(spec.kind);
  for_each_field(spec.kind, [&](const auto& field) {
    if (field.compared) h = mix(h, hash_of(spec.*field.member));
  });
  return h;
}

std::string to_string(const KVCacheSpec& spec) {
  KVCacheSpec defaults = default_spec(spec.kind);
  if (defaults.head_size_v == -1) defaults.head_size_v = spec.head_size;
  std::string s = name_of(spec) + "(";
  for_each_field(spec.kind, [&](const auto& field) {
    if (field.use == FieldUse::kOptional && spec.*field.member == defaults.*field.member) return;
    if (s.back() != '(') s += ", ";
    s += std::string(field.name) + "=" + repr(spec.*field.member);
  });
  return s + ")";
}

int64_t num_heads(const KVCacheSpec& s) {
  if (is_attention(s.kind)) return s.num_head_slots.value_or(s.num_kv_heads);
  if (is_hisparse(s.kind)) {
    throw Unsupported(name_of(s) + " has no [B, H, N, C] shape: it lays out its raw pages itself");
  }
  return s.num_heads;
}

int64_t num_states(const KVCacheSpec& s, int64_t kernel_block_size) {
  const TokensPerState& t = s.tokens_per_state;
  if (s.kind == SpecKind::kCustom || t.num <= 0) return 1;
  return checked::mul(kernel_block_size, t.den, "states of a block") / t.num;
}

int64_t state_content_size_bytes(const KVCacheSpec& s) {
  if (is_attention(s.kind)) {
    if (s.state_content_bytes) return *s.state_content_bytes;
    return checked::mul(checked::add(s.head_size, s.head_size_v, "K and V content"),
                        dtype_size(s.dtype), "K and V content");
  }
  if (s.kind != SpecKind::kMamba) return s.page_size;
  check_states(s);
  int64_t bytes = 0;
  for (size_t i = 0; i < s.shapes.size(); ++i) {
    int64_t state = dtype_size(s.dtypes[i]);
    for (int64_t extent : s.shapes[i]) state = checked::mul(state, extent, "Mamba state");
    bytes = checked::add(bytes, state, "Mamba state");
  }
  return bytes;
}

int64_t unpadded_page_size_bytes(const KVCacheSpec& s) {
  if (is_hisparse(s.kind)) return s.page_size;
  // A Mamba page is its states, whatever `num_heads` says of their logical shape.
  if (s.kind == SpecKind::kMamba) return state_content_size_bytes(s);
  return checked::mul(checked::mul(num_heads(s), num_states(s, s.block_size), "page size"),
                      state_content_size_bytes(s), "page size");
}

int64_t page_size_bytes(const KVCacheSpec& s) {
  const int64_t content = unpadded_page_size_bytes(s);
  if (content == 0 && !s.page_size_padded) {
    throw InconsistentSpec(name_of(s) + ": a block of " + std::to_string(s.block_size) +
                           " tokens holds no state; block_size must be at least tokens_per_state " +
                           repr(s.tokens_per_state));
  }
  if (!s.page_size_padded) return content;
  if (*s.page_size_padded < content) {
    throw InconsistentSpec(name_of(s) + ": page_size_padded " +
                           std::to_string(*s.page_size_padded) + " is smaller than the " +
                           std::to_string(content) + " bytes that a block of " +
                           std::to_string(s.block_size) + " tokens holds");
  }
  return *s.page_size_padded;
}

int64_t get_block_stride_alignment(const KVCacheSpec& s) {
  const BlockStrideAlignment& a = s.block_stride_alignment;
  if (a.kind == BlockStrideAlignment::Kind::kNone) return 1;
  require(s, "block_stride_alignment", kPositive, a.value);
  if (a.kind == BlockStrideAlignment::Kind::kBytes) return a.value;
  const int64_t kernel_block = std::gcd(a.value, s.block_size);
  return kernel_block == s.block_size ? 1 : page_size_bytes(with_block_size(s, kernel_block));
}

int64_t layer_block_stride(const KVCacheSpec& s) {
  return checked::round_up(page_size_bytes(s), get_block_stride_alignment(s), "block stride");
}

bool prefix_cacheable(const KVCacheSpec& s) {
  return !is_hisparse(s.kind) && s.kind != SpecKind::kCircularBuffer && !s.bounded_replay;
}

int64_t prefix_replay_tokens(const KVCacheSpec& s) {
  return s.bounded_replay ? s.sliding_window.value_or(0) : 0;
}

std::optional<int64_t> block_table_token_alignment(const KVCacheSpec& s) {
  switch (s.kind) {
    case SpecKind::kMamba:
    case SpecKind::kCircularBuffer:
    case SpecKind::kHiSparseHot:
      return std::nullopt;
    default:
      return 128;
  }
}

bool has_layer_views(const KVCacheSpec& s) { return !is_hisparse(s.kind); }

bool uses_slot_mapping(const KVCacheSpec& s) {
  return s.kind != SpecKind::kHiSparseHot && s.kind != SpecKind::kCircularBuffer;
}

}  // namespace kvplan
