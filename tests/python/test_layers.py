"""Who may import whom, in Python and between the folders of csrc: one direction, and no circle."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kvplan"

# A room and what it may import besides itself; what is in no room is the API.
ROOMS = {
    "kvplan.vllm": {"api"},
    "kvplan.offline": {"api"},
    "kvplan.bench": {"api", "kvplan.vllm", "kvplan.offline"},
    "api": set(),
}
# Old import paths lead to new ones, and `python -m kvplan` is the command line.
DOORS = {"kvplan._moved", "kvplan.__main__"}
# The command line measures on request: `kvplan bench`.
MEASURING = {"kvplan.offline.cli.bench"}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(module):
    return next((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), "api")


def is_for_types(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(tree, *, when_imported):
    """The import statements of a module; with ``when_imported``, those that importing it runs."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if is_for_types(node):
            continue
        if when_imported and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        waiting += ast.iter_child_nodes(node)


def imported(module, *, when_imported):
    """The modules of kvplan that a module imports, by their own names."""
    found = set()
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in statements(tree, when_imported=when_imported):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{module} imports relatively"
            names = [
                f"{node.module}.{alias.name}"
                if f"{node.module}.{alias.name}" in MODULES
                else node.module
                for alias in node.names
                if (node.module, alias.name) != ("kvplan", "_core")
            ]
        found |= {name for name in names if name in MODULES}
    return found - {module}


@pytest.mark.parametrize("module", sorted(set(MODULES) - DOORS))
def test_rooms_import_in_one_direction(module):
    allowed = ROOMS[room_of(module)] | {room_of(module)}
    if module in MEASURING:
        allowed.add("kvplan.bench")
    assert {n for n in imported(module, when_imported=False) if room_of(n) not in allowed} == set()


def circles(edges):
    """The strongly connected components of more than one node."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def test_importing_runs_in_no_circle():
    assert circles({m: imported(m, when_imported=True) for m in MODULES}) == []


HEAVY = {"torch", "vllm", "transformers", "numpy"}
WITHOUT_DEFAULTS = """
from kvplan.offline import models
config = dict(models.load("gemma-3-27b").values)
config["text_config"] = dict(config["text_config"], max_position_embeddings=None)
models.kv_cache_specs(models.ModelConfig(config, "x"))
"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import kvplan.planning, kvplan.builder, kvplan.specs", HEAVY | {"click", "msgspec"}),
        ("import kvplan; kvplan.BlockPool(4)", HEAVY),
        ("import kvplan.request", HEAVY),
        (WITHOUT_DEFAULTS, HEAVY),
    ],
)
def test_nothing_heavy_is_imported(code, heavy):
    code += f"\nimport sys; assert not {heavy} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def folder_of(path):
    """The room of a source file: the first folder, within `planning` the second."""
    parts = path.split("/")
    if parts[0] == "planning" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def included():
    csrc = ROOT / "csrc"
    edges = {}
    for path in sorted([*csrc.rglob("*.h"), *csrc.rglob("*.cpp"), *csrc.rglob("*.cu*")]):
        name = str(path.relative_to(csrc)).removeprefix("include/")
        for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
            assert (csrc / target).exists() or (csrc / "include" / target).exists(), (name, target)
            if folder_of(target) != folder_of(name):
                edges.setdefault(folder_of(name), set()).add(folder_of(target))
    return edges


def test_folders_of_sources_include_in_no_circle():
    edges = included()
    assert circles(edges) == []
    assert "kvplan" not in edges, "a public header includes a private one"
    core = {"planning", "block_pool", "cache_manager", "check", "device", "json_request", "c_api"}
    for folder, targets in edges.items():
        if folder.split("/")[0] in core:
            assert "bindings" not in {target.split("/")[0] for target in targets}, folder
