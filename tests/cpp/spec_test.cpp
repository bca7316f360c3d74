#include "kvplan/spec.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "kvplan/errors.h"
#include "kvplan/groups.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

template <class E>
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

TEST(Spec, PageIsHeadsTimesStatesTimesContent) {
  EXPECT_EQ(page_size_bytes(full(8, 128)), 16 * 8 * 2 * 128 * 2);
  EXPECT_EQ(page_size_bytes(mla(576)), 16 * 576 * 2) << "MLA stores one latent, not K and V";
  EXPECT_EQ(page_size_bytes(mamba(540672)), 540672);
  EXPECT_EQ(page_size_bytes(custom("PluginSpec", 777)), 777);
}

TEST(Spec, ValueHeadMayDifferFromKeyHead) {
  KVCacheSpec s = attention(SpecKind::kFullAttention, 2, 192);
  s.head_size_v = 128;
  finalize(s);
  EXPECT_EQ(page_size_bytes(s), 16 * 2 * (192 + 128) * 2);
}

TEST(Spec, HeadSlotsAndContentReplaceTheComputedOnes) {
  KVCacheSpec s = attention(SpecKind::kFullAttention, 8, 128);
  s.num_head_slots = 16;       // K and V in a slot each
  s.state_content_bytes = 72;  // 4-bit data and block scales
  finalize(s);
  EXPECT_EQ(num_heads(s), 16);
  EXPECT_EQ(page_size_bytes(s), 16 * 16 * 72);
}

TEST(Spec, StatesMayCoverSeveralTokensOrPartsOfOne) {
  KVCacheSpec s = attention(SpecKind::kMLAAttention, 1, 512, 128);
  s.tokens_per_state = {2, 1};
  finalize(s);
  EXPECT_EQ(num_states(s, 128), 64);
  s.tokens_per_state = {2, 8};
  finalize(s);
  EXPECT_EQ(s.tokens_per_state, (TokensPerState{1, 4})) << "fractions are reduced";
  EXPECT_EQ(num_states(s, 128), 512);
  s.tokens_per_state = {-1, 1};
  EXPECT_EQ(num_states(s, 128), 1);
}

TEST(Spec, MLAPagesArePaddedToTheirAlignment) {
  KVCacheSpec s = attention(SpecKind::kMLAAttention, 1, 512, 64);
  s.dtype = DType::kUInt8;
  s.state_content_bytes = 584;
  s.alignment = 576;
  finalize(s);
  EXPECT_EQ(unpadded_page_size_bytes(s), 64 * 584);
  EXPECT_EQ(page_size_bytes(s), 37440);
  EXPECT_EQ(page_size_bytes(s) % 576, 0);
}

TEST(Spec, PaddedPageMayNotBeSmallerThanItsContent) {
  KVCacheSpec s = full(1, 64);
  s.page_size_padded = page_size_bytes(s) - 1;
  const std::string text = message_of<InconsistentSpec>([&] { page_size_bytes(s); });
  EXPECT_NE(text.find("4095"), std::string::npos) << text;
  EXPECT_NE(text.find("4096"), std::string::npos) << text;
}

TEST(Spec, BlockMustHoldAState) {
  KVCacheSpec s = attention(SpecKind::kMLAAttention, 1, 512, 1);
  s.tokens_per_state = {2, 1};
  finalize(s);
  EXPECT_THROW(page_size_bytes(s), InconsistentSpec);
}

TEST(Spec, StrideAlignment) {
  KVCacheSpec s = full(1, 64, 64);  // 256 bytes a token
  EXPECT_EQ(get_block_stride_alignment(s), 1);
  s.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, 10000};
  EXPECT_EQ(get_block_stride_alignment(s), 10000);
  EXPECT_EQ(layer_block_stride(s), 20000);
  // Whole kernel blocks of up to 48 tokens: gcd(48, 64) = 16 tokens.
  s.block_stride_alignment = {BlockStrideAlignment::Kind::kMultipleOf, 48};
  EXPECT_EQ(get_block_stride_alignment(s), 16 * 256);
  // A kernel block as large as the block asks for nothing.
  s.block_stride_alignment.value = 128;
  EXPECT_EQ(get_block_stride_alignment(s), 1);
}

TEST(Spec, OutOfRangeFieldsAreNamedWithTheirValue) {
  const auto rejected = [](const std::function<void(KVCacheSpec&)>& change) {
    KVCacheSpec s = full(8, 128);
    change(s);
    return message_of<InvalidArgument>([&] { finalize(s); });
  };
  const auto names = [](const std::string& text, const std::string& field,
                        const std::string& value) {
    return text.find(field) != std::string::npos && text.find(value) != std::string::npos;
  };
  EXPECT_TRUE(names(rejected([](auto& s) { s.block_size = 0; }), "block_size", "got 0"));
  EXPECT_TRUE(names(rejected([](auto& s) { s.block_size = -16; }), "block_size", "got -16"));
  EXPECT_TRUE(names(rejected([](auto& s) { s.num_kv_heads = 0; }), "num_kv_heads", "got 0"));
  EXPECT_TRUE(names(rejected([](auto& s) { s.head_size = -1; }), "head_size", "got -1"));
  EXPECT_TRUE(names(rejected([](auto& s) { s.head_size_v = -2; }), "head_size_v", "got -2"));
  EXPECT_TRUE(
      names(rejected([](auto& s) { s.page_size_padded = 0; }), "page_size_padded", "got 0"));
  EXPECT_TRUE(names(rejected([](auto& s) { s.sliding_window = 0; }), "sliding_window", "got 0"));
  EXPECT_TRUE(names(rejected([](auto& s) { s.num_head_slots = -4; }), "num_head_slots", "got -4"));
  EXPECT_TRUE(names(rejected([](auto& s) {
                      s.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, 0};
                    }),
                    "block_stride_alignment", "got 0"));
  EXPECT_TRUE(names(rejected([](auto& s) {
                      s.tokens_per_state = {0, 1};
                    }),
                    "tokens_per_state", "got 0"));
  EXPECT_TRUE(names(rejected([](auto& s) {
                      s.tokens_per_state = {1, 0};
                    }),
                    "tokens_per_state", "denominator is 0"));
}

TEST(Spec, MambaStatesNeedAShapeAndATypeEach) {
  KVCacheSpec s = mamba(100);
  s.shapes.push_back({4});
  EXPECT_THROW(finalize(s), InvalidArgument);
  s.dtypes.push_back(DType::kFloat32);
  finalize(s);
  EXPECT_EQ(page_size_bytes(s), 100 + 4 * 4);
  s.shapes[1] = {4, -4};
  EXPECT_THROW(finalize(s), InvalidArgument);
}

TEST(Spec, ArithmeticIsChecked) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(page_size_bytes(full(max, 128)), Overflow);
  EXPECT_THROW(page_size_bytes(full(8, max)), Overflow);
  EXPECT_THROW(page_size_bytes(full(8, 128, max)), Overflow);
  EXPECT_THROW(page_size_bytes(full(1LL << 31, 1LL << 30)), Overflow);
}

TEST(Spec, EqualityIgnoresTheDraftMark) {
  KVCacheSpec draft = full(8, 128);
  draft.is_draft = true;
  EXPECT_TRUE(draft == full(8, 128));
  EXPECT_EQ(hash_value(draft), hash_value(full(8, 128)));
  EXPECT_FALSE(full(8, 128) == full(8, 64));
  EXPECT_FALSE(full(8, 128) == full(8, 128, 32));
  EXPECT_FALSE(sliding(8, 128, 100) == sliding(8, 128, 101));
}

// Such a member takes no part in equality. If it took part in the page, layers of one tensor could
// have pages of different sizes.
TEST(Spec, MembersThatAKindHasNoFieldForAreRefused) {
  const auto rejected = [](KVCacheSpec s, const std::function<void(KVCacheSpec&)>& change) {
    change(s);
    return message_of<InvalidArgument>([&] { finalize(s); });
  };
  const auto pad = [](KVCacheSpec& s) { s.page_size_padded = 1 << 20; };
  EXPECT_EQ(rejected(custom("PluginSpec", 4096), pad),
            "CustomSpec has no field page_size_padded: leave it at its initial value");
  EXPECT_EQ(rejected(full(8, 128), pad), "");
  EXPECT_EQ(rejected(full(8, 128), [](auto& s) { s.alignment = 576; }),
            "FullAttentionSpec has no field alignment: leave it at its initial value");
  EXPECT_EQ(rejected(custom("PluginSpec", 4096), [](auto& s) { s.num_heads = 2; }),
            "CustomSpec has no field num_heads: leave it at its initial value");
  EXPECT_EQ(rejected(mamba(100), [](auto& s) { s.num_kv_heads = 8; }),
            "MambaSpec has no field num_kv_heads: leave it at its initial value");
  EXPECT_EQ(rejected(full(8, 128), [](auto& s) { s.blocks_per_request = 7; }),
            "FullAttentionSpec has no field blocks_per_request: leave it at its initial value");
}

TEST(Spec, KindsAreNamedAsInVllm) {
  for (int i = 0; i < kNumSpecKinds; ++i) {
    const auto kind = static_cast<SpecKind>(i);
    EXPECT_EQ(parse_spec_kind(class_name(kind)), kind);
    EXPECT_EQ(default_spec(kind).kind, kind);
  }
  const std::string text = message_of<InvalidArgument>([] { parse_spec_kind("NoSpec"); });
  EXPECT_NE(text.find("MambaSpec"), std::string::npos);
}

TEST(Spec, PrintsRequiredAndChangedFields) {
  EXPECT_EQ(to_string(full(8, 128)),
            "FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype='bfloat16')");
  EXPECT_EQ(to_string(sliding(8, 128, 64)),
            "SlidingWindowSpec(block_size=16, dcp_sharded=False, num_kv_heads=8, head_size=128, "
            "dtype='bfloat16', sliding_window=64)");
  EXPECT_EQ(to_string(mamba(100)), "MambaSpec(block_size=16, shapes=((100,),), dtypes=('uint8',))");
}

TEST(Spec, OtherBlockSizes) {
  EXPECT_EQ(page_size_bytes(with_block_size(full(8, 128), 64)), 4 * page_size_bytes(full(8, 128)));
  EXPECT_EQ(page_size_bytes(with_block_size(custom("PluginSpec", 160), 64)), 640);
  EXPECT_THROW(with_block_size(custom("PluginSpec", 161), 8), InconsistentSpec);
  KVCacheSpec fixed = custom("PluginSpec", 161);
  fixed.page_scales_with_block_size = false;
  EXPECT_EQ(page_size_bytes(with_block_size(fixed, 8)), 161);
  EXPECT_THROW(with_block_size(full(8, 128), 0), InvalidArgument);
}

TEST(Spec, DTypeNames) {
  EXPECT_EQ(parse_dtype("torch.float8_e4m3fn"), DType::kFloat8E4M3Fn);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::kBFloat16);
  EXPECT_EQ(dtype_size(DType::kFloat32), 4);
  EXPECT_NE(message_of<InvalidArgument>([] { parse_dtype("fp8"); }).find("float8_e4m3fn"),
            std::string::npos);
}

TEST(SpecTable, StoresEachValueOnce) {
  SpecTable table;
  const SpecId a = table.intern(full(8, 128));
  EXPECT_EQ(table.intern(full(8, 128)), a);
  EXPECT_NE(table.intern(full(4, 128)), a);
  KVCacheSpec draft = full(8, 128);
  draft.is_draft = true;
  const SpecId d = table.intern(draft);
  EXPECT_NE(d, a) << "the draft mark is kept";
  EXPECT_TRUE(table.equal(a, d));
  EXPECT_EQ(table.size(), 3u);
}

TEST(SpecTable, ReportsABadPageOnlyWhenAsked) {
  SpecTable table;
  KVCacheSpec bad = full(8, 128);
  bad.page_size_padded = 1;
  const SpecId id = table.intern(bad);
  EXPECT_THROW(table.page_size_bytes(id), InconsistentSpec);
}

}  // namespace
}  // namespace kvplan::testing
