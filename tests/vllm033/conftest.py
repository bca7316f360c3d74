"""Imports vLLM once, without turning what it and torch warn about into errors."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import vllm.v1.core.kv_cache_manager  # noqa: F401
    except ImportError:
        collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def nothing_installed(monkeypatch):
    """No switch set, nothing installed, nothing counted; each test installs when it wants to."""
    import kvplan.vllm
    from kvplan.vllm import report

    monkeypatch.setenv("KVPLAN_BLOCK_POOL", "0")
    for name in (
        "CACHE_MANAGER",
        "DISABLE",
        "GROUPING",
        "MAX_GROUPS",
        "RECORD",
        "VERIFY",
        "VLLM_FLOW",
    ):
        monkeypatch.delenv(f"KVPLAN_{name}", raising=False)
    report.reset()
    yield
    kvplan.vllm.uninstall()
