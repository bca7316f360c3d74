# ruff: noqa: E402 - the order of imports and replacements matters here
"""The real vLLM 0.33.0 on a machine without a GPU: a stand-in CUDA device and the meta device.

Importing this module replaces vLLM's platform with a CUDA platform that reports the compute
capability of ``KVPLAN_STAND_IN_CAPABILITY`` (default 9.0), so that backend selection, block sizes
and KV cache specs come out as on that GPU. Compiled extensions and optional packages that are not
there are replaced by stubs; models are built on the meta device, without weights.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any
from unittest.mock import MagicMock

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch

CAPABILITY = tuple(
    int(part) for part in os.environ.get("KVPLAN_STAND_IN_CAPABILITY", "9.0").split(".")
)
_EXTENSIONS = (
    "_C_stable_libtorch",
    "_moe_C_stable_libtorch",
    "_flashkda_C",
    "cumem_allocator",
)
_OPTIONAL_PACKAGES = (
    "torchvision",
    "torchaudio",
    "compressed_tensors",
    "loguru",
    "mistral_common",
    "flashinfer",
    "cutlass",
    "cuda.bindings",
)
_CAPABILITY_QUERIES = (
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
)


class _StubType(type):
    """A class whose every class attribute is another stub class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StubType(name, (_StubBase,), {})

    def __getitem__(cls, item: Any) -> _StubType:
        return cls


class _StubBase(metaclass=_StubType):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 0


class StubModule(types.ModuleType):
    """A module whose every attribute is a usable class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _StubType(name, (_StubBase,), {})
        setattr(self, name, value)
        return value


class _StubFinder:
    """Finds stubs for optional packages that are not installed."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> StubModule:
        module = StubModule(spec.name)
        module.__path__ = []
        module.__version__ = "0.0"
        return module

    def exec_module(self, module: Any) -> None:
        return None


def _stub_attribute(self: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StubType(name, (_StubBase,), {})


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False


def _install_stubs() -> None:
    for name in _EXTENSIONS:
        sys.modules[f"vllm.{name}"] = types.ModuleType(f"vllm.{name}")
    flash_attn = StubModule("vllm.vllm_flash_attn")
    flash_attn.__path__ = []
    flash_attn.is_fa_version_supported = lambda version, *a: version in (2, 3)
    sys.modules["vllm.vllm_flash_attn"] = flash_attn
    sys.modules["vllm.vllm_flash_attn.flash_attn_interface"] = flash_attn
    missing = tuple(p.partition(".")[0] for p in _OPTIONAL_PACKAGES if not _is_installed(p))
    sys.meta_path.append(_StubFinder(missing))
    for query in _CAPABILITY_QUERIES:
        setattr(torch.ops._C, query, lambda *a: True)
    import vllm.triton_utils as triton_utils

    class Config:
        def __init__(self, kwargs=None, num_warps=4, num_stages=1, **rest):
            self.kwargs, self.num_warps, self.num_stages = kwargs or {}, num_warps, num_stages

    triton_utils.triton.Config = Config
    triton_utils.triton.set_allocator = lambda *a: None
    type(triton_utils.tl).__getattr__ = _stub_attribute


_install_stubs()
import vllm.platforms as _platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class StandInCuda(NonNvmlCudaPlatform):
    """A CUDA platform that answers from constants."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(*CAPABILITY)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "stand-in"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 80 << 30

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
        return True

    @classmethod
    def import_kernels(cls) -> None:
        return None

    @classmethod
    def device_count(cls) -> int:
        return 64

    @classmethod
    def get_cuda_runtime_major(cls) -> int:
        return 13

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 132

    @classmethod
    def current_device(cls) -> torch.device:
        return torch.device("meta")


class _Stub:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: 0


class _Properties:
    multi_processor_count = 132
    major, minor = CAPABILITY
    total_memory = 80 << 30
    name = "stand-in"
    shared_memory_per_block_optin = 232448
    gcnArchName = "gfx942"
    is_integrated = False


_platforms._current_platform = StandInCuda()
torch.cuda.Stream = torch.cuda.Event = torch.Event = _Stub
torch.cuda._lazy_init = lambda: None
torch._C._cuda_setStream = lambda **stream: None
torch.cuda.device_count = lambda: 64
torch.cuda.current_device = lambda: 0
torch.cuda.current_stream = lambda *a: _Stub()
torch.accelerator.current_device_index = lambda: 0
torch.cuda.get_device_properties = lambda *a, **k: _Properties()
torch.cuda.get_device_capability = lambda *a, **k: CAPABILITY
torch.accelerator.empty_cache = lambda: None

import vllm.tokenizers as _tokenizers
import vllm.transformers_utils.processor as _processor
import vllm.utils.import_utils as _import_utils

_tokenizers.cached_tokenizer_from_config = lambda *a, **k: MagicMock()
for _name in (n for n in dir(_processor) if n.startswith("cached_")):
    setattr(_processor, _name, lambda *a, **k: MagicMock())
_import_utils.has_deep_gemm = lambda: True
import vllm.utils.flashinfer as _flashinfer

_flashinfer.has_flashinfer_sm90_nope_mla = lambda: True
_flashinfer.supports_trtllm_attention = lambda *a, **k: CAPABILITY[0] == 10
import vllm.model_executor.models.registry as _registry

_registry._run_in_subprocess = lambda function: function()

from vllm.config.compilation import PassConfig

PassConfig.flashinfer_max_size = lambda self, *a: None
_namespace_getattr = torch._ops._OpNamespace.__getattr__
_lenient = False


class _StubOp:
    """A custom op that does nothing, with its overloads."""

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StubOp()


def _getattr(self: Any, name: str) -> Any:
    try:
        return _namespace_getattr(self, name)
    except AttributeError:
        if _lenient and not name.startswith("__"):
            return _StubOp()
        raise


torch._ops._OpNamespace.__getattr__ = _getattr


class BuildOnMeta(torch.overrides.TorchFunctionMode):
    """Sends everything to the meta device and lets custom ops resolve to no-ops."""

    def __enter__(self) -> Any:
        global _lenient
        _lenient = True
        return super().__enter__()

    def __exit__(self, *args: Any) -> Any:
        global _lenient
        _lenient = False
        return super().__exit__(*args)

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = torch.device("meta")
        kwargs.pop("pin_memory", None)
        if func in (torch.Tensor.cuda, torch.Tensor.cpu):
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and str(args[1]).startswith("cuda"):
            args = (args[0], torch.device("meta"), *args[2:])
        if func is torch.Tensor.tolist and args[0].is_meta:
            return [0]
        if func is torch.Tensor.item and args[0].is_meta:
            return 0
        return func(*args, **kwargs)


class _ProcessGroup:
    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank, self.world_size = size, rank, size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Communicator:
    ca_comm = None
    all2all_manager = None

    def __getattr__(self, name: str) -> Any:
        return None


class _Group:
    """What model code reads of a process group of a given size and rank."""

    def __init__(self, size: int, rank: int = 0) -> None:
        self.world_size, self.rank_in_group, self.rank, self.local_rank = size, rank, rank, 0
        self.ranks = list(range(size))
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.first_rank, self.last_rank = 0, size - 1
        self.next_rank, self.prev_rank = (rank + 1) % size, (rank - 1) % size
        self.device_group = self.cpu_group = _ProcessGroup(size, rank)
        self.device = torch.device("meta")
        self.device_communicator = _Communicator()
        self.unique_name = "stand-in"
        self.mq_broadcaster = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *a, **k: None


def set_parallel_groups(tp: int, pp: int, pp_rank: int, dcp: int) -> None:
    """Stand in for vLLM's process groups of one worker (TP rank 0 of a pipeline stage)."""
    import vllm.distributed.parallel_state as state

    sizes = {"_WORLD": (tp * pp, 0), "_TP": (tp, 0), "_PP": (pp, pp_rank), "_DCP": (dcp, 0)}
    sizes |= {"_PCP": (1, 0), "_DP": (1, 0), "_EP": (tp, 0), "_EPLB": (1, 0)}
    sizes |= {"_NODE": (1, 0), "_INNER_DP_WORLD": (1, 0), "_ENGRAM_DP": (1, 0)}
    sizes |= {"_ETP": (tp, 0)}
    for name, (size, rank) in sizes.items():
        if hasattr(state, name):
            setattr(state, name, _Group(size, rank))


def _skip_tokenizer_tables() -> None:
    """DeepSeek-V4.1's n-gram tables need a tokenizer, and hold no KV cache."""
    try:
        import vllm.models.deepseek_v41.nvidia.model as model
    except ImportError:
        return

    class NgramHashState(torch.nn.Module):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return _Stub()

    model.NgramHashState = NgramHashState


def _initialize_drafter(config: Any, initialize_model: Any) -> None:
    """Build the drafter as vLLM's speculators do."""
    from vllm.config import replace

    speculative = config.speculative_config
    if speculative.method == "draft_model":
        draft = replace(config, model_config=speculative.draft_model_config, quant_config=None)
        initialize_model(draft, prefix="draft_model")
        return
    initialize_model(
        speculative.apply_draft_overrides(config), model_config=speculative.draft_model_config
    )


class _Section(dict):
    """A part of a config, read as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


def _register_remote_config(model_dir: str) -> None:
    """Stand in for a config class that a checkpoint would bring as remote code."""
    import json

    from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    def as_config(value: Any) -> Any:
        if isinstance(value, list):
            return [as_config(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        if value.get("model_type") in CONFIG_MAPPING:
            return AutoConfig.for_model(**value)
        return _Section({key: as_config(entry) for key, entry in value.items()})

    def init(self: Any, **values: Any) -> None:
        for key in values:
            if key.endswith(("_config", "_configs")):
                values[key] = as_config(values[key])
        PreTrainedConfig.__init__(self, **values)

    with open(os.path.join(model_dir, "config.json")) as file:
        config = json.load(file)
    model_type = config.get("model_type", "")
    if model_type and model_type not in CONFIG_MAPPING and model_type not in _CONFIG_REGISTRY:
        AutoConfig.register(
            model_type,
            type("RemoteConfig", (PreTrainedConfig,), {"model_type": model_type, "__init__": init}),
        )


def registered(model_dir: str, **engine_args: Any) -> dict[str, Any]:
    """What vLLM registers for the ``config.json`` in a directory.

    Returns a dict with ``workers`` (per pipeline stage: layer name to vLLM spec object, on TP rank
    0), ``backends`` (per stage), ``layout`` and the ``vllm_config`` itself.
    """
    from vllm.config import set_current_vllm_config
    from vllm.config.vllm import get_layers_from_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.attention.backends.utils import (
        get_supported_kv_cache_layouts,
        resolve_kv_cache_layout,
    )
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.workspace import (
        init_workspace_manager,
        is_workspace_manager_initialized,
    )

    _register_remote_config(model_dir)
    engine_args.setdefault("max_num_batched_tokens", 8192)
    tp = engine_args.get("tensor_parallel_size", 1)
    pp = engine_args.get("pipeline_parallel_size", 1)
    dcp = engine_args.get("decode_context_parallel_size", 1)
    config = EngineArgs(
        model=model_dir,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="mp" if tp * pp > 1 else None,
        **engine_args,
    ).create_engine_config()
    _skip_tokenizer_tables()
    import vllm.v1.attention.backends.flashinfer as flashinfer

    flashinfer._get_multi_ctas_kv_counter_buffer = lambda *a: None
    if not is_workspace_manager_initialized():
        init_workspace_manager(torch.device("meta"))

    def layers() -> dict[str, Any]:
        return get_layers_from_vllm_config(config, AttentionLayerBase)

    workers, backends, layouts = [], [], []
    for stage in range(pp):
        set_parallel_groups(tp, pp, stage, dcp)
        config.compilation_config.static_forward_context.clear()
        config.parallel_config.rank = stage * tp
        dtype = config.model_config.dtype
        with (
            set_current_vllm_config(config),
            set_default_torch_dtype(dtype),
            torch.device("meta"),
            BuildOnMeta(),
        ):
            initialize_model(config)
            speculative = config.speculative_config
            if (
                stage == pp - 1
                and speculative is not None
                and speculative.draft_model_config is not None
            ):
                target_layers = set(layers())
                _initialize_drafter(config, initialize_model)
                for name, layer in layers().items():
                    if name not in target_layers:
                        layer.is_draft_layer = True
            _platforms.current_platform.update_block_size_for_backend(config)
            workers.append(get_kv_cache_spec(config))
            stage_backends = []
            for layer in layers().values():
                if layer.get_attn_backend() not in stage_backends:
                    stage_backends.append(layer.get_attn_backend())
            backends.append([backend.get_name() for backend in stage_backends])
            if stage_backends:
                supported = get_supported_kv_cache_layouts(stage_backends)
                layouts.append([layout.name for layout in supported])
    layout = None
    if layouts and any(workers):
        layout = resolve_kv_cache_layout(
            config, layouts, [spec for specs in workers for spec in specs.values()]
        ).name
    return {"workers": workers, "backends": backends, "layout": layout, "vllm_config": config}


def spec_to_dict(spec: Any) -> dict[str, Any]:
    """A vLLM spec as kvplan's ``spec.to_dict()`` writes it: required fields and non-defaults."""
    import dataclasses
    from enum import Enum, IntEnum
    from fractions import Fraction

    from vllm.v1.attention.backend import MultipleOf

    def encode(value: Any) -> Any:
        if isinstance(value, MultipleOf):
            return {"multiple_of": value.base}
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        if isinstance(value, Fraction):
            return str(value)
        if isinstance(value, IntEnum):
            return int(value)
        if isinstance(value, Enum):
            return value.value if isinstance(value, str) else value.name
        if isinstance(value, tuple):
            return [encode(item) for item in value]
        return value

    result: dict[str, Any] = {"kind": type(spec).__name__}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        default = field.default
        if field.name == "head_size_v" and default is None:
            default = spec.head_size
        if default is dataclasses.MISSING or value != default:
            encoded = encode(value)
            if field.name == "mamba_type":
                encoded = encoded.lower()
            result[field.name] = encoded
    return result
