"""A roofline to read and to look at: as tables of layers, operators or kinds of them, and as a picture with both roofs."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from tabulate import tabulate

from torchscan import units
from torchscan.analyses.roofline import GroupLoad, OperatorLoad, Roofline, group
from torchscan.errors import InputError
from torchscan.report.pyplot import pyplot
from torchscan.report.text import cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Literal["layer", "kind", "operator"]

_NARROWEST = 60
_HEADINGS = ("FLOPs", "Moved", "FLOP/B", "Limit", "Bound", "Estimate", "%")
_COLOURS = {"compute": "#d65f5f", "memory": "#4878d0", "cache": "#82c6e2", "launch": "#8c8c8c"}
_LARGEST_POINT = 900


def format_roofline(roofline: Roofline, by: Rows = "layer", *, max_depth: int = 2, rows: int = 15, width: int = 80) -> str:
    """The roofline as text: times, shares of the peaks, and a table of what takes the most time, the heaviest first.

    ``by`` says what the rows are: layers down to ``max_depth``, each with all that it calls, deeper ones in their parents;
    kinds of operators; or single calls. What comes after the first ``rows`` is one row, so that the table adds up to the whole.
    """
    if by not in get_args(Rows):
        raise InputError(f"by is {by!r}: give one of {', '.join(map(repr, get_args(Rows)))}")
    if rows < 1 or max_depth < 0:
        raise InputError(f"rows is {rows} and max_depth {max_depth}: give at least one row, and a depth from 0 on")
    width = max(width, _NARROWEST)
    remarks = [f"Assumed: {text}." for text in roofline.assumptions]
    warnings = [f"Warning: {text}." for text in roofline.warnings]
    parts = [_summary(roofline, width), _table(roofline, by, max_depth, rows, width)]
    return "\n\n".join([*parts, *(textwrap.fill(text, width) for text in (*warnings, *remarks))])


def draw_roofline(roofline: Roofline, *, ax: Axes | None = None) -> Axes:
    """Draw what operators attain over their arithmetic intensity, on logarithmic axes, under the roofs of the device.

    A point is all equal calls of an operator, as large as its share of the time; its colour is the limit that it runs into.
    """
    points = _points(roofline)
    if not points:
        raise InputError("there is nothing to draw: no operator does arithmetic")
    if ax is None:
        ax = pyplot().subplots(figsize=(9, 5), layout="constrained")[1]
    intensities = [each.intensity for each, _ in points if each.intensity]
    ridges = [peak / roofline.bandwidth for peak in roofline.peak_flops.values()]
    low, high = min(intensities) / 2, 2 * max([*intensities, *ridges])
    _draw_roofs(roofline, ax, low, high)
    _draw_points(roofline, ax, points)
    for each, _ in _most_telling(points):
        name = each.operator.removeprefix("aten.")
        place = (each.intensity or 0.0, each.flops / each.time_estimate)
        ax.annotate(name, place, (0, -8), textcoords="offset points", fontsize="x-small", ha="center", va="top", clip_on=True)
    ax.set(xscale="log", yscale="log", xlim=(low, high), xlabel="FLOPs per byte", ylabel="FLOPs per second")
    ax.set_title(f"{roofline.device}, {units.duration(roofline.time_estimate)}", fontsize="medium")
    from matplotlib.collections import PathCollection

    legend = ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small", title="limit")
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([60])
    return ax


# -- text ----------------------------------------------------------------------------------------------------------------


def _summary(roofline: Roofline, width: int) -> str:
    how = [roofline.device, roofline.precision or "precision as the model is"]
    how += [f"batch size {roofline.batch_size}"] if roofline.batch_size is not None else []
    how += ["compiled"] if roofline.compiled else []
    rows = [
        ("Expected time", units.duration(roofline.time_estimate), _phases(roofline)),
        ("At least", units.duration(roofline.time_bound), "by the rates of the device"),
        ("Products", f"{100 * roofline.compute_utilisation:.1f} %", f"of {_peaks(roofline)}"),
        ("Memory", f"{100 * roofline.memory_utilisation:.1f} %", f"of {units.count(roofline.bandwidth, 'B/s', 1)}"),
    ]
    begin = 15 + max(len(row[1]) for row in rows) + 2
    wrapped = [(*row[:2], textwrap.fill(row[2], max(width - begin, 10))) for row in rows]
    table = tabulate(wrapped, tablefmt="plain", disable_numparse=True, colalign=("left", "right", "left"))
    return f"{textwrap.fill(', '.join(how), width)}\n\n{table}"


def _phases(roofline: Roofline) -> str:
    if len(roofline.time_by_phase) > 1:
        return ", ".join(f"{name} {units.duration(time)}" for name, time in roofline.time_by_phase.items())
    if roofline.batch_size is None or not roofline.time_estimate:
        return ""
    return f"{units.count(roofline.batch_size / roofline.time_estimate, '', 1)} samples per second".replace("  ", " ")


def _peaks(roofline: Roofline) -> str:
    return ", ".join(f"{units.count(peak, 'FLOP/s', 1)} {form}" for form, peak in roofline.peak_flops.items()) or "nothing"


def _table(roofline: Roofline, by: Rows, max_depth: int, rows: int, width: int) -> str:
    groups = sorted(_groups(roofline, by, max_depth), key=lambda each: -_time_of(each[1]))
    if len(groups) > rows + 1:
        others = [load for _, loads in groups[rows:] for load in loads]
        groups = [*groups[:rows], (f"({len(groups) - rows} others)", others)]
    names = [name.removeprefix("aten.") for name, _ in groups]
    figures = [_figures(group(name, loads), roofline.time_estimate) for name, loads in groups]
    widths = [max(len(row[at]) for row in [_HEADINGS, *figures]) for at in range(len(_HEADINGS))]
    room = width - sum(each + 2 for each in widths)
    columns = [
        [cut(name, max(room, 8), "head" if by == "layer" else "mid"), *row] for name, row in zip(names, figures, strict=True)
    ]
    heading = {"layer": "Layer", "kind": "Operator", "operator": "Call"}[by]
    first = max(len(each) for each in [heading, *(row[0] for row in columns)])
    rule = ["-" * each for each in (first, *widths)]
    return "\n".join(_line(row, [first, *widths]) for row in ([heading, *_HEADINGS], rule, *columns))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names and limits begin at the left, numbers end at the right."""
    sides = [str.ljust if name in ("", "Limit") else str.rjust for name in ("", *_HEADINGS)]
    return "  ".join(side(cell, size) for side, cell, size in zip(sides, cells, widths, strict=True)).rstrip()


def _groups(roofline: Roofline, by: Rows, max_depth: int) -> list[tuple[str, list[OperatorLoad]]]:
    members: dict[str, list[OperatorLoad]] = defaultdict(list)
    for number, each in enumerate(roofline.operators):
        name = {
            "layer": ".".join(each.layer.split(".")[:max_depth]) or "(the model itself)",
            "kind": each.operator,
            "operator": f"{number} {each.operator.removeprefix('aten.')} {each.layer}".rstrip(),
        }[by]
        members[name].append(each)
    return list(members.items())


def _time_of(loads: Sequence[OperatorLoad]) -> float:
    return math.fsum(each.time_estimate for each in loads)


def _figures(each: GroupLoad, whole: float) -> tuple[str, ...]:
    intensity = "-" if each.intensity is None else f"{each.intensity:.1f}"
    times = units.duration(each.time_bound), units.duration(each.time_estimate)
    share = 100 * each.time_estimate / whole if whole else 0.0
    moved = units.memory(each.bytes_read + each.bytes_written, 1)
    return units.count(each.flops, "", 1), moved, intensity, each.limiter, *times, f"{share:.1f}"


# -- picture -------------------------------------------------------------------------------------------------------------


def _points(roofline: Roofline) -> list[tuple[OperatorLoad, float]]:
    """One of several equal calls, with the time of all. What does no arithmetic has no place."""
    times: dict[tuple[object, ...], float] = defaultdict(float)
    first: dict[tuple[object, ...], OperatorLoad] = {}
    for each in roofline.operators:
        if each.flops and each.intensity and each.time_estimate:
            key = (each.operator, each.precision, each.flops, each.bytes_read, each.bytes_written, each.limiter)
            first.setdefault(key, each)
            times[key] += each.time_estimate
    return [(each, times[key]) for key, each in first.items()]


def _most_telling(points: Sequence[tuple[OperatorLoad, float]]) -> list[tuple[OperatorLoad, float]]:
    """The heaviest of each operator, of the heaviest operators, unless a name would lie on another."""
    named: list[tuple[OperatorLoad, float]] = []
    for each, time in sorted(points, key=lambda point: -point[1]):
        if all(each.operator != other.operator and not _is_close(each, other) for other, _ in named):
            named.append((each, time))
    return named[:8]


def _is_close(one: OperatorLoad, other: OperatorLoad) -> bool:
    across = abs(math.log10((one.intensity or 1.0) / (other.intensity or 1.0)))
    up = abs(math.log10(one.flops / one.time_estimate * other.time_estimate / other.flops))
    return across < 0.5 and up < 0.15


def _draw_roofs(roofline: Roofline, ax: Axes, low: float, high: float) -> None:
    highest = max(roofline.peak_flops.values(), default=roofline.bandwidth * high)
    ridge = highest / roofline.bandwidth
    slope = [low, min(ridge, high)]
    label = f"memory {units.count(roofline.bandwidth, 'B/s', 1)}"
    ax.plot(slope, [roofline.bandwidth * each for each in slope], color="black", linewidth=1.2, label=label)
    for form, peak in roofline.peak_flops.items():
        start = max(peak / roofline.bandwidth, low)
        name = f"{form} {units.count(peak, 'FLOP/s', 1)}"
        ax.plot(
            [start, high], [peak, peak], color="black", linewidth=1.2, linestyle="-" if peak == highest else "--", label=name
        )


def _draw_points(roofline: Roofline, ax: Axes, points: Sequence[tuple[OperatorLoad, float]]) -> None:
    for limiter, colour in _COLOURS.items():
        of_limiter = [(each, time) for each, time in points if each.limiter == limiter]
        if of_limiter:
            ax.scatter(
                [each.intensity or 0.0 for each, _ in of_limiter],
                [each.flops / each.time_estimate for each, _ in of_limiter],
                [max(8.0, _LARGEST_POINT * time / roofline.time_estimate) for _, time in of_limiter],
                color=colour,
                alpha=0.6,
                edgecolors="white",
                label=_share(roofline, limiter),
            )


def _share(roofline: Roofline, limiter: str) -> str:
    time = _time_of([each for each in roofline.operators if each.limiter == limiter])
    return f"{limiter}: {100 * time / roofline.time_estimate:.0f} % of the time"
