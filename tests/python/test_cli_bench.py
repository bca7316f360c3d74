"""``kvplan bench``: what is measured, how it is shown, compared and drawn. Never how fast."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli_runner import answer_to, run

import kvplan
from kvplan.bench import WORKS, measure, report, scenarios
from kvplan.bench.cpp import MANAGER_NAMES, POOL_NAMES, benchmark_of
from kvplan.bench.pool import CASES, SIZES
from kvplan.bench.scale import measure as measure_scale
from kvplan.offline.cli.bench import bench_figure
from kvplan.offline.cli.failures import BAD_INPUT, FITS
from kvplan.request import loads

BENCHMARKS = Path(__file__).parents[2] / "benchmarks/cpp"
QUICK = ("--no-vllm", "--budget", "0.01", "--quiet")
ONE = ("gemma-3-27b", "--workers", "1,3", "--work", "planning,placement", *QUICK)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The JSON file of one small run."""
    result = run("bench", *ONE, "--json")
    assert result.exit_code == FITS, result.stderr
    path = tmp_path_factory.mktemp("bench") / "old.json"
    path.write_text(result.stdout)
    return path


def test_json_has_every_row_and_the_machine(recorded):
    found = json.loads(recorded.read_text())
    assert found["kvplan_bench"] == 1
    assert found["machine"]["kvplan"] == kvplan.__version__
    assert {"processor", "cores", "python", "command"} <= set(found["machine"])
    assert found["notes"] == ["vLLM was left out as asked for"]
    rows = [(row["work"], row["name"], row["workers"]) for row in found["rows"]]
    assert rows == [
        ("planning", "gemma-3-27b", 1),
        ("planning", "gemma-3-27b", 3),
        ("placement", "gemma-3-27b", 1),
    ]
    assert set(found["rows"][0]["seconds"]) == {"native", "native_configs"}
    assert all(0 < s < 10 for row in found["rows"] for s in row["seconds"].values())


def test_a_file_reads_back_as_it_was_written(recorded):
    assert report.load(recorded).dumps() == recorded.read_text()


def test_the_table_names_every_row(recorded):
    result = run("bench", "--from", recorded)
    assert result.exit_code == FITS
    assert "Planning an engine" in result.stdout
    assert "Placing the tensors" in result.stdout
    assert result.stdout.count("gemma-3-27b") == 3
    assert "vLLM was left out" in result.stdout


def faster(recorded, tmp_path, factor):
    """The same run with every figure divided."""
    described = json.loads(recorded.read_text())
    for row in described["rows"]:
        row["seconds"] = {side: s / factor for side, s in row["seconds"].items()}
    path = tmp_path / "new.json"
    path.write_text(json.dumps(described))
    return path


def test_compare_shows_how_much_faster(recorded, tmp_path):
    result = run("bench", "--from", faster(recorded, tmp_path, 2), "--compare", recorded)
    assert result.exit_code == FITS
    rows = [line for line in result.stdout.splitlines() if "2.00x" in line]
    assert len(rows) == 3
    assert "planning gemma-3-27b, 3 workers" in result.stdout


def test_compare_says_what_is_new_and_what_changed(recorded, tmp_path):
    described = json.loads(recorded.read_text())
    del described["rows"][0]
    described["machine"]["python"] = "3.1"
    old = tmp_path / "old.json"
    old.write_text(json.dumps(described))
    result = run("bench", "--from", recorded, "--compare", old)
    assert "1 row without a counterpart in the earlier run" in result.stdout
    assert "python: before 3.1, now" in result.stdout


def test_a_run_has_its_counterpart_in_itself(tmp_path):
    rows = [
        report.Row(work="memory", name="pool", per="block", seconds={}, peak_bytes={"native": 64}),
        report.Row(work="gcd", name="10^3", per="plan", seconds={"native": 1e-6}),
    ]
    path = tmp_path / "run.json"
    path.write_text(report.Report(machine={}, notes=[], rows=rows).dumps())
    result = run("bench", "--from", path, "--compare", path)
    assert result.exit_code == FITS, result.stderr
    assert result.stdout.count("1.00x") == 2
    assert "counterpart" not in result.stdout


def test_json_and_compare_together(recorded):
    result = run("bench", "--from", recorded, "--compare", recorded, "--json")
    assert json.loads(result.stdout) == json.loads(recorded.read_text())
    assert "1.00x" in result.stderr


def test_plot(recorded, tmp_path):
    path = tmp_path / "bench.svg"
    result = run("bench", "--from", recorded, "--plot", path)
    assert result.exit_code == FITS, result.stderr
    root = ElementTree.parse(path).getroot()
    words = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"workers", "native, gemma-3-27b"} <= set(words)
    (line,) = bench_figure(report.load(recorded)).axes[0].lines
    rows = json.loads(recorded.read_text())["rows"]
    assert list(line.get_xdata()) == [1, 3]
    assert list(line.get_ydata()) == [row["seconds"]["native"] for row in rows[:2]]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("gemma-3-72b",), "Did you mean"),
        (("--work", "planing"), "planning"),
        (("--workers", "0"), "1"),
        (("--workers", "20000"), "16,384"),
        (("--quick", "--full"), "exclude"),
        (("--compare", "none.json"), "none.json"),
        (("--cpp", "."), "block_pool_benchmark"),
        (("--budget", "0"), "--budget"),
    ],
)
def test_what_cannot_be_measured_is_refused(args, part):
    result = run("bench", *args, "--quiet")
    assert result.exit_code == BAD_INPUT
    assert part in result.stderr


@pytest.fixture
def measuring_fails(monkeypatch):
    def measured(*_):
        pytest.fail("measured, although an option is wrong")

    monkeypatch.setattr("kvplan.bench.run", measured)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--compare", "{folder}/wrong.json"), "wrong.json is no result"),
        (("--plot", "{folder}/bench.pdf"), ".svg, .html, .png"),
        (("--plot", "{folder}/nowhere/bench.svg"), "there is no folder"),
        (("--plot", "{folder}/bench.svg", "--work", "gcd"), "there are none"),
    ],
)
@pytest.mark.usefixtures("measuring_fails")
def test_wrong_files_are_refused_before_anything_is_measured(tmp_path, args, part):
    (tmp_path / "wrong.json").write_text("{}")
    result = run("bench", *(arg.format(folder=tmp_path) for arg in args), "--quiet")
    assert result.exit_code == BAD_INPUT
    assert part in result.stderr


def test_other_files_are_refused(recorded, tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    result = run("bench", "--from", wrong)
    assert result.exit_code == BAD_INPUT
    assert "wrong.json is no result" in result.stderr
    result = run("bench", "--from", recorded, "--plot", tmp_path / "bench.pdf")
    assert ".svg, .html, .png" in result.stderr


def test_every_kind_of_work_that_needs_no_vllm():
    works = ",".join(set(WORKS) - {"scale", "memory", "planning", "placement"})
    names = {row["name"] for row in answer_to("bench", "--work", works, *QUICK)["rows"]}
    assert names >= {f"construct and use {n:,}" for n in SIZES} | set(CASES)
    assert names >= set(POOL_NAMES) | set(MANAGER_NAMES), "rows that the C++ side is added to"


def test_the_cpp_benchmarks_that_are_asked_for_exist():
    sources = {
        name: (BENCHMARKS / f"{name}.cpp").read_text()
        for name in ("block_pool_benchmark", "cache_manager_benchmark", "plan_benchmark")
    }
    rows = [("allocation", name, None, None) for name in POOL_NAMES]
    rows += [("manager", name, None, None) for name in MANAGER_NAMES]
    rows += [("gcd", "10^3", None, None), ("scale", "100 layers", 100, 8)]
    for work, name, layers, workers in rows:
        row = report.Row(work=work, name=name, layers=layers, workers=workers, per="", seconds={})
        executable, benchmark = benchmark_of(row)
        assert benchmark.split("/")[0] in sources[executable], row


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_every_scenario_plans_alike_from_objects_and_from_a_request(name):
    scenario = scenarios.SCENARIOS[name]()
    config, workers, memory = scenario.inputs(20)
    plan = kvplan.plan(config, workers, memory)
    assert len(plan.workers) == 20
    stages = dict.fromkeys(tuple(layers) for layers in workers)
    assert len(stages) == scenario.stages
    assert [layer for stage in stages for layer in stage] == list(scenario.layers)
    r = loads(json.dumps(scenario.request(20)))
    again = kvplan.plan(r.planning_config(), r.kv_cache_specs(), r.available_memory())
    assert again.num_blocks == plan.num_blocks
    assert again.max_model_len == plan.max_model_len


def test_scale_measures_time_and_memory():
    found = measure_scale(2000, 16)
    assert found["seconds"].keys() == found["peak_bytes"].keys() == {"native", "native_own_dicts"}
    assert all(s > 0 for s in found["seconds"].values())


def test_sides_are_measured_in_turn():
    order = []
    times = measure.take_turns({s: (lambda s=s: order.append(s)) for s in "ab"}, 0.0)
    assert times.keys() == {"a", "b"}
    assert order[:4] == ["a", "a", "b", "b"]
    counts = [order.count(s) for s in "ab"]
    assert min(counts) >= measure.FEWEST_SAMPLES


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (2.5, "2.5 s"), (0.00123, "1.23 ms"), (4.5e-5, "45 us"), (6.1e-9, "6.1 ns")],
)
def test_times_have_units(seconds, shown):
    assert measure.show_seconds(seconds) == shown


def test_ratios():
    assert measure.show_ratio(3.0, 2.0) == "1.5x"
    assert measure.show_ratio(3000.0, 1.0) == "3,000x"
    assert measure.show_ratio(None, 1.0) == measure.show_ratio(1.0, None) == "-"
