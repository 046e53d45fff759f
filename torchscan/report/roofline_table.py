"""A roofline as a table of layers, operators or single calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from torchscan import units
from torchscan.analyses.repeats import from_to, is_next
from torchscan.analyses.roofline import GroupLoad, OperatorLoad, Roofline, group, rounded
from torchscan.errors import InputError
from torchscan.report.lines import FOLDED
from torchscan.report.table import (
    Cell,
    Column,
    FullRemark,
    Row,
    Table,
    in_one_unit,
    in_words,
    totals_table,
)
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
        raise InputError(f"by is {by!r}: choose one of {', '.join(map(repr, get_args(Rows)))}")
    if top < 1 or max_depth < 0:
        raise InputError(
            f"top is {top} and max_depth {max_depth}: choose at least one row, and a depth of 0 or more"
        )
    found = [
        _OperatorGroup([name], loads) for name, loads in _groups(roofline, by, max_depth).items()
    ]
    groups = _heaviest(_folded(found) if fold_repeats and by == "layer" else found, top)
    columns, cells = zip(
        *_written([each.load for each in groups], by, roofline.time_estimate), strict=True
    )
    return Table(
        title=f"{_heading(roofline)} by {by}",
        columns=columns,
        rows=[
            Row(cells=row, repeats=len(each.names))
            for row, each in zip(zip(*cells, strict=True), groups, strict=True)
        ],
        summary=[_heading(roofline)],
        totals=[_totals(roofline)],
        totals_first=True,
        remarks=[
            *([FOLDED] if any(len(each.names) > 1 for each in groups) else []),
            *(FullRemark(f"Warning: {text}.") for text in roofline.warnings),
            f"{roofline.error_margin.label}.",
            *(f"Assumed: {text}." for text in roofline.assumptions),
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
    """What one row is of: the operators of a layer, or of equal ones that follow each other."""

    names: Sequence[str]
    loads: Sequence[OperatorLoad]

    @property
    def load(self) -> GroupLoad:
        name = self.names[0] if len(self.names) == 1 else from_to(self.names[0], self.names[-1])
        return group(name, self.loads)

    @property
    def figures(self) -> tuple[object, ...]:
        """What equal layers have in common."""
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
    ordered = sorted(groups, key=lambda each: -rounded(_time_of(each.loads)))
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
    used = [roofline.compute_utilization, roofline.memory_utilization]
    compute, memory = (Cell(each, f"{100 * each:.1f} %") for each in used)
    rows = [
        ("Expected time", _estimated(roofline), _samples(roofline)),
        *_phases(roofline),
        *_limits(roofline),
        (
            "At least",
            _time("time_bound", roofline.time_bound),
            f"at the rates of the data sheet, {_bounded(roofline)}",
        ),
        ("Matrix products", ("compute_utilization", compute), f"of {_peaks(roofline)}"),
        (
            "Memory",
            ("memory_utilization", memory),
            f"of {units.count(roofline.bandwidth, 'B/s', 1)}",
        ),
    ]
    table = totals_table(
        [[Cell(key, name), cell, Cell(said, said)] for name, (key, cell), said in rows],
        ("", "", ""),
    )
    *figures, words = table.columns
    return replace(table, columns=[*figures, replace(words, key="of", is_number=False)])


def _time(key: str, seconds: float) -> tuple[str, Cell]:
    return key, Cell(seconds, units.duration(seconds))


def _estimated(roofline: Roofline) -> tuple[str, Cell]:
    said = f"{units.duration(roofline.time_estimate)} ± {100 * roofline.error_margin.share:.0f} %"
    return "time_estimate", Cell(roofline.time_estimate, said)


def _bounded(roofline: Roofline) -> str:
    """What the bound is of."""
    return "for the whole pass" if roofline.compiled else "call by call"


def _phases(roofline: Roofline) -> list[tuple[str, tuple[str, Cell], str]]:
    phases = roofline.time_by_phase if len(roofline.time_by_phase) > 1 else {}
    return [(f"  {name}", _time(name, time), "") for name, time in phases.items()]


def _limits(roofline: Roofline) -> list[tuple[str, tuple[str, Cell], str]]:
    """What most of the time goes by, and the rest."""
    shares = [
        (name, time / roofline.time_estimate)
        for name, time in roofline.time_by_limiter.items()
        if time
    ]
    first, *others = [f"{name} {units.share(share)}" for name, share in shares] or [""]
    said = f"{', '.join(others)} of the time" if others else "of the time"
    return [("Limited by", ("limited_by", Cell(shares[0][0], first)), said)] if shares else []


def _samples(roofline: Roofline) -> str:
    if roofline.batch_size is None or not roofline.time_estimate:
        return ""
    return f"{units.count(roofline.batch_size / roofline.time_estimate, '', 1)} samples per second".replace(
        "  ", " "
    )


def _peaks(roofline: Roofline) -> str:
    return (
        ", ".join(
            f"{units.count(peak, 'FLOP/s', 1)} {form}" for form, peak in roofline.peak_flops.items()
        )
        or "nothing"
    )


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


def _written(
    groups: Sequence[GroupLoad], by: Rows, whole: float
) -> list[tuple[Column, list[Cell]]]:
    """The columns with their cells, from the name to the share of the ``whole`` time."""
    name = Column(
        key=by,
        heading=_HEADINGS[by],
        is_number=False,
        min_width=8,
        truncate="head" if by == "layer" else "mid",
    )
    flops = Column(key="flops", heading="FLOPs", priority=3)
    moved = Column(key="bytes_moved", heading="Moved", unit="B", priority=6)
    intensity = Column(key="intensity", heading="FLOP/B", priority=4)
    limiter = Column(key="limiter", heading="Limit", is_number=False, priority=1)
    bound = Column(key="time_bound", heading="Bound", unit="s", priority=5)
    estimate = Column(key="time_estimate", heading="Estimate", unit="s", summable=True)
    share = Column(key="share", heading="of time", bars="memory", priority=2)
    return [
        in_words(name, [each.name for each in groups], lambda each: each.removeprefix("aten.")),
        in_one_unit(flops, [each.flops for each in groups], units.scale_of_counts),
        in_one_unit(
            moved, [each.bytes_read + each.bytes_written for each in groups], units.scale_of_memory
        ),
        in_words(intensity, [each.intensity for each in groups], "{:.1f}".format),
        in_words(limiter, [each.limiter for each in groups]),
        in_one_unit(bound, [each.time_bound for each in groups], units.scale_of_durations),
        in_one_unit(estimate, [each.time_estimate for each in groups], units.scale_of_durations),
        in_words(
            share, [each.time_estimate / whole if whole else 0.0 for each in groups], units.share
        ),
    ]
