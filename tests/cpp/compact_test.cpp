#include "kvplan/compact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "expect_valid.h"
#include "kvplan/checked.h"
#include "kvplan/errors.h"
#include "kvplan/report.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

KVCacheSpec draft(KVCacheSpec s) {
  s.is_draft = true;
  return s;
}

/// A model whose layers are named in order of registration.
class Model {
 public:
  Model& add(int64_t count, KVCacheSpec spec) {
    finalize(spec);
    const SpecId id = request_.add_spec(spec);
    for (int64_t i = 0; i < count; ++i) {
      layers_.push_back({request_.add_layer_name("layers." + std::to_string(layers_.size())), id});
    }
    return *this;
  }
  /// Cuts the layers into pipeline stages of these sizes.
  Model& stages(std::vector<size_t> sizes) {
    sizes_ = std::move(sizes);
    return *this;
  }
  const PlanRequest& request(int64_t memory = int64_t{1} << 40) {
    if (request_.workers().empty()) {
      if (sizes_.empty()) sizes_ = {layers_.size()};
      auto begin = layers_.begin();
      for (size_t n : sizes_) {
        const auto end = begin + static_cast<std::ptrdiff_t>(n);
        request_.add_worker(request_.add_layers(LayerSpecs(begin, end)), memory);
        begin = end;
      }
    }
    return request_;
  }

 private:
  PlanRequest request_;
  LayerSpecs layers_;
  std::vector<size_t> sizes_;
};

PlanningConfig compact_config(int64_t max_model_len, std::optional<int64_t> max_groups = {}) {
  PlanningConfig c;
  c.max_model_len = max_model_len;
  c.grouping = Grouping::kCompact;
  c.max_groups = max_groups;
  return c;
}

/// What a request of the plan's length holds, recomputed from the finished plan.
double request_gib(const Plan& p) {
  return static_cast<double>(explain(p).request_bytes) / static_cast<double>(kGiB);
}

Plan vllm_plan(const PlanRequest& request, PlanningConfig config) {
  config.grouping = Grouping::kVllm;
  return checked_plan(request, config);
}

void deepseek_v4_1_flash(Model& model) {
  const auto packed = [](KVCacheSpec s, int64_t tokens_per_state) {
    s.dtype = DType::kUInt8;
    s.alignment = 576;
    s.tokens_per_state = {tokens_per_state, 1};
    return s;
  };
  const auto swa = [&](int64_t window) {
    KVCacheSpec s = attention(SpecKind::kSlidingWindowMLA, 1, 512, 64);
    s.sliding_window = window;
    s.state_content_bytes = 584;
    return packed(s, 1);
  };
  const auto mla = [&](int64_t block, int64_t ratio) {
    KVCacheSpec s = attention(SpecKind::kMLAAttention, 1, 512, block);
    s.state_content_bytes = 584;
    return packed(s, ratio);
  };
  const auto indexer = [&](int64_t block, int64_t ratio) {
    return packed(attention(SpecKind::kMLAAttention, 1, 132, block), ratio);
  };
  for (int i = 0; i < 43; ++i) {
    model.add(1, swa(i >= 40 ? 192 : 128));
    if (i == 2 || i == 8 || i == 14) model.add(1, mla(128, 2)).add(1, indexer(128, 2));
    if (i == 20) model.add(1, mla(64, 1)).add(1, indexer(64, 1));
  }
}

TEST(CompactCases, DeepseekV41FlashHoldsMoreTokensAtTwentyFiveAndFortySevenGroups) {
  struct Case {
    int64_t length, max_groups;
    double gain;
  };
  for (const Case& c : {Case{524288, 25, 1.34}, Case{524288, 47, 1.52}, Case{1000000, 25, 1.35},
                        Case{1000000, 47, 1.62}}) {
    Model model;
    deepseek_v4_1_flash(model);
    PlanningConfig config = compact_config(c.length, c.max_groups);
    config.kv_cache_layout = KVCacheLayout::kBLHNC;
    config.max_in_flight_tokens = 16384;
    const PlanRequest& request = model.request(4509715660);
    const Plan vllm = vllm_plan(request, config);
    const Plan compact = checked_plan(request, config);
    EXPECT_EQ(vllm.groups.size(), 17U);
    EXPECT_LE(compact.groups.size(), static_cast<size_t>(c.max_groups));
    EXPECT_GE(
        static_cast<double>(capacity(compact).tokens) / static_cast<double>(capacity(vllm).tokens),
        c.gain)
        << c.length << " " << c.max_groups;
  }
}

void one_odd_layer(Model& model, bool drafter_is_marked) {
  const auto marked = [&](KVCacheSpec s) { return drafter_is_marked ? draft(s) : s; };
  model.add(30, mamba(1081344, 528)).add(10, full(2, 256, 528));
  model.add(5, marked(sliding(2, 256, 4096, 528))).add(1, marked(full(1, 512, 528)));
}

double gib_with_groups(const Frontier& f, int64_t groups) {
  for (const GroupingPoint& p : f.points) {
    if (p.num_groups == groups)
      return static_cast<double>(p.request_bytes) / static_cast<double>(kGiB);
  }
  return 0;
}

TEST(CompactCases, OneOddLayerOfTheDrafter) {
  Model model;
  one_odd_layer(model, true);
  const Frontier f = frontier(model.request(), compact_config(262144, 10));
  ASSERT_TRUE(f.vllm);
  EXPECT_EQ(f.vllm->num_groups, 46);
  EXPECT_NEAR(gib_with_groups(f, 46), 5.66, 0.005);
  EXPECT_NEAR(gib_with_groups(f, 24), 6.19, 0.005);
  EXPECT_NEAR(gib_with_groups(f, 10), 7.66, 0.005);
  EXPECT_EQ(gib_with_groups(f, 17), 0) << "7.69 GiB with 17 groups is beaten by 10 groups";
  EXPECT_EQ(f.points[f.chosen].num_groups, 10);
  EXPECT_EQ(f.points[f.chosen].max_layers_per_group, 5);
  EXPECT_NEAR(request_gib(checked_plan(model.request(), compact_config(262144, 10))), 7.66, 0.005);
}

TEST(CompactCases, OneOddLayerOfTheModelSharesABlockTable) {
  Model model;
  one_odd_layer(model, false);
  const Plan p = checked_plan(model.request(), compact_config(262144, 10));
  EXPECT_EQ(p.groups.size(), 5U) << "11 full attention layers side by side, two shapes among them";
  EXPECT_NEAR(request_gib(p), 5.82, 0.005);
}

void mimo(Model& model) {
  const auto shape = [](KVCacheSpec s) {
    s.head_size_v = 128;
    return s;
  };
  model.add(9, shape(full(2, 192))).add(39, shape(sliding(4, 192, 128)));
  model.add(5, shape(sliding(4, 192, 1024)));
}

TEST(CompactCases, MimoTakesFewerGroupsAndFewerBytes) {
  Model model;
  mimo(model);
  const Plan vllm = vllm_plan(model.request(), compact_config(262144));
  EXPECT_EQ(vllm.groups.size(), 11U);
  EXPECT_NEAR(request_gib(vllm), 4.03, 0.005);
  const Plan seven = checked_plan(model.request(), compact_config(262144, 11));
  EXPECT_EQ(seven.groups.size(), 7U);
  EXPECT_EQ(seven.groups[0].layers.size(), 9U);
  EXPECT_NEAR(request_gib(seven), 3.90, 0.005);
  const Plan eighteen = checked_plan(model.request(), compact_config(262144, 18));
  EXPECT_EQ(eighteen.groups.size(), 18U);
  EXPECT_EQ(eighteen.groups[0].layers.size(), 3U);
  EXPECT_NEAR(request_gib(eighteen), 3.72, 0.005);
}

TEST(CompactCases, Gemma4ScalesTheBlockBeforeItPads) {
  const auto bytes = [](KVCacheSpec s, int64_t n) {
    s.state_content_bytes = n;
    return s;
  };
  Model model;
  model.add(25, bytes(sliding(8, 256, 1024), 520)).add(5, bytes(full(2, 512), 1032));
  const auto memory = static_cast<int64_t>(15.18 * static_cast<double>(kGiB));
  const Plan vllm = vllm_plan(model.request(memory), compact_config(32768));
  EXPECT_NEAR(capacity(vllm).max_concurrency, 9.93, 0.005);
  const Plan compact = checked_plan(model.request(memory), compact_config(32768));
  EXPECT_NEAR(capacity(compact).max_concurrency, 12.53, 0.005);
  EXPECT_NEAR(static_cast<double>(capacity(compact).tokens), 410500, 300);
  EXPECT_EQ(compact.groups.size(), vllm.groups.size());
}

TEST(CompactCases, NemotronBlockOf1024Tokens) {
  Model model;
  model.add(6, full(1, 128, 64)).add(23, mamba(540672, 64));
  EXPECT_NEAR(request_gib(vllm_plan(model.request(), compact_config(131072))), 6.20, 0.005);
  const Plan p = checked_plan(model.request(), compact_config(131072, 29));
  EXPECT_NEAR(request_gib(p), 0.40, 0.005);
  EXPECT_EQ((*p.specs)[p.groups[0].spec].block_size, 1024);

  PlanningConfig outermost = compact_config(131072, 29);
  outermost.kv_cache_layout = KVCacheLayout::kBLHNC;
  EXPECT_LE(request_gib(checked_plan(model.request(), outermost)), 0.405)
      << "block-outermost layouts scale the block as well";
}

TEST(CompactCases, GptOssWithEagle3StaysAsItIs) {
  Model model;
  model.add(19, full(8, 64)).add(18, sliding(8, 64, 128));
  const Frontier f = frontier(model.request(), compact_config(131072, 2));
  EXPECT_EQ(f.points[f.chosen].num_groups, 2);
  EXPECT_EQ(f.points[f.chosen].max_layers_per_group, 19);
}

// --- what holds for every model -----------------------------------------------------------------

TEST(Compact, NeverWorseThanVllmAtItsNumberOfGroups) {
  Model model;
  mimo(model);
  const PlanRequest& request = model.request();
  const Frontier f = frontier(request, compact_config(262144));
  for (int64_t length : {1024, 8192, 65536, 1048576}) {
    for (int64_t groups = 11; groups <= 20; ++groups) {
      const Frontier at = frontier(request, compact_config(length, groups));
      EXPECT_LE(at.points[at.chosen].request_bytes, at.vllm->request_bytes) << length;
    }
  }
}

TEST(Compact, ByDefaultAGroupMustBeWorthItsPrice) {
  Model model;  // Gemma-3-27B: 7 groups by vLLM; 13 save 4 %, 31 save 6 %
  model.add(10, full(16, 128)).add(52, sliding(16, 128, 1024));
  PlanningConfig config = compact_config(131072);
  config.max_in_flight_tokens = 16384;
  const Frontier f = frontier(model.request(), config);
  EXPECT_EQ(f.vllm->num_groups, 7);
  EXPECT_EQ(f.points[f.chosen].num_groups, 13);
  config.max_groups = 32;
  const Frontier more = frontier(model.request(), config);
  EXPECT_EQ(more.points[more.chosen].num_groups, 31);
  Model odd;  // where vLLM takes many groups, they stay: fewer would take more bytes
  one_odd_layer(odd, true);
  const Frontier g = frontier(odd.request(), compact_config(262144));
  EXPECT_EQ(g.points[g.chosen].num_groups, 46);
}

TEST(Compact, TooFewGroupsIsAnErrorThatNamesTheKnob) {
  Model model;
  mimo(model);
  try {
    checked_plan(model.request(), compact_config(262144, 2));
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(
        std::string(e.what()).find("max_groups is 2, but this model's caches need at least 3"),
        std::string::npos)
        << e.what();
  }
}

/// Gemma-4-26B's shapes: scaling the block of the full layers saves a fifth.
void padded_without_scaling(Model& model) {
  KVCacheSpec local = sliding(8, 256, 1024);
  local.state_content_bytes = 520;
  KVCacheSpec global = full(2, 512);
  global.state_content_bytes = 1032;
  model.add(25, local).add(5, global);
}

TEST(Compact, ScaledBlocksDivideTheRetentionInterval) {
  Model model;
  padded_without_scaling(model);
  const auto largest_block = [&](int64_t interval) {
    PlanningConfig config = compact_config(32768);
    config.prefix_cache_retention_interval = interval;
    int64_t largest = 0;
    const Plan p = checked_plan(model.request(), config);
    for (const KVCacheGroup& g : p.groups) {
      largest = std::max(largest, (*p.specs)[g.spec].block_size);
    }
    return largest;
  };
  EXPECT_EQ(largest_block(96), 32);
  EXPECT_EQ(largest_block(48), 16);
}

TEST(Compact, VllmsOwnGroupingIsLeftWhereNoOtherCanRun) {
  Model model;
  padded_without_scaling(model);
  PlanningConfig config = compact_config(32768);
  config.prefix_cache_retention_interval = 40;  // of no block of 16 tokens
  const auto layers_and_blocks = [](const Plan& p) {
    std::vector<std::pair<std::vector<LayerId>, int64_t>> groups;
    for (const KVCacheGroup& g : p.groups) {
      groups.emplace_back(g.layers, (*p.specs)[g.spec].block_size);
    }
    return groups;
  };
  const auto vllm = layers_and_blocks(vllm_plan(model.request(), config));
  EXPECT_EQ(layers_and_blocks(checked_plan(model.request(), config)), vllm);
  for (int64_t max_groups : {6, 501}) {
    config.max_groups = max_groups;
    EXPECT_EQ(layers_and_blocks(checked_plan(model.request(), config)), vllm);
    const Frontier f = frontier(model.request(), config);
    EXPECT_TRUE(f.points[f.chosen].is_vllm);
  }
  config.max_groups = 5;
  try {
    checked_plan(model.request(), config);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(),
                 "max_groups is 5, but this model's caches need at least 6 groups that vLLM can "
                 "run. Raise max_groups.");
  }
}

TEST(Compact, ReferenceLengthDecides) {
  Model model;
  model.add(6, full(2, 64)).add(40, sliding(2, 64, 1024));
  PlanningConfig config = compact_config(262144, 12);
  config.max_in_flight_tokens = 0;
  const auto layers_side_by_side = [&](int64_t length) {
    config.reference_model_len = length;
    const Frontier f = frontier(model.request(), config);
    return f.points[f.chosen].max_layers_per_group;
  };
  EXPECT_EQ(layers_side_by_side(512), 8) << "40 windowed layers fill five groups";
  EXPECT_EQ(layers_side_by_side(262144), 6) << "one group of full layers, none padded";
}

TEST(Compact, DraftLayersStayInOneGroupUnlessVllmSpreadsThem) {
  const auto draft_groups = [](const Plan& p, size_t first_draft) {
    std::vector<size_t> groups;
    for (size_t g = 0; g < p.groups.size(); ++g) {
      for (LayerId l : p.groups[g].layers) {
        if (l.pos() >= first_draft) groups.push_back(g);
      }
    }
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    return groups.size();
  };
  Model together;
  together.add(9, full(4, 160)).add(39, sliding(4, 160, 128)).add(5, draft(sliding(4, 160, 1024)));
  EXPECT_EQ(draft_groups(checked_plan(together.request(), compact_config(262144, 53)), 48), 1U);
  Model spread;
  one_odd_layer(spread, true);
  EXPECT_GT(draft_groups(checked_plan(spread.request(), compact_config(262144, 46)), 40), 2U);
}

TEST(Compact, PipelineStagesShareTheWidth) {
  Model model;
  mimo(model);
  Model staged;
  mimo(staged);
  staged.stages({27, 26});
  const Plan p = checked_plan(staged.request(), compact_config(262144, 18));
  int64_t narrowest = p.stages[0].bytes_per_block;
  int64_t widest = narrowest;
  for (const StagePlan& s : p.stages) {
    narrowest = std::min(narrowest, s.bytes_per_block);
    widest = std::max(widest, s.bytes_per_block);
    EXPECT_EQ(s.groups.size(), p.groups.size());
  }
  const Frontier f = frontier(staged.request(), compact_config(262144, 18));
  EXPECT_EQ(f.points[f.chosen].bytes_per_block, widest);
  EXPECT_LE(f.points[f.chosen].request_bytes, f.vllm->request_bytes);
}

TEST(Compact, HiddenStateLayersKeepTheirOwnGroups) {
  for (KVCacheLayout layout : {KVCacheLayout::kLBNHC, KVCacheLayout::kBLHNC}) {
    Model model;
    model.add(6, full(2, 64)).add(20, sliding(4, 64, 512));
    KVCacheSpec hidden = attention(SpecKind::kHiddenStateCache, 3, 2048);
    model.add(1, hidden);
    PlanningConfig config = compact_config(65536, 16);
    config.kv_cache_layout = layout;
    const Plan p = checked_plan(model.request(), config);
    EXPECT_EQ(std::count_if(p.groups.begin(), p.groups.end(),
                            [&](const KVCacheGroup& g) {
                              return (*p.specs)[g.spec].kind == SpecKind::kHiddenStateCache &&
                                     g.layers.size() == 1;
                            }),
              1);
    const Frontier f = frontier(model.request(), config);
    EXPECT_EQ(explain(p).request_bytes, f.points[f.chosen].request_bytes);
  }
}

TEST(Compact, BlockSizesThatTheBackendRefusesAreNotUsed) {
  Model model;
  model.add(6, full(1, 128, 64)).add(23, mamba(540672, 64));
  PlanningConfig config = compact_config(131072, 29);
  config.attention_kernel_block_sizes = {{16, false}, {32, false}, {64, false}, {256, false}};
  const Plan p = checked_plan(model.request(), config);
  EXPECT_EQ((*p.specs)[p.groups[0].spec].block_size, 256);
  config.attention_kernel_block_sizes = {{64, false}};
  const Plan own = checked_plan(model.request(), config);
  EXPECT_EQ((*own.specs)[own.groups[0].spec].block_size, 64);
}

TEST(Compact, OneUniformModelIsLeftAlone) {
  Model model;
  model.add(80, full(8, 128));
  const Frontier f = frontier(model.request(), compact_config(131072));
  ASSERT_EQ(f.points.size(), 1U);
  EXPECT_TRUE(f.points[0].is_vllm);
  EXPECT_EQ(f.points[0].request_bytes, f.lower_bound_bytes);
}

TEST(Compact, ManyLayersAreBounded) {
  Model model;
  for (int kind = 0; kind < 10; ++kind) {
    model.add(10000, sliding(1 + kind, 64, 128 << kind));
  }
  const Frontier f = frontier(model.request(), compact_config(131072, 64));
  EXPECT_GE(f.points[f.chosen].request_bytes, f.points[f.chosen].bound_bytes);
  EXPECT_GE(f.points[f.chosen].bound_bytes, f.lower_bound_bytes);
}

// --- exhaustive search --------------------------------------------------------------------------

/// The best of all partitions, priced with the planner's functions instead of the search's numbers.
struct Enumerated {
  std::map<int64_t, int64_t> best;  // groups -> fewest bytes with exactly that many

  void add(int64_t groups, int64_t bytes) {
    const auto [it, added] = best.emplace(groups, bytes);
    if (!added) it->second = std::min(it->second, bytes);
  }
};

/// Calls `visit` with every partition of 0..n-1, as block numbers.
void for_each_partition(size_t n, const std::function<void(const std::vector<size_t>&)>& visit) {
  std::vector<size_t> part(n);
  const std::function<void(size_t, size_t)> extend = [&](size_t i, size_t used) {
    if (i == n) return visit(part);
    for (size_t g = 0; g <= used; ++g) {
      part[i] = g;
      extend(i + 1, std::max(used, g + 1));
    }
  };
  extend(0, 0);
}

/// Every partition of the layers (with these specs) into groups of one type. The layers before
/// `first_of_second_stage` make one pipeline stage, the others another.
void enumerate(PlanningContext ctx, const PlanningConfig& config, const LayerSpecs& layers,
               size_t first_of_second_stage, Enumerated& result) {
  const auto split = layers.begin() + static_cast<std::ptrdiff_t>(first_of_second_stage);
  const std::vector<LayerSpecs> stages = {{layers.begin(), split}, {split, layers.end()}};
  const auto may_share = [&](SpecId a, SpecId b) {
    const KVCacheSpec& x = ctx.spec(a);
    const KVCacheSpec& y = ctx.spec(b);
    if (x.kind == SpecKind::kMamba) return x == y;
    return x.kind == y.kind && x.block_size == y.block_size && is_uniform_with(x, y);
  };
  for_each_partition(layers.size(), [&](const std::vector<size_t>& part) {
    std::vector<LayerSpecs> members(*std::max_element(part.begin(), part.end()) + 1);
    for (size_t i = 0; i < layers.size(); ++i) members[part[i]].push_back(layers[i]);
    KVCacheGroups groups;
    for (const LayerSpecs& m : members) {
      for (const LayerSpec& l : m) {
        if (!may_share(m[0].spec, l.spec)) return;
      }
      groups.push_back(create_uniform_type_group(m));
    }
    try {
      validate_kv_cache_layout(ctx, config.kv_cache_layout, groups);
    } catch (const LayoutError&) {
      return;
    }
    int64_t bytes = 0;
    for (const LayerSpecs& stage : stages) {
      if (stage.empty()) continue;
      const KVCacheGroups own = project_kv_cache_groups_to_worker(ctx, groups, stage);
      bytes = std::max(
          bytes, max_memory_usage_bytes_from_groups(
                     ctx, own, config, pool_bytes_per_block(ctx, own, config.kv_cache_layout)));
    }
    result.add(static_cast<int64_t>(groups.size()), bytes);
  });
}

struct SmallModel {
  std::vector<KVCacheSpec> specs;
  std::vector<int64_t> count;
  KVCacheLayout layout;
  std::string text;
};

SmallModel random_small_model(std::mt19937& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  SmallModel m;
  m.layout = pick(0, 1) ? KVCacheLayout::kBLHNC : KVCacheLayout::kLBNHC;
  int64_t left = 7;
  const int64_t kinds = pick(2, 4);
  for (int64_t k = 0; k < kinds && left > 0; ++k) {
    KVCacheSpec s;
    switch (pick(0, 2)) {
      case 0:
        s = full(pick(1, 4), 32);
        break;
      case 1:
        s = sliding(pick(1, 4), 32, pick(0, 1) ? 100 : 300);
        break;
      default:
        s = mamba(256 * pick(1, 40), 64);
        break;
    }
    finalize(s);
    if (std::find(m.specs.begin(), m.specs.end(), s) != m.specs.end()) continue;
    const int64_t n = std::min(left, pick(1, 4));
    left -= n;
    m.specs.push_back(s);
    m.count.push_back(n);
    m.text += std::to_string(n) + " x " + to_string(s) + "\n";
  }
  m.text += std::string(to_string(m.layout));
  return m;
}

/// Every choice of block sizes that the search may make, layer kinds with one block table together.
void for_each_block_choice(const SmallModel& m, int64_t largest_page,
                           const std::function<void(const std::vector<KVCacheSpec>&)>& visit) {
  std::vector<KVCacheSpec> chosen(m.specs.size());
  const std::function<void(size_t)> extend = [&](size_t i) {
    if (i == m.specs.size()) return visit(chosen);
    const KVCacheSpec& own = m.specs[i];
    const bool one_page = !is_block_outermost(m.layout);
    for (int64_t scale = 1; scale == 1 || own.kind != SpecKind::kMamba; ++scale) {
      KVCacheSpec s = with_block_size(own, own.block_size * scale);
      if (page_size_bytes(s) > largest_page) break;
      if (one_page && page_size_bytes(s) != largest_page) {
        s.page_size_padded = largest_page;
        finalize(s);
      }
      chosen[i] = s;
      extend(i + 1);
    }
  };
  extend(0);
}

TEST(CompactProperty, EqualsExhaustiveSearchOverAllPartitions) {
  std::mt19937 random(20261129);
  for (int round = 0; round < 300; ++round) {
    const SmallModel small = random_small_model(random);
    Model model;
    int64_t largest_page = 0;
    for (size_t i = 0; i < small.specs.size(); ++i) {
      model.add(small.count[i], small.specs[i]);
      largest_page = std::max(largest_page, page_size_bytes(small.specs[i]));
    }
    const size_t num_layers = std::accumulate(small.count.begin(), small.count.end(), size_t{0});
    const size_t first_stage = round % 3 == 0 ? num_layers / 2 : num_layers;
    if (first_stage < num_layers) model.stages({first_stage, num_layers - first_stage});
    const PlanRequest& request = model.request();
    PlanningConfig config = compact_config(round % 2 == 0 ? 700 : 5000);
    config.kv_cache_layout = small.layout;
    config.max_in_flight_tokens = 64;

    Enumerated all;
    for_each_block_choice(small, largest_page, [&](const std::vector<KVCacheSpec>& specs) {
      SpecTable table;
      Notices notices;
      const PlanningContext ctx{*request.names(), table, notices};
      LayerSpecs layers;
      size_t index = 0;
      for (size_t i = 0; i < specs.size(); ++i) {
        const SpecId id = table.intern(specs[i]);
        for (int64_t n = 0; n < small.count[i]; ++n) layers.push_back({LayerId(index++), id});
      }
      enumerate(ctx, config, layers, first_stage, all);
    });

    const Frontier f = frontier(request, config);
    EXPECT_TRUE(f.exact) << small.text;
    for (const auto& [groups, bytes] : all.best) {
      int64_t found = std::numeric_limits<int64_t>::max();
      for (const GroupingPoint& p : f.points) {
        if (p.num_groups <= groups) found = std::min(found, p.request_bytes);
      }
      EXPECT_LE(found, bytes) << groups << " groups of\n" << small.text;
    }
    for (const GroupingPoint& p : f.points) {
      ASSERT_TRUE(all.best.contains(p.num_groups) || p.is_vllm) << small.text;
      if (!p.is_vllm) {
        EXPECT_EQ(all.best[p.num_groups], p.request_bytes) << p.num_groups << " groups of\n"
                                                           << small.text;
      }
      // And the plan that is built holds what the point says.
      PlanningConfig limited = config;
      limited.max_groups = p.num_groups;
      const Plan built = checked_plan(request, limited);
      int64_t built_bytes = 0;
      for (const StagePlan& stage : built.stages) {
        built_bytes = std::max(built_bytes, stage.request_bytes);
      }
      EXPECT_EQ(built_bytes, p.request_bytes) << small.text;
      EXPECT_EQ(static_cast<int64_t>(built.groups.size()), p.num_groups) << small.text;
    }
  }
}

}  // namespace
}  // namespace kvplan::testing
