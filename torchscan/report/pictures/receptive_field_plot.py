"""Plot of the part of an input that a unit sees."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from torchscan.analyses.receptive_field import AxisField, LayerField, ReceptiveField
from torchscan.errors import Argument, InputError
from torchscan.report.pictures.style import Size, drawing, escape_name, inks_of
from torchscan.report.pictures.unit_field import UnitField, are_tokens, layers_to_draw
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import PathPatch

#: characters, for one of three plots beside each other
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
    """Draw which part of an input a unit of a layer sees, or nested parts for several layers.

    What is seen along local ways is framed, also where it reaches beyond the border, into the
    padding; what is around it is dimmed. Where everything is seen, all is tinted and the title says
    why.

    Args:
        layer: of ``torchscan.receptive_field(model, …)["layer4"]``; several of them; or the whole
            result, whose outer layers are drawn.
        unit: its place in the layer's output, one number per axis that is drawn, or one number
            where a dimension of the output holds the places along both, as tokens do; by default
            in the middle.
        image: as high and wide as the input: an array or tensor of (height, width), (height, width,
            colors) or (colors, height, width), a PIL image. By default the area is left blank.
        name: of the input that is drawn; by default the first that is seen.
        dims: which two of its dimensions are drawn downwards and to the right, or which one to the
            right; by default the last two.
        ax: where to draw; by default in a new figure.
        size: that of a new figure: for a "screen", or for a paper of two columns, the width of a
            "column" or of the "page".

    """
    layers = layers_to_draw(layer)
    if len(layers) > 1 and unit is not None:
        raise InputError(
            Argument("unit"), " is of one layer: draw one, field['layer4'], for example"
        )
    fields = [UnitField.of(each, unit, name, dims) for each in layers]
    height, width = fields[0].input
    with drawing(ax, size) as ax:
        _show_image(ax, image, height, width)
        if len(fields) == 1:
            _draw_one(ax, fields[0], is_on_image=image is not None)
            title = _describe_unit(layers[0], fields[0])
            ax.set_title(escape_name(title), fontsize="medium")
        else:
            _draw_nested(ax, layers, fields)
        _include_padding(ax, fields, height, width)
    return ax


def draw_fields(
    fields: ReceptiveField,
    layers: Sequence[LayerField] | None = None,
    image: Any = None,
    **options: Any,
) -> Axes:
    """Draw the fields of several layers, nested; by default of the outer layers."""
    return draw_receptive_field(fields if layers is None else layers, None, image, **options)


def _show_image(ax: Axes, image: Any, height: int, width: int) -> None:
    """Show the input; pixel (y, x) is the square from (x, y) to (x + 1, y + 1)."""
    if image is not None:
        pixels = _to_pixels(image, height, width)
        aspect: Literal["equal", "auto"] = "equal" if height > 1 else "auto"
        try:
            ax.imshow(pixels, extent=(0, width, height, 0), aspect=aspect)
        except (TypeError, ValueError) as error:
            raise InputError(
                Argument("image"),
                f" is a {type(image).__name__}: give an array, a tensor or a PIL image",
            ) from error
    ax.set_facecolor(inks_of(ax).panel)
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    if height > 1:
        ax.set_aspect("equal")
    else:
        ax.set_yticks([])


def _to_pixels(image: Any, height: int, width: int) -> Any:
    """Return an image with colors as its last dimension, or raise an error for another size."""
    pixels = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
    shape = tuple(getattr(pixels, "shape", (height, width)))
    if len(shape) == 3 and shape[1:] == (height, width):
        pixels, shape = pixels.transpose(1, 2, 0), (height, width)
    if shape[:2] != (height, width):
        raise InputError(
            Argument("image"),
            f" has shape {shape}: give one that is {height} high and {width} wide, as the input is",
        )
    return pixels


def _draw_one(ax: Axes, field: UnitField, *, is_on_image: bool) -> None:
    """Draw a frame, and dim what is around it on an image, or shade it without one."""
    from matplotlib.patches import Rectangle

    height, width = field.input
    color = inks_of(ax).colours["compute"]
    if field.is_global:
        ax.add_patch(Rectangle((0, 0), width, height, facecolor=color, alpha=0.12, label="global"))
    if not field.wide or not field.tall:
        return
    if is_on_image and not field.is_global:
        ax.add_patch(_rest_of_input(field, height, width))
    frame = Rectangle((field.left, field.top), field.wide, field.tall, edgecolor=color, linewidth=2)
    frame.set_label("receptive field")
    frame.set_facecolor("none" if is_on_image else f"{color}30")
    ax.add_patch(frame)


def _rest_of_input(field: UnitField, height: int, width: int) -> PathPatch:
    """Return the input with a hole where the unit sees it."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right = max(field.left, 0), min(field.left + field.wide, width)
    top, bottom = max(field.top, 0), min(field.top + field.tall, height)
    outer = [(0, 0), (width, 0), (width, height), (0, height), (0, 0)]
    inner = [(left, top), (left, bottom), (right, bottom), (right, top), (left, top)]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY]
    path = Path([*outer, *inner], [*codes, *codes])
    return PathPatch(path, facecolor="white", alpha=0.6, linewidth=0)


def _draw_nested(ax: Axes, layers: Sequence[LayerField], fields: Sequence[UnitField]) -> None:
    """Draw the widest field first, and beside the fields a legend from the innermost outwards."""
    from matplotlib.patches import Rectangle

    colors = inks_of(ax).colours
    shades = _shades(colors["memory"], colors["compute"], len(layers))
    for layer, field, shade in reversed(list(zip(layers, fields, shades, strict=True))):
        corner = field.left, field.top
        frame = Rectangle(corner, field.wide, field.tall, edgecolor=shade, linewidth=2)
        frame.set_facecolor(f"{shade}28")
        layer_name = layer.path or layer.type_name
        frame.set_label(escape_name(f"{layer_name}  {_format_sizes(field.axes)}"))
        ax.add_patch(frame)
    handles, labels = ax.get_legend_handles_labels()
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "borderaxespad": 0.0}
    ax.legend(handles[::-1], labels[::-1], **place)


def _shades(inner: str, outer: str, count: int) -> list[str]:
    """Return colors in even steps from the innermost to the outermost."""
    ends = [bytes.fromhex(color.removeprefix("#")) for color in (inner, outer)]
    shades = []
    for number in range(count):
        share = number / max(count - 1, 1)
        mixed = [round(one + share * (other - one)) for one, other in zip(*ends, strict=True)]
        shades.append(f"#{bytes(mixed).hex()}")
    return shades


def _include_padding(ax: Axes, fields: Sequence[UnitField], height: int, width: int) -> None:
    """Widen the limits to fields that reach beyond the input, which then has a frame."""
    from matplotlib.patches import Rectangle

    framed = [field for field in fields if field.wide and field.tall]
    left = min([0, *(field.left for field in framed)])
    right = max([width, *(field.left + field.wide for field in framed)])
    top = min([0, *(field.top for field in framed)])
    bottom = max([height, *(field.top + field.tall for field in framed)])
    if (left, right, top, bottom) == (0, width, 0, height):
        return
    frame = Rectangle((0, 0), width, height, fill=False, linestyle=":", label="input")
    frame.set_edgecolor(inks_of(ax).soft)
    ax.add_patch(frame)
    margin = (right - left) / 50
    ax.set_xlim(left - margin, right + margin)
    ax.set_ylim(bottom + margin, top - margin)


def _describe_unit(layer: LayerField, field: UnitField) -> str:
    """Return what the unit sees and, if that is the entire input, by which operators."""
    axes = field.axes
    unit: object = tuple(field.places)
    if len(field.places) == 1 or are_tokens(axes):
        unit = field.places[0]
    title = f"unit {unit} of {layer.path or layer.type_name}: {_format_sizes(axes)}"
    reasons = [reason for axis in axes for reason in axis.reasons]
    if not reasons:
        return title
    ways = dict.fromkeys(f"{each.operator} in {each.path or 'the model'}" for each in reasons)
    lines = textwrap.wrap(f"and the entire input by {', '.join(ways)}", _TITLE_WIDTH)
    return "\n".join([title, *lines])


def _format_sizes(axes: Sequence[AxisField]) -> str:
    sizes = [axis.size for axis in axes]
    return "×".join("–" if size is None else str(size) for size in sizes)
