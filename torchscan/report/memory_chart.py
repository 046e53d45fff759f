"""Chart of memory over time, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter

from torchscan import units
from torchscan.analyses.memory_blocks import MemoryKind
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.memory_timeline import Moment
from torchscan.report.chart import SIGNS, axis, stacked, ticks
from torchscan.report.colours import in_colour
from torchscan.report.table import Screen, Table
from torchscan.report.text import format_totals

_PLOT_HEIGHT, _LABEL_WIDTH = 12, 12

#: from the bottom up: what is always there first
STACK: Sequence[MemoryKind] = (
    "parameters",
    "buffers",
    "optimizer",
    "inputs",
    "cache",
    "gradients",
    "gathered",
    "activations",
    "temporary",
)


def format_legend(by_kind: Table, screen: Screen) -> str:
    """Return the bytes of each kind beside its symbol in the chart."""
    rows = format_totals(by_kind, screen.width - 2).split("\n")
    kinds = [row.cells[0].value for row in by_kind.rows]
    if screen.has_colours:
        signs = [in_colour("█", kind) for kind in kinds]
    else:
        signs = [SIGNS[kind] for kind in kinds]
    lines = [f"{sign} {row}" for sign, row in zip(signs, rows, strict=True)]
    return "\n".join(lines)


def format_chart(estimate: MemoryEstimate, screen: Screen) -> str:
    """Return memory over time; a column shows the largest of several moments."""
    columns = list(columns_of(estimate.timeline, screen.width - _LABEL_WIDTH))
    sizes = [list(map(moment.by_kind.__getitem__, STACK)) for moment in columns]
    totals = [moment.total for moment in columns]
    labels = _labels(max(totals))
    rows = stacked(sizes, STACK, _PLOT_HEIGHT, has_colours=screen.has_colours)
    place = _LABEL_WIDTH + totals.index(max(totals))
    lines = [_peak_mark(estimate, place, screen.width)]
    for label, row in zip(labels, rows, strict=True):
        line = f"{label:>{_LABEL_WIDTH - 1}} {row}"
        lines.append(line.rstrip())
    phases = [moment.phase for moment in columns]
    lines.append(" " * _LABEL_WIDTH + axis(phases))
    return "\n".join(lines)


def _labels(top: int) -> list[str]:
    """Return a label for each row from the top down: the round number that it reaches, or ""."""
    size, unit = units.unit_of_memory(top)
    labels: dict[int, str] = {}
    for tick in ticks(top / size, 4):
        row = math.ceil(_PLOT_HEIGHT * tick * size / top) - 1
        labels[row] = f"{tick:g} {unit}"
    return [labels.get(row, "") for row in reversed(range(_PLOT_HEIGHT))]


def _peak_mark(estimate: MemoryEstimate, place: int, width: int) -> str:
    """Return ``▼ peak, layer4.2.relu`` at a place, with the text where there is room."""
    mark = "▼"
    label = f"peak, {estimate.peak_layer or 'the model itself'}"
    if place + 2 + len(label) <= width:
        return " " * place + f"{mark} {label}"
    if len(label) + 2 <= place:
        mark = f"{label} {mark}"
    return mark.rjust(place + 1)


def columns_of(timeline: Sequence[Moment], count: int) -> Iterator[Moment]:
    """Yield the largest moment of each of ``count`` stretches."""
    length = len(timeline)
    count = min(count, length)
    for column in range(count):
        begin = column * length // count
        end = (column + 1) * length // count
        yield max(timeline[begin:end], key=attrgetter("total"))


def kinds_present(moments: Sequence[Moment]) -> list[MemoryKind]:
    """Return the kinds that take memory at any of these moments, from the bottom up."""
    present: set[MemoryKind] = set()
    for moment in moments:
        present.update(kind for kind, size in moment.by_kind.items() if size)
    return [kind for kind in STACK if kind in present]
