#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "describe_plan.h"
#include "kvplan/kvplan.h"
#include "model_from_source.h"

// Whatever is asked for, the answer is one of kvplan's errors or a plan that keeps the contract.
// vLLM's placement has flaws in LHBNC, which the plan keeps and warns of.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvplan;
  fuzzing::ByteSource source(data, size);
  fuzzing::ModelMaker maker(source);
  try {
    const PlanningConfig config = maker.config();
    const PlanRequest request = maker.request();
    const Plan made = plan(request, config);
    bool warned = false;
    for (const Notice& n : made.notices) {
      warned = warned || n.message.find("block stride") != std::string::npos;
    }
    for (const Violation& v : check(made)) {
      const bool known = v.rule == Rule::kBlocksDisjoint || v.rule == Rule::kAlignedStride;
      if (warned && known) continue;
      std::fprintf(stderr, "%s\n%s\n", v.message.c_str(), testing::describe(made).c_str());
      std::abort();
    }
    explain(made);
    capacity(made);
    safe_block_ids(made);
    for (size_t w = 0; w < made.workers.size(); ++w) worker_max_model_len(made, w);
  } catch (const Error&) {
    // Refused with a reason; any other exception ends the run.
  }
  return 0;
}
