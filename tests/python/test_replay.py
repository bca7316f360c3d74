"""Traces, and their replay from the command line."""

import gzip
import json
import lzma
import random
import re

import numpy as np
import pytest
from cli_runner import run as run_cli

import kvplan
from kvplan import specs
from kvplan.offline.replay.generate import LOADS, generate, parse_spec
from kvplan.offline.replay.read import TraceError, read_trace
from kvplan.offline.replay.run import Policy, run
from kvplan.offline.replay.step_time import StepTime, parse_step_time

MODEL = ("qwen3-8b", "--memory", "5GiB", "--max-model-len", "32768")


def one_group_plan(num_blocks=1000, block_size=16, max_model_len=4096, **changes):
    spec = specs.FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=8, dtype="float16"
    )
    config = kvplan.PlanningConfig(
        max_model_len=max_model_len,
        block_size=block_size,
        num_gpu_blocks_override=num_blocks,
        **changes,
    )
    return kvplan.plan(config, [{"layers.0": spec}], [1 << 40])


def mooncake(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(timestamp, length, ids, output=2):
    return {
        "timestamp": timestamp,
        "input_length": length,
        "output_length": output,
        "hash_ids": ids,
    }


def test_a_cache_without_end_hits_what_was_seen_before(tmp_path):
    """With blocks of a trace's own size, the replay hits exactly the parts that came before."""
    rng = random.Random(1)
    rows, seen, repeated = [], set(), 0
    for i in range(200):
        # A prompt is a path of a tree: each block's id names all before it.
        ids, node = [], 0
        for _ in range(rng.randint(1, 5)):
            node = 10 * node + rng.randint(1, 3)
            ids.append(node)
        repeated += sum(number in seen for number in ids)
        seen.update(ids)
        # One token more, so that the last whole block can hit.
        rows.append(row(i * 1000, 512 * len(ids) + 1, [*ids, 10**9 + i]))
    trace = read_trace(mooncake(tmp_path / "trace.jsonl", rows))
    plan = one_group_plan(num_blocks=10_000, block_size=512)
    report = run(plan, trace, Policy(step_time=StepTime(base=0.001)))
    assert report.count("finished") == 200
    assert report.result["hit_tokens"] == 512 * repeated
    assert trace.repeated_share == pytest.approx(repeated / len(trace.part_texts))


def test_a_conversation_hits_its_own_outputs():
    trace = generate("chat", requests=50, rate=0.01)
    plan = one_group_plan(num_blocks=100_000, max_model_len=1 << 20)
    report = run(plan, trace)
    hits = report.requests["hit_tokens"]
    # A later turn finds all before it but the last, partly filled block.
    by_length = {}
    for i in range(len(trace)):
        parts = trace.part_texts[trace.num_parts[:i].sum() :][: trace.num_parts[i]]
        if len(parts) > 2:
            before = by_length[parts[1]]
            assert hits[i] == (before - 1) // 16 * 16
        by_length[parts[1]] = int(trace.prompt_tokens[i] + trace.output_tokens[i])
    assert report.preemptions == 0


def test_a_small_cache_waits_preempts_and_evicts():
    trace = generate("agents", requests=300, rate=30)
    large = run(one_group_plan(num_blocks=200_000, max_model_len=40_000), trace)
    small = run(one_group_plan(num_blocks=2_600, max_model_len=40_000), trace)
    assert large.preemptions == 0
    assert small.preemptions > 0
    assert small.hit_rate < large.hit_rate
    assert small.queue_seconds.mean() > large.queue_seconds.mean()
    assert small.result["peak_used_blocks"] <= 2_599
    assert small.count("finished") == large.count("finished") > 290
    held = small.groups[0]
    assert 0 < held["waste_bytes"] < held["held_bytes"]


def test_requests_that_can_never_run_are_told():
    plan = one_group_plan()
    trace = generate("chat", requests=3)
    long = np.array([100, 5000, 400])
    trace = type(trace)(
        **{
            **vars(trace),
            "prompt_tokens": long,
            "num_parts": np.array([1, 1, 1]),
            "part_texts": np.array([1, 2, 3]),
            "part_lengths": long,
        }
    )
    report = run(plan, trace)
    assert [report.count(end) for end in ("finished", "too long", "no room")] == [2, 1, 0]


def test_priority_goes_first():
    trace = generate("documents", requests=40, rate=1000)
    urgent = np.arange(40) % 2
    trace = type(trace)(**{**vars(trace), "priorities": urgent})
    plan = one_group_plan(num_blocks=20_000, max_model_len=300_000)
    report = run(plan, trace, Policy(policy="priority", max_num_seqs=2))
    admitted = report.requests["admitted"]
    assert admitted[urgent == 0].mean() < admitted[urgent == 1].mean()


def test_the_same_words_make_the_same_load():
    for name in LOADS:
        a, b = generate(name, requests=50, seed=3), generate(name, requests=50, seed=3)
        assert np.array_equal(a.part_texts, b.part_texts)
        assert np.array_equal(a.arrivals, b.arrivals)
        assert not np.array_equal(a.arrivals, generate(name, requests=50, seed=4).arrivals)
        assert len(a) == 50


@pytest.mark.parametrize(
    "text", ["chat:sessions=3", "chat:requests=x", "agents:rate=0", "chat:requests=-1"]
)
def test_a_load_that_is_none(text):
    with pytest.raises(ValueError, match=text):
        parse_spec(text)


@pytest.mark.parametrize("text", ["base=8", "tokn=3us", "base=x", "base=-1ms", "base=3min", ""])
def test_a_step_time_that_is_none(text):
    if text == "base=8":
        assert parse_step_time(text).parts == {"base": 8.0}
        return
    with pytest.raises(ValueError, match=r"base|part"):
        parse_step_time(text)


def throughput_line(model, running, prompt_tokens, context, capacity):
    """What vLLM 0.33 logs of an interval of equal steps."""
    tokens = running + prompt_tokens
    seconds = model.base + model.token * tokens + model.sequence * running
    seconds += model.context * context
    return (
        f"INFO 12-01 10:00:00 [loggers.py:320] Engine 000: Avg prompt throughput: "
        f"{prompt_tokens / seconds:.1f} tokens/s, Avg generation throughput: "
        f"{running / seconds:.1f} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache "
        f"usage: {100 * context / capacity:.1f}%, Prefix cache hit rate: 3.0%\n"
    )


def test_a_step_time_is_fitted_to_a_log(tmp_path):
    path, capacity = tmp_path / "serve.log", 500_000
    model = StepTime(base=12e-3, token=40e-6, context=20e-9)
    rng = random.Random(3)
    lines = [f"INFO GPU KV cache size: {capacity:,} tokens, Maximum concurrency\n"]
    for _ in range(30):
        load = rng.randint(4, 200), rng.choice((0, 300, 4000)), rng.randint(10_000, capacity)
        lines.append(throughput_line(model, *load, capacity))
    path.write_text("".join(lines))
    given = parse_step_time(str(path))
    for name in ("base", "token", "context"):
        assert given.parts[name] == pytest.approx(getattr(model, name), rel=0.02)
    assert "fitted to 30 lines of serve.log, 0% off in the mean" in given.source
    shown = run_cli("replay", "chat:requests=5", *MODEL, "--step-time", path).stdout
    assert "base, token, context fitted to 30 lines" in " ".join(shown.split())
    # Without a context that costs anything, none is made up.
    flat = StepTime(base=12e-3, token=40e-6, context=0)
    path.write_text("".join(throughput_line(flat, n, 0, 1000 * n, capacity) for n in range(1, 9)))
    assert parse_step_time(str(path)).parts["context"] == 0
    # A number beyond a float's range is none.
    broken = re.sub(
        r"generation throughput: [\d.]+", "generation throughput: " + 400 * "9", lines[2]
    )
    path.write_text(lines[0] + lines[1] + 9 * broken)
    with pytest.raises(ValueError, match="has 1 lines of throughput"):
        parse_step_time(str(path))


def test_azures_times(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0320000,3180,0\n"
        "yesterday,1,1\n"
    )
    trace = read_trace(path)
    assert trace.arrivals == pytest.approx([0, 0.05204], abs=1e-6)
    assert trace.output_tokens.tolist() == [10, 1]
    assert len(set(trace.part_texts.tolist())) == 2
    assert trace.remarks == (
        "line 4 is left out: TIMESTAMP 'yesterday' is no time such as 2023-11-16 18:17:03.98",
    )


def test_vllms_benchmark_lines(tmp_path):
    path = tmp_path / "bench.jsonl"
    path.write_text(
        '{"prompt": "What is the capital of India?", "output_tokens": 10}\n'
        '{"prompt": "What is the capital of Iran?", "output_tokens": 15}\n'
        '{"prompt": "What is the cap'
    )
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [8, 7]
    first, second = trace.token_ids[:8], trace.token_ids[18:25]
    assert first[:6].tolist() == second[:6].tolist()
    assert trace.remarks == ("line 3 is left out: it is cut off",)


def test_a_list(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(
        "arrival,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n"
        "0,100,5,1,60\n2,90,5,1,60\n1,50,-3,,\n1,40,3,,\n"
    )
    trace = read_trace(path)
    assert trace.arrivals.tolist() == [0, 1, 2]
    assert trace.prompt_tokens.tolist() == [100, 40, 90]
    assert trace.num_parts.tolist() == [2, 1, 2]
    assert trace.part_lengths.tolist() == [60, 40, 40, 60, 30]
    assert [text for text in trace.part_texts.tolist() if text >= 0] == [1, 1]
    assert trace.remarks == (
        "line 4 is left out: output_tokens is a whole number of 0 to 1,073,741,824, not '-3'",
        "line 5 arrives before one ahead of it: the requests were sorted",
    )


def test_ids_are_sorted_with_their_requests(tmp_path):
    path = tmp_path / "ids.jsonl"
    lines = [
        {"arrival": 3, "prompt": [1, 2, 3], "output": [4]},
        {"arrival": 1, "prompt": [5], "output": [6, 7]},
        {"arrival": 2, "prompt_tokens": 3},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = read_trace(path)
    assert trace.token_ids.tolist() == [5, 6, 7, 1, 2, 3, 4]
    assert trace.prompt_tokens.tolist() == [1, 3]
    assert "unlike the lines ahead of it" in trace.remarks[0]


def test_a_file_that_breaks_off(tmp_path):
    rows = [row(i, 1000, [2 * i, 2 * i + 1]) for i in range(4000)]
    whole = lzma.compress("".join(json.dumps(r) + "\n" for r in rows).encode())
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(whole[: len(whole) // 2])
    trace = read_trace(path)
    assert 0 < len(trace) < 4000
    assert any("breaks off" in remark or "cut off" in remark for remark in trace.remarks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("hello\n1\n", "no trace has lines of hello"),
        ('{"a": 1}\n', "no trace has lines of a"),
        ('{"hash_ids": [1], "timestamp": -5, "input_length": 5, "output_length": 1}\n', "from 0"),
        ('{"hash_ids": [1], "timestamp": 5, "input_length": -5, "output_length": 1}\n', "1 to"),
        (
            '{"hash_ids": [1], "timestamp": 5, "input_length": 513, "output_length": 1}\n',
            "2 blocks",
        ),
        ('{"hash_ids": ["x"], "timestamp": 5, "input_length": 5, "output_length": 1}\n', "no list"),
        ('{"prompt_tokens": 1e99}\n', "1 to"),
        ('{"prompt_tokens": true}\n', "number"),
        ('{"prompt_tokens": "12"}\n', "prompt_tokens is a number, not '12'"),
        ('{"prompt": [-1]}\n', "token ids"),
        ('{"prompt": [1], "output": []}\n', "token ids"),
    ],
)
def test_nothing_can_be_read(text, words, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=words):
        read_trace(path)


def test_many_bad_lines_are_counted(tmp_path):
    path = mooncake(tmp_path / "t.jsonl", [row(0, 512, [1])] + [row(1, 0, [])] * 30)
    trace = read_trace(path)
    assert len(trace) == 1
    assert len(trace.remarks) == 11
    assert trace.remarks[-1] == "and 20 more of the kind"


def test_the_command(tmp_path):
    out, plot = tmp_path / "requests.parquet", tmp_path / "load.svg"
    args = ("replay", "chat:requests=60,rate=4", *MODEL, "-o", out, "--plot", plot)
    answer = json.loads(run_cli(*args, "--json").stdout)
    assert answer["finished"] == 60
    assert 0 < answer["hit_rate"] < 1
    assert answer["hit_rate"] == answer["hit_tokens"] / answer["query_tokens"]
    assert len(answer["groups"]) == 1
    pyarrow = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.read_table(out).to_pydict()
    assert sum(table["hit_tokens"]) == answer["hit_tokens"]
    assert set(table["end"]) == {"finished"}
    assert "hit rate" in plot.read_text()
    shown = run_cli("replay", "chat:requests=60,rate=4", *MODEL).stdout
    assert "no measurement" in shown
    assert "60 of 60 finished" in shown


def test_drafts_that_are_accepted_save_steps():
    drafter = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}')
    model = ("qwen3.6-27b", "--memory", "20GiB", "--max-model-len", "16384", *drafter)

    def replayed(*options):
        answer = json.loads(
            run_cli("replay", "chat:requests=40", *model, *options, "--json").stdout
        )
        assert answer["finished"] == 40
        return answer["steps"], answer["computed_tokens"]

    without = replayed()
    none, some, all_of_them = (replayed("--acceptance", share) for share in ("0", "0.7", "1"))
    assert none[1] > 1.5 * without[1]
    assert without[1] == pytest.approx(all_of_them[1], rel=0.2)
    assert none[0] > some[0] > all_of_them[0]
    assert none[0] < 4.5 * all_of_them[0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nothing.jsonl", *MODEL), "is no file, and no load: chat, agents"),
        (("chat:x=1", *MODEL), "a load has requests, rate, seed"),
        (("chat:seed=1e99", *MODEL), "seed is a whole number such as 500, not '1e99'"),
        (("chat", *MODEL, "--acceptance", "0.5"), "give --speculative-config, too"),
        (("chat", "qwen3-8b"), "memory"),
        (("chat", *MODEL, "--step-time", "fast"), "base=8ms"),
    ],
)
def test_what_the_command_refuses(args, words):
    result = run_cli("replay", *args)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "cell.csv",
            b"arrival,prompt_tokens,output_tokens,x\n0,10,3," + b"a" * 200_000 + b"\n",
            "breaks off after request 0 (field larger than field limit",
        ),
        ("head.csv", b"a" * 200_000 + b"\n", "head.csv: its first line is no CSV"),
        (
            "flipped.jsonl.gz",
            gzip.compress(b'{"prompt_tokens": 1}\n' * 9, mtime=0)[:10] + b"\xff" * 30,
            "breaks off after request 0 (Error -3",
        ),
        (
            "huge.jsonl",
            b'{"prompt_tokens": %s}\n' % (b"9" * 400),
            f"prompt_tokens is a number, not {'9' * 60}...",
        ),
        ("deep.jsonl", b"[" * 9_000, f"deep.jsonl: no trace has lines of {'[' * 59}..."),
        ("bell.csv", b"\x07\x1b[2J,b\n", r"bell.csv: no trace has lines of \x07\x1b[2J, b"),
    ],
)
def test_a_hostile_trace_is_refused_in_few_words(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    result = run_cli("replay", str(tmp_path / name), "qwen3-8b", "--memory", "8GiB")
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr) < 2_000


@pytest.mark.parametrize("option", ["--rate", "--speed"])
def test_nan_is_no_number(option):
    result = run_cli("replay", "chat:requests=5", "qwen3-8b", "--memory", "8GiB", option, "nan")
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': 'nan' is no number" in result.stderr
