"""Distributions of a step side by side, as columns of numbers; and those as bytes, compressed."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from torchscan.live.schema import Distribution

#: figures that are whole numbers and those that are not, of each row
WHOLE = ("numel", "sampled", "nan", "inf", "zero")
REAL = ("mean", "std", "least", "most", "update", "dead", "sample_norm")
_NAN = float("nan")
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
        """By their names in :class:`Distribution`."""
        here = slice(self._ends[row] - self.sizes[row], self._ends[row])
        counts = dict(zip(self.bins[here], self.counts[here], strict=True))
        figures = {name: column[row] for name, column in self.figures.items()}
        return {**figures, "is_exact": bool(self.is_exact[row]), "counts": counts}


@dataclass(frozen=True, kw_only=True)
class Distributions(Mapping[int, Distribution]):
    """By the numbers of their series, of which several may have the same row. Each is put together when it is asked for."""

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
    """The same as columns."""
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
    """As bytes."""
    found = side_by_side(distributions)
    columns = found.columns
    sizes = {"series": len(found), "rows": len(columns.sizes), "bins": len(columns.bins)}
    header = json.dumps({**sizes, "custom": list(found.custom)}).encode()
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


def unpacked(data: bytes) -> Distributions:
    """The same again."""
    reader = _Reader(zlib.decompress(data))
    series, rows, bins = (reader.header[name] for name in ("series", "rows", "bins"))
    numbers, places, can_die = reader.take("Q", series), reader.take("I", series), reader.take("B", series)
    saturated = reader.take("d", series)
    custom = {name: reader.take("d", series) for name in reader.header["custom"]}
    figures = {name: reader.take("Q", rows) for name in WHOLE} | {name: reader.take("d", rows) for name in REAL}
    columns = Columns(
        figures=figures,
        is_exact=reader.take("B", rows),
        sizes=reader.take("H", rows),
        bins=reader.take("H", bins),
        counts=reader.take("I", bins),
    )
    return Distributions(columns=columns, numbers=numbers, rows=places, saturated=saturated, can_die=can_die, custom=custom)


class _Reader:
    def __init__(self, data: bytes) -> None:
        (size,) = struct.unpack_from("<I", data)
        self.header = json.loads(data[4 : 4 + size])
        self._data = memoryview(data)[4 + size :]

    def take(self, kind: str, count: int) -> array[Any]:
        """The next numbers."""
        column = array(kind)
        size = count * column.itemsize
        column.frombytes(self._data[:size])
        self._data = self._data[size:]
        return _in_this_order(column)


def _bytes(kind: str, column: Column) -> bytes:
    same = column if isinstance(column, array) and column.typecode == kind else array(kind, column)
    return _in_this_order(same).tobytes()


def _in_this_order(column: array[Any]) -> array[Any]:
    """Files have the lowest byte first."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column
