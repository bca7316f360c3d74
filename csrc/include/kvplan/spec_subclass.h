#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvplan/export.h"

namespace kvplan {

struct KVCacheSpec;

/// What planning reads off a spec beside its fields. For a subclass, nothing follows from anything
/// else: a page need not be its heads times its states.
struct PageNumbers {
  int64_t num_heads = 0;
  int64_t num_states = 0;  ///< of a whole block
  int64_t state_content_size_bytes = 0;
  int64_t unpadded_page_size_bytes = 0;
  int64_t real_page_size_bytes = 0;  ///< what `alignment` pads
  int64_t page_size_bytes = 0;
  int64_t block_stride_alignment = 1;  ///< bytes
  bool operator==(const PageNumbers&) const = default;
};

/// A class that differs from its `SpecKind` in nothing but these numbers: it groups, merges and
/// grows with a request as its kind does. Specs of two classes are never equal.
///
/// Planning derives specs that nobody has handed in, with larger blocks or padded pages, and asks
/// the class what they are.
class KVPLAN_API SpecSubclass {
 public:
  /// `identity` tells classes of one name apart, where there can be several.
  explicit SpecSubclass(std::string name, const void* identity = nullptr);
  SpecSubclass(const SpecSubclass&) = delete;
  SpecSubclass& operator=(const SpecSubclass&) = delete;
  virtual ~SpecSubclass();

  const std::string& name() const { return name_; }
  bool is_same_class(const SpecSubclass& other) const {
    return identity_ == other.identity_ && name_ == other.name_;
  }
  /// The numbers of a spec with these fields; the spec's own are not set yet.
  virtual PageNumbers numbers_of(const KVCacheSpec& spec) const = 0;

 private:
  std::string name_;
  const void* identity_;
};

/// A subclass whose code is elsewhere: the numbers that it gave, by block size and padding. Throws
/// `Unsupported` for a page that was not recorded.
class KVPLAN_API RecordedSubclass final : public SpecSubclass {
 public:
  struct Page {
    int64_t block_size = 0;
    std::optional<int64_t> page_size_padded;
    PageNumbers numbers;
    bool operator==(const Page&) const = default;
  };

  RecordedSubclass(std::string name, std::vector<Page> pages);

  const std::vector<Page>& pages() const { return pages_; }
  PageNumbers numbers_of(const KVCacheSpec& spec) const override;

 private:
  std::vector<Page> pages_;
};

}  // namespace kvplan
