"""Pictures of receptive fields."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchscan.analyses.receptive_field import AxisField, LayerField
from torchscan.errors import InputError
from torchscan.report.pyplot import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOUR = "#d62728"
#: characters, for one of three pictures beside each other
_TITLE_WIDTH = 48


def draw_receptive_field(
    layer: LayerField,
    unit: Sequence[int] | int | None = None,
    picture: Any = None,
    *,
    name: str | None = None,
    dims: Sequence[int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw which part of an input one unit of a layer sees, over a picture of that input.

    What is seen along local ways is framed, also where it reaches beyond the border, into the padding. Where everything is
    seen, all is tinted and the title says why.

    Args:
        layer: of ``torchscan.receptive_field(model, …)["layer4"]``.
        unit: its place in the layer's output, one number per axis that is drawn, or one number where a dimension of the output
            holds the places along both, as tokens do; by default in the middle.
        picture: as high and wide as the input: an array or tensor of (height, width), (height, width, colours) or (colours,
            height, width), a PIL image. By default the area is left blank.
        name: of the input that is drawn; by default the first that is seen.
        dims: which two of its dimensions are drawn downwards and to the right, or which one to the right; by default the last
            two.
        ax: where to draw; by default in a new figure.

    """
    if not isinstance(layer, LayerField):
        raise InputError(f"this is the field of {type(layer).__name__}: choose a layer of it, field['layer4'] or field.output")
    axes = _axes_drawn(layer, name, dims)
    places = _places(axes, unit)
    if ax is None:
        ax = pyplot().subplots()[1]
    height, width = (axes[0].length if len(axes) == 2 else 1), axes[-1].length
    _show(ax, picture, height, width)
    top, tall = _span(axes[0], places[0]) if len(axes) == 2 else (0, 1)
    left, wide = _span(axes[-1], places[-1])
    _frame(ax, left, top, wide, tall, axes)
    ax.set_title(_title(layer, places, axes), fontsize="medium")
    return ax


def _axes_drawn(layer: LayerField, name: str | None, dims: Sequence[int] | None) -> list[AxisField]:
    """One or two axes of one input."""
    seen = [axis for axis in layer.axes if axis.status != "none"]
    known = list(dict.fromkeys(axis.input for axis in seen))
    if not known:
        raise InputError(f"{layer.path or 'the model'} sees no axis of any input: there is nothing to draw")
    if name is not None and name not in known:
        raise InputError(f"{layer.path or 'the model'} sees no input {name!r}: it sees {', '.join(known)}")
    of_input = {axis.axis: axis for axis in seen if axis.input == (name or known[0])}
    wanted = list(of_input)[-2:] if dims is None else list(dims)
    if not 1 <= len(wanted) <= 2 or not of_input.keys() >= set(wanted):
        raise InputError(f"dims is {dims}: name one or two of the dimensions {', '.join(map(str, of_input))}")
    return [of_input[dim] for dim in wanted]


def _places(axes: Sequence[AxisField], unit: Sequence[int] | int | None) -> list[int]:
    """The unit's place along each axis: one for all where a dimension of tokens holds them, and 0 where there is but one."""
    are_tokens = _are_tokens(axes)
    counts = [axis.units or 1 for axis in (axes[:1] if are_tokens else axes)]
    given = [count // 2 for count in counts] if unit is None else [unit] if isinstance(unit, int) else list(unit)
    if len(given) != len(counts):
        raise InputError(f"unit is {unit}: give as many numbers as dimensions of the output are drawn, {len(counts)}")
    for place, count in zip(given, counts, strict=True):
        if not isinstance(place, int) or not 0 <= place < count:
            raise InputError(f"unit is {unit}: {place} is none of the {count} units, which count from 0")
    return given * len(axes) if are_tokens else given


def _are_tokens(axes: Sequence[AxisField]) -> bool:
    """Whether one dimension of the output follows both axes."""
    return len(axes) > 1 and axes[0].dim is not None and axes[0].dim == axes[1].dim


def _span(axis: AxisField, place: int) -> tuple[int, int]:
    """From where, and how much; nothing where there is no local way."""
    interval = axis.interval(place)
    if interval is None and axis.size is not None and not axis.starts:
        raise InputError(
            f"the units of dimension {axis.axis} lie along more than one dimension of the output: they are not drawn"
        )
    return (0, 0) if interval is None else (interval[0], interval[1] - interval[0] + 1)


def _show(ax: Axes, picture: Any, height: int, width: int) -> None:
    """Pixel (y, x) is the square from (x, y) to (x + 1, y + 1)."""
    if picture is not None:
        ax.imshow(
            _pixels(picture, height, width),
            extent=(0, width, height, 0),
            aspect="equal" if height > 1 else "auto",
        )
    ax.set_facecolor("#f4f4f4")
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    if height > 1:
        ax.set_aspect("equal")
    else:
        ax.set_yticks([])


def _pixels(picture: Any, height: int, width: int) -> Any:
    """Colours last."""
    pixels = picture.detach().cpu().numpy() if isinstance(picture, Tensor) else picture
    shape = tuple(getattr(pixels, "shape", (height, width)))
    if len(shape) == 3 and shape[1:] == (height, width):
        pixels, shape = pixels.transpose(1, 2, 0), (height, width)
    if shape[:2] != (height, width):
        raise InputError(f"the picture has shape {shape}, but what is drawn of the input is {height} high and {width} wide")
    return pixels


def _frame(ax: Axes, left: int, top: int, wide: int, tall: int, axes: Sequence[AxisField]) -> None:
    from matplotlib.patches import Rectangle

    height, width = (axes[0].length if len(axes) == 2 else 1), axes[-1].length
    if any(axis.status == "global" for axis in axes):
        ax.add_patch(Rectangle((0, 0), width, height, facecolor=_COLOUR, alpha=0.12, label="seen as a whole"))
    if not wide or not tall:
        return
    ax.add_patch(Rectangle((left, top), wide, tall, fill=False, edgecolor=_COLOUR, linewidth=2, label="receptive field"))
    reach = (min(left, 0), max(left + wide, width), min(top, 0), max(top + tall, height))
    if reach != (0, width, 0, height):  # into the padding, beyond the input's own frame
        ax.add_patch(Rectangle((0, 0), width, height, fill=False, edgecolor="0.4", linestyle=":", label="input"))
        room = (reach[1] - reach[0]) / 50
        ax.set_xlim(reach[0] - room, reach[1] + room)
        ax.set_ylim(reach[3] + room, reach[2] - room)


def _title(layer: LayerField, places: Sequence[int], axes: Sequence[AxisField]) -> str:
    unit = places[0] if len(places) == 1 or _are_tokens(axes) else tuple(places)
    sizes = "×".join("–" if axis.size is None else str(axis.size) for axis in axes)
    reasons = dict.fromkeys(f"{each.operator} in {each.path or 'the model'}" for axis in axes for each in axis.reasons)
    seen = f"unit {unit} of {layer.path or layer.type_name}: {sizes}"
    return "\n".join([seen, *textwrap.wrap(f"and everything by {', '.join(reasons)}", _TITLE_WIDTH)]) if reasons else seen
