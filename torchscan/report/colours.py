"""Colors shared by terminal output, plots and HTML reports.

The colour-blind can tell them apart, and none stands alone: a word or a place says the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

#: on light ground
COLOURS: Mapping[str, str] = {
    "compute": "#d1603d",
    "memory": "#2f74c0",
    "cache": "#5fb3b3",
    "launch": "#9a9da3",
    "links": "#8e6bb8",
    "parameters": "#4c78a8",
    "optimizer": "#7b6bb0",
    "gradients": "#e1812c",
    "activations": "#67a868",
    "temporary": "#d1605e",
    "inputs": "#8c6d31",
    "buffers": "#9ecae9",
    "gathered": "#b279a2",
}
#: on dark ground
DARK_COLOURS: Mapping[str, str] = {
    **COLOURS,
    "compute": "#e8825f",
    "memory": "#5fa0ea",
    "cache": "#74c7c7",
    "launch": "#777b82",
    "links": "#a98ad0",
    "parameters": "#6d97c6",
    "optimizer": "#9384cc",
    "gradients": "#e59a52",
    "activations": "#5d9c60",
}
Weight = Literal["bold", "faint"]
_WEIGHTS: Mapping[Weight, int] = {"bold": 1, "faint": 2}


def in_weight(text: str, weight: Weight) -> str:
    """Return a text in this weight, for a terminal."""
    if not text.strip():
        return text
    return f"\x1b[{_WEIGHTS[weight]}m{text}\x1b[0m"


def in_colour(text: str, name: str, ground: str | None = None) -> str:
    """Return a text in a color, for a terminal, perhaps on a ground of another color."""
    codes = f"38;{_code(name)}"
    if ground is not None:
        codes += f";48;{_code(ground)}"
    return f"\x1b[{codes}m{text}\x1b[0m"


def _code(name: str) -> str:
    """Return the code of the color, or of a similar one if the terminal may lack some colors."""
    levels = bytes.fromhex(COLOURS[name].removeprefix("#"))
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        red, green, blue = levels
        return f"2;{red};{green};{blue}"
    code = 0
    for level in levels:
        step = 0  # the six steps are 0, 95, 135, … 255
        if level >= 48:
            step = max(round((level - 55) / 40), 1)
        code = 6 * code + step
    return f"5;{16 + code}"
