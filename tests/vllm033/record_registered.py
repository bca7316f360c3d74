"""Write what the real vLLM 0.33.0 registers for a model into a JSON fixture.

Usage:
    python tests/vllm033/record_registered.py              # regenerate every fixture
    python tests/vllm033/record_registered.py NAME...      # some of them
    python tests/vllm033/record_registered.py --config FILE --out FILE [--engine-args JSON]

A fixture holds the model's config, the engine arguments and the registered specs, so the tests
that read it need neither vLLM nor torch. See stand_in_cuda.py for how vLLM runs without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "data" / "registered"


def record(config: dict[str, Any], engine_args: dict[str, Any]) -> dict[str, Any]:
    """Fixture content for one config.json and one set of engine arguments."""
    sys.path.insert(0, str(HERE))
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


def dump(fixture: dict[str, Any], path: Path) -> None:
    """Write a fixture with one layer and one spec a line."""
    text = json.dumps(fixture, indent=1, sort_keys=False)
    path.write_text(_join_short_lists(text) + "\n")


def _join_short_lists(text: str) -> str:
    import re

    pattern = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
    for _ in range(2):
        text = pattern.sub(lambda m: "[" + re.sub(r"\s*\n\s*", " ", m.group(1)) + "]", text)
    return text


def main() -> None:
    """Regenerate fixtures, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine-args", default="{}")
    arguments = parser.parse_args()
    if arguments.config is not None:
        config = json.loads(arguments.config.read_text())
        dump(record(config, json.loads(arguments.engine_args)), arguments.out)
        return
    for path in sorted(FIXTURES.rglob("*.json")):
        if arguments.names and path.stem not in arguments.names:
            continue
        fixture = json.loads(path.read_text())
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            json.dump(fixture["config"], config)
            config.flush()
            capability = ".".join(str(part) for part in fixture["capability"])
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--config",
                    config.name,
                    "--out",
                    str(path),
                    "--engine-args",
                    json.dumps(fixture["engine_args"]),
                ],
                check=True,
                env={**__import__("os").environ, "KVPLAN_STAND_IN_CAPABILITY": capability},
            )
        print(path.stem)


if __name__ == "__main__":
    main()
