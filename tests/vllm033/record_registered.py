"""Record what the real vLLM 0.33.0 registers for a model, in tests/data/registered.

Usage:
    python tests/vllm033/record_registered.py              # every recording anew
    python tests/vllm033/record_registered.py NAME...      # some of them
    python tests/vllm033/record_registered.py --add KIND NAME --config FILE [--engine-args JSON]

A recording holds the model's config, the engine arguments and the registered specs, so the tests
that read it need neither vLLM nor torch; `python tests/recordings.py NAME` shows one. See
stand_in_cuda.py for how vLLM runs without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from recordings import KINDS, recordings, write  # noqa: E402


def record(config: dict[str, Any], engine_args: dict[str, Any]) -> dict[str, Any]:
    """A recording for one config.json and one set of engine arguments."""
    from stand_in_cuda import CAPABILITY, registered, spec_to_dict

    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(config))
        arguments = dict(engine_args)
        draft_config = arguments.pop("draft_config", None)
        if draft_config is not None:
            draft = Path(directory, "draft")
            draft.mkdir()
            (draft / "config.json").write_text(json.dumps(draft_config))
            arguments["speculative_config"] = {
                **arguments["speculative_config"],
                "model": str(draft),
            }
        result = registered(directory, **arguments)
    vllm_config = result["vllm_config"]
    specs: list[dict[str, Any]] = []
    workers = []
    for worker in result["workers"]:
        layers = []
        for name, spec in worker.items():
            encoded = spec_to_dict(spec)
            if encoded not in specs:
                specs.append(encoded)
            layers.append([name, specs.index(encoded)])
        workers.append(layers)
    return {
        "vllm": "0.33.0",
        "capability": list(CAPABILITY),
        "config": config,
        "engine_args": engine_args,
        "specs": specs,
        "workers": workers,
        "backends": result["backends"],
        "layout": result["layout"],
        "block_size": vllm_config.cache_config.block_size,
        "max_model_len": vllm_config.model_config.max_model_len,
        "mamba_cache_mode": vllm_config.cache_config.mamba_cache_mode,
        "max_in_flight_tokens": vllm_config.max_in_flight_tokens,
        "cache_dtype": vllm_config.cache_config.cache_dtype,
        "max_num_encoder_input_tokens": vllm_config.scheduler_config.max_num_encoder_input_tokens,
        "disable_hybrid_kv_cache_manager": bool(
            vllm_config.scheduler_config.disable_hybrid_kv_cache_manager
        ),
    }


def main() -> None:
    """Record anew what is named, or add a recording; each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--add", metavar="KIND", choices=KINDS, help="add the one that is named")
    parser.add_argument("--config", type=Path, help="its config.json")
    parser.add_argument("--engine-args", default="{}")
    parser.add_argument("--capability", default="9.0", help="of the GPU")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        asked = json.load(sys.stdin)
        Path(asked["out"]).write_text(json.dumps(record(asked["config"], asked["engine_args"])))
        return
    if arguments.add:
        (name,) = arguments.names
        asked = {
            "config": json.loads(arguments.config.read_text()),
            "engine_args": json.loads(arguments.engine_args),
            "capability": arguments.capability.split("."),
        }
        write(arguments.add, {**recordings(arguments.add), name: in_a_process(asked)})
        return
    for kind in KINDS:
        found = dict(recordings(kind))
        for name in arguments.names or sorted(found):
            if name in found:
                found[name] = in_a_process(found[name])
                print(name, flush=True)
        write(kind, found)


def in_a_process(asked: dict[str, Any]) -> dict[str, Any]:
    """A recording of the config, engine arguments and GPU of another."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        capability = ".".join(map(str, asked["capability"]))
        subprocess.run(
            [sys.executable, __file__, "--one"],
            input=json.dumps({**asked, "out": out.name}),
            text=True,
            check=True,
            env={**os.environ, "KVPLAN_STAND_IN_CAPABILITY": capability},
        )
        return json.loads(Path(out.name).read_text())


if __name__ == "__main__":
    main()
