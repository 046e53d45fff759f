"""Module graphs as self-contained SVG pictures, for papers and pages."""

from __future__ import annotations

import html
from collections.abc import Sequence

from torchscan.analyses.module_graph import GraphNode, ModuleGraph
from torchscan.escapes import printable
from torchscan.report.colours import COLOURS
from torchscan.report.graphs.layout import Point, Size, lay_out
from torchscan.report.graphs.words import below_name, name_of
from torchscan.report.html import page_file
from torchscan.wrong_arguments import explain_wrong_types

_INK, _SOFT, _LINE, _PANEL, _WRONG = "#1c1d1f", "#62666d", "#b9bcc2", "#ffffff", "#b3261e"
#: color of the mark at the left of a box
_MARKS = {
    "module": COLOURS["memory"],
    "operator": COLOURS["compute"],
    "tensor": COLOURS["parameters"],
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_TALL, _SMALL, _MIN_WIDTH, _PADDING, _MARGIN = 36.0, 22.0, 72.0, 12.0, 12.0
#: width of a character, at most: of a name, and of the text below it
_NAME_WIDE, _BELOW_WIDE = 7.7, 6.7
_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
    'markerHeight="6" orient="auto">'
    f'<path d="M0 0.5L7.5 4L0 7.5z" fill="{_SOFT}"/></marker></defs>'
)


@explain_wrong_types
def to_svg(graph: ModuleGraph) -> str:
    """Return the graph as an SVG picture: boxes in layers, each below all that it reads."""
    texts = [(name_of(node), below_name(graph, index)) for index, node in enumerate(graph.nodes)]
    sizes = []
    for name, below in texts:
        width = max(_NAME_WIDE * len(name), _BELOW_WIDE * len(below)) + 2 * _PADDING
        sizes.append(Size(max(width, _MIN_WIDTH), _TALL if below else _SMALL))
    layout = lay_out(sizes, [(edge.source, edge.target) for edge in graph.edges])
    wide, tall = (f"{each + 2 * _MARGIN:.0f}" for each in layout.size)
    title = html.escape(printable(f"{graph.path or graph.type_name}: {len(graph.nodes)} nodes"))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" width="{wide}" '
        f'height="{tall}" role="img" font-family="{_FONT}" font-size="13">',
        f"<title>{title}</title>{_ARROW}",
        f'<g transform="translate({_MARGIN:g} {_MARGIN:g})">',
        *map(_draw_line, layout.ways),
        *map(_draw_box, graph.nodes, layout.places, sizes, texts),
        "</g></svg>\n",
    ]
    return "".join(parts)


def svg_part(graph: ModuleGraph) -> str:
    """Return the picture as part of an HTML page."""
    sheet = f"<style>{page_file('part.css')}</style>"
    return f'<div class="torchscan" data-ready="static">{sheet}{to_svg(graph)}</div>'


def _draw_line(points: Sequence[Point]) -> str:
    """Return a line that leaves and enters downwards."""
    (x, y), *others = points
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in others:
        middle = (y + to_y) / 2
        if x == to_x:
            path += f"V{to_y:.1f}"
        else:
            path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    style = f'fill="none" stroke="{_LINE}" stroke-width="1.3" marker-end="url(#arrow)"'
    return f'<path d="{path}" {style}/>'


def _draw_box(node: GraphNode, place: Point, size: Size, texts: tuple[str, str]) -> str:
    middle_x, middle_y = place
    x, y = middle_x - size.wide / 2, middle_y - size.tall / 2
    is_end = node.kind in ("input", "output")
    radius = size.tall / 2 if is_end else 4
    line = _WRONG if node.failed else _LINE
    frame = f'rx="{radius:g}" fill="{_PANEL}" stroke="{line}"'
    parts = [_rectangle(x, y, size.wide, size.tall, frame)]
    if not is_end:
        color = _WRONG if node.failed else _MARKS[node.kind]
        parts.append(_rectangle(x, y, 3, size.tall, f'fill="{color}"'))
    name, below = texts
    parts.append(_text(x, y + 15, name, _INK, 13))
    if below:
        parts.append(_text(x, y + 29, below, _SOFT, 11))
    full_name = " ".join(filter(None, (node.path or node.name, node.type_name)))
    return f"<g><title>{html.escape(printable(full_name))}</title>{''.join(parts)}</g>"


def _rectangle(x: float, y: float, wide: float, tall: float, more: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" {more}/>'


def _text(x: float, y: float, text: str, colour: str, size: int) -> str:
    attributes = f'x="{x + _PADDING:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}"'
    return f"<text {attributes}>{html.escape(text)}</text>"
