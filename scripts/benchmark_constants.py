"""Constants of the estimate set again from one card's table, and what they give on another's.

The eager constants are multiplied and divided by small factors in turn, as long as the mean error of a sample of the first
table shrinks. What is left of the error on the other card is what one may expect of a card that nobody tuned to.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmark_records import PRECISION, Row, is_apart, recorded, rows_of
from changed_constants import changed, value_of

from torchscan.analyses.roofline import Rates, roofline_of
from torchscan.hardware.device_specs import device_named

#: those that eager passes in mixed precision depend on
FITTED = (
    *(
        "STREAMING",
        "REORDERING",
        "CONTRACTIONS",
        "CACHE",
        "CACHE_KEPT",
        "MATRICES",
        "POINTWISE_CONVOLUTIONS",
        "SOFTMAX_OPERATIONS",
    ),
    *(
        "GROUPED_ON_MATRIX_UNITS",
        "GROUPED_ON_VECTOR_UNITS",
        "DEPTHWISE_UP_TO_25",
        "DEPTHWISE_LARGER",
        "VECTORS",
    ),
    *(
        "CYCLES_OF_ROW",
        "CYCLES_OF_JOINING",
        "CYCLES_OF_AVERAGE",
        "CYCLES_OF_INTERPOLATION",
        "CYCLES_OF_DEPTHWISE",
    ),
    *("CYCLES_OF_GROUPED", "TURNING_AROUND", "LAUNCH", "OVERLAP"),
)
_STEPS = (1.15, 1.05)
_SAMPLE = 160
_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Card:
    """A card and its table."""

    name: str
    table: Path


def two_cards(truth: Path) -> tuple[Card, Card]:
    """Those with a table of eager passes."""
    first, second = (
        Card(f"NVIDIA GeForce RTX {name}", truth / f"throughput_rtx{name}.csv")
        for name in (3090, 4090)
    )
    return first, second


@dataclass(frozen=True, slots=True)
class Checked:
    """The models of a card that are held out, with constants that one card's table has set."""

    fitted: str
    checked: str
    models: int
    #: constants that the table changed, with their values
    changed: dict[str, float]
    #: errors with the constants as they are, and as the table sets them
    before: list[float]
    after: list[float]


def leave_one_out(cards: tuple[Card, Card]) -> list[Checked]:
    """For each of two cards, the errors on it and on the other one, with the constants as its table sets them."""
    warnings.simplefilter("ignore")
    return [each for fitted in cards for each in _checked(fitted, cards, fit(fitted))]


def print_checked(findings: list[Checked]) -> None:
    """Print what changed, and the errors."""
    for each in findings:
        changed = ", ".join(
            f"{name} {value_of(name):g} → {value:.3g}" for name, value in each.changed.items()
        )
        print(f"constants set from {each.fitted} alone: {changed or 'as they are'}")
        so = f"{_format_errors(each.before)} as they are, {_format_errors(each.after)} so"
        print(f"  {each.checked}, {each.models} models held out: {so}")


def _checked(fitted: Card, cards: Iterable[Card], values: dict[str, float]) -> Iterator[Checked]:
    for card in cards:
        rows = [row for row in rows_of(card.table) if is_apart(row)]
        with changed(values):
            after = _errors(card, rows)
        yield Checked(fitted.name, card.name, len(rows), values, _errors(card, rows), after)


def fit(card: Card) -> dict[str, float]:
    """The constants that lower the mean error of a sample of the card's models, with their values."""
    rows = [row for row in rows_of(card.table) if not is_apart(row)]
    sample = rows[:: max(1, len(rows) // _SAMPLE)]
    values: dict[str, float] = {}
    best = _loss(card, sample)
    for step in _STEPS:
        for name in FITTED:
            best = _improve(card, sample, values, name, step, best)
    return values


def _improve(
    card: Card, sample: list[Row], values: dict[str, float], name: str, step: float, best: float
) -> float:
    """Move one constant up or down as long as that helps; the loss then."""
    for factor in (step, 1 / step):
        while True:
            value = values.get(name, value_of(name)) * factor
            with changed({**values, name: value}):
                loss = _loss(card, sample)
            if loss > best - 1e-5:
                break
            best, values[name] = loss, value
    return best


def _loss(card: Card, rows: list[Row]) -> float:
    """How far the logarithms of estimates are off, in the mean; a model that is a mystery counts as half off."""
    return statistics.mean(min(0.5, abs(math.log(ratio))) for ratio in _ratios(card, rows))


def _errors(card: Card, rows: list[Row]) -> list[float]:
    return [abs(ratio - 1) for ratio in _ratios(card, rows)]


def _ratios(card: Card, rows: list[Row]) -> list[float]:
    """Of each model, estimated by measured; in processes that have the constants as they are now."""
    context = multiprocessing.get_context("fork")
    with context.Pool(_WORKERS) as pool:
        return pool.starmap(_ratio, [(card.name, row) for row in rows], chunksize=8)


def _ratio(card: str, row: Row) -> float:
    torch.set_num_threads(1)
    result = roofline_of(
        recorded(row, training=False), Rates(device_named(card)), precision=PRECISION
    )
    return result.time_estimate / row.seconds


def _format_errors(errors: list[float]) -> str:
    return f"median {100 * statistics.median(errors):.1f} %, mean {100 * statistics.mean(errors):.1f} %"
