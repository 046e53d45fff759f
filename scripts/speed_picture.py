"""A picture of how time grows with the length of a chain, for the docs: one panel a chain, one line a call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

#: by call: its colour on light and on dark ground
_COLOURS = {
    "a bare pass": ("#6d7076", "#9a9da3"),
    "crawl_module": ("#2f74c0", "#5b9be0"),
    "estimate_memory": ("#7b6bb0", "#a797dd"),
    "analyze_roofline": ("#c05530", "#e8825f"),
}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 300, 180, 64, 56, 28
_LENGTHS, _TIMES = (100, 30_000), (10, 1_000)
_TICKS_OF_LENGTH, _TICKS_OF_TIME = (100, 1_000, 10_000), (10, 100, 1_000)

Series = Mapping[str, Mapping[int, float]]


def draw(found: Series, path: Path) -> None:
    """Write microseconds an operator, by call and chain, over the number of operators."""
    chains = list(dict.fromkeys(name.split(", ")[1] for name in found))
    wide = _LEFT + len(chains) * (_WIDTH + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {_TOP + _HEIGHT + 40}" role="img">',
        _style(),
        _legend(),
    ]
    for position, chain in enumerate(chains):
        of_chain = {
            name.split(", ")[0]: times
            for name, times in found.items()
            if name.endswith(f", {chain}")
        }
        parts += _panel(
            chain, of_chain, _LEFT + position * (_WIDTH + _GAP), has_times=position == 0
        )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


_RULES = """text { font: 11.5px system-ui, sans-serif; fill: #33363b; stroke: none }
.heading { font-weight: 600 }
.grid { stroke: #d9dbde }
@media (prefers-color-scheme: dark) { text { fill: #d5d7da } .grid { stroke: #3a3d42 } }"""


def _style() -> str:
    light, dark = (
        "\n".join(_rule(number, pair[tone]) for number, pair in enumerate(_COLOURS.values()))
        for tone in (0, 1)
    )
    lines = "polyline { fill: none; stroke-width: 2 }"
    return f"<style>\n{_RULES}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{lines}\n</style>"


def _rule(number: int, colour: str) -> str:
    return f"circle.c{number} {{ fill: {colour} }} polyline.c{number} {{ stroke: {colour} }}"


def _legend() -> str:
    places = (_LEFT, _LEFT + 110, _LEFT + 230, _LEFT + 370)
    keys = [
        f'<circle class="c{number}" cx="{left + 4}" cy="14" r="4"/><text x="{left + 14}" y="18">{call}</text>'
        for number, (call, left) in enumerate(zip(_COLOURS, places, strict=True))
    ]
    return "".join(keys)


def _panel(title: str, series: Series, left: int, *, has_times: bool) -> list[str]:
    parts = [f'<text class="heading" x="{left}" y="{_TOP - 12}">{title}</text>']
    for time in _TICKS_OF_TIME:
        down = _down(time)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{left + _WIDTH}" y1="{down:.1f}" y2="{down:.1f}"/>'
        )
        if has_times:
            label = f"{time:,} µs" if time == _TICKS_OF_TIME[-1] else f"{time:,}"
            parts.append(
                f'<text x="{left - 6}" y="{down + 4:.1f}" text-anchor="end">{label}</text>'
            )
    parts += [
        f'<text x="{left + _right(length):.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{length:,}</text>'
        for length in _TICKS_OF_LENGTH
    ]
    parts.append(
        f'<text x="{left + _WIDTH}" y="{_TOP + _HEIGHT + 34}" text-anchor="end">operators</text>'
    )
    return [*parts, *(_line(call, times, left) for call, times in series.items())]


def _line(call: str, times: Mapping[int, float], left: int) -> str:
    number = list(_COLOURS).index(call)
    points = " ".join(
        f"{left + _right(length):.1f},{_down(time):.1f}" for length, time in times.items()
    )
    return f'<polyline class="c{number}" points="{points}"/>'


def _right(length: float) -> float:
    return _WIDTH * _part(length, _LENGTHS)


def _down(time: float) -> float:
    return _TOP + _HEIGHT * (1 - _part(time, _TIMES))


def _part(value: float, ends: Sequence[float]) -> float:
    first, last = map(math.log, ends)
    return (math.log(min(max(value, ends[0]), ends[1])) - first) / (last - first)
