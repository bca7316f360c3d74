"""Write the figures of `benchmarks/results/bench.json` into the documents, or check that they are.

    python scripts/readme_numbers.py [--check]

A document marks a place by `<!-- figures: NAME -->` and `<!-- end of figures -->`; what is between
is written anew. The names are the functions in `TABLES`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kvplan.bench.measure import show_ratio, show_seconds
from kvplan.bench.report import Report, Row, load

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/bench.json"
DOCUMENTS = ("README.md", "docs/benchmarks.md")
PLACE = re.compile(r"(<!-- figures: ([a-z_]+) -->\n).*?(<!-- end of figures -->)", re.S)

POOL_SIDES = {"vllm": "vLLM", "drop_in": "block objects", "native": "arrays", "cpp": "C++"}
PLAN_SIDES = {
    "vllm": "vLLM",
    "drop_in": "drop-in",
    "drop_in_own": "drop-in, own specs",
    "builder_only": "builder only",
    "native": "native",
    "native_own_dicts": "native, own dicts",
    "native_configs": "native, configs",
    "cpp": "C++",
}


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def rows_of(report: Report, work: str) -> list[Row]:
    """The rows of a kind of work."""
    return [row for row in report.rows if row.work == work]


def with_ratio(row: Row, side: str) -> str:
    """A figure, and in brackets how many times as fast as vLLM's it is."""
    seconds = row.seconds.get(side)
    shown = show_seconds(seconds)
    if seconds is None or side == "vllm" or "vllm" not in row.seconds:
        return shown
    return f"{shown} ({show_ratio(row.seconds['vllm'], seconds)})"


def machine(report: Report) -> str:
    """One line that says what the figures were taken on."""
    m = report.machine
    return (
        f"{m['processor']}, {m['cores']} cores, {m['memory']}, load {m['load']}; "
        f"Python {m['python']}, vLLM {m['vllm']}, kvplan {m['kvplan']}; `{m['command']}`\n"
    )


#: What the README shows: (kind of work, row, workers, side, words).
SUMMARY = (
    ("planning", "gemma-3-27b", 1, "drop_in_own", "planning Gemma 3 27B inside vLLM, 1 worker"),
    ("planning", "gemma-3-27b", 64, "drop_in_own", "the same, 64 workers"),
    ("planning", "gemma-3-27b", 64, "native", "the same from native objects"),
    ("allocation", "allocate + free, n = 8", None, "drop_in", "vLLM's block pool, a block"),
)


def summary(report: Report) -> str:
    """Four figures beside vLLM's."""
    by_key = {row.key: row.seconds for row in report.rows}
    lines = []
    for work, name, workers, side, words in SUMMARY:
        seconds = by_key[work, name, workers]
        times = [show_seconds(seconds[s]) for s in ("vllm", side)]
        lines.append([words, *times, show_ratio(seconds["vllm"], seconds[side])])
    return table(["CPU time", "vLLM 0.33.0", "kvplan", "ratio"], lines)


def gcd(report: Report) -> str:
    """The divisor search."""
    rows = rows_of(report, "gcd")
    return table(
        ["largest value", *(row.name for row in rows)],
        [
            ["vLLM", *(show_seconds(row.seconds.get("vllm")) for row in rows)],
            ["kvplan", *(show_seconds(row.seconds["native"]) for row in rows)],
            [
                "ratio",
                *(show_ratio(row.seconds.get("vllm"), row.seconds["native"]) for row in rows),
            ],
        ],
    )


def pool(report: Report) -> str:
    """What calls of the pool take, with ratios, and its memory.

    Without construction: a large pool's arrays are pages that nothing has touched yet.
    """
    lines = [
        [row.name, *(with_ratio(row, side) for side in POOL_SIDES)]
        for row in rows_of(report, "allocation")
    ]
    for row in rows_of(report, "memory"):
        cells = [
            f"{row.peak_bytes[side] / 200_000:.0f} bytes a block" if side in row.peak_bytes else ""
            for side in POOL_SIDES
        ]
        lines.append([row.name, *cells])
    return table(["per block", *POOL_SIDES.values()], lines)


def planning(report: Report) -> str:
    """Planning for one worker and for many, with ratios."""
    rows = [row for row in rows_of(report, "planning") if row.workers in (1, 64)]
    lines = [
        [row.name, f"{row.workers:,}", *(with_ratio(row, side) for side in PLAN_SIDES)]
        for row in rows
    ]
    return table(["model", "workers", *PLAN_SIDES.values()], lines)


def placement(report: Report) -> str:
    """Every row of placement, with ratios."""
    sides = ("vllm", "drop_in", "native")
    lines = [
        [row.name, *(with_ratio(row, side) for side in sides)]
        for row in rows_of(report, "placement")
    ]
    return table(["model", *(PLAN_SIDES[side] for side in sides)], lines)


def scale(report: Report) -> str:
    """Cost far beyond any model, and what one layer of one worker costs."""
    lines = []
    for row in rows_of(report, "scale"):
        own = row.seconds["native_own_dicts"]
        pairs = (row.layers or 0) * (row.workers or 0) // 8
        lines.append(
            [
                f"{row.layers:,}",
                f"{row.workers:,}",
                show_seconds(row.seconds.get("cpp")),
                show_seconds(row.seconds["native"]),
                f"{row.peak_bytes['native'] / 2**20:.1f} MiB",
                show_seconds(own),
                f"{row.peak_bytes['native_own_dicts'] / 2**20:.1f} MiB",
                show_seconds(own / pairs) if pairs else "-",
            ]
        )
    header = ["layers", "workers", "C++", "native", "memory", "own dicts", "memory", "per entry"]
    return table(header, lines)


TABLES = {
    function.__name__: function
    for function in (
        machine,
        summary,
        gcd,
        pool,
        planning,
        placement,
        scale,
    )
}


def written(text: str, report: Report) -> str:
    """The document with every place filled from the report."""
    return PLACE.sub(lambda m: m[1] + TABLES[m[2]](report) + m[3], text)


def main(arguments: list[str]) -> int:
    """Write, or with `--check` name the documents that are not up to date."""
    report = load(RESULTS)
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new = written(text, report)
        if new == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(new, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"not up to date with {RESULTS.name}: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
