"""The model of PyTorch's caching allocator, by what its source says of sizes."""

from caching_allocator import MIB, CachingAllocator


def test_rounding_and_peak():
    allocator = CachingAllocator()
    one = allocator.allocate(1)
    two = allocator.allocate(513)
    assert (one.size, two.size) == (512, 1024)
    assert (allocator.allocated, allocator.requested, allocator.peak) == (1536, 514, 1536)
    allocator.release(one)
    assert (allocator.allocated, allocator.peak) == (1024, 1536)
    assert allocator.allocate(0) is None


def test_a_freed_block_is_split_and_merged_again():
    allocator = CachingAllocator()
    first = allocator.allocate(40 * MIB)
    allocator.release(first)
    part = allocator.allocate(12 * MIB)
    assert (part.size, part.next.size) == (12 * MIB, 28 * MIB)
    allocator.release(part)
    assert allocator.allocate(40 * MIB).size == 40 * MIB


def test_a_rest_of_a_mebibyte_is_not_split_off():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(40 * MIB))
    assert allocator.allocate(39 * MIB).size == 40 * MIB


def test_blocks_above_the_limit_are_not_split():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(100 * MIB))
    allocator.max_split_bytes = 20 * MIB
    assert allocator.allocate(12 * MIB).size == 12 * MIB, "not carved out of 100 MiB"
    assert allocator.allocate(90 * MIB).size == 100 * MIB, "the slack is below 20 MiB"


def test_best_fit():
    allocator = CachingAllocator()
    large, small = allocator.allocate(60 * MIB), allocator.allocate(30 * MIB)
    allocator.release(large)
    allocator.release(small)
    assert allocator.allocate(29 * MIB + 512) is small


def test_what_is_used_outlives_the_cache():
    allocator = CachingAllocator()
    kept = allocator.allocate(2 * MIB)
    allocator.release(allocator.allocate(64 * MIB))
    allocator.empty_cache()
    assert allocator.allocated == kept.size
    assert allocator.allocate(64 * MIB).number > kept.number + 1, "a new segment"
