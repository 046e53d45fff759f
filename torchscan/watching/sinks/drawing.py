"""A canvas for texts, axes and images of a frame, drawn with Pillow."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from torchscan.watching.sinks.color_scales import scale_of_range

#: pixels per pixel of the frame while it is drawn, so that lines are smooth
FINE = 2
INK = "#e8e8e6"
SOFT = "#9ba0a8"
_GROUND = "#141517"
_PANEL = "#1b1d20"
_HAIR = "#2c2f34"
#: sizes of texts
TITLE, LABEL, NOTE, SMALL = 15, 13, 12, 11
#: distances of ticks and of levels, at least
_MIN_TICK = 56 * FINE
_MIN_LEVEL = 28 * FINE
#: height of the color scale below an image
_KEY_HEIGHT = 5 * FINE
#: width as a multiple of the height of boxes in a grid
_ASPECT = 1.5


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

    def divide(self, count: int) -> Iterator[Box]:
        """Yield equal boxes in a grid, a little wider than high."""
        ratio = count * self.width / self.height / _ASPECT
        num_columns = max(1, round(math.sqrt(ratio)))
        num_rows = max(1, math.ceil(count / num_columns))
        for number in range(count):
            row, column = divmod(number, num_columns)
            left = self.left + column * self.width // num_columns
            right = self.left + (column + 1) * self.width // num_columns
            top = self.top + row * self.height // num_rows
            bottom = self.top + (row + 1) * self.height // num_rows
            yield Box(left, top, right, bottom)


class Canvas:
    """An image to draw on."""

    def __init__(self, width: int, height: int) -> None:
        from PIL import Image, ImageDraw

        self._image = Image.new("RGB", (width, height), _GROUND)
        self._pen: Any = ImageDraw.Draw(self._image)

    def finish(self) -> Any:
        """Return the image in the size of the frame."""
        return self._image.reduce(FINE)

    def write(
        self, x: float, y: float, text: str, size: int, *, color: str = SOFT, anchor: str = "la"
    ) -> None:
        """Write a text; by default its left and upper ends are at the point."""
        self._pen.text((x, y), text, fill=color, font=_font(size), anchor=anchor)

    def width_of(self, text: str, size: int) -> float:
        """Return how wide a text is."""
        width: float = self._pen.textlength(text, font=_font(size))
        return width

    def fit(self, text: str, size: int, room: float) -> str:
        """Return a text, or its beginning and its end if there is no room for all."""
        fitting = text
        kept = len(text) // 2
        while kept and self.width_of(fitting, size) > room:
            kept -= 1
            start, end = text[:kept], text[-kept:]
            fitting = f"{start.rstrip()} … {end.lstrip()}"
        return fitting

    def draw_panel(self, box: Box) -> None:
        """Draw the ground of a series."""
        radius = 6 * FINE
        self._pen.rounded_rectangle(box, radius=radius, fill=_PANEL, outline=_HAIR, width=FINE)

    def draw_bar(self, corners: tuple[float, float, float, float], color: str) -> None:
        """Draw a filled rectangle."""
        self._pen.rectangle(corners, fill=color)

    def draw_curve(self, points: Tensor, color: str) -> None:
        """Draw a line through points."""
        if len(points) > 1:
            corners = [tuple(point) for point in points.tolist()]
            self._pen.line(corners, fill=color, width=3 * FINE // 2, joint="curve")

    def draw_ticks(self, area: Box, low: float, high: float) -> None:
        """Draw the horizontal axis below an area."""
        axis = (area.left, area.bottom, area.right, area.bottom)
        self._pen.line(axis, fill=_HAIR, width=FINE)
        max_ticks = max(2, area.width // _MIN_TICK)
        top = area.bottom + 3 * FINE
        for tick in _round_numbers(low, high, max_ticks):
            text = format_short(tick)
            half = self.width_of(text, SMALL) / 2
            x = area.left + (tick - low) / (high - low) * area.width
            x = min(max(x, area.left + half), area.right - half)
            self.write(x, top, text, SMALL, anchor="ma")

    def draw_levels(self, area: Box, low: float, high: float) -> None:
        """Draw horizontal lines at round values, with these to the left."""
        max_levels = max(2, area.height // _MIN_LEVEL)
        right = area.left - 6 * FINE
        for level in _round_numbers(low, high, max_levels):
            y = area.bottom - (level - low) / (high - low) * area.height
            self._pen.line((area.left, y, area.right, y), fill=_HAIR, width=FINE)
            self.write(right, y, format_short(level), SMALL, anchor="rm")

    def paste(self, picture: Any, left: int, top: int) -> None:
        """Draw an image."""
        self._image.paste(picture, (left, top))

    def draw_key(self, box: Box, low: float, high: float) -> None:
        """Draw the color scale."""
        scale = scale_of_range(low, high)
        bar = to_image(scale[None])
        self.paste(bar.resize((box.width, _KEY_HEIGHT)), box.left, box.top)
        area = box._replace(bottom=box.top + _KEY_HEIGHT)
        self.draw_ticks(area, low, high)


def to_image(colors: Tensor) -> Any:
    """Return an image of the bytes of red, green and blue, by row and column."""
    from PIL import Image

    height, width, _ = colors.shape
    address = colors.data_ptr()
    # At once: byte by byte would take seconds.
    content = ctypes.string_at(address, colors.numel())
    return Image.frombytes("RGB", (width, height), content)


def height_of_text(size: int) -> int:
    """Return the height of a line in pixels."""
    return math.ceil(1.2 * size * FINE)


def format_short(value: float) -> str:
    """Return a value with three digits."""
    return f"{value:.3g}" if value else "0"


@lru_cache(8)
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size * FINE)


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= least * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
