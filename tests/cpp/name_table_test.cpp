#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvplan/errors.h"
#include "kvplan/groups.h"

namespace kvplan {
namespace {

TEST(NameTable, NamesGetIdsInOrderAndEqualNamesOne) {
  NameTable table;
  EXPECT_FALSE(table.find("a").valid());
  EXPECT_EQ(table.intern("a"), LayerId(0));
  EXPECT_EQ(table.intern("b"), LayerId(1));
  EXPECT_EQ(table.intern(std::string("a")), LayerId(0));
  EXPECT_EQ(table.find("b"), LayerId(1));
  EXPECT_FALSE(table.find("c").valid());
  EXPECT_EQ(table.size(), 2u);
  EXPECT_THROW(table.intern(""), InvalidArgument);
  EXPECT_EQ(table.size(), 2u);
}

TEST(NameTable, NamesMayHoldAnythingAndBeLong) {
  NameTable table;
  const std::string names[] = {std::string("a\0b", 3), "a",
                               std::string("a\0", 2),  std::string(5000, 'x'),
                               std::string(4999, 'x'), std::string(999, 'y'),
                               std::string(1000, 'y')};
  for (const std::string& name : names) table.intern(name);
  ASSERT_EQ(table.size(), std::size(names));
  for (size_t i = 0; i < std::size(names); ++i) {
    EXPECT_EQ(table[LayerId(i)], names[i]);
    EXPECT_EQ(table[LayerId(i)].data()[names[i].size()], '\0');
    EXPECT_EQ(table.find(names[i]), LayerId(i));
  }
}

TEST(NameTable, TextStaysWhereItIsWhileTheTableGrows) {
  NameTable table;
  const std::string_view first = table[table.intern("model.layers.0.self_attn.attn")];
  const char* at = first.data();
  for (int i = 1; i < 100'000; ++i) {
    table.intern("model.layers." + std::to_string(i) + ".self_attn.attn");
  }
  EXPECT_EQ(table.size(), 100'000u);
  EXPECT_EQ(table[LayerId(0)].data(), at);
  EXPECT_EQ(first, "model.layers.0.self_attn.attn");
  for (int i = 0; i < 100'000; i += 777) {
    EXPECT_EQ(table.find("model.layers." + std::to_string(i) + ".self_attn.attn"), LayerId(i));
  }
}

TEST(PositionIndex, EqualHashesAreFoundInTheOrderOfAdding) {
  detail::PositionIndex index;
  // Three hashes, so that runs of equal ones meet and are split by every growth.
  const auto hash_of = [](size_t position) { return position % 3; };
  for (size_t i = 0; i < 300; ++i) index.add(hash_of(i), i);
  for (size_t hash = 0; hash < 3; ++hash) {
    std::vector<size_t> found;
    EXPECT_EQ(index.find(hash,
                         [&](size_t i) {
                           if (hash_of(i) == hash) found.push_back(i);
                           return false;
                         }),
              detail::PositionIndex::kNone);
    ASSERT_EQ(found.size(), 100u);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], 3 * i + hash);
    EXPECT_EQ(index.find(hash, [](size_t i) { return i >= 200; }), 200 + (hash + 1) % 3);
  }
}

}  // namespace
}  // namespace kvplan
