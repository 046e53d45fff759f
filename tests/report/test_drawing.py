"""Pictures: what is drawn is where it is said to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch, Rectangle
from torch import nn

import torchscan
from tests.report.test_compare import Unpriced
from torchscan import InputError, compare, crawl_module, receptive_field

mpl.use("Agg")


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    yield
    plt.close("all")


def find_boxes(ax: Axes) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, width and height of what is drawn."""
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return {
        str(box.get_label()): (*box.get_xy(), box.get_width(), box.get_height()) for box in boxes
    }


MODEL = nn.Sequential(nn.Conv2d(3, 4, (5, 3), 2, (2, 1)), nn.Conv2d(4, 4, 3, 2, 1))


def test_the_frame_of_a_unit_is_its_interval() -> None:
    layer = receptive_field(MODEL, (3, 64, 48)).output
    ax = layer.plot(unit=(8, 6), image=torch.rand(64, 48, 3))
    # by hand: rows 4·8 − 4 = 28 up to 28 + 9; columns 4·6 − 3 = 21 up to 21 + 7
    assert find_boxes(ax) == {"receptive field": (21, 28, 7, 9)}
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 48), (64, 0))
    assert ax.get_title() == "unit (8, 6) of Sequential: 9×7"
    bare = layer.plot()
    assert find_boxes(bare) == {"receptive field": (21, 28, 7, 9)}  # the middle
    assert (bare.get_xlim(), bare.get_ylim()) == ((0, 48), (64, 0))


def test_what_reaches_into_the_padding_is_shown() -> None:
    layer = receptive_field(MODEL, (3, 64, 48)).output
    ax = layer.plot(unit=(0, 0))
    assert find_boxes(ax) == {"receptive field": (-3, -4, 7, 9), "input": (0, 0, 48, 64)}
    assert ax.get_xlim()[0] < -3
    assert ax.get_ylim()[1] < -4


def test_what_is_seen_as_a_whole_is_tinted_and_said() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1))
    ax = receptive_field(model, (1, 30)).output.plot()
    assert find_boxes(ax) == {"global": (0, 0, 30, 1)}
    assert "the entire input by aten.adaptive_avg_pool1d" in ax.get_title()


def test_of_tokens_one_number_says_which() -> None:
    layer = receptive_field(nn.Sequential(nn.Conv2d(3, 2, 4, 4), nn.Flatten(2)), (3, 32, 48)).output
    ax = layer.plot(unit=15, image=torch.rand(3, 32, 48))  # the fourth of 12 in the second row
    assert find_boxes(ax) == {"receptive field": (12, 4, 4, 4)}
    assert ax.get_title() == "unit 15 of Sequential: 4×4"


def test_a_picture_of_another_size_is_refused() -> None:
    layer = receptive_field(MODEL, (3, 64, 48)).output
    with pytest.raises(InputError, match="64 high and 48 wide"):
        layer.plot(image=torch.rand(48, 64, 3))


def test_two_axes_of_three_and_one_of_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.video = nn.Conv3d(1, 1, (3, 5, 7))

        def forward(self, signal: torch.Tensor, video: torch.Tensor) -> torch.Tensor:
            return self.video(video) + signal.mean()

    layer = receptive_field(Two(), [(1, 10), (1, 20, 30, 40)]).output
    ax = layer.plot(unit=(4, 9), name="args[1]", dims=(2, 4), ax=plt.subplots()[1])
    assert find_boxes(ax) == {"receptive field": (9, 4, 7, 3)}


def test_what_cannot_be_drawn_is_said() -> None:
    layer = receptive_field(MODEL, (3, 64, 48)).output
    with pytest.raises(InputError, match="16 is out of range: give 0 to 15"):
        layer.plot(unit=(16, 0))
    with pytest.raises(InputError, match="give 2 numbers, one for each dimension of the output"):
        layer.plot(unit=(1,))
    with pytest.raises(InputError, match=r"choose from args\[0\]"):
        layer.plot(name="x")
    with pytest.raises(InputError, match="dimensions 2, 3"):
        layer.plot(dims=(1, 2))
    with pytest.raises(InputError, match="nothing to draw"):
        receptive_field(nn.Linear(3, 4), (3,)).output.plot()


def test_fields_of_several_layers_are_nested_with_their_names_beside_them() -> None:
    fields = receptive_field(MODEL, (3, 64, 48))
    ax = fields.plot()
    assert find_boxes(ax) == {"0  5×3": (23, 30, 3, 5), "1  9×7": (21, 28, 7, 9)}
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["0  5×3", "1  9×7"]
    colors = {each.get_label(): each.get_edgecolor() for each in ax.patches}
    handles: list[Any] = legend.legend_handles
    assert [each.get_edgecolor() for each in handles] == [colors["0  5×3"], colors["1  9×7"]]
    assert colors["0  5×3"] != colors["1  9×7"]
    assert find_boxes(fields.plot(layers=["0", "1"])) == find_boxes(ax)


def test_what_is_around_a_field_is_dimmed_on_a_picture() -> None:
    layer = receptive_field(MODEL, (3, 64, 48)).output
    ax = layer.plot(unit=(8, 6), image=torch.rand(64, 48))
    (around,) = [each for each in ax.patches if isinstance(each, PathPatch)]
    corners = {(float(x), float(y)) for x, y in np.asarray(around.get_path().vertices)}
    assert corners == {
        (0, 0),
        (48, 0),
        (48, 64),
        (0, 64),
        (21, 28),
        (21, 37),
        (28, 37),
        (28, 28),
    }, "all but what is seen"


def test_names_are_drawn_literally() -> None:
    """Neither as formulas nor left out of a legend, as matplotlib does with ``$`` and ``_``."""
    module = nn.Sequential()
    module.add_module("_stem", nn.Conv2d(3, 4, 3))
    module.add_module(r"$\bad{$", nn.Conv2d(4, 4, 3))
    fields = receptive_field(module, (3, 16, 16))
    legend = fields.plot().get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [" _stem  3×3", r"\$\bad{\$  5×5"]
    results = (
        fields[r"$\bad{$"],
        crawl_module(module, (3, 16, 16)),
        torchscan.analyze_roofline(module, (3, 16, 16), device="RTX 3090"),
        torchscan.estimate_memory(module, (3, 16, 16)),
    )
    for result in results:
        figure: Any = result.plot().figure
        figure.draw_without_rendering()


# -- layers and models ---------------------------------------------------------------------------------------------------


def test_layers_as_bars_with_their_shares() -> None:
    """Of 16, 32 and 8 MACs."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 8), nn.Linear(8, 1), nn.ReLU())
    info = crawl_module(model, (4,))
    ax = info.plot()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["1", "0", "2"]
    assert [text.get_text() for text in ax.texts] == ["32  ·  57 %", "16  ·  29 %", "8  ·  14 %"]
    assert [bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)] == [32, 16, 8]
    assert len(info.plot(top=2).texts) == 3, "the third says more than that there is another"
    few = info.plot(top=1)
    assert [text.get_text() for text in few.texts] == ["32  ·  57 %", "24  ·  43 %"]
    assert [tick.get_text() for tick in few.get_yticklabels()] == ["1", "and 2 others"]
    with pytest.raises(InputError, match="by is 'type', which is not a numeric column"):
        info.plot(by="type")
    with pytest.raises(InputError, match="no layer has any Buffers"):
        info.plot(by="buffers")
    with pytest.raises(InputError, match="'latency': give crawl_module"):
        info.plot(by="latency")


def test_models_beside_each_other_by_metrics_or_figures_of_the_user() -> None:
    models = {
        "small": nn.Linear(1000, 1000),
        "large": nn.Linear(1000, 4000),
        "wide": nn.Linear(1000, 4001),
    }
    table = torchscan.model_table(models, (1000,), metrics=["macs", "params"])
    ax = table.plot()
    points = np.asarray(ax.collections[0].get_offsets())
    assert points == pytest.approx(np.array([[1, 1.001], [4, 4.004], [4.001, 4.005001]]))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("MACs (M)", "Parameters (M)")
    assert {text.get_text() for text in ax.texts} == set(models)
    accuracies = {"small": 70.1, "large": 80.2}
    own = table.plot(y=accuracies, y_label="Top-1 accuracy, %", size="column")
    figure: Any = own.figure
    assert figure.get_size_inches() == pytest.approx([3.15, 2.4])
    assert np.asarray(own.collections[0].get_offsets())[:, 1] == pytest.approx([70.1, 80.2])
    assert own.get_ylabel() == "Top-1 accuracy, %"
    with pytest.raises(
        InputError,
        match="'tiny', which is not in the table: choose from small, large, wide",
    ):
        table.plot(y={"tiny": 1.0})
    with pytest.raises(
        InputError, match="'flops' is not a column of the table: choose from macs, params"
    ):
        table.plot(x="flops")


def test_rows_without_a_value_have_no_bar() -> None:
    """The change of a layer is unknown if an operator in it has no cost formula."""
    before = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    after = nn.Sequential(nn.Linear(4, 8), Unpriced())
    infos = [crawl_module(model, (4,), receptive_field=False) for model in (before, after)]
    ax = compare(*infos).plot(by="macs")
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0"]
    assert [bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)] == [32 - 16]


def test_pictures_are_dark_where_the_users_style_is() -> None:
    """Ink is as far from the ground as it can be; what is behind axes that can be seen through counts, too."""
    info = crawl_module(nn.Linear(4, 4), (4,))
    grounds: list[Any] = [
        {},
        {"axes.facecolor": "black"},
        {"axes.facecolor": "none", "figure.facecolor": "#101010"},
    ]
    for style, is_dark in zip(grounds, (False, True, True), strict=True):
        with plt.rc_context(style):
            ax = info.plot(by="macs")
        brightness = sum(to_rgb(ax.texts[0].get_color())) / 3
        assert (brightness > 0.5) == is_dark
    black: Any = plt.figure(facecolor="black")
    for given in (
        black.add_subplot(facecolor="none"),
        black.subfigures().add_subplot(facecolor="none"),
    ):
        ax = info.plot(by="macs", ax=given)
        for text in (ax.texts[0], ax.title, ax.get_yticklabels()[0]):
            assert sum(to_rgb(text.get_color())) / 3 > 0.5


def test_words_around_white_axes_on_a_black_figure_are_light_and_those_in_them_dark() -> None:
    given = plt.figure(facecolor="black").add_subplot(facecolor="white")
    ax = crawl_module(nn.Linear(4, 4), (4,)).plot(by="macs", ax=given)
    assert sum(to_rgb(ax.get_yticklabels()[0].get_color())) / 3 > 0.5
    assert sum(to_rgb(ax.title.get_color())) / 3 > 0.5
    assert sum(to_rgb(ax.texts[0].get_color())) / 3 < 0.5


@pytest.mark.parametrize("size", ["column", "page", "screen"])
def test_nothing_is_clipped_when_a_figure_is_first_saved(size: Any) -> None:
    """Axes of a fixed aspect are narrower than the first layout takes them to be."""
    layers = [nn.Conv2d(3, 3, 7, 2, 3), *(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(4))]
    fields = receptive_field(nn.Sequential(*layers), (3, 224, 224))
    figure: Any = fields.plot(size=size).figure
    figure.canvas.draw()
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height
