"""Distributions of a step side by side, as columns of numbers; and those as bytes, compressed."""

from __future__ import annotations

import json
import math
import operator
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from torchscan.live.bins import BINS
from torchscan.live.schema import Distribution
from torchscan.live.validation import MAX_HEADER, MAX_INTEGER, MAX_STEP, BrokenRunError

#: figures that are whole numbers and those that are not, of each row
WHOLE = ("numel", "sampled", "nan", "inf", "zero")
REAL = ("mean", "std", "min", "max", "update", "dead", "sample_norm", "norm")
_REAL_OF_VERSION_3 = REAL[:-1]
_NAN = float("nan")
#: what a figure may be besides infinite: the greatest float32 is 3.4e38, and shares of small numbers are larger
_MAX_REAL = 1e100
#: how much time is spent on making it small
_LEVEL = 1

Column = Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows of figures. ``counts`` of all rows lie one behind the other, ``sizes`` says how many each has."""

    figures: Mapping[str, Column]
    is_exact: Column
    sizes: Column
    bins: Column
    counts: Column

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.sizes))

    def figures_of(self, row: int) -> dict[str, Any]:
        """Return the values of a row by their names in :class:`Distribution`."""
        here = slice(self._ends[row] - self.sizes[row], self._ends[row])
        counts = dict(zip(self.bins[here], self.counts[here], strict=True))
        figures = {name: column[row] for name, column in self.figures.items()}
        return {**figures, "is_exact": bool(self.is_exact[row]), "counts": counts}


@dataclass(frozen=True, kw_only=True)
class Distributions(Mapping[int, Distribution]):
    """Distributions by the number of their series, each of them created on access.

    Several series may share a row.
    """

    columns: Columns
    numbers: Sequence[int]
    rows: Sequence[int]
    #: what depends on the series, not on its values alone
    saturated: Sequence[float]
    can_die: Sequence[bool | int]
    custom: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self.numbers)}

    def __getitem__(self, number: int) -> Distribution:
        place = self._places[number]
        custom = {name: column[place] for name, column in self.custom.items()}
        figures = self.columns.figures_of(self.rows[place])
        figures["dead"] = figures["dead"] if self.can_die[place] else _NAN
        return Distribution(**figures, saturated=self.saturated[place], custom=custom)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self.numbers)


def side_by_side(distributions: Mapping[int, Distribution]) -> Distributions:
    """Return distributions as columns."""
    if isinstance(distributions, Distributions):
        return distributions
    every = list(distributions.values())
    columns = Columns(
        figures={name: [getattr(each, name) for each in every] for name in WHOLE + REAL},
        is_exact=[each.is_exact for each in every],
        sizes=[len(each.counts) for each in every],
        bins=[number for each in every for number in each.counts],
        counts=[count for each in every for count in each.counts.values()],
    )
    names = dict.fromkeys(name for each in every for name in each.custom)
    return Distributions(
        columns=columns,
        numbers=list(distributions),
        rows=range(len(every)),
        saturated=[each.saturated for each in every],
        can_die=[True] * len(every),
        custom={name: [each.custom.get(name, _NAN) for each in every] for name in names},
    )


def packed(distributions: Mapping[int, Distribution]) -> bytes:
    """Return distributions as bytes."""
    found = side_by_side(distributions)
    columns = found.columns
    sizes = {"series": len(found), "rows": len(columns.sizes), "bins": len(columns.bins)}
    names = {"custom": list(found.custom), "real": list(REAL)}
    header = json.dumps({**sizes, **names}).encode()
    parts = [
        _bytes("Q", found.numbers),
        _bytes("I", found.rows),
        _bytes("B", found.can_die),
        *(_bytes("d", column) for column in (found.saturated, *found.custom.values())),
        *(_bytes("Q", columns.figures[name]) for name in WHOLE),
        *(_bytes("d", columns.figures[name]) for name in REAL),
        _bytes("B", columns.is_exact),
        _bytes("H", columns.sizes),
        _bytes("H", columns.bins),
        _bytes("I", columns.counts),
    ]
    return zlib.compress(b"".join([struct.pack("<I", len(header)), header, *parts]), _LEVEL)


def unpacked(data: object) -> Distributions:
    """Return the distributions again, if the bytes hold what their header says and no more."""
    if not isinstance(data, bytes):
        raise BrokenRunError(f"has a step of type {type(data).__name__}")
    try:
        reader = _Reader(data)
        found = reader.distributions()
    except (zlib.error, struct.error, ValueError, RecursionError) as error:
        raise BrokenRunError(f"has a step that cannot be read ({str(error)[:80]})") from error
    _require_consistent(found)
    return found


def _require_consistent(found: Distributions) -> None:
    """Refuse numbers that no tensor has."""
    columns = found.columns
    numel, sampled, *parts = (columns.figures[name] for name in WHOLE)
    is_right = (
        max(found.rows, default=-1) < len(columns.sizes)
        and sum(columns.sizes) == len(columns.bins)
        and max(columns.bins, default=0) < BINS
        and min(columns.counts, default=1) > 0
        and max(numel, default=0) <= MAX_INTEGER
        and not any(map(operator.gt, sampled, numel))
        and not any(
            size and not number for size, number in zip(columns.sizes, sampled, strict=True)
        )
        and not any(map(operator.gt, map(_sum, *parts), sampled))
        and all(_greatest(columns.figures[name]) <= _MAX_REAL for name in REAL)
    )
    if not is_right:
        raise BrokenRunError("has a step with statistics that no tensor can have")


def _sum(*values: int) -> int:
    return sum(values)


def _greatest(column: Column) -> float:
    """Return the greatest of the finite values, without their signs."""
    return max(map(abs, filter(math.isfinite, column)), default=0.0)


class _Reader:
    """Reads compressed columns. It makes no more of them than their header announces, whatever they would expand to."""

    def __init__(self, data: bytes) -> None:
        inflater = zlib.decompressobj()
        self._start = inflater.decompress(data, 4 + MAX_HEADER)
        (size,) = struct.unpack_from("<I", self._start)
        if size > len(self._start) - 4:
            raise ValueError("its header is incomplete")
        self._header = _header_of(self._start[4 : 4 + size])
        length = self._length()
        if length > MAX_STEP:
            raise ValueError("it is too long")
        end = 4 + size + length
        if len(self._start) <= end:  # one byte more than announced shows that there are more
            self._start += inflater.decompress(inflater.unconsumed_tail, end - len(self._start) + 1)
        if len(self._start) != end:
            raise ValueError("its length is not the one in its header")
        self._data = memoryview(self._start)[4 + size :]

    def _length(self) -> int:
        """Return the bytes of all columns, by the header."""
        series, rows, bins = self._sizes
        of_series = 8 + 4 + 1 + 8 * (1 + len(self._header["custom"]))
        of_row = 8 * len((*WHOLE, *self._header["real"])) + 1 + 2
        return series * of_series + rows * of_row + bins * (2 + 4)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        header = self._header
        return header["series"], header["rows"], header["bins"]

    def distributions(self) -> Distributions:
        """Return what the columns hold."""
        series, rows, bins = self._sizes
        numbers, places, can_die = (
            self._take("Q", series),
            self._take("I", series),
            self._take("B", series),
        )
        saturated = self._take("d", series)
        custom = {name: self._take("d", series) for name in self._header["custom"]}
        whole = {name: self._take("Q", rows) for name in WHOLE}
        real = {name: self._take("d", rows) for name in self._header["real"]}
        if "norm" not in real:
            real["norm"] = estimate_norms(whole["numel"], real["mean"], real["std"])
        columns = Columns(
            figures=whole | real,
            is_exact=self._take("B", rows),
            sizes=self._take("H", rows),
            bins=self._take("H", bins),
            counts=self._take("I", bins),
        )
        return Distributions(
            columns=columns,
            numbers=numbers,
            rows=places,
            saturated=saturated,
            can_die=can_die,
            custom=custom,
        )

    def _take(self, kind: str, count: int) -> array[Any]:
        """The next numbers."""
        column = array(kind)
        size = count * column.itemsize
        column.frombytes(self._data[:size])
        self._data = self._data[size:]
        return _in_this_order(column)


def estimate_norms(numels: Column, means: Column, deviations: Column) -> array[float]:
    """Return L2 norms as the means and standard deviations of sampled values suggest."""
    rows = zip(numels, means, deviations, strict=True)
    return array("d", (math.sqrt(numel) * math.hypot(mean, std) for numel, mean, std in rows))


def _header_of(data: bytes) -> dict[str, Any]:
    header: Any = json.loads(data)
    names = header.get("custom") if isinstance(header, dict) else None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError("its header is malformed")
    sizes = [header.get(name) for name in ("series", "rows", "bins")]
    if not all(type(each) is int and 0 <= each <= MAX_STEP for each in sizes) or len(
        set(names)
    ) < len(names):
        raise ValueError("its header is malformed")
    # files of version 3 and earlier have no norms, and do not name their columns
    real = header.get("real", list(_REAL_OF_VERSION_3))
    if real not in (list(_REAL_OF_VERSION_3), list(REAL)):
        raise ValueError("its header is malformed")
    return {**header, "real": real}


def _bytes(kind: str, column: Column) -> bytes:
    same = column if isinstance(column, array) and column.typecode == kind else array(kind, column)
    return _in_this_order(same).tobytes()


def _in_this_order(column: array[Any]) -> array[Any]:
    """Files have the lowest byte first."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column
