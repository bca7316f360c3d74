# ruff: noqa: E402 - the order of imports and replacements matters here
"""The profile run of the real vLLM 0.33.0 on the meta device, with every tensor booked.

Importing this module prepares vLLM as `stand_in_cuda` does and goes further, so that forward passes
run: Triton kernels launch nothing, vLLM's own ops run their Python implementations (their
workspaces are seen), kernels and collectives return tensors of the right shape. `Books` is the
mode under which a run's storages are booked in a `CachingAllocator`, from the op that makes
one to its last reference. Not seen: memory inside kernels, NCCL, CUDA graphs, and what
torch.compile fuses away.
"""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from typing import Any

import torch
from caching_allocator import MIB, Block, CachingAllocator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul")
#: Ops that read a tensor's value, which is 0 here.
_VALUES = tuple(
    getattr(torch.ops.aten, name).default for name in ("_local_scalar_dense", "item", "is_nonzero")
)
#: Bytes of cuBLAS's workspace: Hopper and later, and before.
_CUBLAS_WORKSPACE = {True: 32 * MIB, False: 8320 << 10}


class Kernel:
    """A Triton kernel that launches nothing."""

    def __init__(self, function: Any) -> None:
        self.fn, self.__name__ = function, getattr(function, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Kernel:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class DirectOp:
    """A custom op of vLLM's that runs its Python implementation."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name == "default" else getattr(self.function, name)


def _direct_ops() -> None:
    implement = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        result = implement(self, op_name, fn, *args, **kwargs)
        if self.ns == "vllm" and isinstance(op_name, str) and isinstance(fn, types.FunctionType):
            setattr(torch.ops.vllm, op_name, DirectOp(fn))
        return result

    torch.library.Library.impl = impl


def _idle_triton() -> Any:
    import vllm.triton_utils as triton_utils
    import vllm.triton_utils.importing as importing

    triton = triton_utils.triton
    triton.jit = lambda *a, **k: Kernel(a[0]) if a and callable(a[0]) else Kernel
    triton.autotune = triton.heuristics = lambda *a, **k: lambda function: function
    triton.next_power_of_2 = lambda n: 1 << max(0, int(n) - 1).bit_length()
    triton.cdiv = lambda a, b: -(-a // b)
    triton.runtime = types.SimpleNamespace(
        autotuner=types.SimpleNamespace(Autotuner=type("Autotuner", (), {}))
    )
    triton_utils.HAS_TRITON = importing.HAS_TRITON = True
    return triton_utils


_direct_ops()
_triton_utils = _idle_triton()
import stand_in_cuda as stand_in

sys.modules["triton"] = _triton_utils.triton
sys.modules["triton.language"] = _triton_utils.tl
sys.modules["triton.language.math"] = stand_in.StubModule("triton.language.math")
sys.modules["vllm.tilelang_utils"] = stand_in.StubModule("vllm.tilelang_utils")
sys.modules["vllm.tilelang_utils"].tilelang_jit = Kernel
import vllm.model_executor.warmup.jit_warmup_tilelang_helper as _tilelang_warmup
import vllm.model_executor.warmup.jit_warmup_triton_helper as _warmup

_warmup.triton_kernel_dispatcher_with_warmup = lambda **kwargs: Kernel
_warmup._DecoratedTritonJitKernel.__call__ = lambda self, *a, **k: None
stand_in._import_utils.has_cutedsl = lambda: False  # Triton's kernels give equal outputs
_warmup.VllmTritonJitKernel.launch = lambda self, *a, **k: None
_tilelang_warmup.VllmTileLangJitKernel.__call__ = lambda self, *a, **k: None


class Books(TorchDispatchMode):
    """Books meta storages.

    Attributes:
        allocator: Where they are booked.
        is_host: Whether new storages stand for host memory, which is not booked.
        awaits_cublas: Whether the next product allocates cuBLAS's workspace.
        watched: How many of the largest storages to remember at the peak.
        at_peak: (bytes, op, shape, dtype) of those.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        super().__init__()
        self.allocator = allocator
        self.is_host = self.awaits_cublas = False
        self.watched, self.at_peak, self._top = 0, [], 0
        self._blocks: dict[int, Block | None] = {}
        self._live: dict[int, tuple[int, str, tuple[int, ...], str]] = {}

    def start_watching(self, count: int) -> None:
        """Remember the largest storages at the peak from here on, of those made from here on."""
        self.watched, self.at_peak, self._top = count, [], 0
        self._live.clear()

    def _book(self, tensor: torch.Tensor, op: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if tensor.device.type != "meta" or key in self._blocks:
            return
        size = storage.nbytes()
        self._blocks[key] = None if self.is_host else self.allocator.allocate(size)
        if not self.is_host:
            self._live[key] = (size, op, tuple(tensor.shape), str(tensor.dtype))
        if self.watched and self.allocator.requested > self._top:
            self._top = self.allocator.requested
            self.at_peak = sorted(self._live.values(), reverse=True)[: self.watched]
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self._live.pop(key, None)
        self.allocator.release(self._blocks.pop(key, None))

    def __torch_dispatch__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _VALUES:
            return 0
        kwargs = dict(kwargs or {})
        if "generator" in kwargs:
            kwargs["generator"] = None
        out = func(*args, **kwargs)
        if self.awaits_cublas and func.overloadpacket.__name__ in _PRODUCTS:
            self.awaits_cublas = False
            self.allocator.allocate(_CUBLAS_WORKSPACE[stand_in.CAPABILITY[0] >= 9])
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._book(leaf, str(func))
        return out


class RunOnMeta(stand_in.BuildOnMeta):
    """`BuildOnMeta`, and pinned memory is a tensor like others."""

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        return super().__torch_function__(func, types_, args, kwargs)


class Group(stand_in._Group):
    """A process group whose collectives return tensors of the right shape."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.world_size == 1 else torch.empty_like(x)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if self.world_size == 1:
            return x
        size, dim = x.size(), dim % x.dim()
        out = torch.empty((size[0] * self.world_size, *size[1:]), dtype=x.dtype, device=x.device)
        out = out.reshape((self.world_size, *size)).movedim(0, dim)
        return out.reshape((*size[:dim], self.world_size * size[dim], *size[dim + 1 :]))

    def gather(self, x: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor:
        return self.all_gather(x, dim)

    def reduce_scatter(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if self.world_size == 1:
            return x
        size = list(x.movedim(0, dim).shape)
        size[0] //= self.world_size
        out = torch.empty(size, dtype=x.dtype, device=x.device)
        return out.movedim(0, dim).contiguous()

    _all_reduce_out_place, _all_gather_out_place = all_reduce, all_gather


def _flash_attention(q: Any, k: Any, v: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
    if out is None:
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    return (out, lse) if kwargs.get("return_softmax_lse") else out


def _replace_kernels(books: Books) -> None:
    sys.modules["vllm.vllm_flash_attn"].flash_attn_varlen_func = _flash_attention
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and "flash_attn_varlen_func" in vars(module):
            module.flash_attn_varlen_func = _flash_attention

    import flashinfer
    import flashinfer.sampling as sampling

    def sample(probs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.empty(probs.shape[0], dtype=torch.int32, device=probs.device)

    def sample_from_logits(logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return sample(torch.softmax(torch.empty_like(logits), dim=-1))  # masked, then normalized

    sampling.top_p_sampling_from_probs = sampling.top_k_sampling_from_probs = sample
    sampling.top_k_top_p_sampling_from_logits = sample_from_logits
    flashinfer.sampling = sampling

    import vllm._custom_ops as custom_ops
    import vllm.utils.deep_gemm as deep_gemm
    import vllm.v1.worker.gpu.buffer_utils as buffer_utils

    def grouped_topk(scores: torch.Tensor, groups: int, topk_group: int, topk: int, *a: Any) -> Any:
        shape = (scores.shape[0], topk)
        kinds = (torch.float32, torch.int32)
        return tuple(torch.empty(shape, dtype=kind, device=scores.device) for kind in kinds)

    def host_view(cpu: torch.Tensor) -> torch.Tensor:
        books.is_host = True
        out = torch.empty(cpu.shape, dtype=cpu.dtype, device="meta")
        books.is_host = False
        return out

    custom_ops.grouped_topk = grouped_topk
    deep_gemm._missing = lambda *a, **k: None
    buffer_utils.get_accelerator_view_from_cpu_tensor = host_view


def _replace_moe_kernels() -> None:
    """Packed formats keep their sizes when they are laid out anew; kernels write given outputs."""
    import vllm._custom_ops as custom_ops
    import vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe as gpt_oss
    import vllm.model_executor.layers.fused_moe.oracle.mxfp4 as mxfp4
    import vllm.model_executor.layers.quantization.utils.fp8_utils as fp8_utils

    fp8_utils.deepgemm_post_process_weight_scale_block = lambda ws, **kwargs: ws

    def repack(
        b_q_weight: torch.Tensor, size_k: int, size_n: int, num_bits: int, *a: Any, **kwargs: Any
    ) -> torch.Tensor:
        return b_q_weight.new_empty((size_k // 16, size_n * 16 * num_bits // 32))

    custom_ops.gptq_marlin_repack = repack
    custom_ops.moe_wna16_marlin_gemm = lambda inputs, output, *a, **kwargs: output
    packed = lambda **kwargs: types.SimpleNamespace(**kwargs)  # noqa: E731
    mxfp4._swizzle_mxfp4 = lambda weight, scale, *a: (weight.transpose(-1, -2), None, scale)
    mxfp4.PrecisionConfig = mxfp4.FlexCtx = packed

    def moe_forward(
        hidden_states: torch.Tensor, w1: Any, w2: Any, *, topk: int, **kwargs: Any
    ) -> torch.Tensor:
        tokens, hidden = hidden_states.shape
        output = torch.empty_like(hidden_states)
        middle = hidden_states.new_empty((tokens * topk, w1.shape[-1] // 2))
        unreduced = hidden_states.new_empty((tokens * topk, hidden))
        del middle, unreduced
        return output

    gpt_oss.triton_kernel_moe_forward = moe_forward


def prepare(books: Books) -> None:
    """Replace what runs, beyond what building a model needs."""
    stand_in.StandInCuda.get_current_memory_usage = classmethod(lambda cls, device=None: 0.0)
    torch.accelerator.synchronize = torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.empty_cache = lambda *a, **k: None
    torch.accelerator.max_memory_allocated = lambda *a, **k: 0
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.stream = contextlib.nullcontext
    stand_in._Group = Group
    _replace_kernels(books)
    _replace_moe_kernels()
