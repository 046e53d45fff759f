"""Colours of pictures: scales on which equal steps look equal, made in OKLab."""

from __future__ import annotations

import torch
from torch import Tensor

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


def growing() -> Tensor:
    """From dark to light: for values on one side of zero."""
    return _scale(["#15171c", "#2b4a86", "#3f8f9c", "#9cc98a", "#f4efc4"], is_even=True)


def around_zero() -> Tensor:
    """Zero is dark; the further from it, the lighter, blue below and orange above."""
    return _scale(["#cfe3fb", _BELOW, "#15171c", _ABOVE, "#fbdccf"], is_even=False)


def _scale(names: list[str], *, is_even: bool) -> Tensor:
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
