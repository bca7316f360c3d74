"""Write what the real vLLM 0.33.0 allocates beside KV caches into tests/data/budget.

Usage:
    python tests/vllm033/record_budget.py              # again every case that is recorded
    python tests/vllm033/record_budget.py NAME...      # those whose model has one of these names
    python tests/vllm033/record_budget.py --add CASE   # another one
    python tests/vllm033/record_budget.py --case CASE  # print what would be recorded

A case is JSON: the ``model`` (a built-in name, or that of a file in tests/data/budget/configs), and
arguments of `record`; ``"runner": "v1"`` takes the older model runner, and ``"vllm": "0.32"`` is a
case of that version, whose Python (tests/engine/make_env) runs this then; ``"steps_only": true``
leaves the weights out, where stand-ins for kernels that lay them out anew keep both forms. Of each
case this records, in bytes: the weights of a rank; and at some points (tokens and sequences of a
step) what the model runner keeps from the start, the peak that vLLM measures, the peaks within the
encoder, the forward pass and the sampler, and what stays behind. See profile_on_meta.py for how
this runs without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data" / "budget"
BUILT_IN = HERE.parents[1] / "kvplan" / "offline" / "models" / "configs"
#: (batched tokens, sequences) of vLLM's three classes of GPU, and of a server for few users.
#: vLLM that a case is of if it does not say.
VERSION = "0.33"
POINTS = ((8192, 1024), (2048, 256), (16384, 1024), (8192, 16))


def record(
    config: dict[str, Any],
    *,
    tp: int = 1,
    pp: int = 1,
    stage: int = 0,
    engine_args: dict[str, Any] | None = None,
    points: Any = POINTS,
    multimodal: dict[str, Any] | None = None,
    split_limit: int | None = 20 * 2**20,
    watched: int = 0,
) -> dict[str, Any]:
    """The weights of TP rank 0 of a pipeline stage, and the memory of its steps."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(config))
        arguments = dict(engine_args or {})
        drafter = arguments.get("speculative_config", {})
        if "model" in drafter:
            beside = Path(directory, "drafter")
            beside.mkdir()
            (beside / "config.json").write_text(json.dumps(config_of(drafter["model"])))
            arguments["speculative_config"] = {**drafter, "model": str(beside)}
        return _record(
            directory, tp, pp, stage, arguments, points, multimodal, split_limit, watched
        )


def _record(
    directory: str,
    tp: int,
    pp: int,
    stage: int,
    engine_args: dict[str, Any],
    points: Any,
    multimodal: dict[str, Any] | None,
    split_limit: int | None,
    watched: int,
) -> dict[str, Any]:
    import profile_on_meta as meta
    import stand_in_cuda as stand_in
    import torch
    import vllm.ir.op as ir_op
    from caching_allocator import CachingAllocator
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import (
        initialize_model,
        process_weights_after_loading,
    )
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker import workspace

    allocator = CachingAllocator()
    books = meta.Books(allocator)
    meta.prepare(books)
    if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1":
        import vllm.v1.worker.gpu.model_runner as runner_module
    else:
        import vllm.v1.worker.gpu_model_runner as runner_module
    generator = torch.Generator
    torch.Generator = lambda device=None: generator("cpu")
    device = torch.device("meta")
    stand_in._register_remote_config(directory)
    vllm_config = EngineArgs(
        model=directory,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        distributed_executor_backend="mp" if tp * pp > 1 else None,
        **{
            "max_num_batched_tokens": max((tokens for tokens, _ in points), default=8192),
            "max_num_seqs": max((sequences for _, sequences in points), default=256),
            **engine_args,
        },
    ).create_engine_config()
    stand_in._skip_tokenizer_tables()
    stand_in.set_parallel_groups(tp, pp, stage, 1)
    vllm_config.parallel_config.rank = stage * tp
    ir_op._ENABLE_TORCH_WRAP = False
    vllm_config.kernel_config.ir_op_priority.set_default()
    workspace.init_workspace_manager(device)
    with (
        set_current_vllm_config(vllm_config),
        device,
        meta.RunOnMeta(),
        torch.inference_mode(),
        books,
    ):
        with set_default_torch_dtype(vllm_config.model_config.dtype):
            model = initialize_model(vllm_config)
            process_weights_after_loading(model, vllm_config.model_config, device)
        stand_in._platforms.current_platform.update_block_size_for_backend(vllm_config)
        gc.collect()
        weights = allocator.requested
        loader = types.SimpleNamespace(load_model=lambda **kwargs: model)
        runner_module.get_model_loader = lambda *args, **kwargs: loader
        result = {"weights": weights, "points": []}
        scheduler = vllm_config.scheduler_config
        for tokens, sequences in points:
            scheduler.max_num_batched_tokens, scheduler.max_num_seqs = tokens, sequences
            if multimodal:
                scheduler.max_num_encoder_input_tokens = tokens
                scheduler.encoder_cache_size = tokens
            gc.collect()
            allocator.empty_cache()
            allocator.max_split_bytes = None
            workspace.reset_workspace_manager()
            workspace.init_workspace_manager(device)
            before = allocator.allocated
            if multimodal:
                runner_module.MultiModalBudget = _budget_of(vllm_config, multimodal)
            runner = runner_module.GPUModelRunner(vllm_config, device)
            runner.load_model()
            gc.collect()
            allocator.empty_cache()
            start = allocator.allocated
            phases = _phases(runner, allocator, start, multimodal, vllm_config)
            allocator.peak = start
            allocator.max_split_bytes = split_limit
            books.awaits_cublas = True
            books.start_watching(watched)
            runner.profile_run()
            gc.collect()
            point = {"tokens": tokens, "sequences": sequences, "buffers": start - before}
            point |= {"peak": allocator.peak - start, "kept": allocator.allocated - start, **phases}
            result["points"].append(point)
            if watched:
                point["at_peak"] = books.at_peak
            del runner
    return result


def _phases(
    runner: Any,
    allocator: Any,
    start: int,
    multimodal: Any,
    vllm_config: Any,
) -> dict[str, int]:
    """A dict that fills with each phase's peak above the start while the runner profiles."""
    phases: dict[str, int] = {}

    def measure(owner: Any, name: str, phase: str) -> None:
        inner = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            outer, allocator.phase_peak = allocator.phase_peak, allocator.allocated
            out = inner(*args, **kwargs)
            phases[phase] = max(phases.get(phase, 0), allocator.phase_peak - start)
            allocator.phase_peak = max(outer, allocator.phase_peak)
            return out

        setattr(owner, name, measured)

    if multimodal:
        _describe_items(runner, vllm_config, multimodal)
        measure(runner.model, "embed_multimodal", "encoder")
    measure(runner, "_dummy_run", "forward")
    if getattr(runner, "sampler", None) is not None:
        measure(runner, "_dummy_sampler_run", "sampler")
    return phases


def _items(vllm_config: Any, described: Any) -> tuple[int, int]:
    """Tokens of the encoder's budget, and the items that it takes."""
    scheduler, tokens = vllm_config.scheduler_config, described["tokens"]
    budget = max(scheduler.max_num_encoder_input_tokens, tokens)
    of_prompt = max(1, vllm_config.model_config.max_model_len // tokens)
    return budget, max(1, min(budget // tokens, scheduler.max_num_seqs * of_prompt))


def _budget_of(vllm_config: Any, described: Any) -> Any:
    """A stand-in for the multimodal budget, which asks a processor."""
    modality, tokens = described["modality"], described["tokens"]
    budget, count = _items(vllm_config, described)

    class Budget:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.mm_max_toks_per_item = {modality: tokens}
            self.mm_max_items_per_batch = self.mm_max_items_per_prompt = {modality: count}
            self.mm_limits = {modality: 999}
            self.encoder_cache_size = self.encoder_compute_budget = budget

        def get_encoder_budget(self) -> int:
            return budget

        def get_modality_with_max_tokens(self) -> str:
            return modality

        def get_dummy_encoder_profile_inputs(self, *args: Any, **kwargs: Any) -> Any:
            return [(modality, None)] * count

    return Budget


def _describe_items(runner: Any, vllm_config: Any, described: Any) -> None:
    """Stand in for the dummy items that a processor would make.

    ``described`` holds the modality, an item's tokens, and the model's arguments for one item.
    """
    import torch

    _, count = _items(vllm_config, described)

    def batch(*args: Any, **kwargs: Any) -> dict[str, Any]:
        out = {}
        for name, entry in described["kwargs"].items():
            if "value" in entry:
                out[name] = torch.tensor(entry["value"] * count, device="cpu")
                continue
            shape = (count * entry["shape"][0], *entry["shape"][1:])
            dtype = getattr(torch, entry.get("dtype", "bfloat16"))
            out[name] = torch.empty(shape, dtype=dtype, device="meta")
        return out

    if hasattr(runner, "model_state"):
        runner.model_state.encoder_runner.execute_mm_encoder = lambda inputs: list(
            runner.model.embed_multimodal(**batch())
        )
    else:
        runner._get_mm_dummy_batch = batch


def import_what_all_need() -> None:
    """Import vLLM once, so that the children need not."""
    import profile_on_meta  # noqa: F401 - comes first, for it replaces what the others import
    import vllm.engine.arg_utils
    import vllm.model_executor.layers.fused_moe.layer
    import vllm.model_executor.models.qwen2_moe
    import vllm.v1.worker.gpu.model_runner
    import vllm.v1.worker.gpu_model_runner  # noqa: F401


def in_child(case: dict[str, Any]) -> dict[str, Any] | str:
    """The recording of a case in a process of its own, or the error's text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        own = ("model", "runner", "vllm", "steps_only")
        arguments = {k: v for k, v in case.items() if k not in own}
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(case.get("runner") != "v1"))
        try:
            recorded = record(config_of(case["model"]), **arguments)
            if case.get("steps_only"):
                del recorded["weights"]
            answer = json.dumps(recorded)
        except BaseException as error:  # the parent names it
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
            answer = json.dumps(f"{type(error).__name__}: {str(error)[:300]} ({where})")
        with os.fdopen(write, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "the process ended"


def config_of(model: str) -> dict[str, Any]:
    """The config of a built-in name or of a file beside the recordings."""
    built_in = BUILT_IN / f"{model}.json"
    path = built_in if built_in.exists() else DATA / "configs" / f"{model}.json"
    return json.loads(path.read_text())


def vllm_version() -> str:
    """Major and minor number of the vLLM that is here."""
    import vllm

    return ".".join(vllm.__version__.split(".")[:2])


def main() -> None:
    """Record cases one by one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--add", type=json.loads, action="append", default=[])
    parser.add_argument("--case", type=json.loads)
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    import_what_all_need()
    if arguments.case:
        print(json.dumps(in_child(arguments.case)))
        return
    out = DATA / "recorded.json"
    rows = {json.dumps(row["case"]): row for row in json.loads(out.read_text())}
    cases = arguments.add or [
        row["case"]
        for row in rows.values()
        if not arguments.names or row["case"]["model"] in arguments.names
    ]
    here = vllm_version()
    for case in [case for case in cases if case.get("vllm", VERSION) == here]:
        answer = in_child(case)
        if isinstance(answer, str):
            print(f"NOT RECORDED {json.dumps(case)}: {answer}", flush=True)
            continue
        rows[json.dumps(case)] = {"case": case, **answer}
        lines = ",\n".join(json.dumps(row) for row in rows.values())
        out.write_text(f"[\n{lines}\n]\n")
        print(f"recorded {json.dumps(case)}", flush=True)


if __name__ == "__main__":
    main()
