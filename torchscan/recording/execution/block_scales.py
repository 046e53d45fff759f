"""The operator that casts a matrix to 8 bits with a scale for each block of 32 (MX).

torchao has kernels for it that read the matrix once, along its rows or its columns, and write the
values and the scales as products take them. Without a compiler, too, it is one kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: numbers that share a scale
MX_BLOCK = 32
#: rows and columns of scales that products read together
_SCALE_ROWS, _SCALE_COLUMNS = 128, 4
_MIN_SCALE = 2.0**-127

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define("quantize_mx(Tensor matrix, int dim) -> (Tensor, Tensor)")
quantize_mx = torch.ops.torchscan.quantize_mx


def compute_quantize_mx(matrix: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return values with ``dim`` last, and scales that are powers of two, in tiles of 128 × 4."""
    rows = matrix if dim % 2 else matrix.t()
    blocks = rows.float().reshape(rows.shape[0], -1, MX_BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    limit = torch.finfo(torch.float8_e4m3fn).max
    ratio = torch.clamp(largest / limit, min=_MIN_SCALE)
    scales = torch.exp2(torch.ceil(torch.log2(ratio)))
    scaled = blocks / scales
    values = scaled.reshape(rows.shape).to(torch.float8_e4m3fn)
    tiles = _in_tiles(scales.squeeze(-1))
    return values, tiles.to(torch.float8_e8m0fnu)


def _in_tiles(scales: Tensor) -> Tensor:
    rows, columns = scales.shape
    missing = (0, -columns % _SCALE_COLUMNS, 0, -rows % _SCALE_ROWS)
    padded = torch.nn.functional.pad(scales, missing, value=1.0)
    width = padded.shape[1] // _SCALE_COLUMNS
    tiles = padded.reshape(-1, 4, _SCALE_ROWS // 4, width, _SCALE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).flatten()


def shape_of_quantize_mx(matrix: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return values and scales without data."""
    rows, columns = matrix.shape if dim % 2 else matrix.shape[::-1]
    values = matrix.new_empty((rows, columns), dtype=torch.float8_e4m3fn)
    row_tiles = math.ceil(rows / _SCALE_ROWS)
    column_tiles = math.ceil(columns / (MX_BLOCK * _SCALE_COLUMNS))
    number = row_tiles * column_tiles * _SCALE_ROWS * _SCALE_COLUMNS
    return values, matrix.new_empty(number, dtype=torch.float8_e8m0fnu)


_library.impl("quantize_mx", compute_quantize_mx, "CompositeExplicitAutograd")
_library.impl("quantize_mx", shape_of_quantize_mx, "Meta")
