"""Distributions of a step as bytes: columns of numbers, compressed."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Mapping

from torchscan.live.schema import Distribution

_WHOLE = ("numel", "sampled", "nan", "inf", "zero")
_REAL = ("mean", "std", "least", "most", "update")
#: how much time is spent on making it small
_LEVEL = 1


def packed(distributions: Mapping[int, Distribution]) -> bytes:
    """By the numbers of their series."""
    every = list(distributions.values())
    columns = [
        array("Q", [len(every), sum(len(each.counts) for each in every)]),
        array("Q", distributions),
        *(array("Q", [getattr(each, name) for each in every]) for name in _WHOLE),
        *(array("d", [getattr(each, name) for each in every]) for name in _REAL),
        array("B", [each.is_exact for each in every]),
        array("H", [len(each.counts) for each in every]),
        array("H", [number for each in every for number in each.counts]),
        array("I", [count for each in every for count in each.counts.values()]),
    ]
    return zlib.compress(b"".join(map(_bytes, columns)), _LEVEL)


def unpacked(data: bytes) -> dict[int, Distribution]:
    """The same again."""
    columns = _Columns(zlib.decompress(data))
    count, bins = columns.take("Q", 2)
    numbers = columns.take("Q", count)
    figures = {name: columns.take("Q", count) for name in _WHOLE} | {name: columns.take("d", count) for name in _REAL}
    is_exact, sizes = columns.take("B", count), columns.take("H", count)
    places, counts = iter(columns.take("H", bins)), iter(columns.take("I", bins))
    return {
        number: Distribution(
            **{name: values[index] for name, values in figures.items()},
            is_exact=bool(is_exact[index]),
            counts={next(places): next(counts) for _ in range(sizes[index])},
        )
        for index, number in enumerate(numbers)
    }


class _Columns:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

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
