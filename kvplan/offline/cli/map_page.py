"""What ``kvplan map`` adds to its picture on a page: hints, a filter by group, two orders."""

from __future__ import annotations

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
