"""What a replay says, for a reader: lines, a table of the groups, and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.offline.cli.failures import counted
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.terminal import Column, FittingTable, named_lines
from kvplan.offline.replay.run import quantiles

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.offline.replay.run import Policy, Report


def render_replay(console: Console, label: str, report: Report, policy: Policy) -> None:
    """Print the result."""
    console.print(f"[bold]{label}[/bold]: {report.trace.name}")
    console.print(named_lines([*replay_lines(report), ("Step time", policy.step_time.words)]))
    group_table(report).print(console)


def replay_lines(report: Report) -> list[tuple[str, str]]:
    """What came of it, as (name, sentence) pairs."""
    trace, result = report.trace, report.result
    lines = [("Requests", _requests(report))]
    if trace.repeated_share is not None:
        lines.append(
            (
                "Trace",
                f"{len(trace.part_texts):,} parts of prompts, {trace.repeated_share:.2%} of them "
                "seen before: what a cache without end would hit",
            )
        )
    lines += [
        (
            "Hits",
            f"{report.hit_rate:.2%} of the tokens looked up ({result['hit_tokens']:,} of "
            f"{result['query_tokens']:,}), {report.hit_requests:.1%} of the requests",
        ),
        (
            "Preemptions",
            f"{report.preemptions:,}, of "
            f"{counted(int((report.requests['preemptions'] > 0).sum()), 'request')}",
        ),
        ("Queue", _seconds(report.queue_seconds)),
        ("First token", _seconds(report.first_token_seconds)),
        (
            "Throughput",
            f"{report.finished.sum() / report.seconds if report.seconds else 0:,.2f} requests and "
            f"{report.output_tokens / report.seconds if report.seconds else 0:,.0f} output tokens "
            f"a second over {report.seconds:,.1f} s; {report.goodput:,.0f} tokens with "
            "prompts a busy second",
        ),
        (
            "Blocks",
            f"at most {result['peak_used_blocks']:,} of {report.plan.num_blocks - 1:,} in use",
        ),
    ]
    return lines


def group_table(report: Report) -> FittingTable:
    """The mean over time of what each group caches, holds and wastes; groups alike together."""
    table = FittingTable(
        [
            Column("group"),
            Column("kind", words=True),
            Column("cached"),
            Column("held by running requests"),
            Column("of it empty"),
        ]
    )
    rows: list[dict[str, Any]] = []
    for group in report.groups:
        if rows and rows[-1]["kind"] == group["kind"]:
            last = rows[-1]
            last["last"] = group["group"]
            for name in ("cached_bytes", "held_bytes", "waste_bytes"):
                last[name] += group[name]
        else:
            rows.append({**group, "last": group["group"]})
    for row in rows:
        held = row["held_bytes"]
        table.add_row(
            str(row["group"]) if row["group"] == row["last"] else f"{row['group']}-{row['last']}",
            row["kind"],
            format_size(row["cached_bytes"]),
            format_size(held),
            f"{row['waste_bytes'] / held:.1%}" if held else "-",
        )
    return table


def _requests(report: Report) -> str:
    text = f"{report.count('finished'):,} of {len(report.trace):,} finished"
    reasons = {
        "too long": "are as long as max_model_len or longer",
        "no room": "do not fit into the cache, even alone",
        "unfinished": "were still to run",
    }
    for end, words in reasons.items():
        if report.count(end):
            text += f"; {report.count(end):,} {words}"
    return text


def _seconds(values: Any) -> str:
    q = quantiles(values)
    return f"after {q['p50']:,.3f} s in the median, {q['p99']:,.3f} s at the 99th percentile"


def load_figure(label: str, report: Report) -> Any:
    """Blocks in use, requests and the hit rate, over time."""
    import numpy as np

    from kvplan.offline.cli.pictures import COLOURS, add_legend, new_figure

    samples = report.samples
    time = samples["time"]
    figure, axes = new_figure(f"{label}\n{report.trace.name}", height=5.2)
    blocks = max(1, report.plan.num_blocks - 1)
    axes.plot(time, samples["used_blocks"] / blocks, color=COLOURS[0], label="blocks in use")
    queries = np.maximum(samples["query_tokens"], 1)
    axes.plot(
        time,
        samples["hit_tokens"] / queries,
        "--",
        color=COLOURS[2],
        label="hit rate so far",
    )
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share")
    axes.set_xlabel("seconds")
    right = axes.twinx()
    right.plot(time, samples["running"], ":", color=COLOURS[1], label="requests running")
    right.plot(time, samples["waiting"], "-.", color=COLOURS[3], label="requests waiting")
    right.set_ylim(bottom=0)
    right.set_ylabel("requests")
    add_legend(figure)
    return figure
