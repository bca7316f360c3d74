#include "kvplan/device/block_arithmetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "device/step.h"

namespace kvplan::cuda {
namespace {

// Every rank stores its share of an entry's tokens in a block of its own, without gaps.
TEST(BlockArithmetic, RanksShareTheTokensOfAnEntry) {
  for (const int32_t size : {1, 2, 3, 4}) {
    for (const int32_t interleave : {1, 2, 8}) {
      const int32_t block_size = 16;
      const int64_t tokens = tokens_per_entry(block_size, true, {size, 0, interleave});
      EXPECT_EQ(tokens, block_size * size);
      std::vector<std::set<int64_t>> stored(static_cast<size_t>(size));
      for (int64_t position = 0; position < 3 * tokens; ++position) {
        int owners = 0;
        for (int32_t rank = 0; rank < size; ++rank) {
          const LocalPosition local =
              local_position(position, block_size, true, {size, rank, interleave});
          if (!local.is_local) continue;
          ++owners;
          EXPECT_EQ(rank, position / interleave % size);
          EXPECT_EQ(local.position / block_size, position / tokens);
          EXPECT_TRUE(stored[static_cast<size_t>(rank)].insert(local.position).second);
        }
        EXPECT_EQ(owners, 1) << position;
      }
      for (const std::set<int64_t>& positions : stored) {
        EXPECT_EQ(positions.size(), 3U * block_size);
        EXPECT_EQ(*positions.rbegin(), 3 * block_size - 1);
      }
    }
  }
  EXPECT_EQ(tokens_per_entry(16, false, {4, 1, 1}), 16);
  EXPECT_EQ(local_position(37, 16, false, {4, 1, 1}).position, 37);
}

TEST(BlockArithmetic, WindowsKeepWhatTheNextTokenReads) {
  for (int64_t context = 0; context < 80; ++context) {
    for (const int32_t tokens : {1, 7, 16, 33}) {
      // The token at `context` reads itself and `tokens` before it.
      const int64_t first = std::max<int64_t>(0, context - tokens);
      EXPECT_EQ(skipped_tokens({WindowKind::kSliding, tokens}, context), first);
      const int64_t nulls = leading_null_entries({WindowKind::kSliding, tokens}, context, 16);
      EXPECT_LE(nulls * 16, first);
      EXPECT_GT((nulls + 1) * 16, first);
      EXPECT_EQ(skipped_tokens({WindowKind::kChunked, tokens}, context),
                context - context % tokens);
    }
    EXPECT_EQ(skipped_tokens({}, context), 0);
  }
}

TEST(BlockArithmetic, Slots) {
  EXPECT_EQ(slot_of(3, 16, 5), 53);
  EXPECT_EQ(slot_of(2147483647, 1024, 1023), 2147483647LL * 1024 + 1023);
  EXPECT_EQ(region_begin({100, int64_t{1} << 31, 8}, 2147483647),
            100 + (int64_t{2147483647} << 31));
  EXPECT_EQ(required_entries(0, 16, 2), 0);
  EXPECT_EQ(required_entries(1, 16, 2), 3);
  EXPECT_EQ(required_entries(33, 16, 0), 3);
}

TEST(BlockArithmetic, OwnersOfItems) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> starts{0};
    std::vector<int64_t> owners;
    const int n = 1 + static_cast<int>(random() % 20);
    for (int i = 0; i < n; ++i) {
      const auto items = static_cast<int64_t>(random() % 4);
      starts.push_back(starts.back() + items);
      owners.insert(owners.end(), static_cast<size_t>(items), i);
    }
    for (size_t item = 0; item < owners.size(); ++item) {
      EXPECT_EQ(owner_of(starts.data(), n, static_cast<int64_t>(item)), owners[item]);
    }
  }
}

TEST(BlockArithmetic, TilesCoverEveryRegionOfEveryBlockOnce) {
  const int64_t bytes = 2 * kTileBytes + 1;
  const int64_t tiles_per_region = ceil_div(bytes, kTileBytes);
  EXPECT_EQ(tiles_per_region, 3);
  std::set<std::tuple<int64_t, int32_t, int64_t>> seen;
  for (int64_t i = 0; i < 5 * 2 * tiles_per_region; ++i) {
    const Tile tile = tile_at(i, 2, tiles_per_region);
    EXPECT_TRUE(tile.id_index >= 0 && tile.id_index < 5 && tile.region >= 0 && tile.region < 2);
    EXPECT_EQ(tile.begin % kTileBytes, 0);
    EXPECT_LT(tile.begin, bytes);
    EXPECT_TRUE(seen.insert({tile.id_index, tile.region, tile.begin}).second);
  }
}

}  // namespace
}  // namespace kvplan::cuda
