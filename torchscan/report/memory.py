"""A memory estimate to read and to look at: as text, with the course of the memory in letters, and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from tabulate import tabulate

from torchscan import units
from torchscan.analyses.memory_estimate import LARGEST_BATCH, MemoryEstimate, Verdict
from torchscan.analyses.memory_timeline import KINDS, LayerMemory, MemoryKind, Moment
from torchscan.analyses.parameters import modules_around
from torchscan.errors import InputError
from torchscan.report.pyplot import pyplot
from torchscan.report.text import cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: a picture shows the largest moment of each of so many stretches, or a peak of one operator would not be seen
_MOST_COLUMNS = 400
_NARROWEST, _PLOT_HEIGHT, _LABEL_WIDTH, _LAYERS = 40, 12, 12, 8

#: from the bottom up: what is always there first
_STACK: Sequence[MemoryKind] = ("parameters", "buffers", "optimizer", "inputs", "gradients", "activations", "temporary")
_LETTERS = dict(zip(_STACK, "pboigat", strict=True))
_COLOURS = dict(zip(_STACK, ("#4878d0", "#82c6e2", "#956cb4", "#8c613c", "#ee854a", "#6acc64", "#d65f5f"), strict=True))


def format_memory(estimate: MemoryEstimate, width: int = 80) -> str:
    """The estimate as text: the peak and what it holds, memory over time, the layers that keep the most, and the verdict."""
    width = max(width, _NARROWEST)
    parts = [_peak(estimate, width), _plot(estimate.timeline, width), _layers(estimate, width)]
    if estimate.verdict is not None:
        parts.append(_verdict(estimate.verdict))
    parts += [textwrap.fill(f"Assumed {text}.", width) for text in estimate.assumptions]
    return "\n\n".join(part for part in parts if part)


def draw_memory(estimate: MemoryEstimate, *, ax: Axes | None = None) -> Axes:
    """Draw the memory over the operators of the pass, stacked by kind, with the peak marked."""
    if ax is None:
        ax = pyplot().subplots(figsize=(9, 4.5), layout="constrained")[1]
    if not estimate.timeline:
        raise InputError("there is nothing to draw: no operator ran")
    moments = list(_columns(estimate.timeline, _MOST_COLUMNS))
    scale = len(estimate.timeline) / len(moments)
    present = [kind for kind in _STACK if any(moment.by_kind[kind] for moment in moments)]
    places = [KINDS.index(kind) for kind in present]
    # the last one once more, or it would have no width
    gib = [[moment.bytes_by_kind[place] / 2**30 for moment in (*moments, moments[-1])] for place in places]
    ax.stackplot(
        [scale * column for column in range(len(moments) + 1)],
        gib,
        labels=present,
        colors=[_COLOURS[kind] for kind in present],
        step="post",
    )
    peak = scale * max(range(len(moments)), key=lambda column: moments[column].total)
    ax.plot([peak], [estimate.peak_bytes / 2**30], "kv", label=f"peak: {units.memory(estimate.peak_bytes)}")
    for start, name in _phases(estimate.timeline):
        ax.axvline(start, color="black", linewidth=0.8, linestyle=":")
        ax.annotate(f" {name}", (start, 1), xycoords=("data", "axes fraction"), va="bottom", fontsize="small")
    ax.set(xlabel="operator calls", ylabel="GiB", xlim=(0, len(estimate.timeline)))
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small", reverse=True)
    return ax


# -- text ----------------------------------------------------------------------------------------------------------------


def _peak(estimate: MemoryEstimate, width: int) -> str:
    in_layer = f"in {_layer_name(estimate.peak_layer)}, {estimate.peak_phase}"
    where = f"at {estimate.peak_operator} {in_layer if estimate.peak_phase != 'optimizer' else 'in the step of the optimizer'}"
    batch = "" if estimate.batch_size is None else f", batch size {estimate.batch_size}"
    title = textwrap.fill(f"Peak memory {units.memory(estimate.peak_bytes)} {where}{batch}", width)
    rows = [
        (f"{_LETTERS[kind]}  {kind}", units.memory(size), f"{100 * size / estimate.peak_bytes:.1f} %")
        for kind in _STACK
        if (size := estimate.by_kind[kind])
    ]
    return f"{title}\n\n{tabulate(rows, tablefmt='plain', colalign=('left', 'right', 'right'))}"


def _plot(timeline: Sequence[Moment], width: int) -> str:
    """One column for several moments: the one with the most. A cell shows what most of it is."""
    if not timeline:
        return ""
    columns = list(_columns(timeline, width - _LABEL_WIDTH))
    top = max(moment.total for moment in columns)
    rows = [_row(columns, top, row) for row in reversed(range(_PLOT_HEIGHT))]
    labels = [units.memory(top * (row + 1) / _PLOT_HEIGHT) if row % 4 == 3 else "" for row in reversed(range(_PLOT_HEIGHT))]
    lines = [f"{label:>{_LABEL_WIDTH - 2}} {line}".rstrip() for label, line in zip(labels, rows, strict=True)]
    return "\n".join([*lines, " " * (_LABEL_WIDTH - 1) + _axis(columns)])


def _columns(timeline: Sequence[Moment], count: int) -> Iterator[Moment]:
    count = min(count, len(timeline))
    for column in range(count):
        begin, end = column * len(timeline) // count, (column + 1) * len(timeline) // count
        yield max(timeline[begin:end], key=lambda moment: moment.total)


def _row(columns: Sequence[Moment], top: int, row: int) -> str:
    level = top * (row + 0.5) / _PLOT_HEIGHT
    return "".join(_letter(column, level) for column in columns)


def _letter(moment: Moment, level: float) -> str:
    sizes = [moment.by_kind[kind] for kind in _STACK]
    reached = next((place for place, height in enumerate(accumulate(sizes)) if height >= level), None)
    return " " if reached is None else _LETTERS[_STACK[reached]]


def _axis(columns: Sequence[Moment]) -> str:
    """``|forward----|backward------|``: each name, if there is room for it, where its phase begins."""
    lengths = [(name, len(list(members))) for name, members in groupby(columns, key=lambda moment: moment.phase)]
    return "".join(f"|{name if len(name) < length else ''}".ljust(length, "-") for name, length in lengths)


def _phases(timeline: Sequence[Moment]) -> Iterator[tuple[int, str]]:
    start = 0
    for name, members in groupby(timeline, key=lambda moment: moment.phase):
        yield start, name
        start += len(list(members))


def _layers(estimate: MemoryEstimate, width: int) -> str:
    """Those that hold no others of them, the largest first. Where their names need the room, they go without their types."""
    keeping = [layer for layer in estimate.layers if layer.activation_bytes]
    outer = {above for layer in keeping if layer.path for above in ("", *modules_around(layer.path))}
    leaves = [layer for layer in keeping if layer.path not in outer]
    largest = sorted(leaves, key=lambda layer: -layer.activation_bytes)[:_LAYERS]
    if not largest:
        return ""
    names = [_layer_name(each.path) for each in largest]
    types = [each.type_name for each in largest]
    figures = ("Activations", "Peak meanwhile")
    room = width - sum(len(each) + 4 for each in figures)  # 2 between columns, 2 that tabulate adds to such headings
    room_beside_types = room - 2 - max(map(len, [*types, "Type"]))
    columns: dict[str, Sequence[str]] = {"Layer": [cut(name, max(room, 5), "mid") for name in names]}
    if max(map(len, names)) <= room_beside_types:
        columns["Type"] = types
    columns |= dict(zip(figures, zip(*(_figures(each) for each in largest), strict=True), strict=True))
    alignment = ["left"] * (len(columns) - 2) + ["right"] * 2
    return tabulate(columns, "keys", tablefmt="simple", colalign=alignment)


def _figures(layer: LayerMemory) -> tuple[str, str]:
    return units.memory(layer.activation_bytes), units.memory(layer.peak_bytes)


def _verdict(verdict: Verdict) -> str:
    answer = "fits" if verdict.fits else "does not fit"
    left = ("Left", verdict.left_bytes) if verdict.fits else ("Missing, at the least", -verdict.left_bytes)
    rows = [
        ("Memory for programs", units.memory(verdict.capacity_bytes)),
        ("Context and kernels", units.memory(verdict.context_bytes)),
        ("Tensors and workspaces", units.memory(verdict.allocated_bytes)),
        ("Reserved for them", units.memory(verdict.reserved_bytes)),
        (left[0], units.memory(left[1])),
    ]
    if verdict.largest_batch_size is None:
        rows.append(("Largest batch size", "not known"))
    else:
        bound = " or more" if verdict.largest_batch_size == LARGEST_BATCH else ""
        rows.append(("Largest batch size", f"{units.exact(verdict.largest_batch_size)}{bound}"))
    return f"{verdict.device}: {answer}\n{tabulate(rows, tablefmt='plain', disable_numparse=True)}"


def _layer_name(path: str) -> str:
    return path or "the model itself"
