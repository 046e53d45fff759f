"""One frame of a video: series in a grid, each as an image, as lines or as a histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchscan.watching.schema import Distribution, Series
from torchscan.watching.sinks.color_scales import paint
from torchscan.watching.sinks.drawing import (
    FINE,
    INK,
    LABEL,
    NOTE,
    SMALL,
    TITLE,
    Box,
    Canvas,
    format_short,
    height_of_text,
    to_image,
)
from torchscan.watching.sinks.sink import histogram, merged, number_of_finite

Shape = Literal["picture", "lines", "histogram"]
#: columns of a table that are lines; one with more is a picture
_LINES = 8
#: bars of a histogram, at most
_BARS = 64
#: where there is less room nothing is drawn
_MIN_ROOM = 36 * FINE
#: how much of the way a range goes towards what is there now, where it could be narrower
_CALM = 0.15
#: of the sides of a panel a picture takes this share at least: one row of a thousand columns would
#: be a hair
_SHARE = 0.25

BAR = "#5fa0ea"
#: told apart by color-blind people, too
LINES = ("#5fa0ea", "#e8825f", "#74c7c7", "#e59a52", "#9384cc", "#9ecae9", "#5d9c60", "#9ba0a8")


class FrameSeries(NamedTuple):
    """One series of a step. ``values`` are all of them, or None."""

    series: Series
    found: Distribution
    values: Tensor | None


class Frames:
    """Draws one frame after another. Ranges widen at once and narrow slowly: nothing flickers."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._ranges: dict[tuple[Series, str], tuple[float, float]] = {}

    def draw(self, title: str, about: str, shown: Sequence[FrameSeries]) -> Any:
        """Return a frame as an image of Pillow's."""
        width, height = (FINE * side for side in self._size)
        canvas = Canvas(width, height)
        canvas.write(12 * FINE, 8 * FINE, title, TITLE, color=INK)
        canvas.write(width - 12 * FINE, 10 * FINE, about, NOTE, anchor="ra")
        top = height_of_text(TITLE) + 14 * FINE
        below = Box(0, top, width, height).shrink(8 * FINE)
        for each, box in zip(shown, below.divide(len(shown)), strict=False):
            panel = box.shrink(4 * FINE)
            canvas.draw_panel(panel)
            self._draw_series(canvas, panel.shrink(10 * FINE), each)
        return canvas.finish()

    def _draw_series(self, canvas: Canvas, box: Box, shown: FrameSeries) -> None:
        span = f"{format_short(shown.found.min)} … {format_short(shown.found.max)}"
        room = box.width - canvas.width_of(span, SMALL) - 10 * FINE
        label = canvas.fit(shown.series.label, LABEL, room)
        canvas.write(box.left, box.top, label, LABEL, color=INK)
        canvas.write(box.right, box.top + 2 * FINE, span, SMALL, anchor="ra")

        shape = shape_of(shown.values)
        below = box.inside(0, height_of_text(LABEL) + 8 * FINE, 0, 0)
        if below.width < _MIN_ROOM or below.height < _MIN_ROOM:
            return
        if shape == "histogram" or shown.values is None:
            self._draw_histogram(canvas, below, shown)
        elif shape == "picture":
            table = shown.values.reshape(shown.values.shape[-2:])
            self._draw_picture(canvas, below, shown.series, table)
        else:
            self._draw_lines(canvas, below, shown.series, shown.values)

    def _range(self, series: Series, axis: str, least: float, most: float) -> tuple[float, float]:
        if not (math.isfinite(least) and math.isfinite(most)):
            least, most = 0.0, 0.0
        known_low, known_high = self._ranges.get((series, axis), (least, most))
        calm_low = known_low + _CALM * (least - known_low)
        calm_high = known_high + _CALM * (most - known_high)
        low = min(least, calm_low)
        high = max(most, calm_high)
        self._ranges[series, axis] = low, high
        return (low, high) if low < high else (low - 0.5, high + 0.5)

    # -- three ways to draw ----------------------------------------------------------------------

    def _draw_histogram(self, canvas: Canvas, box: Box, shown: FrameSeries) -> None:
        """Draw bars as high as values are dense: of two with as many, the wide one is lower."""
        if not number_of_finite(shown.found):
            canvas.write(box.left, box.top, "no finite values", NOTE)
            return
        edges, counts = histogram(shown.found)
        low, high = self._range(shown.series, "x", edges[0], edges[-1])
        area = box.inside(0, 0, 0, height_of_text(SMALL) + 4 * FINE)
        min_width = (high - low) / _BARS
        edges, counts = merged(edges, counts, min_width)
        densities = []
        for (left, right), count in zip(pairwise(edges), counts, strict=False):
            density = count / (right - left)
            densities.append(density)
        places = [area.left + (edge - low) / (high - low) * area.width for edge in edges]
        highest = max(densities)
        for (start, end), density in zip(pairwise(places), densities, strict=False):
            height = density / highest * area.height
            top = area.bottom - height
            if density:
                right = max(start, end - FINE)
                canvas.draw_bar((start, top, right, area.bottom), BAR)
        canvas.draw_ticks(area, low, high)

    def _draw_lines(self, canvas: Canvas, box: Box, series: Series, values: Tensor) -> None:
        """Draw a line for each column over the rows; of two columns, the second over the first."""
        table = values.double().reshape(len(values), -1)
        columns = list(table.unbind(1))
        if len(columns) == 2:
            x = columns.pop(0)
        else:
            x = torch.arange(len(table), dtype=torch.float64)
        left, right = self._range(series, "x", *_extremes(x))
        low, high = self._range(series, "y", *_extremes(torch.stack(columns)))
        area = box.inside(34 * FINE, 2 * FINE, 0, height_of_text(SMALL) + 4 * FINE)
        canvas.draw_levels(area, low, high)
        share = (x - left) / (right - left)
        across = area.left + share * area.width
        for number, column in enumerate(columns):
            share = (column - low) / (high - low)
            down = area.bottom - share * area.height
            points = torch.stack([across, down], 1)
            is_finite = points.isfinite().all(1)
            color = LINES[number % len(LINES)]
            canvas.draw_curve(points[is_finite], color)
        canvas.draw_ticks(area, left, right)

    def _draw_picture(self, canvas: Canvas, box: Box, series: Series, values: Tensor) -> None:
        """Draw each value as large as there is room for; those of NaN are gray."""
        from PIL import Image

        low, high = self._range(series, "z", *_extremes(values))
        if low < 0 < high:
            high = max(-low, high)
            low = -high
        # a gap above the key, its height, and a gap above its ticks
        area = box.inside(0, 0, 0, height_of_text(SMALL) + (4 + 5 + 3) * FINE)
        picture = to_image(paint(values, low, high))
        scale = min(area.width / picture.width, area.height / picture.height)
        min_width = int(_SHARE * area.width)
        min_height = int(_SHARE * area.height)
        width = max(round(scale * picture.width), min_width)
        height = max(round(scale * picture.height), min_height)
        way = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        resized = picture.resize((width, height), way)
        left = area.left + (area.width - width) // 2
        top = area.top + (area.height - height) // 2
        canvas.paste(resized, left, top)
        below = box._replace(top=area.bottom + 4 * FINE)
        canvas.draw_key(below, low, high)


def shape_of(values: Tensor | None) -> Shape:
    """Return how to draw values: few columns as lines, maps as images, others as a histogram."""
    if values is None or not values.numel():
        return "histogram"
    shape = values.shape
    if values.dim() == 3 and values.shape[0] == 1:
        shape = values.shape[1:]
    if len(shape) == 1 and shape[0] > 1:
        return "lines"
    if len(shape) != 2 or min(shape) < 1 or max(shape) < 2:
        return "histogram"
    is_narrow = values.dim() == 2 and shape[1] <= _LINES < shape[0]
    return "lines" if is_narrow else "picture"


def _extremes(values: Tensor) -> tuple[float, float]:
    finite = values[values.isfinite()]
    if not len(finite):
        return math.nan, math.nan
    return finite.min().item(), finite.max().item()
