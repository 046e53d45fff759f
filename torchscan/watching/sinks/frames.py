"""One frame of a video: series in a grid, each as an image, as lines or as a histogram."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchscan.watching.schema import Distribution, Series
from torchscan.watching.sinks.sink import histogram, merged, number_of_finite

Shape = Literal["picture", "lines", "histogram"]
#: columns of a table that are lines; one with more is a picture
_LINES = 8
#: bars of a histogram, at most
_BARS = 64
#: drawn so many times as large, so that lines are smooth
_FINE = 2
#: where there is less room nothing is drawn
_MIN_ROOM = 36 * _FINE
#: how much of the way a range goes towards what is there now, where it could be narrower
_CALM = 0.15
#: of the sides of a panel a picture takes this share at least: one row of a thousand columns would be a hair
_SHARE = 0.25


INK, SOFT, GROUND, PANEL, HAIR = "#e8e8e6", "#9ba0a8", "#141517", "#1b1d20", "#2c2f34"
BAR = "#5fa0ea"
#: told apart by colour-blind people, too
LINES = ("#5fa0ea", "#e8825f", "#74c7c7", "#e59a52", "#9384cc", "#9ecae9", "#5d9c60", "#9ba0a8")
_BELOW, _ABOVE = "#5fa0ea", "#e8825f"
_STEPS = 256
#: from light in a linear space to what cones answer, and from their cube roots to lightness and two axes of colour
_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_AXES = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


class FrameSeries(NamedTuple):
    """One series of a step. ``values`` are all of them, or None."""

    series: Series
    found: Distribution
    values: Tensor | None


class Box(NamedTuple):
    """A rectangle to draw in."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """In pixels."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """In pixels."""
        return self.bottom - self.top

    def shrink(self, margin: int) -> Box:
        """Return the rectangle inside the same margin on all sides."""
        return self.inside(margin, margin, margin, margin)

    def inside(self, left: int, top: int, right: int, bottom: int) -> Box:
        """Return the rectangle inside these margins."""
        return Box(self.left + left, self.top + top, self.right - right, self.bottom - bottom)


class Frames:
    """Draws one frame after another. Ranges widen at once and narrow slowly, so that nothing flickers."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._ranges: dict[tuple[Series, str], tuple[float, float]] = {}

    def draw(self, title: str, about: str, shown: Sequence[FrameSeries]) -> Any:
        """A picture of Pillow's."""
        from PIL import Image, ImageDraw

        width, height = (_FINE * side for side in self._size)
        image = Image.new("RGB", (width, height), GROUND)
        pen = ImageDraw.Draw(image)
        top = _text_height(15) + 14 * _FINE
        pen.text((12 * _FINE, 8 * _FINE), title, fill=INK, font=_font(15))
        pen.text(
            (width - 12 * _FINE, 10 * _FINE),
            about,
            fill=SOFT,
            font=_font(12),
            anchor="ra",
        )
        for each, box in zip(
            shown, _grid(len(shown), Box(0, top, width, height).shrink(8 * _FINE)), strict=False
        ):
            self._draw(image, pen, box.shrink(4 * _FINE), each)
        return image.reduce(_FINE)

    def _draw(self, image: Any, pen: Any, box: Box, shown: FrameSeries) -> None:
        pen.rounded_rectangle(box, radius=6 * _FINE, fill=PANEL, outline=HAIR, width=_FINE)
        inner = box.shrink(10 * _FINE)
        said = f"{_short(shown.found.min)} … {_short(shown.found.max)}"
        room = inner.width - pen.textlength(said, font=_font(11)) - 10 * _FINE
        pen.text(
            (inner.left, inner.top),
            _fitting(pen, shown.series.label, room),
            fill=INK,
            font=_font(13),
        )
        pen.text(
            (inner.right, inner.top + 2 * _FINE),
            said,
            fill=SOFT,
            font=_font(11),
            anchor="ra",
        )
        self._draw_values(image, pen, inner.inside(0, _text_height(13) + 8 * _FINE, 0, 0), shown)

    def _draw_values(self, image: Any, pen: Any, box: Box, shown: FrameSeries) -> None:
        shape = shape_of(shown.values)
        if box.width < _MIN_ROOM or box.height < _MIN_ROOM:
            return
        if shape == "histogram" or shown.values is None:
            self._draw_histogram(pen, box, shown)
        elif shape == "picture":
            self._draw_picture(
                image, pen, box, shown.series, shown.values.reshape(shown.values.shape[-2:])
            )
        else:
            self._draw_lines(pen, box, shown.series, shown.values)

    def _range(self, series: Series, axis: str, least: float, most: float) -> tuple[float, float]:
        if not (math.isfinite(least) and math.isfinite(most)):
            least, most = 0.0, 0.0
        known = self._ranges.get((series, axis), (least, most))
        low, high = (
            min(least, known[0] + _CALM * (least - known[0])),
            max(most, known[1] + _CALM * (most - known[1])),
        )
        self._ranges[series, axis] = low, high
        return (low, high) if low < high else (low - 0.5, high + 0.5)

    # -- three ways to draw --------------------------------------------------------------------------------------------

    def _draw_histogram(self, pen: Any, box: Box, shown: FrameSeries) -> None:
        """Bars as high as values are dense: a wide bar is lower than a narrow one with as many."""
        if not number_of_finite(shown.found):
            pen.text((box.left, box.top), "no finite values", fill=SOFT, font=_font(12))
            return
        edges, counts = histogram(shown.found)
        low, high = self._range(shown.series, "x", edges[0], edges[-1])
        area = box.inside(0, 0, 0, _text_height(11) + 4 * _FINE)
        edges, counts = merged(edges, counts, (high - low) / _BARS)
        dense = [
            count / (right - left)
            for left, right, count in zip(edges, edges[1:], counts, strict=False)
        ]
        places = [area.left + (edge - low) / (high - low) * area.width for edge in edges]
        for left, right, each in zip(places, places[1:], dense, strict=False):
            top = area.bottom - each / max(dense) * area.height
            if each:
                pen.rectangle((left, top, max(left, right - _FINE), area.bottom), fill=BAR)
        _draw_ticks(pen, area, low, high)

    def _draw_lines(self, pen: Any, box: Box, series: Series, values: Tensor) -> None:
        """One for each column over the rows; of two columns, the second over the first."""
        table = values.double().reshape(len(values), -1)
        across = table.shape[1] == 2
        x = table[:, 0] if across else torch.arange(len(table), dtype=torch.float64)
        columns = [table[:, 1]] if across else list(table.unbind(1))
        left, right = self._range(series, "x", *_extremes(x))
        low, high = self._range(series, "y", *_extremes(torch.stack(columns)))
        area = box.inside(34 * _FINE, 2 * _FINE, 0, _text_height(11) + 4 * _FINE)
        _draw_levels(pen, area, low, high)
        places = area.left + (x - left) / (right - left) * area.width
        for number, column in enumerate(columns):
            points = torch.stack(
                [places, area.bottom - (column - low) / (high - low) * area.height], 1
            )
            points = points[points.isfinite().all(1)]
            _draw_line(pen, points, LINES[number % len(LINES)])
        _draw_ticks(pen, area, left, right)

    def _draw_picture(self, image: Any, pen: Any, box: Box, series: Series, values: Tensor) -> None:
        """Each value is as large as there is room for; those of NaN are grey."""
        from PIL import Image

        low, high = self._range(series, "z", *_extremes(values))
        if low < 0 < high:
            low, high = -max(-low, high), max(-low, high)
        area = box.inside(0, 0, 0, _text_height(11) + 12 * _FINE)
        painted = _painted(values, low, high)
        picture = Image.frombytes("RGB", (values.shape[1], values.shape[0]), _bytes(painted))
        scale = min(area.width / picture.width, area.height / picture.height)
        size = _seen(scale * picture.width, area.width), _seen(scale * picture.height, area.height)
        way = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
        place = area.left + (area.width - size[0]) // 2, area.top + (area.height - size[1]) // 2
        image.paste(picture.resize(size, way), place)
        _draw_key(
            image, pen, Box(box.left, area.bottom + 4 * _FINE, box.right, box.bottom), low, high
        )


def shape_of(values: Tensor | None) -> Shape:
    """Return how to draw values: few columns as lines, maps as images, others as a histogram."""
    if values is None or not values.numel():
        return "histogram"
    shape = values.shape[1:] if values.dim() == 3 and values.shape[0] == 1 else values.shape
    if len(shape) == 1 and shape[0] > 1:
        return "lines"
    if len(shape) != 2 or min(shape) < 1 or max(shape) < 2:
        return "histogram"
    return "lines" if values.dim() == 2 and shape[1] <= _LINES < shape[0] else "picture"


@lru_cache(2)
def _of_sign(has_two: bool) -> Tensor:
    return around_zero() if has_two else growing()


def _scale(low: float, high: float) -> Tensor:
    return _of_sign(low < 0 < high)


def _painted(values: Tensor, low: float, high: float) -> Tensor:
    scale = _scale(low, high)
    places = (
        ((values.double() - low) / (high - low) * 255).clamp(0, 255).nan_to_num(0).round().long()
    )
    painted = scale[places]
    painted[values.isnan()] = 128
    return painted


def _seen(side: float, room: int) -> int:
    return max(round(side), int(_SHARE * room))


def _bytes(tensor: Tensor) -> bytes:
    """At once: byte by byte would take seconds."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def _draw_line(pen: Any, points: Tensor, colour: str) -> None:
    if len(points) > 1:
        pen.line(
            [tuple(point) for point in points.tolist()],
            fill=colour,
            width=3 * _FINE // 2,
            joint="curve",
        )


def _draw_key(image: Any, pen: Any, box: Box, low: float, high: float) -> None:
    """Draw the color scale."""
    from PIL import Image

    scale = _scale(low, high)
    bar = Image.frombytes("RGB", (len(scale), 1), _bytes(scale))
    image.paste(bar.resize((box.width, 5 * _FINE)), (box.left, box.top))
    _draw_ticks(pen, Box(box.left, box.top, box.right, box.top + 5 * _FINE), low, high)


def _draw_ticks(pen: Any, area: Box, low: float, high: float) -> None:
    pen.line((area.left, area.bottom, area.right, area.bottom), fill=HAIR, width=_FINE)
    for tick in _round_numbers(low, high, max(2, area.width // (56 * _FINE))):
        x = area.left + (tick - low) / (high - low) * area.width
        text = _short(tick)
        half = pen.textlength(text, font=_font(11)) / 2
        x = min(max(x, area.left + half), area.right - half)
        pen.text((x, area.bottom + 3 * _FINE), text, fill=SOFT, font=_font(11), anchor="ma")


def _draw_levels(pen: Any, area: Box, low: float, high: float) -> None:
    for tick in _round_numbers(low, high, max(2, area.height // (28 * _FINE))):
        y = area.bottom - (tick - low) / (high - low) * area.height
        pen.line((area.left, y, area.right, y), fill=HAIR, width=_FINE)
        pen.text(
            (area.left - 6 * _FINE, y),
            _short(tick),
            fill=SOFT,
            font=_font(11),
            anchor="rm",
        )


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= least * 0.999)
    return [
        number * step
        for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def _extremes(values: Tensor) -> tuple[float, float]:
    finite = values[values.isfinite()]
    return (finite.min().item(), finite.max().item()) if len(finite) else (math.nan, math.nan)


def _grid(count: int, box: Box) -> Iterator[Box]:
    """Equal boxes, a little wider than high."""
    columns = max(1, round(math.sqrt(count * box.width / box.height / 1.5)))
    rows = max(1, math.ceil(count / columns))
    for number in range(count):
        row, column = divmod(number, columns)
        yield Box(
            box.left + column * box.width // columns,
            box.top + row * box.height // rows,
            box.left + (column + 1) * box.width // columns,
            box.top + (row + 1) * box.height // rows,
        )


def _short(value: float) -> str:
    return f"{value:.3g}" if value else "0"


def _fitting(pen: Any, text: str, room: float) -> str:
    """Its beginning and its end, if there is no room for all."""
    fitting, kept = text, len(text) // 2
    while kept and pen.textlength(fitting, font=_font(13)) > room:
        kept -= 1
        fitting = f"{text[:kept].rstrip()} … {text[-kept:].lstrip()}"
    return fitting


@lru_cache(8)
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size * _FINE)


def _text_height(size: int) -> int:
    return math.ceil(1.2 * size * _FINE)


def growing() -> Tensor:
    """Return a scale from dark to light, for values on one side of zero."""
    return _color_scale(["#15171c", "#2b4a86", "#3f8f9c", "#9cc98a", "#f4efc4"], is_even=True)


def around_zero() -> Tensor:
    """Zero is dark; the further from it, the lighter, blue below and orange above."""
    return _color_scale(["#cfe3fb", _BELOW, "#15171c", _ABOVE, "#fbdccf"], is_even=False)


def _color_scale(names: list[str], *, is_even: bool) -> Tensor:
    """Return a color map as ``[256, 3]`` bytes. ``is_even`` makes lightness grow linearly."""
    known = _to_lab(torch.stack([_light(name) for name in names]))
    at = torch.linspace(0, len(names) - 1, _STEPS, dtype=torch.float64)
    low = at.long().clamp(max=len(names) - 2)
    found = torch.lerp(known[low], known[low + 1], (at - low)[:, None])
    if is_even:
        found[:, 0] = torch.linspace(
            known[0, 0].item(), known[-1, 0].item(), _STEPS, dtype=torch.float64
        )
    return _to_bytes(found)


def _light(name: str) -> Tensor:
    """``#rrggbb`` as amounts of light."""
    values = (
        torch.tensor([int(name[at : at + 2], 16) for at in (1, 3, 5)], dtype=torch.float64) / 255
    )
    return torch.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _to_lab(light: Tensor) -> Tensor:
    cones = light @ torch.tensor(_CONES, dtype=torch.float64).T
    return cones ** (1 / 3) @ torch.tensor(_AXES, dtype=torch.float64).T


def _to_bytes(lab: Tensor) -> Tensor:
    cones = (lab @ torch.tensor(_AXES, dtype=torch.float64).inverse().T) ** 3
    light = (cones @ torch.tensor(_CONES, dtype=torch.float64).inverse().T).clamp(0, 1)
    values = torch.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return (255 * values).round().to(torch.uint8)
