"""The budget's parts against what vLLM 0.33.0 allocates, as recorded without a GPU."""

import functools
import importlib.util
import json
import statistics
from pathlib import Path

import pytest
from cli_runner import run
from recordings import recordings

from kvplan.offline.budget import activation as activation_module
from kvplan.offline.budget.activation import activation, shape_of
from kvplan.offline.budget.budget import Deployment, memory_budgets
from kvplan.offline.budget.cuda_graphs import capture_sizes
from kvplan.offline.budget.drafter import drafter_of
from kvplan.offline.budget.gpus import Gpu, defaults_for, find_gpu, known_gpus
from kvplan.offline.budget.quantization import weight_bits
from kvplan.offline.budget.runner_buffers import runner_buffers
from kvplan.offline.budget.weights import weights_on_ranks
from kvplan.offline.models import ModelOptions, load
from kvplan.offline.models.plan_input import ModelConfig, read_layers

DATA = Path(__file__).parents[1] / "data" / "budget"
RECORDED = json.loads((DATA / "recorded.json").read_text())
GIB, MIB = 2**30, 2**20


@functools.cache
def budget_page():
    """The script that makes the page's measures."""
    path = DATA.parents[2] / "scripts" / "make_budget_page.py"
    spec = importlib.util.spec_from_file_location("make_budget_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name(row):
    case = row["case"]
    rest = {key: value for key, value in case.items() if key not in ("model", "points")}
    return " ".join([case["model"], *(f"{key}={value}" for key, value in rest.items())])[:80]


def setting(row):
    case = row["case"]
    speculative = case.get("engine_args", {}).get("speculative_config")
    if speculative and "model" in speculative:
        source = budget_page().model_of(speculative["model"]).source
        speculative = {**speculative, "model": source}
    options = ModelOptions(
        tensor_parallel_size=case.get("tp", 1),
        pipeline_parallel_size=case.get("pp", 1),
        speculative_config=speculative,
    )
    return budget_page().model_of(case["model"]), options, case


def indexer_bytes(read, row):
    """What the indexers of the real model, built for the largest step of a recording, keep."""
    indexer = shape_of(read).indexer
    tokens, sequences = (max(point[k] for point in row["points"]) for k in ("tokens", "sequences"))
    return indexer.buffer_bytes(tokens, sequences) if indexer else 0


@pytest.mark.parametrize("row", [row for row in RECORDED if "weights" in row], ids=name)
def test_weights(row):
    """Within 0.5 % of the parameters of the real model, per rank."""
    model, options, case = setting(row)
    kept = indexer_bytes(read_layers(model, options), row)
    expert_parallel = case.get("engine_args", {}).get("enable_expert_parallel", False)
    alone = options.replace(speculative_config=None)
    weights = weights_on_ranks(model, alone, expert_parallel=expert_parallel)
    expected = pytest.approx(row["weights"], rel=0.005)
    assert weights.by_stage[case.get("stage", 0)] + kept == expected


@pytest.mark.parametrize("kind", ["models", "architectures", "drafters", "variants"])
def test_whatever_is_planned_has_a_budget(kind):
    for name, recorded in recordings(kind).items():
        ranks = recorded["engine_args"].get("tensor_parallel_size", 1)
        model, options = (
            ModelConfig(recorded["config"], name),
            ModelOptions(tensor_parallel_size=ranks),
        )
        weights = weights_on_ranks(model, options)
        deployment = Deployment(find_gpu("H200"), utilization=0.92, max_num_seqs=256)
        (budget,) = memory_budgets(model, options, deployment, weights)
        assert all(part.bytes > 0 for part in budget.parts), name


def held(model, tp, **options):
    """GiB of weights on a rank of the last stage."""
    total = options.pop("total_bytes", None)
    chosen = ModelOptions(tensor_parallel_size=tp, **options)
    return weights_on_ranks(load(model), chosen, total_bytes=total).by_stage[-1] / GIB


def test_a_drafter_is_held_by_the_last_stage():
    # DeepSeek-R1's MTP layer: a decoder layer with all its experts in fp8, and a projection.
    mtp = {"method": "mtp", "num_speculative_tokens": 1}
    added = held("deepseek-r1", 8, speculative_config=mtp) - held("deepseek-r1", 8)
    assert added == pytest.approx(256 * 3 * 7168 * 2048 / 8 / GIB, rel=0.2)
    draft = {"method": "draft_model", "model": "llama-3.2-1b", "num_speculative_tokens": 3}
    added = held("llama-3.1-70b", 4, speculative_config=draft) - held("llama-3.1-70b", 4)
    assert added == pytest.approx(held("llama-3.2-1b", 4), abs=0.01)
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    assert held("llama-3.1-70b", 4, speculative_config=ngram) == held("llama-3.1-70b", 4)


def test_a_known_size_is_divided_in_the_proportions_of_the_config():
    # 688.6 GB is what DeepSeek-R1's index states, the MTP layer included, which is not loaded.
    whole = held("deepseek-r1", 8, total_bytes=688_586_727_753)
    assert whole == pytest.approx(held("deepseek-r1", 8), rel=0.005)


def test_experts_on_ranks_as_a_whole():
    model, options = load("mixtral-8x7b"), ModelOptions(tensor_parallel_size=16)
    # Eight experts on sixteen ranks: a rank holds one, or a sixteenth of each of eight.
    spread, whole = (
        weights_on_ranks(model, options, expert_parallel=flag).by_stage[0] for flag in (False, True)
    )
    assert whole - spread == 32 * 3 * 14336 * 4096 * 2 // 2


def version_of(case):
    """The vLLM of a recording; the V1 runner is an older one's."""
    if case.get("runner") == "v1":
        return (0, 19)
    return tuple(map(int, case.get("vllm", "0.33").split(".")))


def test_what_is_recorded_and_what_is_not():
    """An architecture without a recording is answered with a wide range, which says so."""
    read = {read_layers(*setting(row)[:2]).architecture for row in RECORDED}
    assert read == activation_module.RECORDED
    for model, relative in (("mistral-small-4", 0.25), ("mistral-7b", 0.1)):
        answer = json.loads(
            run("plan", model, "--gpu", "H100", "--max-num-seqs", "8", "--json").stdout
        )
        (part,) = [p for p in answer["budget"][0]["parts"] if p["name"] == "peak activation"]
        assert ("not recorded" in part["source"]) == (relative > 0.2)
        assert part["error"] == pytest.approx(relative * part["bytes"], rel=0.01)
        weights = answer["budget"][0]["parts"][0]
        assert ("not recorded" in weights["source"]) == (relative > 0.2)


@pytest.mark.parametrize("row", RECORDED, ids=name)
def test_activation(row):
    """Within what the budget states: 1.5 % of the sampler, 5 % with images, 10 % forward."""
    model, options, case = setting(row)
    read = read_layers(model, options)
    shape = shape_of(read)
    stage, stages = case.get("stage", 0), case.get("pp", 1)
    if "multimodal" not in case:
        shape = shape.without_items()
    if drafter := drafter_of(read, options):
        shape = drafter.beside(shape)
    for point in row["points"]:
        step = activation(
            shape,
            tokens=point["tokens"],
            sequences=point["sequences"],
            tensor_parallel_size=options.tensor_parallel_size,
            is_first_stage=stage == 0,
            is_last_stage=stage == stages - 1,
            version=version_of(case),
        )
        if "multimodal" not in case:
            # Phases that do not rule here rule with fewer sequences.
            assert step.forward == pytest.approx(point["forward"], rel=0.1, abs=0.03 * GIB)
        ruled_by = max(("encoder", "forward", "sampler"), key=lambda phase: point.get(phase, 0))
        relative = 0.1 if ruled_by == "forward" else 0.05 if "multimodal" in case else 0.015
        allowed = max(0.03 * GIB, relative * point["peak"])
        assert step.peak == pytest.approx(point["peak"], abs=allowed), point


@pytest.mark.parametrize("row", RECORDED, ids=name)
def test_buffers(row):
    """Within 8 MiB of what the V2 runner allocates before a step."""
    model, options, case = setting(row)
    if case.get("runner") == "v1":
        pytest.skip("the V1 runner's buffers are small")
    read = read_layers(model, options)
    shape, drafter = shape_of(read), drafter_of(read, options)
    stage, stages = case.get("stage", 0), case.get("pp", 1)
    for point in row["points"]:
        sizes = {key: point[key] for key in ("tokens", "sequences")}
        found = runner_buffers(
            shape, **sizes, is_first_stage=stage == 0, is_last_stage=stage == stages - 1
        )
        if drafter is not None:
            found += drafter.buffer_bytes(shape, **sizes) + drafter_weights(model, options)
        assert found == pytest.approx(point["buffers"], abs=8 * MIB), point


def drafter_weights(model, options):
    """A drafter's; EAGLE's, recorded without weights, has the model's head and rotary table."""
    alone = options.replace(speculative_config=None)
    both, model_alone = (weights_on_ranks(model, o).by_stage[-1] for o in (options, alone))
    is_eagle = options.speculative_config["method"] == "eagle3"
    return both - model_alone - is_eagle * 2 * (32000 * 4096 + 40960 * 128)


@pytest.mark.parametrize(
    ("spelled", "known"),
    [
        ("h100", "H100"),
        ("H100-80GB", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("RTX PRO 6000", "RTX PRO 6000"),
        ("rtx pro 6000 blackwell", "RTX PRO 6000"),
        ("DGX Spark", "GB10"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("RTX 3090", "RTX3090"),
        ("A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("AMD Instinct MI300X", "MI300X"),
        ("H100 MIG 3g.40gb", "H100-3g.40gb"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GH200 480GB", "GH200"),
        *((gpu, gpu) for gpu in ("H20", "H100-NVL", "GH200", "GB200", "B300", "A10", "A40", "L20")),
    ],
)
def test_gpu_names(spelled, known):
    assert find_gpu(spelled).name == known


def test_no_name_means_two_gpus():
    assert len(known_gpus()) == len(set(known_gpus())) > 60
    for gpu in known_gpus():
        assert find_gpu(gpu).name == gpu


def test_unknown_gpu():
    with pytest.raises(ValueError, match=r"'H10' is no GPU known here\. Did you mean H100"):
        find_gpu("H10")


@pytest.mark.parametrize(
    ("gpu", "tokens", "sequences"),
    [
        ("L4", 2048, 256),
        ("A100", 2048, 256),  # large, but left on the small tier
        ("GB10", 2048, 256),
        ("H100", 8192, 1024),
        ("MI300X", 16384, 1024),
        ("B200", 16384, 1024),
    ],
)
def test_defaults(gpu, tokens, sequences):
    defaults = defaults_for(find_gpu(gpu))
    assert (defaults.max_num_batched_tokens, defaults.max_num_seqs) == (tokens, sequences)
    assert defaults.gpu_memory_utilization == 0.92


def test_defaults_by_size_alone():
    assert defaults_for(Gpu("", 80 * GIB)).max_num_seqs == 1024


def test_a_step_holds_the_largest_item_of_a_model_that_attends_to_it_as_a_whole():
    """As vLLM says: "Raising max_num_batched_tokens from 2048 to 2496"."""
    for gpu, tokens in (("A100", 2496), ("L4", 2496), ("H100", 8192)):
        found = defaults_for(find_gpu(gpu), load("gemma-4-26b-a4b").architecture)
        assert found.max_num_batched_tokens == tokens
    assert (
        defaults_for(find_gpu("L4"), load("gemma-3-4b").architecture).max_num_batched_tokens == 2048
    )


def test_capture_sizes():
    assert capture_sizes(1024, 8192) == [
        1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)
    ]  # fmt: skip
    assert capture_sizes(1024, 8192, capability=(10, 0))[-1] == 1024
    assert capture_sizes(16, 8192) == [1, 2, 4, 8, 16, 24, 32]
    assert capture_sizes(1, 8192) == [1, 2]


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": True}, 8 + 16 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "W4A16_AWQ"}}, 4 + 16 / 128),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            4 + 16 / 128,
        ),
        ({"quant_method": "unheard-of"}, None),
    ],
)
def test_bits_of_quantized_weights(config, bits):
    assert weight_bits(config) == bits


FIGURES = json.loads((DATA / "figures.json").read_text())


@pytest.mark.parametrize("row", FIGURES["activations"], ids=lambda row: row["model"])
def test_published_activation(row):
    """Within 0.025 GiB where the sampler rules a text model, within 7 % elsewhere."""
    step = budget_page().predicted_activation(row)
    is_exact = step.ruled_by == "sampler" and not row.get("is_multimodal")
    allowed = 0.025 if is_exact else 0.07 * row["activation"]
    assert step.peak / GIB == pytest.approx(row["activation"], abs=allowed)


def test_measures_on_published_starts():
    page = budget_page()
    rows = [row for kind in ("starts", "aside", "later") for row in FIGURES[kind]]
    errors, inside = [], 0
    for row in rows:
        budget = page.predicted(row)
        errors.append(budget.kv_cache_bytes / GIB / row["kv"] - 1)
        low, high = budget.interval
        inside += low <= row["kv"] * GIB <= high
    assert statistics.median(map(abs, errors)) < 0.015
    assert sum(abs(error) < 0.04 for error in errors) >= 0.85 * len(errors)
    assert inside >= 0.9 * len(errors)


def test_the_page_is_up_to_date():
    page = budget_page()
    text = page.PAGE.read_text()
    assert page.updated(text) == text, "run scripts/make_budget_page.py"


#: What vLLM 0.33.0's model runner allocates more with --enable-lora, as its construction on the
#: meta device shows: model, TP, --max-loras, --max-lora-rank, bytes.
ADAPTERS = (
    ("llama-3.1-8b", 1, 1, 16, 92957696),
    ("llama-3.1-8b", 1, 4, 64, 1511681024),
    ("llama-3.1-8b", 2, 4, 64, 1061819392),
    ("qwen3-30b-a3b", 1, 4, 64, 27214531584),
)


@pytest.mark.parametrize(("source", "ranks", "adapters", "rank", "recorded"), ADAPTERS)
def test_adapters(source, ranks, adapters, rank, recorded):
    """Within the 3 % that the budget states; experts take by far the most."""
    options = ModelOptions(tensor_parallel_size=ranks)
    model = load(source)
    deployment = Deployment(find_gpu("H200"), 0.92, 256, adapters=adapters, adapter_rank=rank)
    (budget,) = memory_budgets(model, options, deployment, weights_on_ranks(model, options))
    (part,) = [part for part in budget.parts if part.name == "LoRA adapters"]
    assert part.bytes == pytest.approx(recorded, rel=0.03)
    assert part.error == pytest.approx(0.03 * part.bytes, rel=0.01)


def test_a_line_with_adapters():
    line = ("vllm", "serve", "llama-3.1-8b", "--enable-lora", "--max-loras", "4")
    answer = json.loads(run("plan", "--gpu", "H100", "--json", "--", *line).stdout)
    (budget,) = answer["budget"]
    assert "LoRA adapters" in [part["name"] for part in budget["parts"]]
