"""vLLM's real KVCacheManager and kvplan's, given the same calls, answers compared after each."""

import hashlib
from collections import Counter
from types import SimpleNamespace

import numpy as np
from vllm.v1.core.block_pool import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinatorNoPrefixCache
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import RequestStatus

import kvplan
from kvplan.vllm.verified_cache_manager import difference


def cache_group(group, groups):
    """How kvplan describes a vLLM group."""
    spec = group.kv_cache_spec
    same = next(i for i, other in enumerate(groups) if other.kv_cache_spec == spec)
    numbers = {
        "dcp_sharded": spec.dcp_sharded,
        "prefix_cacheable": spec.prefix_cacheable,
        "is_eagle_group": group.is_eagle_group,
        "is_zeroed": isinstance(spec, AttentionSpec) and not isinstance(spec, CircularBufferSpec),
        "same_spec_as": same,
    }
    kind = "full_attention"
    if isinstance(spec, SlidingWindowSpec):
        kind = "sliding_window"
        numbers |= {
            "window": spec.sliding_window,
            "extra_retained_tokens": spec.extra_retained_tokens,
        }
    elif isinstance(spec, ChunkedLocalAttentionSpec):
        kind = "chunked_local"
        numbers |= {"window": spec.attention_chunk_size}
    elif isinstance(spec, RSWASpec):
        kind = "rswa"
        numbers |= {"window": spec.rswa_window}
    elif isinstance(spec, CrossAttentionSpec):
        kind = "cross_attention"
    elif isinstance(spec, CircularBufferSpec):
        kind = "circular_buffer"
    elif isinstance(spec, MambaSpec):
        kind = "mamba"
        numbers |= {
            "mamba_align": spec.mamba_cache_mode == "align",
            "num_speculative_blocks": spec.num_speculative_blocks,
            "num_prefill_checkpoint_blocks": spec.num_prefill_checkpoint_blocks,
            "prefill_checkpoint_alignment": spec.prefill_checkpoint_alignment,
        }
    return kvplan.CacheGroup(kind, spec.block_size, **numbers)


class StandInRequest(SimpleNamespace):
    """What vLLM's manager reads of a request."""

    lora_request = None
    cache_salt = None
    session_id = None
    prompt_embeds = None
    mm_features = ()
    skip_reading_prefix_cache = False
    kv_cache_report_mode = "incremental"

    def __init__(self, name, prompt, hash_block_size, lookahead):
        super().__init__(
            request_id=name,
            all_token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            num_preemptions=0,
            shared_prefix_boundary=0,
            block_hashes=[],
            status=RequestStatus.WAITING,
        )
        self.hash_block_size = hash_block_size
        self.lookahead = lookahead
        self.update_hashes()

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    def append(self, token):
        self.all_token_ids.append(token)
        self.update_hashes()

    def update_hashes(self):
        size = self.hash_block_size
        while (len(self.block_hashes) + 1) * size + self.lookahead <= self.num_tokens:
            start = len(self.block_hashes) * size
            parent = self.block_hashes[-1] if self.block_hashes else b""
            tokens = self.all_token_ids[start : start + size + self.lookahead]
            self.block_hashes.append(hashlib.sha256(parent + bytes(tokens)).digest())


def in_order(events):
    """Removals of one block's hashes come out of a set in vLLM: sorted."""
    result, run = [], []
    for event in events:
        if event[0] == "removed":
            run.append(event)
            continue
        result += sorted(run, key=repr) + [event]
        run = []
    return result + sorted(run, key=repr)


class Refused(Exception):
    """vLLM failed in the middle of a call, and kvplan refused it: the trace ends here."""


def both(vllm_call, native_call):
    """The two answers. A call that vLLM fails on with an assertion of its own must be refused."""
    try:
        theirs = vllm_call()
    except (AssertionError, ValueError, IndexError, NotImplementedError) as error:
        try:
            native_call()
        except (ValueError, NotImplementedError):
            raise Refused(str(error)) from error
        raise
    return theirs, native_call()


class Pair:
    """The two managers. Every method does the same with both and compares the answers.

    make: makes kvplan's, if not from the groups and options.
    """

    def __init__(self, groups, num_blocks, *, retention=None, zeroing=False, make=None, **options):
        groups = [
            KVCacheGroupSpec([f"layer.{i}"], spec, is_eagle_group=eagle)
            for i, (spec, eagle) in enumerate(groups)
        ]
        config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=retention,
        )
        # A property of the layers' caches, which these configs do not have.
        config.__class__ = type(
            "Config", (KVCacheConfig,), {"needs_kv_cache_zeroing": property(lambda _: zeroing)}
        )
        renamed = {"enable_kv_cache_events": "enable_events"}

        def make_alike():
            return kvplan.CacheManager(
                [cache_group(group, groups) for group in groups],
                num_blocks=num_blocks,
                retention_interval=retention,
                needs_zeroing=zeroing,
                **{renamed.get(name, name): value for name, value in options.items()},
            )

        def make_and_look_up():
            # vLLM makes some managers that fail on their first lookup; kvplan makes none of them.
            manager = KVCacheManager(config, log_stats=True, **options)
            request = StandInRequest("r", bytes(150), options["hash_block_size"], 1)
            manager.get_computed_blocks(request)
            return manager

        self.vllm, self.native = both(make_and_look_up, make or make_alike)
        self.handles = {}
        self.retained = []
        self.seen = Counter()
        self.managers = self.vllm.coordinator.single_type_managers

    def same(self, what, vllm, native):
        wrong = difference(vllm, native)
        assert not wrong, f"{what}: kvplan's is {wrong}"
        return vllm

    def check(self):
        """Free list and tables."""
        free = [b.block_id for b in self.vllm.block_pool.free_block_queue.get_all_free_blocks()]
        self.same_ids("free list", free, self.native.pool.free_block_ids())
        for name, handle in self.handles.items():
            tables = self.vllm.get_block_ids(name)
            for group, ids in enumerate(self.native.block_ids(handle)):
                self.same_ids(f"blocks of {name} in group {group}", tables[group], ids)

    def same_ids(self, what, vllm, native):
        # Most of a trace's time, so not by `same` unless they differ.
        if vllm != native.tolist():
            self.same(what, vllm, native)

    def check_hashes(self):
        pool = self.native.pool
        for block in self.vllm.block_pool.blocks:
            mine = pool.block_hash(block.block_id)
            key = None if mine is None else mine[0] + mine[1].to_bytes(4, "big")
            self.same(f"hash of block {block.block_id}", block.block_hash, key)

    # Requests.

    def add(self, request):
        self.handles[request.request_id] = self.native.add_request()
        self.hash(request)

    def hash(self, request):
        handle = self.handles[request.request_id]
        self.native.append_hashes(handle, request.block_hashes[self.native.num_hashes(handle) :])
        return handle

    def drop(self, request):
        self.native.remove_request(self.handles.pop(request.request_id))

    # Calls.

    def find(self, request, for_connector=False):
        handle = self.hash(request)
        most = request.num_tokens - 1

        def look_up():
            if for_connector:
                return self.vllm.get_computed_blocks_for_connector(request)
            return *self.vllm.get_computed_blocks(request), False

        def look_up_natively():
            if for_connector:
                return self.native.find_prefix_for_connector(handle, most)
            hit = self.native.find_prefix(handle, most)
            if hit.num_tokens > 0 and request.kv_cache_report_mode == "full":
                # vLLM's lookup does this itself.
                self.native.emit_cached_block_events(handle, hit)
                self.seen["events of cached blocks"] += 1
            return hit

        (blocks, num_tokens, boundary, diverged), hit = both(look_up, look_up_natively)
        self.same("diverged", diverged, hit.diverged)
        self.seen["connector: diverged"] += diverged
        self.same("hit", num_tokens, hit.num_tokens)
        self.same("boundary", boundary, hit.shared_prefix_boundary)
        self.same("hit blocks", blocks, hit.blocks)
        self.seen["hit"] += num_tokens > 0
        self.seen["shared prefix boundary"] += boundary > 0
        self.seen["hit inside a block"] += (
            any(num_tokens % manager.block_size for manager in self.managers)
            and self.vllm.coordinator.enable_partial_hash_hits
        )
        return blocks, hit, num_tokens, boundary

    def truncate(self, blocks, hit, num_tokens):
        blocks, _ = both(
            lambda: self.vllm.truncate_computed_blocks(blocks, num_tokens),
            lambda: self.native.truncate_prefix(hit, num_tokens),
        )
        self.same("truncated", blocks, hit.blocks)
        self.seen["truncated hit"] += 1
        return blocks, hit

    def allocate(self, request, num_new, blocks=None, hit=None, num_hit=0, **options):
        handle = self.hash(request)
        has_scheduled = options.pop("has_scheduled_reqs", True)
        waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        quiet = self.native.quiet_until(handle)
        ours = dict(options)
        skip = ours.pop("skip_zeroing_group_ids", ())
        total = request.num_computed_tokens + num_new + options.get("num_lookahead_tokens", 0)
        plain = num_new > 0 and not waiting and not (options.keys() - {"num_lookahead_tokens"})
        is_quiet = plain and blocks is None and total < quiet
        result, mine = both(
            lambda: self.vllm.allocate_slots(
                request,
                num_new,
                num_new_computed_tokens=num_hit,
                new_computed_blocks=blocks,
                has_scheduled_reqs=has_scheduled,
                **options,
            ),
            # What kvplan says does nothing is not called.
            lambda: (
                ()
                if is_quiet
                else self.native.allocate(
                    handle,
                    num_new,
                    num_new_computed_tokens=num_hit,
                    hit=hit,
                    apply_watermark=has_scheduled and waiting,
                    skip_zeroing_groups=list(skip),
                    **self.tokens(request),
                    **ours,
                )
            ),
        )
        if is_quiet:
            assert result is not None, (total, quiet)
            assert not any(result.blocks), (total, quiet, result)
            self.seen["quiet step"] += 1
            return ()
        self.seen["allocated" if result is not None else "no room"] += 1
        return self.same("new blocks", result, mine)

    def tokens(self, request):
        return {
            name: getattr(request, name)
            for name in (
                "num_tokens",
                "num_prompt_tokens",
                "num_computed_tokens",
                "num_in_flight_tokens",
                "shared_prefix_boundary",
            )
        }

    def schedule(self, requests, num_lookahead):
        """One token for each of the requests, by kvplan in one call."""
        appended = np.zeros((200, 4), np.int32)
        handles = [self.hash(request) for request in requests]
        rows, done, stop = [], 0, "done"
        for row, request in enumerate(requests):
            before = self.vllm.get_block_ids(request.request_id)
            if self.vllm.allocate_slots(request, 1, num_lookahead_tokens=num_lookahead) is None:
                stop = "no_blocks"
                break
            done += 1
            after = self.vllm.get_block_ids(request.request_id)
            for group, (old, new) in enumerate(zip(before, after, strict=True)):
                rows += [[row, group, i, new[i]] for i in range(len(old), len(new))]
        mine = self.native.schedule(
            handles,
            [r.num_computed_tokens for r in requests],
            num_tokens=[r.num_tokens for r in requests],
            num_in_flight_tokens=[r.num_in_flight_tokens for r in requests],
            num_lookahead_tokens=num_lookahead,
            appended=appended,
        )
        self.same("step", (done, len(rows), stop), mine)
        self.same("appended", rows, appended[: len(rows)])
        self.seen["batch step"] += 1
        self.seen["batch step stopped"] += stop != "done"
        return done

    def commit(self, request, num_tokens):
        handle = self.hash(request)
        both(
            lambda: self.vllm.cache_blocks(request, num_tokens),
            lambda: self.native.commit(handle, num_tokens, **self.tokens(request)),
        )
        self.seen["commit"] += 1

    def free(self, request, deferred=False):
        handle = self.handles[request.request_id]
        if deferred:
            blocks = self.vllm.pop_blocks_for_free(request)
            mine = self.native.pop_blocks_for_free(handle).tolist()
            self.same("popped", [b.block_id for b in blocks], mine)
            self.vllm.block_pool.free_blocks(reversed(blocks))
            self.native.pool.free_blocks(mine[::-1])
            self.seen["deferred free"] += 1
        else:
            self.vllm.free(request)
            self.native.free(handle)

    def remove_skipped(self, request, num_processed, with_prompt):
        prompt = request.num_prompt_tokens if with_prompt else None
        self.vllm.remove_skipped_blocks(request.request_id, num_processed, prompt)
        self.native.remove_skipped_blocks(self.handles[request.request_id], num_processed, prompt)

    def needed(self, request, num_tokens):
        """The scheduler's own question: what the rest of a prefill takes."""
        theirs = self.vllm.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=num_tokens,
            new_computed_blocks=self.vllm.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=request.num_computed_tokens,
            num_local_computed_tokens=request.num_computed_tokens,
            num_tokens_main_model=num_tokens,
            apply_admission_cap=True,
        )
        mine = self.native.num_blocks_to_allocate(
            self.handles[request.request_id],
            num_tokens=num_tokens,
            num_tokens_main_model=num_tokens,
            total_computed_tokens=request.num_computed_tokens,
            num_local_computed_tokens=request.num_computed_tokens,
            apply_admission_cap=True,
        )
        self.same("blocks to allocate", theirs, mine)

    def evict(self, blocks):
        self.vllm.evict_blocks(dict.fromkeys(blocks))
        self.native.evict_blocks(blocks)
        self.seen["evict"] += 1

    def reset(self):
        done = self.same("reset", self.vllm.reset_prefix_cache(), self.native.reset_prefix_cache())
        self.seen["reset" if done else "reset refused"] += 1

    def end_step(self, request_names):
        self.same("new ids", self.vllm.take_new_block_ids(), self.native.take_new_block_ids())
        copies, retained = self.vllm.take_kv_cache_block_copies()
        mine = self.native.take_copies()
        self.same("copies", [tuple(copy) for copy in copies], [copy[:2] for copy in mine])
        self.seen["copy"] += len(copies)
        if retained:
            self.vllm.block_pool.free_blocks(retained)
            self.native.free_copies(mine)
        states = self.vllm.take_boundary_state_offloads()
        by_name = {}
        names = {handle: name for name, handle in self.handles.items()}
        for handle, group, block, tokens in self.native.take_boundary_states():
            by_name.setdefault(names[handle], []).append((group, block, tokens))
        self.same("boundary states", states, by_name)
        self.seen["boundary state"] += len(states)
        self.take_events()
        self.same("usage", self.vllm.usage, self.native.usage)
        self.vllm.new_step_starts()
        self.native.new_step_starts()

    def take_events(self):
        theirs, mine = [], []
        for event in self.vllm.take_events():
            if isinstance(event, BlockStored):
                theirs.append(
                    (
                        "stored",
                        event.group_idx,
                        event.block_hashes,
                        event.parent_block_hash,
                        event.block_size,
                    )
                )
            elif isinstance(event, BlockRemoved):
                theirs.append(("removed", event.group_idx, event.block_hashes))
            else:
                theirs.append(("cleared",))
        for event in self.native.take_events():
            hashes = [maybe_convert_block_hash(h) for h in event.hashes]
            if event.kind == "stored":
                parent = event.parent_hash
                parent = None if parent is None else maybe_convert_block_hash(parent)
                mine.append(("stored", event.group_id, hashes, parent, event.block_size))
            elif event.kind == "removed":
                mine.append(("removed", event.group_id, hashes))
            else:
                mine.append(("cleared",))
        self.same("events", in_order(theirs), in_order(mine))
        self.seen.update(f"event: {event[0]}" for event in theirs)

    def record_stats(self, request, num_hits):
        self.vllm.record_prefix_cache_stats(request, num_hits)
        self.native.record_prefix_cache_stats(
            request.num_tokens, num_hits, request.num_preemptions > 0
        )

    def take_stats(self):
        theirs = vars(self.vllm.make_prefix_cache_stats())
        theirs.pop("hits_by_source")
        self.same("statistics", theirs, self.native.take_prefix_cache_stats())

    def finish(self, request):
        handle = self.handles[request.request_id]
        theirs = self.vllm.finalize_partial_tail_offloads(request)
        mine = self.native.finalize_partial_tails(
            handle, request.num_computed_tokens, request.num_in_flight_tokens
        )
        self.same("partial tails", theirs, [entry[1:] for entry in mine])
        self.seen["partial tail"] += len(theirs)
        self.same(
            "cached tokens",
            self.vllm.estimate_cached_tokens(request),
            self.native.estimate_cached_tokens(handle),
        )
        clipped = self.vllm.get_block_ids_for_computed_tokens(
            request.request_id, request.num_computed_tokens
        )
        tables = self.native.block_ids(handle)
        counts = [
            self.native.num_blocks_for_computed_tokens(handle, g, request.num_computed_tokens)
            for g in range(len(tables))
        ]
        mine = [table[:n] for table, n in zip(tables, counts, strict=True)]
        self.same("computed blocks", clipped, mine)

    @property
    def caches(self):
        return not isinstance(self.vllm.coordinator, KVCacheCoordinatorNoPrefixCache)
