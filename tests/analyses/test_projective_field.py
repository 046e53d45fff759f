"""Projective fields against values derived by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchscan import InputError, projective_field, receptive_field, record
from torchscan.analyses.projective_field.reach_walks import projective_fields
from torchscan.recording.execution.engine_operators import fused_attention
from torchscan.types import AxisReach


class Runs(nn.Module):
    """A module that runs a function, with a layer that it may use."""

    def __init__(self, function: Callable[..., Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Any:
        if self.layer is None:
            return self.function(*inputs)
        return self.function(self.layer, *inputs)


def conv(kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> nn.Conv1d:
    return nn.Conv1d(1, 1, kernel, stride, padding, dilation)


def axis_of(model: nn.Module, shape: tuple[int, ...]) -> AxisReach:
    (axis,) = projective_field(model, shape).output.axes
    return axis


# -- by hand -------------------------------------------------------------------------------------


def test_a_convolution_reaches_its_taps_turned_around() -> None:
    """Unit j reads 2·j − 2 … 2·j + 2: position i is read by (i − 2)/2 … (i + 2)/2."""
    axis = axis_of(conv(5, 2, 2), (1, 20))
    assert axis.units == 10
    assert axis.size == 3
    assert axis.interval(8) == (3, 5)
    assert axis.interval(9) == (4, 5)
    assert axis.counts[8:10] == (3, 2)


def test_at_a_border_fewer_units_are_reached() -> None:
    axis = axis_of(conv(5, 2, 2), (1, 20))
    assert axis.interval(0) == (0, 1)
    assert axis.interval(18) == (8, 9)
    assert axis.interval(19) == (9, 9)
    assert axis.unused == ()


def test_positions_between_and_after_windows_are_unused() -> None:
    """Windows of 2 places, 3 apart, of 12: 0 1, 3 4, 6 7, 9 10."""
    axis = axis_of(nn.MaxPool1d(2, 3), (1, 12))
    assert axis.unused == (2, 5, 8, 11)
    assert axis.interval(1) == (0, 0)
    assert axis.interval(2) is None
    assert axis.interval(3) == (1, 1)


def test_unused_positions_stay_unused_in_later_layers() -> None:
    """A window of three strided ones has gaps: a receptive field of 5 holds two odd positions."""
    model = nn.Sequential(conv(1, 2), conv(3, padding=1))
    assert receptive_field(model, (1, 12)).output.rf == 5
    axis = axis_of(model, (1, 12))
    assert axis.unused == (1, 3, 5, 7, 9, 11)
    assert axis.interval(0) == (0, 1)
    assert axis.interval(4) == (1, 3)


def test_what_strides_leave_over_at_the_end_is_unused() -> None:
    """Four windows of 3, 2 apart, end at place 8 of 10; padding of the next layer has no input."""
    model = nn.Sequential(conv(3, 2), conv(3, padding=1))
    assert axis_of(model, (1, 10)).unused == (9,)


def test_dilation_leaves_gaps() -> None:
    """Unit j of 12 reads j − 4, j and j + 4: 1, 5 and 9 read position 5, 7 and 11 read 11."""
    axis = axis_of(conv(3, padding=4, dilation=4), (1, 12))
    assert axis.interval(5) == (1, 9)
    assert axis.interval(11) == (7, 11)
    assert axis.counts[5] == 3
    assert axis.counts[11] == 2


def test_a_transposed_convolution_spreads_each_position() -> None:
    """Position i goes to 2·i − 1 … 2·i + 2 of 12 units."""
    axis = axis_of(nn.ConvTranspose1d(1, 1, 4, 2, 1), (1, 6))
    assert axis.units == 12
    assert axis.interval(0) == (0, 2)
    assert axis.interval(3) == (5, 8)
    assert axis.interval(5) == (9, 11)


def test_upsampling_repeats_each_position() -> None:
    axis = axis_of(nn.Upsample(scale_factor=3), (1, 5))
    assert axis.interval(0) == (0, 2)
    assert axis.interval(4) == (12, 14)


def test_the_future_is_reached_by_causal_convolutions() -> None:
    """Kernels of 3 with dilations 1, 2 and 4: a sample has influence on the next 2 · 7 outputs."""

    def forward(layers: nn.Module, x: Tensor) -> Tensor:
        for layer in layers.children():
            assert isinstance(layer, nn.Conv1d)
            x = layer(F.pad(x, (2 * layer.dilation[0], 0)))
        return x

    layers = nn.Sequential(*[conv(3, dilation=step) for step in (1, 2, 4)])
    axis = axis_of(Runs(forward, layers), (1, 40))
    assert axis.interval(0) == (0, 14)
    assert axis.interval(10) == (10, 24)
    assert axis.interval(39) == (39, 39)
    assert axis.size == 15


def test_causal_attention_reaches_the_own_place_and_later_ones() -> None:
    def forward(project: nn.Module, x: Tensor) -> Tensor:
        query, key, value = project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    axis = axis_of(Runs(forward, nn.Linear(4, 12)), (9, 4))
    assert axis.interval(0) == (0, 8)
    assert axis.interval(3) == (3, 8)
    assert axis.interval(8) == (8, 8)


def test_a_recurrent_layer_in_one_direction_reaches_later_steps() -> None:
    layer = nn.LSTM(4, 4, batch_first=True)
    steps = Runs(lambda net, x: net(x)[0], layer)
    axis = axis_of(steps, (9, 4))
    assert axis.interval(3) == (3, 8)


def test_a_recurrent_layer_in_both_directions_reaches_all_steps() -> None:
    layer = nn.GRU(4, 4, batch_first=True, bidirectional=True)
    steps = Runs(lambda net, x: net(x)[0], layer)
    axis = axis_of(steps, (9, 4))
    assert axis.status == "global"
    assert axis.interval(3) == "global"


def test_running_sums_reach_later_places() -> None:
    model = Runs(lambda layer, x: layer(x).cumsum(-1), conv(1))
    axis = axis_of(model, (1, 7))
    assert axis.interval(0) == (0, 6)
    assert axis.interval(5) == (5, 6)


def test_global_layers_are_reached_completely() -> None:
    pool = nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), pool, nn.Flatten(), nn.Linear(4, 5))
    field = projective_field(model, (3, 8, 8))
    assert field["0"].size == 3
    assert field.output.size == "global"
    assert field.output.reaches(0, 7) == ("global", "global")
    assert field.output.units is None


def test_branches_are_united() -> None:
    """A kernel of 5 in some channels, and in others added to the input."""

    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([layer(x), x + layer(x)], 1)

    layer = nn.Conv1d(2, 2, 5, padding=2)
    axis = axis_of(Runs(forward, layer), (2, 12))
    assert axis.dim == 2
    assert axis.interval(6) == (4, 8)
    assert axis.counts[6] == 5


def test_tokens_are_counted_along_their_dimension() -> None:
    """Patches of 8 × 12 after a class token: row 5 is in tokens 4 … 6, column 5 in 2 and 5."""

    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        tokens = layer(x).flatten(2).transpose(1, 2)
        return torch.cat([tokens.new_zeros(1, 1, 4), tokens], 1)

    model = Runs(forward, nn.Conv2d(3, 4, 4, 4))
    rows, columns = projective_field(model, args=(torch.rand(1, 3, 8, 12),)).output.axes
    assert rows.dim == 1
    assert rows.units == 7
    assert columns.dim == 1
    assert rows.interval(5) == (4, 6)
    assert rows.counts[5] == 3
    assert columns.interval(5) == (2, 5)
    assert columns.counts[5] == 2


def test_each_input_has_axes() -> None:
    def forward(layer: nn.Module, left: Tensor, right: Tensor) -> Tensor:
        return layer(left) + right

    model = Runs(forward, nn.Conv1d(2, 2, 3, padding=1))
    field = projective_field(model, [(2, 10), (2, 10)])
    assert field.output.size == {"args[0]": 3, "args[1]": 1}
    assert field["layer"].unused == {"args[0]": 0, "args[1]": 10}
    assert field.output.reaches(4, name="args[1]") == ((4, 4),)
    with pytest.raises(InputError, match=r"name is 'x', which is not an input"):
        field.output.reaches(4, name="x")


def test_borders_that_wrap_and_mirror_reach_what_they_are_made_of() -> None:
    def padded(mode: str) -> AxisReach:
        model = Runs(lambda layer, x: layer(F.pad(x, (1, 1), mode)), conv(3))
        return axis_of(model, (1, 8))

    assert padded("circular").interval(0) == (0, 7)
    assert padded("circular").counts[0] == 3  # 0, 1 and 7
    assert padded("reflect").interval(1) == (0, 2)
    assert padded("replicate").interval(0) == (0, 1)
    assert padded("constant").interval(0) == (0, 1)


def test_statistics_of_a_norm_reach_only_when_asked_for() -> None:
    trace = record(nn.Sequential(nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4)), (1, 20))
    (axis,) = projective_fields(trace).output.axes
    assert axis.status == "local"
    assert axis.size == 3
    assert axis.notes == ("norm-stats",)
    (axis,) = projective_fields(trace, strict_norm=True).output.axes
    assert axis.status == "global"
    assert axis.notes == ()


def test_an_operator_without_a_window_is_an_upper_bound() -> None:
    @torch.library.custom_op("reached::blurred", mutates_args=())
    def blurred(x: Tensor) -> Tensor:
        return x.clone()

    @blurred.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    model = Runs(lambda layer, x: blurred(layer(x)), conv(3))
    axis = axis_of(model, (1, 9))
    assert axis.status == "global"
    assert [reason.operator for reason in axis.reasons] == ["reached.blurred"]


@pytest.mark.parametrize("position", [-1, 9, 1.5, True, "1"])
def test_a_position_is_an_index_of_the_axis(position: Any) -> None:
    axis = axis_of(conv(3, padding=1), (1, 9))
    with pytest.raises(InputError, match=r"position is .*: give a whole number, 0 to 8"):
        axis.interval(position)


@pytest.mark.parametrize("key", [5, ("1",), (1, "1")])
def test_a_layer_is_chosen_by_path_and_call(key: Any) -> None:
    field = projective_field(nn.Sequential(conv(3)), (1, 9))
    with pytest.raises(InputError, match=r"is not a layer: give its path, or \(path, call\)"):
        field[key]


def test_positions_are_shown_for_all_layers() -> None:
    field = projective_field(nn.Sequential(conv(3)), (1, 9))
    with pytest.raises(InputError, match="position is shown for all layers: leave out layer"):
        field.table("0", position=(3,))


def test_causal_attention_of_engines_ends_with_the_last_key() -> None:
    """Of three queries and six keys, query ``i`` sees keys up to ``i + 3``: all count as read."""

    def forward(x: Tensor) -> Tensor:
        key = x[:, None]
        return fused_attention(key[..., :3, :], key, key, is_causal=True)[:, 0]

    field = projective_field(Runs(forward), (6, 4))
    assert field.output.reaches(5) != (None,)


def test_elements_picked_by_unknown_indices_are_an_upper_bound() -> None:
    def forward(layer: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        return layer(x)[..., at]

    model = Runs(forward, conv(3))
    field = projective_field(model, args=(torch.rand(1, 1, 20), torch.arange(4)))
    axis = field.output.axes[0]
    assert axis.status == "global"
    assert axis.notes == ("hull",)


def test_a_write_through_a_view_reaches_what_is_written() -> None:
    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        y = layer(x).clone()
        y[..., 4:8] = y[..., :4].clone()
        return y

    axis = axis_of(Runs(forward, conv(1)), (1, 10))
    assert axis.interval(1) == (1, 5)
    assert axis.interval(5) is None
    assert axis.interval(8) == (8, 8)


def test_what_has_no_elements_is_not_reached() -> None:
    model = Runs(lambda x: x[..., :0].sum(-1, keepdim=True))
    field = projective_field(model, (2, 6))
    assert [axis.status for axis in field.output.axes] == ["none"]
    assert field.output.reaches(3) == (None,)
