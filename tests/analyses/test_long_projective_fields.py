"""Projective fields of long inputs and many units, and the memory that they take."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import projective_field, window_of
from torchscan.ops.windows import elementwise
from torchscan.trace.events import TensorSpec


class Tokens(nn.Module):
    """A convolution, of which each unit is a token."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.norm = nn.LayerNorm(1)

    def forward(self, x: Tensor) -> Any:
        """Return the tokens, row by row."""
        return self.norm(self.conv(x).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("width", [10, 600])
def test_a_row_of_an_image_reaches_the_tokens_of_the_rows_around_it(width: int) -> None:
    """Row i reaches rows i − 1 … i + 1, column j the tokens j − 1 … j + 1 of each row."""
    height = 100
    rows, columns = projective_field(Tokens(), (1, height, width)).output.axes
    assert rows.units == columns.units == height * width
    assert rows.interval(0) == (0, 2 * width - 1)
    assert rows.interval(70) == (69 * width, 72 * width - 1)
    assert rows.counts == (2 * width, *[3 * width] * (height - 2), 2 * width)
    assert columns.interval(0) == (0, 99 * width + 1)
    assert columns.interval(width - 1) == (width - 2, height * width - 1)
    assert columns.counts == (2 * height, *[3 * height] * (width - 2), 2 * height)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (4, 2), (2, 5)])
def test_each_of_many_samples_reaches_what_its_windows_say(kernel: int, stride: int) -> None:
    """Unit j reads ``stride · j`` and the ``kernel − 1`` samples after it."""
    length = 3000
    (axis,) = projective_field(nn.Conv1d(1, 1, kernel, stride), (1, length)).output.axes
    units = (length - kernel) // stride + 1
    for position in range(length):
        first = max(0, -((kernel - 1 - position) // stride))
        last = min(units - 1, position // stride)
        expected = (first, last) if first <= last else None
        assert axis.interval(position) == expected
        assert axis.counts[position] == max(0, last - first + 1)


def large_tensors_of_integers() -> list[Tensor]:
    """Return the tensors of this process that may be masks."""
    alive = [each for each in gc.get_objects() if type(each) is Tensor]
    return [each for each in alive if each.dtype is torch.int64 and each.numel() > 500]


def test_what_no_later_layer_reads_is_forgotten() -> None:
    """After twenty layers, there are the masks of what the last ones read, not one per layer."""

    @torch.library.custom_op("reached::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        return x.clone()

    counted.register_fake(torch.empty_like)
    # by id: the indices that earlier walks left in a cache, kept so that no mask gets their ids
    earlier = {id(each): each for each in large_tensors_of_integers()}
    num_masks = []

    @window_of(torch.ops.reached.counted)
    def count_masks(x: TensorSpec, *, out: TensorSpec) -> Any:
        num_masks.append(sum(id(each) not in earlier for each in large_tensors_of_integers()))
        return elementwise(inputs=(x,), out=out)

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.reached.counted(x)

    layers = [nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), nn.Identity()) for _ in range(10)]
    found = projective_field(nn.Sequential(*layers, Counts()), (1, 1000))
    assert found.output.size == 21
    assert 0 < max(num_masks) <= 4
