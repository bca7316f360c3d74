"""Write kvplan/_core.pyi from the built module: run it after changing the bindings.

Needs pybind11-stubgen and an importable kvplan; tests/python/test_stub.py tells whether it is due.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import kvplan._core as core

TARGET = Path(__file__).parent.parent / "kvplan" / "_core.pyi"
INIT = "    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ..."
PYBIND_INT = "typing.SupportsInt | typing.SupportsIndex"
PYBIND_FLOAT = "typing.SupportsFloat | typing.SupportsIndex"


def exception_stub(name: str) -> str:
    """The class statement of an exception, which the generator takes for kvplan's own."""
    cls = getattr(core, name)
    bases = ", ".join(base.__name__ for base in cls.__bases__)
    body = "    ..."
    if name == "NotEnoughMemory":
        numbers = re.search(r"Attributes: ([\w, ]+)", cls.__doc__).group(1).split(", ")
        body = "\n".join(f"    {number}: int" for number in numbers)
    return f'class {name}({bases}):\n    """{cls.__doc__}"""\n{body}\n'


def add_missing(text: str) -> str:
    """What the generator does not see of hand-written types, as attributes of any type."""
    tree = ast.parse(text)
    in_stub = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    lines = text.splitlines()
    for name, cls in reversed(vars(core).items()):
        if not isinstance(cls, type) or name.startswith("_") or issubclass(cls, Exception):
            continue
        node = in_stub.get(name)
        known = {getattr(n, "name", None) for n in node.body} if node else set()
        members = [m for m in vars(cls) if not m.startswith("_") and m not in known]
        attributes = [f"    {m}: typing.Any" for m in members]
        if node is None:
            lines += [f"class {name}:", f'    """{cls.__doc__}"""', INIT, *attributes]
        elif attributes and not any(isinstance(n, ast.AnnAssign) for n in node.body):
            lines[node.end_lineno : node.end_lineno] = [INIT, *attributes]
    return "\n".join(lines) + "\n"


def annotate(text: str) -> str:
    """Any for what the generator leaves without a type; docstrings of a line in one."""
    text = re.sub(r'(:\n +)"""\n +([^\n"]+[^\n"\\])\n +"""', r'\1"""\2"""', text)
    text = re.sub(r"\*(args|kwargs)(?=[,)])", r"*\1: typing.Any", text)
    text = re.sub(r"^( *def \w+\(.*\)):$", r"\1 -> typing.Any:", text, flags=re.M)
    # A pointer that may be null.
    text = re.sub(r"(\w+: (?!typing\.Any)[\w.]+) = None(?=[,)])", r"\1 | None = None", text)
    text = re.sub(r"(def __eq__\(self, \w+): [\w.]+\)", r"\1: object)", text)
    return re.sub(r"^( *)__hash__:.*$", r"\1__hash__ = None  # type: ignore", text, flags=re.M)


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        subprocess.run(
            [sys.executable, "-m", "pybind11_stubgen", "kvplan._core", "-o", out],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        text = (Path(out) / "kvplan" / "_core.pyi").read_text()
    names = re.findall(r"^from kvplan import (\w+)$", text, re.M)
    text = re.sub(r"^from kvplan(?:\.[\w.]+)? import \w+\n", "", text, flags=re.M)
    known: set[str] = set()
    exceptions = []
    while names:  # bases first
        for name in names:
            if all(b.__name__ not in names for b in getattr(core, name).__bases__):
                exceptions.append(exception_stub(name))
                known.add(name)
        names = [name for name in names if name not in known]
    # A list of all names would say again what follows.
    text = re.sub(r"^__all__: .*\n", lambda _: "".join(exceptions), text, flags=re.M)
    # pybind11 spells an argument that takes an integer at length.
    text = text.replace(PYBIND_INT, "int").replace(PYBIND_FLOAT, "float")
    text = text.replace(": int = None", ": int | None = None")
    TARGET.write_text(annotate(add_missing(text)))
    subprocess.run(["ruff", "format", "-q", str(TARGET)], check=True)


if __name__ == "__main__":
    main()
