"""Values of a row of the page as it shows them: keys, names, shapes, settings and fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchscan.analyses.receptive_field import AxisField, LayerField
from torchscan.escapes import printable
from torchscan.report.columns import sizes
from torchscan.report.sentence_formats import name_call

#: characters that a page shows of a name or a setting
_MAX_LENGTH = 300
#: shapes that a page has of one call's inputs or outputs
MAX_SHAPES = 8
#: of windows that do not repeat, starts that a page has for an axis
_MAX_STARTS = 64


def key_of(path: str, call: int) -> str:
    """Return the key of a call, which the page's address contains: ``"relu@2"`` is the second."""
    return printable(path) + (f"@{call + 1}" if call else "")


def label_of(path: str, call: int) -> str:
    """Return the label of a call: ``"relu (2)"`` is the second."""
    return name_call(printable(path), call)


def truncate_text(text: str) -> str:
    """Shorten a text to the length that a page shows."""
    shown = printable(text)
    return shown if len(shown) <= _MAX_LENGTH else f"{shown[:_MAX_LENGTH]}…"


def rounded(value: float) -> float:
    """Return a value with as many digits as a plot shows."""
    return float(f"{value:.4g}")


def shapes_of(shapes: Any) -> list[str]:
    """Return the shapes of a call's inputs or outputs, of which there may be one or several."""
    if shapes is None:
        return []
    several = shapes if shapes and isinstance(shapes[0], list) else [shapes]
    return [sizes(each) for each in several[:MAX_SHAPES]]


def sides_of(field: Any) -> Iterator[float | str]:
    """Yield the sides of a receptive field, of all inputs: numbers, or "global"."""
    if isinstance(field, dict):
        field = list(field.values())
    if isinstance(field, list):
        for each in field:
            yield from sides_of(each)
    elif field is not None:
        yield field


def seen_by(layer: LayerField) -> dict[str, dict[str, Any]] | None:
    """Return the fields that units see of an image, by axis, or None if they cannot be drawn."""
    local = [axis for axis in layer.axes if axis.status == "local"]
    if len(local) != 2:
        return None
    down, right = local
    if down.input != right.input:
        return None
    if down.dim is None or right.dim is None or down.dim >= right.dim:
        return None  # flattened, or turned
    if any(axis.units is None or not 0 < len(axis.starts) <= _MAX_STARTS for axis in local):
        return None
    return {"y": _axis_data(down), "x": _axis_data(right)}


def _axis_data(axis: AxisField) -> dict[str, Any]:
    return {
        "units": axis.units,
        "length": axis.length,
        "starts": axis.starts,
        "rise": axis.rise,
        "sizes": axis.sizes,
        "inside": axis.inside,
    }


def parse_settings(settings: str) -> list[tuple[str, str]]:
    """Split ``"3, 64, kernel_size=(7, 7)"`` into settings by name. Unnamed ones come first."""
    parts, depth, start = [], 0, 0
    for index, sign in enumerate(settings):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth = max(0, depth - 1)
        elif sign == "," and depth == 0:
            parts.append(settings[start:index])
            start = index + 1
    parts.append(settings[start:])

    unnamed, named = [], []
    for part in filter(None, map(str.strip, parts)):
        name, sign, value = part.partition("=")
        if sign:
            named.append((name, value))
        else:
            unnamed.append(name)
    if unnamed:
        named.insert(0, ("", ", ".join(unnamed)))
    return named
