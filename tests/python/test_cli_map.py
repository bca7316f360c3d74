"""``kvplan map``: the picture holds every layer once, true to scale."""

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from built_in_kinds import KINDS
from cli_runner import run

import kvplan
from kvplan import request, specs
from kvplan.offline import models
from kvplan.offline.cli.block_map import block_map
from kvplan.offline.cli.buffer_map import buffer_map
from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.offline.cli.map_svg import BAR_LEFT, BAR_WIDTH, draw_svg

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
        assert [page.layer for page in group.pages] == list(report.layer_names)
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
    assert "pip install 'kvplan[png]'" in result.stderr


def test_html_needs_nothing_else(tmp_path):
    path = tmp_path / "map.html"
    assert run("map", "gemma-3-27b", "-o", path).exit_code == FITS
    text = path.read_text()
    assert "<svg" in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")
    for word in ("src=", "href=", "<script", "@import"):
        assert word not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_browser_shows_the_html(tmp_path):
    path = tmp_path / "map.html"
    run("map", "gemma-3-27b", "--memory", "60GiB", "-o", path)
    # A script of the test's own says what the browser laid out.
    measure = (
        "<script>document.title = [...document.querySelectorAll('rect.page')].filter("
        "r => r.getBoundingClientRect().width > 10 && r.getBoundingClientRect().height > 10)"
        ".length</script></body>"
    )
    path.write_text(path.read_text().replace("</body>", measure))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    shown = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    # 62 layers, and padding in six of the seven groups.
    assert "<title>68</title>" in shown.stdout


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
