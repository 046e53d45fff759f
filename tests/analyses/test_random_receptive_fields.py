"""Random graphs: what is said is never less than what back-propagation finds, and the same unless it says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchscan
from tests.analyses import gradient_oracle as oracle
from torchscan import receptive_field

LENGTH = 96
CHANNELS = 4


@dataclass(frozen=True)
class Step:
    """One operator of a random graph: what it does to the maps that there are, the last of which is the newest."""

    name: str
    numbers: tuple[int, ...]
    #: which earlier map is the other operand
    other: int


#: the newest map, an earlier one, some numbers
Operation = Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]
SIGNAL_STEPS: dict[str, Operation] = {}
IMAGE_STEPS: dict[str, Operation] = {}


def step(function: Operation) -> Operation:
    SIGNAL_STEPS[function.__name__] = function
    return function


def image_step(function: Operation) -> Operation:
    IMAGE_STEPS[function.__name__] = function
    return function


def _weight(*shape: int) -> Tensor:
    return torch.full(shape, 1 / (shape[1] * shape[2]), dtype=torch.float64)


@step
def convolution(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    kernel, stride, spacing, padding = 1 + n[0] % 5, 1 + n[1] % 3, 1 + n[2] % 3, n[3] % 4
    return F.conv1d(x, _weight(CHANNELS, CHANNELS, kernel), None, stride, padding, spacing)


@step
def grouped_convolution(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    groups = (1, 2, 4)[n[1] % 3]
    return F.conv1d(
        x, _weight(CHANNELS, CHANNELS // groups, 1 + n[0] % 4), None, 1, n[2] % 3, 1, groups
    )


@step
def transposed_convolution(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.conv_transpose1d(
        x,
        _weight(CHANNELS, CHANNELS, 1 + n[0] % 5),
        None,
        1 + n[1] % 3,
        n[2] % 2,
        0,
        1,
        1 + n[3] % 2,
    )


@step
def pool(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    kernel = 1 + n[0] % 4
    return F.avg_pool1d(x, kernel, 1 + n[1] % 3, min(n[2] % 2, kernel // 2))


@step
def adaptive_pool(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.adaptive_avg_pool1d(x, max(x.shape[-1] * (1 + n[0] % 4) // (2 + n[1] % 3), 2))


@step
def nearest(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.interpolate(x, scale_factor=(2, 3, 0.5)[n[0] % 3])


@step
def linear(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.interpolate(x, scale_factor=(2, 3, 0.5)[n[0] % 3], mode="linear", align_corners=False)


@step
def sliced(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return x[..., n[0] % 4 : x.shape[-1] - n[1] % 4 : 1 + n[2] % 3]


@step
def flipped(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return x.flip(-1)


@step
def padded(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.pad(x, (n[0] % 4, n[1] % 4))


@step
def wrapped(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.pad(x, (n[0] % 3, n[1] % 3), mode="circular")


@step
def rolled(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return x.roll(n[0] % 7 - 3, -1)


@step
def added(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    size = min(x.shape[-1], other.shape[-1])
    return x[..., :size] + other[..., other.shape[-1] - size :]


@step
def joined_by_channel(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    size, at = min(x.shape[-1], other.shape[-1]), 1 + n[0] % 3
    return torch.cat([x[:, :at, :size], other[:, at:, :size]], 1)


@step
def joined_end_to_end(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    return torch.cat([x, other.flip(-1)[..., : LENGTH // 2]], -1)


@step
def shuffled_channels(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return x.view(1, 2, 2, -1).transpose(1, 2).reshape(1, 4, -1)


@step
def space_to_channels_and_back(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    size = x.shape[-1] // 4 * 4
    deep = (
        x[..., :size]
        .view(1, CHANNELS, size // 4, 4)
        .permute(0, 1, 3, 2)
        .reshape(1, 4 * CHANNELS, size // 4)
    )
    deep = F.conv1d(
        deep, _weight(4 * CHANNELS, 1, 1 + n[0] % 3), None, 1, n[1] % 2, 1, 4 * CHANNELS
    )
    return deep.view(1, CHANNELS, 4, -1).permute(0, 1, 3, 2).reshape(1, CHANNELS, -1)


@step
def mixed_in_windows(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    width = 2 + n[0] % 4
    size = x.shape[-1] // width * width
    parts = x[..., :size].view(1, CHANNELS, size // width, width)
    return (parts + parts.mean(-1, keepdim=True)).view(1, CHANNELS, size)


@step
def written_in_part(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    y = x.clone()
    view = y[..., n[0] % 5 :: 1 + n[1] % 2]
    source = F.interpolate(other, size=view.shape[-1])
    view.add_(source) if n[2] % 2 else view.copy_(source)
    return y


@step
def written_by_channel(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    y = x.clone()
    y[:, n[0] % CHANNELS] = F.interpolate(other, size=x.shape[-1])[:, n[1] % CHANNELS]
    return y


@step
def seen_by_an_earlier_view(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    y = x.clone()
    view = (y[..., n[0] % 4 :], y.flip(-1).transpose(1, 2), y.view(1, 2, 2, -1))[n[1] % 3]
    y[..., n[2] % 5 :: 1 + n[3] % 2] += F.interpolate(
        other, size=y[..., n[2] % 5 :: 1 + n[3] % 2].shape[-1]
    )
    return (view, view.transpose(1, 2), view.reshape(1, CHANNELS, -1))[n[1] % 3] * 1


@step
def one_channel(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    narrow = (
        x.sum(1, keepdim=True).squeeze(1)
        if n[0] % 2
        else (x * 1)[:, n[1] % CHANNELS].unsqueeze_(0).squeeze(0)
    )
    return narrow[:, None].expand(1, CHANNELS, -1)


@step
def cut_in_two_and_padded(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    left, right = x.split([x.shape[-1] // 2, x.shape[-1] - x.shape[-1] // 2], -1)
    return torch.cat(
        [left, x.new_zeros(1, CHANNELS, n[0] % 4), right] if n[1] % 2 else [left, right], -1
    )


@step
def gated(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    return x * other.mean(-1, keepdim=True)


# -- of images -----------------------------------------------------------------------------------------------------------


def _kernel(groups: int, height: int, width: int) -> Tensor:
    return _weight(CHANNELS, CHANNELS // groups, height * width).view(
        CHANNELS, CHANNELS // groups, height, width
    )


@image_step
def convolution_of_image(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.conv2d(
        x, _kernel(1, 1 + n[0] % 3, 1 + n[1] % 4), None, (1 + n[2] % 2, 1), (n[3] % 2, n[0] % 2)
    )


@image_step
def depthwise_convolution_of_image(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.conv2d(x, _kernel(4, 1 + n[0] % 3, 1 + n[1] % 3), None, 1, (n[2] % 2, n[3] % 2), 1, 4)


@image_step
def pool_of_image(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.avg_pool2d(x, (1 + n[0] % 3, 1 + n[1] % 3), (1 + n[2] % 2, 1 + n[3] % 2))


@image_step
def resized(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    scales = (1 + n[0] % 2, 1 + n[1] % 2)
    return F.interpolate(x, scale_factor=scales, mode=("nearest", "bilinear")[n[2] % 2])


@image_step
def cropped(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return x[:, :, n[0] % 3 :: 1 + n[1] % 2, n[2] % 3 : x.shape[-1] - n[3] % 3]


@image_step
def channels_last(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    mixed = F.linear(x.permute(0, 2, 3, 1), _weight(CHANNELS, CHANNELS, 1)[..., 0])
    return mixed.permute(0, 3, 1, 2)


@image_step
def as_tokens(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    """A class token before them, some arithmetic, the token away again."""
    tokens = torch.cat([x.new_ones(1, 1, CHANNELS), x.flatten(2).transpose(1, 2)], 1)
    tokens = tokens * 2
    return tokens[:, 1:].transpose(1, 2).reshape(x.shape)


@image_step
def some_tokens(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    width = x.shape[-1]
    tokens = x.flatten(2)[..., (n[0] % 3) * width : x.shape[2] * width - (n[1] % 3) * width]
    return tokens.view(1, CHANNELS, -1, width)


@image_step
def written_region(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    y = x.clone()
    region = y[:, n[0] % 2 :, n[1] % 4 : -1 - n[2] % 4, n[3] % 3 :: 2]
    if region.numel() == 0:  # of a small image
        return y
    region.copy_(F.interpolate(other, size=region.shape[2:])[:, n[0] % 2 :])
    return y


@image_step
def mixed_along_rows(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return x + x.mean(2 + n[0] % 2, keepdim=True)


@image_step
def mixed_in_windows_of_image(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    tall, wide = 2 + n[0] % 3, 2 + n[1] % 3
    rows, columns = x.shape[2] // tall, x.shape[3] // wide
    parts = x[..., : rows * tall, : columns * wide].reshape(1, CHANNELS, rows, tall, columns, wide)
    windows = parts.permute(0, 2, 4, 3, 5, 1).reshape(rows * columns, tall * wide, CHANNELS)
    windows = windows + windows @ windows.transpose(1, 2) @ windows
    parts = windows.view(1, rows, columns, tall, wide, CHANNELS).permute(0, 5, 1, 3, 2, 4)
    return parts.reshape(1, CHANNELS, rows * tall, columns * wide)


@image_step
def pixels_to_channels_and_back(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    deep = F.pixel_unshuffle(x[..., : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2], 2)
    kernel = _weight(4 * CHANNELS, 1, 9).view(4 * CHANNELS, 1, 3, 3)
    return F.pixel_shuffle(F.conv2d(deep, kernel, None, 1, n[0] % 2, 1, 4 * CHANNELS), 2)


@image_step
def rolled_image(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return x.roll((n[0] % 5 - 2, n[1] % 3 - 1), (2, 3))


@image_step
def added_image(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    height, width = (min(sizes) for sizes in zip(x.shape[2:], other.shape[2:], strict=True))
    return x[..., :height, :width] + other[..., -height:, -width:]


@image_step
def joined_image_channels(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    height, width = (min(sizes) for sizes in zip(x.shape[2:], other.shape[2:], strict=True))
    return torch.stack(
        [x[:, :2, :height, :width], other[:, 2:, :height, :width]], 1 + n[0] % 2
    ).flatten(1, 2)


@image_step
def taken_apart_and_put_together(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    columns = F.unfold(x, 3, padding=1, stride=1 + n[0] % 2)
    return F.fold(columns, (x.shape[2], x.shape[3]), 3, padding=1, stride=1 + n[0] % 2)


class Graph(nn.Module):
    """A chain of random steps, some of which look back."""

    def __init__(self, steps: list[Step], kinds: dict[str, Operation], least: int) -> None:
        super().__init__()
        self.steps = steps
        self.kinds = kinds
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for each in self.steps:
            new = self.kinds[each.name](maps[-1], maps[each.other % len(maps)], each.numbers)
            if self.least <= min(new.shape[2:]) and max(new.shape[2:]) <= 4 * LENGTH:
                maps.append(new)
        return maps[-1]


def steps_of(kinds: dict[str, Operation]) -> st.SearchStrategy[list[Step]]:
    step = st.builds(
        Step,
        st.sampled_from(sorted(kinds)),
        st.tuples(*[st.integers(0, 11)] * 4),
        st.integers(0, 5),
    )
    return st.lists(step, min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=20)
@given(steps_of(SIGNAL_STEPS))
def test_random_graphs_of_signals(steps: list[Step]) -> None:
    _agrees(Graph(steps, SIGNAL_STEPS, 16), (CHANNELS, LENGTH), margin=12)


@pytest.mark.slow
@settings(max_examples=20)
@given(steps_of(IMAGE_STEPS))
def test_random_graphs_of_images(steps: list[Step]) -> None:
    _agrees(Graph(steps, IMAGE_STEPS, 8), (CHANNELS, 48, 40), margin=8)


def _agrees(model: Graph, shape: tuple[int, ...], margin: int) -> None:
    (x,) = oracle.new_inputs([shape])
    dims = tuple(range(2, x.dim()))
    field = receptive_field(model, args=(x,), axes={"args[0]": dims})
    output = model(x)
    for axis in field.output.axes:
        if "wraps" in axis.notes and any(each.name == "joined_end_to_end" for each in model.steps):
            continue  # borders that wrap may have been moved inside
        size = output.shape[axis.axis]
        middle = range(size * 2 // 5, size * 3 // 5)
        for unit in sorted({*middle, *range(0, size, 5), size - 1}):
            (boxes,) = oracle.seen_by(output, axis.axis, unit, [x])
            _compare(axis, unit, boxes[axis.axis], margin if unit in middle else None)


def _compare(
    axis: torchscan.types.AxisField, unit: int, seen: tuple[int, int] | None, margin: int | None
) -> None:
    """Near a border what is said goes on beyond it, and where a border wraps, only the interior is said."""
    if axis.status == "global" or seen is None:
        return
    assert axis.status == "local"
    if not axis.starts:
        assert axis.size is not None
        assert axis.size >= seen[1] - seen[0] + 1 or "wraps" in axis.notes
        return
    said = axis.interval(unit)
    if said is None and "wraps" in axis.notes and margin is None:
        return
    assert said is not None
    is_inside = margin is not None and margin <= said[0] and said[1] < axis.length - margin
    if is_inside or "wraps" not in axis.notes:
        assert said[0] <= seen[0] <= seen[1] <= said[1]
    if is_inside and "hull" not in axis.notes:
        assert said == seen
