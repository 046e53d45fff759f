"""Pictures: what is drawn is where it is said to be."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import nn

import torchscan

mpl.use("Agg")


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(ax: Axes) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, width and height of what is drawn."""
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return {str(box.get_label()): (*box.get_xy(), box.get_width(), box.get_height()) for box in boxes}


MODEL = nn.Sequential(nn.Conv2d(3, 4, (5, 3), 2, (2, 1)), nn.Conv2d(4, 4, 3, 2, 1))


def test_the_frame_of_a_unit_is_its_interval() -> None:
    layer = torchscan.receptive_field(MODEL, (3, 64, 48)).output
    ax = torchscan.draw_receptive_field(layer, (8, 6), torch.rand(64, 48, 3))
    # by hand: rows 4·8 − 4 = 28 up to 28 + 9; columns 4·6 − 3 = 21 up to 21 + 7
    assert drawn(ax) == {"receptive field": (21, 28, 7, 9)}
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 48), (64, 0))
    assert ax.get_title() == "unit (8, 6) of Sequential: 9×7"
    bare = torchscan.draw_receptive_field(layer)
    assert drawn(bare) == {"receptive field": (21, 28, 7, 9)}  # the middle
    assert (bare.get_xlim(), bare.get_ylim()) == ((0, 48), (64, 0))


def test_what_reaches_into_the_padding_is_shown() -> None:
    layer = torchscan.receptive_field(MODEL, (3, 64, 48)).output
    ax = torchscan.draw_receptive_field(layer, (0, 0))
    assert drawn(ax) == {"receptive field": (-3, -4, 7, 9), "input": (0, 0, 48, 64)}
    assert ax.get_xlim()[0] < -3
    assert ax.get_ylim()[1] < -4


def test_what_is_seen_as_a_whole_is_tinted_and_said() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1))
    ax = torchscan.draw_receptive_field(torchscan.receptive_field(model, (1, 30)).output)
    assert drawn(ax) == {"seen as a whole": (0, 0, 30, 1)}
    assert "everything by aten.adaptive_avg_pool1d in 1" in ax.get_title()


def test_of_tokens_one_number_says_which() -> None:
    layer = torchscan.receptive_field(nn.Sequential(nn.Conv2d(3, 2, 4, 4), nn.Flatten(2)), (3, 32, 48)).output
    ax = torchscan.draw_receptive_field(layer, 15, torch.rand(3, 32, 48))  # the fourth of 12 in the second row
    assert drawn(ax) == {"receptive field": (12, 4, 4, 4)}
    assert ax.get_title() == "unit 15 of Sequential: 4×4"


def test_a_picture_of_another_size_is_refused() -> None:
    layer = torchscan.receptive_field(MODEL, (3, 64, 48)).output
    with pytest.raises(torchscan.InputError, match="64 high and 48 wide"):
        torchscan.draw_receptive_field(layer, picture=torch.rand(48, 64, 3))
    with pytest.raises(torchscan.InputError, match="choose a layer"):
        torchscan.draw_receptive_field(torchscan.receptive_field(MODEL, (3, 64, 48)))  # type: ignore[arg-type]


def test_two_axes_of_three_and_one_of_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.video = nn.Conv3d(1, 1, (3, 5, 7))

        def forward(self, signal: torch.Tensor, video: torch.Tensor) -> torch.Tensor:
            return self.video(video) + signal.mean()

    layer = torchscan.receptive_field(Two(), [(1, 10), (1, 20, 30, 40)]).output
    ax = torchscan.draw_receptive_field(layer, (4, 9), name="args[1]", dims=(2, 4), ax=plt.subplots()[1])
    assert drawn(ax) == {"receptive field": (9, 4, 7, 3)}


def test_what_cannot_be_drawn_is_said() -> None:
    layer = torchscan.receptive_field(MODEL, (3, 64, 48)).output
    with pytest.raises(torchscan.InputError, match="none of the 16 units"):
        torchscan.draw_receptive_field(layer, (16, 0))
    with pytest.raises(torchscan.InputError, match="as many numbers as dimensions of the output are drawn, 2"):
        torchscan.draw_receptive_field(layer, (1,))
    with pytest.raises(torchscan.InputError, match=r"it sees args\[0\]"):
        torchscan.draw_receptive_field(layer, name="x")
    with pytest.raises(torchscan.InputError, match="dimensions 2, 3"):
        torchscan.draw_receptive_field(layer, dims=(1, 2))
    with pytest.raises(torchscan.InputError, match="nothing to draw"):
        torchscan.draw_receptive_field(torchscan.receptive_field(nn.Linear(3, 4), (3,)).output)
