"""Pictures of receptive fields."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor

from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.errors import Argument, InputError
from torchscan.report.pictures.style import Size, drawing, escape_name, inks_of
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import PathPatch

#: of nested fields, at most
_MAX_NESTED = 7
#: characters, for one of three pictures beside each other
_TITLE_WIDTH = 48


@explain_wrong_types
def draw_receptive_field(
    layer: LayerField | ReceptiveField | Sequence[LayerField],
    unit: Sequence[int] | int | None = None,
    image: Any = None,
    *,
    name: str | None = None,
    dims: Sequence[int] | None = None,
    ax: Axes | None = None,
    size: Size = "screen",
) -> Axes:
    """Draw which part of an input one unit of a layer sees, over a picture of that input, or of several layers, nested.

    What is seen along local ways is framed, also where it reaches beyond the border, into the padding; what is around it is
    dimmed. Where everything is seen, all is tinted and the title says why.

    Args:
        layer: of ``torchscan.receptive_field(model, …)["layer4"]``; several of them; or the whole result, whose outer layers
            are drawn.
        unit: its place in the layer's output, one number per axis that is drawn, or one number where a dimension of the output
            holds the places along both, as tokens do; by default in the middle.
        image: as high and wide as the input: an array or tensor of (height, width), (height, width, colours) or (colours,
            height, width), a PIL image. By default the area is left blank.
        name: of the input that is drawn; by default the first that is seen.
        dims: which two of its dimensions are drawn downwards and to the right, or which one to the right; by default the last
            two.
        ax: where to draw; by default in a new figure.
        size: of that: for a "screen", or for a paper of two columns, the width of a "column" or of the "page".

    """
    layers = _chosen(layer)
    if len(layers) > 1 and unit is not None:
        raise InputError(
            Argument("unit"), " is of one layer: draw one, field['layer4'], for example"
        )
    seen = [_seen(each, unit, name, dims) for each in layers]
    height, width = seen[0].input
    with drawing(ax, size) as ax:
        _show(ax, image, height, width)
        if len(seen) == 1:
            _draw_one(ax, seen[0], is_on_picture=image is not None)
            title = _title(layers[0], seen[0].places, seen[0].axes)
            ax.set_title(escape_name(title), fontsize="medium")
        else:
            _draw_nested(ax, layers, seen)
        _show_all(ax, seen, height, width)
    return ax


def draw_fields(
    fields: ReceptiveField,
    layers: Sequence[LayerField] | None = None,
    image: Any = None,
    **options: Any,
) -> Axes:
    """Draw the fields of several layers, nested; by default of the outer layers."""
    return draw_receptive_field(fields if layers is None else layers, None, image, **options)


class _Seen(NamedTuple):
    """The field that one unit sees of an input."""

    axes: Sequence[AxisField]
    places: Sequence[int]
    left: int
    top: int
    wide: int
    tall: int

    @property
    def input(self) -> tuple[int, int]:
        """Its height and width."""
        return (self.axes[0].length if len(self.axes) == 2 else 1), self.axes[-1].length

    @property
    def is_global(self) -> bool:
        """True if the unit sees the complete input."""
        return any(axis.status == "global" for axis in self.axes)


def _seen(
    layer: LayerField,
    unit: Sequence[int] | int | None,
    name: str | None,
    dims: Sequence[int] | None,
) -> _Seen:
    axes = _axes_drawn(layer, name, dims)
    places = _places(axes, unit)
    top, tall = _span(axes[0], places[0]) if len(axes) == 2 else (0, 1)
    left, wide = _span(axes[-1], places[-1])
    return _Seen(axes, places, left, top, wide, tall)


def _chosen(given: LayerField | ReceptiveField | Sequence[LayerField]) -> list[LayerField]:
    if isinstance(given, LayerField):
        return [given]
    layers = (
        _outer(given)
        if isinstance(given, ReceptiveField)
        else list(given)
        if isinstance(given, Sequence)
        else []
    )
    if not layers or not all(isinstance(layer, LayerField) for layer in layers):
        raise InputError(
            f"{type(given).__name__} is the receptive field of a model: draw one layer of it, "
            "field['layer4'] or field.output"
        )
    return layers


def _outer(fields: ReceptiveField) -> list[LayerField]:
    """The layers that the model itself calls, as long as they see parts of the input and each more than the one before."""
    found: list[LayerField] = []
    for layer in fields:
        sizes = [axis.size for axis in layer.axes if axis.status == "local"]
        if (
            "." in layer.path
            or not layer.path
            or not sizes
            or any(axis.status == "global" for axis in layer.axes)
        ):
            continue
        if not found or sizes > [axis.size for axis in found[-1].axes if axis.status == "local"]:
            found.append(layer)
    return found[-_MAX_NESTED:] or [fields.output]


def _axes_drawn(layer: LayerField, name: str | None, dims: Sequence[int] | None) -> list[AxisField]:
    """One or two axes of one input."""
    seen = [axis for axis in layer.axes if axis.status != "none"]
    known = list(dict.fromkeys(axis.input for axis in seen))
    if not known:
        raise InputError(
            f"there is nothing to draw: {layer.path or 'the model'} sees no axis of any input"
        )
    if name is not None and name not in known:
        raise InputError(
            f"{layer.path or 'the model'} does not see the input {name!r}: choose from "
            f"{', '.join(known)}"
        )
    of_input = {axis.axis: axis for axis in seen if axis.input == (name or known[0])}
    wanted = list(of_input)[-2:] if dims is None else list(dims)
    if not 1 <= len(wanted) <= 2 or not of_input.keys() >= set(wanted):
        raise InputError(
            Argument("dims"),
            f" is {dims}: give one or two of the dimensions {', '.join(map(str, of_input))}",
        )
    return [of_input[dim] for dim in wanted]


def _places(axes: Sequence[AxisField], unit: Sequence[int] | int | None) -> list[int]:
    """The unit's place along each axis: one for all where a dimension of tokens holds them, and 0 where there is but one."""
    are_tokens = _are_tokens(axes)
    counts = [axis.units or 1 for axis in (axes[:1] if are_tokens else axes)]
    given = (
        [count // 2 for count in counts]
        if unit is None
        else [unit]
        if isinstance(unit, int)
        else list(unit)
    )
    if len(given) != len(counts):
        raise InputError(
            Argument("unit"),
            f" is {unit}: give {len(counts)} numbers, one for each dimension of the output that "
            "is drawn",
        )
    for place, count in zip(given, counts, strict=True):
        if not isinstance(place, int) or not 0 <= place < count:
            raise InputError(
                Argument("unit"), f" is {unit}, and {place} is out of range: give 0 to {count - 1}"
            )
    return given * len(axes) if are_tokens else given


def _are_tokens(axes: Sequence[AxisField]) -> bool:
    """Return whether one dimension of the output follows both axes."""
    return len(axes) > 1 and axes[0].dim is not None and axes[0].dim == axes[1].dim


def _span(axis: AxisField, place: int) -> tuple[int, int]:
    """From where, and how much; nothing where there is no local way."""
    interval = axis.interval(place)
    if interval is None and axis.size is not None and not axis.starts:
        raise InputError(
            f"the units of dimension {axis.axis} lie along several dimensions of the output, and "
            "such units cannot be drawn: draw another dimension"
        )
    return (0, 0) if interval is None else (interval[0], interval[1] - interval[0] + 1)


def _show(ax: Axes, picture: Any, height: int, width: int) -> None:
    """Pixel (y, x) is the square from (x, y) to (x + 1, y + 1)."""
    if picture is not None:
        pixels = _pixels(picture, height, width)
        aspect: Literal["equal", "auto"] = "equal" if height > 1 else "auto"
        try:
            ax.imshow(pixels, extent=(0, width, height, 0), aspect=aspect)
        except (TypeError, ValueError) as error:
            raise InputError(
                Argument("image"),
                f" is a {type(picture).__name__}: give an array, a tensor or a PIL image",
            ) from error
    ax.set_facecolor(inks_of(ax).panel)
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
        raise InputError(
            Argument("image"),
            f" has shape {shape}: give one that is {height} high and {width} wide, as the input is",
        )
    return pixels


def _draw_one(ax: Axes, seen: _Seen, *, is_on_picture: bool) -> None:
    """Framed, with what is around it dimmed, or, where there is no picture, itself shaded."""
    from matplotlib.patches import Rectangle

    (height, width), colour = seen.input, inks_of(ax).colours["compute"]
    if seen.is_global:
        ax.add_patch(Rectangle((0, 0), width, height, facecolor=colour, alpha=0.12, label="global"))
    if not seen.wide or not seen.tall:
        return
    if is_on_picture and not seen.is_global:
        ax.add_patch(_rest_of_input(seen, height, width))
    frame = Rectangle(
        (seen.left, seen.top),
        seen.wide,
        seen.tall,
        edgecolor=colour,
        linewidth=2,
        label="receptive field",
    )
    frame.set_facecolor("none" if is_on_picture else f"{colour}30")
    ax.add_patch(frame)


def _rest_of_input(seen: _Seen, height: int, width: int) -> PathPatch:
    """The rest of the input."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right = max(seen.left, 0), min(seen.left + seen.wide, width)
    top, bottom = max(seen.top, 0), min(seen.top + seen.tall, height)
    outer = [(0, 0), (width, 0), (width, height), (0, height), (0, 0)]
    inner = [(left, top), (left, bottom), (right, bottom), (right, top), (left, top)]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY]
    return PathPatch(
        Path([*outer, *inner], [*codes, *codes]), facecolor="white", alpha=0.6, linewidth=0
    )


def _draw_nested(ax: Axes, layers: Sequence[LayerField], seen: Sequence[_Seen]) -> None:
    """The widest first, and beside them the way through the layers."""
    from matplotlib.patches import Rectangle

    colours = inks_of(ax).colours
    shades = _shades(colours["memory"], colours["compute"], len(layers))
    for layer, each, shade in reversed(list(zip(layers, seen, shades, strict=True))):
        sizes = "×".join("–" if axis.size is None else str(axis.size) for axis in each.axes)
        frame = Rectangle(
            (each.left, each.top),
            each.wide,
            each.tall,
            edgecolor=shade,
            linewidth=2,
            facecolor=f"{shade}28",
        )
        frame.set_label(escape_name(f"{layer.path or layer.type_name}  {sizes}"))
        ax.add_patch(frame)
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0
    )


def _shades(inner: str, outer: str, count: int) -> list[str]:
    """From the innermost to the outermost, in even steps."""
    ends = [[int(end[at : at + 2], 16) for at in (1, 3, 5)] for end in (inner, outer)]
    shares = [number / max(count - 1, 1) for number in range(count)]
    mixed = (
        [round(one + share * (other - one)) for one, other in zip(*ends, strict=True)]
        for share in shares
    )
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in mixed]


def _show_all(ax: Axes, seen: Sequence[_Seen], height: int, width: int) -> None:
    """Also what lies in the padding, beyond the input's own frame."""
    from matplotlib.patches import Rectangle

    framed = [each for each in seen if each.wide and each.tall]
    left, right = (
        min([0, *(each.left for each in framed)]),
        max([width, *(each.left + each.wide for each in framed)]),
    )
    top, bottom = (
        min([0, *(each.top for each in framed)]),
        max([height, *(each.top + each.tall for each in framed)]),
    )
    if (left, right, top, bottom) != (0, width, 0, height):
        ax.add_patch(
            Rectangle(
                (0, 0),
                width,
                height,
                fill=False,
                edgecolor=inks_of(ax).soft,
                linestyle=":",
                label="input",
            )
        )
        room = (right - left) / 50
        ax.set_xlim(left - room, right + room)
        ax.set_ylim(bottom + room, top - room)


def _title(layer: LayerField, places: Sequence[int], axes: Sequence[AxisField]) -> str:
    unit = places[0] if len(places) == 1 or _are_tokens(axes) else tuple(places)
    sizes = "×".join("–" if axis.size is None else str(axis.size) for axis in axes)
    reasons = dict.fromkeys(
        f"{each.operator} in {each.path or 'the model'}" for axis in axes for each in axis.reasons
    )
    seen = f"unit {unit} of {layer.path or layer.type_name}: {sizes}"
    return (
        "\n".join(
            [seen, *textwrap.wrap(f"and the entire input by {', '.join(reasons)}", _TITLE_WIDTH)]
        )
        if reasons
        else seen
    )
