"""Masks after one dimension is read at taps, or up to an index."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from torchscan.analyses.projective_field.mask_sizes import check_size, empty_mask
from torchscan.ops.windows import HERE, Taps

#: maximum number of slices that are read one by one; if there are more, indices are read
_MAX_SLICES = 64
#: what is read beyond the ends of a dimension: nothing, the opposite end, the mirrored element,
#: or the last element
Border = Literal["none", "wrap", "reflect", "replicate"]


def tapped(mask: Tensor, dim: int, size: int, taps: Taps, new_size: int, border: Border) -> Tensor:
    """Return the mask after a dimension is read at taps."""
    if taps is HERE and size == new_size:
        return mask
    sizes = list(mask.shape)
    sizes[dim] = new_size
    if mask.shape[dim] > 1:
        check_size(sizes)
        num_slices = sum(map(len, taps.table))
        if border == "none" and taps.rise > 0 and num_slices <= _MAX_SLICES:
            return _read_slices(mask, dim, taps, new_size)

    indices = _indices_of(taps, size, new_size, border)
    if mask.shape[dim] == 1:
        is_read = torch.stack([*indices]).lt(size).any(0)
        if bool(is_read.all()):
            return mask
        check_size(sizes)
        return mask * is_read.view(new_size, *[1] * (mask.dim() - 1 - dim))

    sizes[dim] = 1
    padded = torch.cat([mask, empty_mask(sizes)], dim)  # index ``size``: nothing is read
    result = padded.index_select(dim, indices[0])
    for index in indices[1:]:
        result |= padded.index_select(dim, index)
    return result


def _read_slices(mask: Tensor, dim: int, taps: Taps, new_size: int) -> Tensor:
    """Return the mask after a dimension is read at taps; taps beyond its ends read nothing.

    Each phase reads one slice per tap, which is much faster than reading by indices.
    """
    size, period = mask.shape[dim], len(taps.table)
    result = empty_mask([*mask.shape[:dim], new_size, *mask.shape[dim + 1 :]])
    before = (slice(None),) * dim
    for phase, places in enumerate(taps.table):
        num_blocks = -(-(new_size - phase) // period)
        for place in places:
            # the blocks for which ``place + block · rise`` is an element
            start = max(0, -(place // taps.rise))
            stop = min(num_blocks, (size - 1 - place) // taps.rise + 1)
            if start >= stop:
                continue
            first, last = place + start * taps.rise, place + (stop - 1) * taps.rise
            read = mask[(*before, slice(first, last + 1, taps.rise))]
            ends = phase + start * period, phase + (stop - 1) * period + 1
            result[(*before, slice(*ends, period))] |= read
    return result


def running(mask: Tensor, dim: int, new_size: int) -> Tensor:
    """Return the mask after each element of the result reads a dimension up to its own index."""
    size = mask.shape[dim]
    if size == 1:
        return mask
    span = 1
    while span < size:  # each element has the bits of the ``span`` that end at it
        later = mask.narrow(dim, span, size - span) | mask.narrow(dim, 0, size - span)
        mask = torch.cat([mask.narrow(dim, 0, span), later], dim)
        span *= 2
    last_read = torch.arange(new_size, device="cpu").clamp(max=size - 1)
    return mask.index_select(dim, last_read)


@lru_cache(maxsize=32)  # layers repeat a few tables, which may be of megabytes
def _indices_of(taps: Taps, size: int, new_size: int, border: Border) -> tuple[Tensor, ...]:
    """Return the indices that the elements of the result read at each tap; ``size`` is none."""
    period = len(taps.table)
    num_taps = max(1, *[len(places) for places in taps.table])
    missing = 1 << 40
    padded = [(*places, *[missing] * (num_taps - len(places))) for places in taps.table]
    places = torch.arange(new_size, device="cpu")
    table = torch.tensor(padded, device="cpu")[places % period]
    is_missing = table == missing
    indices = table + (places // period * taps.rise).unsqueeze(1)
    if border == "wrap":
        indices %= size
    elif border == "replicate":
        indices = indices.clamp(0, size - 1)
    elif border == "reflect":
        indices = indices.abs()
        indices = (size - 1) - ((size - 1) - indices).abs()
    is_missing |= (indices < 0) | (indices >= size)
    return tuple(indices.masked_fill(is_missing, size).unbind(1))
