"""Estimated against published step times: every model of a table, recorded on shapes and priced for the table's card."""

from __future__ import annotations

import re
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmark_records import PRECISION, Row, is_apart, recorded, rows_of

from tests.far_off import spearman
from torchscan import TorchscanError
from torchscan.analyses.roofline import Rates, roofline_of
from torchscan.analyses.roofline.analysis import kind_of
from torchscan.analyses.roofline.error_margin import Kind, Mode
from torchscan.hardware.device_specs import Device, device_named

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """A measurement with what is estimated, or why there is no estimate."""

    row: Row
    bound: float = 0.0
    estimate: float = 0.0
    kind: Kind = "convolutions"
    problem: str = ""

    @property
    def ratio(self) -> float:
        """Estimated by measured."""
        return self.estimate / self.row.seconds

    @property
    def is_faster(self) -> bool:
        """Measured in less than the bound."""
        return self.row.seconds < self.bound


@dataclass(frozen=True, slots=True)
class Question:
    """What was measured, on which card."""

    card: Device
    mode: Mode


def compare_step_times(path: Path, device: str, only: str, mode: Mode) -> int:
    """Print the errors over all rows, the families that are off, and the worst rows. Returns how many have no estimate."""
    if not path.exists():
        print(f"no measured step times at {path}")
        return 0
    question = Question(device_named(device), mode)
    start = time.perf_counter()
    outcomes = outcomes_of(
        [row for row in rows_of(path) if only.lower() in row.model.lower()], question
    )
    print(
        f"{len(outcomes)} measurements, {mode}, {question.card.name}, {PRECISION}; {time.perf_counter() - start:.0f} s"
    )
    done = [each for each in outcomes if not each.problem]
    for each in outcomes:
        if each.problem:
            print(f"{each.row.model} {each.row.size}: {each.problem}")
    if done:
        _print_errors(done)
    return len(outcomes) - len(done)


def outcomes_of(rows: list[Row], question: Question) -> list[Outcome]:
    """Of each measurement."""
    with ProcessPoolExecutor(WORKERS) as pool:
        return list(pool.map(_outcome, rows, [question] * len(rows), chunksize=8))


def _outcome(row: Row, question: Question) -> Outcome:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        trace = recorded(row, training=question.mode == "training")
        result = roofline_of(
            trace, Rates(question.card), precision=PRECISION, compiled=question.mode == "compiled"
        )
    except (TorchscanError, RuntimeError) as error:
        return Outcome(row, problem=str(error).splitlines()[0])
    return Outcome(row, result.time_bound, result.time_estimate, kind_of(result.operators))


def _print_errors(done: list[Outcome]) -> None:
    for name, part in (("two thirds", False), ("the other third", True)):
        outcomes = [each for each in done if is_apart(each.row) is part]
        if outcomes:
            print(f"{name}: {len(outcomes)} models")
            _print_error("estimate", [each.estimate for each in outcomes], outcomes)
            _print_error("bound", [each.bound for each in outcomes], outcomes)
    faster = [each for each in done if each.is_faster]
    names = ", ".join(
        f"{each.row.model} {each.row.size} ({each.bound / each.row.seconds:.2f})"
        for each in faster[:8]
    )
    print(f"measured faster than the bound: {len(faster)} {names}")
    families: dict[str, list[float]] = {}
    for each in done:
        families.setdefault(re.split(r"[_\d]", each.row.model)[0], []).append(each.ratio)
    off = sorted(
        families.items(), key=lambda item: -len(item[1]) * abs(statistics.median(item[1]) - 1)
    )
    print("\nfamilies, by how much they contribute:")
    for name, ratios in off[:15]:
        print(
            f"  {name:20}{len(ratios):4} models, median estimate ÷ measured {statistics.median(ratios):.2f}"
        )
    print("\nworst:")
    for each in sorted(done, key=lambda each: -abs(each.ratio - 1))[:15]:
        print(
            f"  {each.row.model:40}{each.row.size:5}{1000 * each.row.seconds:10.1f} ms measured, × {each.ratio:.2f}"
        )


def _print_error(name: str, times: list[float], done: list[Outcome]) -> None:
    errors = [abs(time / each.row.seconds - 1) for time, each in zip(times, done, strict=True)]
    order = spearman(times, [each.row.seconds for each in done])
    median, mean = 100 * statistics.median(errors), 100 * statistics.mean(errors)
    bias = statistics.median(
        time / each.row.seconds for time, each in zip(times, done, strict=True)
    )
    print(
        f"  {name:10} error: median {median:.2f} %, mean {mean:.2f} %; bias {bias:.3f}; Spearman {order:.4f}"
    )
