#include "planning/fitting/admission.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "kvplan/checked.h"

namespace kvplan {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};
constexpr Unit kUnits[] = {
    {"GiB", 1LL << 30}, {"MiB", 1LL << 20}, {"KiB", 1LL << 10}, {"bytes", 1}};

std::string format_in(const Unit& unit, int digits, int64_t bytes) {
  char text[64];
  if (unit.bytes == 1) {
    std::snprintf(text, sizeof(text), "%lld bytes", static_cast<long long>(bytes));
  } else {
    std::snprintf(text, sizeof(text), "%.*f %s", digits,
                  static_cast<double>(bytes) / static_cast<double>(unit.bytes), unit.name);
  }
  return text;
}

/// The longest request that fits; 0 if none does.
int64_t longest_request(const PlanningConfig& config, const AdmissionCheck& check) {
  PlanningConfig candidate = config;
  return largest_that_fits(config.max_model_len, [&](int64_t length) {
    candidate.max_model_len = length;
    return check.request_bytes(candidate) <= check.available_bytes;
  });
}

/// The most in-flight tokens with which a request of the full length fits; 0 if in-flight tokens
/// are not what limits it.
int64_t largest_in_flight(const PlanningConfig& config, const AdmissionCheck& check) {
  PlanningConfig candidate = config;
  return largest_that_fits(config.max_in_flight_tokens, [&](int64_t tokens) {
    candidate.max_in_flight_tokens = tokens;
    return check.request_bytes(candidate) <= check.available_bytes;
  });
}

std::string batch_knob(const PlanningConfig& config, int64_t in_flight) {
  const int64_t batches = config.max_concurrent_batches;
  std::string text = "With at most " + std::to_string(in_flight) + " tokens in flight (now " +
                     std::to_string(config.max_in_flight_tokens) +
                     "), i.e. max_num_batched_tokens <= " + std::to_string(in_flight / batches);
  if (batches > 1) text += " with " + std::to_string(batches) + " concurrent batches";
  return text + ", the full length fits. ";
}

std::string memory_knob(const PlanningConfig& config, const AdmissionCheck& check, int64_t blocks) {
  if (config.num_gpu_blocks_override && check.memory_blocks < blocks) {
    return "num_gpu_blocks_override=" + std::to_string(*config.num_gpu_blocks_override) +
           " sets this limit, but of the " + std::to_string(blocks) +
           " blocks needed the memory holds " + std::to_string(check.memory_blocks) +
           ": decrease max_model_len, or free more memory and unset the override. ";
  }
  if (config.num_gpu_blocks_override) {
    return "num_gpu_blocks_override=" + std::to_string(*config.num_gpu_blocks_override) +
           " sets this limit: raise it to at least " + std::to_string(blocks) +
           ", unset it, or decrease max_model_len; more memory does not help. ";
  }
  return "Try increasing gpu_memory_utilization (which also controls CPU memory on the CPU "
         "backend) "
         "or decreasing max_model_len. ";
}

std::string slices_note(const AdmissionCheck& check) {
  if (!check.sliced) return {};
  return "Every group counts with whole blocks of " + format_bytes(check.bytes_per_block) +
         ", however few of their slices it holds; with grouping=\"vllm\" or \"compact\" blocks are "
         "smaller. ";
}

}  // namespace

std::string format_bytes(int64_t bytes, int64_t compared_with) {
  // The largest unit in which neither value reads 0.0, and the fewest digits that tell them apart.
  const int64_t smaller = compared_with > 0 ? std::min(bytes, compared_with) : bytes;
  for (const Unit& unit : kUnits) {
    if (smaller < unit.bytes / 2 && unit.bytes > 1) continue;
    if (compared_with == 0 || compared_with == bytes) return format_in(unit, 2, bytes);
    for (int digits = 2; digits <= 4; ++digits) {
      if (format_in(unit, digits, bytes) != format_in(unit, digits, compared_with)) {
        return format_in(unit, digits, bytes);
      }
    }
  }
  return format_in(kUnits[3], 0, bytes);
}

std::string counted(int64_t number, const char* thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

void check_enough_kv_cache_memory(const PlanningConfig& config, const AdmissionCheck& check,
                                  int64_t needed) {
  const int64_t available = check.available_bytes;
  if (available > 0 && needed <= available) return;

  const std::string worker = "worker " + std::to_string(check.worker);
  // With the null block on top.
  const int64_t blocks_needed =
      check.bytes_per_block > 0 ? checked::cdiv(needed, check.bytes_per_block) + 1 : 0;
  NotEnoughMemory::Numbers numbers{.worker = check.worker,
                                   .needed_bytes = needed,
                                   .available_bytes = available,
                                   .max_model_len = config.max_model_len};
  if (available <= 0) {
    throw NotEnoughMemory("No available memory for the cache blocks: on " + worker +
                              " nothing is left beside the null block of " +
                              format_bytes(check.bytes_per_block) + ". " +
                              memory_knob(config, check, blocks_needed),
                          numbers);
  }
  numbers.estimated_max_len = longest_request(config, check);
  numbers.max_in_flight_tokens = largest_in_flight(config, check);
  std::string message =
      "To serve at least one request with the model's max seq len (" +
      std::to_string(config.max_model_len) + "), " + format_bytes(needed, available) +
      " KV cache is needed, which is larger than the available KV cache memory (" +
      format_bytes(available, needed) + ") of " + worker + ". ";
  if (numbers.estimated_max_len > 0) {
    message += "Based on the available memory, the estimated maximum model length is " +
               std::to_string(numbers.estimated_max_len) + ". ";
  }
  if (numbers.max_in_flight_tokens > 0) message += batch_knob(config, numbers.max_in_flight_tokens);
  message += slices_note(check) + memory_knob(config, check, blocks_needed);
  throw NotEnoughMemory(message, numbers);
}

void throw_cannot_auto_fit(const PlanningConfig& config, int64_t worker, int64_t bytes_per_block,
                           int64_t available_bytes) {
  const std::string knob =
      config.num_gpu_blocks_override
          ? "num_gpu_blocks_override=" + std::to_string(*config.num_gpu_blocks_override) +
                " sets this limit: raise or unset it."
          : "Try increasing gpu_memory_utilization, or decreasing max_num_batched_tokens.";
  const std::string rest = available_bytes > 0
                               ? "which has " + std::to_string(available_bytes) + " bytes"
                               : std::string("where nothing is left");
  throw NotEnoughMemory(
      "Cannot auto-fit max_model_len: not enough memory to serve even a single "
      "token on worker " +
          std::to_string(worker) + ", " + rest + " beside the null block of " +
          std::to_string(bytes_per_block) + " bytes. " + knob,
      {.worker = worker,
       .available_bytes = available_bytes,
       .max_model_len = config.max_model_len});
}

}  // namespace kvplan
