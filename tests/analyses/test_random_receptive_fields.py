"""Random graphs: what is said is never less than what back-propagation finds, and the same unless it says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchscan
from tests.analyses import gradient_oracle as oracle

LENGTH = 96
CHANNELS = 4


@dataclass(frozen=True)
class Step:
    """One operator of a random graph: what it does to the maps that there are, the last of which is the newest."""

    name: str
    numbers: tuple[int, ...]
    #: which earlier map is the other operand
    other: int


STEPS: dict[str, Callable[[list[Tensor], tuple[int, ...], int], Tensor]] = {}


def step(function: Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]) -> None:
    STEPS[function.__name__] = lambda maps, numbers, other: function(maps[-1], maps[other % len(maps)], numbers)


def _weight(*shape: int) -> Tensor:
    return torch.full(shape, 1 / (shape[1] * shape[2]), dtype=torch.float64)


@step
def convolution(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    kernel, stride, spacing, padding = 1 + n[0] % 5, 1 + n[1] % 3, 1 + n[2] % 3, n[3] % 4
    return F.conv1d(x, _weight(CHANNELS, CHANNELS, kernel), None, stride, padding, spacing)


@step
def grouped_convolution(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    groups = (1, 2, 4)[n[1] % 3]
    return F.conv1d(x, _weight(CHANNELS, CHANNELS // groups, 1 + n[0] % 4), None, 1, n[2] % 3, 1, groups)


@step
def transposed_convolution(x: Tensor, _: Tensor, n: tuple[int, ...]) -> Tensor:
    return F.conv_transpose1d(x, _weight(CHANNELS, CHANNELS, 1 + n[0] % 5), None, 1 + n[1] % 3, n[2] % 2, 0, 1, 1 + n[3] % 2)


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
    deep = x[..., :size].view(1, CHANNELS, size // 4, 4).permute(0, 1, 3, 2).reshape(1, 4 * CHANNELS, size // 4)
    deep = F.conv1d(deep, _weight(4 * CHANNELS, 1, 1 + n[0] % 3), None, 1, n[1] % 2, 1, 4 * CHANNELS)
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
def gated(x: Tensor, other: Tensor, n: tuple[int, ...]) -> Tensor:
    return x * other.mean(-1, keepdim=True)


class Graph(nn.Module):
    """A chain of random steps, some of which look back."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for each in self.steps:
            new = STEPS[each.name](maps, each.numbers, each.other)
            if 16 <= new.shape[-1] <= 4 * LENGTH:
                maps.append(new)
        return maps[-1]


STEPS_DRAWN = st.builds(Step, st.sampled_from(sorted(STEPS)), st.tuples(*[st.integers(0, 11)] * 4), st.integers(0, 5))


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS_DRAWN, min_size=1, max_size=6))
def test_random_graphs(steps: list[Step]) -> None:
    model = Graph(steps)
    (x,) = oracle.fresh_inputs([(CHANNELS, LENGTH)])
    field = torchscan.receptive_field(model, args=(x,), axes={"args[0]": (2,)})
    (axis,) = field.output.axes
    output = model(x)
    middle = range(output.shape[-1] * 2 // 5, output.shape[-1] * 3 // 5)
    if "wraps" in axis.notes and any(each.name == "joined_end_to_end" for each in steps):
        return  # borders that wrap may have been moved inside
    for unit in range(output.shape[-1]):
        (boxes,) = oracle.seen_by(output, 2, unit, [x])
        _compare(axis, unit, boxes[2], is_interior=unit in middle)


def _compare(axis: torchscan.AxisField, unit: int, seen: tuple[int, int] | None, *, is_interior: bool) -> None:
    """Near a border what is said goes on beyond it; where a border wraps, only the interior is said."""
    if axis.status == "global" or seen is None:
        return
    assert axis.status == "local"
    if not axis.starts:
        assert axis.size is not None
        assert axis.size >= seen[1] - seen[0] + 1 or "wraps" in axis.notes
        return
    said = axis.interval(unit)
    if said is None and "wraps" in axis.notes and not is_interior:
        return
    assert said is not None
    is_inside = is_interior and said[0] >= 12 and said[1] <= LENGTH - 13
    if is_inside or "wraps" not in axis.notes:
        assert said[0] <= seen[0] <= seen[1] <= said[1]
    if is_inside and "hull" not in axis.notes:
        assert said == seen
