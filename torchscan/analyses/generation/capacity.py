"""The longest sequences, and the largest number of them, that fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.recording.kept_passes import Kept

#: tokens of the longest sequence that is considered
_LONGEST = 2**24
#: kinds of memory that are there before a pass
_HELD = frozenset({"parameters", "buffers", "inputs", "cache"})


def work_bytes(kept: Kept) -> int:
    """Return the most bytes that are alive during a pass, without weights, inputs and cache."""
    is_short = kept.repeats is not None and not kept.repeats.keeps_memory
    trace = kept.short if is_short else kept.trace
    changes = [0] * (len(trace.ops) + 2)
    for block in MemoryTimeline(trace).blocks:
        if block.kind not in _HELD:
            changes[block.first] += block.size
            changes[block.end] -= block.size
    return max(accumulate(changes[: len(trace.ops)]), default=0)


def longest(
    cache_bytes: Callable[[int], int], room: int, known: int, limit: int | None
) -> int | None:
    """Return the most tokens whose cache fits; ``known`` is a length that is recorded already.

    The cache grows with the length, ever more slowly (a window is full at some point), so a chord
    between a length that fits and one that does not meets the room at a length that fits only if
    the cache grows evenly.
    """
    if room <= 0:
        return 0
    fits, exceeds = 0, limit or _LONGEST
    if cache_bytes(exceeds) <= room:
        return limit
    if cache_bytes(known) <= room:
        fits = known
    else:
        exceeds = known

    while exceeds - fits > 1:
        low = cache_bytes(fits) if fits else 0
        high = cache_bytes(exceeds)  # above the room, which low is not
        on_chord = fits + (room - low) * (exceeds - fits) // (high - low)
        middle = min(exceeds - 1, max(fits + 1, on_chord))
        if cache_bytes(middle) > room:
            exceeds = middle
        elif cache_bytes(middle + 1) > room:
            return middle
        else:
            fits = middle
    return fits
