"""A model of PyTorch's CUDA caching allocator, without the memory.

Mirrors c10/cuda/CUDACachingAllocator.cpp (2.13) as far as sizes go: rounding, the pools of small
and large blocks, best fit, splitting, merging, and the limit beyond which blocks are not split.
"""

from __future__ import annotations

import bisect

MIB = 1 << 20
#: Sizes are rounded up to this.
ROUNDING = 512
#: What is at most this large comes from the pool of small blocks.
SMALL = MIB
#: Segments asked of the driver: of small blocks, of blocks below 10 MiB, and a unit above.
SMALL_SEGMENT, MIDDLE_SEGMENT, SEGMENT_UNIT = 2 * MIB, 20 * MIB, 2 * MIB
#: A block above the split limit may be used for one that is smaller by less than this.
UNSPLIT_SLACK = 20 * MIB


class Block:
    """A piece of a segment.

    Attributes:
        size: Bytes, as rounded.
        wanted: Bytes asked for.
        is_small: Whether it belongs to the pool of small blocks.
        is_used: Whether it is handed out.
        previous: The piece before it in the segment, or None.
        next: The piece behind it, or None.
        number: Order of making; breaks ties of best fit.
    """

    __slots__ = ("is_small", "is_used", "next", "number", "previous", "size", "wanted")

    def __init__(self, size: int, *, is_small: bool, number: int) -> None:
        self.size, self.is_small, self.number = size, is_small, number
        self.previous: Block | None = None
        self.next: Block | None = None
        self.is_used, self.wanted = False, 0


class CachingAllocator:
    """Hands out blocks and keeps the books.

    Attributes:
        max_split_bytes: Blocks of this size or more are not split, or None.
        allocated: Bytes handed out, as rounded.
        requested: Bytes handed out, as asked for.
        peak: The most that was ever allocated; may be set back.
        phase_peak: The same, for a caller that measures one phase within another.
    """

    def __init__(self) -> None:
        self.max_split_bytes: int | None = None
        self.allocated = self.requested = self.peak = self.phase_peak = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._made = 0

    def allocate(self, wanted: int) -> Block | None:
        """A block of at least so many bytes; None for none."""
        if wanted == 0:
            return None
        size = -(-wanted // ROUNDING) * ROUNDING
        is_small = size <= SMALL
        block = self._cached(size, is_small) or self._segment(size, is_small)
        rest = block.size - size
        if self._splits(size, rest, is_small):
            self._split(block, size)
        block.is_used, block.wanted = True, wanted
        self.allocated += block.size
        self.requested += wanted
        self.peak = max(self.peak, self.allocated)
        self.phase_peak = max(self.phase_peak, self.allocated)
        return block

    def release(self, block: Block | None) -> None:
        """Take a block back and merge it with free neighbours."""
        if block is None:
            return
        self.allocated -= block.size
        self.requested -= block.wanted
        block.is_used = False
        for other in (block.previous, block.next):
            if other is not None and not other.is_used:
                pool = self._free[block.is_small]
                pool.pop(bisect.bisect_left(pool, (other.size, other.number)))
                block = self._merged(
                    *((other, block) if other is block.previous else (block, other))
                )
        bisect.insort(self._free[block.is_small], (block.size, block.number, block))

    def empty_cache(self) -> None:
        """Give back the segments of which nothing is used."""
        for pool in self._free.values():
            pool[:] = [entry for entry in pool if entry[2].previous or entry[2].next]

    def _cached(self, size: int, is_small: bool) -> Block | None:
        pool, limit = self._free[is_small], self.max_split_bytes
        index = bisect.bisect_left(pool, (size, 0))
        if index == len(pool):
            return None
        block = pool[index][2]
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + UNSPLIT_SLACK:
                return None
        pool.pop(index)
        return block

    def _segment(self, size: int, is_small: bool) -> Block:
        if is_small:
            return self._new(SMALL_SEGMENT, is_small)
        if size < 10 * MIB:
            return self._new(MIDDLE_SEGMENT, is_small)
        return self._new(-(-size // SEGMENT_UNIT) * SEGMENT_UNIT, is_small)

    def _new(self, size: int, is_small: bool) -> Block:
        self._made += 1
        return Block(size, is_small=is_small, number=self._made)

    def _splits(self, size: int, rest: int, is_small: bool) -> bool:
        if is_small:
            return rest >= ROUNDING
        return rest > SMALL and (self.max_split_bytes is None or size < self.max_split_bytes)

    def _split(self, block: Block, size: int) -> None:
        rest = self._new(block.size - size, block.is_small)
        rest.previous, rest.next = block, block.next
        if rest.next is not None:
            rest.next.previous = rest
        block.next, block.size = rest, size
        bisect.insort(self._free[rest.is_small], (rest.size, rest.number, rest))

    @staticmethod
    def _merged(first: Block, second: Block) -> Block:
        first.size += second.size
        first.next = second.next
        if first.next is not None:
            first.next.previous = first
        return first
