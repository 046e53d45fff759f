"""What a terminal shows, as an SVG picture that is light in a light page and dark in a dark one."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import NamedTuple

from torchscan.report.colours import COLOURS, DARK_COLOURS

_WIDE, _TALL, _MARGIN, _BAR = 7.8, 17.0, 14.0, 26.0
_CODE = re.compile(r"\x1b\[([\d;]*)m")
_LEFT, _LOWER = " ▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█"
_KINDS = {
    ";".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5)): kind
    for kind, colour in COLOURS.items()
}


class _Run(NamedTuple):
    """Characters that look alike."""

    text: str
    classes: str
    ground: str


def terminal_picture(path: Path, title: str, text: str, *, gap: float = 0.0) -> None:
    """Write the picture of a text with escape codes of all colours (``COLORTERM=truecolor``), ``gap`` between bars."""
    lines = [list(_runs(line)) for line in text.splitlines()]
    wide = 2 * _MARGIN + _WIDE * max(sum(len(run.text) for run in line) for line in lines)
    tall = 2 * _MARGIN + _BAR + _TALL * len(lines)
    parts = [part for row, line in enumerate(lines) for part in _line(row, line, gap)]
    said = html.escape(title)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {tall:g}" width="{wide:g}" role="img">'
        f"<title>{said}</title><style>{_style()}</style>"
        f'<rect class="window" x="0.5" y="0.5" width="{wide - 1:g}" height="{tall - 1:g}" rx="6"/>'
        f'<text class="soft" x="{_MARGIN:g}" y="{_MARGIN + 5:g}">{said}</text>'
        f"{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


def _style() -> str:
    def of(colours: dict[str, str], ink: str, soft: str, ground: str, line: str) -> str:
        kinds = "".join(f".{kind}{{fill:{colour}}}" for kind, colour in colours.items())
        return (
            f"text{{fill:{ink}}}.soft{{fill:{soft}}}.window{{fill:{ground};stroke:{line}}}{kinds}"
        )

    light = of(dict(COLOURS), "#1c1d1f", "#62666d", "#ffffff", "#e4e4e1")
    dark = of(dict(DARK_COLOURS), "#e8e8e6", "#9ba0a8", "#1b1d20", "#2c2f34")
    type_ = "text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}.bold{font-weight:700}"
    type_ += "rect{shape-rendering:crispEdges}.window{shape-rendering:auto}"
    return f"{type_}{light}@media(prefers-color-scheme:dark){{{dark}}}"


def _runs(line: str) -> list[_Run]:
    found: list[_Run] = []
    classes, ground = "", ""
    for at, part in enumerate(_CODE.split(line)):
        if at % 2 == 0:
            alike = found and found[-1][1:] == (classes, ground)
            before = found.pop().text if alike and part else ""
            found += [_Run(before + part, classes, ground)] if part else []
        elif part == "0":
            classes, ground = "", ""
        else:
            classes, ground = _meaning(part)
    return found


def _meaning(code: str) -> tuple[str, str]:
    """Of ``1``, ``2``, ``38;2;…`` and ``38;2;…;48;2;…``: classes, and the kind behind the characters."""
    if code in ("1", "2"):
        return ("bold" if code == "1" else "soft"), ""
    front, _, behind = code.removeprefix("38;2;").partition(";48;2;")
    return _KINDS[front], _KINDS[behind] if behind else ""


def _line(row: int, runs: list[_Run], gap: float) -> list[str]:
    parts, column = [], 0
    y = _MARGIN + _BAR + _TALL * row
    for run in runs:
        x = _MARGIN + _WIDE * column
        column += len(run.text)
        blocks = set(run.text) <= set(_LEFT + _LOWER) and run.text.strip()
        parts += _blocks(x, y + gap / 2, run, _TALL - gap) if blocks else _words(x, y, run)
    return parts


def _words(x: float, y: float, run: _Run) -> list[str]:
    """Words at their places, and rules as lines, whatever the width of the reader's characters."""
    found = []
    for match in re.finditer(r"─+|[^ ─]+(?: [^ ─]+)*", run.text):
        left, wide = x + _WIDE * match.start(), _WIDE * len(match[0])
        if match[0][0] == "─":
            found.append(
                f'<rect class="soft" x="{left:g}" y="{y + _TALL / 2:g}" width="{wide:g}" height="1"/>'
            )
            continue
        named = f' class="{run.classes}"' if run.classes else ""
        length = f' textLength="{wide:g}" lengthAdjust="spacingAndGlyphs"'
        found.append(
            f'<text{named} x="{left:g}" y="{y + 12.5:g}"{length}>{html.escape(match[0])}</text>'
        )
    return found


def _blocks(x: float, y: float, run: _Run, tall: float) -> list[str]:
    """Full characters together, and eighths of one: from its left or its lower end."""
    found = []
    if run.ground:
        found.append(_rect(run.ground, x, y, _WIDE * len(run.text), tall))
    for match in re.finditer(r"([^ ])\1*", run.text):
        left, sign = x + _WIDE * match.start(), match[0]
        if sign[0] in _LEFT:
            wide = _WIDE * (len(sign) if sign[0] == "█" else _LEFT.index(sign[0]) / 8)
            found.append(_rect(run.classes, left, y, wide, tall))
        else:
            high = tall * _LOWER.index(sign[0]) / 8
            found.append(_rect(run.classes, left, y + tall - high, _WIDE * len(sign), high))
    return found


def _rect(kind: str, x: float, y: float, wide: float, tall: float) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{tall:g}"/>'
