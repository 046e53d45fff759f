"""Color scales of images in videos, whose lightness grows evenly in OKLab."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

#: on one side of zero, from small to large
_COLORS = ("#15171c", "#2b4a86", "#3f8f9c", "#9cc98a", "#f4efc4")
#: from the lowest to the highest, with zero in the middle
_COLORS_AROUND_ZERO = ("#cfe3fb", "#5fa0ea", "#15171c", "#e8825f", "#fbdccf")
_NUM_COLORS = 256
#: gray, for NaN
_NO_COLOR = 128
#: from light in a linear space to what cones answer
_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
#: from the cube roots of these to lightness and two axes of color
_AXES = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def scale_of_range(low: float, high: float) -> Tensor:
    """Return the color scale for values from ``low`` to ``high``."""
    return _scale_of_signs(low < 0 < high)


@lru_cache(2)
def _scale_of_signs(has_both: bool) -> Tensor:
    return around_zero() if has_both else growing()


def paint(values: Tensor, low: float, high: float) -> Tensor:
    """Return the color of each value as three bytes in a last dimension, gray for NaN."""
    scale = scale_of_range(low, high)
    positions = (values.double() - low) / (high - low) * 255
    indices = positions.clamp(0, 255).nan_to_num(0).round().long()
    painted = scale[indices]
    is_nan = values.isnan()
    painted[is_nan] = _NO_COLOR
    return painted


def growing() -> Tensor:
    """Return a scale from dark to light, for values on one side of zero."""
    return _color_scale(_COLORS, is_even=True)


def around_zero() -> Tensor:
    """Return a scale in which zero is dark, blue below and orange above, lighter further away."""
    return _color_scale(_COLORS_AROUND_ZERO, is_even=False)


def _color_scale(names: tuple[str, ...], *, is_even: bool) -> Tensor:
    """Return a color map as ``[256, 3]`` bytes. ``is_even`` makes lightness grow linearly."""
    light = torch.stack([to_light(name) for name in names])
    known = to_lab(light)
    last = len(names) - 1
    at = torch.linspace(0, last, _NUM_COLORS, dtype=torch.float64)
    low = at.long().clamp(max=last - 1)
    weights = at - low
    found = torch.lerp(known[low], known[low + 1], weights[:, None])
    if is_even:
        darkest, lightest = known[0, 0].item(), known[-1, 0].item()
        found[:, 0] = torch.linspace(darkest, lightest, _NUM_COLORS, dtype=torch.float64)
    return _to_bytes(found)


def to_light(name: str) -> Tensor:
    """Return the amounts of light of a color ``#rrggbb``."""
    parts = [int(name[at : at + 2], 16) for at in (1, 3, 5)]
    values = torch.tensor(parts, dtype=torch.float64) / 255
    curved = ((values + 0.055) / 1.055) ** 2.4
    return torch.where(values <= 0.04045, values / 12.92, curved)


def to_lab(light: Tensor) -> Tensor:
    """Return lightness and the two axes of color in OKLab."""
    to_cones = torch.tensor(_CONES, dtype=torch.float64)
    to_axes = torch.tensor(_AXES, dtype=torch.float64)
    cones = light @ to_cones.T
    return cones ** (1 / 3) @ to_axes.T


def _to_bytes(lab: Tensor) -> Tensor:
    """Return the bytes of red, green and blue."""
    to_cones = torch.tensor(_CONES, dtype=torch.float64)
    to_axes = torch.tensor(_AXES, dtype=torch.float64)
    roots = lab @ to_axes.inverse().T
    light = roots**3 @ to_cones.inverse().T
    light = light.clamp(0, 1)
    curved = 1.055 * light ** (1 / 2.4) - 0.055
    values = torch.where(light <= 0.0031308, 12.92 * light, curved)
    return (255 * values).round().to(torch.uint8)
