"""``kvplan map``: the picture holds every layer once, true to scale."""

import xml.etree.ElementTree as ET

import pytest
from cli_runner import run

import kvplan
from kvplan import models, request, specs
from kvplan.cli.block_map import block_map
from kvplan.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS
from kvplan.cli.map_svg import BAR_LEFT, BAR_WIDTH, draw_svg

SVG = "{http://www.w3.org/2000/svg}"


def plan_of(name, **config):
    found = models.kv_cache_specs(name)
    return kvplan.plan(found.planning_config(**config), found.kv_cache_specs, [1 << 50])


@pytest.mark.parametrize("name", models.builtin_models())
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
        if rect.get("class") == "page"
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
    assert len(frames) == 46
    bottom = max(float(r.get("y")) + float(r.get("height")) for r in frames)
    assert bottom < float(root.get("height"))


def test_html_needs_nothing_else(tmp_path):
    path = tmp_path / "map.html"
    assert run("map", "gemma-3-27b", "-o", path).exit_code == FITS
    text = path.read_text()
    assert "<svg" in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")
    for word in ("src=", "href=", "<script", "@import"):
        assert word not in text


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
