"""The baseline of a budget: the info of an earlier model, which a model may exceed by a share."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from torchscan.budgets.budget_definition import BASELINE_METRICS, Budget
from torchscan.budgets.excess_layers import MAX_LAYERS, Layers
from torchscan.budgets.outcome import Excess
from torchscan.errors import InputError
from torchscan.files import write_text
from torchscan.metrics import METRICS, PER_SAMPLE
from torchscan.notes import Note
from torchscan.report.columns import full_name_of
from torchscan.report.comparison import Comparison, compare_infos
from torchscan.report.data import read_report
from torchscan.report.info import Info

#: parts of a pass that must be the same to be compared; another torch or torchscan may count more
_QUESTION = ("inputs", "batch_size", "mode", "convention", "backward")


class Baseline:
    """The baseline of a budget, in a file."""

    def __init__(self, budget: Budget, path: Path) -> None:
        self._budget = budget
        self._path = path

    def record(self, info: Info) -> Note:
        """Write a new baseline, and return a note of it."""
        write_text(self._path, info.to_json())
        return Note.of("baseline-recorded", path=self._relative_path)

    def compare(
        self, info: Info, values: Mapping[str, float], samples: int
    ) -> tuple[list[Excess], list[Note]]:
        """Return the metrics that exceed the baseline, and a note if all others are below it."""
        before = self._read()
        comparison = compare_infos(before, info)
        self._require_same_question(comparison)
        excesses: list[Excess] = []
        shrunk: list[str] = []
        for name in BASELINE_METRICS:
            metric = METRICS[name]
            value = values[name]
            divisor = samples if name in PER_SAMPLE else 1
            old = metric.of_info(before["overall"]) / divisor
            # without binary rounding: 15 % more than 100 is 115, not slightly less
            tolerance = Fraction(str(self._budget.tolerance.get(name, 0.0)))
            allowed = float(Fraction(old) * (1 + tolerance))
            if value > allowed:
                layers = _find_grown_layers(name, comparison, divisor)
                excesses.append(
                    Excess(metric=name, value=value, allowed=allowed, before=old, layers=layers)
                )
            if value < old:
                shrunk.append(metric.heading)
        if excesses or not shrunk:
            return excesses, []
        return excesses, [Note.of("below-baseline", metrics=shrunk)]

    @property
    def _relative_path(self) -> str:
        """The path, relative to the current folder if possible."""
        here = Path.cwd()
        return str(self._path.relative_to(here) if self._path.is_relative_to(here) else self._path)

    def _read(self) -> Info:
        if not self._path.exists():
            raise InputError.about(
                self._budget.place,
                f"there is no baseline {self._relative_path!r} yet: record it with `torchscan "
                "check --update` or `pytest --torchscan-update`",
            )
        try:
            return read_report(self._path)
        except InputError as error:
            raise InputError.about(
                self._budget.place, "reading the baseline failed: ", error
            ) from error

    def _require_same_question(self, comparison: Comparison) -> None:
        """Raise an InputError if the baseline is one for other inputs, which can't be compared."""
        differ = [key for key in _QUESTION if key in comparison.passes]
        if differ:
            parts = ", ".join([key.replace("_", " ") for key in differ])
            raise InputError.about(
                self._budget.place,
                f"the baseline was recorded with other {parts}: record it again with `torchscan "
                "check --update`",
            )


def _find_grown_layers(name: str, comparison: Comparison, divisor: int) -> Layers:
    keys, text = METRICS[name].keys, METRICS[name].text
    grown = comparison.grown(*keys)
    layers: list[tuple[str, str]] = []
    for each in grown[:MAX_LAYERS]:
        difference = f"+{text(each.difference(*keys) / divisor)}"
        if each.kind == "added":
            difference = f"new, {difference}"
        layers.append((f"{full_name_of(each.layer)} ({each.layer['type']})", difference))
    if len(grown) > MAX_LAYERS:
        layers.append((f"… and {len(grown) - MAX_LAYERS} more layers", ""))
    return tuple(layers)
