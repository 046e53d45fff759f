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

from torchscan.watching.byte_planes import DTYPES, deflate, from_planes, inflate, to_planes
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
from torchscan.watching.distributions import BINS
from torchscan.watching.schema import Distribution
from torchscan.watching.validation import MAX_HEADER, MAX_INTEGER, MAX_STEP, BrokenRunError

#: the first byte of a step; that of version 3 and earlier is 0x78, with which zlib begins
_FORMAT = 4
#: the format, the bytes of the names of custom statistics, how many series, rows and bins there
#: are, and the bytes of the four streams: statistics, lower bytes of bins and of counts, their
#: upper bytes
_HEAD = struct.Struct("<BxxxIIIIIIII")
#: the greatest magnitude of a statistic that is not infinite
_MAX_REAL = 1e100


def packed(distributions: Mapping[int, Distribution]) -> bytes:
    """Return distributions as bytes. Rows that no series has are left out."""
    (data,) = pack_steps([distributions])
    return data


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
        header = _HEAD.pack(_FORMAT, len(names), *sizes, num_bins, *map(len, every))
        packed_steps.append(b"".join([header, *every]))
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
    is_known = norms.ne(estimate_norms(figures)) & norms.isnan().logical_not()
    figures["norm"] = norms.where(is_known, math.nan)
    saturated = [to_reals(each.saturated) for each in steps]
    are_exact = [each.is_exact.byte() for each in columns]
    sizes = [each.sizes.short() for each in columns]
    whole = torch.stack([figures[name].long() for name in WHOLE], 1)
    real = torch.stack([figures[name].float() for name in REAL], 1)
    rows = [whole.flatten(0, 1), real.flatten(0, 1), torch.stack(are_exact), torch.stack(sizes)]
    of_steps = [torch.stack(saturated), *rows]
    shares, *others = (_planes_of_steps(each, num_steps) for each in of_steps)
    numbers_and_rows = [list(first.numbers), list(first.rows)]
    numbers = torch.tensor(numbers_and_rows, dtype=torch.int64)
    can_die = bytes(map(bool, first.can_die))
    start = names + to_planes(_steps_between(numbers)) + can_die
    custom = map(_planes_of_custom, steps)
    parts = zip([start] * num_steps, shares, custom, *others, strict=True)
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
        streams = [
            deflate(low, zlib.Z_HUFFMAN_ONLY),
            deflate(lowest, zlib.Z_HUFFMAN_ONLY),
            deflate(b"".join([high, *higher])),
        ]
        yield len(each.bins), streams


def unpacked(data: object, *, has_counts: bool = True) -> Distributions:
    """Return the distributions again, if the bytes hold what their header promises and no more.

    Without ``has_counts``, no row has counts, which takes a third of the time.
    """
    if not isinstance(data, bytes):
        raise BrokenRunError(f"has a step of type {type(data).__name__}")
    try:
        found = _read(data, has_counts=has_counts)
    except (zlib.error, struct.error, ValueError, RecursionError) as error:
        raise BrokenRunError(f"has a step that cannot be read ({str(error)[:80]})") from error
    if not _is_consistent(found):
        raise BrokenRunError("has a step with statistics that no tensor can have")
    return found


def _read(data: bytes, *, has_counts: bool) -> Distributions:
    if data[:1] != bytes([_FORMAT]):
        from torchscan.watching.packing_3 import read_version_3

        return read_version_3(data)
    reader = _Reader(data)
    return reader.distributions(has_counts=has_counts)


def _is_consistent(found: Distributions) -> bool:
    """Return whether tensors can have such statistics."""
    columns = found.columns
    numel, sampled, *parts = (columns.figures[name] for name in WHOLE)
    whole = torch.stack([numel, sampled, *parts])
    if whole.numel():
        smallest, largest = int(whole.min()), int(whole.max())
        if not 0 <= smallest <= largest <= MAX_INTEGER:
            return False
    first_row = min(found.rows, default=0)
    last_row = max(found.rows, default=-1)
    if last_row >= len(columns.sizes) or first_row < 0:
        return False
    if int(columns.sizes.sum()) != len(columns.bins):
        return False
    reals = torch.stack([columns.figures[name].double() for name in REAL])
    checks = [
        sampled <= numel,
        sum(parts) <= sampled,
        (columns.sizes == 0) | (sampled > 0),
        columns.sizes >= 0,
        columns.bins < BINS,
        columns.bins >= 0,
        columns.counts > 0,
        reals.nan_to_num(0, 0, 0).abs() <= _MAX_REAL,
    ]
    return all(bool(each.all()) for each in checks)


class _Reader:
    """A reader of streams, which expand to no more than the header promises."""

    def __init__(self, data: bytes) -> None:
        _, self._num_names, *sizes = _HEAD.unpack_from(data)
        self._num_series, self._num_rows, self._num_bins, *lengths = sizes
        if self._num_names > MAX_HEADER or max(sizes) > MAX_STEP:
            raise ValueError("it is too long")
        if len(data) != _HEAD.size + sum(lengths):
            raise ValueError("its length is not the one in its header")
        self._streams = []
        start = _HEAD.size
        for length in lengths:
            self._streams.append(memoryview(data)[start : start + length])
            start += length

    def distributions(self, *, has_counts: bool) -> Distributions:
        """Return what the streams hold."""
        names, self._data = self._inflate_names(self._streams[0])
        numbers, rows = self._take("q", 2, self._num_series).cumsum(1).tolist()
        (can_die,) = self._take("B", 1, self._num_series).tolist()
        (saturated,) = self._take("f", 1, self._num_series).tolist()
        custom = self._take("d", len(names), self._num_series).tolist()
        whole = dict(zip(WHOLE, self._take("q", len(WHOLE), self._num_rows), strict=True))
        real = dict(zip(REAL, self._take("f", len(REAL), self._num_rows), strict=True))
        (is_exact,) = self._take("B", 1, self._num_rows)
        (sizes,) = self._take("h", 1, self._num_rows).long()
        norms = real["norm"]
        real["norm"] = norms.where(~norms.isnan(), estimate_norms(whole | real))
        bins = counts = torch.empty(0, dtype=torch.int64)
        if has_counts:
            bins, counts = self._inflate_counts()
        else:
            sizes = torch.zeros_like(sizes)
        figures = whole | real
        of_name = dict(zip(names, custom, strict=True))
        columns = Columns(figures=figures, is_exact=is_exact, sizes=sizes, bins=bins, counts=counts)
        return Distributions(
            columns=columns,
            numbers=numbers,
            rows=rows,
            saturated=saturated,
            can_die=can_die,
            custom=of_name,
        )

    def _inflate_counts(self) -> tuple[Tensor, Tensor]:
        """Return the bins and their counts."""
        _, *streams = self._streams
        number = self._num_bins
        low, low_of_counts = (inflate(each, number) for each in streams[:2])
        high = inflate(streams[2], 4 * number)
        steps = from_planes("h", low + high[:number], 1)
        counts = from_planes("i", low_of_counts + high[number:], 1)
        return steps[0].long().cumsum(0), counts[0].long()

    def _inflate_names(self, stream: memoryview) -> tuple[list[str], memoryview]:
        """Return the names of the user's statistics, and the columns."""
        inflater = zlib.decompressobj()
        start = inflater.decompress(stream, max(1, self._num_names))
        names = json.loads(start)
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise ValueError("its header is malformed")
        if len(set(names)) < len(names):
            raise ValueError("its header is malformed")
        size_of_custom = 8 * len(names)
        of_series = 8 + 8 + 1 + 4 + size_of_custom
        size_of_figures = 8 * len(WHOLE) + 4 * len(REAL)
        of_row = size_of_figures + 1 + 2
        length = self._num_series * of_series + self._num_rows * of_row
        return names, memoryview(inflate(inflater.unconsumed_tail, length, inflater))

    def _take(self, kind: str, num_columns: int, length: int) -> Tensor:
        """Return the next columns, of this length."""
        size = num_columns * length * DTYPES[kind].itemsize
        columns = from_planes(kind, self._data[:size], num_columns)
        self._data = self._data[size:]
        return columns


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
