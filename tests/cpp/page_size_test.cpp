#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(UnifyPageSize, ScalesTheBlockWhereThePageDivides) {
  Steps steps(ModelBuilder().add(1, full(8, 128)).add(1, full(2, 128)));
  const LayerSpecs unified = unify_kv_cache_spec_page_size(steps.ctx(), steps.layers());
  EXPECT_EQ(steps.ctx().spec(unified[0]).block_size, 16);
  EXPECT_EQ(steps.ctx().spec(unified[1]).block_size, 64);
  EXPECT_EQ(steps.ctx().page(unified[1].spec), steps.ctx().page(unified[0].spec));
}

TEST(UnifyPageSize, PadsMambaAndAttentionOtherThanMLA) {
  Steps steps(ModelBuilder().add(1, full(8, 100)).add(1, mamba(1000)).add(1, full(5, 128)));
  const LayerSpecs unified = unify_kv_cache_spec_page_size(steps.ctx(), steps.layers());
  const int64_t page = 16 * 8 * 200 * 2;
  EXPECT_EQ(steps.ctx().spec(unified[1]).page_size_padded, page);
  EXPECT_EQ(steps.ctx().spec(unified[2]).page_size_padded, page);
  EXPECT_EQ(steps.ctx().spec(unified[2]).block_size, 16);
}

TEST(UnifyPageSize, RefusesToPadMLA) {
  Steps steps(ModelBuilder().add(1, full(8, 100), "full").add(1, mla(576), "latent"));
  try {
    unify_kv_cache_spec_page_size(steps.ctx(), steps.layers());
    FAIL();
  } catch (const PageSizeError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("latent.1"), std::string::npos) << text;
    EXPECT_NE(text.find("18432"), std::string::npos) << text;
    EXPECT_NE(text.find("51200"), std::string::npos) << text;
    EXPECT_NE(text.find("BLHNC"), std::string::npos) << text;
  }
}

TEST(UnifyPageSize, EqualPagesStayAsTheyAre) {
  Steps steps(ModelBuilder().add(2, full(8, 128)).add(2, sliding(8, 128, 64)));
  EXPECT_EQ(unify_kv_cache_spec_page_size(steps.ctx(), steps.layers()), steps.layers());
}

// -----------------------------------------------------------------------

}  // namespace
}  // namespace kvplan::testing
