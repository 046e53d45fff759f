"""Bytes of calls that stay near the multiprocessors: in the cache, or in a kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torchscan.analyses.generation.serving_costs import Served
from torchscan.analyses.roofline.cache import bytes_in_cache
from torchscan.trace.trace import Trace


class Near(NamedTuple):
    """Bytes of a call that need not come from memory, or go there."""

    #: read and written in the cache: of the bytes that are expected to be read, and of the fewest
    cached: tuple[int, int]
    cached_at_least: tuple[int, int]
    #: between a product and the pointwise kernel after it
    handed_over: int
    #: weights that are stored in fewer bits than they are computed in
    unpacked: int = 0
    #: bytes of inputs that are quantized, for products in fewer than 16 bits
    quantized: int = 0
    #: True if the kernel before, or the product itself, quantizes them
    is_quantized_before: bool = False
    #: True if a product is part of a kernel that an earlier product begins
    is_joined: bool = False
    #: bytes in 8 bits of operands that a linear layer casts from 16
    cast: int = 0


def find_near_bytes(
    trace: Trace,
    cache_bytes: int | None,
    served: Served,
    joined: Collection[int],
    handed: Sequence[int],
) -> list[Near]:
    """Return the bytes of each call that need not come from memory, or go there.

    The cache is followed for the expected reads, and for the smallest possible ones.
    """
    expected = [cost.bytes_read for cost in served.costs]
    fewest = [cost.min_bytes_read for cost in served.costs]
    cached = bytes_in_cache(trace, cache_bytes, expected, served.appends)
    min_cached = cached
    if fewest != expected:
        min_cached = bytes_in_cache(trace, cache_bytes, fewest, served.appends)
    near: list[Near] = []
    for index, packed in enumerate(served.packed):
        in_cache, min_in_cache = cached[index], min_cached[index]
        is_joined = index in joined
        near.append(Near(in_cache, min_in_cache, handed[index], *packed, is_joined=is_joined))
    return near
