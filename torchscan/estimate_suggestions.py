"""The suggestions for an estimate of memory or time, and estimates that ask again for more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from torchscan.analyses.suggestions_result import Answers, Asker, SuggestionMetric, Suggestions
from torchscan.device_estimates import DeviceEstimates
from torchscan.errors import InputError
from torchscan.hardware.device_specs import Device
from torchscan.pass_changes import Change, Situation, for_memory, for_time
from torchscan.precisions import checked_precision
from torchscan.question import Question
from torchscan.recorded_pass import RecordedPass, find_overflow, kernels_of
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.suggestions import Answer, suggestions_of
from torchscan.units import share


def suggest_for_memory(estimates: DeviceEstimates) -> Suggestions:
    """Return changes that save memory."""
    metric: SuggestionMetric = "peak_bytes"
    if estimates.gpu is not None:
        metric = "reserved_bytes"
    step = estimates.step
    situation = _situation_of(estimates, estimates.device, step)
    changes = for_memory(replace(situation, layers=step.timeline.layers))

    def ask(change: Change) -> Answer:
        estimate = estimates.with_change(change).memory
        verdict = estimate.verdict
        if verdict is None:
            return Answer(estimate.peak_bytes)
        return Answer(verdict.reserved_bytes, fits=verdict.fits)

    return suggestions_of(metric, estimates.label, changes, ask)


def suggest_for_time(estimates: DeviceEstimates) -> Suggestions:
    """Return changes that save time."""
    target = estimates.target
    changes = for_time(_situation_of(estimates, target, estimates.step_on_target))
    text = estimates.label
    roofline = estimates.roofline
    for limiter, time in roofline.time_by_limiter.items():
        if time:
            part = share(time / roofline.time_estimate)
            text = f"{text}; limited by {limiter} ({part} of the time)"
            break  # the first one limits most of the time

    def ask(change: Change) -> Answer:
        changed = estimates.with_change(change)
        if change.is_of_batch:
            step = changed.step_for(kernels_of(target))
            if find_overflow(step, target):
                raise InputError(f"twice as many samples do not fit on {target.name}")
        answer = changed.roofline
        return Answer(answer.time_estimate, error_share=answer.error_margin.share)

    return suggestions_of("time_estimate", text, changes, ask)


def asker_of(question: Question, ask: Callable[..., Answers]) -> Asker[Answers]:
    """Return an object that asks a question again, of the model as it is then.

    It holds neither estimates nor the model.
    """
    names = [each.name for each in fields(Question) if each.name != "module"]
    arguments = {name: getattr(question, name) for name in names}

    def ask_again(module: nn.Module, *options: Any) -> Answers:
        return ask(DeviceEstimates(Question(module=module, **arguments)), *options)

    return Asker(question.module, ask_again)


def _situation_of(
    estimates: DeviceEstimates, device: Device | None, step: RecordedPass
) -> Situation:
    question, trace = estimates.question, step.trace
    batch_size = None
    if question.input_shape is not None and trace.provenance.execution == "abstract":
        batch_size = question.batch_size
    on_gpu = is_on_cuda(question.module) if device is None else device.has_allocator
    formats = None
    if device is not None and device.flops_per_second:
        formats = frozenset(device.flops_per_second)
    is_single = any(each.dtype is torch.float32 for each in question.module.parameters())
    return Situation(
        training=question.training,
        precision=checked_precision(question.precision),
        compiled=estimates.is_compiled,
        optimizer=question.optimizer,
        batch_size=batch_size,
        on_gpu=on_gpu,
        formats=formats,
        is_single=is_single,
        has_convolutions=any("convolution" in op.signature.operator for op in trace.ops),
    )
