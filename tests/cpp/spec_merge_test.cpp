#include <gtest/gtest.h>

#include "kvplan/errors.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

KVCacheSpec merge_of(std::initializer_list<KVCacheSpec> specs) {
  std::vector<const KVCacheSpec*> pointers;
  for (const KVCacheSpec& s : specs) pointers.push_back(&s);
  return merge(pointers);
}

TEST(SpecMerge, EqualSpecsMerge) {
  EXPECT_TRUE(merge_of({full(8, 128), full(8, 128)}) == full(8, 128));
  EXPECT_TRUE(merge_of({mamba(100), mamba(100)}) == mamba(100));
  EXPECT_TRUE(merge_of({sliding(8, 128, 64), sliding(8, 128, 64)}) == sliding(8, 128, 64));
}

TEST(SpecMerge, DifferentShapesDoNot) {
  EXPECT_THROW(merge_of({full(8, 128), full(4, 128)}), MergeError);
  EXPECT_THROW(merge_of({full(8, 128), full(8, 128, 32)}), MergeError);
  EXPECT_THROW(merge_of({full(8, 128), sliding(8, 128, 64)}), MergeError);
  EXPECT_THROW(merge_of({full(8, 128), mla(128)}), MergeError);
  EXPECT_THROW(merge_of({mla(128), full(8, 128)}), MergeError);
  EXPECT_THROW(merge_of({mamba(100), mamba(101)}), MergeError);
  EXPECT_THROW(merge_of({sliding(8, 128, 64), sliding(8, 128, 65)}), MergeError);
}

TEST(SpecMerge, FullAttentionCarriesOneWindow) {
  KVCacheSpec windowed = full(8, 128);
  windowed.sliding_window = 1024;
  EXPECT_EQ(merge_of({full(8, 128), windowed}).sliding_window, 1024);
  KVCacheSpec other = windowed;
  other.sliding_window = 512;
  EXPECT_THROW(merge_of({windowed, other}), InvalidArgument);
  KVCacheSpec in_chunks = full(8, 128);
  in_chunks.attention_chunk_size = 8192;
  EXPECT_THROW(merge_of({windowed, in_chunks}), MergeError);
}

TEST(SpecMerge, NonCausalIsKeptFromAnyLayer) {
  KVCacheSpec non_causal = full(8, 128);
  non_causal.non_causal = true;
  EXPECT_TRUE(merge_of({full(8, 128), non_causal}).non_causal);
}

TEST(SpecMerge, MLANeedsOneCacheFormat) {
  const auto different = [](auto change) {
    KVCacheSpec other = mla(576);
    change(other);
    EXPECT_THROW(merge_of({mla(576), other}), MergeError);
  };
  different([](KVCacheSpec& s) { s.cache_dtype_str = "fp8_ds_mla"; });
  different([](KVCacheSpec& s) { s.topk_buffer_width = 2048; });
  different([](KVCacheSpec& s) { s.tokens_per_state = {2, 1}; });
  different([](KVCacheSpec& s) { s.model_version = "deepseek_v4"; });
  different([](KVCacheSpec& s) { s.cache_role = "indexer"; });
  different([](KVCacheSpec& s) { s.is_index_group_leader = true; });
  different([](KVCacheSpec& s) {
    s.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, 576};
  });
}

TEST(SpecMerge, DraftMarkIsDropped) {
  KVCacheSpec draft = full(8, 128);
  draft.is_draft = true;
  EXPECT_FALSE(merge_of({draft, full(8, 128)}).is_draft);
}

TEST(SpecMerge, NeedsASpec) { EXPECT_THROW(merge_of({}), InvalidArgument); }

TEST(UniformType, FullAttentionKindsShareAGroup) {
  EXPECT_TRUE(is_uniform_with(full(8, 128), mla(576)));
  EXPECT_TRUE(is_uniform_with(mla(576), full(8, 128)));
  EXPECT_FALSE(is_uniform_with(full(8, 128), sliding(8, 128, 64)));
  EXPECT_FALSE(is_uniform_with(full(8, 128), mamba(100)));
}

TEST(UniformType, WindowsAndChunksMustBeEqual) {
  EXPECT_TRUE(is_uniform_with(sliding(8, 128, 64), sliding(4, 64, 64)));
  EXPECT_FALSE(is_uniform_with(sliding(8, 128, 64), sliding(8, 128, 65)));
  EXPECT_TRUE(is_uniform_with(chunked(8, 128, 64), chunked(4, 64, 64)));
  EXPECT_FALSE(is_uniform_with(chunked(8, 128, 64), chunked(8, 128, 65)));
  EXPECT_TRUE(is_uniform_with(mamba(100), mamba(100)));
  EXPECT_FALSE(is_uniform_with(mamba(100), mamba(101)));
}

TEST(UniformType, PluginsChooseTheirBase) {
  EXPECT_TRUE(is_uniform_with(custom("A", 10), custom("A", 20)));
  EXPECT_FALSE(is_uniform_with(custom("A", 10), custom("B", 10)));
  KVCacheSpec based = custom("A", 10);
  based.uniform_type_base = "FullAttentionSpec";
  EXPECT_TRUE(is_uniform_with(full(8, 128), based));
}

}  // namespace
}  // namespace kvplan::testing
