"""torch for the tests that need it, else a skip of their file that says why."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what torch warns about when it is imported or finds no driver
    torch = pytest.importorskip("torch", reason="torch is not installed")
    CUDA = torch.cuda.is_available()

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no GPU")),
]
