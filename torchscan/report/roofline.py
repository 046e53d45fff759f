"""A roofline as a table of layers, operators or single calls, and as a picture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from torchscan import units
from torchscan.analyses.roofline import GroupLoad, OperatorLoad, Roofline, group, rounded
from torchscan.errors import InputError
from torchscan.report.pyplot import pyplot
from torchscan.report.table import Cell, Column, Row, Table, totals_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Literal["layer", "kind", "operator"]

_NARROWEST = 60
_HEADINGS: Mapping[Rows, str] = {"layer": "Layer", "kind": "Operator", "operator": "Call"}
_COLUMNS = (
    Column(key="flops", heading="FLOPs"),
    Column(key="bytes_moved", heading="Moved", unit="B"),
    Column(key="intensity", heading="FLOP/B"),
    Column(key="limiter", heading="Limit", is_number=False),
    Column(key="time_bound", heading="Bound", unit="s"),
    Column(key="time_estimate", heading="Estimate", unit="s", adds_up=True),
    Column(key="share", heading="%"),
)
_COLOURS = {"compute": "#d65f5f", "memory": "#4878d0", "cache": "#82c6e2", "launch": "#8c8c8c"}
_LARGEST_POINT = 900


def roofline_table(roofline: Roofline, by: Rows = "layer", *, max_depth: int = 2, rows: int = 15) -> Table:
    """Times, shares of the peaks, and what takes the most time, longest first.

    ``by`` says what the rows are: layers down to ``max_depth``, each with all that it calls, deeper ones in their parents;
    kinds of operators; or single calls. What comes after the first ``rows`` is one row, so that the table adds up to the whole.
    """
    if by not in get_args(Rows):
        raise InputError(f"by is {by!r}: choose one of {', '.join(map(repr, get_args(Rows)))}")
    if rows < 1 or max_depth < 0:
        raise InputError(f"rows is {rows} and max_depth {max_depth}: choose at least one row, and a depth of 0 or more")
    groups = _heaviest(_groups(roofline, by, max_depth), rows)
    name = Column(key=by, heading=_HEADINGS[by], is_number=False, narrowest=8, cut="head" if by == "layer" else "mid")
    return Table(
        title=f"Expected time by {by}",
        columns=[name, *_COLUMNS],
        rows=[_row(each, roofline.time_estimate) for each in groups],
        summary=[_question(roofline)],
        totals=[_totals(roofline)],
        totals_first=True,
        remarks=[
            *(f"Warning: {text}." for text in roofline.warnings),
            f"{roofline.spread.said}.",
            *(f"Assumed: {text}." for text in roofline.assumptions),
        ],
        noun={"layer": "layers", "kind": "kinds of operators", "operator": "calls"}[by],
    )


def format_roofline(roofline: Roofline, by: Rows = "layer", *, max_depth: int = 2, rows: int = 15, width: int = 80) -> str:
    """The roofline as text. ``by``, ``max_depth`` and ``rows`` as in :func:`roofline_table`."""
    table = roofline_table(roofline, by, max_depth=max_depth, rows=rows)
    return table.write("text", width=max(width, _NARROWEST))


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


# -- table ---------------------------------------------------------------------------------------------------------------


def _question(roofline: Roofline) -> str:
    how = [roofline.device, roofline.precision or "precision as the model is"]
    how += [f"batch size {roofline.batch_size}"] if roofline.batch_size is not None else []
    return ", ".join([*how, *(["compiled"] if roofline.compiled else [])])


def _totals(roofline: Roofline) -> Table:
    used = [roofline.compute_utilisation, roofline.memory_utilisation]
    compute, memory = (Cell(each, f"{100 * each:.1f} %") for each in used)
    rows = [
        ("Expected time", _estimated(roofline), _samples(roofline)),
        *_phases(roofline),
        ("At least", _time("time_bound", roofline.time_bound), f"at the rates of the data sheet, {_bounded(roofline)}"),
        ("Products", ("compute_utilisation", compute), f"of {_peaks(roofline)}"),
        ("Memory", ("memory_utilisation", memory), f"of {units.count(roofline.bandwidth, 'B/s', 1)}"),
    ]
    table = totals_table([[Cell(key, name), cell, Cell(said, said)] for name, (key, cell), said in rows], ("", "", ""))
    *figures, words = table.columns
    return replace(table, columns=[*figures, replace(words, key="of", is_number=False)])


def _time(key: str, seconds: float) -> tuple[str, Cell]:
    return key, Cell(seconds, units.duration(seconds))


def _estimated(roofline: Roofline) -> tuple[str, Cell]:
    said = f"{units.duration(roofline.time_estimate)} ± {100 * roofline.spread.share:.0f} %"
    return "time_estimate", Cell(roofline.time_estimate, said)


def _bounded(roofline: Roofline) -> str:
    """What the bound is of."""
    return "for the whole pass" if roofline.compiled else "call by call"


def _phases(roofline: Roofline) -> list[tuple[str, tuple[str, Cell], str]]:
    phases = roofline.time_by_phase if len(roofline.time_by_phase) > 1 else {}
    return [(f"  {name}", _time(name, time), "") for name, time in phases.items()]


def _samples(roofline: Roofline) -> str:
    if roofline.batch_size is None or not roofline.time_estimate:
        return ""
    return f"{units.count(roofline.batch_size / roofline.time_estimate, '', 1)} samples per second".replace("  ", " ")


def _peaks(roofline: Roofline) -> str:
    return ", ".join(f"{units.count(peak, 'FLOP/s', 1)} {form}" for form, peak in roofline.peak_flops.items()) or "nothing"


def _heaviest(groups: Mapping[str, Sequence[OperatorLoad]], rows: int) -> list[GroupLoad]:
    ordered = sorted(groups.items(), key=lambda each: -rounded(_time_of(each[1])))
    if len(ordered) > rows + 1:
        others = [load for _, loads in ordered[rows:] for load in loads]
        ordered = [*ordered[:rows], (f"({len(ordered) - rows} others)", others)]
    return [group(name, loads) for name, loads in ordered]


def _groups(roofline: Roofline, by: Rows, max_depth: int) -> Mapping[str, Sequence[OperatorLoad]]:
    members: dict[str, list[OperatorLoad]] = defaultdict(list)
    for number, each in enumerate(roofline.operators):
        name = {
            "layer": ".".join(each.layer.split(".")[:max_depth]) or "(the model itself)",
            "kind": each.operator,
            "operator": f"{number} {each.operator.removeprefix('aten.')} {each.layer}".rstrip(),
        }[by]
        members[name].append(each)
    return members


def _time_of(loads: Sequence[OperatorLoad]) -> float:
    return math.fsum(each.time_estimate for each in loads)


def _row(each: GroupLoad, whole: float) -> Row:
    moved, share = each.bytes_read + each.bytes_written, each.time_estimate / whole if whole else 0.0
    cells = [
        Cell(each.name, each.name.removeprefix("aten.")),
        Cell(each.flops, units.count(each.flops, "", 1)),
        Cell(moved, units.memory(moved, 1)),
        Cell(each.intensity, "-" if each.intensity is None else f"{each.intensity:.1f}"),
        Cell(each.limiter, each.limiter),
        *(Cell(time, units.duration(time)) for time in (each.time_bound, each.time_estimate)),
        Cell(share, f"{100 * share:.1f}"),
    ]
    return Row(cells=cells)


# -- picture -------------------------------------------------------------------------------------------------------------


def _points(roofline: Roofline) -> list[tuple[OperatorLoad, float]]:
    """One of each set of equal calls, with the time of all. Calls without arithmetic cannot be placed."""
    times: dict[tuple[object, ...], float] = defaultdict(float)
    first: dict[tuple[object, ...], OperatorLoad] = {}
    for each in roofline.operators:
        if each.flops and each.intensity and each.time_estimate:
            key = (each.operator, each.precision, each.flops, each.bytes_read, each.bytes_written, each.limiter)
            first.setdefault(key, each)
            times[key] += each.time_estimate
    return [(each, times[key]) for key, each in first.items()]


def _most_telling(points: Sequence[tuple[OperatorLoad, float]]) -> list[tuple[OperatorLoad, float]]:
    """The longest call of each of the longest-running operators, unless its label would overlap another."""
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
