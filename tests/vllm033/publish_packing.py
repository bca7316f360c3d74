"""Print what every attention backend of vLLM 0.33.0 publishes about a KV cache, as JSON.

Run in a process of its own: it replaces vLLM's platform (see stand_in_cuda.py).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

#: Head sizes that some backend takes, with equal and with unequal value heads.
HEADS = ((64, 64), (128, 128), (256, 256), (512, 512), (576, 0), (192, 128))


def variants() -> list[dict[str, Any]]:
    """Specs to publish, as keyword arguments with strings for dtypes and modes."""
    from vllm.v1.kv_cache_interface import KVQuantMode

    modes = [mode.name for mode in KVQuantMode]
    found = []
    for (head, head_v), mode, heads, block in itertools.product(HEADS, modes, (1, 8), (1, 16, 64)):
        if heads == 8 and (head, head_v) == (576, 0):
            continue
        dtype = "bfloat16" if mode == "NONE" else "uint8"
        found.append(
            {
                "block_size": block,
                "num_kv_heads": heads,
                "head_size": head,
                "head_size_v": head_v,
                "dtype": dtype,
                "kv_quant_mode": mode,
            }
        )
    return found


def published() -> dict[str, Any]:
    """Backend name to its declarations and to one packed spec (or error) per variant."""
    import torch
    from stand_in_cuda import spec_to_dict
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.ops.rocm_octave import register_rope_dim
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode

    for head, _ in HEADS:
        with contextlib.suppress(ValueError):
            register_rope_dim(head, 64)

    def encode(size: Any) -> Any:
        return {"multiple_of": size.base} if isinstance(size, MultipleOf) else size

    result: dict[str, Any] = {}
    cases = variants()
    for member in AttentionBackendEnum:
        try:
            backend = member.get_class()
        except Exception:  # a backend of another platform
            continue
        specs = []
        for case in cases:
            arguments = {
                **case,
                "dtype": getattr(torch, case["dtype"]),
                "kv_quant_mode": KVQuantMode[case["kv_quant_mode"]],
            }
            try:
                specs.append(spec_to_dict(backend.customize_spec(FullAttentionSpec(**arguments))))
            except (AssertionError, ValueError) as error:
                specs.append(type(error).__name__)
        layouts = backend.supported_kv_cache_layouts()
        result[member.name] = {
            "kernel_block_sizes": [encode(s) for s in backend.get_supported_kernel_block_sizes()],
            "preferred_block_size": backend.get_preferred_block_size(16),
            "layouts": [layout.name for layout in layouts or ()],
            "kv_cache_dtypes": list(backend.supported_kv_cache_dtypes),
            "head_sizes": list(backend.get_supported_head_sizes()),
            "is_mla": backend.is_mla(),
            "is_sparse": backend.is_sparse(),
            "supports_dcp": backend.supports_dcp(),
            "specs": specs,
        }
    return {"cases": cases, "backends": result}


def main() -> None:
    """Write the JSON to stdout, and nothing else."""
    with contextlib.redirect_stdout(io.StringIO()):
        import stand_in_cuda  # noqa: F401

        result = published()
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
