"""Native specs in few words, for tests that build models by hand."""

from kvplan import specs


def full(heads, head_size, block_size=16, **fields):
    """A bf16 layer that attends to everything."""
    return specs.FullAttentionSpec(
        block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype="bfloat16", **fields
    )


def sliding(window, heads, head_size, block_size=16, **fields):
    """A bf16 layer that attends to the last `window` tokens."""
    return specs.SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=heads,
        head_size=head_size,
        dtype="bfloat16",
        sliding_window=window,
        **fields,
    )


def mamba(page_bytes, block_size):
    """A state that fills one page of `page_bytes`."""
    return specs.MambaSpec(block_size=block_size, shapes=((page_bytes // 4,),), dtypes=("float32",))


def layers(*counted):
    """`(count, spec)` pairs as one dict of layer names to specs."""
    rows = [spec for count, spec in counted for _ in range(count)]
    return {f"layers.{i}": spec for i, spec in enumerate(rows)}
