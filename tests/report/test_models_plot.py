"""Points of models: scales, ticks, and names beside the points."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import nn

from torchscan import InputError, model_table
from torchscan.types import ModelTable

mpl.use("Agg")


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    yield
    plt.close("all")


def table_of(*sizes: int) -> ModelTable:
    """A model with ten products, and as many weights, for each of these outputs."""
    models = {f"of {size}": nn.Linear(10, size, bias=False) for size in sizes}
    return model_table(models, (10,), metrics=["macs", "params"])


def ticks(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_xticklabels() if text.get_text() != ""]


def test_axes_begin_at_0_unless_values_are_alike() -> None:
    ax = table_of(10, 20).plot()
    assert (ax.get_xlim()[0], ax.get_ylim()[0]) == (0, 0)
    alike = table_of(10, 19).plot()
    assert 0 < alike.get_xlim()[0] < 100
    assert 0 < alike.get_ylim()[0] < 100


def test_axes_are_logarithmic_if_the_largest_value_is_more_than_twelve_times_the_smallest() -> None:
    far, near = table_of(10, 121).plot(), table_of(10, 120).plot()
    assert (far.get_xscale(), far.get_yscale()) == ("log", "log")
    assert (near.get_xscale(), near.get_yscale()) == ("linear", "linear")
    assert near.get_xlim()[0] == near.get_ylim()[0] == 0


def test_an_axis_with_a_value_of_0_is_not_logarithmic() -> None:
    models = {"none": nn.ReLU(), "many": nn.Linear(10, 10)}
    ax = model_table(models, (10,), metrics=["macs", "params"]).plot()
    assert (ax.get_xscale(), ax.get_xlim()[0]) == ("linear", 0)


def test_ticks_of_a_logarithmic_axis_are_at_1_2_and_5_or_at_powers_of_ten_alone() -> None:
    """From a ratio of 200 on, ticks are at powers of ten."""
    ax = table_of(10, 1999).plot()
    assert {"0.1", "0.2", "0.5", "1", "2"} <= set(ticks(ax))
    many = table_of(10, 2000).plot()
    assert {"0.1", "1", "10"} <= set(ticks(many))
    assert not {"0.2", "0.5", "2", "5"} & set(ticks(many))
    assert not any(text.get_text() for text in many.get_xticklabels(minor=True))


def test_values_of_the_user_keep_the_scale_of_the_axis() -> None:
    ax = table_of(10, 20).plot(y={"of 10": 1.0, "of 20": 80.0})
    assert (ax.get_yscale(), ax.get_ylabel()) == ("linear", "")
    assert ax.get_ylim()[0] < 0, "only a margin"
    assert ax.get_xlim()[0] == 0


def test_a_plot_needs_a_model_with_a_value() -> None:
    with pytest.raises(InputError, match="y has values for none of of 10, of 20"):
        table_of(10, 20).plot(y={})


def test_a_metric_that_some_models_lack_is_not_drawn() -> None:
    models = {"convolution": nn.Conv1d(1, 1, 3), "layer": nn.Linear(10, 10)}
    table = model_table(models, (1, 10), metrics=["macs", "receptive_field"])
    with pytest.raises(InputError, match="is not a number for some of the models"):
        table.plot(y="receptive_field")


#: in points
RADIUS = (42 / 3.14) ** 0.5


def drawn(ax: Axes) -> tuple[list[Any], Any, float]:
    """The boxes of names, the middles of points, and the pixels of a point."""
    figure: Any = ax.figure
    figure.draw_without_rendering()
    points = ax.transData.transform(ax.collections[0].get_offsets())
    return [text.get_window_extent() for text in ax.texts], points, figure.dpi / 72


def test_a_name_is_beside_its_point() -> None:
    """Three points from its edge, at 45 degrees."""
    names, points, pixels = drawn(table_of(10, 20).plot())
    for name, (x, y) in zip(names, points, strict=True):
        beside = max(name.x0 - x, x - name.x1, 0), max(name.y0 - y, y - name.y1, 0)
        assert RADIUS < math.hypot(*beside) / pixels < RADIUS + 5


def test_names_cover_neither_points_nor_each_other() -> None:
    names, points, pixels = drawn(table_of(*range(100, 109)).plot())
    assert len(names) > 4
    for one, other in combinations(names, 2):
        assert not one.padded(1.9 * pixels).overlaps(other)
    reach = RADIUS * pixels - 1e-6
    for name, (x, y) in product(names, points):
        is_beside = name.x1 <= x - reach or name.x0 >= x + reach
        assert is_beside or name.y1 <= y - reach or name.y0 >= y + reach
