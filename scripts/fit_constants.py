"""Constants of single kernels, fitted to published times of these."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from changed_constants import changed, value_of
from kernel_tables import CARDS, Case, Kind, cases_of, estimates, table_names

from tests.far_off import four_of_five
from tests.marked import table

#: errors beyond this share count as much as this: some rows are of other kernels than the rest
_FARTHEST = 0.6
#: rows of a table that a fit looks at, at most
_SAMPLE = 700
_ROUNDS, _FIRST_STEP, _SHRINK = 5, 0.25, 0.6


@dataclass(frozen=True, slots=True)
class Family:
    """Constants that are fitted together, and the tables that they are fitted to."""

    kinds: tuple[Kind, ...]
    constants: tuple[str, ...]


FAMILIES = {
    "products": Family(
        ("products",),
        (
            "TILE_LOADS",
            "TILE_START_CYCLES",
            "SPLIT_LENGTH",
            "CHAIN_CYCLES",
            "CHAIN_LENGTH",
            "LAUNCH_COMPILED",
            "PRODUCTS_STREAM[Ampere GA100]",
            "PICOJOULES[Ada]",
        ),
    ),
    "attention": Family(
        ("decode", "prompt"),
        (
            "ATTENTION_FLOOR_CYCLES",
            "ATTENTION_TAIL",
            "ATTENTION_TILE_START",
            "ATTENTION_SPLIT_KEYS",
            "RESIDENT_TILES",
            *(
                f"FLASH_{version}.{name}"
                for version in (2, 3)
                for name in ("tile_cycles", "seconds_of_key", "combine_cycles")
            ),
            "FLASH_2.copy_cycles",
            "FLASH_3.exposed",
            "SOFTMAX_OPERATIONS",
        ),
    ),
    "collectives": Family(
        ("collectives",),
        (
            "LATENCY_CYCLES",
            "LATENCY_OF_STEP",
            "PIPELINE",
            "PIPELINE_BYTES",
            *(f"LINK_SHARES[{ranks}]" for ranks in (2, 4, 8)),
            *(f"PCIE_SHARES[{ranks}]" for ranks in (2, 4, 8)),
            "SWITCH_SHARE",
        ),
    ),
}


def print_fit(truth: Path, names: Sequence[str]) -> int:
    """Fit the constants of families and print them. Return the number of missing tables."""
    missing = [each for each in table_names() if not (truth / each).exists()]
    if missing:
        print(f"nothing fitted: {', '.join(missing)} not found in {truth}")
        return len(missing)
    for name in names or FAMILIES:
        print(f"\n{name}\n\n{_report(truth, FAMILIES[name])}", flush=True)
    return 0


def _report(truth: Path, family: Family) -> str:
    """Return the constants and the errors as two tables."""
    cards = {
        card: [case for kind in family.kinds for case in cases_of(truth, kind, card)]
        for card in CARDS
    }
    fitted = fit(family.constants, cards)
    left_out = {
        card: fit(family.constants, {name: cards[name] for name in cards if name != card})
        for card in cards
    }
    settings = [fitted, *left_out.values()]
    rows = [
        (name, _short(value_of(name)), *(_short(values[name]) for values in settings))
        for name in family.constants
    ]
    without = [f"without the {CARDS[card]}" for card in cards]
    text = table(("constant", "package", "fitted", *without), rows)
    return f"{text}\n{table(_HEADINGS, _errors(family, cards, fitted, left_out))}"


_HEADINGS = ("constants", "card", "kernels", "rows", "n", "median error", "four of five", "bias")


def _errors(
    family: Family,
    cards: Mapping[str, list[Case]],
    fitted: Mapping[str, float],
    left_out: Mapping[str, Mapping[str, float]],
) -> list[tuple[object, ...]]:
    found = []
    for card, cases in cards.items():
        settings = {"package": {}, "fitted": fitted, "card left out": left_out[card]}
        for name, values in settings.items():
            with changed(values):
                ratios = _ratios(cases)
            for kind in family.kinds:
                for part, is_apart in (("fitted", False), ("held out", True)):
                    chosen = [
                        ratio
                        for case, ratio in zip(cases, ratios, strict=True)
                        if case.kind == kind and case.is_apart is is_apart
                    ]
                    found.append((name, CARDS[card], kind, part, *_summary(chosen)))
    return found


def _summary(ratios: Sequence[float]) -> tuple[str, ...]:
    distances = [abs(ratio - 1) for ratio in ratios]
    return (
        f"{len(ratios):,}",
        f"{100 * statistics.median(distances):.1f} %",
        f"{100 * four_of_five(distances):.1f} %",
        f"{statistics.median(ratios):.2f}",
    )


def fit(names: Sequence[str], cards: Mapping[str, list[Case]]) -> dict[str, float]:
    """Return the constants that make the mean error of the fitted part small, found one by one."""
    samples = [_sample(cases) for cases in cards.values()]
    values = {name: value_of(name) for name in names}
    best = _loss(samples, values)
    step = _FIRST_STEP
    for _ in range(_ROUNDS):
        for name in names:
            for factor in (1 + step, 1 / (1 + step)):
                tried = {**values, name: values[name] * factor}
                loss = _loss(samples, tried)
                if loss < best - 1e-6:
                    best, values = loss, tried
                    break
        step *= _SHRINK
    return values


def _sample(cases: Sequence[Case]) -> list[Case]:
    known = [case for case in cases if not case.is_apart]
    return known[:: math.ceil(len(known) / _SAMPLE)]


def _loss(samples: Sequence[list[Case]], values: Mapping[str, float]) -> float:
    """Return how far logarithms of estimates are off: the root of the mean square over cards.

    So no card is given up for the others.
    """
    with changed(values):
        return math.hypot(*map(_loss_of_card, samples)) / math.sqrt(len(samples))


def _loss_of_card(cases: list[Case]) -> float:
    regions: dict[tuple[Kind, int], list[float]] = {}
    for case, ratio in zip(cases, _ratios(cases), strict=True):
        distance = min(_FARTHEST, abs(math.log(ratio)))
        regions.setdefault((case.kind, case.region), []).append(distance)
    return statistics.mean(map(statistics.mean, regions.values()))


def _ratios(cases: list[Case]) -> list[float]:
    times = zip(estimates(cases), cases, strict=True)
    return [estimate / case.seconds for estimate, case in times]


def _short(value: float) -> str:
    return f"{value:.3g}"
