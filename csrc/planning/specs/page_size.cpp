#include "kvplan/planning/page_size.h"

#include <algorithm>
#include <string>

#include "kvplan/checked.h"

namespace kvplan {
namespace {

KVCacheSpec padded_to(const KVCacheSpec& spec, int64_t page_size) {
  KVCacheSpec copy = spec;
  copy.page_size_padded = page_size;
  finalize(copy);
  return copy;
}

KVCacheSpec with_page_size(PlanningContext ctx, const LayerSpec& layer, int64_t page_size) {
  const KVCacheSpec& spec = ctx.spec(layer);
  if (spec.kind == SpecKind::kMamba) return padded_to(spec, page_size);
  const int64_t own = ctx.page(layer.spec);
  if (page_size % own == 0) {
    return with_block_size(spec, checked::mul(spec.block_size, page_size / own, "block size"));
  }
  if (is_attention(spec.kind) && !is_mla(spec.kind)) return padded_to(spec, page_size);
  throw PageSizeError(
      "Layer " + ctx.name(layer.layer) + ": page size " + std::to_string(own) +
      " is not divisible by the maximum page size " + std::to_string(page_size) +
      " and cannot be padded. Padding is only supported for non-MLA attention "
      "layers. A block-outermost kv_cache_layout (e.g. BLHNC) needs no equal pages.");
}

}  // namespace

LayerSpecs unify_kv_cache_spec_page_size(PlanningContext ctx, const LayerSpecs& layers) {
  int64_t max_page = 0;
  bool equal = true;
  for (const LayerSpec& l : layers) {
    const int64_t page = ctx.page(l.spec);
    equal = equal && (max_page == 0 || page == max_page);
    max_page = std::max(max_page, page);
  }
  if (equal) return layers;

  LayerSpecs unified;
  unified.reserve(layers.size());
  std::vector<SpecId> replaced(ctx.specs.size());
  for (const LayerSpec& l : layers) {
    SpecId& id = replaced[l.spec.pos()];
    if (!id.valid()) {
      id = ctx.page(l.spec) == max_page ? l.spec
                                        : ctx.specs.intern(with_page_size(ctx, l, max_page));
      if (ctx.page(id) != max_page) {
        throw InconsistentSpec("Layer " + ctx.name(l.layer) + ": its page became " +
                               std::to_string(ctx.page(id)) + " bytes instead of " +
                               std::to_string(max_page) +
                               "; a padded page does not grow with its block size");
      }
    }
    unified.push_back({l.layer, id});
  }
  return unified;
}

}  // namespace kvplan
