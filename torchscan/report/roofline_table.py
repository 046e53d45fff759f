"""A roofline as a table of layers, operators or single calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torchscan import units
from torchscan.analyses.repeats import from_to, is_next
from torchscan.analyses.roofline import GroupLoad, OperatorLoad, Roofline, group, rounded
from torchscan.errors import Argument, InputError
from torchscan.report.lines import FOLDED
from torchscan.report.make_table import (
    ColumnOf,
    counts,
    durations,
    make_table,
    number,
    sizes,
    total,
    totals_table,
    words,
)
from torchscan.report.memory_table import layer_name
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

Rows = Literal["layer", "kind", "operator"]

_HEADINGS: Mapping[Rows, str] = {"layer": "Layer", "kind": "Operator", "operator": "Call"}
_NOUNS: Mapping[Rows, str] = {
    "layer": "layers",
    "kind": "kinds of operators",
    "operator": "calls",
}
#: name, as data, of the row of operators that the model itself calls
_MODEL = "(the model itself)"


@explain_wrong_types
def roofline_table(
    roofline: Roofline,
    by: Rows = "layer",
    *,
    max_depth: int = 2,
    top: int = 15,
    fold_repeats: bool = False,
) -> Table:
    """Return times and shares of the peaks, with the rows that take the most time first.

    ``by`` says what the rows are: layers down to ``max_depth``, each with all that it calls, deeper
    ones in their parents; kinds of operators; or single calls. What comes after the first ``top``
    is one row, so that the table adds up to the whole. With ``fold_repeats``, equal layers that
    follow each other are one row, where the rows are layers.
    """
    if by not in get_args(Rows):
        raise InputError.of_choice("by", by, get_args(Rows))
    if top < 1 or max_depth < 0:
        raise InputError(
            Argument("top"),
            f" is {top} and ",
            Argument("max_depth"),
            f" is {max_depth}: give 1 or more rows, and a depth of 0 or more",
        )
    groups = _groups(roofline, by, max_depth)
    if fold_repeats and by == "layer":
        groups = _folded(groups)
    groups = _heaviest(groups, top)
    loads = [each.load for each in groups]
    remarks = []
    if any(len(each.names) > 1 for each in groups):
        remarks.append(FOLDED)
    remarks += [f"Warning: {note}." for note in roofline.warnings]
    remarks.append(f"{roofline.error_margin.label}.")
    remarks += [note.sentence for note in roofline.assumptions]
    return make_table(
        f"{_heading(roofline)} by {by}",
        _columns(by, roofline.time_estimate, loads),
        loads,
        [{"repeats": len(each.names)} for each in groups],
        summary=[_heading(roofline)],
        totals=[_totals(roofline)],
        totals_first=True,
        remarks=remarks,
        noun=_NOUNS[by],
    )


@explain_wrong_types
def format_roofline(
    roofline: Roofline, by: Rows = "layer", *, max_depth: int = 2, top: int = 15, width: int = 80
) -> str:
    """Return the roofline as text, equal layers in one row.

    ``by``, ``max_depth`` and ``top`` as in ``roofline_table``.
    """
    table = roofline_table(roofline, by, max_depth=max_depth, top=top, fold_repeats=True)
    return table.write("text", width=width)


# -- groups --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OperatorGroup:
    """The operators of one row: of a layer, or of equal layers that follow each other."""

    names: Sequence[str]
    loads: Sequence[OperatorLoad]

    @property
    def load(self) -> GroupLoad:
        name = self.names[0]
        if len(self.names) > 1:
            name = from_to(name, self.names[-1])
        return group(name, self.loads)

    @property
    def values(self) -> tuple[object, ...]:
        """The values that equal layers share."""
        operators = tuple(each.operator for each in self.loads)
        load = self.load
        times = rounded(load.time_bound), rounded(load.time_estimate)
        return (operators, load.flops, load.bytes_read, load.bytes_written, *times)

    @property
    def seconds(self) -> float:
        """Time, rounded so that equal groups keep their order."""
        return rounded(math.fsum(load.time_estimate for load in self.loads))


def _groups(roofline: Roofline, by: Rows, max_depth: int) -> list[_OperatorGroup]:
    """Return a group of operators for each layer, kind or call."""
    loads_by_name: dict[str, list[OperatorLoad]] = defaultdict(list)
    for index, load in enumerate(roofline.operators):
        if by == "layer":
            name = ".".join(load.layer.split(".")[:max_depth]) or _MODEL
        elif by == "kind":
            name = load.operator
        else:
            name = f"{index} {load.operator.removeprefix('aten.')} {load.layer}".rstrip()
        loads_by_name[name].append(load)
    return [_OperatorGroup([name], loads) for name, loads in loads_by_name.items()]


def _folded(groups: Sequence[_OperatorGroup]) -> list[_OperatorGroup]:
    """Return groups of which equal layers that follow each other are one."""
    folded: list[_OperatorGroup] = []
    last_values: object = None
    for each in groups:
        values = each.values
        last = folded[-1] if folded else each
        if values == last_values and is_next(last.names[-1], each.names[0]):
            folded[-1] = _OperatorGroup([*last.names, *each.names], [*last.loads, *each.loads])
        else:
            folded.append(each)
            last_values = values
    return folded


def _heaviest(groups: Sequence[_OperatorGroup], rows: int) -> list[_OperatorGroup]:
    """Return groups in the order of their times, those after the first rows as one."""
    ordered = sorted(groups, key=lambda group: -group.seconds)
    if len(ordered) <= rows + 1:
        return ordered
    others = ordered[rows:]
    number = sum(len(each.names) for each in others)
    loads = [load for each in others for load in each.loads]
    return [*ordered[:rows], _OperatorGroup([f"({number} others)"], loads)]


# -- table ---------------------------------------------------------------------------------------


def _heading(roofline: Roofline) -> str:
    """Return ``"Expected time on NVIDIA H200 (batch 64, fp16)"``."""
    basis = [roofline.basis] if roofline.basis else []
    if roofline.precision is None:
        basis.append("the model's own precision")
    if roofline.compiled:
        basis.append("compiled")
    return f"Expected time on {roofline.device} ({', '.join(basis)})"


def _totals(roofline: Roofline) -> Table:
    time, bound = roofline.time_estimate, roofline.time_bound
    expected = f"{units.duration(time)} ± {100 * roofline.error_margin.share:.0f} %"
    rate = ""
    if roofline.batch_size is not None and time:
        rate = f"{units.count(roofline.batch_size / time, '', 1)} samples per second"
    rows = [total("time_estimate", "Expected time", time, expected, rate.replace("  ", " "))]
    if len(roofline.time_by_phase) > 1:
        for phase, phase_time in roofline.time_by_phase.items():
            rows.append(total(phase, f"  {phase}", phase_time, units.duration, ""))
    rows += _limits(roofline)
    scope = "for the whole pass" if roofline.compiled else "call by call"
    rates = f"at data-sheet rates, {scope}"
    rows.append(total("time_bound", "At least", bound, units.duration, rates))

    compute, memory = roofline.compute_utilization, roofline.memory_utilization
    peaks = []
    for name, peak in roofline.peak_flops.items():
        peaks.append(f"{units.count(peak, 'FLOP/s', 1)} {name}")
    products = f"{100 * compute:.1f} %", f"of {', '.join(peaks) or 'nothing'}"
    moved = f"{100 * memory:.1f} %", f"of {units.count(roofline.bandwidth, 'B/s', 1)}"
    rows.append(total("compute_utilization", "Matrix products", compute, *products))
    rows.append(total("memory_utilization", "Memory", memory, *moved))
    return totals_table(rows, ("", "", ""), words_key="of")


def _limits(roofline: Roofline) -> list[list[Cell]]:
    """Return a row with what limits most of the time, and the rest."""
    times = {name: time for name, time in roofline.time_by_limiter.items() if time}
    if not times:
        return []
    shares = []
    for name, time in times.items():
        shares.append(f"{name} {units.share(time / roofline.time_estimate)}")
    first, *others = shares
    rest = f"{', '.join(others)} of the time" if others else "of the time"
    return [total("limited_by", "Limited by", next(iter(times)), first, rest)]


def _columns(by: Rows, whole: float, loads: Sequence[GroupLoad]) -> list[ColumnOf[GroupLoad]]:
    """Return the columns from the name to the share of the ``whole`` time."""
    words_of_model = layer_name("")
    min_width = 8
    if any(load.name == _MODEL for load in loads):
        # Paths are recognized by their ends, and words are not.
        min_width = len(words_of_model)

    def name(load: GroupLoad) -> Cell:
        text = load.name.removeprefix("aten.")
        if load.name == _MODEL:
            text = words_of_model
        return Cell(load.name, text)

    def moved(load: GroupLoad) -> float:
        return load.bytes_read + load.bytes_written

    def share(load: GroupLoad) -> float:
        return load.time_estimate / whole if whole else 0.0

    cut = "head" if by == "layer" else "mid"
    return [
        words(by, _HEADINGS[by], name, min_width=min_width, truncate=cut),
        counts("flops", "FLOPs", priority=3),
        sizes("bytes_moved", "Moved", moved, priority=6),
        number("intensity", "FLOP/B", text="{:.1f}".format, priority=4),
        words("limiter", "Limit", priority=1),
        durations("time_bound", "Bound", priority=5),
        durations("time_estimate", "Estimate", summable=True),
        number("share", "of time", share, units.share, bars="memory", priority=2),
    ]
