"""Checks of models: whether they stay within their budgets, and if not, in which layers to look."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from torchscan.budgets.baselines import Baseline
from torchscan.budgets.budget_definition import BASELINE_METRICS, Budget
from torchscan.budgets.excess_layers import (
    Layers,
    largest_layers,
    launch_overhead,
    peak_layer,
    slowest_layers,
)
from torchscan.budgets.generation_limits import check_generation
from torchscan.budgets.outcome import (
    Outcome,
    basis_of,
    bounds_among,
    excesses_among,
    shares_off_among,
)
from torchscan.budgets.real_step import check_step_time
from torchscan.budgets.result_limits import require_divided
from torchscan.errors import Argument, Give, InputError, TorchscanError
from torchscan.escapes import printable
from torchscan.hardware.device_specs import can_estimate_for
from torchscan.metrics import METRICS, Metric, require_device
from torchscan.notes import Note
from torchscan.scan import Scan
from torchscan.targets import Built, inputs_of, with_model


def check_budget(
    budget: Budget,
    *,
    update: bool = False,
    timings: bool = False,
    is_own_process: bool = True,
    shown: Collection[str] = (),
) -> Outcome:
    """Build the target of a budget and check it.

    Args:
        update: record a new baseline.
        timings: take real steps, and check their time.
        is_own_process: see :func:`with_model`.
        shown: metrics to report even if they have no limit.
    """
    if budget.target is None:
        raise InputError.about(
            budget.place, "there is no target to build: give one, or check the budget in a test"
        )

    def check(built: Built) -> Outcome:
        return check_built(budget, built.converted(budget.dtype), update=update, shown=shown)

    outcome = with_model(budget.target, check, folder=budget.folder, is_own_process=is_own_process)
    step = check_step_time(budget, budget.target, timings=timings)
    remarks = outcome.remarks if step.remark is None else (*outcome.remarks, step.remark)
    return replace(outcome, remarks=remarks, step=step.taken, too_slow=step.excess)


def check_built(
    budget: Budget,
    built: Built,
    *,
    update: bool = False,
    shown: Collection[str] = (),
    **given: Any,
) -> Outcome:
    """Check an existing model, its pass and what it generates.

    ``given`` arguments take precedence.
    """
    outcome = Outcome(name=printable(budget.name), values={})
    if budget.generation is None or budget.limits or budget.baseline is not None:
        scan = scan_for(budget, built, **given)
        outcome = check_model(budget, scan, update=update, shown=shown)
    if budget.generation is None:
        return outcome
    return outcome.joined(check_generation(budget, budget.generation, built, given))


def check_model(
    budget: Budget, scan: Scan, *, update: bool = False, shown: Collection[str] = ()
) -> Outcome:
    """Check an existing model, which takes no steps.

    With ``update``, a new baseline is recorded, and can't be exceeded. ``shown`` are metrics to
    report even if they have no limit.
    """
    compared = () if budget.baseline is None else BASELINE_METRICS
    wanted = list(dict.fromkeys([*budget.limits, *compared]))
    require_device(wanted, scan.question.device)
    batch = _Batch.of(budget, scan)
    metrics = {name: batch.measured(METRICS[name]) for name in wanted}
    bounds = bounds_among(budget.place or budget.name, scan, metrics, strict=budget.strict)
    values = {name: metric.value(scan) for name, metric in metrics.items()}
    excesses = list(excesses_among(scan, metrics, budget.limits, batch.largest))
    remarks: list[Note] = []
    if budget.baseline is not None:
        baseline = Baseline(budget, budget.baseline)
        if update:
            remarks.append(baseline.record(scan.forward.counts))
        else:
            counted = {name: metrics[name].value(scan) for name in BASELINE_METRICS}
            grown, remarks = baseline.compare(scan.forward.counts, counted, batch.samples)
            excesses += grown
    outcome = Outcome(
        name=printable(budget.name),
        values=values,
        excesses=tuple(excesses),
        remarks=tuple(remarks),
        bounds=bounds,
        error_shares=shares_off_among(scan, metrics),
        limits=budget.limits,
        shown=_texts_of(scan, [name for name in shown if name not in values], batch),
    )
    timed = scan.roofline.basis if "latency" in wanted else ""
    return outcome.with_basis(batch.basis, timed, is_per_sample=budget.per_sample)


def _texts_of(scan: Scan, names: Collection[str], batch: _Batch) -> dict[str, str]:
    """Return the values of metrics as text, without those that are not known for this model."""
    texts = {}
    for name in names:
        if name == "latency" and not can_estimate_for(scan.question.device):
            continue
        metric = batch.measured(METRICS[name])
        with contextlib.suppress(TorchscanError):
            basis = f" {batch.basis}" if metric.is_cost and batch.basis else ""
            texts[name] = f"{metric.read(scan)}{basis}"
    return texts


def scan_for(budget: Budget, built: Built, **given: Any) -> Scan:
    """Return the scan that a budget asks for; ``given`` arguments take precedence."""
    names = (
        *("batch_size", "mode", "training", "optimizer", "precision", "device"),
        "loop_iterations",
    )
    arguments: dict[str, Any] = {name: getattr(budget, name) for name in names}
    if {"input_shape", "args", "kwargs"}.isdisjoint(given):
        place = str(budget.target or budget.place)
        arguments |= inputs_of(place, built, budget.inputs, budget.dtype)
    return Scan(built.module, **{**arguments, **given})


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
        is_known = scan.question.input_shape is not None
        size = scan.question.batch_size if is_known else None
        if not budget.per_sample:
            return cls(samples=1, basis=basis_of(size, is_per_sample=False))
        if budget.baseline is None and budget.step_time is None:
            require_divided(budget.limits, METRICS, "a model")
        if size is None:
            raise InputError(
                Argument("per_sample"),
                " is True, and the batch size is not known: give ",
                Give("input_shape"),
                " and ",
                Give("batch_size"),
                " instead of ",
                Give("args"),
            )
        return cls(samples=size, basis=basis_of(size, is_per_sample=True))

    def measured(self, metric: Metric) -> Metric:
        """Return the metric of these samples; parameters and memory are of the whole pass."""
        if self.samples == 1 or not metric.is_cost:
            return metric
        return replace(metric, value=lambda scan: metric.value(scan) / self.samples)

    def largest(self, name: str, scan: Scan) -> Layers:
        """Return the layers that have the most of a metric.

        For memory and times, they are those of the estimates.
        """
        metric = METRICS[name]
        if metric.keys:
            samples = self.samples if metric.is_cost else 1
            return largest_layers(metric, scan.forward.counts["layers"], samples)
        if name in ("activation_memory", "peak_memory"):
            return peak_layer(name, scan.memory)
        overhead = launch_overhead(scan.roofline, is_per_sample=self.samples > 1)
        return overhead or slowest_layers(scan.roofline)
