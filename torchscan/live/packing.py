"""Distributions of a step as bytes: columns of numbers, compressed."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Collection, Mapping
from itertools import accumulate

from torchscan.live.schema import Distribution

_WHOLE = ("numel", "sampled", "nan", "inf", "zero")
_REAL = ("mean", "std", "least", "most", "update", "saturated", "dead", "sample_norm")
_NAN = float("nan")
#: how much time is spent on making it small
_LEVEL = 1


def packed(distributions: Mapping[int, Distribution]) -> bytes:
    """By the numbers of their series."""
    every = list(distributions.values())
    custom = list(dict.fromkeys(name for each in every for name in each.custom))
    header = json.dumps({"rows": len(every), "bins": sum(len(each.counts) for each in every), "custom": custom}).encode()
    columns = [
        array("Q", distributions),
        *(array("Q", [getattr(each, name) for each in every]) for name in _WHOLE),
        *(array("d", [getattr(each, name) for each in every]) for name in _REAL),
        *(array("d", [each.custom.get(name, _NAN) for each in every]) for name in custom),
        array("B", [each.is_exact for each in every]),
        array("H", [len(each.counts) for each in every]),
        array("H", [number for each in every for number in each.counts]),
        array("I", [count for each in every for count in each.counts.values()]),
    ]
    return zlib.compress(b"".join([struct.pack("<I", len(header)), header, *map(_bytes, columns)]), _LEVEL)


def unpacked(data: bytes, only: Collection[int] | None = None) -> dict[int, Distribution]:
    """The same again, or those of some series."""
    columns = _Columns(zlib.decompress(data))
    header = columns.header
    count, bins = header["rows"], header["bins"]
    numbers = columns.take("Q", count)
    figures = {name: columns.take("Q", count) for name in _WHOLE} | {name: columns.take("d", count) for name in _REAL}
    custom = {name: columns.take("d", count) for name in header["custom"]}
    is_exact, sizes = columns.take("B", count), columns.take("H", count)
    places, counts = columns.take("H", bins), columns.take("I", bins)
    ends = list(accumulate(sizes))
    return {
        number: Distribution(
            **{name: values[row] for name, values in figures.items()},
            is_exact=bool(is_exact[row]),
            custom={name: values[row] for name, values in custom.items()},
            counts=dict(zip(places[end - size : end], counts[end - size : end], strict=True)),
        )
        for row, (number, size, end) in enumerate(zip(numbers, sizes, ends, strict=True))
        if only is None or number in only
    }


class _Columns:
    def __init__(self, data: bytes) -> None:
        (size,) = struct.unpack_from("<I", data)
        self.header = json.loads(data[4 : 4 + size])
        self._data = memoryview(data)[4 + size :]

    def take(self, kind: str, count: int) -> array[int]:
        """The next numbers."""
        column = array(kind)
        size = count * column.itemsize
        column.frombytes(self._data[:size])
        self._data = self._data[size:]
        return _in_this_order(column)


def _bytes(column: array[int]) -> bytes:
    return _in_this_order(column).tobytes()


def _in_this_order(column: array[int]) -> array[int]:
    """Files have the lowest byte first."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
