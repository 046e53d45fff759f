"""A roofline as a table of layers, operators or single calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from torchscan import units
from torchscan.analyses.roofline import GroupLoad, OperatorLoad, Roofline, group, rounded
from torchscan.errors import InputError
from torchscan.report.table import Cell, Column, Row, Table, totals_table

Rows = Literal["layer", "kind", "operator"]

_HEADINGS: Mapping[Rows, str] = {"layer": "Layer", "kind": "Operator", "operator": "Call"}
_COLUMNS = (
    Column(key="flops", heading="FLOPs", dispensable=2),
    Column(key="bytes_moved", heading="Moved", unit="B", dispensable=5),
    Column(key="intensity", heading="FLOP/B", dispensable=3),
    Column(key="limiter", heading="Limit", is_number=False, dispensable=1),
    Column(key="time_bound", heading="Bound", unit="s", dispensable=4),
    Column(key="time_estimate", heading="Estimate", unit="s", adds_up=True),
    Column(key="share", heading="%"),
)


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
    return table.write("text", width=width)


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
