"""Receptive fields against back-propagation, published figures and counts by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchscan
from tests.analyses import gradient_oracle as oracle
from tests.models.published_fields import fields_of, published_fields
from torchscan import InputError, crawl_module, module_rf, receptive_field, record
from torchscan.analyses.receptive_field import receptive_fields

TRUTH = Path(__file__).parents[3] / "shared" / "truth" / "receptive_field.json"
PUBLISHED = published_fields(TRUTH)


def agrees(
    model: nn.Module, shapes: Sequence[Sequence[int]], paths: Sequence[str] = ("",), units: int = 12
) -> None:
    """Interval by interval, for some units in the middle of each layer's output, along each dimension of the inputs.

    Outputs are laid out as the inputs are.
    """
    model = oracle.transparent(model)
    inputs = oracle.new_inputs(shapes)
    field = receptive_field(model, args=inputs)
    outputs = oracle.outputs_of(model, inputs, paths)
    for path in paths:
        _layer_agrees(field[path], outputs[path], inputs, units)


def _layer_agrees(
    layer: torchscan.types.LayerField, output: Tensor, inputs: Sequence[Tensor], units: int
) -> None:
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
                    assert 0 < seen[0] <= seen[1] < axis.length - 1, (
                        "the input is too small for this test"
                    )


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
    "bilinear with aligned corners": (
        nn.Upsample(size=(16, 31), mode="bilinear", align_corners=True),
        (2, 11, 16),
    ),
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
    "border of the other side": (
        nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular"),
        (2, 24, 24),
    ),
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
    "overlapping deconvolution": lambda inside, outside: nn.ConvTranspose2d(
        inside, outside, 4, 2, 1
    ),
    "nearest": lambda inside, outside: nn.Sequential(
        nn.Upsample(scale_factor=2), conv(inside, outside)
    ),
    "bilinear": lambda inside, outside: nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear"), conv(inside, outside, 1, padding=0)
    ),
    "bilinear with aligned corners": lambda inside, outside: nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), conv(inside, outside)
    ),
}


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("up", [name for name in UP if name != "bilinear with aligned corners"])
def test_u_net(up: str) -> None:
    agrees(
        u_net(UP[up]),
        [(1, 80, 80)],
        ("one", "two", "three", "up_three", "four", "up_two", "five", ""),
    )


@pytest.mark.slow
def test_feature_pyramid() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        two = net.two(net.one(x))
        three = net.three(two)
        four = net.four(three)
        top = net.side_four(four)
        middle = net.side_three(three) + F.interpolate(top, scale_factor=2)
        bottom = net.side_two(two) + F.interpolate(middle, scale_factor=2)
        return net.smooth(bottom) + F.interpolate(net.smooth_three(middle), scale_factor=2)

    sides = {
        f"side_{name}": conv(size, 3, 1, padding=0)
        for name, size in (("two", 2), ("three", 3), ("four", 4))
    }
    layers = {
        "one": conv(1, 2, 3, 2),
        "two": conv(2, 2, 3),
        "three": conv(2, 3, 3, 2),
        "four": conv(3, 4, 3, 2),
    }
    net = Net(forward, smooth=conv(3, 3), smooth_three=conv(3, 3), **layers, **sides)
    agrees(
        net, [(1, 160, 160)], ("two", "four", "side_two", "smooth", "smooth_three", ""), units=16
    )


def test_dilated_causal_convolutions() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        for step in range(4):
            layer = net.get_submodule(f"layer_{step}")
            x = x + layer(F.pad(x, (2 * 2**step, 0)))
        return x

    layers = {f"layer_{step}": nn.Conv1d(2, 2, 3, dilation=2**step) for step in range(4)}
    net = Net(forward, **layers)
    agrees(net, [(2, 120)], ("layer_0", "layer_3", ""))
    field = receptive_field(net, (2, 120))
    assert (field.output.rf, field.output.stride, field.output.padding) == (
        31,
        1,
        30,
    )  # 1 + 2·(1 + 2 + 4 + 8), all before


def test_space_to_depth_by_slices() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return net.after(torch.cat(parts, 1))

    net = Net(forward, after=conv(8, 4))
    agrees(net, [(2, 40, 40)])
    assert receptive_field(net, (2, 40, 40)).output.rf == 6


@pytest.mark.slow
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
        parts = rolled.view(batch, height // 4, 4, width // 4, 4, channels).permute(
            0, 1, 3, 2, 4, 5
        )
        tokens = parts.reshape(-1, 16, channels)
        tokens = tokens + F.scaled_dot_product_attention(tokens, tokens, tokens)
        parts = tokens.view(batch, height // 4, width // 4, 4, 4, channels).permute(
            0, 1, 3, 2, 4, 5
        )
        return torch.roll(parts.reshape(batch, height, width, channels), (shift, shift), (1, 2))

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.embed(x).permute(0, 2, 3, 1)
        return windowed(net, windowed(net, x, 0), 2).permute(0, 3, 1, 2)

    net = Net(forward, embed=nn.Conv2d(1, 2, 2, 2))
    agrees(net, [(1, 96, 64)], units=9)
    (height, _) = receptive_field(net, (1, 96, 64)).output.axes
    assert (height.size, height.starts) == (
        16,
        (-8, -8, 0, 0),
    )  # by hand: two windows of 4, 2 pixels each
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
    field = receptive_field(net, [(1, 48, 48), (3, 24, 24)])
    assert field["left"].rf == 5
    assert [axis.status for axis in field["left"].axes] == ["local", "local", "none", "none"]
    assert field.output.rf == {"args[0]": 9, "args[1]": 5}


@pytest.mark.slow
def test_video() -> None:
    blocks = nn.Sequential(
        nn.Conv3d(1, 2, (3, 7, 7), (1, 2, 2), (1, 3, 3)),
        nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        nn.Conv3d(2, 2, (1, 3, 3), padding=(0, 1, 1)),
        nn.Conv3d(2, 2, (3, 1, 1), (2, 1, 1), (1, 0, 0)),
    )
    agrees(blocks, [(1, 20, 64, 56)], ("0", "1", "2", "3"), units=4)
    assert module_rf(blocks, torch.rand(1, 1, 20, 64, 56))[0] == (5, 19, 19)


def test_branches_that_are_moved_against_each_other() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        wide = net.wide(x)
        return wide[..., 3:-3] + net.narrow(x)[..., 1:-5].flip(-1).flip(-1)

    agrees(Net(forward, wide=nn.Conv1d(1, 1, 5), narrow=nn.Conv1d(1, 1, 5)), [(1, 60)])


def test_a_flipped_branch_sees_the_mirrored_place() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.after(x.flip(-1))

    agrees(Net(forward, after=nn.Conv1d(1, 1, 3, padding=1)), [(1, 41)])


# -- published figures ---------------------------------------------------------------------------------------------------


class SlimUnit(nn.Module):
    """A bottleneck as TF-slim builds it: the stride is in the 3×3 convolution, and in a pool of one place beside it."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.beside = nn.MaxPool2d(1, stride)
        self.body = nn.Sequential(
            nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 3, stride, 1), nn.Conv2d(1, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.beside(x) + self.body(x))


def slim_resnet(*units: int) -> nn.Module:
    """The *last* unit of each block but the last block has the stride; in torchvision it is the first one of the next."""
    strides = [[1] * (count - 1) + [2 if at < 3 else 1] for at, count in enumerate(units)]
    body = [SlimUnit(stride) for each in strides for stride in each]
    # TensorFlow pads an even map before a pool of 3 and stride 2 behind only
    return nn.Sequential(
        nn.Conv2d(1, 1, 7, 2, 3), nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(3, 2), *body
    )


# Araujo, Norris, Sim: Computing Receptive Fields of Convolutional Neural Networks, Distill 2019
@pytest.mark.parametrize(
    ("units", "published"),
    [
        ((3, 4, 6, 3), (483, 32, 239)),
        ((3, 4, 23, 3), (1027, 32, 511)),
        ((3, 8, 36, 3), (1507, 32, 751)),
    ],
)
def test_residual_networks_of_the_distill_article(
    units: tuple[int, ...], published: tuple[int, int, int]
) -> None:
    field = receptive_field(slim_resnet(*units), (1, 224, 224)).output
    assert (field.rf, field.stride, field.padding) == published


@pytest.mark.slow
def test_other_networks_of_the_distill_article() -> None:
    torchvision = pytest.importorskip("tests.torchvision_cpu").torchvision
    with torch.device("meta"):
        model = torchvision.models.vgg16()
        inception = torchvision.models.inception_v3(init_weights=False)
    vgg = receptive_field(model, (3, 224, 224))["features"]
    assert (vgg.rf, vgg.stride, vgg.padding) == (212, 32, 90)
    last = receptive_field(inception, (3, 299, 299))["Mixed_7c"]
    assert (last.rf, last.stride, last.padding) == (1311, 32, 618)


def test_where_the_stride_stands_makes_the_difference() -> None:
    """Torchvision's ResNet-50 strides in the first unit of a block, so that fewer convolutions see the finer map."""
    torchvision = pytest.importorskip("tests.torchvision_cpu").torchvision
    with torch.device("meta"):
        model = torchvision.models.resnet50()
    last = receptive_field(model, (3, 224, 224))["layer4"]
    assert (last.rf, last.stride, last.padding) == (427, 32, 213)


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.skipif(not TRUTH.exists(), reason="the published figures are not at hand")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_receptive_fields(name: str) -> None:
    for each in fields_of(name, PUBLISHED[name]["layers"]):
        assert each.found == each.published, each


@pytest.mark.slow
@pytest.mark.parametrize("paths", [("layer1", "layer2", "layer3")])
def test_a_real_model_agrees_with_back_propagation(paths: tuple[str, ...]) -> None:
    torchvision = pytest.importorskip("tests.torchvision_cpu").torchvision
    agrees(torchvision.models.resnet18(width_per_group=64), [(3, 288, 288)], paths, units=2)


# -- what is seen as a whole ---------------------------------------------------------------------------------------------


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.excite = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.excite(x.mean((2, 3), keepdim=True)))


def test_a_gate_makes_units_global_and_leaves_their_local_part() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 5, 2, 2), Gate(4), nn.Conv2d(4, 4, 3, padding=1))
    layer = receptive_field(model, (3, 33, 33))["2"]
    for axis in layer.axes:
        assert (axis.status, axis.size, axis.stride, axis.padding) == ("global", 9, 2, 4)
        assert [(reason.operator, reason.path) for reason in axis.reasons] == [("aten.mean", "1")]
    assert layer.rf == "global"


def test_attention_is_global_beside_what_is_passed_by_it() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            return x + self.attention(x, x, x, need_weights=False)[0]

    field = receptive_field(Block(), (10, 3))
    (axis,) = field.output.axes
    assert (axis.axis, axis.status, axis.size, axis.stride) == (1, "global", 1, 1)
    assert axis.reasons[0].operator == "aten.scaled_dot_product_attention"
    assert field["attention"].axes[0].size == 1  # its own query


def test_only_the_pooled_axis_is_global() -> None:
    layer = receptive_field(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d((1, None))), (1, 20, 20)
    ).output
    assert layer.rf == ("global", 3)
    assert layer.stride == (None, 1)


def test_a_recurrent_layer_sees_all_steps() -> None:
    field = receptive_field(nn.LSTM(3, 4, batch_first=True), (12, 3))
    (axis,) = field.output.axes
    assert (axis.axis, axis.status, axis.reasons[0].operator) == (1, "global", "aten.lstm")


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm([4, 18, 18])]
)
def test_statistics_of_a_norm_are_a_note_unless_they_count(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm)
    for axis in receptive_field(model, (3, 20, 20)).output.axes:
        assert (axis.status, axis.size, axis.notes) == ("local", 3, ("norm-stats",))
    for axis in receptive_field(model, (3, 20, 20), strict_norm=True).output.axes:
        assert (axis.status, axis.size, axis.notes) == ("global", 3, ())


def test_norms_of_channels_and_batch_norms_in_evaluation_see_nothing_more() -> None:
    class Channels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Channels())
    for axis in receptive_field(model, (3, 20, 20), strict_norm=True).output.axes:
        assert (axis.status, axis.size, axis.notes) == ("local", 3, ())
    trained = receptive_field(model, (3, 20, 20), mode="train").output
    assert [axis.notes for axis in trained.axes] == [("norm-stats",), ("norm-stats",)]


def test_an_operator_without_a_rule_is_global_and_named() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        grid = F.affine_grid(torch.eye(2, 3)[None], [1, 3, 20, 20], align_corners=False)
        return F.grid_sample(net.first(x), grid, align_corners=False)

    for axis in receptive_field(
        Net(forward, first=nn.Conv2d(3, 3, 3, padding=1)), (3, 20, 20)
    ).output.axes:
        assert (axis.status, axis.size) == ("global", None)
        assert [reason.operator for reason in axis.reasons] == ["aten.grid_sampler_2d"]


def test_a_weight_that_depends_on_the_input_is_seen_through() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        kernel = x.mean((2, 3)).view(3, 1, 1, 1)
        return F.conv2d(x, kernel.expand(3, 1, 3, 3), padding=1, groups=3)

    layer = receptive_field(Net(forward), (3, 20, 20)).output
    assert [(axis.status, axis.size) for axis in layer.axes] == [("global", 3)] * 2


# -- memory that is shared -----------------------------------------------------------------------------------------------


def shifted_through_a_view(net: Any, x: Tensor) -> Tensor:
    x = net.first(x)
    out = torch.zeros_like(x)
    out[..., 1:] = x[..., :-1]
    return out + x


def doubled_in_a_view(net: Any, x: Tensor) -> Tensor:
    y = net.first(x)
    wide = net.second(x)
    y[:, :1].add_(wide[:, :1])
    return y


def interleaved(net: Any, x: Tensor) -> Tensor:
    first = net.first(x)
    out = first.new_empty(*first.shape[:-1], 2 * x.shape[-1])
    out[..., ::2] = first
    out[..., 1::2] = net.second(x)
    return out


def written_by_channel(net: Any, x: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 2, x.shape[-1])
    out[:, :1] = net.first(x)[:, :1]
    out[:, 1] = net.second(x)[:, 0]
    return out


def written_to_a_base_by_its_transpose(net: Any, x: Tensor) -> Tensor:
    y = net.first(x).clone()
    y.transpose(1, 2)[:, :, 1] = net.second(x)[:, 1]
    return y


def seen_by_a_view_taken_before(net: Any, x: Tensor) -> Tensor:
    y = net.first(x).clone()
    view = y[..., 2:]
    y += net.second(x)
    return view


SHARED = [
    shifted_through_a_view,
    doubled_in_a_view,
    interleaved,
    written_by_channel,
    written_to_a_base_by_its_transpose,
    seen_by_a_view_taken_before,
]


@pytest.mark.parametrize("forward", SHARED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("after", [False, True])
def test_what_is_written_through_a_view_is_seen(
    forward: Callable[[Any, Tensor], Tensor], after: bool
) -> None:
    def further(net: Any, x: Tensor) -> Tensor:
        return net.after(forward(net, x)) if after else forward(net, x)

    layers = {
        "first": nn.Conv1d(1, 2, 3, padding=1),
        "second": nn.Conv1d(1, 2, 7, padding=3),
        "after": nn.Conv1d(2, 2, 3),
    }
    agrees(Net(further, **layers), [(1, 60)], units=12)


@pytest.mark.parametrize("padded", ["module", "gradients", "by hand"])
def test_a_border_of_the_other_side_is_noted(padded: str) -> None:
    layer: nn.Module = nn.Conv1d(1, 1, 5, padding=2, padding_mode="circular")
    if padded == "by hand":
        layer = nn.Sequential(
            Net(lambda _, x: torch.cat([x[..., -2:], x, x[..., :2]], -1)), nn.Conv1d(1, 1, 5)
        )
    trace = record(layer, (1, 30), training=padded == "gradients", mode="eval")
    (axis,) = receptive_fields(trace).output.axes
    assert (axis.size, axis.stride, axis.padding, axis.notes) == (5, 1, 2, ("wraps",))


def test_statistics_of_a_norm_are_counted_only_when_asked_for() -> None:
    trace = record(nn.Sequential(nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4)), (1, 20))
    (axis,) = receptive_fields(trace).output.axes
    assert (axis.status, axis.size, axis.notes) == ("local", 3, ("norm-stats",))
    assert [each.status for each in receptive_fields(trace, strict_norm=True).output.axes] == [
        "global"
    ]


def test_only_the_dimension_that_is_rolled_wraps() -> None:
    """Rows wrap around; columns stay where they are, as do rows where channels change places."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return torch.roll(net.first(x), 1, net.dim)

    for dim, notes in ((1, [(), ()]), (2, [("wraps",), ()]), (3, [(), ("wraps",)])):
        net = Net(forward, first=nn.Conv2d(1, 2, 3, padding=1))
        net.dim = dim  # type: ignore[assignment]
        height, width = receptive_field(net, (1, 20, 20)).output.axes
        assert [height.notes, width.notes] == notes
        assert (height.size, width.size) == (3, 3)


def test_the_largest_of_several_channels_is_as_local_as_they_are() -> None:
    """A dimension that is gone takes no other with it."""
    field = receptive_field(
        Net(lambda net, x: net.first(x).max(1).values, first=nn.Conv1d(1, 4, 3, padding=1)), (1, 20)
    )
    (axis,) = field.output.axes
    assert (axis.status, axis.size, axis.stride, axis.padding) == ("local", 3, 1, 1)


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: torch.roll(x, 2),
        lambda _, x: x.sum().transpose(0, -1),
        lambda _, x: x.sum().t(),
    ],
)
def test_operators_without_a_dimension_of_their_own_have_a_rule(forward: Any) -> None:
    """A rule that fails warns, which is an error here; there is nothing to warn of."""
    (axis,) = receptive_field(Net(forward), (1, 20)).output.axes
    assert axis.status == "global"
    assert [reason.operator for reason in axis.reasons] in (["aten.roll"], ["aten.sum"])


def test_as_plain_data_it_has_each_output_of_each_layer() -> None:
    data = receptive_field(nn.Sequential(nn.Conv2d(1, 1, (3, 5), stride=2)), (1, 16, 16)).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert [layer["path"] for layer in data["layers"]] == ["", "0"]
    ((down, across),) = data["layers"][1]["outputs"]
    assert [
        (axis["status"], axis["rf"], axis["stride"], axis["padding"]) for axis in (down, across)
    ] == [
        ("local", 3, 2, 0),
        ("local", 5, 2, 0),
    ]


@pytest.mark.parametrize(
    ("taken", "starts", "ends"),
    [
        # unit 1 sees 10 … 19, and the first places of two blocks of 17: 0 and 17
        (0, [0, 0, 17], [9, 19, 29]),
        # unit 1 sees 10 … 19, and the last places of two blocks: 16 and 33
        (16, [0, 10, 20], [16, 33, 33]),
    ],
)
def test_a_hull_of_one_side_is_a_hull(taken: int, starts: list[int], ends: list[int]) -> None:
    """Every place, and one of its block of 17, in pools of 10: one side goes up in steps, the other evenly."""

    def forward(_: Any, x: Tensor) -> Tensor:
        y: Tensor = x + F.interpolate(x[..., taken::17], scale_factor=17.0)
        return y.unfold(-1, 10, 10).mean(-1)

    (axis,) = receptive_field(Net(forward), (1, 340)).output.axes
    assert axis.notes == ("hull",)
    assert list(axis.starts[:3]) == starts
    assert [
        start + size - 1
        for start, size in zip(axis.starts, axis.sizes, strict=True)
        if start is not None and size
    ][:3] == ends


def test_the_size_is_right_where_nothing_repeats_within_a_dimension() -> None:
    """Place j of 2198 looks at the neighbours of ``j · 699/2197``. Of these, 314 pools look at seven; 2197 would repeat."""

    def forward(_: Any, x: Tensor) -> Tensor:
        return F.max_pool1d(F.interpolate(x, size=2198, mode="linear", align_corners=True), 7)

    (axis,) = receptive_field(Net(forward), (1, 700)).output.axes
    sizes = [-(-(7 * unit + 6) * 699 // 2197) - 7 * unit * 699 // 2197 + 1 for unit in range(314)]
    assert axis.size == max(sizes)


def test_values_put_at_unknown_places_are_loud() -> None:
    def forward(net: Any, x: Tensor, at: Tensor) -> Tensor:
        y = net.first(x).clone()
        y[:, :, at] = net.first(x)[..., :4]
        return y

    field = receptive_field(
        Net(forward, first=nn.Conv1d(1, 2, 3, padding=1)),
        args=(torch.rand(1, 1, 20), torch.arange(4)),
    )
    axis = field.output.axes[0]
    assert (axis.status, axis.notes) == ("local", ("hull",))
    assert (
        axis.size == 22
    )  # the last unit sees 18 … 20, and what may have been put there sees −1 … 4


def test_places_picked_by_unknown_indices_are_loud() -> None:
    def forward(net: Any, x: Tensor, at: Tensor) -> Tensor:
        return net.first(x)[..., at]

    field = receptive_field(
        Net(forward, first=nn.Conv1d(1, 2, 3, padding=1)),
        args=(torch.rand(1, 1, 20), torch.arange(4)),
    )
    axis = field.output.axes[0]
    assert (axis.status, axis.reasons[0].operator) == ("global", "aten.index")


def smooth(x: Tensor, kernel: int) -> Tensor:
    return F.conv1d(x, torch.ones(2, 2, kernel).double() / kernel, padding=kernel // 2)


def image_smooth(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 7, 1, 3)


def through_a_diagonal(x: Tensor) -> Tensor:
    y = image_smooth(x)
    y.diagonal(0, 2, 3).zero_()
    return y


def into_the_real_part(x: Tensor) -> Tensor:
    y = torch.complex(smooth(x, 5), smooth(x, 5))
    y.real.copy_(x)
    return y.imag + y.real


def expanded_before_a_write(x: Tensor) -> Tensor:
    y = x * 1
    view = y[:, :1].expand_as(x)
    y += smooth(x, 3)
    return view * 1


def some_tokens(x: Tensor) -> Tensor:
    return x.flatten(2)[..., :20].mean(-1, keepdim=True).unsqueeze(-1)


def few_tokens(x: Tensor) -> Tensor:
    return x.flatten(2)[..., :6].softmax(-1).mean(-1)[..., None, None]


def rolled_twice_at_once(x: Tensor) -> Tensor:
    return torch.roll(x, (1, 2), (2, 2))


def resized_by_an_odd_factor(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=0.3333, mode="linear")


def mixed_after_a_roll(x: Tensor) -> Tensor:
    return torch.roll(x, 15, 2).mean(-1, keepdim=True)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (through_a_diagonal, (2, 12, 12)),
        (into_the_real_part, (2, 20)),
        (expanded_before_a_write, (2, 20)),
        (some_tokens, (2, 8, 8)),
        (few_tokens, (2, 8, 8)),
        (rolled_twice_at_once, (2, 20)),
        (resized_by_an_odd_factor, (2, 1000)),
        (mixed_after_a_roll, (2, 40)),
    ],
)
def test_nothing_is_said_to_see_less_than_it_does(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    (x,) = oracle.new_inputs([shape])
    output = function(x)
    dims = tuple(range(2, x.dim()))
    field = receptive_field(Net(lambda _, each: function(each)), args=(x,), axes={"args[0]": dims})
    for axis in field.output.axes:
        for unit in range(output.shape[axis.axis]):
            (boxes,) = oracle.seen_by(output, axis.axis, unit, [x])
            seen = boxes[axis.axis]
            if axis.status == "global" or seen is None or ("wraps" in axis.notes and unit < 3):
                continue
            said = axis.interval(unit)
            if said is None:
                assert axis.size is not None and axis.size > seen[1] - seen[0]  # noqa: PT018
            else:
                assert said[0] <= seen[0] <= seen[1] <= said[1], (axis, unit)


def test_a_target_that_shares_memory_with_an_operand_is_the_one_that_is_written() -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x * 1
        torch.add(y[:, :, 10:20], x[:, :, :10], out=y[:, :, 0:10])
        return y

    (axis,) = receptive_field(Net(forward), (2, 20), axes={"args[0]": (2,)}).output.axes
    assert [axis.interval(unit) for unit in (5, 15)] == [(5, 15), (15, 15)]


def test_an_operator_over_everything_after_a_roll_is_global() -> None:
    (axis,) = receptive_field(Net(lambda _, x: mixed_after_a_roll(x)), (2, 40)).output.axes
    assert (axis.status, axis.reasons[0].operator) == ("global", "aten.mean")


def test_a_dimension_of_one_place_leaves_no_mark() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.first(x).squeeze(1).unsqueeze_(1)
        z = torch.zeros_like(y)
        z[:] = y
        return z.squeeze(1)

    layer = receptive_field(Net(forward, first=nn.Conv2d(3, 1, 3, padding=1)), (3, 32, 32)).output
    assert (layer.rf, layer.stride) == (3, 1)


class Token(nn.Module):
    """A class token before patches; what is made of each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 4, 4)
        self.token = nn.Parameter(torch.rand(1, 1, 4))
        self.all = nn.Identity()
        self.first = nn.Identity()
        self.others = nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([self.token, self.patches(x).flatten(2).transpose(1, 2)], 1) * 1
        tokens = self.all(tokens)
        return self.first(tokens[:, 0] * 1), self.others(tokens[:, 1:] * 1)


def test_a_class_token_sees_nothing_and_tokens_are_counted_one_by_one() -> None:
    field = receptive_field(Token(), (3, 32, 48))  # 8 rows of 12 patches
    assert [axis.status for axis in field["first"].axes] == ["none", "none"]
    rows, columns = field["all"].axes
    assert (rows.units, rows.stride, rows.padding, rows.size) == (97, 4, 0, 4)
    assert (columns.units, columns.stride, columns.padding, columns.size) == (97, 4, 0, 4)
    assert rows.interval(0) is columns.interval(0) is None
    assert (rows.interval(1 + 12 + 3), columns.interval(1 + 12 + 3)) == ((4, 7), (12, 15))
    assert (field["others"].axes[0].interval(15), field["others"].axes[1].interval(15)) == (
        (4, 7),
        (12, 15),
    )


CHANNELS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], dict[int, int]]] = {
    # what is done, to what, and the receptive fields of the axes that are found
    "an image": (lambda x: F.conv2d(x, torch.ones(4, 3, 3, 5)), (3, 20, 20), {2: 3, 3: 5}),
    "a sequence": (lambda x: F.linear(x, torch.ones(4, 3)), (20, 3), {1: 1}),
    "windows of a signal": (
        lambda x: F.linear(x.unfold(-1, 16, 8), torch.ones(4, 16)),
        (3, 96),
        {2: 16},
    ),
    "windows of plain audio": (
        lambda x: F.linear(x.unfold(-1, 16, 8), torch.ones(4, 16)),
        (96,),
        {1: 16},
    ),
    "a spectrogram": (
        lambda x: F.conv2d(x.unsqueeze(1), torch.ones(4, 1, 3, 5)),
        (40, 60),
        {1: 3, 2: 5},
    ),
    "a volume of one channel": (
        lambda x: F.conv3d(x[:, None], torch.ones(4, 1, 3, 3, 3)),
        (12, 12, 12),
        {1: 3, 2: 3, 3: 3},
    ),
    "depthwise first": (lambda x: F.conv1d(x, torch.ones(3, 1, 5), groups=3), (3, 30), {2: 5}),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_are_found(name: str) -> None:
    function, shape, expected = CHANNELS[name]
    layer = receptive_field(Net(lambda _, x: function(x)), shape).output
    assert {axis.axis: axis.size for axis in layer.axes if axis.status == "local"} == expected


def test_wrong_use_is_said() -> None:
    model = nn.Sequential(nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3))
    field = receptive_field(model, (1, 20))
    with pytest.raises(InputError, match="no layer '2' was called: choose from"):
        field["2"]
    with pytest.raises(InputError, match="no layer '0' was called 2 times"):
        field["0", 1]
    wrong: Any = (2,)
    with pytest.raises(InputError, match="give a dictionary"):
        receptive_field(model, (1, 20), axes=wrong)
    with pytest.raises(InputError, match="give a tuple"):
        receptive_field(model, (1, 20), axes={"args[0]": wrong[0]})
    with pytest.raises(InputError, match="not an input of this pass"):
        receptive_field(model, (1, 20), axes={"x": (2,)})
    with pytest.raises(InputError, match="it has 3 dimensions"):
        receptive_field(model, (1, 20), axes={"args[0]": (3,)})


def test_a_second_call_has_a_field_of_its_own() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.shared(net.shared(x))

    field = receptive_field(Net(forward, shared=nn.Conv1d(1, 1, 3)), (1, 20))
    assert (field["shared"].rf, field["shared", 1].rf) == (3, 5)


@pytest.mark.parametrize(
    ("mode", "notes"),
    [
        ("constant", ()),
        ("reflect", ("padded",)),
        ("replicate", ("padded",)),
        ("circular", ("wraps",)),
    ],
)
def test_a_border_of_zeros_is_noted_nowhere(mode: str, notes: tuple[str, ...]) -> None:
    model = nn.Sequential(Net(lambda _, x: F.pad(x, (2, 2), mode)), nn.Conv1d(1, 1, 5))
    for backward in (False, True):
        (axis,) = receptive_fields(
            record(model, (1, 30), training=backward, mode="eval")
        ).output.axes
        assert (axis.size, axis.notes) == (5, notes)


@pytest.mark.parametrize(
    ("taken", "inside"),
    [
        (slice(None), (2, 32)),
        (slice(1, -1), (1, 31)),
        (slice(2, -2), None),
        (slice(5, 20, 3), None),
    ],
)
def test_units_of_a_border_see_nothing(taken: slice, inside: tuple[int, int] | None) -> None:
    """Two zeros on either side of 30 places: units 2 to 31, unless the border is taken away."""
    model = Net(lambda _, x: F.pad(x, (2, 2))[..., taken])
    (axis,) = receptive_field(model, (1, 30)).output.axes
    assert (axis.size, axis.inside) == (1, inside)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("part", [0, 2])
@pytest.mark.parametrize("by_index", [False, True])
def test_zeros_between_two_copies_see_nothing(dim: int, part: int, by_index: bool) -> None:
    """A tensor of four parts, of which every other one is zeros, goes on like that beyond them."""

    def forward(_: nn.Module, x: Tensor) -> Tensor:
        zeros = torch.zeros_like(x)
        whole = torch.cat([zeros, x, zeros, x], dim)
        size = x.shape[dim]
        if by_index:
            return whole.unflatten(dim, (4, size)).select(dim, part)
        return whole.narrow(dim, part * size, size)

    field = receptive_field(Net(forward), (2, 1, 6), axes={"args[0]": (1, 2)})
    assert [axis.status for axis in field.output.axes] == ["none", "none"]


# -- nothing to see ------------------------------------------------------------------------------------------------------

AFTER_NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "flat": lambda x: x.flatten(1),
    "two dimensions for one": lambda x: x.unflatten(1, (1, -1) if x.shape[1] else (0, 2)),
    "beside itself": lambda x: torch.cat([x, x], -1),
    "summed": lambda x: x.sum(1, keepdim=True),
    "turned": lambda x: x.permute(0, 2, 1).flip(-1),
    "padded": lambda x: F.pad(x, (1, 1)),
    "multiplied": lambda x: x @ x.transpose(1, 2),
    "every other": lambda x: x[..., ::2].roll(1, -1),
    "stacked": lambda x: torch.stack([x, x], 1),
    "split": lambda x: x.chunk(2, 1)[0].cumsum(-1),
}


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("after", AFTER_NOTHING.values(), ids=AFTER_NOTHING)
def test_what_has_no_elements_sees_nothing(
    after: Callable[[Tensor], Tensor], shape: tuple[int, int]
) -> None:
    """Of an input of that shape, and of a part of that shape of a larger one. Warnings are errors here."""

    class Empties(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return after(x[:, : shape[0], : shape[1]])

    for given in (shape, (3, 4)):
        info = crawl_module(Empties(), given, batch_size=2, receptive_field=True)
        assert all(
            axis["status"] == "none"
            for axes in info["layers"][0]["receptive_field"]
            for axis in axes
        )
