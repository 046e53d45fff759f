"""Limits on results, such as a memory estimate, instead of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.plan_result import Plan
from torchscan.analyses.roofline import Roofline
from torchscan.budgets.outcome import Outcome, basis_of, compare_with_limits
from torchscan.budgets.result_kinds import RESULT_KINDS, ResultKind
from torchscan.errors import Argument, Give, InputError
from torchscan.measures import Measure
from torchscan.metric_limits import limits_in, limits_of
from torchscan.metrics import PER_SAMPLE
from torchscan.report.data import require_info

#: what a budget takes in place of a model
LimitedResult = Mapping[str, Any] | MemoryEstimate | Roofline | Generation | Plan


def check_result(
    result: Any,
    kind: ResultKind,
    limits: Mapping[str, float | str],
    *,
    strict: bool = True,
    per_sample: bool = False,
    others: Iterable[str] = (),
) -> Outcome:
    """Check a result against limits by name; ``others`` are arguments that only models take."""
    unused = next(iter(others), None)
    if unused is not None:
        message = f" is for a model, and this is {kind.label}: leave it out, or give the model"
        raise InputError(Argument(unused), message)
    if isinstance(result, Mapping):
        require_info(result, "this dict")
    numbers = numbers_of(limits, kind.metrics, kind.label, kind.example)
    samples = 1
    if per_sample:
        samples = _require_samples(result, kind, numbers)
    metrics = {name: _divided(name, kind.metrics[name], samples) for name in numbers}
    outcome = compare_with_limits(
        kind.title(result),
        result,
        metrics,
        numbers,
        lambda name, answer: kind.layers(name, answer, samples),
        strict=strict,
        remarks=kind.remarks(result),
    )
    basis = basis_of(kind.batch_size(result), is_per_sample=per_sample)
    timed = kind.timed(result) if "latency" in numbers else ""
    return outcome.with_basis(basis, timed, is_per_sample=per_sample)


def numbers_of(
    limits: Mapping[str, float | str | None],
    metrics: Mapping[str, Measure[Any]],
    label: str,
    example: str,
) -> dict[str, float]:
    """Return limits by metric as numbers, and refuse those of other results, and none at all."""
    known = limits_in(metrics)
    given = {name: value for name, value in limits.items() if value is not None}
    if not given:
        raise InputError(f"there is no limit for {label}: give one, such as {example}")
    wrong = next((name for name in given if name not in known), None)
    if wrong is not None:
        *first, last = known
        choices = f"{', '.join(first)} or {last}" if first else last
        places = [kind.source for kind in RESULT_KINDS if wrong in limits_in(kind.metrics)]
        advice = f", or what {places[0]} returns" if places else ""
        raise InputError(f"{wrong} is not a limit of {label}: give {choices}{advice}")
    return limits_of(given, metrics)


def require_divided(names: Iterable[str], divided: Iterable[str], label: str) -> None:
    """Refuse limits per sample if none of the limited metrics is divided by the batch size."""
    choices = [f"max_{name}" for name in divided if name in PER_SAMPLE]
    if set(PER_SAMPLE).isdisjoint(names):
        advice = f"give {', '.join(choices)}, or leave it out" if choices else "leave it out"
        raise InputError(
            Argument("per_sample"), f" is True, and no limit of {label} is divided: {advice}"
        )


def _require_samples(result: Any, kind: ResultKind, names: Iterable[str]) -> int:
    require_divided(names, kind.metrics, kind.label)
    samples = kind.batch_size(result)
    if samples is None:
        raise InputError(
            Argument("per_sample"),
            " is True, and the batch size is not known: give ",
            Give("input_shape"),
            " and ",
            Give("batch_size"),
            f" to {kind.source}",
        )
    return samples


def _divided(name: str, metric: Measure[Any], samples: int) -> Measure[Any]:
    if samples == 1 or name not in PER_SAMPLE:
        return metric

    def quotient(answer: Any) -> float:
        return float(metric.value(answer) / samples)

    return replace(metric, value=quotient)
