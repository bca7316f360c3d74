"""Which GPUs, and how many, hold so many users: a row for each way to split the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan.offline.budget.gpus import Gpu
from kvplan.offline.cli.defaults import line_given
from kvplan.offline.cli.deployment_options import read_question
from kvplan.offline.cli.failures import BadInput
from kvplan.offline.cli.fit_search import POWERS, requests_at_once, splits
from kvplan.offline.cli.question import ModelQuestion, PlannerInput
from kvplan.offline.cli.serve_line import fitting_options, line_of
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.terminal import Column, FittingTable
from kvplan.offline.serve_line import written

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.offline.replay.run import Report

#: Rows of each GPU.
ROWS = 3
#: Pipeline stages that are tried: any number does, even ones first.
_STAGES = (*POWERS, 3, 5, 6, 7)
#: GPUs in all beyond this many times the fewest are of no interest.
_MOST_TIMES = 2
#: GPUs in all that are tried.
_MOST_GPUS = 4096


@dataclass(frozen=True)
class Offer:
    """One way to serve the users.

    Attributes:
        gpu: The GPU's name.
        gpus: GPUs in all.
        tensor_parallel_size: Ranks that share each layer.
        pipeline_parallel_size: Stages.
        decode_context_parallel_size: Ranks that share each sequence's tokens.
        replicas: Engines side by side.
        max_model_len: Tokens of each user's request.
        users_by_vllm: Users held at once, each charged all tokens in flight.
        users_steady: Users held with the tokens in flight counted once per engine.
        gpu_bytes: Memory of a GPU.
        weights_bytes: Weights on a GPU of the stage that has least for the cache.
        other_bytes: What else it holds beside the cache: activations, buffers, CUDA graphs.
        kv_cache_bytes: Memory for the cache of that GPU.
        used_bytes: Of that, what the users hold, spread over the replicas.
        line: The ``vllm serve`` line.
        hit_rate: Of a load's prompts, by tokens, in its replay; None without a load.
        first_token_p99: Seconds to the first token there.
        goodput: Tokens of finished requests a busy second there, of all engines.
    """

    gpu: str
    gpus: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    decode_context_parallel_size: int
    replicas: int
    max_model_len: int
    users_by_vllm: int
    users_steady: int
    gpu_bytes: int
    weights_bytes: int
    other_bytes: int
    kv_cache_bytes: int
    used_bytes: int
    line: str
    hit_rate: float | None = None
    first_token_p99: float | None = None
    goodput: float | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """Fewest GPUs first, then fewest engines, stages and context ranks."""
        return (
            self.gpus,
            self.pipeline_parallel_size not in POWERS,
            self.replicas,
            self.pipeline_parallel_size,
            self.decode_context_parallel_size,
        )


#: What a load's replay adds.
REPLAYED = ("hit_rate", "first_token_p99", "goodput")
#: Type of each column of a file.
COLUMNS: dict[str, type] = {
    field.name: str if field.name in ("gpu", "line") else float if field.name in REPLAYED else int
    for field in fields(Offer)
}


def offers(
    values: Mapping[str, Any],
    gpus: Sequence[tuple[str, Gpu]],
    users: int,
    steady: bool,
    replay: Callable[[ModelQuestion], Report] | None = None,
) -> list[Offer]:
    """The best ways on each GPU, of fewest GPUs first.

    Args:
        values: The command's parameters; how the model is split is found anew.
        gpus: The GPUs by name.
        users: Requests of the full length at once.
        steady: Whether they are counted with the tokens in flight once per engine.
        replay: Replays a load on an engine of each offer.

    Raises:
        BadInput: The parameters contradict each other.
    """
    found: list[Offer] = []
    for name, gpu in gpus:
        of_gpu = {**values, "gpu": gpu}
        question = read_question(of_gpu)
        if not isinstance(question, ModelQuestion):
            raise BadInput("a recorded request is for its own GPUs; give a model to compare GPUs")
        best: list[tuple[Offer, ModelQuestion]] = []
        for offer in _offers(of_gpu, question, name, gpu, users, steady):
            best = sorted([*best, offer], key=lambda pair: pair[0].order)[:ROWS]
        found += [offer if replay is None else _replayed(offer, replay(q)) for offer, q in best]
    return sorted(found, key=lambda offer: offer.order)


def _replayed(offer: Offer, report: Report) -> Offer:
    from kvplan.offline.replay.run import quantiles

    return replace(
        offer,
        hit_rate=report.hit_rate,
        first_token_p99=quantiles(report.first_token_seconds)["p99"],
        goodput=report.goodput * offer.replicas,
    )


def _offers(
    values: Mapping[str, Any],
    question: ModelQuestion,
    name: str,
    gpu: Gpu,
    users: int,
    steady: bool,
) -> Iterator[tuple[Offer, ModelQuestion]]:
    """Every split of this GPU that holds the users, as long as it may be among the best.

    With the deployment.
    """
    fewest: int | None = None
    for split, changed in splits(question, (), _STAGES):
        if fewest is not None and split.gpus > _MOST_TIMES * fewest:
            return
        try:
            given = changed.planner_input()
            plan = given.plan()
        except kvplan.PlanningError:
            continue
        at_once = requests_at_once(plan, steady)
        replicas = -(-users // at_once) if at_once else _MOST_GPUS
        if split.gpus * replicas > _MOST_GPUS:
            continue
        offer = _offer(values, name, gpu, given, plan, users, replicas)
        fewest = min(fewest or offer.gpus, offer.gpus)
        yield offer, replace(changed, replicas=replicas)


def _offer(
    values: Mapping[str, Any],
    name: str,
    gpu: Gpu,
    given: PlannerInput,
    plan: kvplan.Plan,
    users: int,
    replicas: int,
) -> Offer:
    config = given.config
    ranks, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    memory = min(given.available_memory)
    budget = min(given.budgets, key=lambda budget: budget.kv_cache_bytes)
    weights = sum(part.bytes for part in budget.parts if part.name == "weights")
    each = -(-users // replicas)
    return Offer(
        gpu=name,
        gpus=ranks * stages * replicas,
        tensor_parallel_size=ranks,
        pipeline_parallel_size=stages,
        decode_context_parallel_size=config.decode_context_parallel_size,
        replicas=replicas,
        max_model_len=plan.max_model_len,
        users_by_vllm=replicas * requests_at_once(plan),
        users_steady=replicas * requests_at_once(plan, steady=True),
        gpu_bytes=gpu.memory_bytes,
        weights_bytes=weights,
        other_bytes=budget.usable_bytes - weights - memory,
        kv_cache_bytes=memory,
        used_bytes=min(memory, each * plan.request_blocks * plan.bytes_per_block),
        line=_line(values, given, plan, replicas),
    )


def _line(values: Mapping[str, Any], given: PlannerInput, plan: kvplan.Plan, replicas: int) -> str:
    line = line_given() or line_of(dict(values))
    config = given.config
    sizes = {
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "decode_context_parallel_size": config.decode_context_parallel_size,
        "data_parallel_size": replicas,
    }
    changes: dict[str, tuple[str, ...]] = {
        field: (f"--{field.replace('_', '-')}", str(size)) if size > 1 else ()
        for field, size in sizes.items()
    }
    return written(line, changes | fitting_options(dict(values), given, plan, line))


_HEADERS = (
    "GPUs",
    "TP",
    "PP",
    "DCP",
    "replicas",
    "users (vLLM's figure)",
    "users (steady)",
    "context",
    "KV cache a GPU",
)
_REPLAY_HEADERS = ("hits", "first token (p99)", "tokens/busy s")
_BAR_WIDTH = 20
_STYLE = """
:root{color-scheme:light dark}
body{margin:16px auto;max-width:1100px;padding:0 12px;font:15px/1.45 system-ui,sans-serif}
table{border-collapse:collapse;width:100%}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid #8884;vertical-align:top}
th:first-child,td:first-child,td.line{text-align:left}
td.line{border-bottom:2px solid #8888}
code{font-size:12px;white-space:pre-wrap;word-break:break-word}
.bar{display:flex;width:220px;height:16px;border:1px solid #8888}
.bar i{display:block;height:100%}
.weights{background:#0072B2}.other{background:#56B4E9}.used{background:#D55E00}.free{background:#E69F00}
.key i{display:inline-block;width:12px;height:12px;margin:0 4px 0 14px;border:1px solid #8888}
"""
_KEY = (
    ("weights", "weights"),
    ("other", "activations, buffers, CUDA graphs"),
    ("used", "the users' KV cache"),
    ("free", "KV cache to spare"),
    ("", "kept free"),
)


def render_offers(console: Console, offers: Sequence[Offer]) -> None:
    """A row an offer with its memory as a bar, then each one's line."""
    table = FittingTable([Column("", True), *map(Column, _headers(offers)), Column("memory", True)])
    for i, offer in enumerate(offers, 1):
        table.add_row(f"{i} {offer.gpu}", *_cells(offer), _bar(offer))
    table.print(console)
    console.print(
        "# weights, + activations and the rest, = the users' KV cache, - KV cache to spare",
        markup=False,
    )
    for i, offer in enumerate(offers, 1):
        console.print(f"\n{i} {offer.gpu} x {offer.gpus}:", markup=False)
        console.print(f"  {offer.line}", markup=False, soft_wrap=True)


def _headers(offers: Sequence[Offer]) -> tuple[str, ...]:
    is_replayed = any(offer.goodput is not None for offer in offers)
    return (*_HEADERS, *_REPLAY_HEADERS) if is_replayed else _HEADERS


def _cells(offer: Offer) -> list[str]:
    counts = (
        offer.gpus,
        offer.tensor_parallel_size,
        offer.pipeline_parallel_size,
        offer.decode_context_parallel_size,
        offer.replicas,
        offer.users_by_vllm,
        offer.users_steady,
        offer.max_model_len,
    )
    cells = [*(f"{count:,}" for count in counts), format_size(offer.kv_cache_bytes)]
    if offer.goodput is not None:
        cells += [
            f"{offer.hit_rate:.1%}",
            f"{offer.first_token_p99:,.3f} s",
            f"{offer.goodput:,.0f}",
        ]
    return cells


def _parts(offer: Offer) -> dict[str, int]:
    """Bytes of a GPU by the class of the bar's part; what is left of it is kept free."""
    spare = offer.kv_cache_bytes - offer.used_bytes
    return {
        "weights": offer.weights_bytes,
        "other": offer.other_bytes,
        "used": offer.used_bytes,
        "free": spare,
    }


def _bar(offer: Offer) -> str:
    signs = {"weights": "#", "other": "+", "used": "=", "free": "-"}
    text = "".join(
        signs[name] * round(_BAR_WIDTH * size / offer.gpu_bytes)
        for name, size in _parts(offer).items()
    )
    return f"[{text[:_BAR_WIDTH].ljust(_BAR_WIDTH)}]".replace(" ", ".")


def offers_page(offers: Sequence[Offer], title: str) -> str:
    """The same as one HTML page without scripts, fonts or anything from elsewhere."""
    head = "".join(
        f"<th>{escape(name)}</th>" for name in ("GPU", *_headers(offers), "memory of a GPU")
    )
    rows = "\n".join(map(_row, offers))
    key = "".join(f'<i class="{name}"></i>{escape(text)}' for name, text in _KEY)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f'<body><h1>{escape(title)}</h1>\n<p class="key">{key}</p>\n'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></body></html>\n"
    )


def _row(offer: Offer) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in (offer.gpu, *_cells(offer)))
    bar = "".join(
        f'<i class="{name}" style="width:{100 * size / offer.gpu_bytes:.2f}%" '
        f'title="{format_size(size)}"></i>'
        for name, size in _parts(offer).items()
    )
    columns = len(_headers([offer])) + 2
    return (
        f'<tr>{cells}<td><div class="bar">{bar}</div></td></tr>\n'
        f'<tr><td class="line" colspan="{columns}"><code>{escape(offer.line)}</code></td></tr>'
    )
