"""Sizes and token counts as people write them."""

import pytest

from kvplan.offline.cli.sizes import (
    format_enough,
    format_exact_size,
    format_size,
    parse_size,
    parse_token_count,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("60GiB", 60 * 2**30),
        ("60 GiB", 60 * 2**30),
        ("60gib", 60 * 2**30),
        ("60G", 60 * 2**30),
        ("60Gi", 60 * 2**30),
        ("80GB", 80 * 10**9),
        ("80gb", 80 * 10**9),
        ("80g", 80 * 10**9),
        ("64e9", 64 * 10**9),
        ("1.5KiB", 1536),
        ("4_000_000", 4_000_000),
        ("4509715660", 4509715660),
        ("1B", 1),
        ("2 bytes", 2),
        ("7.5EiB", None),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_size(text, num_bytes):
    if num_bytes is None:
        with pytest.raises(ValueError, match="no unit"):
            parse_size(text)
    else:
        assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("12 parsecs", "no unit 'parsecs'"),
        ("0", "less than one byte"),
        ("-3GiB", "less than one byte"),
        ("0.5", "less than one byte"),
        ("nan", "not a size"),
        ("inf", "not a size"),
        ("", "not a size"),
        ("GiB", "not a size"),
        ("1.2.3GiB", "no number"),
        ("9223372036854775808", r"2\*\*63"),
        ("1e400", r"2\*\*63"),
        ("1e999999999", r"2\*\*63"),
    ],
)
def test_no_size(text, match):
    with pytest.raises(ValueError, match=match):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (65536, "64 KiB"), (986112, "963 KiB"), (3 << 29, "1.50 GiB")],
)
def test_format_size(num_bytes, text):
    assert format_size(num_bytes) == text


@pytest.mark.parametrize("num_bytes", [1, 1023, 1024, 19302973440, 60 << 30, 2**40, 10**12 + 7])
def test_written_sizes_are_read_back(num_bytes):
    assert parse_size(format_exact_size(num_bytes)) == num_bytes
    enough = parse_size(format_enough(num_bytes))
    assert num_bytes <= enough <= num_bytes * 1.01


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("131072", 131072),
        ("128K", 131072),
        ("128k", 128000),
        ("1M", 2**20),
        ("25.6k", 25600),
        ("131,072", 131072),
    ],
)
def test_token_count(text, tokens):
    assert parse_token_count(text) == tokens


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1.0001k", "12 tokens", "", "1e400", "9" * 30])
def test_no_token_count(text):
    with pytest.raises(ValueError, match="token"):
        parse_token_count(text)
