"""Comparison of two infos: totals, and layers, aligned where an index or a prefix has moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from torchscan.errors import InputError
from torchscan.report.alignment import align_nodes, merge_aligned
from torchscan.report.compared_estimates import TimeSource, compare_estimates, time_source_of
from torchscan.report.compared_trees import Settings, nodes_of_layers
from torchscan.report.data import require_info
from torchscan.report.info_data import (
    SUMS,
    FigureKey,
    InfoDict,
    Layer,
    NoteData,
    data_of,
    summed,
)
from torchscan.report.layer_moves import Moves, find_moves
from torchscan.report.page_result import PageResult
from torchscan.report.run_comparison import Change, change_of, find_differences

if TYPE_CHECKING:
    from torchscan.report.paging.page_data import PageContent

ComparedKey = Literal["type", "input_shape", "output_shape", FigureKey]
QuestionKey = Literal[
    "inputs", "batch_size", "mode", "backward", "convention", "torchscan_version", "torch_version"
]

#: options of a scan that no info has
OptionKey = Literal["device", "optimizer", "precision", "loop_iterations"]
#: what is compared in a layer
_COMPARED: tuple[ComparedKey, ...] = ("type", "input_shape", "output_shape", *SUMS)
#: what must agree; otherwise the figures differ because the questions do
_QUESTION: tuple[QuestionKey, ...] = get_args(QuestionKey)
_OPTIONS: tuple[OptionKey, ...] = get_args(OptionKey)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer that changed. Figures are its own, without those of the layers it calls."""

    #: the current path, or the old path if the layer is gone
    path: str
    #: 0 for the first call of the layer
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

    @property
    def moved_from(self) -> tuple[str, int] | None:
        """The old path and call if they have changed, else None."""
        if self.before is None or self.after is None:
            return None
        before = (self.before["path"], self.before["call"])
        return None if before == (self.path, self.call) else before

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
        place: dict[str, Any] = {"path": self.path, "call": self.call}
        if self.moved_from is not None:
            path, call = self.moved_from
            place["moved_from"] = {"path": path, "call": call}
        sides = {"before": _plain(self.before), "after": _plain(self.after)}
        return {**place, "change": self.kind, **sides}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One side of a comparison."""

    info: InfoDict
    #: what a page shows of the model, or None for a stored report, which has no graph
    content: PageContent | None = None
    #: options of the scan, or None for a report, which does not have them
    options: Mapping[str, str | int | None] | None = None
    #: settings of modules by path, or None for a report, which does not have them
    settings: Settings | None = None

    def __reduce__(self) -> tuple[Callable[[], ComparedSide], tuple[()]]:
        """Without the content of the page."""
        return partial(ComparedSide, info=self.info, settings=self.settings), ()


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
    #: devices and error margins of the times, or None if one side has no time
    time_source: TimeSource | None = None
    #: names of the models, before and after: by default their classes
    names: tuple[str, str] = field(default=("", ""), compare=False)
    #: old path -> new path of layers that have moved, without the layers in them
    moved: Moves = field(default_factory=dict)
    #: index of a layer before -> index of the layer after that it was compared with
    _aligned: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)
    _sides: tuple[ComparedSide, ComparedSide] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def is_same(self) -> bool:
        """True if no path, counted value, estimate or option of a scan has changed."""
        if self.layers or self.moved or not self.passes.keys().isdisjoint(_OPTIONS):
            return False
        values = [*self.totals.values(), *self.estimates.values()]
        return all(before == after for before, after in values)

    def grown(self, *keys: str) -> list[LayerChange]:
        """Return the layers whose values grew, largest growth first."""
        grown = [each for each in self.layers if each.difference(*keys) > 0]
        return sorted(grown, key=lambda each: -each.difference(*keys))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        totals = _both_by_key(self.totals)
        passes = _both_by_key(self.passes)
        content = {
            "totals": totals,
            "layers": [each.to_dict() for each in self.layers],
            "complete": _both(self.complete),
            "without_formula": _both(tuple(map(dict, self.without_formula))),
            "passes": passes,
            "names": _both(self.names),
        }
        if self.moved:
            content["moved"] = dict(self.moved)
        if any(self.formula_problems):
            content["formula_problems"] = _both(self.formula_problems)
        if self.estimates:
            content["estimates"] = _both_by_key(self.estimates)
        if self.time_source is not None:
            devices, margins = self.time_source
            content["devices"] = _both(devices)
            content["time_margins"] = _both(margins)
        return content

    def __repr__(self) -> str:
        """Return a short text, as there may be thousands of layers."""
        return f"<Comparison: {len(self.layers)} layers changed>"


def _both_by_key(values: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {key: _both(sides) for key, sides in values.items()}


def _both(sides: tuple[Any, ...]) -> dict[str, Any]:
    before, after = sides
    return {"before": before, "after": after}


def _plain(layer: Layer | None) -> dict[str, Any] | None:
    if layer is None:
        return None
    return {key: layer[key] for key in _COMPARED}


def compare_infos(before: InfoDict, after: InfoDict) -> Comparison:
    """Return the changes from one info to another."""
    return compare_sides(ComparedSide(info=before), ComparedSide(info=after))


def compare_sides(before: ComparedSide, after: ComparedSide) -> Comparison:
    """Return the changes between two sides, with the data of both that a page shows."""
    require_info(before.info, "the report before")
    require_info(after.info, "the report after")
    _require_whole(before.info, after.info)
    old, new = data_of(before.info), data_of(after.info)
    before_all, after_all = old["overall"], new["overall"]
    totals: dict[str, tuple[int, int]] = {}
    for key in SUMS:
        totals[key] = (before_all[key], after_all[key])
    passes = find_differences(old["provenance"], new["provenance"], _QUESTION)
    if before.options is not None and after.options is not None:
        passes |= find_differences(before.options, after.options, _OPTIONS)

    old_settings, new_settings = settings_of_both(before, after)
    old_nodes = nodes_of_layers(old["layers"], old_settings)
    new_nodes = nodes_of_layers(new["layers"], new_settings)
    aligned = align_nodes(old_nodes, new_nodes)
    layers = _compare_layers(old["layers"], new["layers"], aligned)
    old_root, new_root = old["layers"][0], new["layers"][0]
    moved = find_moves(old_nodes, new_nodes, aligned)
    estimates = compare_estimates(old, new)
    time_source = time_source_of(old, new)
    problems = (old.get("formula_problems", []), new.get("formula_problems", []))
    return Comparison(
        estimates=estimates,
        time_source=time_source,
        names=(old_root["type"], new_root["type"]),
        totals=totals,
        layers=tuple(layers),
        moved=moved,
        passes=passes,
        complete=(before_all["complete"], after_all["complete"]),
        without_formula=(old["without_formula"], new["without_formula"]),
        formula_problems=problems,
        _aligned=aligned,
        _sides=(before, after),
    )


def settings_of_both(before: ComparedSide, after: ComparedSide) -> tuple[Settings, Settings]:
    """Return the settings of both sides, or none if those of one side are not known.

    Otherwise those of the other side would look like a change.
    """
    if before.settings is None or after.settings is None:
        return {}, {}
    return before.settings, after.settings


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


def _compare_layers(
    before: Sequence[Layer], after: Sequence[Layer], aligned: Mapping[int, int]
) -> Iterator[LayerChange]:
    """Yield the layers that changed."""
    for one, other in merge_aligned(len(before), len(after), aligned):
        old = None if one is None else before[one]
        new = None if other is None else after[other]
        layer = new or old
        if layer is not None and _plain(old) != _plain(new):
            place: dict[str, Any] = {"path": layer["path"], "call": layer["call"]}
            yield LayerChange(**place, kind=change_of(old, new), before=old, after=new)
