"""``kvplan sweep``: a whole grid of plans into a file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvplan.offline.budget.gpus import defaults_for, find_gpu
from kvplan.offline.cli.defaults import print_preset_if_asked
from kvplan.offline.cli.deployment_options import (
    ESTIMATE_OPTIONS,
    GROUPINGS,
    MODEL_OPTIONS,
    PLANNER_OPTIONS,
    SERVER_OPTIONS,
    estimate_of,
    given_values,
    model_option_names,
    option_given,
    options_by_name,
    preset_options,
)
from kvplan.offline.cli.failures import FITS, INTERRUPTED, BadInput, refuse_unknown
from kvplan.offline.cli.files import refuse_other_kind, warn_if_shadowed
from kvplan.offline.cli.param_types import (
    FILE,
    LENGTH_LIST,
    NAME_LIST,
    RANK_LIST,
    SIZE_LIST,
    TOKEN_LIST,
    IntegerIn,
    Name,
)
from kvplan.offline.cli.pictures import CHART_HELP, check_chart, write_chart
from kvplan.offline.cli.replay import read_workload, workload_options
from kvplan.offline.cli.row_writers import ParquetParts, RowWriter
from kvplan.offline.cli.sweep_run import BACKENDS
from kvplan.offline.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from kvplan.offline.cli.row_writers import ParquetParts, RowWriter
    from kvplan.offline.cli.sweep_grid import Chunk, Estimated

EPILOG = """\b
Examples:
  kvplan sweep gemma-3-27b --memory 10GiB:80GiB:1GiB --tp 1,2,4 -o gemma.csv
  kvplan sweep llama-3.1-70b --gpu H100,H200 --weights 141GB --tp 4,8
  kvplan sweep --gpu H100,H200 --tp 1,2 -- vllm serve gemma-3-27b --max-num-seqs 64
  kvplan sweep --request recorded.json --memory 20GiB:40GiB:1GiB
  kvplan sweep llama-3.1-70b gpt-oss-120b --memory 40GiB --kv-cache-dtype auto,fp8
  kvplan sweep gemma-3-27b --memory 20GiB:60GiB:10GiB --max-model-len 32K --workload agents \\
      -o replays.parquet
  kvplan sweep gemma-3-27b --memory 40GiB --max-model-len 8K:128K:8K --grouping vllm,compact \\
      --plot lines.svg -o lines.csv

\b
The options from --memory to --grouping take lists, and numbers take ranges START:STOP:STEP with
both ends included. Each combination is one row; what does not fit is a row, too, with the reason.
Other options are the same for all rows. Those before a vllm serve line override its own.

Exit codes: 0 all rows are written, 2 the input is wrong, 130 interrupted (rows so far are kept).
"""


def _plotted() -> Sequence[str]:
    from kvplan.offline.cli.sweep_plot import PLOTTED

    return tuple(PLOTTED)


#: Options of 'kvplan plan' by their parameters' names.
_PLANS = options_by_name(*MODEL_OPTIONS, *PLANNER_OPTIONS, *ESTIMATE_OPTIONS, *SERVER_OPTIONS)

#: Those that are the same for all rows.
_SHARED = (
    *("pipeline_layer_partition", "kv_cache_dtype_skip_layers", "mamba_cache_dtype"),
    *("mamba_ssm_cache_dtype", "mamba_block_size", "dtype", "attention_backend"),
    *("speculative_config", "hf_overrides", "disable_hybrid_kv_cache_manager"),
    *("enable_prefix_caching", "async_scheduling", "num_gpu_blocks_override", "layout"),
    *("max_groups", "gpu_memory_utilization", "weights", "weights_per_gpu", "overhead"),
    *("enforce_eager", "enable_expert_parallel", "vllm_version", "max_num_seqs", "replicas"),
    *("quantization", "enable_lora", "max_loras", "max_lora_rank"),
)

#: What of the parameters a replay needs.
_LOAD = (
    *("workload", "limit", "rate", "speed", "step_time", "acceptance"),
    *("max_num_seqs", "async_scheduling"),
    "replicas",
)


def _shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that are the same for all rows."""
    own = function.__dict__.setdefault("__click_params__", [])
    own += [_PLANS[name] for name in reversed(_SHARED)]
    return function


def _ranks(name: str, help: str) -> Callable[..., Any]:
    """An option of 'kvplan plan' that takes a list here."""
    return click.option(*_PLANS[name].opts, name, type=RANK_LIST, default="1", help=help)


def jobs_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of several processes."""
    for option in (
        click.option(
            "--cluster",
            help="Address of the cluster of --backend; without it, one starts on this machine.",
        ),
        click.option(
            "--backend",
            type=click.Choice(BACKENDS),
            default="loky",
            show_default=True,
            help="Where the processes are: joblib's own on this machine, or a Ray or Dask "
            "cluster's (pip install ray, distributed).",
        ),
        click.option(
            "-j",
            "--jobs",
            type=IntegerIn(1, 1024),
            help="Processes (pip install joblib).  [default: all cores, or 1 without joblib]",
        ),
    ):
        function = option(function)
    return function


@click.command("sweep", epilog=EPILOG)
@click.argument("models", nargs=-1)
@click.option("--memory", type=SIZE_LIST, help="Sizes for the KV cache of each GPU.")
@click.option(
    "--gpu", type=NAME_LIST, help="Instead of --memory, estimate it for each of these GPUs."
)
@_ranks("tensor_parallel_size", "Tensor parallel ranks.")
@_ranks("pipeline_parallel_size", "Pipeline stages.")
@_ranks("decode_context_parallel_size", "Decode context parallel ranks.")
@click.option(
    "--max-model-len", type=LENGTH_LIST, help="Tokens, or auto; the default is the model's."
)
@click.option("--kv-cache-dtype", type=NAME_LIST, default="auto", help="E.g. auto,fp8.")
@click.option("--block-size", type=TOKEN_LIST, help="Tokens of a block.")
@click.option(
    "--max-num-batched-tokens",
    type=TOKEN_LIST,
    default="8192",
    help="Tokens of one step.  [default: 8192, or with --gpu vLLM's for it]",
)
@click.option("--grouping", type=NAME_LIST, default="vllm", help=f"Of {', '.join(GROUPINGS)}.")
@_shared_options
@click.option(
    "--request",
    "request_file",
    type=FILE,
    help="Plan a recorded request instead of models.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A .csv, .json, .jsonl or (pip install pyarrow) .parquet file; the default is "
    "CSV on stdout.",
)
@click.option(
    "--plot",
    type=FILE,
    help="Draw the answers against the context length, or else against another option with several "
    f"numbers, a line for each combination of the others: {CHART_HELP}.",
)
@click.option(
    "--plot-column",
    type=Name("column", _plotted),
    default="capacity_tokens",
    show_default=True,
    help="The answer that --plot draws, a column of the output.",
)
@workload_options("Replay this load under each plan, with its figures in more columns")
@jobs_options
@click.option(
    "--resume",
    is_flag=True,
    help="Write --output as a folder of Parquet files, and do only what is missing there.",
)
@click.option("--quiet", is_flag=True, help="No progress bar and no summary.")
@preset_options
def command(
    output: Path | None,
    plot: Path | None,
    plot_column: str,
    jobs: int | None,
    backend: str,
    cluster: str | None,
    resume: bool,
    quiet: bool,
    print_config: bool,
    **values: Any,
) -> int:
    """Plan every combination of the given values for MODELS."""
    print_preset_if_asked(print_config)
    from kvplan.offline.cli.sweep_grid import CHUNK
    from kvplan.offline.cli.sweep_plot import SweepPlot
    from kvplan.offline.cli.sweep_run import default_jobs, run_chunks

    if plot is not None:
        check_chart(plot)
    if resume and (output is None or plot is not None):
        raise BadInput("--resume goes on writing an --output, and draws no --plot")
    grid = _grid(values)
    if plot is not None and plot_column not in grid.columns:
        raise BadInput(f"--plot-column {plot_column} is of a replay; give --workload, too")
    picture = SweepPlot(grid, plot_column) if plot is not None else None
    started = time.perf_counter()
    code = FITS
    chunks: Iterable[Chunk] = grid.chunks()
    rows_out: RowWriter | ParquetParts
    if resume:
        assert output is not None
        rows_out = ParquetParts(output, grid.columns, f"{grid!r}{_content(values['workload'])}")
        chunks = rows_out.missing(chunks)
    else:
        rows_out = RowWriter(output, grid.columns)
    with rows_out as writer, ProgressBar(len(grid), hidden=quiet) as advance:

        def write(rows: list[tuple[Any, ...]]) -> None:
            writer.write(rows)
            if picture is not None:
                picture.add(rows)
            advance(len(rows))

        try:
            # A replay takes as long as many plans.
            work = len(grid) * (1 if grid.load is None else CHUNK)
            run_chunks(chunks, jobs or default_jobs(work), write, backend, cluster)
        except KeyboardInterrupt:
            code = INTERRUPTED
    if picture is not None and plot is not None:
        write_chart(plot, picture.title, picture.figure())
        if not quiet:
            click.echo(f"wrote {plot}", err=True)
    if not quiet:
        before = len(grid) - writer.count if resume and code == FITS else 0
        _summary(writer.count + before, len(grid), time.perf_counter() - started, output)
    return code


def _grid(values: dict[str, Any]) -> Any:
    from kvplan.offline import models
    from kvplan.offline.cli.sweep_grid import Grid
    from kvplan.offline.packing import KV_CACHE_DTYPES

    if not values["models"] and values["request_file"] is None:
        raise BadInput("give at least one model: a built-in name, a config.json or a Hub id")
    if bool(values["memory"]) == bool(values["gpu"]):
        raise BadInput(
            "give sizes for the KV cache of each GPU, e.g. --memory 20GiB:80GiB:10GiB, or estimate "
            "them with --gpu H100,H200"
        )
    refuse_unknown("--grouping", values["grouping"], GROUPINGS)
    refuse_unknown("--kv-cache-dtype", values["kv_cache_dtype"], KV_CACHE_DTYPES)
    if values["max_groups"] and "compact" not in values["grouping"]:
        raise BadInput(
            f"--max-groups changes nothing with --grouping {','.join(values['grouping'])}; add "
            "compact, or leave it out"
        )
    load = None
    if read_workload(values) is not None:
        load = {name: values[name] for name in _LOAD}
    if values["request_file"] is not None:
        return _request_grid(values, load)
    for model in values["models"]:
        refuse_other_kind(model, "model")
        warn_if_shadowed(model)
        _ = models.load(model).architecture
    if values["gpu"] and not _is_given("max_num_batched_tokens"):
        values["max_num_batched_tokens"] = [None]  # each GPU's own
    axes = {
        "tensor_parallel_size": values["tensor_parallel_size"],
        "pipeline_parallel_size": values["pipeline_parallel_size"],
        "decode_context_parallel_size": values["decode_context_parallel_size"],
        "kv_cache_dtype": values["kv_cache_dtype"],
        "block_size": values["block_size"] or [None],
        "max_num_batched_tokens": values["max_num_batched_tokens"],
    }
    shared = [name for name in model_option_names(values) if name not in axes]
    return Grid(
        models=list(values["models"]),
        options=axes,
        groupings=values["grouping"],
        memory=values["memory"] or [],
        gpus=_gpus(values),
        lengths=values["max_model_len"] or [None],
        shared=given_values(values, shared),
        config=given_values(values, ("max_groups", "num_gpu_blocks_override")),
        layout=values["layout"],
        max_num_seqs=values["max_num_seqs"],
        load=load,
    )


def _is_given(name: str) -> bool:
    """Whether the command line, a line or a preset gives this parameter."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def _gpus(values: dict[str, Any]) -> dict[str, list[Estimated]]:
    """The GPUs for each model, with the estimate of its memory there."""
    from kvplan.offline import models
    from kvplan.offline.cli.sweep_grid import Estimated

    found: dict[str, list[Estimated]] = {}
    for model in values["models"]:
        for name in values["gpu"] or ():
            try:
                gpu = find_gpu(name)
            except ValueError as error:
                raise BadInput(f"--gpu: {error}") from None
            estimate = estimate_of(values | {"gpu": gpu})
            assert estimate is not None
            defaults = defaults_for(gpu, models.load(model).architecture)
            found.setdefault(model, []).append(
                Estimated(
                    name,
                    estimate,
                    gpu.capability,
                    defaults.max_num_batched_tokens,
                    defaults.max_num_seqs,
                )
            )
    return found


def _request_grid(values: dict[str, Any], load: dict[str, Any] | None) -> Any:
    from kvplan import request as requests
    from kvplan.offline.cli.sweep_grid import Grid

    if values["models"]:
        raise BadInput(f"give models ({', '.join(values['models'])}) or --request, not both")
    for name in (*model_option_names(values), "gpu", "layout", "max_num_seqs"):
        option = option_given(name)
        if option is not None:
            raise BadInput(
                f"{option} changes a model's caches; those of a recorded request are fixed"
            )
    path = values["request_file"]
    refuse_other_kind(path, "request")
    recorded = requests.load(path).planning_config()
    batches: list[int] = values["max_num_batched_tokens"]
    if not _is_given("max_num_batched_tokens"):
        batches = [recorded.max_in_flight_tokens // recorded.max_concurrent_batches]
    return Grid(
        models=[str(path)],
        options={
            "tensor_parallel_size": [recorded.tensor_parallel_size],
            "pipeline_parallel_size": [recorded.pipeline_parallel_size],
            "decode_context_parallel_size": [recorded.decode_context_parallel_size],
            "kv_cache_dtype": [None],
            "block_size": [None],
            "max_num_batched_tokens": batches,
        },
        groupings=values["grouping"],
        memory=values["memory"],
        lengths=values["max_model_len"] or [None],
        config=given_values(values, ("max_groups", "num_gpu_blocks_override")),
        is_request=True,
        load=load,
    )


def _summary(done: int, total: int, seconds: float, output: Path | None) -> None:
    where = output or "stdout"
    rate = f"{done / seconds:,.0f} plans a second" if seconds > 0 else ""
    if done < total:
        click.echo(f"kvplan: interrupted: {done:,} of {total:,} rows are in {where}", err=True)
    else:
        click.echo(f"{done:,} row{'s' if done != 1 else ''} in {where}, {rate}", err=True)


def _content(workload: str | None) -> str:
    """What a trace's file holds, in short: rows of another are not gone on with."""
    if workload is None or not Path(workload).is_file():
        return ""
    digest = hashlib.sha256()
    with open(workload, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f" of {digest.hexdigest()}"
