"""Columns of distributions as bytes, compressed.

A step is some kilobytes, most of them noise that does not compress: the counts of values, and the
lower bits of its statistics. So there is nothing in it twice, and numbers that resemble each other
lie together: all lowest bytes of a column, then all second ones, and so on. Bins and counts have
streams of their own, which need no search for repetitions.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchscan.watching.byte_planes import deflate, to_planes
from torchscan.watching.distribution_columns import (
    REAL,
    WHOLE,
    Columns,
    Distributions,
    entries_of,
    estimate_norms,
    group_alike,
    side_by_side,
    to_integers,
    to_reals,
)
from torchscan.watching.schema import Distribution

#: the first byte of a step; that of version 3 and earlier is 0x78, with which zlib begins
FORMAT = 4
#: the format, the bytes of the names of custom statistics, how many series, rows and bins there
#: are, and the bytes of the four streams: statistics, lower bytes of bins and of counts, their
#: upper bytes
HEAD = struct.Struct("<BxxxIIIIIIII")


def pack_steps(steps: Sequence[Mapping[int, Distribution]]) -> list[bytes]:
    """Return the distributions of each step as bytes.

    Steps with the same series and rows are worked out together.
    """
    found = [_compact(each) for each in steps]
    packed_steps: dict[int, bytes] = {}
    for indices in group_alike(found):
        alike = [found[index] for index in indices]
        packed_steps |= zip(indices, _pack_alike(alike), strict=True)
    return [packed_steps[index] for index in range(len(found))]


def _compact(distributions: Mapping[int, Distribution]) -> Distributions:
    """Return distributions without rows that no series has, in the order of the series."""
    found = side_by_side(distributions)
    used = list(dict.fromkeys(found.rows))
    if used == list(range(len(found.columns.sizes))):
        return found
    places = {row: place for place, row in enumerate(used)}
    rows = [places[row] for row in found.rows]
    return replace(found, columns=_rows_of(found.columns, used), rows=rows)


def _pack_alike(steps: Sequence[Distributions]) -> list[bytes]:
    """Return the bytes of steps with the same series and rows."""
    first = steps[0]
    columns = [each.columns for each in steps]
    names = json.dumps(list(first.custom)).encode()
    sizes = len(first), len(first.columns.sizes)
    packed_steps = []
    heads = _heads_of(steps, names)
    for head, (num_bins, streams) in zip(heads, _pack_counts(columns), strict=True):
        every = [deflate(head), *streams]
        lengths = map(len, every)
        header = HEAD.pack(FORMAT, len(names), *sizes, num_bins, *lengths)
        packed_steps.append(header + b"".join(every))
    return packed_steps


def _heads_of(steps: Sequence[Distributions], names: bytes) -> list[bytes]:
    """Return the names, series and statistics of each step, which are not compressed yet."""
    first, num_steps = steps[0], len(steps)
    columns = [each.columns for each in steps]
    figures = {}
    for name in (*WHOLE, *REAL):
        figures[name] = torch.stack([each.figures[name] for each in columns])
    norms = figures["norm"]
    # that of most rows follows from the others
    estimates = estimate_norms(figures)
    is_needed = norms.ne(estimates) & ~norms.isnan()
    figures["norm"] = norms.where(is_needed, math.nan)
    saturated = [to_reals(each.saturated) for each in steps]
    are_exact = [each.is_exact.byte() for each in columns]
    sizes = [each.sizes.short() for each in columns]
    whole = torch.stack([figures[name].long() for name in WHOLE], 1)
    real = torch.stack([figures[name].float() for name in REAL], 1)
    of_rows = [
        whole.flatten(0, 1),
        real.flatten(0, 1),
        torch.stack(are_exact),
        torch.stack(sizes),
    ]
    others = [_planes_of_steps(each, num_steps) for each in of_rows]
    shares = _planes_of_steps(torch.stack(saturated), num_steps)
    numbers_and_rows = [list(first.numbers), list(first.rows)]
    numbers = torch.tensor(numbers_and_rows, dtype=torch.int64)
    can_die = bytes(map(bool, first.can_die))
    start = names + to_planes(_steps_between(numbers)) + can_die
    starts = [start] * num_steps
    custom = map(_planes_of_custom, steps)
    parts = zip(starts, shares, custom, *others, strict=True)
    return list(map(b"".join, parts))


def _planes_of_steps(columns: Tensor, num_steps: int) -> list[bytes]:
    """Return the planes of the columns of each step, of which all have equally many."""
    planes = to_planes(columns)
    size = len(planes) // num_steps
    starts = (index * size for index in range(num_steps))
    return [planes[start : start + size] for start in starts]


def _planes_of_custom(found: Distributions) -> bytes:
    columns = [torch.tensor(each, dtype=torch.float64) for each in found.custom.values()]
    return b"".join(map(to_planes, columns))


def _pack_counts(columns: Sequence[Columns]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number of bins of each step, and the streams of bins and counts."""
    steps = torch.cat([_steps_between(each.bins) for each in columns]).short()
    bins = to_planes(steps)
    counts = to_planes(torch.cat([each.counts for each in columns]).int())
    total, end = len(steps), 0
    for each in columns:
        start, end = end, end + len(each.bins)
        low, high = (bins[first + start : first + end] for first in (0, total))
        firsts = (plane * total for plane in range(4))
        lowest, *higher = (counts[first + start : first + end] for first in firsts)
        upper = b"".join([high, *higher])
        streams = [
            deflate(low, zlib.Z_HUFFMAN_ONLY),
            deflate(lowest, zlib.Z_HUFFMAN_ONLY),
            deflate(upper),
        ]
        yield len(each.bins), streams


def _rows_of(columns: Columns, rows: Sequence[int]) -> Columns:
    """Return only these rows."""
    if list(rows) == list(range(len(columns.sizes))):
        return columns
    chosen = to_integers(rows)
    entries, _ = entries_of(columns, chosen)
    figures = {name: column[chosen] for name, column in columns.figures.items()}
    return Columns(
        figures=figures,
        is_exact=columns.is_exact[chosen],
        sizes=columns.sizes[chosen],
        bins=columns.bins[entries],
        counts=columns.counts[entries],
    )


def _steps_between(column: Tensor) -> Tensor:
    """Return the first number, and by how much each other number is above the one before it."""
    return column.diff(prepend=torch.zeros_like(column[..., :1]))
