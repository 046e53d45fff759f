"""Estimated beside measured times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import get_args

from benchmark_records import is_apart, rows_of
from benchmark_roofline import Outcome, Question, outcomes_of
from truth_section import Section, lines, percent

from tests.far_off import FarOff, far_off, rounded_up
from tests.marked import table
from tests.stated_accuracy import range_of, stated
from torchscan.analyses.roofline.error_margin import Kind, Mode
from torchscan.hardware.device_specs import device_named


@dataclass(frozen=True, slots=True)
class Measured:
    """A table of measured times."""

    table: str
    card: str
    mode: Mode

    @property
    def name(self) -> str:
        """As the page has it."""
        return f"{self.mode}, {self.card}"


MEASURED = (
    Measured("throughput_rtx3090.csv", "RTX 3090", "eager"),
    Measured("throughput_rtx4090.csv", "RTX 4090", "eager"),
    Measured("throughput_rtx4090_compiled.csv", "RTX 4090", "compiled"),
    Measured("training_rtx3090.csv", "RTX 3090", "training"),
)
#: the table that the constants of eager passes were fitted to
FITTED = MEASURED[:1]

CHANGED = "the model has changed since it was measured"
FUSED = "measured with a fused RMS norm (apex's, or torch's), which is not what is recorded"
CLOCK = "the GPU runs above the clock of its data sheet"
UNKNOWN = "no known reason"
#: table, models, why they were measured faster than the bound
FASTER: tuple[tuple[str, str, str], ...] = (
    ("*", "ecaresnext50t_32x4d", CHANGED),
    ("*", "vit_*_patch1[46]_xp*", FUSED),
    ("eager, RTX 3090", "vit_giant_*", CLOCK),
    ("eager, RTX 3090", "vit_gigantic_*", CLOCK),
    ("eager, RTX 3090", "eva_giant_*", CLOCK),
    ("eager, RTX 3090", "convnext_xxlarge", CLOCK),
    ("eager, RTX 4090", "hieradet_small", CLOCK),
)
#: no further off than this can a clock explain
CLOCK_EXPLAINS = 1.03
HEADINGS = ("what", "models", "median error", "four of five", "range", "bias", "ranks")


def times(truth: Path) -> Section:
    """Of every table."""
    outcomes = {each: _outcomes(truth, each) for each in MEASURED}
    done = {
        measured: [each for each in every if not each.problem]
        for measured, every in outcomes.items()
    }
    blocks = {
        "time": table(HEADINGS, _rows(done)),
        "held-out": table(("what", *HEADINGS[1:4], "bias"), _held_out(done)),
        "worst": table(("what", "model", "batch", "estimate ÷ measured"), _worst(done)),
        "faster": f"{lines(_how_many_faster(done))}\n{table(('what', 'model', 'bound ÷ measured', 'why'), _faster(done))}",
        "without": table(("what", "models", "why there is no estimate"), _without(outcomes)),
    }
    summary = [
        *(_summary(measured, every) for measured, every in done.items()),
        _summary_of_faster(done),
    ]
    return Section(summary, {name: f"\n{text}\n" for name, text in blocks.items()})


def _outcomes(truth: Path, measured: Measured) -> list[Outcome]:
    card = device_named(f"NVIDIA GeForce {measured.card}")
    return outcomes_of(rows_of(truth / measured.table), Question(card, measured.mode))


def _summary(measured: Measured, outcomes: Sequence[Outcome]) -> tuple[str, str, str, str]:
    found, apart = _far_off(outcomes), _far_off(_apart(outcomes))
    beside = "constants fitted to it" if measured in FITTED else f"held out {percent(apart.median)}"
    result = f"median error {percent(found.median)} ({beside})"
    return f"time, {measured.name}", "timm's tables", f"{found.models:,}", result


def _rows(done: dict[Measured, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    for measured, kind, outcomes in _by_kind(done):
        yield _row(measured, kind, _far_off(outcomes), _far_off(_apart(outcomes)))


def _apart(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [each for each in outcomes if is_apart(each.row)]


def _row(measured: Measured, kind: Kind, found: FarOff, apart: FarOff) -> tuple[str, ...]:
    """The range is that of all models, or of those held out if that is wider."""
    return (
        f"{measured.name}, {kind}",
        f"{found.models:,}",
        percent(found.median),
        f"± {percent(found.kept)}",
        range_of(rounded_up(max(found.kept, apart.kept))),
        f"{found.bias:.2f}",
        f"{found.ranks:.3f}",
    )


def _held_out(done: dict[Measured, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    """Both parts of each."""
    for measured, kind, outcomes in _by_kind(done):
        for name, part in (("the others", False), ("held out", True)):
            found = _far_off([each for each in outcomes if is_apart(each.row) is part])
            what, models, median, kept, _, bias, _ = _row(measured, kind, found, found)
            yield f"{what}: {name}", models, median, kept, bias


def _by_kind(done: dict[Measured, list[Outcome]]) -> Iterator[tuple[Measured, Kind, list[Outcome]]]:
    for measured, outcomes in done.items():
        for kind in get_args(Kind):
            yield measured, kind, [each for each in outcomes if each.kind == kind]


def _far_off(outcomes: Sequence[Outcome]) -> FarOff:
    return far_off([each.estimate for each in outcomes], [each.row.seconds for each in outcomes])


def _worst(done: dict[Measured, list[Outcome]]) -> Iterator[tuple[object, ...]]:
    """Of each kind the two whose ratio is farthest from one, either way."""
    for measured, kind, outcomes in _by_kind(done):
        farthest = sorted(outcomes, key=lambda each: -max(each.ratio, 1 / each.ratio))
        yield from (
            (f"{measured.name}, {kind}", *_name(each), f"{each.ratio:.2f}") for each in farthest[:2]
        )


def _name(each: Outcome) -> tuple[str, int]:
    size = "" if each.row.model.endswith(f"_{each.row.size}") else f", {each.row.size}"
    return f"{each.row.model}{size}", each.row.batch


def _how_many_faster(done: dict[Measured, list[Outcome]]) -> str:
    parts = [
        f"{sum(each.is_faster for each in every)} of {len(every):,} ({measured.name})"
        for measured, every in done.items()
    ]
    return f"{', '.join(parts)}."


def _summary_of_faster(done: dict[Measured, list[Outcome]]) -> tuple[str, str, str, str]:
    reasons = [why for *_, why in _faster(done)]
    known = (
        "every one"
        if UNKNOWN not in reasons
        else f"{len(reasons) - reasons.count(UNKNOWN)} of them"
    )
    result = f"{len(reasons)} faster, {known} for a known reason"
    return (
        "nothing is faster than the bound",
        "timm's tables",
        f"{sum(map(len, done.values())):,}",
        result,
    )


def _faster(done: dict[Measured, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    for measured, outcomes in done.items():
        for each in sorted(
            (each for each in outcomes if each.is_faster),
            key=lambda each: -each.bound / each.row.seconds,
        ):
            ratio = each.bound / each.row.seconds
            yield (
                measured.name,
                _name(each)[0],
                f"{ratio:.3f}",
                _reason(measured.name, each.row.model, ratio),
            )


def _reason(name: str, model: str, ratio: float) -> str:
    found = next(
        (why for where, which, why in FASTER if fnmatch(name, where) and fnmatch(model, which)), ""
    )
    is_known = found and (found != CLOCK or ratio <= CLOCK_EXPLAINS)
    return found if is_known else UNKNOWN


def _without(outcomes: dict[Measured, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    for measured, every in outcomes.items():
        models: dict[str, list[str]] = {}
        for each in every:
            if each.problem:
                models.setdefault(_why(each.problem), []).append(each.row.model)
        yield from ((measured.name, ", ".join(names), why) for why, names in models.items())


def _why(problem: str) -> str:
    return (
        "timm has none of this name any more"
        if problem.startswith(("Unknown model", "Invalid pretrained tag"))
        else problem
    )


def differences(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Where the package says something else than the page's table of times."""
    found = {row[0]: (row[1], row[4]) for row in rows}
    for name, said in stated().items():
        if found.get(name) != said:
            yield f"{name}: spread.py says {' models, '.join(said)}; found were {' models, '.join(found.get(name, ('none',)))}"
