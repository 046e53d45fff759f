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
from torchscan.report.table import Cell, Table
from torchscan.wrong_arguments import explain_wrong_types

Rows = Literal["layer", "kind", "operator"]

_HEADINGS: Mapping[Rows, str] = {"layer": "Layer", "kind": "Operator", "operator": "Call"}


@explain_wrong_types
def roofline_table(
    roofline: Roofline,
    by: Rows = "layer",
    *,
    max_depth: int = 2,
    top: int = 15,
    fold_repeats: bool = False,
) -> Table:
    """Times, shares of the peaks, and what takes the most time, longest first.

    ``by`` says what the rows are: layers down to ``max_depth``, each with all that it calls, deeper ones in their parents;
    kinds of operators; or single calls. What comes after the first ``top`` is one row, so that the table adds up to the whole.
    With ``fold_repeats``, equal layers that follow each other are one row, where the rows are layers.
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
    found = [
        _OperatorGroup([name], loads) for name, loads in _groups(roofline, by, max_depth).items()
    ]
    groups = _heaviest(_folded(found) if fold_repeats and by == "layer" else found, top)
    return make_table(
        f"{_heading(roofline)} by {by}",
        _columns(by, roofline.time_estimate),
        [each.load for each in groups],
        [{"repeats": len(each.names)} for each in groups],
        summary=[_heading(roofline)],
        totals=[_totals(roofline)],
        totals_first=True,
        remarks=[
            *([FOLDED] if any(len(each.names) > 1 for each in groups) else []),
            *(f"Warning: {note}." for note in roofline.warnings),
            f"{roofline.error_margin.label}.",
            *(note.sentence for note in roofline.assumptions),
        ],
        noun={"layer": "layers", "kind": "kinds of operators", "operator": "calls"}[by],
    )


@explain_wrong_types
def format_roofline(
    roofline: Roofline, by: Rows = "layer", *, max_depth: int = 2, top: int = 15, width: int = 80
) -> str:
    """The roofline as text, equal layers in one row. ``by``, ``max_depth`` and ``top`` as in ``roofline_table``."""
    table = roofline_table(roofline, by, max_depth=max_depth, top=top, fold_repeats=True)
    return table.write("text", width=width)


# -- groups --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OperatorGroup:
    """The operators of one row: of a layer, or of equal layers that follow each other."""

    names: Sequence[str]
    loads: Sequence[OperatorLoad]

    @property
    def load(self) -> GroupLoad:
        name = self.names[0] if len(self.names) == 1 else from_to(self.names[0], self.names[-1])
        return group(name, self.loads)

    @property
    def figures(self) -> tuple[object, ...]:
        """The values that equal layers share."""
        each, names = self.load, tuple(load.operator for load in self.loads)
        return (
            names,
            each.flops,
            each.bytes_read,
            each.bytes_written,
            rounded(each.time_bound),
            rounded(each.time_estimate),
        )


def _folded(groups: Sequence[_OperatorGroup]) -> list[_OperatorGroup]:
    found: list[tuple[object, _OperatorGroup]] = []
    for each in groups:
        figures, (known, last) = each.figures, found[-1] if found else (None, each)
        if figures == known and is_next(last.names[-1], each.names[0]):
            found[-1] = (
                known,
                _OperatorGroup([*last.names, *each.names], [*last.loads, *each.loads]),
            )
        else:
            found.append((figures, each))
    return [each for _, each in found]


def _heaviest(groups: Sequence[_OperatorGroup], rows: int) -> list[_OperatorGroup]:

    def seconds(group: _OperatorGroup) -> float:
        return rounded(math.fsum(load.time_estimate for load in group.loads))

    ordered = sorted(groups, key=lambda group: -seconds(group))
    if len(ordered) <= rows + 1:
        return ordered
    others = ordered[rows:]
    number = sum(len(each.names) for each in others)
    return [
        *ordered[:rows],
        _OperatorGroup([f"({number} others)"], [load for each in others for load in each.loads]),
    ]


# -- table ---------------------------------------------------------------------------------------------------------------


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
    scope = "for the whole pass" if roofline.compiled else "call by call"
    rates = f"at data-sheet rates, {scope}"
    compute, memory = roofline.compute_utilization, roofline.memory_utilization
    peaks = [
        f"{units.count(peak, 'FLOP/s', 1)} {name}" for name, peak in roofline.peak_flops.items()
    ]
    of_peaks = f"of {', '.join(peaks) or 'nothing'}"
    of_bandwidth = f"of {units.count(roofline.bandwidth, 'B/s', 1)}"
    rows = [
        total("time_estimate", "Expected time", time, expected, _samples(roofline)),
        *_phases(roofline),
        *_limits(roofline),
        total("time_bound", "At least", bound, units.duration, rates),
        total(
            "compute_utilization", "Matrix products", compute, f"{100 * compute:.1f} %", of_peaks
        ),
        total("memory_utilization", "Memory", memory, f"{100 * memory:.1f} %", of_bandwidth),
    ]
    return totals_table(rows, ("", "", ""), words_key="of")


def _phases(roofline: Roofline) -> list[list[Cell]]:
    times = roofline.time_by_phase
    if len(times) < 2:
        return []
    return [total(name, f"  {name}", time, units.duration, "") for name, time in times.items()]


def _limits(roofline: Roofline) -> list[list[Cell]]:
    """Return a row with what limits most of the time, and the rest."""
    times = {name: time for name, time in roofline.time_by_limiter.items() if time}
    if not times:
        return []
    first, *others = [
        f"{name} {units.share(time / roofline.time_estimate)}" for name, time in times.items()
    ]
    said = f"{', '.join(others)} of the time" if others else "of the time"
    return [total("limited_by", "Limited by", next(iter(times)), first, said)]


def _samples(roofline: Roofline) -> str:
    if roofline.batch_size is None or not roofline.time_estimate:
        return ""
    return f"{units.count(roofline.batch_size / roofline.time_estimate, '', 1)} samples per second".replace(
        "  ", " "
    )


def _groups(roofline: Roofline, by: Rows, max_depth: int) -> Mapping[str, Sequence[OperatorLoad]]:
    members: dict[str, list[OperatorLoad]] = defaultdict(list)
    for index, each in enumerate(roofline.operators):
        name = {
            "layer": ".".join(each.layer.split(".")[:max_depth]) or "(the model itself)",
            "kind": each.operator,
            "operator": f"{index} {each.operator.removeprefix('aten.')} {each.layer}".rstrip(),
        }[by]
        members[name].append(each)
    return members


def _columns(by: Rows, whole: float) -> list[ColumnOf[GroupLoad]]:
    """Return the columns from the name to the share of the ``whole`` time."""
    heading, cut = _HEADINGS[by], "head" if by == "layer" else "mid"

    def moved(load: GroupLoad) -> float:
        return load.bytes_read + load.bytes_written

    def share(load: GroupLoad) -> float:
        return load.time_estimate / whole if whole else 0.0

    return [
        words(by, heading, "name", lambda op: op.removeprefix("aten."), min_width=8, truncate=cut),
        counts("flops", "FLOPs", priority=3),
        sizes("bytes_moved", "Moved", moved, priority=6),
        number("intensity", "FLOP/B", text="{:.1f}".format, priority=4),
        words("limiter", "Limit", priority=1),
        durations("time_bound", "Bound", priority=5),
        durations("time_estimate", "Estimate", summable=True),
        number("share", "of time", share, units.share, bars="memory", priority=2),
    ]
