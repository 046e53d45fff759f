"""From the mask of a layer's output to what each position reaches of it: first, last and number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchscan.analyses.projective_field.reach_masks import WORD, reached_along

#: words that are divided into bits at once
_WORDS_AT_ONCE = 1 << 14


class ReachCounts(NamedTuple):
    """The units along one dimension of an output that each position reaches."""

    #: first unit, or −1 if the position reaches nothing
    first: tuple[int, ...]
    last: tuple[int, ...]
    num_units: tuple[int, ...]

    def joined(self, other: ReachCounts) -> ReachCounts:
        """Return the counts of these positions and, after them, of others."""
        first, last = self.first + other.first, self.last + other.last
        return ReachCounts(first, last, self.num_units + other.num_units)


class OutputCounts(NamedTuple):
    """The part of an output that each position reaches."""

    #: number of elements by position
    elements: tuple[int, ...]
    #: the dimensions of which positions reach a part, without those that need not be known
    by_dim: Mapping[int, ReachCounts]

    def joined(self, other: OutputCounts, shape: Sequence[int]) -> OutputCounts:
        """Return the counts of these positions and, after them, of others."""
        by_dim: dict[int, ReachCounts] = {}
        for dim in sorted({*self.by_dim, *other.by_dim}):
            by_dim[dim] = self.along(dim, shape).joined(other.along(dim, shape))
        return OutputCounts(self.elements + other.elements, by_dim)

    def along(self, dim: int, shape: Sequence[int]) -> ReachCounts:
        """Return the counts along a dimension, of which positions reach all if it is left out."""
        if dim in self.by_dim:
            return self.by_dim[dim]
        first: list[int] = []
        last: list[int] = []
        for count in self.elements:
            first.append(0 if count else -1)
            last.append(shape[dim] - 1 if count else -1)
        num_units = [end + 1 for end in last]
        return ReachCounts(tuple(first), tuple(last), tuple(num_units))


def count_reached(
    mask: Tensor, shape: Sequence[int], num_positions: int, own_dim: int | None
) -> OutputCounts:
    """Return the counts of an output of this shape.

    If positions reach parts of ``own_dim``, the other dimensions need not be known, and elements
    are those along that dimension.
    """
    dims = [dim for dim in range(len(shape)) if mask.shape[dim + 1] > 1]
    if own_dim in dims:
        along = _partly_reached(mask, own_dim, num_positions)
        if along is not None:
            return OutputCounts(along.num_units, {own_dim: along})

    by_dim: dict[int, ReachCounts] = {}
    for dim in dims:
        along = _partly_reached(mask, dim, num_positions)
        if along is not None:
            by_dim[dim] = along
    repeats = math.prod(shape) // max(mask[0].numel(), 1)
    elements: list[int] = []
    for bits, _ in _bits_by_part(mask.flatten(1)):
        elements += bits.sum(1).mul(repeats).tolist()
    return OutputCounts(tuple(elements[:num_positions]), by_dim)


def _partly_reached(mask: Tensor, dim: int, num_positions: int) -> ReachCounts | None:
    """Return the counts along a dimension, or None if positions reach all of it or nothing."""
    for other in range(1, mask.dim()):
        if other != dim + 1:
            mask = reached_along(mask, other)
    words = mask.flatten(1)
    first: list[int] = []
    last: list[int] = []
    num_units: list[int] = []
    for bits, start in _bits_by_part(words):
        counts = bits.sum(1)
        is_missed = counts == 0
        firsts = bits.argmax(1) + start
        lasts = start + bits.shape[1] - 1 - bits.flip(1).argmax(1)
        first += firsts.masked_fill(is_missed, -1).tolist()
        last += lasts.masked_fill(is_missed, -1).tolist()
        num_units += counts.tolist()
    if set(num_units[:num_positions]) <= {0, words.shape[1]}:
        return None
    counted = [tuple(each[:num_positions]) for each in (first, last, num_units)]
    return ReachCounts(*counted)


def _bits_by_part(words: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield the bits of some words at a time by position and unit, and the number of a first unit.

    Positions that are neighbors reach neighbors: few of the units of a long sequence are left.
    """
    shifts = torch.arange(WORD, device="cpu").view(1, WORD, 1)
    for part in words.split(max(_WORDS_AT_ONCE // max(words.shape[1], 1), 1)):
        units = part.any(0).nonzero().flatten().tolist()
        start, stop = (units[0], units[-1] + 1) if units else (0, 1)
        near = part[:, start:stop].unsqueeze(1)
        bits = near.bitwise_right_shift(shifts) & 1
        yield bits.flatten(0, 1), start
