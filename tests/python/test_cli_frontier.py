"""``kvplan frontier``: the curve as a table, as JSON and as a drawing."""

from xml.etree import ElementTree

import pytest
from cli_runner import answer_to, run

import kvplan
from kvplan.frontier import step_seconds
from kvplan.offline.cli.failures import BAD_INPUT, FITS
from kvplan.offline.cli.knobs import PLENTY
from kvplan.offline.cli.pictures import frontier_figure
from kvplan.offline.cli.question import ModelQuestion
from kvplan.offline.models import ModelOptions, load


def curve(*args):
    return answer_to("frontier", *args)


def test_the_curve_of_a_model():
    found = curve("gemma-3-27b")
    points = [(p["num_groups"], p["max_layers_per_group"]) for p in found["points"]]
    assert (7, 10) in points
    assert (13, 5) in points
    assert found["vllm"]["num_groups"] == 7
    assert found["chosen"]["num_groups"] == 13
    assert found["exact"]
    assert "capacity_tokens" not in found["points"][0]


def test_max_groups_moves_the_choice():
    assert curve("gemma-3-27b", "--max-groups", "32")["chosen"]["num_groups"] == 31
    assert curve("gemma-3-27b", "--max-groups", "12")["chosen"]["num_groups"] == 7


def test_memory_adds_the_tokens_of_the_plan():
    args = ("gemma-3-27b", "--memory", "40GiB")
    plan = answer_to("plan", *args)
    points = {p["num_groups"]: p for p in curve(*args)["points"]}
    assert points[7]["capacity_tokens"] == plan["capacity_tokens"]


def test_a_step_costs_less_with_kvplans_manager():
    for point in curve("gemma-3-27b")["points"]:
        groups = point["num_groups"]
        ours, vllms = (
            point[f"estimated_step_seconds{which}"] for which in ("", "_with_vllms_manager")
        )
        assert ours == step_seconds(groups) < vllms == step_seconds(groups, manager="vllm")
    # Scheduling with vLLM's is linear in the requests.
    few, more = (step_seconds(5, manager="vllm", num_requests=n) for n in (16, 256))
    assert more > 5 * few
    with pytest.raises(ValueError, match="manager is 'other'"):
        step_seconds(1, manager="other")


def test_the_table_marks_both_points():
    lines = run("frontier", "gemma-3-27b").stdout.splitlines()
    (vllm,) = [line for line in lines if line.rstrip().endswith(" vLLM")]
    (chosen,) = [line for line in lines if line.rstrip().endswith(" compact")]
    assert vllm.split()[:2] == ["7", "10"]
    assert chosen.split()[:2] == ["13", "5"]


def test_the_picture_has_every_point_where_it_lies():
    given = ModelQuestion(load("deepseek-v4-flash"), ModelOptions(), (PLENTY,)).planner_input()
    found = kvplan.frontier(given.config.replace(grouping="compact"), given.kv_cache_specs)
    axes = frontier_figure("x", found).axes[0]
    points = {(x, y) for line in axes.lines for x, y in zip(*line.get_data(), strict=True)}
    assert points >= {(p.num_groups, p.request_bytes) for p in found.points}
    assert (found.vllm.num_groups, found.vllm.request_bytes) in points
    low, high = axes.get_ylim()
    assert low <= found.lower_bound_bytes <= max(p.request_bytes for p in found.points) <= high


def test_svg(tmp_path):
    path = tmp_path / "curve.svg"
    result = run("frontier", "gemma-3-27b", "--plot", path)
    assert result.exit_code == FITS, result.stderr
    root = ElementTree.parse(path).getroot()
    words = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"vLLM: 7 groups, 17.98 GiB", "no padding: 16.91 GiB"} <= set(words)


@pytest.mark.parametrize("name", ["curve.pdf", "curve"])
def test_other_drawings_are_refused(tmp_path, name):
    result = run("frontier", "gemma-3-27b", "--plot", tmp_path / name)
    assert result.exit_code == BAD_INPUT
    assert ".svg, .html, .png" in result.stderr
