"""Error margins of times per token from rows of engines, and what they are worth for other models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from truth_serving import ServingRow, four_of_five

#: largest batches of the regions that have a margin
_BATCHES = (8, 32, 256)
#: rows of a model in a region from which on it counts
_MIN_ROWS = 5
#: A margin is at least this share to each side, over the square root of the number of models: of a
#: single model, only its own scatter is known. With 0.2, a model that was left out has 92 % of its
#: times inside (467 rows of three dense models); with 0.15 88 %, with 0.1 82 %, without it 63 %.
_FLOOR = 0.2


class Region(NamedTuple):
    """Rows that share a margin."""

    engine: str
    family: str
    is_mixture: bool
    max_batch: int


class DerivedMargin(NamedTuple):
    """Shares of the estimate between which measured times are expected."""

    models: int
    rows: int
    low: float
    high: float

    def contains(self, row: ServingRow) -> bool:
        """Return whether a measured time lies inside."""
        return self.low <= 1 / row.token_ratio - 1 <= self.high


def region_of(row: ServingRow) -> Region | None:
    """Return the region of a row, or None if its batch is larger than any region's."""
    largest = next((most for most in _BATCHES if row.batch_size <= most), None)
    if largest is None:
        return None
    return Region(row.engine_name, row.family, row.is_mixture, largest)


def derive_margins(rows: Sequence[ServingRow]) -> dict[Region, DerivedMargin]:
    """Return a margin for each region: what holds four of five rows of its models."""
    by_region: dict[Region, dict[str, list[ServingRow]]] = {}
    for row in rows:
        region = region_of(row)
        if region is not None:
            by_region.setdefault(region, {}).setdefault(row.model, []).append(row)
    margins = {}
    for region, by_model in sorted(by_region.items()):
        compared = [each for each in by_model.values() if len(each) >= _MIN_ROWS]
        if compared:
            margins[region] = _margin_of(compared)
    return margins


def _margin_of(models: Sequence[Sequence[ServingRow]]) -> DerivedMargin:
    spans = [four_of_five(each) for each in models]
    lows, highs = (sorted(ends) for ends in zip(*spans, strict=True))
    # of seven models or more, the one that is furthest off is left out
    outer = round(0.1 * (len(models) - 1))
    floor = _FLOOR / math.sqrt(len(models))
    low, high = min(-floor, lows[outer]), max(floor, highs[-1 - outer])
    return DerivedMargin(
        models=len(models),
        rows=sum(map(len, models)),
        low=math.floor(100 * low) / 100,
        high=math.ceil(100 * high) / 100,
    )


def print_margins(rows: Sequence[ServingRow]) -> None:
    """Print the table of ``serving_margin.py``, and the shares inside with one model left out."""
    headings = ("engine", "family", "kind", "largest batch", "models", "rows", "low", "high")
    lines = [headings, *map(_line_of, derive_margins(rows).items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        print(" | ".join(padded).rstrip())
    print("\nTimes inside the margins of the other models:")
    held = held_out(rows)
    for each in held:
        found = f"{each.inside} of {each.compared}" if each.compared else "nothing to compare with"
        name = f"{each.model}, {each.engine}, {each.family}"
        print(f"  {name:60}{each.rows:5} rows  {found}")
    inside, compared = sum(each.inside for each in held), sum(each.compared for each in held)
    if compared:
        print(f"  all: {inside} of {compared}, {100 * inside / compared:.0f} %")


def _line_of(derived: tuple[Region, DerivedMargin]) -> tuple[str, ...]:
    region, margin = derived
    return (
        region.engine,
        region.family,
        "mixture" if region.is_mixture else "dense",
        str(region.max_batch),
        str(margin.models),
        str(margin.rows),
        f"{margin.low:+.2f}",
        f"{margin.high:+.2f}",
    )


class HeldOut(NamedTuple):
    """Rows of a model on an engine and GPU, with the margins of other models."""

    model: str
    engine: str
    family: str
    rows: int
    #: rows that other models have a margin for, and those inside
    compared: int
    inside: int


def held_out(rows: Sequence[ServingRow]) -> list[HeldOut]:
    """Compare the rows of each model with the margins that the others give."""
    found = []
    groups: dict[tuple[str, str, str], list[ServingRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.engine_name, row.family), []).append(row)
    for (model, engine, family), group in sorted(groups.items()):
        margins = derive_margins([row for row in rows if row.model != model])
        pairs = [(margins.get(region), row) for row in group if (region := region_of(row))]
        known = [margin.contains(row) for margin, row in pairs if margin is not None]
        found.append(HeldOut(model, engine, family, len(group), len(known), sum(known)))
    return found
