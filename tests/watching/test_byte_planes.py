"""Columns of numbers as planes of bytes, by hand."""

from __future__ import annotations

import zlib

import pytest
import torch

from torchscan.watching.byte_planes import deflate, from_planes, inflate, to_planes


def test_planes_have_the_lowest_bytes_of_a_column_first() -> None:
    """The bytes of 258 are 2 and 1, those of −2 are 254 and 255."""
    columns = torch.tensor([[1, 258, -2], [3, 4, 5]], dtype=torch.int16)
    planes = bytes([1, 2, 254, 0, 1, 255, 3, 4, 5, 0, 0, 0])
    assert to_planes(columns) == planes
    assert torch.equal(from_planes("h", planes, 2), columns)


@pytest.mark.parametrize(
    ("kind", "dtype", "size"),
    [
        ("q", torch.int64, 8),
        ("i", torch.int32, 4),
        ("h", torch.int16, 2),
        ("B", torch.uint8, 1),
        ("f", torch.float32, 4),
        ("d", torch.float64, 8),
    ],
)
def test_columns_of_each_type_are_read_as_they_were(
    kind: str, dtype: torch.dtype, size: int
) -> None:
    columns = torch.arange(6).reshape(2, 3).to(dtype)
    planes = to_planes(columns)
    assert len(planes) == 6 * size
    again = from_planes(kind, planes, 2)
    assert again.dtype == dtype
    assert torch.equal(again, columns)


def test_a_single_column_has_planes_of_its_own() -> None:
    assert to_planes(torch.tensor([1, 258], dtype=torch.int16)) == bytes([1, 2, 0, 1])


def test_machines_of_both_byte_orders_write_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, the bytes of a number are the other way round."""
    monkeypatch.setattr("sys.byteorder", "big")
    swapped = torch.tensor([[0x0100, 0x0201]], dtype=torch.int16)  # 1 and 258
    planes = bytes([1, 2, 0, 1])
    assert to_planes(swapped) == planes
    assert torch.equal(from_planes("h", planes, 1), swapped)


def test_planes_of_columns_that_are_not_contiguous() -> None:
    columns = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.uint8).t()
    assert to_planes(columns) == bytes([1, 3, 5, 2, 4, 6])


def test_columns_without_numbers_have_no_bytes() -> None:
    assert to_planes(torch.empty(3, 0, dtype=torch.int64)) == b""
    empty = from_planes("q", b"", 3)
    assert (empty.shape, empty.dtype) == ((3, 0), torch.int64)


def test_compressed_bytes_are_inflated_to_the_length_of_the_header() -> None:
    data = b"abc" * 1000
    packed = deflate(data)
    assert len(packed) < len(data) / 10
    assert zlib.decompress(packed) == inflate(packed, len(data)) == data
    assert inflate(deflate(b""), 0) == b""


def test_a_strategy_without_repetitions_finds_none() -> None:
    """Three letters and the end take two bits each with Huffman's code alone."""
    data = b"abc" * 1000
    packed = deflate(data, zlib.Z_HUFFMAN_ONLY)
    assert 3000 * 2 / 8 < len(packed) < 3000 * 2 / 8 + 100
    assert inflate(packed, len(data)) == data


@pytest.mark.parametrize(
    ("stream", "length"),
    [
        (deflate(b"abcd"), 3),  # longer
        (deflate(b"abcd"), 5),  # shorter
        (deflate(b"abcd")[:-1], 4),  # its end is missing
        (deflate(b"abcd") + b"e", 4),  # more follows
    ],
)
def test_bytes_of_another_length_are_refused(stream: bytes, length: int) -> None:
    with pytest.raises(ValueError, match="its length is not the one in its header"):
        inflate(stream, length)


def test_lengths_above_the_limit_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match="it is too long"):
        inflate(b"", 2**27 + 1)
    with pytest.raises(ValueError, match="its length is not the one in its header"):
        inflate(deflate(b""), 2**27)


def test_an_inflater_may_expect_another_format() -> None:
    raw = zlib.compressobj(6, zlib.DEFLATED, -15)
    stream = raw.compress(b"abcd") + raw.flush()
    assert inflate(stream, 4, zlib.decompressobj(-15)) == b"abcd"
