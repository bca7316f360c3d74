"""The options that say what is to be planned; every command that plans takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvplan import _core
from kvplan.offline.budget.gpus import Gpu, defaults_for, find_gpu
from kvplan.offline.cli.defaults import print_preset_if_asked, use_preset
from kvplan.offline.cli.failures import BadInput
from kvplan.offline.cli.files import refuse_other_kind, warn_if_shadowed
from kvplan.offline.cli.param_types import (
    COUNTS,
    FILE,
    JSON_OBJECT,
    LAYERS,
    LENGTH,
    POSITIVE,
    SIZE,
    SIZE_OR_ZERO,
    SIZES,
    TOKENS,
    IntegerIn,
    ModelName,
    Name,
    NumberIn,
    Parsed,
    parse_weights,
)
from kvplan.offline.cli.question import ModelQuestion, Question, RequestQuestion
from kvplan.offline.cli.sizes import parse_size

if TYPE_CHECKING:
    from kvplan.offline.cli.gpu_budget import GpuBudget


def option_given(name: str) -> str | None:
    """The option as it is spelled, if the command line (not a preset) gives this parameter."""
    ctx = click.get_current_context()
    if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
        return None
    return next(p.opts[0] for p in ctx.command.params if p.name == name)


#: Options of the planner that only some groupings heed.
_HEEDED_BY = {
    "max_groups": ("compact",),
    "reference_model_len": ("compact", "sliced"),
    "min_large_blocks": ("sliced",),
}


def refuse_unheeded(values: dict[str, Any], grouping: str) -> None:
    """Refuse options that the plan would not heed. `kvplan frontier` draws all groupings."""
    if click.get_current_context().command.name != "frontier":
        for name, groupings in _HEEDED_BY.items():
            option = option_given(name)
            if option is not None and grouping not in groupings:
                raise BadInput(
                    f"{option} changes nothing with --grouping {grouping}; give --grouping "
                    f"{' or '.join(groupings)}, or leave it out"
                )
    for name in ("gpu_memory_utilization", "weights", "weights_per_gpu", "overhead"):
        option = option_given(name)
        if option is not None and values["gpu"] is None:
            raise BadInput(f"{option} is for the estimate from --gpu; give --gpu, or leave it out")


#: Fields of `PlanningConfig` by name: their choices and ranges are the core's.
_FIELDS = {field["name"]: field for field in _core.field_table()["PlanningConfig"]}
LAYOUTS = (*_FIELDS["kv_cache_layout"]["choices"], "NHD", "HND")
GROUPINGS = tuple(_FIELDS["grouping"]["choices"])
MAMBA_DTYPES = ("auto", "float32", "float16", "bfloat16")


def _backends() -> list[str]:
    from kvplan.offline.packing import ATTENTION_BACKENDS

    return [name for name, backend in ATTENTION_BACKENDS.items() if backend.is_selectable]


def _kv_cache_dtypes() -> Sequence[str]:
    from kvplan.offline.packing import KV_CACHE_DTYPES

    return KV_CACHE_DTYPES


def _count(*names: str, help: str, default: int = 1) -> Callable[..., Any]:
    """An option for how many there are of something."""
    return click.option(*names, type=POSITIVE, default=default, show_default=True, help=help)


#: Options of `ModelOptions`, which change the specs of a model.
MODEL_OPTIONS = (
    _count("--tp", "--tensor-parallel-size", "tensor_parallel_size", help="Tensor parallel ranks."),
    _count("--pp", "--pipeline-parallel-size", "pipeline_parallel_size", help="Pipeline stages."),
    _count(
        "--dcp",
        "--decode-context-parallel-size",
        "decode_context_parallel_size",
        help="Decode context parallel ranks; divides --tp.",
    ),
    click.option(
        "--pp-layers",
        "pipeline_layer_partition",
        type=COUNTS,
        help="Layers of each pipeline stage, e.g. 16,32.",
    ),
    click.option(
        "--block-size", type=POSITIVE, help="Tokens of a block; the default is vLLM's choice."
    ),
    click.option(
        "--kv-cache-dtype",
        type=Name("dtype", _kv_cache_dtypes),
        default="auto",
        show_default=True,
        help="As for vLLM, e.g. fp8.",
    ),
    click.option(
        "--kv-cache-dtype-skip-layers",
        type=LAYERS,
        help="Layers that keep their own dtype beside a --kv-cache-dtype: indices, "
        "sliding_window, or both, e.g. 0,1.",
    ),
    click.option(
        "--mamba-cache-dtype",
        type=click.Choice(MAMBA_DTYPES),
        default="auto",
        show_default=True,
        help="Dtype of convolution states, and of recurrent ones that have none of their own.",
    ),
    click.option(
        "--mamba-ssm-cache-dtype",
        type=click.Choice(MAMBA_DTYPES),
        default="auto",
        show_default=True,
        help="Dtype of recurrent states.",
    ),
    click.option(
        "--mamba-block-size",
        type=POSITIVE,
        help="Tokens between cached states; attention beside them decides it itself.",
    ),
    click.option("--dtype", default="auto", show_default=True, help="Activation dtype."),
    click.option(
        "--attention-backend",
        type=Name("backend", _backends),
        help="As for vLLM, e.g. FLASHINFER; the default is vLLM's choice.",
    ),
    click.option(
        "--speculative-config",
        type=JSON_OBJECT,
        help='As for vLLM, e.g. \'{"method": "mtp", "num_speculative_tokens": 1}\'.',
    ),
    click.option(
        "--hf-overrides",
        type=JSON_OBJECT,
        help="Keys of the model's config to replace, as JSON; those of a multimodal model's "
        "language part e.g. as '{\"text_config\": {...}}'.",
    ),
    click.option(
        "--device-capability",
        type=click.Choice(
            ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]
        ),
        help="CUDA compute capability, which decides vLLM's choice of backend.  [default: that of "
        "--gpu, or 9.0]",
    ),
    click.option(
        "--disable-hybrid-kv-cache-manager", is_flag=True, help="All layers in one kind of group."
    ),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=None,
        help="The default is the model's.",
    ),
    click.option(
        "--async-scheduling/--no-async-scheduling",
        default=True,
        show_default=True,
        help="Whether a step is scheduled while the one before it runs: one more in flight.",
    ),
)

#: What is asked first, of a model and of a recorded request.
QUESTION_OPTIONS = (
    click.option(
        "--memory",
        "--kv-cache-memory-bytes",
        "--kv-cache-memory",
        "memory",
        type=SIZES,
        help="Memory for the KV cache of each GPU: 60GiB, 80GB, 64e9 (bytes). Several sizes with "
        "commas: one per pipeline stage, or one per GPU.",
    ),
    click.option(
        "--max-model-len",
        type=LENGTH,
        help="Tokens of the longest request: 131072, 128K, or auto for the longest that fits. "
        "The default is the model's.",
    ),
)

#: Options of the planner, which a recorded request takes as well.
PLANNER_OPTIONS = (
    click.option(
        "--max-num-batched-tokens",
        type=TOKENS,
        help="Tokens of one step.  [default: by --gpu, as for vLLM, or 8192]",
    ),
    click.option(
        "--max-concurrent-batches",
        type=POSITIVE,
        help="Steps in flight at once.  [default: --pp, + 1 with --async-scheduling]",
    ),
    click.option("--num-gpu-blocks-override", type=POSITIVE, help="Plan with this many blocks."),
    click.option(
        "--prefix-match-unit",
        type=POSITIVE,
        help="Tokens of a block hash, a divisor of every block; with aligned Mamba states, hits "
        "end on it.  [default: the blocks' greatest common divisor]",
    ),
    click.option(
        "--prefix-cache-retention-interval",
        type=IntegerIn(min=0),
        help="Tokens between the boundaries whose windows and states stay cached; 0: only what the "
        "same prompt needs again.  [default: everything that a hit can need]",
    ),
    click.option("--layout", type=Name("layout", LAYOUTS), help="KV cache layout, e.g. BLHNC."),
    click.option(
        "--grouping",
        type=Name("grouping", GROUPINGS),
        help="How layers are grouped: vllm as vLLM does, compact for more tokens, sliced for one "
        "group a kind of cache.",
    ),
    click.option("--max-groups", type=POSITIVE, help="At most this many groups (compact)."),
    click.option(
        "--reference-model-len",
        type=TOKENS,
        help="Length that compact and sliced grouping are best for.  [default: --max-model-len]",
    ),
    click.option(
        "--min-large-blocks",
        type=POSITIVE,
        help="Blocks that the pool is to have at least (sliced).  [default: 700]",
    ),
)


def _version(text: str) -> tuple[int, int]:
    """Major and minor number of a version. Raises ValueError."""
    parts = text.removeprefix("v").split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        raise ValueError(f"{text!r} is no version such as 0.33")
    return int(parts[0]), int(parts[1])


def parse_gpu(text: str) -> Gpu:
    """A GPU by name, or one of whose memory alone is known. Raises ValueError."""
    try:
        return find_gpu(text)
    except ValueError:
        if not text[:1].isdigit() or "g." in text:
            raise
    return Gpu(text, parse_size(text))


#: Where the memory comes from when it is not given.
ESTIMATE_OPTIONS = (
    click.option(
        "--gpu",
        type=Parsed("gpu", parse_gpu),
        help="Instead of --memory, predict it for this GPU, e.g. H100, RTX 4090, DGX Spark, "
        "MI300X, H100-3g.40gb.",
    ),
    click.option(
        "--gpu-memory",
        type=SIZE,
        help="The same for another GPU, by the memory that its driver reports, e.g. 96GiB.",
    ),
    click.option(
        "--gpu-memory-utilization",
        type=NumberIn(0, 1, min_open=True),
        default=0.92,
        show_default=True,
        help="Part of --gpu that the engine may use.",
    ),
    click.option(
        "--weights",
        type=Parsed("size|auto", parse_weights),
        default="auto",
        show_default=True,
        help="Size of the whole model's weights; auto reads the headers of the safetensors files "
        "beside its config, or computes it from the config.",
    ),
    click.option(
        "--weights-per-gpu",
        type=SIZE_OR_ZERO,
        help="What a log prints as 'Model loading took', instead of --weights.",
    ),
    click.option(
        "--overhead",
        type=SIZE_OR_ZERO,
        help="All else that each GPU holds, instead of what is predicted: activations, buffers, "
        "collectives, CUDA graphs.",
    ),
    click.option("--enforce-eager", is_flag=True, help="No CUDA graphs."),
    click.option(
        "--enable-expert-parallel", is_flag=True, help="Whole experts on each GPU, not slices."
    ),
    click.option("--enable-lora", is_flag=True, help="Keep room for LoRA adapters."),
    _count("--max-loras", help="Adapters that may be active at once."),
    _count("--max-lora-rank", help="Rank of an adapter at most.", default=16),
    click.option(
        "--vllm-version",
        type=Parsed("version", _version),
        default="0.33",
        show_default=True,
        help="vLLM whose memory is predicted: from 0.19 on.",
    ),
    click.option(
        "--max-num-seqs",
        type=POSITIVE,
        help="Sequences of a step; a recurrent model starts for no more than it has blocks."
        "  [default: by --gpu, as for vLLM: 256 or 1024]",
    ),
)

#: Options of a ``vllm serve`` line that change no cache of one engine.
SERVER_OPTIONS = (
    _count(
        "--dp",
        "--data-parallel-size",
        "replicas",
        help="Engines side by side, each with the whole model and a cache of its own.",
    ),
    click.option("--quantization", help="As for vLLM; changes weights, no cache."),
)

PRESET_OPTIONS = (
    click.option(
        "--preset",
        type=FILE,
        is_eager=True,
        callback=use_preset,
        help="A TOML file with options by their names; the command line overrides it.",
    ),
    click.option(
        "--print-config", is_flag=True, help="Print the options given as a preset, and stop."
    ),
)


def preset_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--preset`` and ``--print-config``."""
    for option in reversed(PRESET_OPTIONS):
        function = option(function)
    return function


def deployment_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command MODEL, ``--request`` and all options of a deployment."""
    options = (
        *QUESTION_OPTIONS,
        *MODEL_OPTIONS,
        *PLANNER_OPTIONS,
        *SERVER_OPTIONS,
        *ESTIMATE_OPTIONS,
        *PRESET_OPTIONS,
        click.option(
            "--request",
            "request_file",
            type=click.Path(path_type=Path),
            help="Plan a recorded request instead of a model.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return click.argument("model", required=False, type=ModelName())(function)


def read_question(values: dict[str, Any], *, needs_memory: bool = True) -> Question:
    """The question that a command's arguments ask.

    Args:
        values: The command's parameters by name, as `deployment_options` names them.
        needs_memory: Whether a model without ``--memory`` is an error.

    Raises:
        BadInput: They contradict each other, or say too little.
    """
    print_preset_if_asked(values["print_config"])
    if values["request_file"] is not None:
        return _request_question(values)
    if values["model"] is None:
        raise BadInput(
            "give a model: a built-in name (see 'kvplan models'), a config.json, a directory that "
            "holds one, or a Hub id; or a recorded request with --request FILE"
        )
    from kvplan.offline import models

    if values["gpu_memory"] is not None:
        if values["gpu"] is not None:
            raise BadInput("give --gpu or --gpu-memory, not both")
        values["gpu"] = Gpu("", values["gpu_memory"])
    refuse_unheeded(values, values["grouping"] or "vllm")
    refuse_other_kind(values["model"], "model")
    model = models.load(values["model"])
    warn_if_shadowed(values["model"])
    if not values["memory"] and needs_memory and values["gpu"] is None:
        raise BadInput(
            "give the memory for the KV cache of each GPU, e.g. --memory 60GiB: what is left of "
            "the GPU's memory beside weights and activations; or estimate it with --gpu H100"
        )
    options = given_values(values, (*model_option_names(values), *_ANYWHERE))
    if values["gpu"] is not None:
        tokens = defaults_for(values["gpu"], model.architecture).max_num_batched_tokens
        options.setdefault("max_num_batched_tokens", tokens)
    options["device_capability"] = _capability(values)
    return ModelQuestion(
        model=model,
        options=models.ModelOptions(
            **options, kv_cache_layout=layout_for(values["grouping"], values["layout"])
        ),
        memory=values["memory"] or (),
        config_changes=given_values(values, _CONFIG_FIELDS),
        max_concurrent_batches=values["max_concurrent_batches"],
        estimate=estimate_of(values),
        max_num_seqs=_sequences(values),
        replicas=values["replicas"],
    )


def layout_for(grouping: str | None, layout: str | None) -> str | None:
    """The layout to ask for: sliced grouping needs a block-outermost one."""
    return "BLHNC" if grouping == "sliced" and layout is None else layout


def _capability(values: dict[str, Any]) -> tuple[int, ...]:
    gpu = values["gpu"]
    if values["device_capability"]:
        return tuple(map(int, values["device_capability"].split(".")))
    return (gpu and gpu.capability) or (9, 0)


def _sequences(values: dict[str, Any]) -> int | None:
    """The user's, else vLLM's default for the GPU where one is given."""
    if values.get("max_num_seqs") is not None:
        return values["max_num_seqs"]
    return values["gpu"] and defaults_for(values["gpu"]).max_num_seqs


def estimate_of(values: dict[str, Any]) -> GpuBudget | None:
    """What ``--gpu`` and the options beside it say of the memory; None without ``--gpu``."""
    from kvplan.offline.budget.budget import Deployment
    from kvplan.offline.cli.gpu_budget import GpuBudget

    if values["gpu"] is None:
        return None
    if values["memory"]:
        raise BadInput("give --memory or --gpu, not both: --gpu estimates the memory")
    weights, per_gpu = values["weights"], values["weights_per_gpu"]
    if per_gpu is not None and weights != "auto":
        raise BadInput("give --weights or --weights-per-gpu, not both")
    return GpuBudget(
        Deployment(
            gpu=values["gpu"],
            utilization=values["gpu_memory_utilization"],
            max_num_seqs=_sequences(values) or 1,
            enforce_eager=values["enforce_eager"],
            expert_parallel=values["enable_expert_parallel"],
            data_parallel_size=values["replicas"],
            overhead_bytes=values["overhead"],
            version=values["vllm_version"],
            adapters=values["max_loras"] if values["enable_lora"] else 0,
            adapter_rank=values["max_lora_rank"],
        ),
        weights_bytes=None if weights == "auto" else weights,
        weights_per_gpu=per_gpu,
    )


def options_by_name(*options: Callable[..., Any]) -> dict[str, click.Option]:
    """The options that these decorators give, by their parameters' names."""

    def all_options() -> None: ...

    for option in options:
        option(all_options)
    return {option.name: option for option in all_options.__click_params__}  # type: ignore[attr-defined]


#: Fields of `PlanningConfig` that an option sets as it is; steps in flight decide others, too.
_CONFIG_FIELDS = (_FIELDS.keys() & options_by_name(*PLANNER_OPTIONS).keys()) - {
    "max_concurrent_batches"
}
#: Fields of `ModelOptions` that a recorded request can change as well.
_ANYWHERE = ("max_model_len", "max_num_batched_tokens")


def given_values(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of the parameters that have a value."""
    return {name: values[name] for name in names if values[name] is not None}


def model_option_names(values: dict[str, Any]) -> list[str]:
    """Parameters that are `ModelOptions`, but those that a recorded request can change as well."""
    from kvplan.offline.models import ModelOptions

    names = (field.name for field in dataclasses.fields(ModelOptions))
    return [name for name in names if name in values and name not in _ANYWHERE]


def _request_question(values: dict[str, Any]) -> RequestQuestion:
    from kvplan import request as requests

    if values["model"] is not None:
        raise BadInput(f"give a model ({values['model']}) or --request, not both")
    ctx = click.get_current_context()
    model_options = {*model_option_names(values)} - {"async_scheduling"}
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name in model_options:
            raise BadInput(
                f"{parameter.opts[0]} changes a model's caches; those of a recorded request are "
                "fixed"
            )
    if values["gpu"] is not None or values["gpu_memory"] is not None:
        raise BadInput(
            "--gpu estimates the memory of a model's deployment; a recorded request has its own, "
            "which --memory changes"
        )
    path = values["request_file"]
    refuse_other_kind(path, "request")
    request = requests.load(path)
    changes = given_values(values, _CONFIG_FIELDS)
    recorded = request.planning_config()
    refuse_unheeded(values, values["grouping"] or recorded.grouping)
    if values["layout"]:
        changes["kv_cache_layout"] = {"NHD": "LBNHC", "HND": "LBHNC"}.get(
            values["layout"], values["layout"]
        )
    if values["max_model_len"] == "auto":
        changes["auto_fit"] = True
    elif values["max_model_len"] is not None:
        changes |= {"max_model_len": values["max_model_len"], "auto_fit": False}
    batches = values["max_concurrent_batches"]
    if batches is None and option_given("async_scheduling") is not None:
        batches = recorded.pipeline_parallel_size + values["async_scheduling"]
    if values["max_num_batched_tokens"] or batches:
        batches = batches or recorded.max_concurrent_batches
        tokens = values["max_num_batched_tokens"] or (
            recorded.max_in_flight_tokens // recorded.max_concurrent_batches
        )
        changes |= {"max_concurrent_batches": batches, "max_in_flight_tokens": batches * tokens}
    memory, replicas = values["memory"] or (), values["replicas"]
    return RequestQuestion(request, str(path), memory, changes, replicas)
