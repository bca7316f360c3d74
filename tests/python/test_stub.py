"""The committed stub speaks of exactly what the built module has."""

import ast
from pathlib import Path

import pytest

import kvplan
from kvplan import _core

STUB = Path(kvplan.__file__).parent / "_core.pyi"
TREE = ast.parse(STUB.read_text())
REGENERATE = "run scripts/make_stub.py"


def defined_in(body):
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def own_public(namespace):
    return {name for name in vars(namespace) if not name.startswith("_")}


def test_module_names_agree():
    in_stub = {name for name in defined_in(TREE.body) if not name.startswith("_")}
    assert in_stub == own_public(_core), REGENERATE


@pytest.mark.parametrize(
    "node", [n for n in TREE.body if isinstance(n, ast.ClassDef)], ids=lambda n: n.name
)
def test_class_members_agree(node):
    cls = getattr(_core, node.name)
    in_stub = {name for name in defined_in(node.body) if not name.startswith("_")}
    if issubclass(cls, Exception):
        in_stub = set()  # their attributes belong to the instance
    assert in_stub == own_public(cls), REGENERATE
    bases = {ast.unparse(b) for b in node.bases}
    assert all(base in {b.__name__ for b in cls.__mro__} for base in bases), REGENERATE
