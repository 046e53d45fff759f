"""Comparison of two infos: totals, and layers by their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, overload

from torchscan import units
from torchscan.errors import InputError
from torchscan.inspecting.run import Inspected
from torchscan.report.columns import full_name_of
from torchscan.report.compare_runs import (
    RunComparison,
    compare_runs,
    run_comparison_table,
)
from torchscan.report.data import require_info
from torchscan.report.info_data import COST_SUMS, SUMS, FigureKey, InfoDict, Layer, data_of, summed
from torchscan.report.make_table import make_table, number, totals_table, words
from torchscan.report.remarks import unknown_cost_text
from torchscan.report.table import Cell, Table
from torchscan.results import RowsResult
from torchscan.wrong_arguments import explain_wrong_types

Change = Literal["added", "removed", "changed"]
ComparedKey = Literal["type", "input_shape", "output_shape", FigureKey]
QuestionKey = Literal[
    "inputs", "batch_size", "mode", "backward", "convention", "torchscan_version", "torch_version"
]

_SIGNS: Mapping[Change, str] = {"added": "+", "removed": "−", "changed": "~"}
#: what is compared in a layer
_COMPARED: tuple[ComparedKey, ...] = ("type", "input_shape", "output_shape", *SUMS)
#: what must agree; otherwise the figures differ because the questions do
_QUESTION: tuple[QuestionKey, ...] = get_args(QuestionKey)
#: in text
_MAX_ROWS = 40
_SHAPES: tuple[Literal["output_shape", "input_shape"], ...] = ("output_shape", "input_shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer that changed. Figures are its own, without those of the layers it calls."""

    path: str
    call: int
    kind: Change
    before: Layer | None
    after: Layer | None

    @property
    def layer(self) -> Layer:
        """The layer as it is now, or as it was if it is gone."""
        layer = self.after or self.before
        assert layer is not None  # noqa: S101 - one of them is there
        return layer

    def difference(self, *keys: str) -> int:
        """Return the sum of these values after, minus the sum before."""
        return _sum(self.after, keys) - _sum(self.before, keys)

    def changes(self, *keys: str) -> bool:
        """Return whether any of these values differs."""
        return any(_sum(self.after, [key]) != _sum(self.before, [key]) for key in keys)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data; of each layer, only what is compared."""
        sides = {"before": _plain(self.before), "after": _plain(self.after)}
        return {"path": self.path, "call": self.call, "change": self.kind, **sides}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(RowsResult):
    """The difference between two reports."""

    #: values of the complete model, before and after, by name
    totals: Mapping[str, tuple[int, int]]
    layers: tuple[LayerChange, ...]
    #: other differences between the two passes: fields of the provenance, with their values before
    #: and after
    passes: Mapping[str, tuple[Any, Any]]
    #: True if every operator has a cost formula, before and after; else costs are lower bounds
    complete: tuple[bool, bool] = (True, True)
    #: operators without a cost formula, before and after
    without_formula: tuple[Mapping[str, int], Mapping[str, int]] = field(
        default_factory=lambda: ({}, {})
    )

    @property
    def is_same(self) -> bool:
        """True if no counted value has changed."""
        return not self.layers and all(before == after for before, after in self.totals.values())

    def grown(self, *keys: str) -> list[LayerChange]:
        """The layers whose figures grew, largest growth first."""
        return sorted(
            (each for each in self.layers if each.difference(*keys) > 0),
            key=lambda each: -each.difference(*keys),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        return {
            "totals": {
                key: {"before": before, "after": after}
                for key, (before, after) in self.totals.items()
            },
            "layers": [each.to_dict() for each in self.layers],
            "complete": {"before": self.complete[0], "after": self.complete[1]},
            "without_formula": {
                "before": dict(self.without_formula[0]),
                "after": dict(self.without_formula[1]),
            },
            "passes": {
                key: {"before": before, "after": after}
                for key, (before, after) in self.passes.items()
            },
        }

    def __repr__(self) -> str:
        """Short: there may be thousands of layers."""
        return f"<Comparison: {len(self.layers)} layers changed>"


@overload
def compare(before: InfoDict, after: InfoDict) -> Comparison: ...


@overload
def compare(before: Inspected, after: Inspected) -> RunComparison: ...


@explain_wrong_types
def compare(before: Any, after: Any) -> Comparison | RunComparison:
    """Return the changes from ``before`` to ``after``: two infos, or two inspected runs.

    Layers are matched by path and call.
    """
    if isinstance(before, Inspected) and isinstance(after, Inspected):
        return compare_runs(before.facts, after.facts)
    if isinstance(before, Inspected) or isinstance(after, Inspected):
        raise InputError("a run cannot be compared with a report: give two runs, or two reports")
    return _compare_reports(before, after)


def _compare_reports(before: InfoDict, after: InfoDict) -> Comparison:
    for which, report in (("the report before", before), ("the report after", after)):
        require_info(report, which)
    _require_whole(before, after)
    one, other = data_of(before), data_of(after)
    old, new = (
        {(layer["path"], layer["call"]): layer for layer in info["layers"]} for info in (one, other)
    )
    changes = [_change(key, old.get(key), new.get(key)) for key in _in_order(list(old), list(new))]
    return Comparison(
        totals={key: (one["overall"][key], other["overall"][key]) for key in SUMS},
        layers=tuple(change for change in changes if change is not None),
        passes={
            key: (one["provenance"].get(key), other["provenance"].get(key))
            for key in _QUESTION
            if one["provenance"].get(key) != other["provenance"].get(key)
        },
        complete=(one["overall"]["complete"], other["overall"]["complete"]),
        without_formula=(one["without_formula"], other["without_formula"]),
    )


def _require_whole(before: InfoDict, after: InfoDict) -> None:
    """Layers left out of a report would look added or removed."""
    if "selection" in before or "selection" in after:
        raise InputError(
            "a report has only selected layers, and comparing needs all: give complete reports"
        )
    if before.get("max_depth") != after.get("max_depth"):
        depths = [report.get("max_depth", "all") for report in (before, after)]
        raise InputError(
            f"reports are folded to different depths, {depths[0]} and {depths[1]}: give two with "
            "the same depth"
        )


# -- comparing -----------------------------------------------------------------------------------------------------------


def _in_order(
    old: Sequence[tuple[str, int]], new: Sequence[tuple[str, int]]
) -> list[tuple[str, int]]:
    """In the order of the calls now; what is gone comes where it was, after the layer that preceded it."""
    there = set(new)
    gone: dict[tuple[str, int] | None, list[tuple[str, int]]] = {}
    last = None
    for key in old:
        if key in there:
            last = key
        else:
            gone.setdefault(last, []).append(key)
    return [*gone.get(None, ()), *(each for key in new for each in (key, *gone.get(key, ())))]


def _change(key: tuple[str, int], before: Layer | None, after: Layer | None) -> LayerChange | None:
    if (
        before is not None
        and after is not None
        and all(before[each] == after[each] for each in _COMPARED)
    ):
        return None
    kind: Change = "added" if before is None else "removed" if after is None else "changed"
    return LayerChange(path=key[0], call=key[1], kind=kind, before=before, after=after)


def _plain(layer: Layer | None) -> dict[str, Any] | None:
    return None if layer is None else {key: layer[key] for key in _COMPARED}


def _sum(layer: Layer | None, keys: Sequence[str]) -> int:
    return 0 if layer is None else summed(layer, keys)


# -- writing -------------------------------------------------------------------------------------------------------------

_PARAMS = ("grad_params", "nograd_params")
_TOTALS: Sequence[tuple[str, str, tuple[str, ...], Callable[[int], str]]] = (
    ("params", "Parameters", _PARAMS, units.exact),
    ("grad_params", "Trainable parameters", ("grad_params",), units.exact),
    ("model_size", "Model size", ("param_size", "buffer_size"), units.memory),
    ("macs", "MACs", ("macs",), units.count),
    ("flops", "FLOPs", ("flops",), units.count),
    ("dmas", "DMAs", ("dmas",), units.count),
)


@explain_wrong_types
def comparison_table(comparison: Comparison | RunComparison) -> Table:
    """The totals before and after, and the layers that changed; of runs all calls, those whose time changed most first."""
    return (
        run_comparison_table(comparison)
        if isinstance(comparison, RunComparison)
        else _report_table(comparison)
    )


def _report_table(comparison: Comparison) -> Table:
    columns = (
        words("change", "", lambda change: Cell(change.kind, _SIGNS[change.kind])),
        words("layer", "Layer", lambda change: full_name_of(change.layer), min_width=12),
        number("params", "Params", lambda change: _figure(change, _PARAMS, units.exact)),
        number("macs", "MACs", lambda change: _figure(change, ("macs",), units.count)),
        words("what", "", _other, min_width=12, truncate="tail"),
    )
    return make_table(
        "What changed",
        columns,
        comparison.layers,
        totals=[_totals(comparison)],
        totals_first=True,
        remarks=[*([] if comparison.layers else ["No layer changed."]), *_remarks(comparison)],
        noun="layers changed",
    )


@explain_wrong_types
def format_comparison(
    comparison: Comparison | RunComparison, *, markdown: bool = False, width: int = 80
) -> str:
    """The difference as text, or in Markdown as a comment on a pull request: totals, then the layers that changed."""
    table = comparison_table(comparison)
    if markdown:
        return table.write("github")
    hidden = len(table.rows) - _MAX_ROWS
    noun = "calls" if isinstance(comparison, RunComparison) else "layers"
    more = [f"… and {hidden} more {noun}"] if hidden > 0 else []
    return replace(table, rows=table.rows[:_MAX_ROWS], remarks=[*more, *table.remarks]).write(
        "text", width=width
    )


def _totals(comparison: Comparison) -> Table:
    rows = []
    for key, name, keys, text in _TOTALS:
        before, after = (sum(comparison.totals[each][which] for each in keys) for which in (0, 1))
        is_cost = not set(keys).isdisjoint(COST_SUMS)
        bounds = ["≥ " if is_cost and not complete else "" for complete in comparison.complete]
        change = growth(before, after) if not any(bounds) else "?"
        sides = [
            Cell(value, f"{bound}{text(value)}")
            for value, bound in zip((before, after), bounds, strict=True)
        ]
        rows.append(
            [Cell(key, name), *sides, Cell(None if any(bounds) else after - before, change)]
        )
    return totals_table(rows, ("", "before", "after", ""))


def growth(before: float, after: float) -> str:
    """``100, 103 -> "+3.00 %"``."""
    if before == after:
        return "="
    return f"{100 * (after - before) / before:+.2f} %".replace("-", "−") if before else "new"


def _figure(change: LayerChange, keys: Sequence[str], text: Callable[[int], str]) -> Cell:
    """The difference; its text shows both sides."""
    layers = [layer for layer in (change.before, change.after) if layer is not None]
    figures = [summed(layer, keys) for layer in layers]
    bounds = ["≥ " if keys[0] in COST_SUMS and not layer["complete"] else "" for layer in layers]
    has_text = len({*zip(bounds, figures, strict=True)}) == len(layers) and any((*figures, *bounds))
    texts = [f"{bound}{text(figure)}" for bound, figure in zip(bounds, figures, strict=True)]
    return Cell(
        None if any(bounds) else change.difference(*keys), " → ".join(texts) if has_text else ""
    )


def _other(change: LayerChange) -> str:
    """The type of an added or removed layer; for a changed one, its type or shape, or else a figure that no column shows."""
    before, after = change.before, change.after
    if before is None or after is None:
        return change.layer["type"]
    texts = [f"{before['type']} → {after['type']}"] if before["type"] != after["type"] else []
    shapes = [(key, after[key]) for key in _SHAPES if before[key] != after[key]]
    texts += [f"{key.partition('_')[0]} now {_short(shape)}" for key, shape in shapes][:1]
    if not texts and not change.changes("macs", *_PARAMS):
        texts = [
            f"{key.replace('_', ' ')} {before[key]:,} → {after[key]:,}"
            for key in SUMS
            if change.changes(key)
        ][:1]
    return ", ".join(texts)


def _short(value: Any) -> str:
    is_one = isinstance(value, list) and not any(isinstance(each, list) for each in value)
    return units.shape(value) if is_one else "–" if value is None else f"{len(value)} tensors"


def _remarks(comparison: Comparison) -> list[str]:
    """Return what a reader must know to interpret the values."""
    bounds = [
        unknown_cost_text(", ".join(names), when)
        for when, names in zip((" before", " now"), comparison.without_formula, strict=True)
        if names
    ]
    return bounds + [
        f"The reports differ in {key.replace('_', ' ')}: {_format_value(before)} before, "
        f"{_format_value(after)} now."
        for key, (before, after) in comparison.passes.items()
    ]


def _format_value(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return (
        ", ".join(f"{each['name']} {each['dtype']} {units.shape(each['shape'])}" for each in value)
        or "none"
    )
