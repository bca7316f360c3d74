"""A start-up log's report for a reader: the refusal first, then memory, capacity and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvplan.offline.cli.log_report import LogReport
from kvplan.offline.cli.terminal import Column, FittingTable
from kvplan.offline.serve_line import written
from kvplan.offline.startup_log import PHASES, MemorySum, Rank, Refusal

if TYPE_CHECKING:
    from rich.console import Console

#: Ranks beyond these are only spoken of where they differ.
_MOST_RANKS = 8


def render_log(console: Console, report: LogReport) -> None:
    """One log."""
    for line in _head(report):
        _say(console, line)
    if report.line.model:
        _say(console, "\nThe line behind it:")
        _say(console, f"  {written(report.line, {})}")
    if report.sums:
        _memory_table(console, report)
        for line in _sum_lines(report):
            _say(console, line)
        _prediction_table(console, report)
    for title, lines in (
        ("Capacity", _capacity_lines(report)),
        ("What limits", report.limits),
        ("Found", _finding_lines(report)),
        ("What would help, each tried by planning", report.helps),
    ):
        if lines:
            _say(console, f"\n{title}:")
            for line in lines:
                _say(console, f"  {line}")
    if any(phases.seconds for phases in report.phases):
        _time_table(console, report)


def render_comparison(console: Console, reports: Sequence[LogReport]) -> None:
    """Several logs, one column each."""
    columns = [Column("", words=True), *(Column(name) for name in _short_names(reports))]
    table = FittingTable(columns)
    for label, values in _comparison_rows(reports):
        if any(values):
            table.add_row(label, *values)
        elif label:
            continue
        else:
            table.add_section()
    table.print(console)
    for line in _differences(reports):
        _say(console, line)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=not text or text.startswith("  vllm"))


def _head(report: LogReport) -> list[str]:
    start = report.start
    version = f"vLLM {start.version}" if start.version else "vLLM"
    ranks = len(start.workers)
    many = f", {ranks} ranks" if ranks > 1 else ""
    gpu = f", {start.gpu_name}" if start.gpu_name else ""
    lines = []
    if start.refusal is not None:
        lines += _refusal_lines(report, start.refusal)
    total = max((p.total for p in report.phases if p.total is not None), default=None)
    if start.is_ready:
        state = "ready" if total is None else f"ready after {total:,.0f} s"
    elif start.refusal is not None:
        state = "did not start"
    elif start.capacity_tokens is not None and "initialized" in start.times:
        state = "the engine started; whether the server did is not in the log"
    else:
        state = f"the log ends while it was {start.last_step or 'starting'}"
    return [*lines, f"{report.name}: {version}{many}{gpu}; {state}"]


def _refusal_lines(report: LogReport, refusal: Refusal) -> list[str]:
    """Why it failed, and what to do, before anything else."""
    numbers = refusal.numbers
    step = report.start.last_step or "starting"
    match refusal.kind:
        case "length":
            text = (
                f"A request of {numbers['max_model_len']:,.0f} tokens needs "
                f"{numbers['needed_gib']:.2f} GiB of KV cache, and {numbers['available_gib']:.2f} "
                "GiB are there."
            )
            if "estimated_len" in numbers:
                text += f" --max-model-len {numbers['estimated_len']:.0f} fits."
        case "no memory":
            text = (
                "Weights and activations leave no memory for the KV cache: raise "
                "--gpu-memory-utilization, use more GPUs, or lower --max-num-batched-tokens and "
                "--max-num-seqs."
            )
        case "utilization":
            most = numbers["free_gib"] / numbers["total_gib"]
            text = (
                f"{numbers['requested_gib']:.2f} GiB were asked for, and only "
                f"{numbers['free_gib']:.2f} of {numbers['total_gib']:.2f} GiB were free: end the "
                "other processes on the GPU, or take --gpu-memory-utilization "
                f"{int(most * 100) / 100:.2f}."
            )
        case "states":
            text = (
                f"The KV cache has {numbers['blocks']:.0f} blocks, and every one of "
                f"{numbers['max_num_seqs']:.0f} sequences needs one for its states: take "
                f"--max-num-seqs {numbers['blocks']:.0f} or less."
            )
        case "out of memory":
            tried = f" {numbers['tried_gib']:.2f} GiB" if "tried_gib" in numbers else ""
            text = (
                f"The GPU ran out of memory{' for' + tried if tried else ''} while it was {step}: "
            )
            text += _out_of_memory_advice(step)
        case "context":
            text = (
                f"--max-model-len {numbers['max_model_len']:.0f} is more than the model's "
                f"{numbers['derived_len']:.0f} tokens."
            )
        case "changed memory":
            text = (
                "Another process freed GPU memory while vLLM measured its own: start it when "
                "nothing else starts or ends on the GPU."
            )
        case _:
            text = f"It failed while it was {step}:"
    return ["It did not start. " + text, f"  line {refusal.line:,}: {refusal.message}", ""]


def _out_of_memory_advice(step: str) -> str:
    if step == "loading the weights":
        return "the weights do not fit; use more GPUs or a smaller quantization."
    if step == "warming up":
        return (
            "the KV cache left too little for CUDA graphs and the sampler; lower "
            "--gpu-memory-utilization or --max-num-seqs, or capture fewer sizes."
        )
    return "lower --max-num-batched-tokens and --max-num-seqs, or use more GPUs."


def _rank_names(report: LogReport) -> list[str]:
    return [rank.name or report.start.device for rank, _ in report.sums[:_MOST_RANKS]]


def _memory_table(console: Console, report: LogReport) -> None:
    sums = report.sums[:_MOST_RANKS]
    names = list(dict.fromkeys(name for _, found in sums for name in found.parts))
    names.sort(key=lambda name: (name == "KV cache", "graphs" in name))
    table = FittingTable([Column("memory, GiB", True), *map(Column, _rank_names(report))])
    table.add_row("requested", *(_requested_text(found) for _, found in sums))
    for name in names:
        table.add_row(name, *(_gib(found.parts.get(name)) for _, found in sums))
    table.add_row("rest", *(_gib(found.rest) for _, found in sums))
    loaded = [rank.weights if "weights" not in found.parts else None for rank, found in sums]
    beside = {
        "weights, as loaded": loaded,
        "CUDA graphs, captured later": [rank.graphs for rank, _ in sums],
    }
    table.add_section()
    for label, values in beside.items():
        if any(value is not None for value in values):
            table.add_row(label, *map(_gib, values))
    console.print()
    table.print(console)
    hidden = len(report.sums) - len(sums)
    if hidden:
        _say(console, f"and {hidden} ranks more; --json has all of them")


def _prediction_table(console: Console, report: LogReport) -> None:
    """What is predicted for the first rank of each stage, beside what it logs."""
    if isinstance(report.predictions, str):
        _say(console, f"Not compared with a prediction: {report.predictions}")
        return
    by_stage = {
        tuple(row.predicted for row in rows): (rank, rows)
        for (rank, _), rows in reversed(list(zip(report.sums, report.predictions, strict=True)))
    }
    for rank, rows in reversed(by_stage.values()):
        if not rows:
            continue
        who = f" of {rank.name}" if rank.name else ""
        columns = [Column(f"predicted{who}, GiB", True), *map(Column, ("logged", "predicted"))]
        table = FittingTable([*columns, Column("off"), Column("expected within")])
        for row in rows:
            off = row.predicted - row.logged
            cells = (f"{row.logged:.2f}", f"{row.predicted:.2f}", f"{off:+.2f}")
            table.add_row(row.part, *cells, f"{row.error:.2f}")
        console.print()
        table.print(console)


def _requested_text(found: MemorySum) -> str:
    return _gib(found.requested)


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _sum_lines(report: LogReport) -> list[str]:
    """Whether the sums close, and what is missing where they do not."""
    given = [rank for rank, _ in report.sums if rank.kv_cache_given]
    if given:
        return [
            "The KV cache's memory was given; vLLM measured nothing, so there is no sum to close."
        ]
    if all(found.closes for _, found in report.sums):
        return ["The sum closes: the parts make up the requested memory."]
    return [_open_sum(rank, found) for rank, found in _distinct(report) if not found.closes]


def _distinct(report: LogReport) -> list[tuple[Rank, MemorySum]]:
    """One rank of those whose sums miss the same."""
    return list({found.missing: (rank, found) for rank, found in reversed(report.sums)}.values())


def _open_sum(rank: Rank, found: MemorySum) -> str:
    who = f"{rank.name}: t" if rank.name else "T"
    if not found.missing:
        return f"{who}he parts differ from the requested memory by {abs(found.rest or 0):.2f} GiB."
    missing = " and ".join(filter(None, (", ".join(found.missing[:-1]), found.missing[-1])))
    if found.requested is None:
        return (
            f"{who}he log does not say the {missing}; --gpu NAME tells the GPU's memory, and "
            "VLLM_LOGGING_LEVEL=DEBUG makes vLLM 0.11 to 0.23 print the rest."
        )
    return f"{who}he log does not say the {missing}: together they are {_gib(found.rest)} GiB."


def _capacity_lines(report: LogReport) -> list[str]:
    start, planned = report.start, report.planned
    lines = []
    if start.capacity_tokens is not None:
        text = f"{start.capacity_tokens:,} tokens"
        if start.max_concurrency is not None and start.max_model_len is not None:
            text += (
                f", {start.max_concurrency:,.2f} requests of {start.max_model_len:,} tokens at once"
            )
        lines.append(f"{text}, as vLLM logs it")
    if planned is not None:
        lines.append(_planned_words(report))
    elif isinstance(report.question, str) and start.capacity_tokens is not None:
        lines.append(f"not compared with a plan: {report.question}")
    return lines


def _planned_words(report: LogReport) -> str:
    planned = report.planned
    assert planned is not None
    span = f"{planned.least:,}"
    if planned.most != planned.least:
        span = f"{planned.least:,} to {planned.most:,}"
    text = f"{span} tokens by the plan of the line with this memory, as exactly as it is printed"
    if planned.agrees is None:
        return text
    if planned.agrees:
        return f"{text}: they agree"
    return (
        f"{text}: they differ. The plan is that of vLLM 0.33.0 and of the options in the log; a "
        "plugin, another version or a variable that is not logged may plan otherwise"
    )


def _finding_lines(report: LogReport) -> list[str]:
    lines = []
    for finding in report.findings:
        tokens = report.gain_tokens(finding)
        gain = f" That is room for about {tokens:,} tokens." if tokens else ""
        lines.append(f"{finding.words}.{gain}")
    return lines


def _time_table(console: Console, report: LogReport) -> None:
    phases = report.phases[:_MOST_RANKS]
    table = FittingTable(
        [
            Column("time, seconds", True),
            *map(Column, _rank_names(report)),
            Column("what it is", True),
        ]
    )
    for name, what in PHASES.items():
        if any(name in of.seconds for of in phases):
            table.add_row(name, *(_seconds(of.seconds.get(name)) for of in phases), what)
    if any(of.total is not None for of in phases):
        table.add_row("all", *(_seconds(of.total) for of in phases), "first to last line of it")
    console.print()
    table.print(console)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _short_names(reports: Sequence[LogReport]) -> list[str]:
    names = [report.name.rpartition("/")[2] for report in reports]
    return names if len(set(names)) == len(names) else [report.name for report in reports]


def _comparison_rows(reports: Sequence[LogReport]) -> list[tuple[str, list[str]]]:
    starts = [report.start for report in reports]
    rows = [
        ("vLLM", [start.version or "-" for start in starts]),
        ("ranks", [str(len(start.workers)) for start in starts]),
        ("started", ["no" if start.refusal else "yes" for start in starts]),
        ("", []),
    ]
    for name in PHASES:
        seconds = [report.telling_phases.get(name) for report in reports]
        if any(value is not None for value in seconds):
            rows.append((f"{name}, s", [_seconds(value) for value in seconds]))
    totals = [
        max((of.total for of in report.phases if of.total is not None), default=None)
        for report in reports
    ]
    rows += [("all, s", [_seconds(value) for value in totals]), ("", [])]
    names = list(
        dict.fromkeys(n for report in reports for _, found in report.sums for n in found.parts)
    )
    for name in names:
        largest = [
            max((f.parts[name] for _, f in report.sums if name in f.parts), default=None)
            for report in reports
        ]
        rows.append((f"{name}, GiB", [_gib(value) for value in largest]))
    rows.append(
        ("tokens", [f"{s.capacity_tokens:,}" if s.capacity_tokens else "-" for s in starts])
    )
    return rows


def _differences(reports: Sequence[LogReport]) -> list[str]:
    """Options that are not the same in all lines, and capacity that the memory does not explain."""
    values = [report.line.values() | {"model": report.line.model} for report in reports]
    names = sorted(set().union(*values))
    lines = []
    for name in names:
        texts = [str(v.get(name, "-")) for v in values]
        if len(set(texts)) > 1:
            lines.append(f"--{name.replace('_', '-')}: {' | '.join(texts)}")
    sizes = {min((r.kv_cache or 0 for r in report.start.workers), default=0) for report in reports}
    tokens = {report.start.capacity_tokens for report in reports}
    if len(sizes) == 1 and sizes != {0} and len(tokens) > 1:
        lines.append(
            "The same memory holds another number of tokens: vLLM's figure charges every request "
            "all tokens in flight, so it changes with --max-num-batched-tokens and "
            "--async-scheduling where the model has windows."
        )
    return lines
