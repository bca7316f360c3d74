"""Faults inside kvplan's KV cache manager: the call raises, and nothing is lost."""

import random

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler")

import scheduler_load
from test_cache_manager_face import (  # noqa: F401 (pool and to_native are fixtures)
    TWO_GROUPS,
    VLLM,
    arguments,
    config,
    pool,
    request,
    to_native,
)
from vllm.utils import hashing
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import RequestStatus

from kvplan.vllm import cache_manager

PROMPT = 22


class Scene:
    """A manager amid its work: `old` is running, `cached` is gone, `new` shares its prompt."""

    def __init__(self, to_native):  # noqa: F811
        self.manager = cache_manager.KVCacheManager(
            to_native, VLLM, **arguments(config(*TWO_GROUPS), enable_kv_cache_events=True)
        )
        cached = request("cached", PROMPT)
        self.manager.allocate_slots(cached, PROMPT)
        self.manager.free(cached)
        self.old = request("old", 15, first=100)
        self.manager.allocate_slots(self.old, 15)
        self.old.num_computed_tokens = 15
        self.old.status = RequestStatus.RUNNING
        self.old.append_output_token_ids([1, 2])
        self.new = request("new", PROMPT)
        self.hit, self.num_hit, _ = self.manager.get_computed_blocks(self.new)
        assert self.num_hit
        self.new_again = request("new", PROMPT)
        self.other = request("other", PROMPT)
        self.manager.take_events()

    def admit(self):
        return self.manager.allocate_slots(
            self.new,
            PROMPT - self.num_hit,
            num_new_computed_tokens=self.num_hit,
            new_computed_blocks=self.hit,
        )

    def check_nothing_is_lost(self):
        """Whatever the call has done, everybody's blocks come back, once."""
        manager = self.manager
        manager.check_invariants()
        for each in (self.new, self.old):
            manager.free(each)
            assert manager.get_block_ids(each.request_id) == ([], [])
        assert manager.block_pool.get_num_free_blocks() == 49
        manager.check_invariants()
        manager.take_events()
        # And the manager goes on.
        assert manager.reset_prefix_cache()
        assert manager.get_computed_blocks(self.new)[1] == 0
        assert self.manager.allocate_slots(self.new, PROMPT).get_block_ids() is not None
        manager.free(self.new)


CALLS = {
    "get_computed_blocks": lambda s: s.manager.get_computed_blocks(s.other),
    "get_computed_blocks, another object": lambda s: s.manager.get_computed_blocks(s.new_again),
    "allocate_slots": Scene.admit,
    "allocate_slots, decode": lambda s: s.manager.allocate_slots(s.old, 2, num_lookahead_tokens=0),
    "get_block_ids": lambda s: s.manager.get_block_ids("old"),
    "blocks": lambda s: s.manager.get_blocks("old").blocks,
    "take_events": lambda s: (s.admit(), s.manager.take_events()),
    "take_new_block_ids": lambda s: (s.admit(), s.manager.take_new_block_ids()),
    "evict_blocks": lambda s: s.manager.evict_blocks({1, 2}),
    "get_num_blocks_to_allocate": lambda s: s.manager.coordinator.get_num_blocks_to_allocate(
        "new", 20, s.hit.blocks, 0, s.num_hit, s.num_hit, 20
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_memory_runs_out(to_native, call):  # noqa: F811
    test_api = pytest.importorskip("_testcapi")
    faults = 0
    for allocation in range(60):
        scene = Scene(to_native)
        try:
            test_api.set_nomemory(allocation, allocation + 1)
            try:
                CALLS[call](scene)
            finally:
                test_api.remove_mem_hooks()
        except (MemoryError, SystemError):  # the latter where CPython has lost the former
            faults += 1
        scene.check_nothing_is_lost()
    assert faults > 0


class Broken:
    """An attribute that fails."""

    def __get__(self, request, owner):
        if request is None:
            return self
        raise RuntimeError("injected")

    def __set__(self, request, value):
        pass


@pytest.mark.parametrize(
    "name",
    [
        "block_hashes", "num_computed_tokens", "num_in_flight_tokens", "num_prompt_tokens",
        "num_tokens", "shared_prefix_boundary",
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_read(to_native, name):  # noqa: F811
    scene = Scene(to_native)
    kind = type("BrokenRequest", (type(scene.new),), {name: Broken()})
    before = [scene.manager.get_block_ids(each) for each in ("old", "new")]
    for each, tokens in ((scene.new, PROMPT), (scene.old, 2)):
        whole = type(each)
        each.__class__ = kind
        with pytest.raises(RuntimeError, match="injected"):
            scene.manager.allocate_slots(each, tokens)
        each.__class__ = whole
    assert [scene.manager.get_block_ids(each) for each in ("old", "new")] == before
    assert scene.admit() is not None
    scene.check_nothing_is_lost()


# Through the scheduler: what becomes of a request that the manager fails for.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return scheduler_load.model_config(tmp_path_factory.mktemp("model"))


def serve_until_the_fault(server, fault):
    """An error of the manager's goes through the scheduler, as vLLM's own would."""
    for name in range(3):
        server.add(str(name), list(range(40)), 10, 0, float(name))
    for _ in range(3):
        server.schedule()
        server.finish_step()
    fault(server)

    def go_on():
        for _ in range(20):
            server.schedule()
            server.finish_step()

    with pytest.raises(Exception) as caught:
        go_on()
    return caught.value


def bad_hash(server):
    """Not bytes: vLLM cannot make a key of it, and kvplan's manager cannot read it."""
    request = server.scheduler.requests["1"]
    request._block_hasher = lambda request: [3]


def bad_call(name):
    def fault(server):
        def fails(*args, **kwargs):
            raise RuntimeError("injected")

        setattr(server.manager, name, fails)

    return fault


FAULTS = {
    "block_hashes": bad_hash,
    **{name: bad_call(name) for name in ("allocate_slots", "free", "take_events")},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_as_vllms_own(model, fault):
    kv_cache_utils.init_none_hash(hashing.sha256)
    settings = scheduler_load.Settings(random.Random(1), "full and window", 0)
    settings.caching = True
    settings.num_blocks = 100
    seen = []
    for server in scheduler_load.make_servers(settings, model):
        error = serve_until_the_fault(server, FAULTS[fault])
        server.manager.__dict__.pop(fault, None)
        # The client's requests are ended, and every block is free again.
        for name in list(server.scheduler.requests):
            server.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        seen.append((type(error), server.manager.block_pool.get_num_free_blocks()))
    server.manager.check_invariants()
    assert seen == seen[:1] * 3
    assert seen[0][1] == 99 or fault == "free"
