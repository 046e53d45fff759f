"""Receptive fields against back-propagation, published figures and counts by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchscan
from tests.analyses import gradient_oracle as oracle

TRUTH = Path(__file__).parents[3] / "shared" / "truth" / "receptive_field.json"


def agrees(model: nn.Module, shapes: Sequence[Sequence[int]], paths: Sequence[str] = ("",), units: int = 12) -> None:
    """Interval by interval, for some units in the middle of each layer's output, along each dimension of the inputs.

    Outputs are laid out as the inputs are.
    """
    model = oracle.transparent(model)
    inputs = oracle.fresh_inputs(shapes)
    field = torchscan.receptive_field(model, args=inputs)
    outputs = oracle.outputs_of(model, inputs, paths)
    for path in paths:
        _layer_agrees(field[path], outputs[path], inputs, units)


def _layer_agrees(layer: torchscan.LayerField, output: Tensor, inputs: Sequence[Tensor], units: int) -> None:
    dims = sorted({axis.axis for axis in layer.axes})
    for dim in dims:
        first = output.shape[dim] // 2 - units // 2
        for unit in range(max(first, 0), min(first + units, output.shape[dim])):
            boxes = oracle.seen_by(output, dim, unit, inputs)
            for axis in layer.axes:
                if axis.axis != dim:
                    continue
                seen = boxes[_position(axis.input)][dim]
                assert not axis.reasons
                assert axis.interval(unit) == seen, f"{layer.path} {axis} unit {unit}"
                if seen is not None:
                    assert 0 < seen[0] <= seen[1] < axis.length - 1, "the input is too small for this test"


def _position(name: str) -> int:
    return int(name.removeprefix("args[").removesuffix("]"))


class Net(nn.Module):
    """Some layers, and a forward pass given as a function of it."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = forward

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


def conv(inside: int, outside: int, kernel: int = 3, stride: int = 1, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride, **{"padding": 1, **options})


# -- single layers -------------------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "convolution": (nn.Conv2d(2, 3, 3, padding=1), (2, 16, 16)),
    "strided convolution": (nn.Conv2d(2, 3, 5, stride=2, padding=2), (2, 32, 32)),
    "dilated convolution": (nn.Conv2d(2, 3, 3, padding=4, dilation=4), (2, 32, 32)),
    "convolution without padding": (nn.Conv2d(2, 3, (4, 2)), (2, 24, 24)),
    "asymmetric convolution": (nn.Conv2d(2, 3, (1, 7), (2, 3), (0, 3), (1, 2)), (2, 40, 60)),
    "grouped convolution": (nn.Conv2d(4, 8, 3, groups=2), (4, 20, 20)),
    "depthwise convolution": (nn.Conv2d(4, 4, 3, groups=4), (4, 20, 20)),
    "same padding of an even kernel": (nn.Conv2d(2, 3, 4, padding="same"), (2, 20, 20)),
    "convolution of a signal": (nn.Conv1d(2, 3, 9, 4), (2, 100)),
    "convolution of a volume": (nn.Conv3d(1, 2, (3, 1, 5), (1, 2, 1), (1, 0, 2)), (1, 18, 32, 20)),
    "transposed convolution": (nn.ConvTranspose2d(2, 3, 4, 2, 1), (2, 16, 16)),
    "transposed convolution with holes": (nn.ConvTranspose2d(2, 3, 2, 3), (2, 16, 16)),
    "dilated transposed convolution": (nn.ConvTranspose1d(2, 3, 3, 2, 1, 1, dilation=3), (2, 24)),
    "max pool": (nn.MaxPool2d(3, 2, 1), (2, 32, 32)),
    "max pool with ceil mode": (nn.MaxPool2d(3, 2, ceil_mode=True), (2, 32, 32)),
    "mean pool": (nn.AvgPool2d(2), (2, 32, 32)),
    "adaptive pool with bins of unequal size": (nn.AdaptiveAvgPool2d((21, 30)), (2, 120, 120)),
    "adaptive pool to more places": (nn.AdaptiveAvgPool1d(20), (2, 16)),
    "nearest neighbours": (nn.Upsample(scale_factor=3), (2, 10, 10)),
    "nearest neighbours by 3/2": (nn.Upsample(size=(18, 24)), (2, 12, 16)),
    "nearest neighbours, smaller": (nn.Upsample(size=(12, 10)), (2, 30, 35)),
    "exactly nearest neighbours": (nn.Upsample(size=(20, 20), mode="nearest-exact"), (2, 12, 30)),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (2, 12, 12)),
    "bilinear by 3": (nn.Upsample(scale_factor=3, mode="bilinear"), (2, 12, 12)),
    "bilinear, smaller": (nn.Upsample(scale_factor=0.5, mode="bilinear"), (2, 24, 24)),
    "bilinear by 4/3": (nn.Upsample(size=(16, 16), mode="bilinear"), (2, 12, 12)),
    "bilinear with aligned corners": (nn.Upsample(size=(16, 31), mode="bilinear", align_corners=True), (2, 11, 16)),
    "linear": (nn.Upsample(scale_factor=2, mode="linear"), (2, 20)),
    "trilinear": (nn.Upsample(scale_factor=2, mode="trilinear"), (1, 8, 8, 8)),
    "bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 16, 16)),
    "bicubic by 3": (nn.Upsample(scale_factor=3, mode="bicubic"), (2, 16, 16)),
    "pixel shuffle": (nn.PixelShuffle(3), (9, 10, 10)),
    "pixel unshuffle": (nn.PixelUnshuffle(2), (1, 24, 24)),
    "channel shuffle": (nn.ChannelShuffle(2), (4, 16, 16)),
    "zero padding": (nn.ZeroPad2d((1, 2, 3, 4)), (2, 16, 16)),
    "reflected border": (nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(2, 2, 5)), (2, 24, 24)),
    "repeated border": (nn.Sequential(nn.ReplicationPad2d(2), nn.Conv2d(2, 2, 5)), (2, 24, 24)),
    "border of the other side": (nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular"), (2, 24, 24)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_sees_what_its_gradient_reaches(name: str) -> None:
    layer, shape = LAYERS[name]
    agrees(nn.Sequential(layer), [shape], ("", "0"), units=9)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [13, 40])
def test_a_resize_against_aliasing_is_as_wide_as_the_scale(mode: str, size: int) -> None:
    def resize(_: Any, x: Tensor) -> Tensor:
        return F.interpolate(x, size=(size, size), mode=mode, antialias=True)

    agrees(Net(resize), [(1, 52, 52)], units=5)


# -- models --------------------------------------------------------------------------------------------------------------


def u_net(up: Callable[[int, int], nn.Module]) -> nn.Module:
    """Two levels down and up again, with the maps of the way down beside."""

    def forward(net: Any, x: Tensor) -> Tensor:
        one = net.one(x)
        two = net.two(net.down(one))
        three = net.three(net.down(two))
        two = net.four(torch.cat([two, net.up_three(three)], 1))
        return net.five(torch.cat([one, net.up_two(two)], 1))

    layers = {
        "one": conv(1, 2), "two": conv(2, 3), "three": conv(3, 4), "four": conv(6, 3), "five": conv(4, 2),
        "up_three": up(4, 3), "up_two": up(3, 2),
    }  # fmt: skip
    return Net(forward, down=nn.MaxPool2d(2), **layers)


UP: dict[str, Callable[[int, int], nn.Module]] = {
    "deconvolution": lambda inside, outside: nn.ConvTranspose2d(inside, outside, 2, 2),
    "overlapping deconvolution": lambda inside, outside: nn.ConvTranspose2d(inside, outside, 4, 2, 1),
    "nearest": lambda inside, outside: nn.Sequential(nn.Upsample(scale_factor=2), conv(inside, outside)),
    "bilinear": lambda inside, outside: nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear"), conv(inside, outside, 1, padding=0)
    ),
    "bilinear with aligned corners": lambda inside, outside: nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), conv(inside, outside)
    ),
}


@pytest.mark.parametrize("up", [name for name in UP if name != "bilinear with aligned corners"])
def test_u_net(up: str) -> None:
    agrees(u_net(UP[up]), [(1, 80, 80)], ("one", "two", "three", "up_three", "four", "up_two", "five", ""))


def test_feature_pyramid() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        two = net.two(net.one(x))
        three = net.three(two)
        four = net.four(three)
        top = net.side_four(four)
        middle = net.side_three(three) + F.interpolate(top, scale_factor=2)
        bottom = net.side_two(two) + F.interpolate(middle, scale_factor=2)
        return net.smooth(bottom) + F.interpolate(net.smooth_three(middle), scale_factor=2)

    sides = {f"side_{name}": conv(size, 3, 1, padding=0) for name, size in (("two", 2), ("three", 3), ("four", 4))}
    layers = {"one": conv(1, 2, 3, 2), "two": conv(2, 2, 3), "three": conv(2, 3, 3, 2), "four": conv(3, 4, 3, 2)}
    net = Net(forward, smooth=conv(3, 3), smooth_three=conv(3, 3), **layers, **sides)
    agrees(net, [(1, 160, 160)], ("two", "four", "side_two", "smooth", "smooth_three", ""), units=16)


def test_dilated_causal_convolutions() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        for step in range(4):
            layer = net.get_submodule(f"layer_{step}")
            x = x + layer(F.pad(x, (2 * 2**step, 0)))
        return x

    layers = {f"layer_{step}": nn.Conv1d(2, 2, 3, dilation=2**step) for step in range(4)}
    net = Net(forward, **layers)
    agrees(net, [(2, 120)], ("layer_0", "layer_3", ""))
    field = torchscan.receptive_field(net, (2, 120))
    assert (field.output.rf, field.output.stride, field.output.padding) == (31, 1, 30)  # 1 + 2·(1 + 2 + 4 + 8), all before


def test_space_to_depth_by_slices() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return net.after(torch.cat(parts, 1))

    net = Net(forward, after=conv(8, 4))
    agrees(net, [(2, 40, 40)])
    assert torchscan.receptive_field(net, (2, 40, 40)).output.rf == 6


def test_patches_through_views_and_permutations() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        patches = x.view(batch, channels, height // 4, 4, width // 4, 4).permute(0, 2, 4, 1, 3, 5)
        tokens = net.embed(patches.reshape(batch, height * width // 16, channels * 16))
        tokens = torch.cat([net.cls.expand(batch, 1, -1), tokens], 1)[:, 1:]
        return net.after(tokens.transpose(1, 2).reshape(batch, 3, height // 4, width // 4))

    net = Net(forward, embed=nn.Linear(32, 3), after=conv(3, 2))
    net.cls = nn.Parameter(torch.rand(1, 1, 3))
    agrees(net, [(2, 48, 64)], units=6)


def test_windows_of_attention_that_are_shifted() -> None:
    def windowed(net: Any, x: Tensor, shift: int) -> Tensor:
        batch, height, width, channels = x.shape
        rolled = torch.roll(x, (-shift, -shift), (1, 2))
        parts = rolled.view(batch, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        tokens = parts.reshape(-1, 16, channels)
        tokens = tokens + F.scaled_dot_product_attention(tokens, tokens, tokens)
        parts = tokens.view(batch, height // 4, width // 4, 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        return torch.roll(parts.reshape(batch, height, width, channels), (shift, shift), (1, 2))

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.embed(x).permute(0, 2, 3, 1)
        return windowed(net, windowed(net, x, 0), 2).permute(0, 3, 1, 2)

    net = Net(forward, embed=nn.Conv2d(1, 2, 2, 2))
    agrees(net, [(1, 96, 64)], units=9)
    (height, _) = torchscan.receptive_field(net, (1, 96, 64)).output.axes
    assert (height.size, height.starts) == (16, (-8, -8, 0, 0))  # by hand: two windows of 4, 2 pixels each
    assert height.stride == 2
    assert height.notes == ("wraps",)


def test_windows_taken_and_put_back() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        columns = F.unfold(x, 4, stride=2, padding=1)
        return F.fold(columns, x.shape[-2:], 4, stride=2, padding=1)

    agrees(Net(forward), [(2, 24, 20)], units=7)


def test_windows_of_a_signal_by_unfold() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        frames = net.first(x).unfold(2, 6, 4)
        return net.after((frames * torch.hann_window(6, periodic=False).add(1)).sum(-1))

    agrees(Net(forward, first=nn.Conv1d(1, 2, 3, 2), after=nn.Conv1d(2, 2, 3)), [(1, 150)])


def test_several_inputs() -> None:
    def forward(net: Any, left: Tensor, right: Tensor) -> Tensor:
        return net.after(net.left(left) + net.right(right))

    net = Net(forward, left=conv(1, 2, 5, 2, padding=2), right=conv(3, 2, 3, 1), after=conv(2, 2))
    agrees(net, [(1, 48, 48), (3, 24, 24)], ("left", "right", ""))
    field = torchscan.receptive_field(net, [(1, 48, 48), (3, 24, 24)])
    assert field["left"].rf == 5
    assert [axis.status for axis in field["left"].axes] == ["local", "local", "none", "none"]
    assert field.output.rf == {"args[0]": 9, "args[1]": 5}


def test_video() -> None:
    blocks = nn.Sequential(
        nn.Conv3d(1, 2, (3, 7, 7), (1, 2, 2), (1, 3, 3)),
        nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        nn.Conv3d(2, 2, (1, 3, 3), padding=(0, 1, 1)),
        nn.Conv3d(2, 2, (3, 1, 1), (2, 1, 1), (1, 0, 0)),
    )
    agrees(blocks, [(1, 20, 64, 56)], ("0", "1", "2", "3"), units=4)
    assert torchscan.module_rf(blocks, torch.rand(1, 1, 20, 64, 56))[0] == (5, 19, 19)


def test_branches_that_are_moved_against_each_other() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        wide = net.wide(x)
        return wide[..., 3:-3] + net.narrow(x)[..., 1:-5].flip(-1).flip(-1)

    agrees(Net(forward, wide=nn.Conv1d(1, 1, 5), narrow=nn.Conv1d(1, 1, 5)), [(1, 60)])


def test_a_flipped_branch_sees_the_mirrored_place() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.after(x.flip(-1))

    agrees(Net(forward, after=nn.Conv1d(1, 1, 3, padding=1)), [(1, 41)])
