"""A graph as an SVG picture for papers and pages: its colours and type are its own, nothing is fetched."""

from __future__ import annotations

import html
from collections.abc import Sequence

from torchscan.analyses.module_graph import GraphNode, ModuleGraph
from torchscan.escapes import printable
from torchscan.report.colours import COLOURS
from torchscan.report.graphs.layout import Point, Size, lay_out
from torchscan.report.graphs.words import below_name, name_of
from torchscan.wrong_arguments import explain_wrong_types

_INK, _SOFT, _LINE, _PANEL, _WRONG = "#1c1d1f", "#62666d", "#b9bcc2", "#ffffff", "#b3261e"
#: what stands at the left of a box
_MARKS = {
    "module": COLOURS["memory"],
    "operator": COLOURS["compute"],
    "tensor": COLOURS["parameters"],
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_TALL, _SMALL, _MIN_WIDTH, _PADDING, _MARGIN = 36.0, 22.0, 72.0, 12.0, 12.0
#: of a character, at most: of a name, and of what is below it
_NAME_WIDE, _BELOW_WIDE = 7.7, 6.7
_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    f'<path d="M0 0.5L7.5 4L0 7.5z" fill="{_SOFT}"/></marker></defs>'
)


@explain_wrong_types
def to_svg(graph: ModuleGraph) -> str:
    """The graph as an SVG picture: boxes in layers, each below all that it reads."""
    texts = [(name_of(node), below_name(graph, at)) for at, node in enumerate(graph.nodes)]
    layout = lay_out(
        [_size(*each) for each in texts], [(edge.source, edge.target) for edge in graph.edges]
    )
    wide, tall = (f"{each + 2 * _MARGIN:.0f}" for each in layout.size)
    drawn = [*map(_way, layout.ways), *map(_box, graph.nodes, layout.places, texts)]
    title = html.escape(printable(f"{graph.path or graph.type_name}: {len(graph.nodes)} nodes"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}" role="img" '
        f'font-family="{_FONT}" font-size="13"><title>{title}</title>{_ARROW}'
        f'<g transform="translate({_MARGIN:g} {_MARGIN:g})">{"".join(drawn)}</g></svg>\n'
    )


def _size(name: str, below: str) -> Size:
    wide = max(_NAME_WIDE * len(name), _BELOW_WIDE * len(below)) + 2 * _PADDING
    return Size(max(wide, _MIN_WIDTH), _TALL if below else _SMALL)


def _way(points: Sequence[Point]) -> str:
    """A line that leaves and enters downwards."""
    (x, y), *others = points
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in others:
        middle = (y + to_y) / 2
        path += (
            f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
            if x != to_x
            else f"V{to_y:.1f}"
        )
        x, y = to_x, to_y
    return f'<path d="{path}" fill="none" stroke="{_LINE}" stroke-width="1.3" marker-end="url(#arrow)"/>'


def _box(node: GraphNode, place: Point, texts: tuple[str, str]) -> str:
    (name, below), size = texts, _size(*texts)
    x, y = place[0] - size.wide / 2, place[1] - size.tall / 2
    is_end, line = node.kind in ("input", "output"), _WRONG if node.failed else _LINE
    frame = _rectangle(
        x,
        y,
        size.wide,
        size.tall,
        f'rx="{size.tall / 2 if is_end else 4:g}" fill="{_PANEL}" stroke="{line}"',
    )
    mark = (
        ""
        if is_end
        else _rectangle(
            x, y, 3, size.tall, f'fill="{_WRONG if node.failed else _MARKS[node.kind]}"'
        )
    )
    whole = html.escape(printable(" ".join(filter(None, (node.path or node.name, node.type_name)))))
    lines = [
        _text(x, y + 15, name, _INK, 13),
        *([_text(x, y + 29, below, _SOFT, 11)] if below else []),
    ]
    return f"<g><title>{whole}</title>{frame}{mark}{''.join(lines)}</g>"


def _rectangle(x: float, y: float, wide: float, tall: float, more: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" {more}/>'


def _text(x: float, y: float, text: str, colour: str, size: int) -> str:
    return f'<text x="{x + _PADDING:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}">{html.escape(text)}</text>'
