"""``kvplan map``: the picture holds every layer once, true to scale."""

import html
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from built_in_kinds import KINDS
from cli_runner import run

import kvplan
from kvplan import request, specs
from kvplan.bench import scenarios
from kvplan.offline import models
from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.offline.cli.map_data import BlockMap, GroupMap, Page, block_map, buffer_map
from kvplan.offline.cli.map_svg import BAR_LEFT, BAR_WIDTH, draw_svg, fills

SVG = "{http://www.w3.org/2000/svg}"


def plan_of(name, **config):
    found = models.kv_cache_specs(name)
    return kvplan.plan(found.planning_config(**config), found.kv_cache_specs, [1 << 50])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("grouping", ["vllm", "compact"])
def test_bytes_add_up(name, grouping):
    plan = plan_of(name, grouping=grouping)
    block = block_map(plan)
    assert len(block.groups) == len(plan.groups)
    for group, report in zip(block.groups, plan.groups, strict=True):
        assert sorted(page.layer for page in group.pages) == sorted(report.layer_names)
        padding = sum(page.padding_bytes for page in group.pages) + group.unused_bytes
        assert padding == report.padding_bytes
        assert sum(page.content_bytes for page in group.pages) == report.content_bytes


def pages_of(picture):
    """(hint, x, width) of each page and each padding."""
    root = ET.fromstring(picture)
    return [
        (rect.findtext(f"{SVG}title"), float(rect.get("x")), float(rect.get("width")))
        for rect in root.iter(f"{SVG}rect")
        if "page" in rect.get("class", "").split()
    ]


def test_every_layer_is_drawn_to_scale():
    plan = plan_of("gemma-3-27b")
    drawn = pages_of(draw_svg("Gemma", "", block_map(plan)))
    layers = [hint.split(":")[0] for hint, _, _ in drawn if not hint.startswith("padding")]
    assert sorted(layers) == sorted(n for group in plan.groups for n in group.layer_names)
    assert sum(width for _, _, width in drawn) == pytest.approx(len(plan.groups) * BAR_WIDTH, 1e-3)
    for _, x, width in drawn:
        assert x >= BAR_LEFT
        assert x + width <= BAR_LEFT + BAR_WIDTH + 0.02


def one_odd_layer(tmp_path):
    """30 Mamba, 10 full and 5 sliding layers and an odd one: vLLM makes 46 groups."""
    attention = {"block_size": 528, "num_kv_heads": 2, "head_size": 256, "dtype": "bfloat16"}
    state = specs.MambaSpec(
        block_size=528, shapes=((540672,),), dtypes=("bfloat16",), mamba_type="gdn_attention"
    )
    kinds = [
        *(("linear", state) for _ in range(30)),
        *(("full", specs.FullAttentionSpec(**attention)) for _ in range(10)),
        *(("slide", specs.SlidingWindowSpec(**attention, sliding_window=4096)) for _ in range(5)),
        ("odd", specs.FullAttentionSpec(**{**attention, "num_kv_heads": 4, "head_size": 128})),
    ]
    layers = {f"model.layers.{i}.{name}": spec for i, (name, spec) in enumerate(kinds)}
    config = kvplan.PlanningConfig(max_model_len=262144, block_size=528)
    path = tmp_path / "odd.json"
    request.write(request.from_objects(config, [layers], [60 << 30]), path)
    return path


def test_as_many_bars_as_groups(tmp_path):
    path = tmp_path / "map.svg"
    result = run("map", "--request", one_odd_layer(tmp_path), "-o", path)
    assert result.exit_code == FITS, result.stderr
    root = ET.parse(path).getroot()
    frames = [r for r in root.iter(f"{SVG}rect") if r.get("class") == "frame"]
    # Of what a block holds, and of where layers lie, which has the first pages above it.
    assert len(frames) == 2 * 46 + 1
    bottom = max(float(r.get("y")) + float(r.get("height")) for r in frames)
    assert bottom < float(root.get("height"))


@pytest.mark.parametrize("grouping", ["vllm", "compact", "sliced"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("deepseek-v4-flash", None),
        ("deepseek-v4.1-flash", None),
        ("qwen3-next-80b", None),
        *(("gemma-3-27b", layout) for layout in ("LBNHC", "LHBNC", "BLNHC", "BHLNC")),
    ],
)
def test_buffer_parts_lie_where_the_tensors_say(name, grouping, layout):
    changes = {} if layout is None else {"kv_cache_layout": layout}
    found = models.kv_cache_specs(name)
    if grouping == "sliced" and layout is None:
        changes = {"kv_cache_layout": "BLHNC"}
    config = found.planning_config(grouping=grouping, **changes)
    if grouping == "sliced" and not config.kv_cache_layout.startswith("B"):
        with pytest.raises(kvplan.LayoutError):
            kvplan.plan(config, found.kv_cache_specs, [60 << 30])
        return
    plan = kvplan.plan(config, found.kv_cache_specs, [60 << 30])
    worker = plan.kv_cache_configs[0]
    strides = {n: (t, i) for t in worker.kv_cache_tensors for i, n in enumerate(t.layers)}
    buffer = buffer_map(plan)
    assert len(buffer.rows) == len(plan.groups)
    for row, group in zip(buffer.rows, worker.kv_cache_groups, strict=True):
        end = 0
        for part in row:
            assert part.start >= end, part
            end = part.start + part.content_bytes + part.padding_bytes
            assert end <= buffer.size_bytes
            if part.layer in strides:
                tensor, index = strides[part.layer]
                first = tensor.offset + index * tensor.layer_stride
                assert (part.start - first) % tensor.block_stride == 0
        drawn = {part.layer for part in row}
        if buffer.layout != "BHLNC":
            assert drawn == set(group.layer_names)
        if buffer.is_layer_major:
            assert len(row) == len(group.layer_names)
    picture = draw_svg("x", "", block_map(plan), buffer)
    assert ET.fromstring(picture) is not None


def test_the_second_picture_needs_the_memory(tmp_path):
    path = tmp_path / "map.svg"
    run("map", "gemma-3-27b", "-o", path)
    assert "Where layers lie" not in path.read_text()
    assert run("map", "gemma-3-27b", "--memory", "30GiB", "-o", path).exit_code == FITS
    root = ET.parse(path).getroot()
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert "Where layers lie in the buffer" in words
    assert "0: null" in words
    assert any("blocks 0 to 24,575" in word for word in words)
    bottom = max(float(r.get("y", 0)) + float(r.get("height")) for r in root.iter(f"{SVG}rect"))
    assert bottom <= float(root.get("height"))


def test_numbers_of_layers_that_do_not_fit():
    words = [t.text for t in ET.fromstring(draw_svg("x", "", block_map(plan_of("llama-3.1-70b"))))
             .iter(f"{SVG}text")]  # fmt: skip
    assert "75" in words
    assert "76" not in words


def test_png(tmp_path):
    pytest.importorskip("cairosvg", exc_type=(ImportError, OSError))
    path = tmp_path / "map.png"
    assert run("map", "gemma-3-27b", "-o", path).exit_code == FITS
    assert path.read_bytes().startswith(b"\x89PNG")


def test_png_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    result = run("map", "gemma-3-27b", "-o", tmp_path / "map.png")
    assert result.exit_code == BAD_INPUT
    assert "pip install cairosvg" in result.stderr


@pytest.mark.parametrize("grouping", ["vllm", "sliced"])
def test_a_block_is_in_the_order_of_the_buffer(grouping):
    found = models.kv_cache_specs("deepseek-v4.1-flash")
    config = found.planning_config(grouping=grouping, kv_cache_layout="BLHNC")
    plan = kvplan.plan(config, found.kv_cache_specs, [60 << 30])
    for group, row in zip(block_map(plan).groups, buffer_map(plan).rows, strict=True):
        in_buffer = list(dict.fromkeys(part.layer for part in row))
        assert [page.layer for page in group.pages] == in_buffer


def test_hundreds_of_caches_are_few_bytes(tmp_path):
    path = tmp_path / "map.html"
    config, (layers,), memory = scenarios.SCENARIOS["7-kinds-auto-fit"]().inputs(1)
    recorded = tmp_path / "wide.json"
    request.write(request.from_objects(config, [layers], memory), recorded)
    assert len(layers) >= 200
    for grouping in ("vllm", "sliced"):
        options = ("--grouping", grouping, "--max-model-len", "8K")
        options += ("--layout", "BLHNC") if grouping == "sliced" else ()
        result = run("map", "--request", recorded, *options, "-o", path)
        assert result.exit_code == FITS, result.stderr
        assert path.stat().st_size < 1_000_000


def test_thin_pages_are_drawn_together_and_none_is_hidden():
    """Pages of 48 layers with padding, each thinner than a stroke: their areas are their bytes."""
    pages = [Page(f"l.{i}", str(i), "full attention", 100 * i, 60, 40) for i in range(1000)]
    group = GroupMap(0, "full attention", 16, pages, 1, 100_000, 0, 1)
    picture = draw_svg("x", "", BlockMap(100_000, "LBNHC", [group]))
    rects = [r for r in ET.fromstring(picture).iter(f"{SVG}rect") if r.get("class") == "page"]
    areas = [float(r.get("width")) * float(r.get("height")) for r in rects]
    assert len(areas) == 2
    assert areas[0] / sum(areas) == pytest.approx(0.6, abs=1e-3)
    first, second = rects
    below = float(first.get("y")) + float(first.get("height"))
    assert float(second.get("y")) == pytest.approx(below, abs=0.05)
    assert "l.0 to l.999, 1000 pages" in first.findtext(f"{SVG}title")


def test_a_kind_has_its_colour_in_every_model():
    assert fills(["full attention"])["full attention"] == ("#0072B2", 0.6)
    several = fills(["sliding window of 128", "MLA", "sliding window of 1,024", "full attention"])
    assert several["full attention"] == ("#0072B2", 0.6)
    windows = several["sliding window of 128"], several["sliding window of 1,024"]
    assert windows[0][0] == windows[1][0]
    assert windows[0][1] > windows[1][1]


def test_html_needs_nothing_else(tmp_path):
    path = tmp_path / "map.html"
    assert run("map", "gemma-3-27b", "-o", path).exit_code == FITS
    text = path.read_text()
    assert "<svg" in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")
    for word in ("src=", "href=", "@import", "fetch("):
        assert word not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_browser_shows_the_html(tmp_path):
    path = tmp_path / "map.html"
    run("map", "gemma-3-27b", "--memory", "60GiB", "-o", path)
    # A script of the test's own uses the page and says what the browser laid out.
    use = """<script>{
    const wide = [...document.querySelectorAll("rect.page")].filter(r =>
      r.getBoundingClientRect().width > 10 && r.getBoundingClientRect().height > 5);
    const page = wide.find(r => r.dataset.layer === "5");
    page.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
    const said = document.getElementById("what").value;
    const group = document.getElementById("group");
    group.value = "6"; group.onchange();
    const all = (selector, from = document) => [...from.querySelectorAll(selector)];
    const shown = new Set(all(".row:not(.away)").map(r => r.dataset.group));
    const xs = () => all(".row").slice(0, 7).map(row =>
      all("rect[data-layer]", row).map(r => [+r.dataset.layer, +r.getAttribute("x")]));
    const before = JSON.stringify(xs());
    const order = document.getElementById("order");
    order.value = "layer"; order.onchange();
    const sorted = xs().every(row => {
      const x = [...row].sort((a, b) => a[0] - b[0]).map(p => p[1]);
      return x.every((v, i) => i === 0 || x[i - 1] < v);
    });
    order.value = "byte"; order.onchange();
    document.title = JSON.stringify({pages: wide.length, said, shown: [...shown], sorted,
      back: JSON.stringify(xs()) === before, options: group.options.length});
    }</script></body>"""
    path.write_text(path.read_text().replace("</body>", use))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    shown = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    title = re.search("<title>(.*?)</title>", shown.stdout)
    assert title is not None
    found = json.loads(html.unescape(title[1]))
    # 62 layers, and padding in six of the seven groups.
    assert found["pages"] == 68
    assert "full attention" in found["said"]
    assert found["shown"] == ["6"]
    assert found["sorted"]
    assert found["back"]
    assert found["options"] == 8


def test_names_are_escaped():
    plan = plan_of("llama-3.1-70b")
    assert ET.fromstring(draw_svg("<a&b>", "x < y", block_map(plan))) is not None


def test_bad_input(tmp_path):
    result = run("map", "gemma-3-27b", "-o", tmp_path / "map.bmp")
    assert result.exit_code == BAD_INPUT
    assert ".svg" in result.stderr
    assert run("map", "gemma-3-27b").exit_code == BAD_INPUT
    small = run("map", "gemma-3-27b", "--memory", "1GiB", "-o", tmp_path / "map.svg")
    assert small.exit_code == DOES_NOT_FIT
    absent = run("map", "gemma-3-27b", "-o", tmp_path / "no" / "map.svg")
    assert absent.exit_code == BAD_INPUT
