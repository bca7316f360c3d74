"""``kvplan map``: pictures of what a block holds, and of where layers lie in the buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import kvplan
from kvplan.offline.cli.deployment_options import deployment_options, read_question
from kvplan.offline.cli.failures import FITS, BadInput
from kvplan.offline.cli.knobs import PLENTY, plan_with_plenty
from kvplan.offline.cli.map_data import block_map, buffer_map
from kvplan.offline.cli.map_svg import draw_svg
from kvplan.offline.cli.param_types import FILE
from kvplan.offline.cli.pictures import HELP, check_picture, write_svg
from kvplan.offline.cli.plan_facts import held_bytes, is_sliced
from kvplan.offline.cli.sizes import format_size

EPILOG = """\b
Examples:
  kvplan map gemma-3-27b -o gemma.svg
  kvplan map gemma-3-27b --memory 60GiB -o gemma.png
  kvplan map deepseek-v4-flash --tp 4 --grouping compact -o flash.html
"""


#: What a page has beside the picture: hints, a filter by group, two orders.
SCRIPT = """
<style>
 #map{position:sticky;top:0;background:Canvas;color:CanvasText;padding:8px 0;font-size:14px}
 #map output{display:block;min-height:1.4em;font-weight:bold}
 .row.away{opacity:.12} [data-layer].same{stroke-width:2.5;stroke-opacity:1}
</style>
<div id="map">
 <label>Group <select id="group"><option value="">all</option></select></label>
 <label>Pages of a block by <select id="order"><option value="byte">place</option>
 <option value="layer">layer</option></select></label>
 <output id="what" aria-live="polite"></output>
</div>
<script>
{
const svg = document.querySelector("svg"), what = document.getElementById("what");
document.body.prepend(document.getElementById("map"));
const rows = [...svg.querySelectorAll(".row")];
const group = document.getElementById("group"), order = document.getElementById("order");
for (const number of new Set(rows.map(row => row.dataset.group)))
  group.add(new Option(number, number));
group.onchange = () => rows.forEach(row =>
  row.classList.toggle("away", group.value !== "" && row.dataset.group !== group.value));
svg.onpointerover = event => {
  const part = event.target.closest("rect[class=page],rect[class=part]");
  what.value = part ? part.querySelector("title").textContent : "";
  const layer = part && part.dataset.layer;
  for (const other of svg.querySelectorAll("[data-layer]"))
    other.classList.toggle("same", layer != null && other.dataset.layer === layer);
};
// A page is its rectangle, the padding behind it, and the number on it.
const pages = rows.map(row => {
  const found = [];
  for (const part of row.querySelectorAll("rect.page")) {
    const at = {part, x: +part.getAttribute("x")};
    if (part.dataset.layer !== undefined) found.push([at]);
    else if (found.length && !part.querySelector("title").textContent.startsWith("padding"))
      found.at(-1).push(at);
  }
  for (const part of row.querySelectorAll("text.small")) {
    const page = found.find(([{part: {dataset}}]) => dataset.layer === part.textContent);
    if (page) page.push({part, x: +part.getAttribute("x")});
  }
  return row.querySelector(".cut") ? [] : found;
});
order.onchange = () => pages.forEach(found => {
  if (!found.length) return;
  const number = page => +page[0].part.dataset.layer;
  const sorted = order.value === "byte" ? found : [...found].sort((a, b) => number(a) - number(b));
  const end = page => Math.max(...page.filter(at => at.part.tagName === "rect")
    .map(at => at.x + +at.part.getAttribute("width")));
  let left = found[0][0].x;
  for (const page of sorted) {
    for (const at of page) at.part.setAttribute("x", left + at.x - page[0].x);
    left += end(page) - page[0].x;
  }
});
}
</script>
"""


@click.command("map", epilog=EPILOG)
@deployment_options
@click.option(
    "-o",
    "--output",
    required=True,
    type=FILE,
    help=f"The picture: {HELP}.",
)
def command(output: Path, **values: Any) -> int:
    """Draw what a block of MODEL's cache holds, group by group, with padding hatched.

    Where the memory is known (--memory, --gpu or --request), a second picture shows where layers
    lie in the buffer.
    """
    check_picture(output)
    question = read_question(values, needs_memory=False)
    knows_memory = question.has_memory
    if not knows_memory:
        question = question.with_memory((PLENTY,))
    given = question.planner_input()
    plan = None if knows_memory else plan_with_plenty(question)
    if plan is None:
        plan = given.plan_or_refuse()
    if not plan.groups:
        raise BadInput(f"{given.label} has no layer with a KV cache, so there is nothing to draw")
    picture = _svg(given.label, plan, with_buffer=knows_memory)
    write_svg(output, f"{given.label}: what a block holds", picture, SCRIPT)
    click.echo(f"wrote {output}", err=True)
    return FITS


def _svg(label: str, plan: kvplan.Plan, *, with_buffer: bool) -> str:
    block = block_map(plan)
    padding = sum(group.padding_bytes * group.pages_per_request for group in plan.groups)
    held = held_bytes(plan)
    part = padding / held if held else 0
    cut = ", which cuts it into slices" if is_sliced(plan) else ""
    subtitle = (
        f"A block of {format_size(block.bytes_per_block)} belongs to one group at a time{cut}. "
        f"Layout {block.layout}. Of a request of {plan.max_model_len:,} tokens, {part:.1%} is "
        "padding."
    )
    buffer = buffer_map(plan) if with_buffer else None
    return draw_svg(f"{label}: what a block holds", subtitle, block, buffer)
