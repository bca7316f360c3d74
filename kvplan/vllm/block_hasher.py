"""vLLM's hashing of a request's token blocks, natively."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.utils import hashing
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

from kvplan import _core
from kvplan.vllm import report
from kvplan.vllm.patch import Patch, stock

__all__ = ["patches", "request_block_hasher"]

_NATIVE = {hashing.sha256: "sha256", hashing.sha256_cbor: "sha256_cbor"}


def request_block_hasher(
    vllm_hasher: Callable[[Request], list[bytes]],
    block_size: int,
    hash_function: Callable[[Any], bytes],
) -> Callable[[Request], list[bytes]]:
    """The native hasher that equals ``vllm_hasher``, or that one.

    Requests of which kvplan cannot be sure are handed to ``vllm_hasher`` one by one.
    """
    algorithm = _NATIVE.get(hash_function)
    if algorithm is None or not isinstance(block_size, int):
        return vllm_hasher
    try:
        hasher: Any = _core.RequestBlockHasher(
            algorithm,
            block_size,
            Request,
            vars(kv_cache_utils),
            hash_function,
            kv_cache_utils.generate_block_hash_extra_keys,
            vllm_hasher,
        )
    except (ValueError, NotImplementedError) as error:
        report.fallback(f"token hashes are vLLM's: {error}")
        return vllm_hasher
    return hasher


def patches() -> list[Patch]:
    """Puts the native hasher where vLLM makes its own."""
    name = "get_request_block_hasher"
    vllms = stock(kv_cache_utils, name)

    def get_request_block_hasher(
        hash_block_size: int,
        caching_hash_fn: Callable[[Any], bytes],
        num_hash_lookahead_tokens: int = 0,
    ) -> Callable[[Request], list[bytes]]:
        # vLLM 0.32 knows no lookahead.
        lookahead = (num_hash_lookahead_tokens,) if num_hash_lookahead_tokens else ()
        vllm_hasher = vllms(hash_block_size, caching_hash_fn, *lookahead)
        if lookahead:
            return vllm_hasher
        return request_block_hasher(vllm_hasher, hash_block_size, caching_hash_fn)

    return [Patch(kv_cache_utils, name, get_request_block_hasher)]
