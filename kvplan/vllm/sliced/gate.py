"""Which servers can run a plan with slices; the others get vLLM's plan, and one line says why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Run in a whole engine, with the same tokens as vLLM's plan (tests/engine/test_sliced_engine.py).
PROVEN_VERSIONS = ("0.32.0",)
PROVEN_SPECS = ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec")

# The same pages, each block's side by side.
_BLOCK_OUTERMOST = {"LBHNC": "BLHNC", "LBNHC": "BLNHC", "BLHNC": "BLHNC", "BLNHC": "BLNHC"}
# Declares LBHNC only, and takes the strides of a layer's view as they come.
_FOLLOWS_STRIDES = ("CPU_ATTN",)
# Count the pool's blocks to know how large a block id may be.
_COUNT_POOL_BLOCKS = ("FLEX_ATTENTION", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA")


class Refused(ValueError):
    """Why a server gets vLLM's plan."""


def version_reason(version: str) -> str | None:
    """Why no model of this vLLM gets slices, if so."""
    if version in PROVEN_VERSIONS:
        return None
    return (
        f"slices have run in vLLM {', '.join(PROVEN_VERSIONS)} only, not in {version}: its planner "
        "makes groups without a place for slices, as docs/sliced.md says"
    )


def require_config(vllm_config: Any) -> None:
    """Raises :class:`Refused` for a feature that counts or moves blocks of one size."""
    for reason, is_on in _features(vllm_config):
        if is_on:
            raise Refused(reason)


def _features(vllm_config: Any) -> Iterable[tuple[str, bool]]:
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    model, scheduler = vllm_config.model_config, vllm_config.scheduler_config
    events = vllm_config.kv_events_config
    device = vllm_config.device_config.device_type
    yield f"slices have run on the CPU only, not on {device}", device != "cpu"
    yield (
        "a KV connector (kv_transfer_config) moves blocks by ids and one block size for all groups",
        vllm_config.kv_transfer_config is not None,
    )
    yield (
        "KV cache offloading moves blocks by ids and one block size for all groups",
        bool(getattr(cache, "kv_offloading_size", None)),
    )
    yield (
        "KV cache events name a block by an id that means another block in each group",
        events is not None and events.enable_kv_cache_events,
    )
    yield (
        "KV cache metrics (kv_cache_metrics) follow blocks of one pool",
        bool(getattr(vllm_config.observability_config, "kv_cache_metrics", False)),
    )
    yield (
        "speculative decoding with slices was not tried",
        vllm_config.speculative_config is not None,
    )
    for name in (
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        size = getattr(parallel, name, 1)
        yield f"{name}={size} with slices was not tried", size != 1
    yield (
        "elastic expert parallelism makes the cache anew",
        bool(getattr(parallel, "enable_elastic_ep", False)),
    )
    yield "sleep mode with slices was not tried", bool(getattr(model, "enable_sleep_mode", False))
    yield (
        "encoder-decoder models with slices were not tried",
        bool(getattr(model, "is_encoder_decoder", False)),
    )
    yield (
        "disable_hybrid_kv_cache_manager leaves one kind of cache, and nothing to cut",
        bool(scheduler.disable_hybrid_kv_cache_manager),
    )


def require_specs(kv_cache_specs: Iterable[Mapping[str, Any]]) -> None:
    """Raises :class:`Refused` for a kind of cache that has not run with slices."""
    precisions = set()
    for specs in kv_cache_specs:
        for name, spec in specs.items():
            kind = type(spec).__name__
            if kind == "MambaSpec":
                raise Refused(
                    f"layer {name} keeps a Mamba state: vLLM zeroes and copies new blocks by lists "
                    "of ids without their group, and an id means other bytes in each"
                )
            if kind not in PROVEN_SPECS:
                raise Refused(f"layer {name} has a {kind}, which has not run with slices")
            precisions.add((str(spec.dtype), int(spec.kv_quant_mode)))
    if len(precisions) > 1:
        raise Refused(
            "the caches have several precisions: vLLM zeroes new blocks by a list of ids without "
            "their group, and an id means other bytes in each"
        )


def block_outermost_layout(resolved: str, backends: Iterable[type]) -> str:
    """The layout that a plan with slices is made for: the resolved one, blocks outermost.

    The workers see only strides. A page looks the same in both.

    Raises:
        Refused: a backend that does not take it.
    """
    layout = _BLOCK_OUTERMOST.get(resolved)
    if layout is None:
        raise Refused(f"in the layout {resolved} blocks do not lie side by side")
    for backend in backends:
        name = backend.get_name()  # type: ignore[attr-defined]
        if name in _COUNT_POOL_BLOCKS:
            raise Refused(f"the attention backend {name} takes no block id beyond num_gpu_blocks")
        declared = backend.supported_kv_cache_layouts()  # type: ignore[attr-defined]
        if declared is None or name in _FOLLOWS_STRIDES or layout == resolved:
            continue
        if layout not in [one.name for one in declared]:
            raise Refused(f"the attention backend {name} does not take the layout {layout}")
    return layout


def require_groups(groups: Iterable[Any], kernel_sizes: Iterable[Any]) -> None:
    """Raises :class:`Refused` for planned groups that vLLM could not run.

    kernel_sizes: block sizes that all attention backends take.
    """
    kernel_sizes = list(kernel_sizes)
    specs = [any_spec(group.kv_cache_spec) for group in groups]
    sizes = [spec.block_size for spec in specs]
    for size in sizes:
        if not any(
            size == kernel if isinstance(kernel, int) else size % kernel.base == 0
            for kernel in kernel_sizes
        ):
            raise Refused(
                f"the attention backends do not take blocks of {size} tokens whole, and vLLM does "
                "not split blocks that lie side by side; set --block-size to one that they take"
            )
    chunked = any(type(spec).__name__ == "ChunkedLocalAttentionSpec" for spec in specs)
    if chunked and len(set(sizes)) > 1:
        raise Refused(f"chunked local attention needs blocks of one size, and these are {sizes}")


def any_spec(spec: Any) -> Any:
    """Of a group's layers, which are of one kind and have blocks of one size."""
    specs = getattr(spec, "kv_cache_specs", None)
    return next(iter(specs.values())) if specs else spec
