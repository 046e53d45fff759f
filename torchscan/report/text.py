"""The table: an info dict as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from tabulate import DataRow, Line, TableFormat, tabulate

from torchscan.errors import InputError
from torchscan.report.columns import FIELDS, Column, check_columns, chosen_columns, full_name_of, name_of
from torchscan.report.info import InfoDict, Layer
from torchscan.report.remarks import remarks_of, totals_of

WrapMode = Literal["head", "mid", "tail"]

_ELLIPSIS = "…"
_GAP = 2
_RULES = TableFormat(
    lineabove=Line("", "─", "──", ""),
    linebelowheader=None,
    linebetweenrows=None,
    linebelow=Line("", "─", "──", ""),
    headerrow=None,
    datarow=DataRow("", "  ", ""),
    padding=0,
    with_header_hide=None,
)


def format_info(
    info: InfoDict,
    wrap_mode: WrapMode = "mid",
    *,
    columns: Sequence[str] | None = None,
    width: int = 80,
) -> str:
    """The table of layers and, below it, the totals.

    ``columns`` are the ones to show beside the layer's name. What does not fit ``width`` is cut at ``wrap_mode``:
    the head of a text, its middle or its tail.
    """
    check_layout(columns, wrap_mode, width)
    chosen = chosen_columns(columns)
    names = tree_of(info["layers"]) if "selection" not in info else [full_name_of(layer) for layer in info["layers"]]
    table = _table(info["layers"], names, chosen, wrap_mode, width)
    rule = table.partition("\n")[0]
    totals = tabulate(totals_of(info), tablefmt="plain", disable_numparse=True)
    remarks = remarks_of(info, with_fields=not FIELDS.isdisjoint(chosen))
    wrapped = [line for remark in remarks for line in textwrap.wrap(textwrap.shorten(remark, 6 * width), width)]
    return "\n".join([table, totals, rule, *wrapped])


def check_layout(columns: Sequence[str] | None, wrap_mode: str, width: int) -> None:
    """Refuse a layout that there is not."""
    if wrap_mode not in get_args(WrapMode):
        raise InputError(f"wrap_mode is {wrap_mode!r}: give one of {', '.join(get_args(WrapMode))}")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise InputError(f"width is {width!r}: give a number of characters")
    check_columns(columns)


# -- the table of layers -------------------------------------------------------------------------------------------------


def _table(layers: Sequence[Layer], names: list[str], columns: Mapping[str, Column], wrap_mode: WrapMode, width: int) -> str:
    cells = {name: [column.text(layer) for layer in layers] for name, column in columns.items()} | {"layer": names}
    widths = _fitting_widths(cells, columns, width)
    fitted = {
        name: [cut(text, widths[name], wrap_mode, _indent_of(text) if name == "layer" else 0) for text in texts]
        for name, texts in cells.items()
    }
    headings = [column.heading for column in columns.values()]
    table = tabulate(
        [headings, *zip(*fitted.values(), strict=True)],  # tabulate would make columns wider for headings of its own
        tablefmt=_RULES,
        colalign=["right" if column.is_number else "left" for column in columns.values()],
        disable_numparse=True,
        preserve_whitespace=True,
    )
    rule, heading, *rows = table.split("\n")
    return "\n".join([rule, heading, rule, *rows])


def tree_of(layers: Sequence[Layer]) -> list[str]:
    """The names, drawn as a tree: a layer hangs below the last one before it that is less deep."""
    last = _last_of_siblings(layers)
    open_at: dict[int, bool] = {}
    names = []
    for layer, is_last in zip(layers, last, strict=True):
        depth = layer["depth"]
        open_at[depth] = not is_last
        lines = "".join("│ " if open_at.get(level) else "  " for level in range(1, depth))
        branch = "" if depth == 0 else "└─" if is_last else "├─"
        names.append(f"{lines}{branch}{name_of(layer)}")
    return names


def _last_of_siblings(layers: Sequence[Layer]) -> list[bool]:
    """For each layer whether none of its siblings follows; read from the end, where each depth is seen or not."""
    following: set[int] = set()
    last = []
    for layer in reversed(layers):
        depth = layer["depth"]
        last.append(depth not in following)
        following = {level for level in following if level < depth} | {depth}
    return last[::-1]


def _indent_of(text: str) -> int:
    return len(text) - len(text.lstrip("│ └├─"))


def _fitting_widths(cells: Mapping[str, Sequence[str]], columns: Mapping[str, Column], width: int) -> dict[str, int]:
    """Columns as wide as their texts; if that is too wide, what may be cut gives way, the widest first."""
    widths = {name: max(len(columns[name].heading), *map(len, texts)) for name, texts in cells.items()}
    spare = {name: widths[name] - column.narrowest for name, column in columns.items() if column.narrowest is not None}
    excess = sum(widths.values()) + _GAP * (len(widths) - 1) - width
    while excess > 0 and max(spare.values()) > 0:
        widest = max(spare, key=lambda name: spare[name])
        widths[widest] -= 1
        spare[widest] -= 1
        excess -= 1
    return widths


def cut(text: str, width: int, wrap_mode: WrapMode, indent: int = 0) -> str:
    """Shorten a text to ``width``, but keep the branches of the tree before it."""
    if len(text) <= width:
        return text
    prefix, text = text[:indent], text[indent:]
    room = max(width - indent - 1, 1)
    if wrap_mode == "head":
        return f"{prefix}{_ELLIPSIS}{text[len(text) - room :]}"
    if wrap_mode == "tail":
        return f"{prefix}{text[:room]}{_ELLIPSIS}"
    tail = room // 2
    return f"{prefix}{text[: room - tail]}{_ELLIPSIS}{text[len(text) - tail :]}"
