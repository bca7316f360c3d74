"""The native hasher of token blocks beside vLLM's: every hash of random requests, byte by byte."""

import copy
import os
import random
from collections import Counter

import pytest
import torch

pytest.importorskip("vllm.v1.core.kv_cache_utils")

from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils import hashing
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

from kvplan import _core
from kvplan.vllm import block_hasher
from kvplan.vllm.patch import Applied

NUM_REQUESTS = int(os.environ.get("KVPLAN_HASHED_REQUESTS", "2000"))
FUNCTIONS = (hashing.sha256, hashing.sha256_cbor)
# Where an encoding changes its length.
EDGES = (0, 1, 23, 24, 255, 256, 65535, 65536, 2**31 - 1)


@pytest.fixture(params=FUNCTIONS, ids=lambda function: function.__name__)
def hash_function(request):
    kv_cache_utils.init_none_hash(request.param)
    return request.param


def hashers(block_size, hash_function):
    vllms = kv_cache_utils.get_request_block_hasher(block_size, hash_function)
    ours = block_hasher.request_block_hasher(vllms, block_size, hash_function)
    assert type(ours) is _core.RequestBlockHasher
    return vllms, ours


def make_request(hasher, tokens, **other):
    parameters = SamplingParams(max_tokens=16)
    return Request("a", tokens, parameters, None, block_hasher=hasher, **other)


def random_tokens(rng, count):
    kind = rng.randrange(4)
    if kind == 0:
        return [rng.choice(EDGES) for _ in range(count)]
    largest = (255, 128_000, 2**31 - 1)[kind - 1]
    return [rng.randint(0, largest) for _ in range(count)]


def random_extras(rng, num_tokens):
    """What makes extra keys, and which: most requests have none."""
    kind = rng.choice(("none", "none", "salt", "lora", "images", "images and salt", "embeds"))
    other = {}
    if "salt" in kind:
        other["cache_salt"] = rng.choice(("", "pepper", "ä" * 300))
    if kind == "lora":
        other["lora_request"] = LoRARequest("name", 1, "path")
    if kind == "embeds":
        other["prompt_embeds"] = torch.rand(num_tokens, 2)
    if "images" in kind:
        offset = 0
        other["mm_features"] = []
        for i in range(rng.randint(1, 3)):
            offset += rng.randint(0, 8)
            length = rng.randint(1, 30)
            place = PlaceholderRange(offset=offset, length=length)
            other["mm_features"].append(MultiModalFeatureSpec(None, "image", f"image {i}", place))
            offset += length
    return kind, other


def test_random_requests(hash_function):
    rng = random.Random(4)
    paths = Counter()
    for _ in range(NUM_REQUESTS):
        block_size = rng.choice((1, 2, 3, 4, 16, 23, 24, 32, 255, 256, 784))
        vllms, ours = hashers(block_size, hash_function)
        num_tokens = rng.choice((0, 1, block_size, rng.randint(1, 6 * block_size)))
        tokens = random_tokens(rng, num_tokens)
        kind, other = random_extras(rng, num_tokens)
        if kind == "embeds" and not num_tokens:
            continue
        requests = [make_request(hasher, list(tokens), **other) for hasher in (vllms, ours)]
        for step in range(rng.randint(0, 4)):
            more = random_tokens(rng, rng.choice((1, 1, block_size, 3 * block_size)))
            if rng.random() < 0.2:
                # A streamed input replaces the tokens, and hashes start anew.
                for request in requests:
                    del request._all_token_ids[len(request._all_token_ids) // 2 :]
                    del request.block_hashes[len(request._all_token_ids) // block_size :]
            for request in requests:
                request.append_output_token_ids(more[0] if len(more) == 1 else more)
            assert requests[0].block_hashes == requests[1].block_hashes, (kind, step)
        assert [type(each) for each in requests[1].block_hashes] == [bytes] * len(
            requests[1].block_hashes
        )
        paths[kind, "native"] += ours.num_native
        paths[kind, "vLLM"] += ours.num_by_vllm
    for kind in ("none", "salt", "images", "images and salt"):
        assert paths[kind, "native"], paths
    for kind in ("lora", "embeds", "images", "images and salt"):
        assert paths[kind, "vLLM"], paths
    assert not paths["none", "vLLM"]


@pytest.mark.parametrize("block_size", [8191, 8192])
def test_largest_blocks(hash_function, block_size):
    vllms, ours = hashers(block_size, hash_function)
    tokens = [2**31 - 1 - i for i in range(2 * block_size)]
    assert ours(make_request(None, tokens)) == vllms(make_request(None, tokens))
    assert ours.num_native == 1


class _Int(int):
    pass


@pytest.mark.parametrize(
    "odd", [True, -1, 2**31, 2**70, _Int(3), 1.5], ids=lambda odd: type(odd).__name__ + str(odd)
)
def test_tokens_that_are_not_plain_ids(odd, hash_function):
    vllms, ours = hashers(2, hash_function)
    tokens = [1, 2, 3, odd]
    assert ours(make_request(None, tokens)) == vllms(make_request(None, tokens))
    assert ours.num_by_vllm == 1


def test_a_changed_none_hash_counts(hash_function, monkeypatch):
    vllms, ours = hashers(2, hash_function)
    before = ours(make_request(None, [1, 2]))
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    kv_cache_utils.init_none_hash(hash_function)
    after = ours(make_request(None, [1, 2]))
    assert before != after
    assert after == vllms(make_request(None, [1, 2]))


def test_other_objects_go_to_vllm(hash_function):
    vllms, ours = hashers(2, hash_function)

    class Longer(Request):
        @property
        def num_tokens(self):
            return 2

    request = Longer("a", [1, 2, 3, 4], SamplingParams(max_tokens=1), None)
    assert len(ours(request)) == 1
    request = make_request(None, [1, 2, 3, 4])
    request._all_token_ids = tuple(request._all_token_ids)
    assert ours(request) == vllms(request)
    assert ours.num_by_vllm == 2
    with pytest.raises(AttributeError):
        ours(object())
    with pytest.raises(TypeError):
        ours()


def test_what_is_not_native_stays_vllms():
    kv_cache_utils.init_none_hash(hashing.sha256)
    vllms = kv_cache_utils.get_request_block_hasher(16, hashing.sha256)
    for block_size, function in (
        (16, hashing.xxhash),
        (16, lambda value: b""),
        (8193, hashing.sha256),
        (0, hashing.sha256),
    ):
        assert block_hasher.request_block_hasher(vllms, block_size, function) is vllms


def test_installed_where_vllm_makes_it(hash_function):
    from vllm.v1.engine import core

    vllms = kv_cache_utils.get_request_block_hasher
    applied = Applied(block_hasher.patches())
    try:
        assert type(core.get_request_block_hasher(16, hash_function)) is _core.RequestBlockHasher
        named = core.get_request_block_hasher(hash_block_size=16, caching_hash_fn=hash_function)
        assert type(named) is _core.RequestBlockHasher
        lookahead = core.get_request_block_hasher(16, hash_function, 1)
        assert type(lookahead) is not _core.RequestBlockHasher
        with pytest.raises(TypeError):
            core.get_request_block_hasher(16)
    finally:
        applied.undo()
    assert core.get_request_block_hasher is vllms is kv_cache_utils.get_request_block_hasher


def test_a_bad_algorithm_is_refused():
    with pytest.raises(ValueError, match="sha1"):
        _core.RequestBlockHasher("sha1", 16, Request, {}, None, None, None)


def test_copies_of_a_request_keep_their_hasher(hash_function):
    _, ours = hashers(2, hash_function)
    request = copy.copy(make_request(ours, [1, 2, 3]))
    request.append_output_token_ids(4)
    assert len(request.block_hashes) == 2
