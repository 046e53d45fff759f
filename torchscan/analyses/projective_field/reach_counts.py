"""From the mask of a layer's output to what each position reaches of it: first, last and number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchscan.analyses.projective_field.reach_masks import WORD, reached_along

#: words that are divided into bits at once
_WORDS_AT_ONCE = 1 << 14
#: units per block, by which the first unit of a long row is searched
_BLOCK = 1 << 9


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
        along = _reached_along(mask, own_dim, num_positions)
        if _is_partial(along, mask.shape[own_dim + 1]):
            return OutputCounts(along.num_units, {own_dim: along})

    by_dim: dict[int, ReachCounts] = {}
    for dim in dims:
        along = _reached_along(mask, dim, num_positions)
        if _is_partial(along, mask.shape[dim + 1]):
            by_dim[dim] = along
    repeats = math.prod(shape) // max(mask[0].numel(), 1)
    elements = _count_units(mask.flatten(1), num_positions).num_units
    return OutputCounts(tuple([count * repeats for count in elements]), by_dim)


def _is_partial(along: ReachCounts, size: int) -> bool:
    """Return whether a position reaches some units of a dimension and not others."""
    return not {0, size}.issuperset(along.num_units)


def _reached_along(mask: Tensor, dim: int, num_positions: int) -> ReachCounts:
    """Return the counts along a dimension."""
    for other in range(1, mask.dim()):
        if other != dim + 1:
            mask = reached_along(mask, other)
    return _count_units(mask.flatten(1), num_positions)


def _count_units(words: Tensor, num_positions: int) -> ReachCounts:
    """Return the first, the last and the number of units that have the bit of each position.

    Neighboring positions reach neighboring units: in a long sequence, a word is 0 in most units.
    """
    is_reached = words.ne(0).byte()
    num_units = words.shape[1]
    starts, stops = is_reached.argmax(1), num_units - is_reached.flip(1).argmax(1)
    has_bits = is_reached.gather(1, starts.unsqueeze(1)).squeeze(1).bool()
    widths = torch.where(has_bits, stops - starts, 1)
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    every_row = torch.arange(len(words), device="cpu")
    for rows in every_row.split(_WORDS_AT_ONCE // WORD):
        width = int(widths[rows].max())
        units = torch.arange(width, device="cpu")
        num_rows = max(_WORDS_AT_ONCE // width, 1)
        for part in rows.split(num_rows):
            first = starts[part].clamp(max=num_units - width)
            near = words[part].gather(1, first.unsqueeze(1) + units)
            offsets = first.repeat_interleave(WORD)
            firsts, lasts, counts = _count_bits(near)
            is_missed = counts == 0
            columns[0].extend((firsts + offsets).masked_fill(is_missed, -1).tolist())
            columns[1].extend((lasts + offsets).masked_fill(is_missed, -1).tolist())
            columns[2].extend(counts.tolist())
    return ReachCounts(*[tuple(each[:num_positions]) for each in columns])


def _count_bits(words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first, the last and the number of units that have a bit, by word and bit."""
    if words.numel() <= _WORDS_AT_ONCE:
        bits = _bits_of(words)
        from_end = bits.flip(1).argmax(1)
        first, counts = bits.argmax(1), bits.sum(1)
    else:
        from_end = _first_bits(words.flip(1))
        first, counts = _first_bits(words), _number_of_bits(words)
    last = words.shape[1] - 1 - from_end
    return first, last, counts


def _bits_of(words: Tensor) -> Tensor:
    """Return the bits: a row for each word and bit, a column for each unit."""
    shifts = torch.arange(WORD, device="cpu").view(1, WORD, 1)
    return (words.unsqueeze(1).bitwise_right_shift(shifts) & 1).flatten(0, 1)


def _first_bits(words: Tensor) -> Tensor:
    """Return the first unit that has a bit, by word and bit; it is searched in blocks."""
    num_words, num_units = words.shape
    num_blocks = -(-num_units // _BLOCK)
    padding = words.new_zeros(num_words, num_blocks * _BLOCK - num_units)
    blocks = torch.cat([words, padding], 1).view(num_words, num_blocks, _BLOCK)
    bits_of_blocks = _bits_of(reached_along(blocks, 2).squeeze(2))
    first_blocks = bits_of_blocks.argmax(1).view(num_words, WORD)
    shifts = torch.arange(WORD, device="cpu").view(1, WORD, 1)
    indices = first_blocks.unsqueeze(2).expand(-1, -1, _BLOCK)
    bits = blocks.gather(1, indices).bitwise_right_shift(shifts) & 1
    return (first_blocks * _BLOCK + bits.argmax(2)).flatten()


def _number_of_bits(words: Tensor) -> Tensor:
    """Return the number of units that have a bit, by word and bit, from a histogram of bytes."""
    every_byte = torch.arange(256, device="cpu")
    shifts = torch.arange(8, device="cpu").unsqueeze(1)
    has_bit = every_byte.bitwise_right_shift(shifts) & 1
    counts = []
    for word in words:
        for shift in range(0, WORD, 8):
            occurrences = torch.bincount((word >> shift) & 255, minlength=256)
            counts.append((has_bit * occurrences).sum(1))
    return torch.cat(counts)
