"""
Native core of kvplan.
"""

from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions

class BlockPoolError(ValueError):
    """A block pool operation that would break the pool."""

    ...

class DeviceError(RuntimeError):
    """A device refused to run something."""

    ...

class PlanningError(Exception):
    """What every refusal of the planner is, whatever else it is."""

    ...

class InconsistentSpec(PlanningError, ValueError, AssertionError):
    """A spec contradicts itself."""

    ...

class InvalidArgument(PlanningError, ValueError):
    """A value that cannot be planned with."""

    ...

class LayoutError(PlanningError, ValueError):
    """The layout cannot express the model's pages."""

    ...

class MergeError(PlanningError, AssertionError):
    """Specs of one group do not belong together."""

    ...

class NotEnoughMemory(PlanningError, ValueError):
    """One request of the planned length does not fit. Attributes: worker, needed_bytes, available_bytes, max_model_len, estimated_max_len, max_in_flight_tokens."""

    worker: int
    needed_bytes: int
    available_bytes: int
    max_model_len: int
    estimated_max_len: int
    max_in_flight_tokens: int

class Overflow(PlanningError, ValueError, OverflowError):
    """Integer arithmetic left the 64-bit range."""

    ...

class Unsupported(PlanningError, NotImplementedError):
    """Something that neither vLLM nor kvplan does."""

    ...

class PageSizeError(Unsupported):
    """Pages of different sizes cannot be made equal."""

    ...

class KVCacheSpec:
    """
    The cache format of one layer. Immutable.

    Mirrors vllm/v1/kv_cache_interface.py::KVCacheSpec (0.33).
    """
    @staticmethod
    def merge(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """(cls: object, specs: collections.abc.Iterable) -> object"""
    def __copy__(self) -> typing.Any: ...
    def __deepcopy__(self, arg0: typing.Any) -> typing.Any: ...
    def __eq__(self, arg0: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    def _fields(self) -> dict:
        """All fields by name."""
    def copy_with_new_block_size(self, block_size: int) -> typing.Any: ...
    def get_block_stride_alignment(self) -> int:
        """Bytes that the stride between physical blocks must be a multiple of."""
    def get_num_kernel_states(self, kernel_block_size: int) -> int:
        """States of a kernel block of that many tokens."""
    def is_uniform_with_collection(self, kv_cache_specs: dict) -> bool:
        """Whether all these layers need the same token slots as this."""
    def max_memory_usage_bytes(self, vllm_config: typing.Any) -> int:
        """Bytes that one request of max_model_len tokens holds."""
    def max_num_blocks_per_req(self, vllm_config: typing.Any, max_len: int) -> int:
        """Block table entries of one request."""
    def replace(self, **kwargs: typing.Any) -> typing.Any:
        """A copy with the given fields changed."""
    def to_dict(self) -> dict:
        """The class name as `kind`, and the fields that matter."""
    @property
    def block_size(self) -> typing.Any: ...
    @property
    def block_stride_alignment(self) -> typing.Any: ...
    @property
    def block_table_token_alignment(self) -> int | None:
        """Tokens that a block table row is padded to, or None."""
    @property
    def dcp_sharded(self) -> typing.Any: ...
    @property
    def has_layer_views(self) -> bool:
        """Whether allocation makes per-layer views."""
    @property
    def is_draft(self) -> typing.Any: ...
    @property
    def num_heads(self) -> int:
        """H of the logical [B, H, N, C] page."""
    @property
    def num_states(self) -> int:
        """N of the logical page: states of a block."""
    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer, padding included."""
    @property
    def prefix_cacheable(self) -> bool:
        """Whether its group takes part in prefix caching."""
    @property
    def prefix_replay_tokens(self) -> int:
        """Tokens replayed after a prefix hit."""
    @property
    def state_content_size_bytes(self) -> int:
        """C of the logical page, in bytes."""
    @property
    def uses_slot_mapping(self) -> bool:
        """Whether the worker computes a slot mapping."""

class AttentionSpec(KVCacheSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::AttentionSpec (0.33)."""
    @property
    def dtype(self) -> typing.Any: ...
    @property
    def head_size(self) -> typing.Any: ...
    @property
    def head_size_v(self) -> typing.Any: ...
    @property
    def kv_quant_mode(self) -> typing.Any: ...
    @property
    def max_tp_shards(self) -> typing.Any: ...
    @property
    def num_head_slots(self) -> typing.Any: ...
    @property
    def num_kv_heads(self) -> typing.Any: ...
    @property
    def page_size_padded(self) -> typing.Any: ...
    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of a page's content."""
    @property
    def state_content_bytes(self) -> typing.Any: ...
    @property
    def tokens_per_state(self) -> typing.Any: ...
    @property
    def unpadded_page_size_bytes(self) -> int:
        """Bytes of a page's content."""

class FullAttentionSpec(AttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::FullAttentionSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def attention_chunk_size(self) -> typing.Any: ...
    @property
    def non_causal(self) -> typing.Any: ...
    @property
    def sliding_window(self) -> typing.Any: ...

class MLAAttentionSpec(FullAttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::MLAAttentionSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def alignment(self) -> typing.Any: ...
    @property
    def cache_dtype_str(self) -> typing.Any: ...
    @property
    def cache_role(self) -> typing.Any: ...
    @property
    def is_index_group_leader(self) -> typing.Any: ...
    @property
    def model_version(self) -> typing.Any: ...
    @property
    def non_causal_multi_token_decode(self) -> typing.Any: ...
    @property
    def topk_buffer_width(self) -> typing.Any: ...

class HiddenStateCacheSpec(MLAAttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::HiddenStateCacheSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...

class RSWASpec(FullAttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::RSWASpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def rswa_window(self) -> typing.Any: ...

class SinkFullAttentionSpec(FullAttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::SinkFullAttentionSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def sink_len(self) -> typing.Any: ...

class ChunkedLocalAttentionSpec(AttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::ChunkedLocalAttentionSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def max_admission_blocks_per_request(
        self: KVCacheSpec, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Blocks that the scheduler lets one request hold at once."""
    @property
    def attention_chunk_size(self) -> typing.Any: ...

class SlidingWindowSpec(AttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::SlidingWindowSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def max_admission_blocks_per_request(
        self: KVCacheSpec, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Blocks that the scheduler lets one request hold at once."""
    @property
    def extra_retained_tokens(self) -> typing.Any: ...
    @property
    def num_retained_tokens(self) -> int:
        """Tokens below the first scheduled position that stay readable."""
    @property
    def sliding_window(self) -> typing.Any: ...

class SlidingWindowMLASpec(SlidingWindowSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::SlidingWindowMLASpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def alignment(self) -> typing.Any: ...
    @property
    def bounded_replay(self) -> typing.Any: ...
    @property
    def cache_dtype_str(self) -> typing.Any: ...
    @property
    def model_version(self) -> typing.Any: ...

class CircularBufferSpec(AttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::CircularBufferSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...

class EncoderOnlyAttentionSpec(AttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::EncoderOnlyAttentionSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...

class CrossAttentionSpec(AttentionSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::CrossAttentionSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...

class MambaSpec(KVCacheSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::MambaSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def dtypes(self) -> typing.Any: ...
    @property
    def mamba_cache_mode(self) -> typing.Any: ...
    @property
    def mamba_type(self) -> typing.Any: ...
    @property
    def num_prefill_checkpoint_blocks(self) -> typing.Any: ...
    @property
    def num_speculative_blocks(self) -> typing.Any: ...
    @property
    def page_size_padded(self) -> typing.Any: ...
    @property
    def prefill_checkpoint_alignment(self) -> typing.Any: ...
    @property
    def real_page_size_bytes(self) -> int:
        """Bytes of the states."""
    @property
    def shapes(self) -> typing.Any: ...
    @property
    def tokens_per_state(self) -> typing.Any: ...
    @property
    def tp_replicated(self) -> typing.Any: ...

class HiSparseHotSpec(KVCacheSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::HiSparseHotSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def blocks_per_request(self) -> typing.Any: ...
    @property
    def page_size(self) -> typing.Any: ...

class HiSparseResidentSpec(KVCacheSpec):
    """Mirrors vllm/v1/kv_cache_interface.py::HiSparseResidentSpec (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def max_admission_blocks_per_request(
        self: KVCacheSpec, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Blocks that the scheduler lets one request hold at once."""
    @property
    def page_size(self) -> typing.Any: ...

class CustomSpec(KVCacheSpec):
    """A plugin's own cache as numbers: page_size in bytes for block_size tokens, the class it stands for (custom_class), the class whose group it may share (uniform_type_base, by default its own), whether a larger block has a larger page, and a CustomDemand."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def custom_class(self) -> typing.Any: ...
    @property
    def demand(self) -> typing.Any: ...
    @property
    def page_scales_with_block_size(self) -> typing.Any: ...
    @property
    def page_size(self) -> typing.Any: ...
    @property
    def uniform_type_base(self) -> typing.Any: ...

class UniformTypeKVCacheSpecs(KVCacheSpec):
    """
    One spec for each layer of a group whose layers need the same token slots.

    Mirrors vllm/v1/kv_cache_interface.py::UniformTypeKVCacheSpecs (0.33).
    """

    __hash__ = None  # type: ignore
    @staticmethod
    def from_specs(kv_cache_specs: dict) -> typing.Any: ...
    @staticmethod
    def is_uniform_type(kv_cache_specs: dict) -> bool: ...
    def __eq__(self, arg0: object) -> bool: ...
    def __init__(self, block_size: int, kv_cache_specs: dict) -> None: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    def get_max_layers_per_page_size(self) -> int: ...
    def max_memory_usage_bytes(self, vllm_config: typing.Any) -> int: ...
    def max_memory_usage_pages(self, vllm_config: typing.Any) -> int:
        """Pages that one request of max_model_len tokens holds."""
    def max_num_blocks_per_req(self, vllm_config: typing.Any, max_len: int) -> int: ...
    @property
    def block_table_token_alignment(self) -> typing.Any: ...
    @property
    def first_spec(self) -> typing.Any: ...
    @property
    def kv_cache_specs(self) -> dict: ...
    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of all layers together."""
    @property
    def prefix_cacheable(self) -> bool: ...
    @property
    def prefix_replay_tokens(self) -> int: ...
    @property
    def uses_slot_mapping(self) -> typing.Any: ...

class PlanningConfig:
    """
    What the planner reads of an engine's configuration. Immutable; keywords only.

    Lengths and block sizes are in tokens. max_in_flight_tokens counts the tokens that are
    scheduled but not settled in all concurrent batches together. Raises ValueError or
    TypeError that names the field.
    """
    def __eq__(self, arg0: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __init__(self, **kwargs: typing.Any) -> None: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    def replace(self, **kwargs: typing.Any) -> PlanningConfig:
        """A copy with the given fields changed."""
    def to_dict(self) -> dict:
        """The fields that are not at their defaults."""
    @property
    def attention_kernel_block_sizes(self) -> typing.Any: ...
    @property
    def auto_fit(self) -> typing.Any: ...
    @property
    def block_size(self) -> typing.Any: ...
    @property
    def decode_context_parallel_size(self) -> typing.Any: ...
    @property
    def device_type(self) -> typing.Any: ...
    @property
    def disable_hybrid_kv_cache_manager(self) -> typing.Any: ...
    @property
    def draft_rule(self) -> typing.Any: ...
    @property
    def enable_prefix_caching(self) -> typing.Any: ...
    @property
    def encoder_tokens_per_request(self) -> typing.Any: ...
    @property
    def grouping(self) -> typing.Any: ...
    @property
    def has_kv_connector(self) -> typing.Any: ...
    @property
    def kv_cache_layout(self) -> typing.Any: ...
    @property
    def mamba_cache_mode(self) -> typing.Any: ...
    @property
    def max_concurrent_batches(self) -> typing.Any: ...
    @property
    def max_groups(self) -> typing.Any: ...
    @property
    def max_in_flight_tokens(self) -> typing.Any: ...
    @property
    def max_model_len(self) -> typing.Any: ...
    @property
    def max_num_encoder_input_tokens(self) -> typing.Any: ...
    @property
    def min_large_blocks(self) -> typing.Any: ...
    @property
    def mla_kernel_block_sizes(self) -> typing.Any: ...
    @property
    def model_type(self) -> typing.Any: ...
    @property
    def num_gpu_blocks_override(self) -> typing.Any: ...
    @property
    def num_prefill_lookahead_tokens(self) -> typing.Any: ...
    @property
    def pipeline_parallel_size(self) -> typing.Any: ...
    @property
    def place_foreign_layers(self) -> typing.Any: ...
    @property
    def prefix_cache_retention_interval(self) -> typing.Any: ...
    @property
    def prefix_match_unit(self) -> typing.Any: ...
    @property
    def reference_model_len(self) -> typing.Any: ...
    @property
    def speculative_method(self) -> typing.Any: ...
    @property
    def tensor_parallel_size(self) -> typing.Any: ...
    @property
    def use_eagle(self) -> typing.Any: ...
    @property
    def use_eagle_block_drop(self) -> typing.Any: ...

class GroupReport:
    """One group's share of a request."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def block_size(self) -> int:
        """Tokens of a block."""
    @property
    def content_bytes(self) -> int:
        """Bytes of one block that hold states."""
    @property
    def is_eagle_group(self) -> bool: ...
    @property
    def kind(self) -> str:
        """Spec class of its layers."""
    @property
    def layer_names(self) -> list: ...
    @property
    def max_safe_block_id_bytes(self) -> int:
        """The largest of this group's block ids whose page begins below byte 2**31."""
    @property
    def max_safe_block_id_elements(self) -> int:
        """The largest of this group's block ids whose page begins below element 2**31."""
    @property
    def num_layers(self) -> int: ...
    @property
    def padding_bytes(self) -> int:
        """Bytes of one block that hold nothing."""
    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block that this group's pages take on the limiting worker."""
    @property
    def pages_fixed(self) -> int:
        """Blocks of these that do not grow with the length any more."""
    @property
    def pages_per_request(self) -> int:
        """Blocks that one request of the planned length holds."""
    @property
    def pool_blocks_per_request(self) -> int:
        """Whole blocks of the pool that the blocks of one request take."""
    @property
    def slice_bytes(self) -> int:
        """Bytes of one block of this group: its share of a block of the pool."""
    @property
    def slices(self) -> int:
        """Blocks of this group in one block of the pool."""
    @property
    def tokens_per_page(self) -> int | None:
        """Tokens after which the group needs another block; None where it stops growing."""

class WorkerReport:
    """What one worker has and needs."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def available_bytes(self) -> int: ...
    @property
    def bytes_per_block(self) -> int: ...
    @property
    def effective_bytes(self) -> int:
        """Available bytes, or what num_gpu_blocks_override takes."""
    @property
    def max_model_len(self) -> int:
        """The longest request that would fit this worker."""
    @property
    def num_blocks(self) -> int:
        """Blocks that this worker alone could have."""
    @property
    def num_layers(self) -> int: ...
    @property
    def request_bytes(self) -> int:
        """Bytes that one request of the planned length holds."""

class TensorView:
    """Where the layers of one tensor lie, in bytes."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def group(self) -> int:
        """Index of the group whose block ids count its blocks."""
    @property
    def layer_names(self) -> list: ...
    @property
    def offset(self) -> int:
        """Bytes from the buffer's beginning."""
    @property
    def shape(self) -> tuple:
        """[L, B, H, N, C]: layers, blocks, heads, states of a block, bytes of a state."""
    @property
    def strides(self) -> tuple:
        """Bytes between neighbours of each axis."""

class Plan:
    """The KV cache of all workers, and why it is as it is."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    def _kv_cache_groups(self, arg0: int) -> list: ...
    def _kv_cache_tensors(self, arg0: int) -> list: ...
    def _log_notices(self) -> None: ...
    def _prefix_hits(self) -> typing.Any: ...
    def _violations(self, arg0: int) -> list: ...
    def make_pool(self, *, enable_caching: bool = True, enable_events: bool = False) -> typing.Any:
        """
        The pool that hands out the plan's blocks: a BlockPool, or a SlicedBlockPool where
        groups cut blocks into slices.
        """
    def max_concurrency_at(self, max_model_len: int) -> float:
        """Requests of so many tokens at once, by vLLM's formula as max_concurrency."""
    def request_blocks_at(self, max_model_len: int) -> int:
        """Blocks of the pool that one request of so many tokens holds, whole ones for each group."""
    def views(self, worker: int = 0) -> list:
        """A TensorView for each tensor of a worker's buffer, but those of HiSparse pages."""
    @property
    def block_sizes(self) -> tuple[int, int]:
        """(tokens between scheduler decisions, tokens of a block hash)."""
    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block on the limiting worker."""
    @property
    def bytes_per_token(self) -> float:
        """Bytes of a token in groups that grow."""
    @property
    def capacity_tokens(self) -> int:
        """Tokens of the cache, by vLLM's formula."""
    @property
    def config(self) -> PlanningConfig:
        """With the fitted length."""
    @property
    def encoder_tokens_per_request(self) -> int | None:
        """
        Encoder tokens that the steady figures charge each request: the config's, or where it has
        none max_num_encoder_input_tokens, as vLLM's formula does. None without cross attention.
        """
    @property
    def fixed_bytes_per_request(self) -> int:
        """Bytes of a request in groups that have stopped growing."""
    @property
    def groups(self) -> list:
        """A GroupReport for each group."""
    @property
    def kv_cache_configs(self) -> list:
        """A fresh KVCacheConfig for each worker."""
    @property
    def kv_cache_groups(self) -> list:
        """The groups of the whole model."""
    @property
    def limiting_group(self) -> int:
        """The group that holds most of a request."""
    @property
    def limiting_worker(self) -> int:
        """The worker that holds the fewest requests."""
    @property
    def max_concurrency(self) -> float:
        """Requests of the planned length at once, by vLLM's formula."""
    @property
    def max_model_len(self) -> int:
        """Planned length in tokens; with auto_fit, the fitted one."""
    @property
    def max_safe_block_id_bytes(self) -> int:
        """The largest block id whose page begins below byte 2**31."""
    @property
    def max_safe_block_id_elements(self) -> int:
        """The largest block id whose page begins below element 2**31."""
    @property
    def next_token_bytes(self) -> int:
        """Bytes that a request of one token more holds in addition."""
    @property
    def notices(self) -> list:
        """(level, message) pairs, warnings included."""
    @property
    def num_blocks(self) -> int:
        """Blocks of every worker."""
    @property
    def prefix_cache_retention_interval(self) -> int | None: ...
    @property
    def request_blocks(self) -> int:
        """Blocks of one request, all groups together."""
    @property
    def request_bytes(self) -> int:
        """Bytes of one request on the limiting worker."""
    @property
    def requested_max_model_len(self) -> int: ...
    @property
    def steady_capacity_tokens(self) -> int:
        """Tokens of that many requests."""
    @property
    def steady_concurrency(self) -> float:
        """Requests at once when in-flight tokens are counted once per engine."""
    @property
    def usable_blocks(self) -> int:
        """Blocks without the null block."""
    @property
    def usable_capacity_tokens(self) -> int:
        """Tokens of usable_concurrency requests."""
    @property
    def usable_concurrency(self) -> float:
        """The same without the null block: what runs at once."""
    @property
    def warnings(self) -> list:
        """What a log would warn of."""
    @property
    def workers(self) -> list:
        """A WorkerReport for each worker."""

class GroupingPoint:
    """One way to group a model's layers."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def bound_bytes(self) -> int:
        """No grouping with as many groups takes fewer bytes than this."""
    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block on the widest pipeline stage."""
    @property
    def is_vllm(self) -> bool:
        """Whether this is vLLM's own grouping."""
    @property
    def max_layers_per_group(self) -> int:
        """Layers side by side in the largest group, on one pipeline stage."""
    @property
    def min_request_bytes(self) -> int:
        """Bytes of a request of one token: every group pins a block at least."""
    @property
    def num_groups(self) -> int:
        """Groups, and so block tables, of a request."""
    @property
    def request_blocks(self) -> int:
        """Blocks of a request of the reference length, all groups together."""
    @property
    def request_bytes(self) -> int:
        """Bytes of a request of the reference length, on the widest pipeline stage."""

class Frontier:
    """Groupings of which none beats another in groups and bytes."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def chosen(self) -> GroupingPoint:
        """The point that planning with this configuration takes."""
    @property
    def exact(self) -> bool:
        """Whether every point is proven to be the best for its number of groups."""
    @property
    def lower_bound_bytes(self) -> int:
        """Bytes of a request of the reference length without any padding."""
    @property
    def points(self) -> tuple:
        """GroupingPoint objects, fewest groups first."""
    @property
    def reference_model_len(self) -> int:
        """Tokens of the request that the points are priced for."""
    @property
    def vllm(self) -> GroupingPoint | None:
        """vLLM's own grouping; None where vLLM cannot group the model."""

class SlicedPoint:
    """One group a kind of cache, and the slices of the pool's blocks."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block of the pool on the widest pipeline stage."""
    @property
    def exact(self) -> bool:
        """Whether no other slices of these groups are cheaper."""
    @property
    def max_layers_per_group(self) -> int:
        """Layers side by side in the largest group, on one pipeline stage."""
    @property
    def min_request_bytes(self) -> int:
        """Bytes of the slices of a request of one token."""
    @property
    def num_groups(self) -> int:
        """Groups: one for each kind of cache."""
    @property
    def request_blocks(self) -> int:
        """Whole blocks of the pool that a request of max_model_len tokens takes by itself."""
    @property
    def request_bytes(self) -> int:
        """Bytes of the slices that a request of the reference length holds, on the widest pipeline stage."""
    @property
    def slices(self) -> tuple:
        """Slices of each group, in group order."""

class BlockPoolEvent:
    """A change of the prefix cache."""

    __hash__ = None  # type: ignore
    def __eq__(self, arg0: object) -> bool: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def block_ids(self) -> list[int]:
        """The block of each hash."""
    @property
    def block_size(self) -> int:
        """Tokens per hash; of a removed one, as its group's were stored last."""
    @property
    def group_id(self) -> int: ...
    @property
    def hashes(self) -> list:
        """Hashes without the group id."""
    @property
    def kind(self) -> str:
        """'stored', 'removed', 'cleared' or 'lost'."""
    @property
    def num_lost(self) -> int:
        """Events dropped here, since nobody had taken them ('lost')."""
    @property
    def parent_hash(self) -> typing.Any:
        """Hash before the first of `hashes`."""
    @property
    def positions(self) -> list[int]:
        """Of each stored hash, in units of block_size from the request's start."""
    @property
    def still_cached(self) -> bool:
        """Whether the removed hash leads to another block now."""

class BlockPool:
    """
    Hands out KV cache blocks and finds them by hash.

    Block ids are int32 numpy arrays, one call a request; block 0 is the null block, is never handed
    out, and is skipped wherever ids are taken. Order of allocation, eviction and events as in
    vllm/v1/core/block_pool.py::BlockPool (0.33). Every call completes, or raises BlockPoolError (a
    ValueError) and changes nothing. Hashes are 1 to 32 bytes, group ids 0 to 65535. One writer:
    calls must not overlap.

    num_blocks: blocks of the pool, the null block included.
    enable_caching: off, freed blocks are reused last in, first out, hashed or not.
    enable_events: queue changes of the prefix cache for take_events().
    max_events: events that wait at most; one more drops them all for one 'lost' event.
    """
    def __init__(
        self,
        num_blocks: int,
        *,
        enable_caching: bool = True,
        enable_events: bool = False,
        max_events: int = 100000,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    def block_hash(self, block_id: int) -> typing.Any:
        """(hash, group_id), or None."""
    def cache_full_blocks(
        self,
        block_ids: typing.Any,
        hashes: typing.Any,
        block_size: int,
        *,
        first_block: int = 0,
        group_id: int = 0,
        parent_hash: bytes | None = None,
        mask: collections.abc.Sequence[bool] | None = None,
    ) -> None:
        """
        Makes full blocks reachable by their hashes, one per block.

        block_size: tokens. first_block: index of block_ids[0] within the request.
        parent_hash: hash of the block before. mask: one bool per block, False leaves it out.
        """
    def cache_partial_block(
        self,
        block_id: int,
        block_hash: bytes,
        num_tokens: int,
        *,
        hash_block_size: int,
        group_id: int = 0,
        parent_hash: bytes | None = None,
        replace_existing: bool = False,
    ) -> bool:
        """
        Makes the boundary after num_tokens tokens of the prefix, inside a block, reachable.
        False for the null block and for a boundary that a later one has replaced.
        """
    def check_invariants(self) -> None:
        """Raises BlockPoolError if the pool contradicts itself. O(blocks)."""
    def evict_blocks(self, block_ids: typing.Any) -> None:
        """Drops the hashes of the blocks."""
    def free_block_ids(self) -> numpy.ndarray:
        """Free blocks in the order in which they will be handed out, int32."""
    def free_blocks(self, block_ids: typing.Any) -> None:
        """
        One holder less for each block. Released blocks become free in the order given:
        without a hash at the front of the free list, with a hash at its back.
        """
    def get_cached_block(
        self, block_hash: bytes, group_ids: collections.abc.Sequence[int]
    ) -> typing.Any:
        """One block per group, as int32 array, or None if a group has none."""
    def get_cached_prefix(self, hashes: typing.Any, group_id: int = 0) -> numpy.ndarray:
        """
        Blocks of the longest cached prefix of hashes, as int32 array. hashes: list of bytes,
        or uint8 array of shape (n, bytes).
        """
    def get_new_blocks(self, num_blocks: int) -> numpy.ndarray:
        """The next free blocks, as int32 array of shape (num_blocks,); all or none."""
    def move_block_hashes(self, src: int, dst: int) -> None:
        """Re-points all hashes of src to dst, which must have none."""
    def ref_counts(self, block_ids: typing.Any) -> numpy.ndarray:
        """Holders of each block, int32."""
    def reset_prefix_cache(self) -> bool:
        """Forgets everything cached; False, and nothing happens, while a block is in use."""
    def restore_prefix_cache(
        self, saved: collections.abc.Sequence[tuple[int, int, int | None, bytes]]
    ) -> None:
        """Puts what save_prefix_cache returned into a pool without blocks in use or cached."""
    def save_prefix_cache(self) -> list:
        """
        (block id, group id, tokens or None, hash) of each cached hash, what is evicted first
        at the front, blocks in use at the end: for a restart during which the memory stays.
        """
    def set_eviction_hook(self, on_eviction: collections.abc.Callable | None) -> None:
        """
        on_eviction(block_ids) is called with cached blocks that are about to be handed out,
        while they still have their hashes: int32, the one that goes first at the front. It
        reads the pool and changes nothing; what it raises is passed on, and nothing is taken.
        None: nobody is told.
        """
    def take_events(self) -> list[BlockPoolEvent]:
        """Queued events, oldest first."""
    def touch(self, block_ids: typing.Any) -> None:
        """One more holder for each block."""
    def unpin_blocks(self, block_ids: typing.Any, on_reuse: collections.abc.Callable) -> None:
        """
        Like free_blocks, but always to the back; on_reuse(block_id) is called when a block is
        handed out again or the prefix cache is reset.
        """
    @property
    def enable_caching(self) -> bool: ...
    @property
    def memory_bytes(self) -> int:
        """Bytes reserved for block records and hash index."""
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_cached_hashes(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def usage(self) -> float:
        """Share of num_blocks - 1 in use; 0 for a pool of one block."""

class SlicedBlockPool:
    """
    Hands out the blocks of a plan with grouping="sliced" and finds them by hash.

    Group g cuts each of the pool's large blocks into slices[g] slices, which are its blocks: block
    large_id * slices[g] + slice. A large block belongs to one group at a time. Large block 0 is the
    null block of every group, so block 0 is null and blocks 1 to slices[g] - 1 do not exist.

    Block ids are int32 numpy arrays, one call a request; null blocks are skipped wherever ids are
    taken. Every call completes, or raises BlockPoolError (a ValueError) and changes nothing. Hashes
    are 1 to 32 bytes. One writer: calls must not overlap.

    num_large_blocks: large blocks of the pool, the null block included; a plan's num_blocks.
    slices: slices of a large block, for each group.
    enable_caching: off, a block that nobody holds any more loses its hash.
    enable_events: queue changes of the prefix cache for take_events().
    max_events: events that wait at most; one more drops them all for one 'lost' event.
    own_first_above: share of the pool, 0 to 1. When no large block is empty, a group with more bytes
    than that free in its partly used large blocks reuses what is cached there before it empties
    another large block. The smaller, the fuller the pool gets; the larger, the longer the prefix
    cache remembers.
    """
    def __init__(
        self,
        num_large_blocks: int,
        slices: collections.abc.Sequence[int],
        *,
        enable_caching: bool = True,
        enable_events: bool = False,
        max_events: int = 100000,
        own_first_above: float = 0.0625,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    def allocate(
        self,
        num_new: collections.abc.Sequence[int],
        found: collections.abc.Sequence[typing.Any] | None = None,
        *,
        frugal: bool = False,
    ) -> list:
        """
        Holds the blocks found in the prefix cache and takes new ones, all or nothing.

        num_new: new blocks of each group. found: block ids of each group.
        frugal: takes no large block beyond num_large_blocks_needed().
        Returns the new ids of each group, as int32 arrays of shape (num_new[g],).
        """
    def block_hash(self, block_id: int, group_id: int) -> typing.Any:
        """The hash of a block, or None."""
    def cache_full_blocks(
        self,
        block_ids: typing.Any,
        hashes: typing.Any,
        block_size: int,
        group_id: int,
        *,
        first_block: int = 0,
        parent_hash: bytes | None = None,
        mask: collections.abc.Sequence[bool] | None = None,
    ) -> None:
        """
        Makes full blocks in use reachable by their hashes, one per block.

        block_size: tokens. first_block: index of block_ids[0] within the request.
        parent_hash: hash of the block before. mask: one bool per block, False leaves it out.
        """
    def cache_partial_block(
        self,
        block_id: int,
        block_hash: bytes,
        num_tokens: int,
        *,
        hash_block_size: int,
        group_id: int,
        parent_hash: bytes | None = None,
        replace_existing: bool = False,
    ) -> bool:
        """
        Makes the boundary after num_tokens tokens of the prefix, inside a block, reachable.
        False for the null block and for a boundary that a later one has replaced.
        """
    def can_allocate(
        self,
        num_new: collections.abc.Sequence[int],
        found: collections.abc.Sequence[typing.Any] | None = None,
    ) -> bool:
        """Whether allocate() would succeed; exact, in O(groups + blocks found)."""
    def can_make_room(
        self,
        num_new: collections.abc.Sequence[int],
        found: collections.abc.Sequence[typing.Any] | None = None,
        *,
        max_moves: int | None = None,
        pinned: collections.abc.Sequence[typing.Any] | None = None,
    ) -> bool:
        """
        Whether make_room() would succeed. Exact; O(groups + blocks found) without max_moves
        and pinned.
        """
    def check_invariants(self) -> None:
        """Raises BlockPoolError if the pool contradicts itself. O(blocks)."""
    def evict_blocks(self, block_ids: typing.Any, group_id: int) -> None:
        """Drops the hashes of the blocks."""
    def free_blocks(self, block_ids: typing.Any, group_id: int) -> None:
        """
        One holder less for each block. Within a large block, cached slices that become free
        are evicted in the order given.
        """
    def get_cached_block(
        self, block_hash: bytes, group_ids: collections.abc.Sequence[int]
    ) -> typing.Any:
        """One block per group, as int32 array, or None if a group has none."""
    def get_cached_prefix(self, hashes: typing.Any, group_id: int) -> numpy.ndarray:
        """
        Blocks of the longest cached prefix of hashes, as int32 array. hashes: list of bytes,
        or uint8 array of shape (n, bytes).
        """
    def get_new_blocks(self, num_blocks: int, group_id: int) -> numpy.ndarray:
        """New blocks of the group, as int32 array of shape (num_blocks,); all or none."""
    def make_room(
        self,
        num_new: collections.abc.Sequence[int],
        found: collections.abc.Sequence[typing.Any] | None = None,
        *,
        max_moves: int | None = None,
        pinned: collections.abc.Sequence[typing.Any] | None = None,
    ) -> typing.Any:
        """
        Makes allocate(num_new, found) possible by moving blocks, so that large blocks come free.

        num_new, found: as for allocate(). max_moves: do nothing if more would be needed.
        pinned: for each group, ids that must not move, since a transfer reads or writes them, say; the
        whole large blocks that they lie in stay.

        Returns for each group a pair of int32 arrays, sources and destinations, empty where the blocks
        fit already; None, and nothing happens, if moving does not help. From here on the pool knows the
        new ids only, holders and hashes included. The caller rewrites its block tables and found, and
        copies the contents after everything that was launched with the old ids and before anything that
        writes blocks handed out from now on. The copies of one call may run in any order or at once:
        every source and destination occurs once, and none is both. Those of two calls keep their order.
        """
    def move_block_hashes(self, src: int, dst: int, group_id: int) -> None:
        """Re-points all hashes of src to dst, which must be in use and have none."""
    def num_blocks(self, group_id: int) -> int:
        """Ids of the group: num_large_blocks * slices, the null block's among them."""
    def num_free_blocks(self, group_id: int) -> int:
        """Blocks that the group could get if no other group took any."""
    def num_large_blocks_needed(
        self,
        num_new: collections.abc.Sequence[int],
        found: collections.abc.Sequence[typing.Any] | None = None,
    ) -> int:
        """
        Large blocks that allocate() would take off num_free_large_blocks, also if it would
        fail. Exact.
        """
    def num_used_blocks(self, group_id: int) -> int: ...
    def owner(self, large_id: int) -> int | None:
        """The group that a large block belongs to; None in the reserve and for large block 0."""
    def ref_counts(self, block_ids: typing.Any, group_id: int) -> numpy.ndarray:
        """Holders of each block, int32."""
    def reset_prefix_cache(self) -> bool:
        """Forgets everything cached; False, and nothing happens, while a block is in use."""
    def take_events(self) -> list[BlockPoolEvent]:
        """Queued events, oldest first."""
    def touch(self, block_ids: typing.Any, group_id: int) -> None:
        """One more holder for each block, which must have a holder or a hash, or be unpinned."""
    def unpin_blocks(
        self, block_ids: typing.Any, on_reuse: collections.abc.Callable, group_id: int
    ) -> None:
        """
        Like free_blocks, but the contents stay as long as those of cached blocks do.
        on_reuse(block_id, group_id) is called when they are given up: for another block, for
        moves, or as the prefix cache is reset.
        """
    @property
    def enable_caching(self) -> bool: ...
    @property
    def memory_bytes(self) -> int:
        """Bytes reserved for block records and hash index."""
    @property
    def num_cached_hashes(self) -> int: ...
    @property
    def num_empty_large_blocks(self) -> int:
        """
        Large blocks that hold nothing. While there are some, nothing cached
        is evicted for new blocks.
        """
    @property
    def num_free_large_blocks(self) -> int:
        """Large blocks without a slice in use."""
    @property
    def num_free_large_blocks_after_moves(self) -> int:
        """Large blocks that would be free if each group's blocks were moved together."""
    @property
    def num_groups(self) -> int: ...
    @property
    def num_large_blocks(self) -> int: ...
    @property
    def slice_usage(self) -> float:
        """Share of the bytes of num_large_blocks - 1 in slices in use."""
    @property
    def slices(self) -> list[int]:
        """Slices of a large block, for each group."""
    @property
    def usage(self) -> float:
        """Share of num_large_blocks - 1 with a slice in use."""

class CacheGroup:
    """
    A KV cache group as the cache manager sees it.

    kind: full_attention (with sinks, too), rswa, sliding_window (MLA, too), chunked_local, mamba,
    cross_attention or circular_buffer.
    block_size: tokens of a block on one rank; window: tokens of the window or the attention chunk.
    mamba_align: mamba_cache_mode is "align".
    same_spec_as: index of the first group with an equal spec; such groups are found together.
    slices: blocks that the group cuts each block of the pool into.
    """
    @staticmethod
    def from_spec(spec: KVCacheSpec, is_eagle_group: bool = False) -> CacheGroup:
        """The group of a spec; raises Unsupported for HiSparse and encoder-only specs."""
    def __init__(
        self,
        kind: str,
        block_size: int,
        *,
        dcp_sharded: bool = False,
        prefix_cacheable: bool = True,
        is_eagle_group: bool = False,
        is_zeroed: bool = False,
        window: int = 0,
        extra_retained_tokens: int = 0,
        mamba_align: bool = False,
        num_speculative_blocks: int = 0,
        num_prefill_checkpoint_blocks: int = 0,
        prefill_checkpoint_alignment: int | None = None,
        same_spec_as: int | None = None,
        slices: int = 1,
    ) -> None: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...

class PrefixHit:
    """What a prefix lookup found."""
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    @property
    def blocks(self) -> tuple:
        """Block ids, an int32 array a group; 0 where a window needs none."""
    @property
    def diverged(self) -> bool:
        """Whether some group's hit is shorter."""
    @property
    def num_tokens(self) -> int: ...
    @property
    def shared_prefix_boundary(self) -> int:
        """Tokens of a shared prefix that a sparse group has not cached yet; 0: none."""

class CacheManager:
    """
    Decides which blocks every request holds.

    vLLM 0.33.0's KVCacheManager with its coordinators and single-type managers as one native state
    machine: block ids, hits, order of eviction and events are equal. A request is a small integer from
    add_request(); block ids are int32 numpy arrays, one a group; hashes are bytes of hash_bytes each. A
    bad call raises InvalidArgument or BlockPoolError (both ValueError) and changes nothing. One writer:
    calls must not overlap.

    groups: CacheGroup of each KV cache group, in order.
    num_blocks: blocks of the pool, the null block included; where groups cut them into slices, large
    ones, which usage, watermark and admission then count.
    scheduler_block_size, hash_block_size: tokens; None: as vLLM resolves them.
    retention_interval: vLLM's prefix_cache_retention_interval, tokens; None caches densely.
    """
    @staticmethod
    def from_plan(
        plan: typing.Any,
        *,
        lookahead_hashes: bool = True,
        enable_caching: bool | None = None,
        enable_events: bool = False,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
        hash_bytes: int = 32,
    ) -> CacheManager:
        """
        The manager of a plan, as vLLM's scheduler makes it from its configuration.

        lookahead_hashes: hashes cover the num_hash_lookahead_tokens behind their block that a drafter reads,
        as in vLLM; False: their block alone. enable_caching: None: as the plan's config says.
        Raises Unsupported for groups that the manager has no policy for.
        """
    def __init__(
        self,
        groups: collections.abc.Sequence[CacheGroup],
        *,
        num_blocks: int,
        max_model_len: int,
        scheduler_block_size: int | None = None,
        hash_block_size: int | None = None,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_hash_lookahead_tokens: int = 0,
        num_prefill_lookahead: int = 0,
        enable_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
        retention_interval: int | None = None,
        needs_zeroing: bool = False,
        hash_bytes: int = 32,
    ) -> None: ...
    def __reduce__(self) -> tuple: ...
    def __repr__(self) -> str: ...
    def add_request(self) -> int: ...
    def allocate(
        self,
        request: int,
        num_new_tokens: int,
        *,
        num_tokens: int,
        num_prompt_tokens: int,
        num_computed_tokens: int = 0,
        num_in_flight_tokens: int = 0,
        shared_prefix_boundary: int = 0,
        num_new_computed_tokens: int = 0,
        hit: PrefixHit | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        apply_watermark: bool = False,
        skip_zeroing_groups: collections.abc.Sequence[int] = (),
    ) -> typing.Any:
        """
        Makes room for a request's next tokens; the new block ids, an int32 array a group, or None
        where they do not fit. Mirrors KVCacheManager.allocate_slots (0.33).
        """
    def append_hashes(self, request: int, hashes: typing.Any) -> None:
        """Chained block hashes of the next tokens: a sequence of bytes, or rows of uint8."""
    def block_ids(self, request: int) -> tuple:
        """The request's block ids, an int32 array a group."""
    def block_size(self, group: int) -> int:
        """Tokens of a group's block over all ranks."""
    def check_invariants(self) -> None: ...
    def commit(
        self,
        request: int,
        num_tokens_to_cache: int,
        *,
        num_tokens: int,
        num_prompt_tokens: int,
        num_computed_tokens: int = 0,
        num_in_flight_tokens: int = 0,
        shared_prefix_boundary: int = 0,
    ) -> None:
        """Makes what is full of the first tokens known to lookups. Mirrors KVCacheManager.cache_blocks (0.33)."""
    def counters(self) -> dict:
        """num_requests, num_free_blocks, num_cached_hashes, num_queried_tokens and num_hit_tokens, each as of the end of some call: for any thread at any time."""
    def emit_cached_block_events(self, request: int, hit: PrefixHit) -> None:
        """Stored events for the blocks of a hit."""
    def estimate_cached_tokens(self, request: int) -> int: ...
    def evict_blocks(self, block_ids: typing.Any, group: int | None = None) -> None:
        """Forgets what the blocks cache. With slices, ids need their group."""
    def expire_retained(self, now: int) -> int:
        """Lets go of what was kept until now or earlier; returns how many."""
    def finalize_partial_tails(
        self, request: int, num_computed_tokens: int, num_in_flight_tokens: int = 0
    ) -> list: ...
    def find_prefix(self, request: int, max_tokens: int) -> PrefixHit:
        """The longest cached prefix of at most max_tokens tokens. Holds nothing: allocate before anything else takes blocks. Mirrors KVCacheManager.get_computed_blocks (0.33)."""
    def find_prefix_for_connector(self, request: int, max_tokens: int) -> PrefixHit:
        """Mirrors KVCacheManager.get_computed_blocks_for_connector (0.33)."""
    def fork(self, request: int, num_computed_tokens: int) -> int | None:
        """A second request with the first tokens of this one; take_copies has what both write. None if the pool has no blocks for the copies."""
    def free(self, request: int) -> None:
        """Frees all blocks; the request stays known and can be allocated again."""
    def free_copies(self, copies: collections.abc.Sequence[tuple[int, int, int]]) -> None:
        """Lets go of what take_copies returned."""
    def hold_prefix(self, request: int, max_tokens: int) -> PrefixHit:
        """find_prefix, and holds what it found until allocate takes it over, or release_hold, free or remove_request lets it go."""
    def new_step_starts(self) -> None: ...
    def num_blocks_for_computed_tokens(
        self, request: int, group: int, num_computed_tokens: int
    ) -> int: ...
    def num_blocks_to_allocate(
        self,
        request: int,
        *,
        num_tokens: int,
        num_tokens_main_model: int,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_encoder_tokens: int = 0,
        prefill_end: int = 0,
        apply_admission_cap: bool = False,
        hit: PrefixHit | None = None,
    ) -> int:
        """Mirrors KVCacheCoordinator.get_num_blocks_to_allocate (0.33)."""
    def num_common_prefix_blocks(self, request: int, group: int) -> int: ...
    def num_hashes(self, request: int) -> int: ...
    def pop_blocks_for_free(self, request: int) -> numpy.ndarray:
        """Forgets the blocks without freeing them: pool.free_blocks takes them in reverse."""
    def quiet_until(self, request: int) -> int:
        """While computed, new and lookahead tokens are fewer than this, allocate returns no blocks and need not be called."""
    def record_blocks_for_zeroing(self, request: int, start_token: int) -> None: ...
    def record_prefix_cache_stats(
        self, num_tokens: int, num_hits: int, preempted: bool = False
    ) -> None:
        """Counts a lookup."""
    def release_hold(self, request: int) -> None: ...
    def release_retained(self, id: int) -> None: ...
    def remove_request(self, request: int) -> None:
        """Frees what the request holds, and forgets it."""
    def remove_skipped_blocks(
        self, request: int, num_processed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Frees what lies behind the windows of a request."""
    def reset_prefix_cache(self) -> bool:
        """Forgets everything cached; False, and nothing happens, while a block is in use."""
    def retain_prefix(
        self,
        request: int,
        max_tokens: int,
        *,
        priority: int = 0,
        until: int | None = None,
        pinned: bool = False,
    ) -> int:
        """
        Keeps what find_prefix finds after its requests have gone. Returns an id, 0: nothing is cached.

        Kept until release_retained(id), expire_retained(now) with now >= until, a reset of the prefix cache, or, unless pinned, an
        allocation that fits only without it; the lowest priority goes first, of equal ones the oldest. Until then the blocks are in
        use. Raises Unsupported with slices.
        """
    def retained_prefixes(self) -> list:
        """A dict each of id, num_tokens, priority, until and pinned, in the order in which they make way."""
    def revert(self, request: int, num_computed_tokens: int) -> None:
        """Takes back what the request got and cached for later tokens: its last steps did not happen."""
    def schedule(
        self,
        requests: typing.Any,
        num_computed_tokens: numpy.typing.ArrayLike,
        num_new_tokens: numpy.typing.ArrayLike | None = None,
        num_tokens: numpy.typing.ArrayLike | None = None,
        num_in_flight_tokens: numpy.typing.ArrayLike | None = None,
        num_lookahead_tokens: int = 0,
        *,
        appended: typing.Any,
    ) -> tuple:
        """
        One decode step: allocates for each request in order until one does not fit.

        requests: handles; an int32 array is read where it lies. appended: C-contiguous int32 array of shape
        (room, 4) that receives row, group, position and block id of each new block. Returns (requests
        scheduled, blocks appended, "done" | "no_blocks" | "no_room").
        """
    def starts_again(self, request: int) -> bool:
        """With slices: whether the request is to be freed, to start again with the pool to itself."""
    def take_boundary_states(self) -> list:
        """(request, group, block, tokens) of states that a connector can store."""
    def take_copies(self) -> list:
        """(source, destination, group) of copies to make; both stay held until free_copies."""
    def take_events(self) -> list[BlockPoolEvent]: ...
    def take_new_block_ids(self, group: int | None = None) -> numpy.ndarray:
        """Blocks to zero before use, of one group or all. With slices, ids need their group."""
    def take_prefix_cache_stats(self) -> dict:
        """Counts since the last call, as in vLLM's PrefixCacheStats."""
    def truncate_hashes(self, request: int, count: int) -> None: ...
    def truncate_prefix(self, hit: PrefixHit, num_tokens: int) -> None:
        """Shortens a hit in place to a multiple of every block."""
    @property
    def enable_partial_hits(self) -> bool: ...
    @property
    def hash_block_size(self) -> int: ...
    @property
    def hit_alignment(self) -> int: ...
    @property
    def is_sliced(self) -> bool: ...
    @property
    def mamba_shared_prefix_checkpoint(self) -> bool: ...
    @property
    def num_blocks(self) -> int:
        """Blocks of the pool; with slices, large ones."""
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its hash covers."""
    @property
    def num_requests(self) -> int: ...
    @property
    def pool(self) -> BlockPool:
        """The manager's BlockPool; Unsupported with slices."""
    @property
    def scheduler_block_size(self) -> int: ...
    @property
    def sliced_pool(self) -> SlicedBlockPool:
        """The manager's SlicedBlockPool; Unsupported without slices."""
    @property
    def usage(self) -> float: ...

class DevicePool:
    """Where a pool's arrays are."""
    def __init__(
        self, num_blocks: int, free_ids: int, state: int, ref_counts: int = 0, last_use: int = 0
    ) -> None: ...
    def __reduce__(self) -> tuple: ...

class SlicedDevicePool:
    """Where a sliced pool's arrays are."""
    def __init__(
        self,
        num_large_blocks: int,
        slices: collections.abc.Sequence[int],
        free_large: int,
        listed: int,
        state: int,
        large: int,
        used_slices: int,
        ref_counts: int = 0,
    ) -> None: ...
    def __reduce__(self) -> tuple: ...

class DeviceTables:
    """Where the block tables of all groups are."""
    def __init__(
        self,
        groups: collections.abc.Iterable,
        num_rows: int,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        row_claims: int = 0,
    ) -> None: ...
    def __reduce__(self) -> tuple: ...

class BlockOps:
    """The block operations on one kind of device."""
    def __reduce__(self) -> tuple: ...
    @typing.overload
    def allocate(
        self,
        arg0: DevicePool,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
    ) -> None: ...
    @typing.overload
    def allocate(
        self,
        arg0: SlicedDevicePool,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
        arg8: int,
    ) -> None: ...
    @typing.overload
    def append_slots(
        self,
        arg0: DevicePool,
        arg1: DeviceTables,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
        arg8: int,
        arg9: int,
        arg10: int,
        arg11: int,
        arg12: int,
        arg13: int,
        arg14: tuple[int, int, int, int, int, int, int],
        arg15: int,
    ) -> None: ...
    @typing.overload
    def append_slots(
        self,
        arg0: SlicedDevicePool,
        arg1: DeviceTables,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
        arg8: int,
        arg9: int,
        arg10: int,
        arg11: int,
        arg12: int,
        arg13: int,
        arg14: tuple[int, int, int, int, int, int, int],
        arg15: int,
    ) -> None: ...
    def copy_blocks(
        self,
        arg0: int,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
        arg8: int,
        arg9: int,
        arg10: int,
        arg11: int,
        arg12: int,
    ) -> None: ...
    def gather_tables(
        self,
        arg0: DeviceTables,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: collections.abc.Sequence[tuple[int, int]],
        arg5: int,
    ) -> None: ...
    @typing.overload
    def release(self, arg0: DevicePool, arg1: int, arg2: int, arg3: int) -> None: ...
    @typing.overload
    def release(
        self, arg0: SlicedDevicePool, arg1: int, arg2: int, arg3: int, arg4: int
    ) -> None: ...
    @typing.overload
    def release_rows(
        self, arg0: DevicePool, arg1: DeviceTables, arg2: int, arg3: int, arg4: int, arg5: int
    ) -> None: ...
    @typing.overload
    def release_rows(
        self, arg0: SlicedDevicePool, arg1: DeviceTables, arg2: int, arg3: int, arg4: int, arg5: int
    ) -> None: ...
    def remap_blocks(
        self, arg0: DeviceTables, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int
    ) -> None: ...
    @typing.overload
    def reset_pool(self, arg0: DevicePool, arg1: int) -> None: ...
    @typing.overload
    def reset_pool(self, arg0: SlicedDevicePool, arg1: int) -> None: ...
    @typing.overload
    def touch(self, arg0: DevicePool, arg1: int, arg2: int, arg3: int) -> None: ...
    @typing.overload
    def touch(self, arg0: SlicedDevicePool, arg1: int, arg2: int, arg3: int, arg4: int) -> None: ...
    def zero_blocks(
        self,
        arg0: int,
        arg1: int,
        arg2: int,
        arg3: int,
        arg4: int,
        arg5: int,
        arg6: int,
        arg7: int,
        arg8: int,
        arg9: int,
        arg10: int,
    ) -> None: ...
    @property
    def name(self) -> str: ...

class VllmBlockPool:
    """Native base of kvplan.vllm.block_pool.BlockPool."""
    @staticmethod
    def __new__(type, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Create and return a new object.  See help(type) for accurate signature."""
    @staticmethod
    def _attach_free_back(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _attach_free_front(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _block(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _cache_partial(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _detach_free(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _first_free(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _get_one_block(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _has_key(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _insert_block_hash(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Adds a key to a block."""
    @staticmethod
    def _maybe_evict_cached_block(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Drops the keys of the block; whether there were any."""
    @staticmethod
    def _num_cached_hashes(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _remove_cached_block_hashes(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Drops the keys of a block without an event and returns them."""
    @staticmethod
    def _reset(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _secondary_keys(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _take_filed_events(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _unpin(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def cache_full_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Makes blocks[num_cached_blocks:num_full_blocks] reachable by the request's block hashes."""
    @staticmethod
    def check_invariants(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Raises BlockPoolError if the pool contradicts itself. O(num_gpu_blocks)."""
    @staticmethod
    def free_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """One holder less for each block, in order of eviction. Blocks of other pools go to those."""
    @staticmethod
    def get_cached_block(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """One block per group for the hash, or None if a group has none."""
    @staticmethod
    def get_new_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The next free blocks, all or none; raises BlockPoolError (a ValueError)."""
    @staticmethod
    def get_num_free_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Number of free blocks."""
    @staticmethod
    def get_usage(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Share of num_gpu_blocks - 1 in use, 0 to 1."""
    @staticmethod
    def is_block_writable(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Whether its sole holder may change the block."""
    @staticmethod
    def memory_bytes(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Bytes reserved by the pool and its blocks."""
    @staticmethod
    def move_block_hashes(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Re-points all keys of src_block to dst_block, which must have none. No events."""
    @staticmethod
    def touch(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """One more holder for each block; null blocks are skipped."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    metrics_collector: typing.Any
    enable_caching: typing.Any
    enable_kv_cache_events: typing.Any

class VllmPlanner:
    """The planner on the objects of one vLLM."""
    def __init__(self, description: dict) -> None: ...
    def __reduce__(self) -> tuple: ...
    def bytes_per_block(self, vllm_config: typing.Any, kv_cache_groups: list) -> int: ...
    def from_native(self, spec: typing.Any) -> typing.Any:
        """vLLM's object for a spec of kvplan's."""
    def global_groups(
        self, vllm_config: typing.Any, kv_cache_specs: typing.Any, chosen: dict
    ) -> tuple:
        """(groups of the whole model, notices)."""
    def groups(self, vllm_config: typing.Any, kv_cache_spec: dict) -> tuple:
        """(groups, changes to kv_cache_spec or None, notices)."""
    def place(
        self, vllm_config: typing.Any, kv_cache_groups: list, num_blocks: int
    ) -> typing.Any: ...
    def plan(
        self,
        vllm_config: typing.Any,
        kv_cache_specs: typing.Any,
        available_memory: typing.Any,
        global_groups: typing.Any,
        chosen: dict,
    ) -> tuple:
        """(the workers' configs, a dict of what vLLM would log and write or None)."""
    def read_config(self, vllm_config: typing.Any, chosen: dict) -> PlanningConfig:
        """The planner's configuration, with every rule as this vLLM has it."""
    def to_native(self, spec: typing.Any) -> typing.Any:
        """kvplan's own object for a spec of vLLM's."""
    def to_native_layers(self, kv_cache_specs: collections.abc.Iterable) -> list:
        """Each worker's layers with kvplan's own objects."""

class CacheBlocks:
    """Native base of kvplan.vllm.cache_manager.KVCacheBlocks."""
    @staticmethod
    def __new__(type, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Create and return a new object.  See help(type) for accurate signature."""
    @staticmethod
    def get_block_ids(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Block ids, a list a group. Mirrors KVCacheBlocks.get_block_ids (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    blocks: typing.Any

class VllmCacheManager:
    """Native base of kvplan.vllm.cache_manager.KVCacheManager."""
    @staticmethod
    def __new__(type, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Create and return a new object.  See help(type) for accurate signature."""
    @staticmethod
    def _block_list(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _blocks_were_evicted(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _finalize_partial_tails(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _forget_prefix_cache(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _get_num_blocks_to_allocate(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _num_free_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _request_ids(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _settings(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _start(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _take_boundary_states(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _take_copies(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def _usage(*args: typing.Any, **kwargs: typing.Any) -> typing.Any: ...
    @staticmethod
    def allocate_slots(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.allocate_slots (0.33)."""
    @staticmethod
    def cache_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.cache_blocks (0.33)."""
    @staticmethod
    def check_invariants(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Raises BlockPoolError if tables and pool contradict each other."""
    @staticmethod
    def estimate_cached_tokens(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.estimate_cached_tokens (0.33)."""
    @staticmethod
    def free(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.free (0.33)."""
    @staticmethod
    def get_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The request's blocks as they are now. Mirrors KVCacheManager.get_blocks (0.33)."""
    @staticmethod
    def get_computed_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.get_computed_blocks (0.33)."""
    @staticmethod
    def get_computed_blocks_for_connector(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.get_computed_blocks_for_connector (0.33)."""
    @staticmethod
    def new_step_starts(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.new_step_starts (0.33)."""
    @staticmethod
    def pop_blocks_for_free(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.pop_blocks_for_free (0.33)."""
    @staticmethod
    def record_blocks_for_zeroing(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.record_blocks_for_zeroing (0.33)."""
    @staticmethod
    def remove_skipped_blocks(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.remove_skipped_blocks (0.33)."""
    @staticmethod
    def take_new_block_ids(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Mirrors KVCacheManager.take_new_block_ids (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    num_allocations: typing.Any
    num_quiet: typing.Any
    empty_kv_cache_blocks: typing.Any

class RequestBlockHasher:
    """
    What vLLM's get_request_block_hasher returns, for sha256 and sha256_cbor.

    Called with a request: the list of the hashes of its full blocks that have none yet. A
    request with a LoRA adapter, prompt embeddings or multimodal items ahead, of another
    type, or with tokens that are no plain ints goes to `vllm_hasher`.
    """
    @staticmethod
    def __new__(type, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Create and return a new object.  See help(type) for accurate signature."""
    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Call self as a function."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    num_native: typing.Any
    num_by_vllm: typing.Any

def _restore_config(arg0: dict) -> PlanningConfig: ...
def _restore_spec(arg0: typing.Any, arg1: dict) -> typing.Any: ...
def allocate_slices_workspace(num_requests: int, num_groups: int) -> int:
    """int64 elements."""

def annotate_eagle_groups(
    vllm_config: typing.Any,
    kv_cache_spec: dict,
    kv_cache_groups: list,
    use_trailing_layer_fallback: bool,
) -> None: ...
def annotate_global_groups(
    vllm_config: typing.Any, kv_cache_spec: dict, kv_cache_groups: list
) -> None: ...
def append_slots_workspace(max_requests: int, num_groups: int) -> int:
    """int64 elements."""

def approximate_gcd(values: collections.abc.Iterable, lower_bound: typing.Any = None) -> int: ...
def auto_fit_max_model_len(
    config: PlanningConfig,
    groups_per_worker: collections.abc.Sequence,
    available_memory: collections.abc.Sequence,
    bytes_per_block: collections.abc.Sequence,
) -> tuple: ...
def bucket_layers_by_page_size(kv_cache_groups: collections.abc.Iterable) -> dict: ...
def check_exact_partition(groups: collections.abc.Iterable, kv_cache_spec: dict) -> None: ...
def check_layers_admission(
    config: PlanningConfig, kv_cache_spec: dict, available_memory: int
) -> None: ...
def check_placement(
    layout: str, workers: list, no_gaps: bool, allow_foreign_layers: bool, max_violations: int
) -> list:
    """Broken rules of a placement given as plain numbers; see kvplan.check."""

def compute_block_regions(
    placed_layers: collections.abc.Iterable, layout: str, buffer_bytes: int
) -> list: ...
def compute_kv_cache_view(
    spec: typing.Any,
    num_blocks: int,
    layout: typing.Any,
    kv_cache_tensor: typing.Any,
    buffer_bytes: int,
    kernel_block_size: int | None = None,
) -> tuple: ...
def compute_layer_kv_cache_shape_bytes(
    spec: typing.Any, num_blocks: int, kernel_block_size: int | None = None
) -> tuple: ...
def compute_layout_strides(
    spec: typing.Any,
    num_blocks: int,
    num_layers: int,
    layout: typing.Any,
    kernel_block_size: int | None = None,
    fixed_strides: collections.abc.Sequence = (None, None, None, None, None),
) -> tuple: ...
def cpu_block_ops() -> BlockOps: ...
def create_kv_cache_group_specs(
    kv_cache_spec: dict, grouped_layer_names: collections.abc.Iterable
) -> list: ...
def dtype_size(name: str) -> int:
    """Bytes of one element of a dtype by torch's name, with or without 'torch.'."""

def ensure_min_page_size(groups: list, common_page: int, hidden_specs: dict) -> tuple: ...
def estimate_max_model_len(
    vllm_config: typing.Any, kv_cache_spec: dict, available_memory: int
) -> int: ...
def estimate_max_model_len_from_groups(
    vllm_config: typing.Any,
    kv_cache_groups: collections.abc.Iterable,
    available_memory: int,
    bytes_per_block: int | None = None,
) -> int: ...
def field_table() -> dict:
    """
    The fields of PlanningConfig and of every spec class, in order, as dicts: name, type, optional
    (None is a value), required, least and most of its numbers, their unit, and for a choice its names.
    """

def frontier(config: typing.Any, kv_cache_specs: collections.abc.Iterable) -> Frontier: ...
def get_global_kv_cache_groups(
    vllm_config: typing.Any, kv_cache_specs: collections.abc.Iterable
) -> list: ...
def get_kv_cache_bytes_per_block(
    kv_cache_groups: collections.abc.Iterable, layout: typing.Any
) -> int: ...
def get_kv_cache_groups(vllm_config: typing.Any, kv_cache_spec: dict) -> list: ...
def get_kv_cache_groups_uniform_page_size(kv_cache_spec: dict) -> typing.Any: ...
def get_packed_kv_cache_groups(vllm_config: typing.Any, kv_cache_spec: dict) -> typing.Any: ...
def groups_partition_layers_exactly(
    kv_cache_spec: dict, kv_cache_groups: collections.abc.Iterable
) -> bool: ...
def is_kv_cache_spec_uniform(kv_cache_spec: dict) -> bool: ...
def kv_cache_groups_tp_replicas(
    groups: collections.abc.Iterable, tp_size: int, dcp_size: int = 1
) -> int: ...
def layer_block_stride(spec: typing.Any) -> int: ...
def load_block_ops(path: str) -> BlockOps:
    """The block operations of a CUDA library."""

def max_concurrency(
    vllm_config: typing.Any,
    kv_cache_groups: collections.abc.Iterable,
    num_blocks: int,
    host_num_blocks: int | None = None,
) -> float: ...
def max_memory_usage_bytes(
    vllm_config: typing.Any, kv_cache_specs: collections.abc.Iterable
) -> int: ...
def max_memory_usage_bytes_from_groups(
    vllm_config: typing.Any,
    kv_cache_groups: collections.abc.Iterable,
    bytes_per_block: int | None = None,
) -> int: ...
def merge_worker_specs(
    vllm_config: typing.Any, kv_cache_specs: collections.abc.Iterable
) -> dict: ...
def place_kv_cache_groups(
    vllm_config: typing.Any, kv_cache_groups: collections.abc.Iterable, num_blocks: int
) -> list: ...
def plan(
    config: typing.Any,
    kv_cache_specs: typing.Any,
    available_memory: typing.Any,
    kv_cache_groups: typing.Any = None,
    bytes_per_block: typing.Any = None,
) -> Plan:
    """
    Plan the KV cache of all workers.

    config: a PlanningConfig or anything shaped like a VllmConfig; it is not changed.
    kv_cache_specs: one dict of layer names to specs for each worker.
    available_memory: bytes for the KV cache of each worker.
    kv_cache_groups: the model's groups, where they are known already.
    bytes_per_block: what a block takes on each worker, where a builder places the groups;
    the plan then has no tensors.

    Raises NotEnoughMemory, LayoutError, InvalidArgument (all ValueError) or PageSizeError
    (NotImplementedError); then nothing was changed.
    """

def pool_bytes_per_block(
    vllm_config: typing.Any, kv_cache_groups: collections.abc.Iterable
) -> int: ...
def project_kv_cache_groups_to_worker(global_kv_cache_groups: list, worker_spec: dict) -> list: ...
def promote_local_kv_cache_specs(kv_cache_spec: dict) -> dict: ...
def read_request(document: typing.Any) -> tuple:
    """
    The config, each worker's specs by layer name, and each worker's memory in bytes, of a
    request file's JSON as Python's lists and dictionaries. Equal specs are one object, and
    workers with the same layers share one dict. Raises ValueError that names the place in
    the JSON; docs/request.md describes the format.
    """

def read_vllm_config(vllm_config: typing.Any, **kwargs: typing.Any) -> PlanningConfig:
    """A PlanningConfig of what vLLM's planner reads of its configuration; keywords win."""

def replay(
    plan: typing.Any,
    *,
    arrivals: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    priorities: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    num_prompt_tokens: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    num_output_tokens: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    num_parts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    part_texts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    part_lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    output_texts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    token_ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None = None,
    priority_policy: bool = False,
    max_num_seqs: int = 1024,
    max_num_batched_tokens: int = 8192,
    long_prefill_token_threshold: int = 0,
    long_prefill_token_threshold_adaptive: bool = False,
    enable_chunked_prefill: bool = True,
    reserve_full_isl: bool = True,
    async_scheduling: bool = True,
    max_concurrent_batches: int = 2,
    num_lookahead_tokens: int = 0,
    num_drafts: int = 0,
    acceptance: float = 0.0,
    watermark: float = 0.0,
    step_time: typing.Annotated[collections.abc.Sequence[float], "FixedSize(6)"] = [
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ],
    max_samples: int = 300,
    count_evictions: bool = False,
    late_after: float = ...,
    most_late: int = 0,
    go_on: typing.Any = None,
) -> dict:
    """
    Runs a trace through the cache manager of a plan under vLLM's scheduling policy.

    A request's tokens are parts of texts (num_parts of each request, then the texts and lengths of all
    in order; its outputs are tokens of output_texts), or token_ids: prompt and outputs of each request,
    one after another. arrivals are seconds and ascend. step_time: seconds a step, a token, a sequence, a
    token of context, a group, and a group of a sequence. go_on(number of requests that are done) ->
    False ends the replay; so do more than most_late requests whose first token came later than
    late_after seconds.

    Returns a dict of numbers, with arrays for "requests" (end: 0 finished, 1 too long, 2 no room, 3
    unfinished) and "samples", the load over time.
    Mirrors vllm/v1/core/sched/scheduler.py and vllm/v1/engine/core.py (0.33).
    """

def resolve_kv_cache_block_sizes(
    vllm_config: typing.Any, kv_cache_groups: collections.abc.Iterable
) -> tuple: ...
def slice_words(max_slices: int) -> int:
    """int32 elements for a bit a slice."""

def sliced_point(
    config: typing.Any, kv_cache_specs: typing.Any, available_memory: typing.Any = None
) -> SlicedPoint | None: ...
def spec_class_names() -> list:
    """The spec classes that kvplan has."""

def spec_field_names(class_name: str) -> list:
    """The fields of a spec class, in the order of vLLM's dataclass."""

def spec_from_dict(fields: dict) -> typing.Any:
    """A spec from what to_dict() gives. Raises ValueError or TypeError that names the field."""

def spec_uniform_type_base(class_name: str) -> str:
    """The class that decides which specs may share a group, '' if there is none."""

def try_get_full_allocation_fallback_groups(kv_cache_spec: dict) -> typing.Any: ...
def unify_hybrid_kv_cache_specs(kv_cache_spec: dict) -> None: ...
def unify_kv_cache_spec_page_size(kv_cache_spec: dict) -> dict: ...
def uses_trailing_mtp_layers(arg0: typing.Any) -> bool: ...
def validate_kv_cache_layout(
    layout: typing.Any, kv_cache_groups: collections.abc.Iterable
) -> None: ...
def vector_bytes(
    buffers: collections.abc.Sequence[int], regions: collections.abc.Sequence[tuple[int, int, int]]
) -> int: ...
def vllm_cache_groups(
    specs: list,
    is_eagle_group: collections.abc.Sequence[bool],
    same_as: collections.abc.Sequence[int],
    slices: collections.abc.Sequence[int] = [],
) -> typing_extensions.CapsuleType:
    """The groups of kvplan's own specs, for VllmCacheManager."""

def warn_if_unannotated_eagle_mamba(
    vllm_config: typing.Any, kv_cache_groups: collections.abc.Iterable
) -> None: ...

DEFAULT_MAX_GROUPS: int = 32
GROUP_PRICE: float = 0.005
MAX_BLOCK_HASH_BYTES: int = 32
MAX_TABLE_GROUPS: int = 64
POOL_STATE_SIZE: int = 4
__version__: str = "0.1.0"

class KVCacheBlock:
    """Metadata of one KV cache block of a pool. Mirrors vllm/v1/core/kv_cache_utils.py::KVCacheBlock (0.33)."""
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    set_block_hash: typing.Any
    reset_hash: typing.Any
    block_id: typing.Any
    is_null: typing.Any
    ref_cnt: typing.Any
    pool: typing.Any
    block_hash: typing.Any
    block_hash_num_tokens: typing.Any
    prev_free_block: typing.Any
    next_free_block: typing.Any
