"""The table of offers on a terminal, and as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from kvplan.offline.cli.buyers_table import Offer
from kvplan.offline.cli.sizes import format_size
from kvplan.offline.cli.tables import Column, FittingTable

if TYPE_CHECKING:
    from rich.console import Console

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
