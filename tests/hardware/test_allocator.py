"""torch's caching allocator, replayed: figures worked out by hand from its published rules."""

from __future__ import annotations

import pytest

from torchscan.hardware.allocator import CachingAllocator, OutOfMemory

KIB, MIB = 2**10, 2**20


def test_small_requests_share_a_segment_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    for _ in range(3):
        allocator.allocate(100)
    assert (allocator.allocated, allocator.reserved) == (3 * 512, 2 * MIB)


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2),
        (MIB, 2),
        (MIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (11 * MIB, 12),
        (33 * MIB, 34),
    ],
)
def test_how_large_a_segment_is(size: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert allocator.reserved == reserved * MIB


def test_what_was_freed_is_used_again() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(64 * MIB))
    allocator.allocate(48 * MIB)
    allocator.allocate(16 * MIB)
    assert (allocator.reserved, allocator.allocated) == (64 * MIB, 64 * MIB)


def test_a_small_block_is_split_for_half_a_kibibyte() -> None:
    allocator = CachingAllocator()
    first, _neighbour = allocator.allocate(1024), allocator.allocate(512)
    allocator.free(first)
    allocator.allocate(512)
    assert allocator.allocated == 2 * 512


def test_a_large_block_is_not_split_for_less_than_a_mebibyte() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(64 * MIB))
    allocator.allocate(63 * MIB)
    assert allocator.allocated == 64 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (100, 40, 60)]
    for block in blocks:
        allocator.free(block)
    for size in (50, 30, 90):
        allocator.allocate(size * MIB)
    assert allocator.reserved == 200 * MIB


def test_freed_neighbours_grow_together() -> None:
    """Two halves of 8 MiB are one block of 16 again, whichever is freed first."""
    for order in ((0, 1), (1, 0)):
        allocator = CachingAllocator()
        halves = [allocator.allocate(8 * MIB), allocator.allocate(8 * MIB)]
        for half in order:
            allocator.free(halves[half])
        allocator.allocate(20 * MIB)
        assert allocator.reserved == 20 * MIB


def test_in_pieces_there_may_be_room_that_nobody_can_use() -> None:
    """Every other one of 4 blocks of 5 MiB is free: 10 MiB, of which no 8 are in one piece."""
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    allocator.allocate(8 * MIB)
    assert (allocator.allocated, allocator.reserved) == (18 * MIB, 40 * MIB)


def test_a_full_device_gets_back_what_is_free_as_a_whole() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert (allocator.reserved, allocator.peak_reserved) == (80 * MIB, 80 * MIB)


def test_more_than_the_device_has_is_refused() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.allocate(60 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.allocate(41 * MIB)


def test_nothing_is_needed_for_nothing() -> None:
    allocator = CachingAllocator(capacity=0)
    allocator.free(allocator.allocate(0))
    assert allocator.peak_reserved == 0


def test_a_stream_does_not_get_what_another_has_freed() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(64 * MIB, stream=1))
    allocator.allocate(64 * MIB)
    assert allocator.reserved == 128 * MIB
    allocator.allocate(48 * MIB, stream=1)
    assert allocator.reserved == 128 * MIB


def test_the_rest_of_a_split_block_stays_with_its_stream() -> None:
    allocator = CachingAllocator()
    allocator.allocate(4 * MIB, stream=1)
    allocator.allocate(4 * MIB)
    assert allocator.reserved == 2 * 20 * MIB
    allocator.allocate(8 * MIB, stream=1)
    assert allocator.reserved == 2 * 20 * MIB


def test_a_full_device_gets_free_segments_of_all_streams_back() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.free(allocator.allocate(64 * MIB, stream=1))
    allocator.allocate(64 * MIB)
    assert (allocator.reserved, allocator.peak_reserved) == (64 * MIB, 64 * MIB)
