"""vLLM's KV cache planning functions, by their own names, on kvplan's native specs.

Each function mirrors the one of the same name in vllm/v1/core/kv_cache_planning.py (0.33), or in
kv_cache_utils.py where said, private ones included. ``vllm_config`` is a
:class:`~kvplan.PlanningConfig` or anything shaped like a ``VllmConfig``. Memory is in bytes, a
length in tokens. Where a function fails, it has changed nothing; errors are those of
:mod:`kvplan`, which derive from the types that vLLM raises.

The functions that gained a ``builder`` as their first argument in 0.33 can be called with or
without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from kvplan import _core
from kvplan._core import InconsistentSpec, InvalidArgument, PlanningConfig
from kvplan.config import as_planning_config
from kvplan.kv_cache_config import KVCacheConfig, KVCacheGroupSpec
from kvplan.specs import (
    KVCacheLayout,
    KVCacheSpec,
    UniformTypeKVCacheSpecs,
    iter_layer_specs,
)

__all__ = [
    "_annotate_eagle_groups",
    "_approximate_gcd",
    "_auto_fit_max_model_len",
    "_bucket_layers_by_page_size",
    "_check_exact_partition",
    "_ensure_min_page_size",
    "_estimate_max_model_len_from_groups",
    "_get_kv_cache_bytes_per_block",
    "_get_kv_cache_groups_uniform_page_size",
    "_get_kv_cache_groups_uniform_spec",
    "_get_kv_cache_groups_uniform_type",
    "_get_layer_block_stride",
    "_get_packed_kv_cache_groups",
    "_groups_partition_layers_exactly",
    "_max_memory_usage_bytes_from_groups",
    "_pool_bytes_per_block",
    "_pool_bytes_per_block_from_builder",
    "_project_kv_cache_groups_to_worker",
    "_promote_local_kv_cache_specs",
    "_try_get_full_allocation_fallback_groups",
    "_uses_trailing_mtp_layers",
    "_warn_if_unannotated_eagle_mamba",
    "check_enough_kv_cache_memory",
    "create_kv_cache_group_specs",
    "estimate_max_model_len",
    "generate_scheduler_kv_cache_config",
    "get_global_kv_cache_groups",
    "get_kv_cache_capacity",
    "get_kv_cache_config_from_groups",
    "get_kv_cache_configs",
    "get_kv_cache_groups",
    "get_kv_cache_groups_from_builder",
    "get_max_concurrency_for_kv_cache_config",
    "get_uniform_page_size",
    "is_kv_cache_spec_uniform",
    "is_kv_cache_type_attention_free",
    "kv_cache_groups_tp_replicas",
    "max_memory_usage_bytes",
    "may_override_num_blocks",
    "resolve_dcp_kv_block_size",
    "resolve_kv_cache_block_sizes",
    "unify_hybrid_kv_cache_specs",
    "unify_kv_cache_spec_page_size",
    "validate_kv_cache_layout",
]

logger = logging.getLogger("kvplan")

Config = Any
KVCacheSpecs = dict[str, KVCacheSpec]
Groups = list[KVCacheGroupSpec]


def _split_builder(args: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """``(builder, *rest)`` from a call in 0.33's form or in the older one without a builder."""
    if len(args) == count + 1:
        return args
    if len(args) == count:
        return (None, *args)
    raise TypeError(f"expected {count} arguments, or {count + 1} with a builder, got {len(args)}")


def _builder_bytes_per_block(builder: Any, vllm_config: Config, groups: Groups) -> int | None:
    """What a builder with a placement of its own says of a block; None: kvplan's own placement."""
    if _placed_by_core(builder) or not groups:
        return None
    return _pool_bytes_per_block_from_builder(builder, vllm_config, groups)


# --- grouping -----------------------------------------------------------------------------------


def is_kv_cache_type_attention_free(kv_cache_spec: KVCacheSpecs) -> bool:
    """Whether the model has no layer with a KV cache."""
    return not kv_cache_spec


def is_kv_cache_spec_uniform(kv_cache_spec: KVCacheSpecs) -> bool:
    """Whether the specs of all layers merge into one."""
    return _core.is_kv_cache_spec_uniform(kv_cache_spec)


def create_kv_cache_group_specs(
    kv_cache_spec: KVCacheSpecs, grouped_layer_names: list[list[str]]
) -> Groups:
    """A group for each list of layers, its spec merged from theirs.

    Raises:
        MergeError: layers of one list do not belong together (an ``AssertionError``).
    """
    return _core.create_kv_cache_group_specs(kv_cache_spec, grouped_layer_names)


def get_kv_cache_groups(vllm_config: Config, kv_cache_spec: KVCacheSpecs) -> Groups:
    """Split the model's layers into groups that share a block table each.

    By the config's ``grouping``; a sliced grouping does not know the memory here, which
    :func:`kvplan.plan` has. With ``disable_hybrid_kv_cache_manager``, windowed layers are promoted
    in ``kv_cache_spec`` itself, as in vLLM.

    Raises:
        PageSizeError: pages cannot be made equal (a ``NotImplementedError``).
        ValueError: the layers cannot be grouped.
    """
    return _core.get_kv_cache_groups(vllm_config, kv_cache_spec)


def get_global_kv_cache_groups(
    vllm_config: Config, kv_cache_specs: list[KVCacheSpecs], builder: Any = None
) -> Groups:
    """The groups of the whole model, from the layers of every worker.

    A builder groups the layers itself where one is given.
    """
    if _grouped_by_core(builder, vllm_config):
        return _core.get_global_kv_cache_groups(vllm_config, kv_cache_specs)
    from kvplan.builder import DefaultKVCacheConfigBuilder

    return _global_groups_from_builder(
        builder or DefaultKVCacheConfigBuilder(), vllm_config, kv_cache_specs
    )


def _grouped_by_core(builder: Any, vllm_config: Config) -> bool:
    """Whether neither a builder of its own nor the model decides on the groups."""
    if not _placed_by_core(builder):
        return False
    if isinstance(vllm_config, PlanningConfig):
        return True
    model_config = getattr(vllm_config, "model_config", None)
    return not getattr(model_config, "supports_kv_cache_grouping", False)


def _placed_by_core(builder: Any) -> bool:
    """Whether there is no builder, or one that leaves everything to kvplan."""
    if builder is None:
        return True
    from kvplan.builder import DefaultKVCacheConfigBuilder

    return type(builder) is DefaultKVCacheConfigBuilder


def _global_groups_from_builder(
    builder: Any, vllm_config: Config, kv_cache_specs: list[KVCacheSpecs]
) -> Groups:
    merged = _core.merge_worker_specs(vllm_config, kv_cache_specs)
    groups = get_kv_cache_groups_from_builder(builder, vllm_config, merged)
    _core.annotate_global_groups(vllm_config, merged, groups)
    return groups


def get_kv_cache_groups_from_builder(
    builder: Any, vllm_config: Config, kv_cache_spec: KVCacheSpecs
) -> Groups:
    """A builder's groups, checked: every layer in exactly one."""
    groups = builder.get_kv_cache_groups(vllm_config, kv_cache_spec)
    _check_exact_partition(groups, kv_cache_spec)
    return groups


def _check_exact_partition(groups: Groups, kv_cache_spec: KVCacheSpecs) -> None:
    """Raise unless every layer is in exactly one group (an ``AssertionError``)."""
    _core.check_exact_partition(groups, kv_cache_spec)


def _groups_partition_layers_exactly(kv_cache_spec: KVCacheSpecs, kv_cache_groups: Groups) -> bool:
    """Whether every layer is in exactly one group."""
    return _core.groups_partition_layers_exactly(kv_cache_spec, kv_cache_groups)


def _get_kv_cache_groups_uniform_spec(kv_cache_specs: KVCacheSpecs) -> Groups:
    """One group whose spec is the merge of all."""
    return create_kv_cache_group_specs(kv_cache_specs, [list(kv_cache_specs)])


def _get_kv_cache_groups_uniform_type(spec: UniformTypeKVCacheSpecs) -> Groups:
    """One group with a spec for each layer."""
    return [KVCacheGroupSpec(list(spec.kv_cache_specs), spec)]


def _get_kv_cache_groups_uniform_page_size(kv_cache_spec: KVCacheSpecs) -> Groups:
    """Groups of layers of one type each, for pages of one size."""
    return _core.get_kv_cache_groups_uniform_page_size(kv_cache_spec)


def _get_packed_kv_cache_groups(vllm_config: Config, kv_cache_spec: KVCacheSpecs) -> Groups | None:
    """Groups of mixed pages for a block-outermost layout, or None where one page size serves all.

    0.33 annotates the drafter's groups later, in :func:`get_global_kv_cache_groups`.

    Raises:
        ValueError: the config asks for another grouping than vLLM's, of which this is a step.
    """
    return _core.get_packed_kv_cache_groups(vllm_config, kv_cache_spec)


def unify_kv_cache_spec_page_size(kv_cache_spec: KVCacheSpecs) -> KVCacheSpecs:
    """Make all pages as large as the largest, by larger blocks or padding.

    Raises:
        PageSizeError: a layer's page can neither be scaled nor padded to the largest.
    """
    pages = {spec.page_size_bytes for spec in kv_cache_spec.values()}
    if len(pages) <= 1:
        return kv_cache_spec
    return _core.unify_kv_cache_spec_page_size(kv_cache_spec)


def unify_hybrid_kv_cache_specs(kv_cache_spec: KVCacheSpecs) -> None:
    """Promote windowed layers to full attention, in place.

    Raises:
        ValueError: that does not make the layers one type.
    """
    _core.unify_hybrid_kv_cache_specs(kv_cache_spec)


def _promote_local_kv_cache_specs(kv_cache_spec: KVCacheSpecs) -> KVCacheSpecs:
    """A copy with windowed layers as full attention layers, for allocation only."""
    return _core.promote_local_kv_cache_specs(kv_cache_spec)


def _try_get_full_allocation_fallback_groups(kv_cache_spec: KVCacheSpecs) -> Groups | None:
    """One group with sliding windows allocated in full, for MLA next to windows; else None."""
    return _core.try_get_full_allocation_fallback_groups(kv_cache_spec)


def get_uniform_page_size(kv_cache_specs: Iterable[KVCacheSpec]) -> int:
    """The one page size of all specs, in bytes.

    Raises:
        InconsistentSpec: there are several (an ``AssertionError``).
    """
    pages = {spec.page_size_bytes for spec in kv_cache_specs}
    if len(pages) != 1:
        raise InconsistentSpec(f"expected one page size, got {sorted(pages)}")
    return pages.pop()


def _ensure_min_page_size(
    groups: Groups, common_page: int, hidden_specs: KVCacheSpecs
) -> tuple[Groups, int]:
    """Scale the groups' blocks until the common page holds a token of every hidden-state layer."""
    return _core.ensure_min_page_size(groups, common_page, hidden_specs)


def _approximate_gcd(values: Sequence[int], *, lower_bound: int | None = None) -> int:
    """The chunk size that pads the values least, the largest on a tie."""
    return _core.approximate_gcd(values, lower_bound)


def _annotate_eagle_groups(
    vllm_config: Config,
    kv_cache_spec: KVCacheSpecs,
    kv_cache_groups: Groups,
    use_trailing_layer_fallback: bool = False,
) -> None:
    """Flag the drafter's groups by spec marker, then by the last registered layer (before 0.33)."""
    _core.annotate_eagle_groups(
        vllm_config, kv_cache_spec, kv_cache_groups, use_trailing_layer_fallback
    )


def _uses_trailing_mtp_layers(vllm_config: Config) -> bool:
    """Whether the drafter's layers are those registered last."""
    return _core.uses_trailing_mtp_layers(vllm_config)


def _warn_if_unannotated_eagle_mamba(config: Any, kv_cache_groups: Groups) -> None:
    """Warn where Mamba layers meet a drafter that no group could be found for.

    ``config`` is the speculative config, as in 0.33, or the whole one.
    """
    if not isinstance(config, PlanningConfig) and not hasattr(config, "model_config"):
        config = PlanningConfig(max_model_len=1, speculative_method=config.method, use_eagle=True)
    _core.warn_if_unannotated_eagle_mamba(config, kv_cache_groups)


def _bucket_layers_by_page_size(kv_cache_groups: Groups) -> dict[int, list[list[str]]]:
    """``{page size: [layers of each slot]}`` of the shared-slot placement.

    Mirrors vllm/v1/core/kv_cache_utils.py::_bucket_layers_by_page_size (before 0.30).
    """
    return _core.bucket_layers_by_page_size(kv_cache_groups)


# --- sizing -------------------------------------------------------------------------------------


def max_memory_usage_bytes(vllm_config: Config, kv_cache_specs: Iterable[KVCacheSpec]) -> int:
    """Bytes that one request of ``max_model_len`` holds, layer by layer, without group padding."""
    return _core.max_memory_usage_bytes(vllm_config, list(kv_cache_specs))


def estimate_max_model_len(
    vllm_config: Config, kv_cache_spec: KVCacheSpecs, available_memory: int
) -> int:
    """The longest request, up to ``max_model_len``, whose layers fit; 0 if none does."""
    return _core.estimate_max_model_len(vllm_config, kv_cache_spec, available_memory)


def check_enough_kv_cache_memory(
    vllm_config: Config, kv_cache_spec: KVCacheSpecs, available_memory: int
) -> None:
    """Raise unless one request of ``max_model_len`` fits beside the null block.

    Raises:
        NotEnoughMemory: it does not (a ``ValueError``).
    """
    if kv_cache_spec:
        config = as_planning_config(vllm_config)
        _core.check_layers_admission(config, kv_cache_spec, available_memory)


def may_override_num_blocks(vllm_config: Config, num_blocks: int) -> int:
    """``num_gpu_blocks_override`` where it is set."""
    override = as_planning_config(vllm_config).num_gpu_blocks_override
    return num_blocks if override is None else override


def _get_kv_cache_bytes_per_block(kv_cache_groups: Groups, layout: KVCacheLayout | str) -> int:
    """Bytes of one block: of the widest group."""
    return _core.get_kv_cache_bytes_per_block(kv_cache_groups, layout)


def _get_layer_block_stride(spec: KVCacheSpec) -> int:
    """A layer's page rounded up to its stride alignment, in bytes."""
    return _core.layer_block_stride(spec)


def _pool_bytes_per_block(vllm_config: Config, kv_cache_groups: Groups) -> int:
    """Bytes that one block id takes from the device pool."""
    return _core.pool_bytes_per_block(vllm_config, kv_cache_groups)


def _pool_bytes_per_block_from_builder(
    builder: Any, vllm_config: Config, kv_cache_groups: Groups
) -> int:
    """The same for a builder's placement: what it declares, or the size of one block placed.

    Raises:
        ValueError: the placement has several device allocations and declares nothing.
    """
    if not kv_cache_groups:
        return 0
    declared = builder._get_pool_bytes_per_block(vllm_config, kv_cache_groups)
    if declared is not None:
        return declared
    config = as_planning_config(vllm_config, num_gpu_blocks_override=None)
    probe = builder.get_kv_cache_config_from_groups(config, kv_cache_groups, num_blocks=1)
    sizes = {tensor.size for tensor in probe.kv_cache_tensors if not tensor.host_resident}
    if len(sizes) != 1:
        raise InvalidArgument(
            "KV cache tensors must share one device backing allocation, but got sizes "
            f"{sorted(sizes)}. Override KVCacheConfigBuilder._get_pool_bytes_per_block() for "
            "placements with several device allocations."
        )
    return sizes.pop()


def _max_memory_usage_bytes_from_groups(*args: Any) -> int:
    """``([builder,] vllm_config, kv_cache_groups)``: bytes of one request, padding included."""
    builder, config, groups = _split_builder(args, 2)
    return _core.max_memory_usage_bytes_from_groups(
        config, groups, _builder_bytes_per_block(builder, config, groups)
    )


def _estimate_max_model_len_from_groups(*args: Any) -> int:
    """``([builder,] vllm_config, kv_cache_groups, available_memory)``: the longest that fits."""
    builder, config, groups, available_memory = _split_builder(args, 3)
    return _core.estimate_max_model_len_from_groups(
        config, groups, available_memory, _builder_bytes_per_block(builder, config, groups)
    )


def _auto_fit_max_model_len(*args: Any) -> int:
    """``([builder,] vllm_config, projected_groups_per_worker, available_memory)``: fit the length.

    Writes ``vllm_config.model_config.max_model_len`` where there is one, and returns the length.

    Raises:
        NotEnoughMemory: not even one token fits (a ``ValueError``).
    """
    builder, config, groups_per_worker, available_memory = _split_builder(args, 3)
    planning_config = as_planning_config(config)
    fitted, notices = _core.auto_fit_max_model_len(
        planning_config,
        groups_per_worker,
        available_memory,
        [_builder_bytes_per_block(builder, config, groups) for groups in groups_per_worker],
    )
    _write_max_model_len(config, fitted)
    for message in notices:
        logger.info("%s", message)
    return fitted


def _write_max_model_len(vllm_config: Config, max_model_len: int) -> None:
    if not isinstance(vllm_config, PlanningConfig):
        model_config = vllm_config.model_config
        if model_config.max_model_len != max_model_len:
            model_config.max_model_len = max_model_len


# --- placement ----------------------------------------------------------------------------------


def validate_kv_cache_layout(layout: KVCacheLayout | str, kv_cache_groups: Groups) -> None:
    """Raise where pages of several sizes need another layout.

    Raises:
        LayoutError: they do (a ``ValueError``).
    """
    _core.validate_kv_cache_layout(layout, kv_cache_groups)


def get_kv_cache_config_from_groups(
    vllm_config: Config, kv_cache_groups: Groups, available_memory: int
) -> KVCacheConfig:
    """Place the groups in ``available_memory`` bytes, or for ``num_gpu_blocks_override`` blocks."""
    config = as_planning_config(vllm_config)
    if not kv_cache_groups:
        return _config_of(config, 1, [], kv_cache_groups)
    validate_kv_cache_layout(config.kv_cache_layout, kv_cache_groups)
    bytes_per_block = _get_kv_cache_bytes_per_block(kv_cache_groups, config.kv_cache_layout)
    num_blocks = may_override_num_blocks(config, available_memory // bytes_per_block)
    tensors = _core.place_kv_cache_groups(config, kv_cache_groups, num_blocks)
    return _config_of(config, num_blocks, tensors, kv_cache_groups)


def _config_of(
    config: PlanningConfig, num_blocks: int, tensors: list[Any], groups: Groups
) -> KVCacheConfig:
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=groups,
        prefix_cache_retention_interval=config.prefix_cache_retention_interval,
    )


def _project_kv_cache_groups_to_worker(
    global_kv_cache_groups: Groups, worker_spec: KVCacheSpecs
) -> Groups:
    """The groups with only the layers that a worker owns."""
    return _core.project_kv_cache_groups_to_worker(global_kv_cache_groups, worker_spec)


def kv_cache_groups_tp_replicas(groups: Groups, tp_size: int, dcp_size: int = 1) -> int:
    """Consecutive TP ranks that hold identical KV for every layer."""
    return _core.kv_cache_groups_tp_replicas(groups, tp_size, dcp_size)


def get_kv_cache_configs(
    vllm_config: Config,
    kv_cache_specs: list[KVCacheSpecs],
    available_memory: list[int],
    global_kv_cache_groups: Groups | None = None,
    *,
    builder: Any = None,
) -> list[KVCacheConfig]:
    """Plan the KV cache of every worker.

    With auto-fit and something shaped like a ``VllmConfig``, the fitted length is written to
    ``model_config.max_model_len``, after everything else has succeeded; a ``PlanningConfig`` is
    immutable, and the length is ``max_model_len`` of the results.

    Args:
        vllm_config: the configuration.
        kv_cache_specs: one dict of layer names to specs for each worker.
        available_memory: bytes for the KV cache of each worker.
        global_kv_cache_groups: from :func:`get_global_kv_cache_groups`; grouped here if left out.
        builder: a :class:`~kvplan.builder.KVCacheConfigBuilder` that places the groups.

    Raises:
        NotEnoughMemory: a request of ``max_model_len`` does not fit (a ``ValueError``).
        LayoutError: the layout cannot express the model's pages (a ``ValueError``).
        PageSizeError: pages cannot be made equal (a ``NotImplementedError``).
    """
    if global_kv_cache_groups is None and not _grouped_by_core(builder, vllm_config):
        global_kv_cache_groups = get_global_kv_cache_groups(vllm_config, kv_cache_specs, builder)
    if _placed_by_core(builder):
        plan = _core.plan(vllm_config, kv_cache_specs, available_memory, global_kv_cache_groups)
        configs = plan.kv_cache_configs
    else:
        plan, configs = _plan_with_builder(
            builder, vllm_config, kv_cache_specs, available_memory, global_kv_cache_groups
        )
    plan._log_notices()
    if not isinstance(vllm_config, PlanningConfig):
        _write_max_model_len(vllm_config, plan.max_model_len)
    return configs


def _plan_with_builder(
    builder: Any,
    vllm_config: Config,
    kv_cache_specs: list[KVCacheSpecs],
    available_memory: list[int],
    groups: Groups | None,
) -> tuple[Any, list[KVCacheConfig]]:
    """The builder says what a block takes, the core sizes, the builder places the blocks."""
    if groups is None:
        groups = get_global_kv_cache_groups(vllm_config, kv_cache_specs, builder)
    projected = [_project_kv_cache_groups_to_worker(groups, specs) for specs in kv_cache_specs]
    bytes_per_block = [
        _pool_bytes_per_block_from_builder(builder, vllm_config, worker) for worker in projected
    ]
    plan = _core.plan(vllm_config, kv_cache_specs, available_memory, groups, bytes_per_block)
    config = as_planning_config(vllm_config, max_model_len=plan.max_model_len)
    configs = [
        builder.get_kv_cache_config_from_groups(config, worker, plan.num_blocks)
        for worker in projected
    ]
    for result in configs:
        result.kv_tp_replicas = kv_cache_groups_tp_replicas(
            result.kv_cache_groups,
            config.tensor_parallel_size,
            config.decode_context_parallel_size,
        )
    return plan, configs


# --- from kv_cache_utils --------------------------------------------------------------------------


def get_max_concurrency_for_kv_cache_config(
    vllm_config: Config, kv_cache_config: KVCacheConfig
) -> float:
    """Requests of ``max_model_len`` tokens at once, every one charged the whole in-flight window.

    Mirrors vllm/v1/core/kv_cache_utils.py (0.33), the null block counted in; :class:`~kvplan.Plan`
    has the figures without it.
    """
    return _core.max_concurrency(
        vllm_config,
        kv_cache_config.kv_cache_groups,
        kv_cache_config.num_blocks,
        kv_cache_config.hisparse_host_num_blocks,
    )


def get_kv_cache_capacity(vllm_config: Config, kv_cache_config: KVCacheConfig) -> tuple[int, float]:
    """``(tokens, concurrency)`` of the cache. Mirrors vllm/v1/core/kv_cache_utils.py (0.33)."""
    config = as_planning_config(vllm_config)
    concurrency = get_max_concurrency_for_kv_cache_config(config, kv_cache_config)
    return int(concurrency * config.max_model_len), concurrency


def generate_scheduler_kv_cache_config(kv_cache_configs: list[KVCacheConfig]) -> KVCacheConfig:
    """The scheduler's config: worker 0's, with one spec a group.

    Mirrors vllm/v1/core/kv_cache_utils.py (0.33).

    Raises:
        InconsistentSpec: the workers' block counts differ (an ``AssertionError``).
    """
    first = kv_cache_configs[0]
    for attribute in ("num_blocks", "hisparse_host_num_blocks"):
        values = {getattr(config, attribute) for config in kv_cache_configs}
        if len(values) > 1:
            raise InconsistentSpec(f"workers differ in {attribute}: {sorted(map(str, values))}")
    groups = [
        KVCacheGroupSpec(
            list(group.layer_names),
            next(iter(iter_layer_specs(group.kv_cache_spec))),
            group.is_eagle_group,
            group.host_resident,
            group.enable_kv_transfer,
            group.role,
            getattr(group, "slices", 1),
        )
        for group in first.kv_cache_groups
    ]
    fields: dict[str, Any] = {
        name: getattr(first, name) for name in type(first).__dataclass_fields__
    }
    fields.update(kv_cache_groups=groups, kv_cache_tensors=list(first.kv_cache_tensors))
    return KVCacheConfig(**fields)


def resolve_kv_cache_block_sizes(
    kv_cache_config: KVCacheConfig, vllm_config: Config
) -> tuple[int, int]:
    """``(scheduler_block_size, hash_block_size)`` in tokens.

    Mirrors vllm/v1/core/kv_cache_utils.py (0.33).

    Raises:
        ValueError: ``prefix_match_unit`` does not go with the groups' block sizes.
    """
    return _core.resolve_kv_cache_block_sizes(vllm_config, kv_cache_config.kv_cache_groups)


def resolve_dcp_kv_block_size(spec: KVCacheSpec, dcp_world_size: int) -> int:
    """Tokens that a block spans over all DCP ranks. Mirrors kv_cache_utils.py (0.33)."""
    return spec.block_size * (dcp_world_size if spec.dcp_sharded else 1)
