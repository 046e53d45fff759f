"""Parameters and MACs beside published ones, and beside counts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmark_transformers import counted, is_exact
from benchmark_zoo import CONVENTIONS, Compared, Findings, compared
from truth_section import Section, of

from tests.marked import table
from tests.models.language_models import LANGUAGE_MODELS
from tests.models.zoo import rows

ZOO = "zoo.csv"
LANGUAGE = "language models"


def zoo(truth: Path) -> Section:
    """Of torchvision's and timm's models."""
    models = [compared(row, Findings()) for row in rows(truth / ZOO)]
    by_source = {name: [each for each in models if each.row.source == name] for name in CONVENTIONS}
    text = f"\n{_table(by_source)}\n{_differing(models)}\n"
    return Section(
        [row for name, part in by_source.items() for row in _summary(name, part)], {"counts": text}
    )


def _summary(name: str, part: Sequence[Compared]) -> list[tuple[str, str, str, str]]:
    parameters, macs = _right_parameters(part), _right_macs(part)
    return [
        ("parameters", name, f"{len(part)}", f"{of(parameters, len(part))} as published"),
        ("MACs", name, f"{len(part)}", f"{of(macs, len(part))} as published"),
    ]


def _table(by_source: dict[str, list[Compared]]) -> str:
    headings = ("source", "counted as", "models", "parameters as published", "MACs as published")
    return table(headings, [_row(name, part) for name, part in by_source.items()])


def _row(name: str, part: Sequence[Compared]) -> tuple[object, ...]:
    return name, f"`{CONVENTIONS[name]}`", len(part), _right_parameters(part), _right_macs(part)


def _differing(models: Sequence[Compared]) -> str:
    """Those whose parameters or MACs are not the published ones within rounding, the farthest first."""
    found = [each for each in models if not (each.has_parameters and each.has_macs)]
    ordered = sorted(found, key=lambda each: -each.off)
    return table(
        ("differs", "found", "published", "why"),
        [(each.row.model, *_figures(each), each.reason) for each in ordered],
    )


def _figures(each: Compared) -> tuple[str, str]:
    if each.has_parameters:
        return f"{each.macs / 1e9:.4g} GMACs", f"{each.row.macs / 1e9:.4g}"
    return f"{each.parameters:,} parameters", f"{each.row.parameters:,}"


def _right_parameters(part: Sequence[Compared]) -> int:
    return sum(each.has_parameters and not each.problem for each in part)


def _right_macs(part: Sequence[Compared]) -> int:
    return sum(each.has_macs and not each.problem for each in part)


def language_models(_: Path) -> Section:
    """Parameters and MACs, to the last one."""
    right = {
        model.name: is_exact(model, counted(model, model.case.on_meta()))
        for model in LANGUAGE_MODELS
    }
    answer = f"{of(sum(right.values()), len(right))} exact"
    rows = [
        (each.name, f"{each.published:,}", f"{each.macs:,}", "yes" if right[each.name] else "no")
        for each in LANGUAGE_MODELS
    ]
    text = table(("pass", "parameters as released", "MACs by hand", "exact"), rows)
    return Section(
        [("language models, parameters and MACs", "counts by hand", f"{len(right)}", answer)],
        {"language-models": f"\n{text}\n"},
    )
