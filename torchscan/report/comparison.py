"""Comparison of two infos: totals, and layers by their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, overload

from torchscan.errors import InputError
from torchscan.inspecting.run import Inspected
from torchscan.report.compare_runs import (
    Change,
    RunComparison,
    change_of,
    compare_runs,
    find_differences,
)
from torchscan.report.data import require_info
from torchscan.report.info_data import (
    SUMS,
    FigureKey,
    InfoDict,
    Layer,
    data_of,
    summed,
)
from torchscan.results import RowsResult
from torchscan.wrong_arguments import explain_wrong_types

ComparedKey = Literal["type", "input_shape", "output_shape", FigureKey]
QuestionKey = Literal[
    "inputs", "batch_size", "mode", "backward", "convention", "torchscan_version", "torch_version"
]

#: a path, and the number of the call
_LayerKey = tuple[str, int]
#: what is compared in a layer
_COMPARED: tuple[ComparedKey, ...] = ("type", "input_shape", "output_shape", *SUMS)
#: what must agree; otherwise the figures differ because the questions do
_QUESTION: tuple[QuestionKey, ...] = get_args(QuestionKey)


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
        """Return the layers whose values grew, largest growth first."""
        grown = [each for each in self.layers if each.difference(*keys) > 0]
        return sorted(grown, key=lambda each: -each.difference(*keys))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        totals = {key: _both(each) for key, each in self.totals.items()}
        passes = {key: _both(each) for key, each in self.passes.items()}
        return {
            "totals": totals,
            "layers": [each.to_dict() for each in self.layers],
            "complete": _both(self.complete),
            "without_formula": _both(tuple(map(dict, self.without_formula))),
            "passes": passes,
        }

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
    require_info(before, "the report before")
    require_info(after, "the report after")
    _require_whole(before, after)
    old, new = data_of(before), data_of(after)
    return Comparison(
        totals={key: (old["overall"][key], new["overall"][key]) for key in SUMS},
        layers=tuple(_compare_layers(old["layers"], new["layers"])),
        passes=find_differences(old["provenance"], new["provenance"], _QUESTION),
        complete=(old["overall"]["complete"], new["overall"]["complete"]),
        without_formula=(old["without_formula"], new["without_formula"]),
    )


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
    for key in _merge_orders(list(old), list(new)):
        one, other = old.get(key), new.get(key)
        if _plain(one) != _plain(other):
            path, call = key
            kind = change_of(one, other)
            yield LayerChange(path=path, call=call, kind=kind, before=one, after=other)


def _merge_orders(old: Sequence[_LayerKey], new: Sequence[_LayerKey]) -> list[_LayerKey]:
    """Return all keys in the order of the calls now.

    A layer that is gone comes after the remaining layer that preceded it, or else first.
    """
    remaining = set(new)
    first: list[_LayerKey] = []
    gone_after: dict[_LayerKey, list[_LayerKey]] = {key: [] for key in new}
    gone = first
    for key in old:
        if key in remaining:
            gone = gone_after[key]
        else:
            gone.append(key)
    merged = first
    for key in new:
        merged += [key, *gone_after[key]]
    return merged


def growth(before: float, after: float) -> str:
    """Return the growth in percent: ``100, 103 -> "+3.00 %"``."""
    if before == after:
        return "="
    if not before:
        return "new"
    return f"{100 * (after - before) / before:+.2f} %".replace("-", "−")
