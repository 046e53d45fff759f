"""What changed between two reports: totals, and layers by their paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tabulate import tabulate

from torchscan import units
from torchscan.errors import InputError
from torchscan.report.columns import full_name_of, printable
from torchscan.report.data import require_info
from torchscan.report.info import COST_SUMS, PARAMETER_SUMS, InfoDict, Layer
from torchscan.report.markdown import escape, folded, markdown_table
from torchscan.report.remarks import unpriced_text
from torchscan.report.text import cut

Change = Literal["added", "removed", "changed"]

_SIGNS: Mapping[Change, str] = {"added": "+", "removed": "−", "changed": "~"}
#: what is compared of a layer
_FIGURES = (*PARAMETER_SUMS, *COST_SUMS)
_COMPARED = ("type", "input_shape", "output_shape", *_FIGURES)
#: what must agree, or figures differ because the question does
_QUESTION = ("inputs", "batch_size", "mode", "backward", "convention", "torchscan_version", "torch_version")
_MOST_LINES = 40


@dataclass(frozen=True, slots=True)
class LayerChange:
    """One layer that is not as it was. Figures are its own."""

    path: str
    call: int
    kind: Change
    before: Layer | None
    after: Layer | None

    def difference(self, *keys: str) -> int:
        """How much more it is now."""
        return _sum(self.after, keys) - _sum(self.before, keys)

    def changes(self, *keys: str) -> bool:
        """Whether any of these figures is another."""
        return any(_sum(self.after, [key]) != _sum(self.before, [key]) for key in keys)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data: of the layers what is compared."""
        sides = {"before": _plain(self.before), "after": _plain(self.after)}
        return {"path": self.path, "call": self.call, "change": self.kind, **sides}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two reports."""

    #: figure of the whole model -> before, after
    totals: Mapping[str, tuple[int, int]]
    layers: tuple[LayerChange, ...]
    #: how the two passes differ besides: figure of the provenance -> before, after
    passes: Mapping[str, tuple[Any, Any]]
    #: whether every operator has a price, before and after; if not, costs are lower bounds
    complete: tuple[bool, bool] = (True, True)
    #: operators without a price, before and after
    unpriced: tuple[Mapping[str, int], Mapping[str, int]] = field(default_factory=lambda: ({}, {}))

    @property
    def is_same(self) -> bool:
        """Whether nothing changed that is counted."""
        return not self.layers and all(before == after for before, after in self.totals.values())

    def grown(self, *keys: str) -> list[LayerChange]:
        """The layers of which these figures grew, the most first."""
        return sorted((each for each in self.layers if each.difference(*keys) > 0), key=lambda each: -each.difference(*keys))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        return {
            "totals": {key: {"before": before, "after": after} for key, (before, after) in self.totals.items()},
            "layers": [each.as_dict() for each in self.layers],
            "complete": {"before": self.complete[0], "after": self.complete[1]},
            "unpriced": {"before": dict(self.unpriced[0]), "after": dict(self.unpriced[1])},
            "passes": {key: {"before": before, "after": after} for key, (before, after) in self.passes.items()},
        }

    def __repr__(self) -> str:
        """Short: there may be thousands of layers."""
        return f"<Comparison: {len(self.layers)} layers changed>"

    def __str__(self) -> str:
        """As text."""
        return format_comparison(self)

    def _repr_markdown_(self) -> str:
        return format_comparison(self, markdown=True)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - a known signature
        printer.text(str(self))


def compare_info(before: InfoDict, after: InfoDict) -> Comparison:
    """What ``after`` has that ``before`` had not, and the other way round. Layers are matched by path and call."""
    for which, report in (("the report before", before), ("the report after", after)):
        require_info(report, which)
    _require_whole(before, after)
    old, new = ({(layer["path"], layer["call"]): layer for layer in info["layers"]} for info in (before, after))
    changes = [_change(key, old.get(key), new.get(key)) for key in _in_order(list(old), list(new))]
    return Comparison(
        totals={key: (before["overall"][key], after["overall"][key]) for key in _FIGURES},
        layers=tuple(change for change in changes if change is not None),
        passes={
            key: (before["provenance"].get(key), after["provenance"].get(key))
            for key in _QUESTION
            if before["provenance"].get(key) != after["provenance"].get(key)
        },
        complete=(before["overall"]["complete"], after["overall"]["complete"]),
        unpriced=(before["unpriced"], after["unpriced"]),
    )


def format_comparison(comparison: Comparison, *, markdown: bool = False, width: int = 80) -> str:
    """The difference as text, or in Markdown as a comment on a pull request: totals, then the layers that changed."""
    return _markdown(comparison) if markdown else _text(comparison, width)


def _require_whole(before: InfoDict, after: InfoDict) -> None:
    """Layers that are not shown would look as if they had come or gone."""
    if "selection" in before or "selection" in after:
        raise InputError("some of the layers only cannot be compared: take reports without --filter, --sort and --top")
    if before.get("max_depth") != after.get("max_depth"):
        depths = [report.get("max_depth", "all") for report in (before, after)]
        raise InputError(f"reports are folded to different depths, {depths[0]} and {depths[1]}: take the same --depth")


# -- comparing -----------------------------------------------------------------------------------------------------------


def _in_order(old: Sequence[tuple[str, int]], new: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """As they are called now, and what is gone where it was: after the layer that was before it."""
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
    if before is None or after is None:
        return LayerChange(*key, "added" if before is None else "removed", before, after)
    if all(before[each] == after[each] for each in _COMPARED):
        return None
    return LayerChange(*key, "changed", before, after)


def _plain(layer: Layer | None) -> Layer | None:
    return None if layer is None else {key: layer[key] for key in _COMPARED}


def _sum(layer: Layer | None, keys: Sequence[str]) -> int:
    return 0 if layer is None else sum(layer[key] for key in keys)


# -- writing -------------------------------------------------------------------------------------------------------------

_PARAMS = ("grad_params", "nograd_params")
_SIZE = ("param_size", "buffer_size")
_TOTALS: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "Parameters": (_PARAMS, units.exact),
    "Trainable parameters": (("grad_params",), units.exact),
    "Model size": (_SIZE, units.memory),
    "MACs": (("macs",), units.count),
    "FLOPs": (("flops",), units.count),
    "DMAs": (("dmas",), units.count),
}


def _total_rows(comparison: Comparison) -> list[list[str]]:
    rows = []
    for name, (keys, text) in _TOTALS.items():
        before, after = (sum(comparison.totals[key][which] for key in keys) for which in (0, 1))
        is_cost = not set(keys).isdisjoint(COST_SUMS)
        bounds = ["≥ " if is_cost and not complete else "" for complete in comparison.complete]
        change = growth(before, after) if not any(bounds) else "?"
        rows.append([name, f"{bounds[0]}{text(before)}", f"{bounds[1]}{text(after)}", change])
    return rows


def growth(before: float, after: float) -> str:
    """``100, 103 -> "+3.00 %"``."""
    if before == after:
        return "="
    return f"{100 * (after - before) / before:+.2f} %".replace("-", "−") if before else "new"


def _layer_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            _SIGNS[each.kind],
            _layer_name(each),
            _figure(each, _PARAMS, units.exact),
            _figure(each, ("macs",), units.count),
            _other(each),
        ]
        for each in comparison.layers
    ]


def _layer_name(change: LayerChange) -> str:
    layer = change.after or change.before
    assert layer is not None  # noqa: S101 - one of them is there
    return full_name_of(layer)


def _figure(change: LayerChange, keys: tuple[str, ...], text: Any) -> str:
    layers = [layer for layer in (change.before, change.after) if layer is not None]
    figures = [_sum(layer, keys) for layer in layers]
    bounds = ["≥ " if keys[0] in COST_SUMS and not layer["complete"] else "" for layer in layers]
    if len({*zip(bounds, figures, strict=True)}) < len(layers) or not any((*figures, *bounds)):
        return ""
    return " → ".join(f"{bound}{text(figure)}" for bound, figure in zip(bounds, figures, strict=True))


def _other(change: LayerChange) -> str:
    """The type of what came or went; of what changed the type, the shape, or else what no column shows."""
    before, after = change.before, change.after
    if before is None or after is None:
        return printable((after or before or {})["type"])
    texts = [f"{printable(before['type'])} → {printable(after['type'])}"] if before["type"] != after["type"] else []
    shapes = {key: after[key] for key in ("output_shape", "input_shape") if before[key] != after[key]}
    texts += [f"{key.partition('_')[0]} now {_short(shape)}" for key, shape in shapes.items()][:1]
    if not texts and not change.changes("macs", *_PARAMS):
        texts = [f"{key.replace('_', ' ')} {before[key]:,} → {after[key]:,}" for key in _FIGURES if change.changes(key)][:1]
    return ", ".join(texts)


def _short(value: Any) -> str:
    is_one = isinstance(value, list) and not any(isinstance(each, list) for each in value)
    return units.shape(value) if is_one else "–" if value is None else f"{len(value)} tensors"


def _pass_texts(comparison: Comparison) -> list[str]:
    """What must be known to read the figures right."""
    unpriced = [
        unpriced_text(", ".join(map(printable, names)), when)
        for when, names in zip((" before", " now"), comparison.unpriced, strict=True)
        if names
    ]
    return unpriced + [
        f"Not the same question: {key.replace('_', ' ')} {_said(before)}, now {_said(after)}."
        for key, (before, after) in comparison.passes.items()
    ]


def _said(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return ", ".join(f"{each['name']} {each['dtype']} {units.shape(each['shape'])}" for each in value) or "none"


def _text(comparison: Comparison, width: int) -> str:
    parts = [tabulate(_total_rows(comparison), ["", "before", "after", ""], "plain", disable_numparse=True, colalign=_ALIGNED)]
    rows = _layer_rows(comparison)
    if rows:
        shown = _fitted(rows[:_MOST_LINES], width)
        parts.append(tabulate(shown, ["", "Layer", "Params", "MACs", ""], "plain", disable_numparse=True, colalign=_LAYERS))
    more = [f"… and {len(rows) - _MOST_LINES} more layers"] if len(rows) > _MOST_LINES else []
    same = ["No layer changed."] if not rows else []
    return "\n\n".join([*parts, *more, *same, *_pass_texts(comparison)])


def _fitted(rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Names give way first, then what else changed; figures never."""
    widest = [max(len(row[column]) for row in rows) for column in range(5)]
    figures = 2 + max(widest[2], 6) + max(widest[3], 4) + 4 * 2
    names = max(min(widest[1], (width - figures) // 2), 12)
    other = max(width - figures - min(widest[1], names), 12)
    return [[sign, cut(name, names, "mid"), *numbers, cut(rest, other, "tail")] for sign, name, *numbers, rest in rows]


_ALIGNED = ("left", "right", "right", "right")
_LAYERS = ("left", "left", "right", "right", "left")


def _markdown(comparison: Comparison) -> str:
    totals = markdown_table(["", "before", "after", ""], _escaped(_total_rows(comparison)), [False, True, True, True])
    rows = _layer_rows(comparison)
    table = markdown_table(["", "Layer", "Params", "MACs", ""], _escaped(rows), [False, False, True, True, False])
    layers = folded(f"{len(rows)} layers changed", table) if rows else "No layer changed."
    return "\n\n".join([totals, layers, *map(escape, _pass_texts(comparison))])


def _escaped(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[escape(cell) for cell in row] for row in rows]
