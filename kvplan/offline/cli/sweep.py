"""``kvplan sweep``: a whole grid of plans into a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvplan.offline.budget.gpus import defaults_for, find_gpu
from kvplan.offline.cli import value_lists
from kvplan.offline.cli.deployment_options import (
    ESTIMATE_OPTIONS,
    GROUPINGS,
    estimate_of,
    preset_options,
)
from kvplan.offline.cli.failures import FITS, INTERRUPTED, BadInput
from kvplan.offline.cli.file_kinds import refuse_other_kind
from kvplan.offline.cli.heeded import option_given
from kvplan.offline.cli.param_types import IntegerIn, Name, Parsed
from kvplan.offline.cli.pictures import CHART_HELP
from kvplan.offline.cli.preset import print_preset_if_asked
from kvplan.offline.cli.shadowed import warn_if_shadowed
from kvplan.offline.cli.suggestions import did_you_mean

if TYPE_CHECKING:
    from kvplan.offline.cli.sweep_grid import Estimated

EPILOG = """\b
Examples:
  kvplan sweep gemma-3-27b --memory 10GiB:80GiB:1GiB --tp 1,2,4 -o gemma.csv
  kvplan sweep llama-3.1-70b --gpu H100,H200 --weights 141GB --tp 4,8
  kvplan sweep --request recorded.json --memory 20GiB:40GiB:1GiB
  kvplan sweep llama-3.1-70b gpt-oss-120b --memory 40GiB --kv-cache-dtype auto,fp8
  kvplan sweep gemma-3-27b --memory 40GiB --max-model-len 8K:128K:8K --grouping vllm,compact \\
      --plot lines.svg -o lines.csv

\b
Every option takes a list, and numbers take ranges START:STOP:STEP with both ends included. Each
combination is one row; what does not fit is a row, too, with the reason.

Exit codes: 0 all rows are written, 2 the input is wrong, 130 interrupted (rows so far are kept).
"""

SIZES = Parsed("sizes", value_lists.parse_sizes)
LENGTHS = Parsed("lengths", value_lists.parse_lengths)
COUNTS = Parsed("counts", value_lists.parse_counts)
RANKS = Parsed("counts", value_lists.parse_ranks)
NAMES = Parsed("names", value_lists.parse_names)


def _plotted() -> Sequence[str]:
    from kvplan.offline.cli.sweep_plot import PLOTTED

    return tuple(PLOTTED)


def _estimate_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What goes into an estimate beside the GPU itself."""
    for option in reversed(ESTIMATE_OPTIONS[2:]):
        function = option(function)
    return function


@click.command("sweep", epilog=EPILOG)
@click.argument("models", nargs=-1)
@click.option("--memory", type=SIZES, help="Sizes for the KV cache of each GPU.")
@click.option("--gpu", type=NAMES, help="Instead of --memory, estimate it for each of these GPUs.")
@_estimate_options
@click.option(
    "--request",
    "request_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Plan a recorded request instead of models.",
)
@click.option("--tp", type=RANKS, default="1", help="Tensor parallel ranks.")
@click.option("--pp", type=RANKS, default="1", help="Pipeline stages.")
@click.option("--dcp", type=RANKS, default="1", help="Decode context parallel ranks.")
@click.option("--max-model-len", type=LENGTHS, help="Tokens, or auto; the default is the model's.")
@click.option("--kv-cache-dtype", type=NAMES, default="auto", help="E.g. auto,fp8.")
@click.option("--block-size", type=COUNTS, help="Tokens of a block.")
@click.option(
    "--max-num-batched-tokens",
    type=COUNTS,
    default="8192",
    help="Tokens of one step.  [default: 8192, or with --gpu vLLM's for it]",
)
@click.option("--grouping", type=NAMES, default="vllm", help=f"Of {', '.join(GROUPINGS)}.")
@click.option("--max-groups", type=IntegerIn(min=1), help="For compact grouping.")
@click.option("--attention-backend", help="The same for all, as for vLLM.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .csv, .json, .jsonl or (pip install pyarrow) .parquet file; the default is "
    "CSV on stdout.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
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
@click.option("-j", "--jobs", type=IntegerIn(1, 1024), help="Processes; default: all cores.")
@click.option("--quiet", is_flag=True, help="No progress bar and no summary.")
@preset_options
def command(
    output: Path | None,
    plot: Path | None,
    plot_column: str,
    jobs: int | None,
    quiet: bool,
    print_config: bool,
    **values: Any,
) -> int:
    """Plan every combination of the given values for MODELS."""
    print_preset_if_asked(print_config)
    from kvplan.offline.cli.progress import ProgressBar
    from kvplan.offline.cli.row_writers import RowWriter
    from kvplan.offline.cli.sweep_grid import COLUMN_TYPES
    from kvplan.offline.cli.sweep_plot import SweepPlot
    from kvplan.offline.cli.sweep_run import default_jobs, run_chunks

    if plot is not None:
        from kvplan.offline.cli.charts import check_chart, write_chart

        check_chart(plot)
    grid = _grid(values)
    picture = SweepPlot(grid, plot_column) if plot is not None else None
    started = time.perf_counter()
    code = FITS
    with RowWriter(output, COLUMN_TYPES) as writer, ProgressBar(len(grid), hidden=quiet) as advance:

        def write(rows: list[tuple[Any, ...]]) -> None:
            writer.write(rows)
            if picture is not None:
                picture.add(rows)
            advance(len(rows))

        try:
            run_chunks(grid.chunks(), jobs or default_jobs(len(grid)), write)
        except KeyboardInterrupt:
            code = INTERRUPTED
    if picture is not None and plot is not None:
        write_chart(plot, picture.title, picture.figure())
        if not quiet:
            click.echo(f"wrote {plot}", err=True)
    if not quiet:
        _summary(writer.count, len(grid), time.perf_counter() - started, output)
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
    _check_names("--grouping", values["grouping"], GROUPINGS)
    _check_names("--kv-cache-dtype", values["kv_cache_dtype"], KV_CACHE_DTYPES)
    if values["max_groups"] and "compact" not in values["grouping"]:
        raise BadInput(
            f"--max-groups changes nothing with --grouping {','.join(values['grouping'])}; add "
            "compact, or leave it out"
        )
    if values["request_file"] is not None:
        return _request_grid(values)
    for model in values["models"]:
        refuse_other_kind(model, "model")
        warn_if_shadowed(model)
        _ = models.load(model).architecture
    if values["gpu"] and option_given("max_num_batched_tokens") is None:
        values["max_num_batched_tokens"] = [None]  # each GPU's own
    shared: dict[str, Any] = {}
    if values["attention_backend"]:
        shared["attention_backend"] = values["attention_backend"]
    config = {"max_groups": values["max_groups"]} if values["max_groups"] else {}
    return Grid(
        models=list(values["models"]),
        options={
            "tensor_parallel_size": values["tp"],
            "pipeline_parallel_size": values["pp"],
            "decode_context_parallel_size": values["dcp"],
            "kv_cache_dtype": values["kv_cache_dtype"],
            "block_size": values["block_size"] or [None],
            "max_num_batched_tokens": values["max_num_batched_tokens"],
        },
        groupings=values["grouping"],
        memory=values["memory"] or [],
        gpus=_gpus(values),
        lengths=values["max_model_len"] or [None],
        shared=shared,
        config=config,
    )


def _gpus(values: dict[str, Any]) -> dict[str, list[Estimated]]:
    """The GPUs for each model, with the estimate of its memory there."""
    from kvplan.offline.cli.sweep_grid import Estimated

    found: dict[str, list[Estimated]] = {}
    for model in values["models"]:
        for name in values["gpu"] or ():
            try:
                gpu = find_gpu(name)
            except ValueError as error:
                raise BadInput(f"--gpu: {error}") from None
            estimate = estimate_of(values | {"gpu": gpu, "replicas": 1})
            assert estimate is not None
            batch = defaults_for(gpu).max_num_batched_tokens
            found.setdefault(model, []).append(Estimated(name, estimate, gpu.capability, batch))
    return found


#: Options that change the specs of a model; by parameter name.
_MODEL_OPTIONS = ("tp", "pp", "dcp", "kv_cache_dtype", "block_size", "attention_backend", "gpu")


def _request_grid(values: dict[str, Any]) -> Any:
    from kvplan import request as requests
    from kvplan.offline.cli.sweep_grid import Grid

    if values["models"]:
        raise BadInput(f"give models ({', '.join(values['models'])}) or --request, not both")
    for name in _MODEL_OPTIONS:
        option = option_given(name)
        if option is not None:
            raise BadInput(
                f"{option} changes a model's caches; those of a recorded request are fixed"
            )
    path = values["request_file"]
    refuse_other_kind(path, "request")
    recorded = requests.load(path).planning_config()
    batches: list[int] = values["max_num_batched_tokens"]
    if option_given("max_num_batched_tokens") is None:
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
        config={"max_groups": values["max_groups"]} if values["max_groups"] else {},
        is_request=True,
    )


def _check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise BadInput(
                f"{option}: {name!r} is unknown.{did_you_mean(name, known)} Known: "
                f"{', '.join(known)}"
            )


def _summary(done: int, total: int, seconds: float, output: Path | None) -> None:
    where = output or "stdout"
    rate = f"{done / seconds:,.0f} plans a second" if seconds > 0 else ""
    if done < total:
        click.echo(f"kvplan: interrupted: {done:,} of {total:,} rows are in {where}", err=True)
    else:
        click.echo(f"{done:,} row{'s' if done != 1 else ''} in {where}, {rate}", err=True)
