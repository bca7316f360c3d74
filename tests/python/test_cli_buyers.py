"""``kvplan fit --users``: every offer holds the users, by the plan of its own line."""

import csv
import html.parser
import json
import math
import re

import pytest
from cli_runner import answer_to, run
from test_docs_json import broken

from kvplan.offline.budget.gpus import find_gpu
from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS

ASKED = ("llama-3.1-70b", "--weights", "141GB", "--gpu", "H100,H200,B200", "--context", "32K")


@pytest.fixture(scope="module")
def found():
    return answer_to("fit", *ASKED, "--users", "50")


def test_every_gpu_is_offered_with_the_fewest_first(found):
    assert {offer["gpu"] for offer in found} == {"H100", "H200", "B200"}
    counts = [offer["gpus"] for offer in found]
    assert counts == sorted(counts)
    for offer in found:
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "replicas")
        product = 1
        for name in sizes:
            product *= offer[name]
        assert offer["gpus"] == product
        assert offer["users_by_vllm"] >= 50


def test_the_line_of_an_offer_holds_its_users(found):
    for offer in found:
        gpu = ("--gpu", offer["gpu"], "--weights", "141GB")
        result = run("plan", *gpu, "--json", "--", offer["line"])
        assert result.exit_code == FITS, result.stderr
        planned = json.loads(result.stdout)
        each = planned["usable_blocks"] // planned["request_blocks"]
        assert planned["max_model_len"] == offer["max_model_len"] == 32768
        assert each * offer["replicas"] == offer["users_by_vllm"]
        assert int(planned["steady_concurrency"]) * offer["replicas"] == offer["users_steady"]
        sizes = [worker["available_bytes"] for worker in planned["workers"]]
        assert min(sizes) == offer["kv_cache_bytes"]


def test_fewer_gpus_do_not_hold_them(found):
    for name in ("H100", "H200", "B200"):
        offers = [offer for offer in found if offer["gpu"] == name]
        fewest = min(offer["gpus"] for offer in offers)
        even = all(offer["pipeline_parallel_size"] not in (3, 5, 6, 7) for offer in offers)
        args = (*ASKED[:3], "--gpu", name, "--max-model-len", "32K", "--concurrency", "50")
        answer = answer_to("fit", *args, "--find", "gpus")
        # `--find gpus` tries powers of two alone.
        assert answer["found_by_vllm"] >= fewest
        assert not even or answer["found_by_vllm"] == fewest


def test_the_memory_adds_up(found):
    for offer in found:
        assert offer["gpu_bytes"] == find_gpu(offer["gpu"]).memory_bytes
        held = offer["weights_bytes"] + offer["other_bytes"] + offer["kv_cache_bytes"]
        assert held == math.ceil(0.92 * offer["gpu_bytes"])
        stages = offer["tensor_parallel_size"] * offer["pipeline_parallel_size"]
        assert offer["weights_bytes"] >= 141e9 / stages * 0.99
        assert 0 < offer["used_bytes"] <= offer["kv_cache_bytes"]


def test_three_gpus_where_two_are_too_few():
    args = ("fit", "llama-3.1-70b", "--gpu", "H100,H200", "--users", "4", "--context", "32K")
    offers = answer_to(*args)
    (three,) = [o for o in offers if (o["gpu"], o["gpus"]) == ("H100", 3)]
    assert (three["tensor_parallel_size"], three["pipeline_parallel_size"]) == (1, 3)
    assert "--pipeline-parallel-size 3" in three["line"]
    assert not [o for o in offers if (o["gpu"], o["gpus"]) == ("H100", 2)]


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.cells, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "i"):
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        if tag != "i":
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "code"):
            self.cells.append(data)


def test_files(found, tmp_path):
    for suffix in ("csv", "json", "html"):
        path = tmp_path / f"offers.{suffix}"
        result = run("fit", *ASKED, "--users", "50", "-o", path)
        assert result.exit_code == FITS, result.stderr
    rows = list(csv.DictReader((tmp_path / "offers.csv").read_text().splitlines()))
    assert [{k: str(v) for k, v in offer.items()} for offer in found] == rows
    assert json.loads((tmp_path / "offers.json").read_text()) == found
    page = Page()
    page.feed((tmp_path / "offers.html").read_text())
    assert page.open == []
    assert page.links == []
    assert [offer["line"] for offer in found] == [c for c in page.cells if c.startswith("vllm")]


def test_the_table(found):
    result = run("fit", *ASKED, "--users", "50")
    assert result.stdout.count("vllm serve llama-3.1-70b") == len(found)
    assert len(re.findall(r"\[[#+=.-]{20}\]", result.stdout)) == len(found)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--users", "5"), "--gpu H100,H200,B200"),
        (("--gpu", "H100,H200"), "give --users"),
        (("--gpu", "H100", "--users", "5", "--tp", "2"), "leave --tp out"),
        (("--gpu", "H100", "--users", "5", "-o", "a.txt"), "must end in"),
        (("--gpu", "H100,H1000", "--users", "5"), "H1000"),
        (("--memory", "30GiB", "-o", "a.csv"), "give --users"),
    ],
)
def test_what_does_not_go_together(args, words):
    result = run("fit", "llama-3.1-8b", "--weights", "16GB" if "--gpu" in args else "auto", *args)
    assert result.exit_code == BAD_INPUT
    assert words in result.stderr


def test_nothing_holds_them():
    args = ("--weights", "1600TB", "--gpu", "T4", "--users", "5")
    result = run("fit", "llama-3.1-8b", *args)
    assert result.exit_code == DOES_NOT_FIT
    assert "no split of these GPUs holds" in result.stderr


def test_the_json_is_what_the_schema_says(found):
    assert broken("offers", found) == []
