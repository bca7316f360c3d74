"""Spec classes as a plugin has them: vLLM's, with other numbers, for each of vLLM's classes."""

import contextlib
import dataclasses
import functools
import random
import zlib
from collections.abc import Iterator
from typing import Any

import oracle
from vllm.utils.math_utils import round_up

interface = oracle.interface

KINDS = (
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "HiddenStateCacheSpec",
    "RSWASpec",
    "SinkFullAttentionSpec",
    "ChunkedLocalAttentionSpec",
    "SlidingWindowSpec",
    "SlidingWindowMLASpec",
    "CircularBufferSpec",
    "CrossAttentionSpec",
    "MambaSpec",
)


def number(base: type, name: str, change: Any) -> dict[str, Any]:
    """A property that changes what the class above says."""
    return {name: property(lambda self: change(self, getattr(super(base_of(self), self), name)))}


def base_of(spec: Any) -> type:
    """The plugin's class, whose `super()` is vLLM's."""
    return next(cls for cls in type(spec).__mro__ if cls.__module__ == __name__)


CHANGES = {
    # A header in each page, a page of twice the size, pages that end on a boundary.
    "Header": lambda base: number(base, "page_size_bytes", lambda s, n: n + 4096),
    "Twice": lambda base: number(base, "page_size_bytes", lambda s, n: 2 * n),
    "Rounded": lambda base: number(base, "page_size_bytes", lambda s, n: round_up(n, 512)),
    # More bytes in each state, from which everything else follows.
    "Scales": lambda base: number(base, "state_content_size_bytes", lambda s, n: n + 8),
    "Strided": lambda base: {"get_block_stride_alignment": lambda self: 256},
    "Plain": lambda base: {},
    "Window": lambda base: {"prefix_cacheable": property(lambda self: True)},
}
ATTENTION_CHANGES = {
    "Slots": lambda base: number(base, "num_heads", lambda s, n: n + 1),
    "Real": lambda base: number(base, "real_page_size_bytes", lambda s, n: n + 100),
    "Unpadded": lambda base: number(base, "unpadded_page_size_bytes", lambda s, n: n + 64),
}


@functools.cache
def plugin_class(kind: str, change: str) -> type:
    """`kind` with that change, once with its own dataclass decorator and once without."""
    base = getattr(interface, kind)
    body = (CHANGES | ATTENTION_CHANGES)[change](base)
    cls = type(f"{change}{kind}", (base,), body | {"__module__": __name__})
    return dataclasses.dataclass(frozen=True)(cls) if len(cls.__name__) % 2 else cls


def changes_of(kind: str) -> list[str]:
    """The changes that a class of this kind can have."""
    attention = issubclass(getattr(interface, kind), interface.AttentionSpec)
    return [*CHANGES, *(ATTENTION_CHANGES if attention else ())]


def as_plugin(spec: Any, cls: type) -> Any:
    """The same fields in another class."""
    return cls(**{f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.init})


@contextlib.contextmanager
def in_some_layers(seed: int) -> Iterator[None]:
    """Requests have one or two classes of plugins in some of their layers."""
    inputs = oracle.inputs
    oracle.inputs = lambda request: some_as_plugins(*inputs(request), seed)
    try:
        yield
    finally:
        oracle.inputs = inputs


def some_as_plugins(config: Any, specs: Any, memory: Any, seed: int) -> Any:
    """The planner's input with some specs in other classes."""
    rng = random.Random(seed)
    share = rng.choice((0.2, 0.5, 1.0))
    change_of = {
        kind: rng.sample(changes_of(kind), rng.choice((1, 1, 2)))
        for kind in KINDS
        if hasattr(interface, kind)
    }
    made: dict[Any, Any] = {}

    def replaced(name: str, spec: Any) -> Any:
        changes = change_of.get(type(spec).__name__)
        # Drawn by name, as each rank has the same layer in the same class.
        draw = random.Random(zlib.crc32(f"{seed} {name}".encode()))
        if changes is None or draw.random() >= share:
            return spec
        cls = plugin_class(type(spec).__name__, draw.choice(changes))
        key = (id(spec), cls)
        if key not in made:
            made[key] = as_plugin(spec, cls)
        return made[key]

    dicts: dict[int, Any] = {}
    for layers in specs:
        if id(layers) not in dicts:
            dicts[id(layers)] = {name: replaced(name, spec) for name, spec in layers.items()}
    return config, [dicts[id(layers)] for layers in specs], memory


def is_broken(reason: str) -> bool:
    """A page that is refused, whoever's class it is, where vLLM may never come to ask for it."""
    return any(
        words in reason
        for words in (
            "page_size_bytes must be at least 1, got 0",
            "page_size_bytes raises AssertionError",
            "holds no state",  # the block is too small for one; also without plugins' classes
        )
    )
