"""Whether a model stays within its limits, and if not, which layers are to blame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from torchscan.budgets.budget_file import BASELINE_METRICS, Budget
from torchscan.budgets.generation_limits import check_generation
from torchscan.budgets.outcome import (
    MAX_LAYERS,
    Excess,
    Layers,
    Outcome,
    bounds_among,
    excesses_among,
    launch_overhead,
    shares_off_among,
    slowest,
)
from torchscan.budgets.real_step import check_step_time
from torchscan.errors import BudgetError, InputError
from torchscan.escapes import printable
from torchscan.files import write_text
from torchscan.metrics import METRICS, Metric, activation_peak, limits_of, require_device
from torchscan.question import DEFAULTS
from torchscan.recording.arguments import DEFINITIONS, StepArguments
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.report.columns import full_name_of
from torchscan.report.comparison import Comparison, compare
from torchscan.report.data import read_report
from torchscan.report.info import Info
from torchscan.scan import Scan
from torchscan.signatures import spelled_out
from torchscan.targets import Built, inputs_of, with_model


class Limits(TypedDict, total=False):
    """Upper limits of what a model may have or cost, as numbers or as text with a unit.

    Bare numbers are counts, bytes and seconds. A latency of 10 seconds or more needs a unit: 60 may be meant as 60 ms.

    Args:
        max_params: parameters: ``25e6`` or ``"25M"``.
        max_trainable_params: parameters that require gradients.
        max_model_size: bytes of parameters and buffers: ``"100 MiB"``.
        max_macs: multiply-accumulates of the forward pass: ``"4.2G"``.
        max_flops: floating-point operations of the forward pass.
        max_dmas: memory accesses of the forward pass, in elements.
        max_activation_memory: peak bytes of activations.
        max_peak_memory: peak bytes of everything.
        max_latency: the estimated time on ``device``: ``"12 ms"``.
    """

    max_params: float | str | None
    max_trainable_params: float | str | None
    max_model_size: float | str | None
    max_macs: float | str | None
    max_flops: float | str | None
    max_dmas: float | str | None
    max_activation_memory: float | str | None
    max_peak_memory: float | str | None
    max_latency: float | str | None


class BudgetArguments(StepArguments, Limits, total=False):
    """The arguments of a scan, and the limits."""


@spelled_out(DEFAULTS, [*DEFINITIONS, Limits])
def assert_budget(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    strict: bool = True,
    per_sample: bool = False,
    **asked: Unpack[BudgetArguments],
) -> None:
    """Raise :class:`BudgetError`, an ``AssertionError``, if a metric of ``module`` exceeds its limit.

    Args:
        strict: raise :class:`UnpricedError` if a limited cost is a lower bound, since it can't be shown to stay within a limit.
        per_sample: divide costs (MACs, FLOPs, DMAs, latency) by ``batch_size`` before they are compared with their limits.
    """
    __tracebackhide__ = True  # pytest shows the test, and the message
    given: dict[str, Any] = dict(asked)
    limits = limits_of({name: given.pop(name, None) for name in Limits.__annotations__})
    if not limits:
        raise InputError(
            'no limit was given: try assert_budget(model, (3, 224, 224), max_params="25M")'
        )
    budget = Budget(name=type(module).__name__, limits=limits, strict=strict, per_sample=per_sample)
    outcome = check_model(budget, Scan(module, input_shape, dtype, **given))
    if not outcome.is_fine:
        raise BudgetError(str(outcome))


def check_budget(
    budget: Budget, *, update: bool = False, timings: bool = False, is_own_process: bool = True
) -> Outcome:
    """Build the target of a budget and check it.

    Args:
        update: record a new baseline.
        timings: take real steps, and check their time.
        is_own_process: see :func:`with_model`.
    """
    if budget.target is None:
        raise InputError(
            f"{budget.place}: there is no target to build: give one, or check the budget in a test"
        )

    def check(built: Built) -> Outcome:
        return check_built(budget, built.converted(budget.dtype), update=update)

    outcome = with_model(budget.target, check, folder=budget.folder, is_own_process=is_own_process)
    step = check_step_time(budget, budget.target, timings=timings)
    remarks = (*outcome.remarks, *filter(None, [step.remark]))
    return replace(outcome, remarks=remarks, step=step.taken, too_slow=step.excess)


def check_built(budget: Budget, built: Built, *, update: bool = False, **given: Any) -> Outcome:
    """Check an existing model, its pass and what it generates; ``given`` arguments take precedence."""
    outcome = Outcome(name=printable(budget.name), values={})
    if budget.generation is None or budget.limits or budget.baseline is not None:
        outcome = check_model(budget, scan_for(budget, built, **given), update=update)
    return (
        outcome
        if budget.generation is None
        else outcome.joined(check_generation(budget, budget.generation, built, given))
    )


def check_model(budget: Budget, scan: Scan, *, update: bool = False) -> Outcome:
    """Check an existing model, which takes no steps. With ``update``, a new baseline is recorded, and can't be exceeded."""
    wanted = list(
        dict.fromkeys([*budget.limits, *(BASELINE_METRICS if budget.baseline is not None else ())])
    )
    require_device(wanted, scan.question.device)
    batch = _Batch.of(budget, scan)
    metrics = {name: batch.measured(METRICS[name]) for name in wanted}
    bounds = bounds_among(budget.place or budget.name, scan, metrics, strict=budget.strict)
    values = {name: metric.value(scan) for name, metric in metrics.items()}
    bases = {name: batch.basis for name in wanted if METRICS[name].is_cost and batch.basis}
    excesses = [
        replace(each, basis=bases.get(each.metric, ""))
        for each in excesses_among(scan, metrics, budget.limits, batch.largest)
    ]
    remarks: list[str] = []
    if budget.baseline is not None:
        if update:
            remarks.append(_record_baseline(budget, scan.forward.counts))
        else:
            counted = {name: METRICS[name].value(scan) for name in BASELINE_METRICS}
            grown, remarks = _against_baseline(budget, scan.forward.counts, counted)
            excesses += grown
    return Outcome(
        name=printable(budget.name),
        values=values,
        excesses=tuple(excesses),
        remarks=tuple(remarks),
        bounds=bounds,
        bases=bases,
        shares_off=shares_off_among(scan, metrics),
    )


def scan_for(budget: Budget, built: Built, **given: Any) -> Scan:
    """The scan that a budget asks for; ``given`` arguments take precedence."""
    names = ("batch_size", "mode", "training", "optimizer", "precision", "device")
    has_inputs = not {"input_shape", "args", "kwargs"}.isdisjoint(given)
    inputs = (
        {}
        if has_inputs
        else inputs_of(str(budget.target or budget.place), built, budget.inputs, budget.dtype)
    )
    return Scan(
        built.module, **{**{name: getattr(budget, name) for name in names}, **inputs, **given}
    )


# -- limits --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The samples that costs are of: those of the batch, or one of them."""

    #: what costs are divided by
    samples: int
    #: "for a batch of 32", "per sample"; "" if there is one sample
    basis: str

    @classmethod
    def of(cls, budget: Budget, scan: Scan) -> _Batch:
        """Return the samples that the limits of a budget are of."""
        size = scan.question.batch_size
        is_limited = any(METRICS[name].is_cost for name in budget.limits)
        if budget.per_sample and is_limited and scan.question.input_shape is None:
            raise InputError(
                "per_sample is True and the size of the batch is not known: give input_shape= and batch_size= instead of args="
            )
        if budget.per_sample:
            return cls(samples=size, basis="per sample" if size > 1 else "")
        is_batch = size > 1 and scan.question.input_shape is not None
        return cls(samples=1, basis=f"for a batch of {size:,}" if is_batch else "")

    def measured(self, metric: Metric) -> Metric:
        """Return the metric of these samples; parameters and memory are of the whole pass."""
        if self.samples == 1 or not metric.is_cost:
            return metric
        return replace(metric, value=lambda scan: metric.value(scan) / self.samples)

    def largest(self, name: str, scan: Scan) -> Layers:
        """Return the layers that have the most of a metric; for memory and times, those of the estimates."""
        if METRICS[name].keys:
            return _largest_layers(
                METRICS[name], scan, self.samples if METRICS[name].is_cost else 1
            )
        return _largest_of_estimates(name, scan, is_per_sample=self.samples > 1)


def _largest_of_estimates(name: str, scan: Scan, *, is_per_sample: bool) -> Layers:
    if name == "activation_memory" and (moment := activation_peak(scan)) is not None:
        return ((f"peak in {moment.layer or 'the model'}", moment.operator),)
    if name == "peak_memory":
        return ((f"peak in {scan.memory.peak_layer or 'the model'}", scan.memory.peak_operator),)
    return launch_overhead(scan.roofline, is_per_sample=is_per_sample) or _slowest_layers(scan)


def _largest_layers(metric: Metric, scan: Scan, samples: int) -> Layers:
    largest = sorted(scan.forward.counts["layers"], key=metric.of_info, reverse=True)[:MAX_LAYERS]
    owning = [layer for layer in largest if metric.of_info(layer)]
    return tuple(
        (f"{full_name_of(layer)} ({layer['type']})", metric.text(metric.of_info(layer) / samples))
        for layer in owning
    )


def _slowest_layers(scan: Scan) -> Layers:
    leaves = {call.path for call in scan.steps.modules if not call.children}
    return slowest([each for each in scan.roofline.layers if each.name in leaves])


# -- baselines -----------------------------------------------------------------------------------------------------------


def _record_baseline(budget: Budget, info: Info) -> str:
    assert budget.baseline is not None  # noqa: S101 - or there is nothing to update
    write_text(budget.baseline, info.to_json())
    return f"baseline recorded in {_from_here(budget.baseline)}"


def _against_baseline(
    budget: Budget, info: Info, values: Mapping[str, float]
) -> tuple[list[Excess], list[str]]:
    assert budget.baseline is not None  # noqa: S101 - it is what was asked for
    if not budget.baseline.exists():
        raise InputError(
            f"{budget.place}: there is no baseline {_from_here(budget.baseline)!r} yet: "
            "record it with torchscan check --update, or pytest --torchscan-update"
        )
    try:
        before = read_report(budget.baseline)
    except InputError as error:
        raise InputError(f"{budget.place}: the baseline cannot be used: {error}") from error
    comparison = compare(before, info)
    _require_same_question(budget, comparison)
    old = {name: float(METRICS[name].of_info(before["overall"])) for name in BASELINE_METRICS}
    excesses = [
        Excess(
            metric=name,
            value=values[name],
            allowed=allowed,
            before=old[name],
            layers=tuple(_grown(name, comparison)),
        )
        for name in BASELINE_METRICS
        if values[name] > (allowed := _more(old[name], budget.tolerance.get(name, 0.0)))
    ]
    shrunk = [METRICS[name].heading for name in BASELINE_METRICS if values[name] < old[name]]
    hint = f"less than the baseline: {', '.join(shrunk)}; record it anew to keep it so (--update)"
    return excesses, [hint] if shrunk and not excesses else []


def _from_here(path: Path) -> str:
    """The path, relative to the current folder if possible."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _more(value: float, share: float) -> float:
    """``value`` and ``share`` more, without binary rounding: 15 % more than 100 is 115, not slightly less."""
    return float(Fraction(value) * (1 + Fraction(str(share))))


def _require_same_question(budget: Budget, comparison: Comparison) -> None:
    """Refuse a baseline for other inputs, which can't be compared. What another torch or torchscan counts more is growth."""
    differ = [
        key
        for key in ("inputs", "batch_size", "mode", "convention", "backward")
        if key in comparison.passes
    ]
    if differ:
        raise InputError(
            f"{budget.place}: the baseline was recorded with other {', '.join(each.replace('_', ' ') for each in differ)}: "
            "record it anew (--update)"
        )


def _grown(name: str, comparison: Comparison) -> list[tuple[str, str]]:
    keys, text = METRICS[name].keys, METRICS[name].text
    grown = comparison.grown(*keys)
    lines = [
        (
            f"{full_name_of(each.layer)} ({each.layer['type']})",
            f"{'new, ' if each.kind == 'added' else ''}+{text(each.difference(*keys))}",
        )
        for each in grown[:MAX_LAYERS]
    ]
    more = [(f"… and {len(grown) - MAX_LAYERS} more layers", "")] if len(grown) > MAX_LAYERS else []
    return lines + more
