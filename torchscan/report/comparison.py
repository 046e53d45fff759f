"""Comparison of two infos: totals, and layers by their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.alignment import merge_orders
from torchscan.report.compare_runs import Change, change_of, find_differences
from torchscan.report.data import require_info
from torchscan.report.info_data import (
    SUMS,
    FigureKey,
    InfoData,
    InfoDict,
    Layer,
    NoteData,
    data_of,
    summed,
)
from torchscan.report.page_result import PageResult

if TYPE_CHECKING:
    from torchscan.report.paging.page_data import PageContent

ComparedKey = Literal["type", "input_shape", "output_shape", FigureKey]
QuestionKey = Literal[
    "inputs", "batch_size", "mode", "backward", "convention", "torchscan_version", "torch_version"
]

#: options of a scan that no info has
OptionKey = Literal["device", "optimizer", "precision", "loop_iterations"]
#: labels and formats of estimates, which are there if both sides have them
ESTIMATES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "peak_bytes": ("Peak memory", units.memory),
    "time_estimate": ("Time", units.duration),
}

#: a path, and the number of the call
_LayerKey = tuple[str, int]
#: what is compared in a layer
_COMPARED: tuple[ComparedKey, ...] = ("type", "input_shape", "output_shape", *SUMS)
#: what must agree; otherwise the figures differ because the questions do
_QUESTION: tuple[QuestionKey, ...] = get_args(QuestionKey)
_OPTIONS: tuple[OptionKey, ...] = get_args(OptionKey)


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
        after = 0 if self.after is None else summed(self.after, keys)
        before = 0 if self.before is None else summed(self.before, keys)
        return after - before

    def changes(self, *keys: str) -> bool:
        """Return whether any of these values differs."""
        return any(self.difference(key) for key in keys)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data; of each layer, only what is compared."""
        sides = {"before": _plain(self.before), "after": _plain(self.after)}
        return {"path": self.path, "call": self.call, "change": self.kind, **sides}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One side of a comparison."""

    info: InfoDict
    #: what a page shows of the model, or None for a stored report, which has no graph
    content: PageContent | None = None
    #: options of the scan, or None for a report, which does not have them
    options: Mapping[str, str | int | None] | None = None

    def __reduce__(self) -> tuple[Callable[[InfoDict], ComparedSide], tuple[InfoDict]]:
        """Without the content of the page."""
        return _side_of_report, (self.info,)


def _side_of_report(info: InfoDict) -> ComparedSide:
    return ComparedSide(info=info)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(PageResult):
    """The difference between two models or their reports."""

    #: values of the complete model, before and after, by name
    totals: Mapping[str, tuple[int, int]]
    layers: tuple[LayerChange, ...]
    #: other differences between the two passes: fields of the provenance and options of two scans,
    #: with their values before and after
    passes: Mapping[str, tuple[Any, Any]]
    #: True if every operator has a cost formula, before and after; else costs are lower bounds
    complete: tuple[bool, bool] = (True, True)
    #: operators without a cost formula, before and after
    without_formula: tuple[Mapping[str, int], Mapping[str, int]] = field(
        default_factory=lambda: ({}, {})
    )
    #: why some of these have no cost although a formula was meant for them, before and after
    formula_problems: tuple[Sequence[NoteData], Sequence[NoteData]] = ((), ())
    #: "peak_bytes" and "time_estimate" in seconds, before and after, if both sides have them
    estimates: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    _sides: tuple[ComparedSide, ComparedSide] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def is_same(self) -> bool:
        """True if no counted value, estimate or option of a scan has changed."""
        if self.layers or not self.passes.keys().isdisjoint(_OPTIONS):
            return False
        values = [*self.totals.values(), *self.estimates.values()]
        return all(before == after for before, after in values)

    def grown(self, *keys: str) -> list[LayerChange]:
        """Return the layers whose values grew, largest growth first."""
        grown = [each for each in self.layers if each.difference(*keys) > 0]
        return sorted(grown, key=lambda each: -each.difference(*keys))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        totals = {key: _both(each) for key, each in self.totals.items()}
        passes = {key: _both(each) for key, each in self.passes.items()}
        content = {
            "totals": totals,
            "layers": [each.to_dict() for each in self.layers],
            "complete": _both(self.complete),
            "without_formula": _both(tuple(map(dict, self.without_formula))),
            "passes": passes,
        }
        if any(self.formula_problems):
            content["formula_problems"] = _both(self.formula_problems)
        if self.estimates:
            content["estimates"] = {key: _both(each) for key, each in self.estimates.items()}
        return content

    def __repr__(self) -> str:
        """Return a short text, as there may be thousands of layers."""
        return f"<Comparison: {len(self.layers)} layers changed>"


def _both(sides: tuple[Any, ...]) -> dict[str, Any]:
    before, after = sides
    return {"before": before, "after": after}


def _plain(layer: Layer | None) -> dict[str, Any] | None:
    if layer is None:
        return None
    return {key: layer[key] for key in _COMPARED}


def compare_infos(before: InfoDict, after: InfoDict) -> Comparison:
    """Return the changes from one info to another. Layers are matched by path and call."""
    require_info(before, "the report before")
    require_info(after, "the report after")
    _require_whole(before, after)
    old, new = data_of(before), data_of(after)
    before_all, after_all = old["overall"], new["overall"]
    totals: dict[str, tuple[int, int]] = {}
    for key in SUMS:
        totals[key] = (before_all[key], after_all[key])
    sides = _side_of_report(before), _side_of_report(after)
    problems = old.get("formula_problems", []), new.get("formula_problems", [])
    return Comparison(
        estimates=compare_estimates(old, new),
        _sides=sides,
        totals=totals,
        layers=tuple(_compare_layers(old["layers"], new["layers"])),
        passes=find_differences(old["provenance"], new["provenance"], _QUESTION),
        complete=(before_all["complete"], after_all["complete"]),
        without_formula=(old["without_formula"], new["without_formula"]),
        formula_problems=problems,
    )


def compare_sides(before: ComparedSide, after: ComparedSide) -> Comparison:
    """Return the changes between two sides, with what a page shows of them."""
    comparison = compare_infos(before.info, after.info)
    passes = dict(comparison.passes)
    if before.options is not None and after.options is not None:
        passes |= find_differences(before.options, after.options, _OPTIONS)
    return replace(comparison, passes=passes, _sides=(before, after))


def compare_estimates(before: InfoData, after: InfoData) -> dict[str, tuple[float, float]]:
    """Return the estimates of memory and time that both infos have."""
    estimates = {}
    for key in ESTIMATES:
        sides = before["overall"].get(key), after["overall"].get(key)
        if None not in sides:
            estimates[key] = cast("tuple[float, float]", sides)
    return estimates


def _require_whole(before: InfoDict, after: InfoDict) -> None:
    """Raise an InputError if layers were left out, which would look added or removed."""
    if "selection" in before or "selection" in after:
        raise InputError(
            "a report has only selected layers, and comparing needs all: give complete reports"
        )
    if before.get("max_depth") != after.get("max_depth"):
        depths = f"{before.get('max_depth', 'all')} and {after.get('max_depth', 'all')}"
        raise InputError(
            f"reports are folded to different depths, {depths}: give two with the same depth"
        )


# -- comparing -----------------------------------------------------------------------------------


def _compare_layers(before: Sequence[Layer], after: Sequence[Layer]) -> Iterator[LayerChange]:
    """Yield the layers that changed."""
    old: dict[_LayerKey, Layer] = {(layer["path"], layer["call"]): layer for layer in before}
    new: dict[_LayerKey, Layer] = {(layer["path"], layer["call"]): layer for layer in after}
    for key in merge_orders(list(old), list(new)):
        one, other = old.get(key), new.get(key)
        if _plain(one) != _plain(other):
            path, call = key
            kind = change_of(one, other)
            yield LayerChange(path=path, call=call, kind=kind, before=one, after=other)


def growth(before: float, after: float) -> str:
    """Return the growth in percent: ``100, 103 -> "+3.00 %"``."""
    if before == after:
        return "="
    if not before:
        return "new"
    return f"{100 * (after - before) / before:+.2f} %".replace("-", "−")
