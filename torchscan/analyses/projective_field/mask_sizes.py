"""Sizes of masks, which are limited."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: maximum number of words in a mask
MAX_WORDS = 1 << 23


class TooManyPositionsError(Exception):
    """A mask would be too large: fewer positions must be followed at once."""


def empty_mask(sizes: Sequence[int]) -> Tensor:
    """Return a mask of these sizes, whose elements no position reaches."""
    check_size(sizes)
    return torch.zeros(tuple(sizes), dtype=torch.int64, device="cpu")


def check_size(sizes: Sequence[int]) -> None:
    """Raise an error if a mask is too large, unless it has a single word of positions."""
    if math.prod(sizes) > MAX_WORDS and sizes[0] > 1:
        raise TooManyPositionsError
