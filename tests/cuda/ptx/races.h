#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace ptx {

/// Who does something to memory. Only `__syncthreads`, which begins an epoch of a thread block, and
/// the ends of launches order threads.
struct Actor {
  uint32_t block;
  uint32_t thread;
  uint32_t epoch;
  bool is_atomic;
};

/// What the threads of a launch did to one place, as far as a later access can race with it.
class Place {
 public:
  /// False: it races with what another thread did, whichever came first.
  bool read(const Actor& actor) {
    const bool ordered = !writes_.races_with(actor);
    reads_.add(actor);
    return ordered;
  }
  bool write(const Actor& actor) {
    const bool ordered = !writes_.races_with(actor) && !reads_.races_with(actor);
    writes_.add(actor);
    return ordered;
  }
  bool is_written() const { return writes_.block != kNobody; }

 private:
  static constexpr uint32_t kNobody = ~0U;
  static constexpr uint32_t kMany = ~1U;

  struct Accesses {
    uint32_t block = kNobody;
    uint32_t thread = kNobody;  // of the last epoch
    uint32_t epoch = 0;
    bool all_atomic = true;      // of the launch
    bool all_atomic_now = true;  // of the last epoch

    bool races_with(const Actor& a) const {
      if (block == kNobody) return false;
      if (block != a.block) return !(all_atomic && a.is_atomic);
      return epoch == a.epoch && thread != a.thread && !(all_atomic_now && a.is_atomic);
    }

    void add(const Actor& a) {
      if (block == kNobody || (block == a.block && epoch != a.epoch)) {
        block = a.block;
        thread = a.thread;
        all_atomic_now = true;
      } else if (block != a.block) {
        block = kMany;
      } else if (thread != a.thread) {
        thread = kMany;
      }
      epoch = a.epoch;
      all_atomic = all_atomic && a.is_atomic;
      all_atomic_now = all_atomic_now && a.is_atomic;
    }
  };

  Accesses writes_;
  Accesses reads_;
};

/// The places of global memory, forgotten at each launch.
class Places {
 public:
  void begin_launch() { ++launch_; }

  Place& at(uintptr_t granule) {
    Page& page = page_of(granule / kPage);
    Entry& entry = page[granule % kPage];
    if (entry.launch != launch_) entry = {launch_, {}};
    return entry.place;
  }

 private:
  static constexpr uintptr_t kPage = 1024;
  struct Entry {
    uint32_t launch = 0;
    Place place;
  };
  using Page = std::array<Entry, kPage>;

  Page& page_of(uintptr_t number) {
    if (number != last_number_ || last_ == nullptr) {
      std::unique_ptr<Page>& page = pages_[number];
      if (page == nullptr) page = std::make_unique<Page>();
      last_number_ = number;
      last_ = page.get();
    }
    return *last_;
  }

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  uint32_t launch_ = 1;
  uintptr_t last_number_ = 0;
  Page* last_ = nullptr;
};

}  // namespace ptx
