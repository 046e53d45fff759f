"""Steps of a run's file as distributions again. A file is not trusted: everything is checked."""

from __future__ import annotations

import json
import struct
import zlib

import torch
from torch import Tensor

from torchscan.watching.byte_planes import DTYPES, from_planes, inflate
from torchscan.watching.distribution_columns import (
    REAL,
    WHOLE,
    Columns,
    Distributions,
    estimate_norms,
)
from torchscan.watching.distributions import BINS
from torchscan.watching.packing import FORMAT, HEAD
from torchscan.watching.validation import MAX_HEADER, MAX_INTEGER, MAX_STEP, BrokenRunError

#: the greatest magnitude of a statistic that is not infinite
_MAX_REAL = 1e100


def unpacked(data: object, *, has_counts: bool = True) -> Distributions:
    """Return the distributions again, if the bytes hold what their header promises and no more.

    Without ``has_counts``, no row has counts, which takes a third of the time.
    """
    if not isinstance(data, bytes):
        raise BrokenRunError(f"has a step of type {type(data).__name__}")
    try:
        if data[:1] == bytes([FORMAT]):
            found = _StepReader(data).distributions(has_counts=has_counts)
        else:
            from torchscan.watching.packing_3 import read_version_3

            found = read_version_3(data)
    except (zlib.error, struct.error, ValueError, RecursionError) as error:
        raise BrokenRunError(f"has a step that cannot be read ({str(error)[:80]})") from error
    if not _is_consistent(found):
        raise BrokenRunError("has a step with statistics that no tensor can have")
    return found


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


class _StepReader:
    """A reader of streams, which expand to no more than the header promises."""

    def __init__(self, data: bytes) -> None:
        _, self._num_names, *sizes = HEAD.unpack_from(data)
        self._num_series, self._num_rows, self._num_bins, *lengths = sizes
        if self._num_names > MAX_HEADER or max(sizes) > MAX_STEP:
            raise ValueError("it is too long")
        if len(data) != HEAD.size + sum(lengths):
            raise ValueError("its length is not the one in its header")
        self._streams = []
        start = HEAD.size
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
