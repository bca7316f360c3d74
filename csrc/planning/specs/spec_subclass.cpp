#include "kvplan/spec_subclass.h"

#include <utility>

#include "kvplan/errors.h"
#include "kvplan/spec.h"

namespace kvplan {
namespace {

std::string describe(int64_t block_size, const std::optional<int64_t>& page_size_padded) {
  return "block_size=" + std::to_string(block_size) + ", page_size_padded=" +
         (page_size_padded ? std::to_string(*page_size_padded) : std::string("None"));
}

}  // namespace

SpecSubclass::SpecSubclass(std::string name, const void* identity)
    : name_(std::move(name)), identity_(identity) {
  if (name_.empty()) throw InvalidArgument("a subclass of a KV cache spec needs a name");
}

SpecSubclass::~SpecSubclass() = default;

RecordedSubclass::RecordedSubclass(std::string name, std::vector<Page> pages)
    : SpecSubclass(std::move(name)), pages_(std::move(pages)) {
  for (size_t i = 0; i < pages_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Page &a = pages_[i], &b = pages_[j];
      if (a.block_size != b.block_size || a.page_size_padded != b.page_size_padded) continue;
      throw InvalidArgument(this->name() + ": there are two pages of " +
                            describe(a.block_size, a.page_size_padded));
    }
  }
}

PageNumbers RecordedSubclass::numbers_of(const KVCacheSpec& spec) const {
  for (const Page& page : pages_) {
    if (page.block_size == spec.block_size && page.page_size_padded == spec.page_size_padded) {
      return page.numbers;
    }
  }
  throw Unsupported(name() + ": no page of " + describe(spec.block_size, spec.page_size_padded) +
                    " was recorded; the class itself is needed to plan with this configuration");
}

}  // namespace kvplan
