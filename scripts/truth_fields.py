"""Receptive fields beside published ones."""

from __future__ import annotations

from pathlib import Path

from truth_section import Section, of

from tests.marked import table
from tests.models.published_fields import FieldOf, fields_of, published_fields

FIELDS = "receptive_field.json"


def fields(truth: Path) -> Section:
    """Of every layer and axis."""
    found = {
        name: list(fields_of(name, each["layers"]))
        for name, each in published_fields(truth / FIELDS).items()
    }
    every = [each for model in found.values() for each in model]
    right = [each for each in every if each.found == each.published]
    answer = f"{of(len(right), len(every))} exact"
    rows = [
        (name, len({each.layer for each in model}), len(model), _exact(model))
        for name, model in found.items()
    ]
    text = f"\n{table(('model', 'layers', 'with each axis', 'exact'), rows)}\n"
    return Section(
        [("receptive fields, by layer and axis", "back-propagation", f"{len(every):,}", answer)],
        {"fields": text},
    )


def _exact(model: list[FieldOf]) -> int:
    return sum(each.found == each.published for each in model)
