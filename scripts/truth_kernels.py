"""Estimated beside published times of single kernels: products, attention and collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from kernel_tables import CARDS, REGIONS, UNITS, Case, Kind, cases_of, estimates, product_case
from truth_section import Section, percent

from tests.far_off import FarOff, far_off, four_of_five
from tests.marked import table

#: names of the kinds on the page
NAMES: Mapping[Kind, str] = {
    "products": "products",
    "decode": "attention, single tokens",
    "prompt": "attention, prompts",
    "collectives": "collectives (NCCL)",
}
HEADINGS = (
    "kernels",
    "card",
    "n",
    "median error",
    "four of five",
    "bias",
    "the fitted part",
    "the rest",
)
#: columns and sums of the products whose rows are compared with their neighbors
JUMPED = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (1024, 8192), (512, 512))
_MAX_ROWS = 2100

Errors = Sequence[tuple[Case, float]]


def kernels(truth: Path) -> Section:
    """Return the errors by card and by region, and the largest jump between neighboring rows."""
    found = {kind: _errors(truth, kind) for kind in NAMES}
    by_card = [row for kind, errors in found.items() for row in _by_card(kind, errors)]
    regions = [row for kind, errors in found.items() for row in _by_region(kind, errors)]
    jumps = [(CARDS[card], *_largest_jump(card)) for card in CARDS]
    blocks = {
        "kernels": table(HEADINGS, by_card),
        "kernel-regions": table(("kernels", "size", *HEADINGS[2:6], *HEADINGS[6:]), regions),
        "kernel-jumps": table(("card", "columns × sums", "rows", "longer by"), jumps),
    }
    summary = [_summary(kind, errors) for kind, errors in found.items()]
    return Section(summary, {name: f"\n{text}\n" for name, text in blocks.items()})


def _errors(truth: Path, kind: Kind) -> Errors:
    every = []
    for card in CARDS:
        cases = cases_of(truth, kind, card)
        every += list(zip(cases, estimates(cases), strict=True))
    return every


def _summary(kind: Kind, errors: Errors) -> tuple[str, str, str, str]:
    apart = _far_off([each for each in errors if each[0].is_apart])
    result = f"median error {percent(_far_off(errors).median)} (held out {percent(apart.median)})"
    return f"kernels, {NAMES[kind]}", "aiconfigurator's tables", f"{len(errors):,}", result


def _by_card(kind: Kind, errors: Errors) -> Iterator[tuple[object, ...]]:
    for card, name in CARDS.items():
        chosen = [each for each in errors if each[0].card == card]
        yield NAMES[kind], name, *_cells(chosen)
    if kind in ("decode", "prompt"):
        longer = [each for each in errors if each[0].seconds > 50e-6]
        yield f"{NAMES[kind]}, above 50 µs", "all", *_cells(longer)


def _by_region(kind: Kind, errors: Errors) -> Iterator[tuple[object, ...]]:
    bounds = (0, *REGIONS[kind], None)
    for region, (least, most) in enumerate(pairwise(bounds)):
        chosen = [each for each in errors if each[0].region == region]
        if most is None:
            size = f"above {least:,}"
        else:
            size = f"up to {most:,}"
        yield NAMES[kind], f"{size} {UNITS[kind]}", *_cells(chosen)


def _cells(errors: Errors) -> Iterator[str]:
    """Yield the number, the errors of all, and those of both parts."""
    found = _far_off(errors)
    yield f"{len(errors):,}"
    yield percent(found.median)
    yield percent(_four_of_five(errors))
    yield f"{found.bias:.2f}"
    for is_apart in (False, True):
        part = [each for each in errors if each[0].is_apart is is_apart]
        yield f"{percent(_far_off(part).median)}, {percent(_four_of_five(part))}" if part else "—"


def _far_off(errors: Errors) -> FarOff:
    return far_off([time for _, time in errors], [case.seconds for case, _ in errors])


def _four_of_five(errors: Errors) -> float:
    """Return the error that four of five do not exceed, as a share of the measured time."""
    return four_of_five([abs(time / case.seconds - 1) for case, time in errors])


def _largest_jump(card: str) -> tuple[str, str, str]:
    """Return the product, the rows and by how much longer it takes with one row more."""
    found = (0.0, "", "")
    for columns, sums in JUMPED:
        rows = range(1, _MAX_ROWS)
        times = estimates([product_case(card, (m, columns, sums)) for m in rows])
        for m, (before, after) in zip(rows, pairwise(times), strict=False):
            found = max(
                found, (after / before - 1, f"{columns:,} × {sums:,}", f"{m:,} → {m + 1:,}")
            )
    longer, product, place = found
    return product, place, percent(longer)
