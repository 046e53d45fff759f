"""Steps of files of versions 2 and 3, which have no norms."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from typing import Any

import torch
from torch import Tensor

from torchscan.watching.distribution_columns import (
    REAL,
    WHOLE,
    Columns,
    Distributions,
    estimate_norms,
)
from torchscan.watching.validation import MAX_HEADER, MAX_STEP

_REAL = [name for name in REAL if name != "norm"]
_DTYPES = {
    "Q": torch.int64,
    "I": torch.int32,
    "H": torch.int16,
    "B": torch.uint8,
    "d": torch.float64,
}


def read_version_3(data: bytes) -> Distributions:
    """Return the distributions of a step; raise a ValueError or zlib.error if it is malformed."""
    return _OldReader(data).distributions()


class _OldReader:
    """A reader of compressed columns, which expand to no more than the header promises."""

    def __init__(self, data: bytes) -> None:
        inflater = zlib.decompressobj()
        self._start = inflater.decompress(data, 4 + MAX_HEADER)
        (size,) = struct.unpack_from("<I", self._start)
        if size > len(self._start) - 4:
            raise ValueError("its header is incomplete")
        self._header = _header_of(self._start[4 : 4 + size])
        series, rows, bins = self._sizes
        of_series = 8 + 4 + 1 + 8 * (1 + len(self._header["custom"]))
        of_row = 8 * (len(WHOLE) + len(_REAL)) + 1 + 2
        length = series * of_series + rows * of_row + bins * (2 + 4)
        if length > MAX_STEP:
            raise ValueError("it is too long")
        end = 4 + size + length
        if len(self._start) <= end:  # one byte more than announced shows that there are more
            self._start += inflater.decompress(inflater.unconsumed_tail, end - len(self._start) + 1)
        if len(self._start) != end:
            raise ValueError("its length is not the one in its header")
        self._data = memoryview(self._start)[4 + size :]

    @property
    def _sizes(self) -> tuple[int, int, int]:
        header = self._header
        return header["series"], header["rows"], header["bins"]

    def distributions(self) -> Distributions:
        """Return what the columns hold."""
        series, rows, bins = self._sizes
        of_series = [self._take(kind, series).tolist() for kind in "QIBd"]
        numbers, places, can_die, saturated = of_series
        custom = {name: self._take("d", series).tolist() for name in self._header["custom"]}
        figures = {name: self._take("Q", rows) for name in WHOLE}
        for name in _REAL:
            figures[name] = self._take("d", rows)
        figures["norm"] = estimate_norms(figures)
        columns = Columns(
            figures=figures,
            is_exact=self._take("B", rows),
            sizes=self._take("H", rows).long(),
            bins=self._take("H", bins).long(),
            counts=self._take("I", bins).long(),
        )
        return Distributions(
            columns=columns,
            numbers=numbers,
            rows=places,
            saturated=saturated,
            can_die=can_die,
            custom=custom,
        )

    def _take(self, kind: str, count: int) -> Tensor:
        """Return the next numbers."""
        column = array(kind)
        size = count * column.itemsize
        column.frombytes(self._data[:size])
        self._data = self._data[size:]
        if sys.byteorder == "big":
            column.byteswap()
        dtype = _DTYPES[kind]
        return torch.frombuffer(column, dtype=dtype) if count else torch.empty(0, dtype=dtype)


def _header_of(data: bytes) -> dict[str, Any]:
    header: Any = json.loads(data)
    malformed = ValueError("its header is malformed")
    if not isinstance(header, dict):
        raise malformed
    names = header.get("custom")
    if not isinstance(names, list):
        raise malformed
    are_texts = all(isinstance(each, str) for each in names)
    if not are_texts or len(set(names)) < len(names):
        raise malformed
    for name in ("series", "rows", "bins"):
        size = header.get(name)
        if type(size) is not int or not 0 <= size <= MAX_STEP:
            raise malformed
    return header
