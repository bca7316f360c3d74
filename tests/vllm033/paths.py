"""Which paths of vLLM's planner a request took: labels, from wrapped functions and outcomes."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import oracle

planning = oracle.kv_cache_planning
interface = oracle.interface

# Every label that a good set of random requests must reach, with a successful plan or without.
GROUPING_PATHS = (
    "attention free",
    "uniform spec",
    "uniform spec, merged",
    "uniform type",
    "packed, balanced pattern",
    "packed, no pattern",
    "packed, one mixed-size bucket kept whole",
    "packed, several repeats per group",
    "packed, split by approximate gcd",
    "packed, state bucket split",
    "packed, state bucket kept",
    "unify, equal pages",
    "unify, block scaled",
    "unify, mamba padded",
    "unify, attention padded",
    "unify, failed",
    "fallback, full allocation",
    "fallback, refused",
    "uniform page size",
    "uniform page size, buckets merged",
    "uniform page size, 1.5x rule",
    "uniform page size, padding layers",
    "hidden states, packed",
    "hidden states, page large enough",
    "hidden states, blocks scaled",
    "hybrid manager disabled, promoted",
    "hybrid manager disabled, nothing to promote",
    "hybrid manager disabled, failed",
    "drafter, group annotated",
    "drafter, nothing to annotate",
    "drafter, unannotated mamba",
)
PLAN_FEATURES = (
    *(f"layout {layout.name}" for layout in interface.KVCacheLayout),
    "several stages",
    "stage without a uniform-type group's layers",
    "stage without some group's layers",
    "blocks shrunk to the smallest worker",
    "TP replicas",
    "override",
    "auto-fit, reduced",
    "auto-fit, full length",
    "context parallel",
    "padded pages",
    "fraction of a token per state",
    "several tokens per state",
    "stride alignment, bytes",
    "stride alignment, multiple of a kernel block",
    "retention interval",
    "extra retained tokens",
    "mamba mode none",
    "mamba mode align",
    "mamba mode all",
    *(
        f"kind {name}"
        for name in oracle.SPEC_FIELDS
        if name
        not in (
            "KVCacheSpec",
            "AttentionSpec",
            "UniformTypeKVCacheSpecs",
            "EncoderOnlyAttentionSpec",
            "HiSparseHotSpec",
            "HiSparseResidentSpec",
        )
    ),
)
FAILURES = (
    "not enough memory",
    "no memory at all",
    "auto-fit cannot fit a token",
    "layout cannot express the pages",
    "same layer, different specs",
    "unknown kind",
    "context parallel with a window",
    "stage without any layer",
    "pages cannot be unified",
)


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Collects the labels of everything vLLM's grouping does inside the block."""
    seen: set[str] = set()
    originals = {}

    def wrap(name: str, observe: Any) -> None:
        original = originals[name] = getattr(planning, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except Exception as e:
                observe(args, None, e)
                raise
            observe(args, result, None)
            return result

        setattr(planning, name, wrapper)

    def on_groups(args: Any, result: Any, error: Any) -> None:
        if error is not None:
            return
        if not result:
            seen.add("attention free")
        hidden = any(isinstance(s, interface.HiddenStateCacheSpec) for s in args[1].values())
        if hidden and "packed" in seen:
            seen.add("hidden states, packed")
        seen.discard("packed")

    def on_uniform_spec(args: Any, result: Any, error: Any) -> None:
        specs = list(args[0].values())
        merged = any(spec != specs[0] for spec in specs)
        seen.add("uniform spec, merged" if merged else "uniform spec")

    def on_uniform_type(args: Any, result: Any, error: Any) -> None:
        seen.add("uniform type")

    def on_gcd(args: Any, result: Any, error: Any) -> None:
        if len(set(args[0])) > 1:
            seen.add("packed, split by approximate gcd")
        if result is not None and result > 1:
            seen.add("packed, several repeats per group")
        seen.add("packed, balanced pattern")

    def on_packed(args: Any, result: Any, error: Any) -> None:
        if not result:
            return
        seen.add("packed")
        if "packed, balanced pattern" not in seen:
            seen.add("packed, no pattern")
        wrapped = [g.kv_cache_spec for g in result]
        state = (interface.MambaSpec, interface.CircularBufferSpec)
        if "packed, no pattern" in seen:
            state = (*state, interface.SlidingWindowSpec)
        for spec in wrapped:
            sizes = [s.page_size_bytes for s in spec.kv_cache_specs.values()]
            if len({sizes.count(size) for size in set(sizes)}) > 1:
                seen.add("packed, one mixed-size bucket kept whole")
        state_groups = [
            (type(s.first_spec), s.first_spec) for s in wrapped if isinstance(s.first_spec, state)
        ]
        if state_groups:
            split = any(state_groups.count(g) > 1 for g in state_groups)
            seen.add("packed, state bucket split" if split else "packed, state bucket kept")

    def on_unify(args: Any, result: Any, error: Any) -> None:
        if isinstance(error, NotImplementedError):
            seen.add("unify, failed")
        if result is None:
            return
        if result is args[0]:
            seen.add("unify, equal pages")
        for name, spec in result.items():
            before = args[0][name]
            if spec.block_size != before.block_size:
                seen.add("unify, block scaled")
            elif spec != before:
                mamba = isinstance(spec, interface.MambaSpec)
                seen.add("unify, mamba padded" if mamba else "unify, attention padded")

    def on_fallback(args: Any, result: Any, error: Any) -> None:
        seen.add("fallback, refused" if result is None else "fallback, full allocation")

    def on_uniform_page_size(args: Any, result: Any, error: Any) -> None:
        if result is None:
            return
        seen.add("uniform page size")
        kinds: dict[Any, int] = {}
        for spec in args[0].values():
            kinds[spec] = kinds.get(spec, 0) + 1
        if any(len({args[0][n] for n in g.layer_names}) > 1 for g in result):
            seen.add("uniform page size, buckets merged")
        elif min(kinds.values()) < max(kinds.values()) < 1.5 * min(kinds.values()):
            seen.add("uniform page size, 1.5x rule")
        if len({len(g.layer_names) for g in result}) > 1:
            seen.add("uniform page size, padding layers")

    def on_min_page(args: Any, result: Any, error: Any) -> None:
        if result is not None:
            kept = result[0] is args[0]
            seen.add(f"hidden states, {'page large enough' if kept else 'blocks scaled'}")

    def on_unify_hybrid(args: Any, result: Any, error: Any) -> None:
        if error is not None:
            seen.add("hybrid manager disabled, failed")

    def on_promote(args: Any, result: Any, error: Any) -> None:
        if "unify, failed" in seen or result is None:
            return
        changed = "promoted" if result != args[0] else "nothing to promote"
        seen.add(f"hybrid manager disabled, {changed}")

    def on_annotate(args: Any, result: Any, error: Any) -> None:
        annotated = any(g.is_eagle_group for g in args[1])
        seen.add("drafter, group annotated" if annotated else "drafter, nothing to annotate")
        mamba = any(
            isinstance(s, interface.MambaSpec)
            for g in args[1]
            for s in interface.iter_layer_specs(g.kv_cache_spec)
        )
        if mamba and not annotated:
            seen.add("drafter, unannotated mamba")

    wrap("get_kv_cache_groups", on_groups)
    wrap("_get_kv_cache_groups_uniform_spec", on_uniform_spec)
    wrap("_get_kv_cache_groups_uniform_type", on_uniform_type)
    wrap("_approximate_gcd", on_gcd)
    wrap("_get_packed_kv_cache_groups", on_packed)
    wrap("unify_kv_cache_spec_page_size", on_unify)
    wrap("_try_get_full_allocation_fallback_groups", on_fallback)
    wrap("_get_kv_cache_groups_uniform_page_size", on_uniform_page_size)
    wrap("_ensure_min_page_size", on_min_page)
    wrap("unify_hybrid_kv_cache_specs", on_unify_hybrid)
    wrap("_promote_local_kv_cache_specs", on_promote)
    wrap("_warn_if_unannotated_eagle_mamba", on_annotate)
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(planning, name, original)


def plan_features(request: dict[str, Any], outcome: dict[str, Any]) -> set[str]:
    """Labels of what a successful plan contains."""
    config = oracle.CONFIG_DEFAULTS | request["config"]
    workers = [[name for name, _ in layers] for layers in oracle.expand_workers(request)]
    seen = {f"layout {config['kv_cache_layout']}"}
    used = {i for layers in oracle.expand_workers(request) for _, i in layers}
    for spec in (s for i, s in enumerate(request["specs"]) if i in used):
        seen.add(f"kind {spec['kind']}")
        if spec["kind"] == "MambaSpec":
            seen.add(f"mamba mode {config['mamba_cache_mode']}")
        if spec.get("page_size_padded") is not None or "alignment" in spec:
            seen.add("padded pages")
        if isinstance(spec.get("tokens_per_state", 1), str):
            seen.add("fraction of a token per state")
        elif spec.get("tokens_per_state", 1) > 1:
            seen.add("several tokens per state")
        alignment = spec.get("block_stride_alignment")
        if isinstance(alignment, dict):
            seen.add("stride alignment, multiple of a kernel block")
        elif alignment is not None:
            seen.add("stride alignment, bytes")
        if "Sliding" in spec["kind"] and config["num_prefill_lookahead_tokens"] > 1:
            seen.add("extra retained tokens")
    if len({tuple(names) for names in workers}) > 1:
        seen.add("several stages")
    for planned in outcome["kv_cache_configs"]:
        for group in planned["kv_cache_groups"]:
            if not group["layer_names"]:
                seen.add("stage without some group's layers")
                if group["kv_cache_spec"]["kind"] == "UniformTypeKVCacheSpecs":
                    seen.add("stage without a uniform-type group's layers")
    memory = {w["available_memory"] for w in request["workers"]}
    if len(memory) > 1 and len(workers) > 1:
        seen.add("blocks shrunk to the smallest worker")
    if any(c["kv_tp_replicas"] > 1 for c in outcome["kv_cache_configs"]):
        seen.add("TP replicas")
    if config["num_gpu_blocks_override"] is not None:
        seen.add("override")
    if config["auto_fit"]:
        reduced = outcome["max_model_len"] < config["max_model_len"]
        seen.add("auto-fit, reduced" if reduced else "auto-fit, full length")
    if config["decode_context_parallel_size"] > 1:
        seen.add("context parallel")
    if config["prefix_cache_retention_interval"] is not None:
        seen.add("retention interval")
    return seen


def failure(outcome: dict[str, Any]) -> str:
    """The label of a failed plan."""
    beginnings = {
        "To serve at least one request": "not enough memory",
        "No available memory": "no memory at all",
        "Cannot auto-fit": "auto-fit cannot fit a token",
        "KV cache layout": "layout cannot express the pages",
        "The KV cache specs for the same layer": "same layer, different specs",
        "Unsupported KV cache spec type": "unknown kind",
        "DCP not support": "context parallel with a window",
        "integer division or modulo by zero": "stage without any layer",
    }
    for beginning, label in beginnings.items():
        if outcome["message"].startswith(beginning):
            return label
    if "page size is not divisible" in outcome["message"]:
        return "pages cannot be unified"
    return f"{outcome['error']}: {outcome['message'][:60]}"


def run_recorded(request: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The oracle's outcome and every label it earned."""
    with recorded() as seen:
        outcome = oracle.run(request)
    if "error" in outcome:
        return outcome, seen | {failure(outcome)}
    return outcome, seen | plan_features(request, outcome)
