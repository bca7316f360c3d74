#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvplan/groups.h"
#include "kvplan/planning.h"

namespace kvplan::compact {

/// Whether the layer's kernels take blocks of this many tokens as they are.
bool kernel_takes_block(const KVCacheSpec& spec, const PlanningConfig& config, int64_t block_size);

/// The page that all layers are to have where the layout asks for one: the largest, rounded up to
/// what pages that cannot be padded divide, and larger still where one token of a hidden-state
/// layer needs more.
int64_t common_page_size(PlanningContext ctx, const LayerSpecs& attention,
                         const LayerSpecs& hidden);

/// What a spec may become, in order of block size: its own block or multiples of it that the
/// layer's kernels take.
///
/// With `page_size`, for layouts that ask for one: all of these have that page, padded where need
/// be. vLLM pads the page of the original block instead of scaling it first, so that a page just
/// above half of `page_size` wastes almost half of the memory. Empty where the page can be neither
/// scaled nor padded to that size.
std::vector<KVCacheSpec> choices_of_one_page(const KVCacheSpec& spec, const PlanningConfig& config,
                                             int64_t page_size);

/// For block-outermost layouts, where pages of several sizes lie side by side, unpadded and not cut
/// into kernel blocks: those with a page of at most `max_page_size`.
std::vector<KVCacheSpec> choices_up_to_page(const KVCacheSpec& spec, const PlanningConfig& config,
                                            int64_t max_page_size);

/// Leaves each spec its largest block, and smaller ones where they are the largest that some of the
/// specs have in common: with pages of one size, no other can be of use.
void keep_useful_blocks(std::vector<std::vector<KVCacheSpec>>& choices);

}  // namespace kvplan::compact
