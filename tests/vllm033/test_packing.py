# ruff: noqa: E402 - imports follow importorskip
"""kvplan.offline.packing against the backend classes of the real vLLM 0.33.0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
specs = pytest.importorskip("kvplan.specs")

from kvplan.offline.packing import (
    ATTENTION_BACKENDS,
    KV_CACHE_DTYPES,
    customize_spec,
    default_block_size,
    get_kv_quant_mode,
    storage_dtype,
    supported_kernel_block_sizes,
    supported_layouts,
)

PUBLISHER = Path(__file__).with_name("publish_packing.py")

#: Backends whose classes do not import on a CPU, and what stands for them instead.
NOT_IMPORTABLE = {"CUTLASS_MLA"}


def publish(capability: str) -> dict[str, Any]:
    """What vLLM publishes on a GPU of this compute capability."""
    done = subprocess.run(
        [sys.executable, str(PUBLISHER)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "KVPLAN_STAND_IN_CAPABILITY": capability},
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["9.0", "10.0"])
def vllm(request: pytest.FixtureRequest) -> tuple[tuple[int, int], dict[str, Any]]:
    """Compute capability and what vLLM publishes on it."""
    major, minor = request.param.split(".")
    return (int(major), int(minor)), publish(request.param)


def encode(size: Any) -> Any:
    return size if isinstance(size, int) else {"multiple_of": size.base}


def packed(name: str, case: dict[str, Any], capability: tuple[int, int]) -> Any:
    """The packing by kvplan of one case, as a dict or the name of an error."""
    spec = specs.FullAttentionSpec(
        **{**case, "kv_quant_mode": getattr(specs.KVQuantMode, case["kv_quant_mode"])}
    )
    try:
        return customize_spec(name, spec, device_capability=capability, rope_dim=64).to_dict()
    except ValueError:
        return None


def test_every_selectable_backend_was_compared(vllm: Any) -> None:
    selectable = {b.name for b in ATTENTION_BACKENDS.values() if b.is_selectable}
    compared = set(vllm[1]["backends"])
    assert selectable - compared - NOT_IMPORTABLE <= {
        name for name in selectable if name.endswith(("_DSV4", "_DSV41"))
    }
    assert len(selectable & compared) >= 40


def test_packed_specs(vllm: Any) -> None:
    capability, published = vllm
    compared = 0
    for name, backend in published["backends"].items():
        if name not in ATTENTION_BACKENDS:
            continue
        for case, expected in zip(published["cases"], backend["specs"], strict=True):
            actual = packed(name, case, capability)
            if isinstance(expected, str):
                assert actual is None, (name, case, expected, actual)
                continue
            if actual is not None:
                assert json.loads(json.dumps(actual)) == expected, (name, case)
                compared += 1
                continue
            pytest.fail(f"kvplan refuses {case} on {name}, vLLM packs it as {expected}")
    assert compared > 5000


def test_kernel_block_sizes_and_layouts(vllm: Any) -> None:
    capability, published = vllm
    for name, backend in published["backends"].items():
        if name not in ATTENTION_BACKENDS:
            continue
        known = ATTENTION_BACKENDS[name]
        sizes = supported_kernel_block_sizes(name, device_capability=capability)
        assert [encode(size) for size in sizes] == backend["kernel_block_sizes"], name
        assert default_block_size(known, 16, sizes) == backend["preferred_block_size"], name
        assert (known.is_mla, known.is_sparse) == (backend["is_mla"], backend["is_sparse"]), name
        assert known.supports_dcp == backend["supports_dcp"], name
        assert list(known.kv_cache_dtypes) == backend["kv_cache_dtypes"], name
        if known.head_sizes:
            assert list(known.head_sizes) == backend["head_sizes"], name
        assert list(supported_layouts(name, capability)) == backend["layouts"], name


def test_quant_modes_and_storage() -> None:
    from vllm.config.cache import KV_CACHE_DTYPES as VLLM_DTYPES
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
    from vllm.v1.kv_cache_interface import get_kv_quant_mode as vllm_mode

    assert set(KV_CACHE_DTYPES) == set(VLLM_DTYPES)
    for name in KV_CACHE_DTYPES:
        assert int(get_kv_quant_mode(name)) == int(vllm_mode(name)), name
        if name != "auto":
            dtype = str(STR_DTYPE_TO_TORCH_DTYPE[name]).removeprefix("torch.")
            assert storage_dtype(name, "bfloat16") == dtype, name
