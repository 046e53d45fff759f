"""Comparison as a table: totals, and the layers or calls that changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from torchscan import units
from torchscan.notes import Note
from torchscan.plain import from_plain
from torchscan.report.compared_estimates import ESTIMATES
from torchscan.report.comparison import Comparison, LayerChange
from torchscan.report.folded_changes import FoldedChange, fold_changes
from torchscan.report.info_data import COST_SUMS, SUMS, Layer, Shape, Shapes, summed
from torchscan.report.layer_moves import describe_moves
from torchscan.report.lines import FOLDED
from torchscan.report.make_table import make_table, number, totals_table, words
from torchscan.report.remarks import unknown_cost_texts
from torchscan.report.run_comparison import Change, RunComparison, describe_differences
from torchscan.report.run_comparison_table import run_comparison_table
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types

_SIGNS: Mapping[Change, str] = {"added": "+", "removed": "−", "changed": "~"}
#: rows of text
_MAX_ROWS = 40
_SHAPES: tuple[Literal["output_shape", "input_shape"], ...] = ("output_shape", "input_shape")
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
    """Return a table of the totals before and after, and of the layers that changed.

    Of runs it has all calls, those whose time changed most first.
    """
    if isinstance(comparison, RunComparison):
        return run_comparison_table(comparison)
    return _table_of_rows(comparison, [FoldedChange.of(each) for each in comparison.layers])


def _table_of_rows(comparison: Comparison, rows: Sequence[FoldedChange]) -> Table:
    remarks = [] if comparison.layers else ["No layer changed."]
    if any(row.repeats > 1 for row in rows):
        remarks.append(FOLDED)
    remarks += describe_moves(comparison.moved)
    sides = zip(comparison.without_formula, comparison.formula_problems, strict=True)
    for when, (names, problems) in zip(("before", "now"), sides, strict=True):
        notes = [from_plain(Note, each) for each in problems]
        remarks += unknown_cost_texts({name: name for name in names}, notes, when)
    if comparison.time_source is not None:
        remarks.append(f"Times are estimated for {comparison.time_source}.")
    remarks += describe_differences("reports", comparison.passes, format_value)
    columns = (
        words("change", "", lambda row: Cell(row.change.kind, _SIGNS[row.change.kind])),
        words("layer", "Layer", "title", min_width=12),
        number("params", "Params", lambda row: _figure(row.change, _PARAMS, units.exact)),
        number("macs", "MACs", lambda row: _figure(row.change, ("macs",), units.count)),
        words(
            "what",
            "",
            _describe_change,
            min_width=20,
            wrap=True,
            falls_below=True,
        ),
    )
    return make_table(
        "What changed",
        columns,
        rows,
        totals=[_totals(comparison)],
        totals_first=True,
        remarks=remarks,
        noun="layers changed",
    )


@explain_wrong_types
def format_comparison(
    comparison: Comparison | RunComparison, *, markdown: bool = False, width: int = 80
) -> str:
    """Return the difference as text, or as Markdown for a comment on a pull request.

    Totals come first, then the layers that changed. In text, equal changes of equal
    blocks are one row.
    """
    if markdown:
        return comparison_table(comparison).write("github")
    if isinstance(comparison, RunComparison):
        table, noun = comparison_table(comparison), "calls"
        hidden = len(table.rows) - _MAX_ROWS
    else:
        rows = list(fold_changes(comparison.layers))
        table, noun = _table_of_rows(comparison, rows[:_MAX_ROWS]), "layers"
        hidden = sum(row.repeats for row in rows[_MAX_ROWS:])
    more = [f"… and {hidden} more {noun}"] if hidden > 0 else []
    short = replace(table, rows=table.rows[:_MAX_ROWS], remarks=[*more, *table.remarks])
    return short.write("text", width=width)


def _totals(comparison: Comparison) -> Table:
    rows = []
    for key, name, keys, text in _TOTALS:
        sides = zip(*(comparison.totals[each] for each in keys), strict=True)
        before, after = map(sum, sides)
        is_cost = not set(keys).isdisjoint(COST_SUMS)
        change = Cell(after - before, growth(before, after))
        cells = []
        for value, is_complete in zip((before, after), comparison.complete, strict=True):
            bound = ""
            if is_cost and not is_complete:
                bound = "≥ "
                change = Cell(None, "?")
            cells.append(Cell(value, f"{bound}{text(value)}"))
        rows.append([Cell(key, name), *cells, change])
    for key, (name, text) in ESTIMATES.items():
        if key in comparison.estimates:
            old, new = comparison.estimates[key]
            cells = [Cell(value, text(value)) for value in (old, new)]
            rows.append([Cell(key, name), *cells, Cell(new - old, growth(old, new))])
    return totals_table(rows, ("", "before", "after", ""))


def _figure(change: LayerChange, keys: Sequence[str], text: Callable[[int], str]) -> Cell:
    """Return the difference; its text shows both sides."""
    difference: int | None = change.difference(*keys)
    sides = []
    has_value = False
    for layer in (change.before, change.after):
        if layer is None:
            continue
        value = summed(layer, keys)
        bound = ""
        if keys[0] in COST_SUMS and not layer["complete"]:
            bound = "≥ "
            difference = None
        has_value = has_value or bool(value) or bool(bound)
        sides.append((bound, value))
    has_text = has_value and len(set(sides)) == len(sides)
    texts = [f"{bound}{text(value)}" for bound, value in sides]
    return Cell(difference, " → ".join(texts) if has_text else "")


def _describe_change(row: FoldedChange) -> str:
    """Return the type of an added or removed layer, or what changed of another one.

    That is its type or a shape, or else a value that no column shows, and the path that it had.
    """
    change = row.change
    before, after = change.before, change.after
    if before is None or after is None:
        return change.layer["type"]
    texts = _describe_values(change, before, after)
    if row.old_name is not None:
        texts.append(f"was {row.old_name}")
    return ", ".join(texts)


def _describe_values(change: LayerChange, before: Layer, after: Layer) -> list[str]:
    texts = []
    if before["type"] != after["type"]:
        texts.append(f"{before['type']} → {after['type']}")
    for key in _SHAPES:
        if before[key] != after[key]:
            texts.append(f"{key.removesuffix('_shape')} now {_format_shapes(after[key])}")
            break
    if texts or change.changes("macs", *_PARAMS):
        return texts
    for name in SUMS:
        if change.changes(name):
            return [f"{name.replace('_', ' ')} {before[name]:,} → {after[name]:,}"]
    return []


def _format_shapes(shapes: Shapes) -> str:
    if shapes is None:
        return "–"
    if any(isinstance(each, list) for each in shapes):
        return f"{len(shapes)} tensors"
    return units.shape(cast("Shape", shapes))


def format_value(value: Any) -> str:
    """Return a field of a provenance or an option as text; inputs by name, type and shape."""
    if value is None:
        return "none"
    if not isinstance(value, list):
        return str(value)
    inputs = [f"{each['name']} {each['dtype']} {units.shape(each['shape'])}" for each in value]
    return ", ".join(inputs) or "none"


def growth(before: float, after: float) -> str:
    """Return the growth in percent: ``100, 103 -> "+3.00 %"``."""
    if before == after:
        return "="
    if not before:
        return "new"
    return f"{units.change((after - before) / before, 2)} %"
