"""Columns of numbers as planes of bytes, and their compression."""

from __future__ import annotations

import sys
import zlib

import torch
from torch import Tensor

from torchscan.watching.validation import MAX_STEP

#: how much time is spent on making it small
_LEVEL = 6
#: types of columns, by the codes of ``struct``
DTYPES = {
    "q": torch.int64,
    "i": torch.int32,
    "h": torch.int16,
    "B": torch.uint8,
    "f": torch.float32,
    "d": torch.float64,
}


def inflate(
    stream: bytes | memoryview, length: int, inflater: zlib._Decompress | None = None
) -> bytes:
    """Return exactly ``length`` bytes."""
    if length > MAX_STEP:
        raise ValueError("it is too long")
    inflater = inflater or zlib.decompressobj()
    data = inflater.decompress(stream, length + 1)  # one more shows that there are more
    if len(data) != length or not inflater.eof or inflater.unused_data:
        raise ValueError("its length is not the one in its header")
    return data


def deflate(data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """Return compressed bytes."""
    deflater = zlib.compressobj(_LEVEL, strategy=strategy)
    return deflater.compress(data) + deflater.flush()


def to_planes(columns: Tensor) -> bytes:
    """Return, for each column, all lowest bytes of the numbers, then all second ones, and so on."""
    if not columns.numel():
        return b""
    size = columns.element_size()
    data = columns.contiguous().view(torch.uint8).view(-1, columns.shape[-1], size)
    data = data.flip(2) if sys.byteorder == "big" else data
    memory = bytearray(data.numel())
    planes = torch.frombuffer(memory, dtype=torch.uint8)
    planes.view(-1, size, columns.shape[-1]).copy_(data.transpose(1, 2))
    return bytes(memory)


def from_planes(kind: str, data: bytes | memoryview, num_columns: int) -> Tensor:
    """Return the columns that :func:`to_planes` has turned into bytes."""
    dtype = DTYPES[kind]
    if not len(data):
        return torch.empty(num_columns, 0, dtype=dtype)
    planes = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    planes = planes.view(num_columns, dtype.itemsize, -1)
    planes = planes.flip(1) if sys.byteorder == "big" else planes
    return planes.transpose(1, 2).flatten().contiguous().view(dtype).view(num_columns, -1)
