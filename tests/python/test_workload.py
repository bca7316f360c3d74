"""The plan that is chosen for a load."""

import importlib.util
import json
from pathlib import Path

import pytest
from cli_runner import answer_to, run

from kvplan.offline import models
from kvplan.offline.cli.question import ModelQuestion
from kvplan.offline.cli.workload import EQUAL, PlanSearch, Throughput
from kvplan.offline.replay.generate import generate
from kvplan.offline.replay.limits import MOST_RATE, Limits, highest_rate
from kvplan.offline.replay.run import Policy
from kvplan.offline.replay.run import run as run_replay
from kvplan.offline.replay.step_time import StepTime

#: A plan may be this much worse than the best of all that can be made.
REGRET = 0.03


def search(name, load, gibibytes, requests=50):
    options = models.ModelOptions(max_model_len=32768)
    question = ModelQuestion(models.load(name), options, memory=(int(gibibytes * 2**30),))
    # A step's base is small, so that what the cache does decides.
    policy = Policy(step_time=StepTime(base=1e-3))
    trace = generate(load, requests=requests, rate=5.0)
    return PlanSearch(question, Throughput(trace, policy), trace.typical_tokens)


@pytest.mark.parametrize(
    ("name", "load", "gibibytes"),
    [
        ("gemma-3-4b", "agents", 3),
        ("gpt-oss-20b", "mixed", 2),
        ("qwen3.6-27b", "chat", 5),
    ],
)
def test_the_choice_is_near_the_best_and_never_below_vllms(name, load, gibibytes):
    found = search(name, load, gibibytes)
    chosen = found.best()
    assert chosen.score >= found.vllms.score
    assert chosen in found.tried
    best = found.best(exhaustive=True)
    most = max(candidate.score for candidate in found.tried)
    assert best.score >= most * (1 - 2 * EQUAL)
    assert chosen.score >= (1 - REGRET) * best.score


def test_hits_inside_blocks_are_found_where_they_pay():
    found = search("qwen3.6-27b", "chat", 20, requests=200)
    chosen = found.best()
    assert "--prefix-match-unit" in chosen.options
    assert chosen.report.hit_rate > found.vllms.report.hit_rate
    assert chosen.score > found.vllms.score


def test_the_command_takes_the_plan_chosen():
    args = ("plan", "qwen3.6-27b", "--memory", "20GiB", "--max-model-len", "32K")
    args = (*args, "--workload", "chat:requests=60", "--step-time", "base=1ms")
    answer = answer_to(*args)
    workload = answer["workload"]
    assert workload["chosen"]["goodput"] >= workload["vllm"]["goodput"]
    assert answer["hit_tokens"] == workload["chosen"]["hit_tokens"]
    assert set(workload["other_loads"]) == {"agents", "documents", "mixed"}


def test_the_highest_rate_is_found_to_a_percent():
    for limit in (0.013, 1.0, 7.3, 900.0):
        found = highest_rate(lambda rate, limit=limit: rate <= limit, 1.0)
        assert limit / 1.02 < found <= limit
    assert highest_rate(lambda _: False, 1.0) == 0.0
    assert highest_rate(lambda _: True, 3.0) == MOST_RATE


def test_limits_that_no_rate_breaks_choose_no_plan():
    args = ("plan", "gemma-3-4b", "--memory", "4GiB", "--max-model-len", "32K")
    args = (*args, "--workload", "chat:requests=5", "--max-token-time", "10")
    shown = run(*args).stdout
    assert "vLLM's own plan: nothing is better" in shown
    assert "No rate up to 16,384 breaks these limits" in shown


def test_a_replay_that_is_late_ends():
    load = generate("chat", requests=300, rate=200.0)
    options = models.ModelOptions(max_model_len=32768)
    question = ModelQuestion(models.load("gemma-3-4b"), options, memory=(2**32,))
    plan = question.planner_input().plan()
    whole = run_replay(plan, load, Policy(max_num_seqs=2))
    limits = Limits(first_token=5.0)
    assert not limits.kept(whole)
    ended = run_replay(
        plan, load, Policy(max_num_seqs=2), late_after=5.0, most_late=limits.most_late(300)
    )
    assert not limits.kept(ended)
    assert 0 < ended.count("finished") < whole.count("finished") == 300
    first = whole.first_token_seconds
    assert limits.in_time(whole) <= (first <= 5.0).mean() < 0.9


def test_the_plan_that_serves_most_requests_in_time():
    args = ("plan", "gemma-3-27b", "--gpu", "H100", "--tp", "2", "--max-model-len", "128K")
    args = (*args, "--workload", "documents:requests=150", "--max-first-token", "2")
    found = json.loads(run(*args, "--json").stdout)["workload"]
    assert found["limits"]["first_token"] == 2.0
    assert found["chosen"]["score"] > found["vllm"]["score"] > 0
    assert "retention" in found["chosen"]["options"]
    shown = run(*args).stdout
    assert "90% of the requests within 2 s to the first token" in " ".join(shown.split())
    assert f"{found['chosen']['score']:.3g}" in shown


def test_a_grouping_that_is_asked_for_is_one_of_those_tried():
    args = ("--memory", "14GiB", "--max-model-len", "32K", "--workload", "chat:requests=30")
    for model, name in (("qwen3-8b", "sliced"), ("gemma-3-27b", "compact")):
        answer = json.loads(run("plan", model, *args, "--grouping", name, "--json").stdout)
        own = json.loads(run("plan", model, *args, "--json").stdout)
        assert answer["workload"]["vllm"]["options"] == ""
        assert answer["workload"]["vllm"] == own["workload"]["vllm"]
        chosen = answer["workload"]["chosen"]["options"]
        assert answer["config"].get("grouping", "vllm") == (
            "vllm" if "--grouping" not in chosen else name
        )


def test_the_page_shows_what_was_measured():
    root = Path(__file__).resolve().parents[2]
    path = root / "scripts" / "make_replay_page.py"
    spec = importlib.util.spec_from_file_location("make_replay_page", path)
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = (root / "docs" / "replay.md").read_text()
    assert page.updated(text) == text, "run scripts/make_replay_page.py"
    rows = [json.loads(line) for line in page.RESULTS.read_text().splitlines()]
    assert len(rows) == len({(row["model"], row["load"]) for row in rows}) == 40
    assert all(row["chosen"] >= row["vllm"] for row in rows)


def test_a_load_that_is_none():
    result = run("plan", "qwen3-8b", "--memory", "10GiB", "--workload", "nothing.jsonl")
    assert result.exit_code == 2
    assert "is no file, and no load" in result.stderr


LOAD = ("--workload", "agents:requests=150", "--limit", "120", "--rate", "3")
GEMMA = ("gemma-3-27b", "--memory", "14GiB", "--max-model-len", "32K")


def test_each_point_of_the_frontier_is_replayed_as_its_plan_is():
    curve = answer_to("frontier", *GEMMA, *LOAD)
    trace = ("replay", "agents:requests=150", *LOAD[2:], *GEMMA)
    for point in (*curve["points"], curve["vllm"], curve["sliced"]):
        asked = ("--grouping", "compact", "--max-groups", str(point["num_groups"]))
        if point is curve["sliced"]:
            asked = ("--grouping", "sliced")
        command = (*trace, *(() if point.get("is_vllm") else asked))
        if point["replay"] is None:  # one request of 32K tokens is too much
            assert run(*command).exit_code == 1
            continue
        replay = answer_to(*command)
        assert replay["requests"] == 120
        for name in ("hit_rate", "preemptions", "goodput", "first_token_seconds"):
            assert point["replay"][name] == replay[name], (point["num_groups"], name)
    rates = {point["replay"]["hit_rate"] for point in curve["points"] if point["replay"]}
    assert len(rates) > 2
    assert curve["sliced"]["replay"]["hit_rate"] > 0.5
    shown = run("frontier", *GEMMA, *LOAD).stdout
    assert f"{curve['vllm']['replay']['hit_rate']:.1%}" in shown


def test_what_fit_finds_is_replayed():
    small = (GEMMA[0], "--memory", "8GiB")
    found = answer_to("fit", *small, *LOAD)
    assert found["found"] < found["max_model_len"]
    length = ("--max-model-len", str(found["found"]))
    replay = answer_to("replay", "agents:requests=150", *LOAD[2:], *small, *length)
    for name in ("hit_rate", "preemptions", "finished", "goodput", "first_token_seconds"):
        assert found["replay"][name] == replay[name]
    shown = run("fit", *small, *LOAD).stdout
    assert f"{replay['hit_rate']:.1%} hits" in " ".join(shown.split())


FIT = ("fit", "qwen3-8b", "--gpu", "L40S", "--max-model-len", "16K", "--find", "gpus")
CHATS = ("--workload", "chat:requests=400,rate=40")


def replay_of(split, load="chat:requests=400,rate=40"):
    gpu = ("qwen3-8b", "--gpu", "L40S", "--max-model-len", "16K")
    return answer_to("replay", load, *gpu, *split.split())


def test_the_fewest_gpus_whose_replay_keeps_the_first_token():
    alone = answer_to(*FIT, *CHATS)
    assert alone["options"] == "--tp 1"
    slow = alone["replay"]["first_token_seconds"]["p99"]
    goal = slow / 2
    kept = answer_to(*FIT, *CHATS, "--max-first-token", str(goal))
    assert kept["found"] > 1
    assert kept["replay"]["first_token_seconds"]["p99"] <= goal
    again = replay_of(kept["options"])
    assert again["first_token_seconds"] == kept["replay"]["first_token_seconds"]
    fewer = kept["found"] - 1
    options = {f"--tp {fewer}"} & {"--tp 1", "--tp 2", "--tp 4"} | {f"--tp 1 --dp {fewer}"}
    for split in options:
        assert replay_of(split)["first_token_seconds"]["p99"] > goal, split
    nothing = run(*FIT, *CHATS, "--max-first-token", "0.0001")
    assert nothing.exit_code == 1
    assert "and keep --max-first-token 0.0001" in " ".join(nothing.stderr.split())


def test_the_fewest_gpus_whose_replay_keeps_the_goodput():
    alone = answer_to(*FIT, *CHATS)["replay"]["goodput"]
    kept = answer_to(*FIT, *CHATS, "--min-goodput", str(1.2 * alone))
    assert kept["found"] > 1
    assert kept["replay"]["goodput"] * kept["replay"]["engines"] >= 1.2 * alone
    fixed = run(*FIT, *CHATS, "--dp", "1", "--pp", "1", "--min-goodput", "1e9")
    assert fixed.exit_code == 1


def test_each_offer_is_replayed(tmp_path):
    args = ("fit", "qwen3-8b", "--gpu", "L40S,H100", "--users", "60", "--context", "16K", *CHATS)
    offers = answer_to(*args)
    assert len(offers) == 6
    assert len({offer["goodput"] for offer in offers}) == 6
    for offer in offers:
        split = {"--tp": "tensor_parallel_size", "--pp": "pipeline_parallel_size"}
        split |= {"--dcp": "decode_context_parallel_size", "--dp": "replicas"}
        options = [word for name, key in split.items() for word in (name, str(offer[key]))]
        given = ("qwen3-8b", "--gpu", offer["gpu"], "--max-model-len", "16K", *options)
        replay = answer_to("replay", CHATS[1], *given)
        assert offer["hit_rate"] == replay["hit_rate"]
        assert offer["first_token_p99"] == replay["first_token_seconds"]["p99"]
        assert offer["goodput"] == replay["goodput"] * offer["replicas"]
    shown = run(*args).stdout
    page = tmp_path / "offers.html"
    assert run(*args, "-o", page).exit_code == 0
    for text in (shown, page.read_text()):
        assert f"{offers[0]['goodput']:,.0f}" in text
        assert f"{offers[-1]['hit_rate']:.1%}" in text


def test_an_engine_gets_its_share():
    load = generate("chat", requests=50)
    share = load.of_one_engine(3)
    assert len(share) == 17
    assert share.arrivals.tolist() == load.arrivals[::3].tolist()
    ends = load.num_parts.cumsum()
    parts = [load.part_texts[ends[i] - load.num_parts[i] : ends[i]] for i in range(0, 50, 3)]
    assert share.part_texts.tolist() == [text for one in parts for text in one.tolist()]
    assert load.of_one_engine(1) is load
    assert load.first(7).part_texts.tolist() == load.part_texts[: ends[6]].tolist()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("frontier", *GEMMA, "--rate", "3"), "--rate is of a replay; give --workload"),
        (("plan", *GEMMA, "--step-time", "base=1ms"), "--step-time is of a replay"),
        (("plan", *GEMMA, "--max-token-time", "0.1"), "--max-token-time is of a replay"),
        (("fit", *FIT[1:2], "--gpu", "H100,", "--users", "5"), "'H100,' has an empty entry"),
        (("frontier", "gemma-3-27b", *LOAD), "give the memory"),
        (("fit", *GEMMA, *LOAD, "--max-first-token", "1"), "goals of --find gpus"),
        (("fit", *GEMMA, "--find", "gpus", "--min-goodput", "1"), "goals of --find gpus"),
        (("fit", *FIT[1:4], "--users", "5", *CHATS, "--min-goodput", "1"), "goals of --find gpus"),
    ],
)
def test_what_is_refused(args, words):
    result = run(*args)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


SWEEP = ("sweep", "gemma-3-27b", "--memory", "5GiB,14GiB,30GiB", "--max-model-len", "16K")
SWEEP = (*SWEEP, "--grouping", "vllm,compact,sliced", "--kv-cache-dtype", "auto,fp8", *LOAD)


def test_each_row_of_a_sweep_is_its_replay(tmp_path):
    path = tmp_path / "rows.json"
    result = run(*SWEEP, "-o", path, "--jobs", "1")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(path.read_text())
    assert len(rows) == 3 * 3 * 2
    replayed = [row for row in rows if row["hit_rate"] is not None]
    assert len({row["hit_rate"] for row in replayed}) > 3
    for row in rows:
        given = ("gemma-3-27b", "--memory", str(row["memory_bytes"]), "--max-model-len", "16K")
        given = (*given, "--grouping", row["grouping"], "--kv-cache-dtype", row["kv_cache_dtype"])
        found = run("replay", "agents:requests=150", *LOAD[2:], *given, "--json")
        if row["hit_rate"] is None:
            assert found.exit_code == (2 if row["fits"] else 1)
            if row["fits"]:
                assert "not replayed: the plan's groups cut blocks" in row["error"]
            continue
        replay = json.loads(found.stdout)
        for name in ("requests", "finished", "hit_rate", "preemptions", "goodput"):
            assert row[name] == replay[name]
        for name in ("p50", "p99"):
            assert row[f"first_token_{name}"] == replay["first_token_seconds"][name]


def test_a_sweep_of_replays_in_several_processes_goes_on(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("joblib")
    one, folder = tmp_path / "one.parquet", tmp_path / "parts.parquet"
    assert run(*SWEEP, "-o", one, "--jobs", "1").exit_code == 0
    more = ("-o", folder, "--jobs", "2", "--resume")
    assert run(*SWEEP, *more).exit_code == 0
    parts = sorted(folder.glob("part-*.parquet"))
    assert len(parts) > 2
    parts[1].unlink()
    assert run(*SWEEP, *more).exit_code == 0
    rows = parquet.read_table(one).to_pylist()
    assert parquet.read_table(folder).to_pylist() == rows
    assert sum(row["goodput"] is not None for row in rows) > 3
    other = run(*SWEEP[:-1], "4", *more)
    assert other.exit_code == 2
    assert "rows of another sweep" in other.stderr


def test_a_sweep_does_not_go_on_with_another_trace(tmp_path):
    pytest.importorskip("pyarrow")
    trace, folder = tmp_path / "trace.csv", tmp_path / "rows.parquet"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,100,10\n")
    args = ("sweep", "gemma-3-27b", "--memory", "14GiB", "--max-model-len", "16K")
    args = (*args, "--workload", trace, "-o", folder, "--resume")
    assert run(*args).exit_code == 0
    assert run(*args).exit_code == 0
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,100,11\n")
    other = run(*args)
    assert other.exit_code == 2
    assert "rows of another sweep" in other.stderr


def test_replays_of_a_sweep_are_drawn(tmp_path):
    plot = ("--plot", tmp_path / "hits.svg", "--plot-column", "hit_rate")
    result = run("sweep", "gemma-3-27b", "--memory", "14GiB,30GiB", *LOAD, *plot, "--quiet")
    assert result.exit_code == 0, result.stderr
    assert "hit rate of the load" in (tmp_path / "hits.svg").read_text()
    without = run("sweep", "gemma-3-27b", "--memory", "14GiB,30GiB", *plot)
    assert without.exit_code == 2
    assert "is of a replay; give --workload" in without.stderr
