"""Notes below the table of an inspection: findings, compilation, and how times were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.run import RunFacts
from torchscan.observing.compiling import CompiledFrame
from torchscan.report import finding_texts  # noqa: F401 - registers the sentences of findings

#: notes of one kind, before the rest is only counted
_MAX_NOTES = 5
#: share of the time in which the device waits for the host, from which a note reports it
_MIN_WAITING = 0.1


def remarks_of(run: RunFacts) -> list[str]:
    """Return the sources of NaN and Inf, alarms, compiled frames, and notes on the values."""
    results = [*describe_findings(run), *_alarms(run)]
    if run.skipped_steps:
        steps = f"{_steps(run.skipped_steps)} (first step {run.first_skipped})"
        results.append(f"GradScaler skipped {steps}, in which scaled gradients overflowed.")
    results += _compiled(run)
    return [*results, *_measured(run), *_checked(run), *_expected(run)]


class _InStep(Protocol):
    """An entry that belongs to a step."""

    @property
    def step(self) -> int:
        """Number of the step."""

    @property
    def is_evaluation(self) -> bool:
        """True if it is a pass of an evaluation."""

    @property
    def description(self) -> str:
        """The sentence about it, without the step."""


F = TypeVar("F", bound=_InStep)


def describe_findings(run: RunFacts) -> list[str]:
    """Return a sentence for each place with NaN or Inf, and how many later steps have some."""
    findings = run.nonfinite
    notes = _describe_groups(
        findings,
        lambda found: (found.path, found.phase, found.is_evaluation),
        _most_specific,
        "sources are in run.facts.nonfinite",
    )
    later = run.nonfinite_steps - len(findings)
    if later > 0:
        verb = "step also has" if later == 1 else "steps also have"
        notes.append(f"{later} later {verb} NaN or Inf.")
    return notes


def _most_specific(group: Sequence[NonFinite]) -> NonFinite:
    """Return the finding that names its source. On a device, only later ones than the first do."""
    for found in group:
        if found.operator is not None or found.origin is not None:
            return found
    return group[0]


def _alarms(run: RunFacts) -> list[str]:
    alarms = [each for each in run.checked if each.message is not None]
    return _describe_groups(
        alarms,
        lambda alarm: (alarm.check, alarm.path, alarm.kind, alarm.is_evaluation),
        lambda group: group[0],
        "alarms are in run.facts.checked",
    )


def _describe_groups(
    found: Iterable[F],
    key: Callable[[F], Hashable],
    choose: Callable[[Sequence[F]], F],
    others: str,
) -> list[str]:
    """Describe one of each group with the same key, and in how many steps there are such."""
    groups: dict[Hashable, list[F]] = defaultdict(list)
    for each in found:
        groups[key(each)].append(each)
    shown = list(groups.values())[:_MAX_NOTES]
    described = [f"{_when(group)}: {choose(group).description}." for group in shown]
    return [*described, *_more(len(groups), others)]


def _when(group: Sequence[_InStep]) -> str:
    steps = {each.step for each in group}
    if group[0].is_evaluation:
        one, several = "evaluation pass", "evaluation passes"
    else:
        one, several = "step", "steps"
    first = min(group, key=lambda each: each.step)
    updates = getattr(first, "update", None)
    number = f"{first.step}"
    if updates is not None:
        number += f" (optimizer step {updates})"
    if len(steps) == 1:
        return f"{one.capitalize()} {number}"
    return f"In {len(steps)} {several}, first in {one} {number}"


def _more(number: int, what: str) -> list[str]:
    return [f"{number - _MAX_NOTES} more {what}."] if number > _MAX_NOTES else []


# -- compiled ------------------------------------------------------------------------------------


def _compiled(run: RunFacts) -> list[str]:
    if run.compilation is None:
        return []
    once = [frame for frame in run.compilation.frames if frame.times == 1]
    again = [frame for frame in run.compilation.frames if frame.times > 1]
    breaks = run.compilation.breaks
    remarks = []
    if once:
        remarks.append(f"Compiled: {'; '.join(map(_name, once[:_MAX_NOTES]))}.")
    remarks += _more(len(once), "frames were compiled")
    for frame in again[:_MAX_NOTES]:
        remark = f"Compiled {_times(frame.times)}: {_name(frame)}"
        if frame.reasons:
            # Each of torch's reasons has several lines.
            reasons = [" ".join(reason.split()) for reason in frame.reasons]
            remark += f"; recompiled because {'; '.join(reasons)}"
        remarks.append(f"{remark}.")
    remarks += _more(len(again), "frames were recompiled")
    for reason, times in breaks[:_MAX_NOTES]:
        remarks.append(f"Graph break, {_times(times)}: {reason}.")
    return [*remarks, *_more(len(breaks), "reasons for graph breaks")]


def _name(frame: CompiledFrame) -> str:
    return frame.place if not frame.path else f"{frame.place} ({frame.path})"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


# -- how the values were measured ----------------------------------------------------------------


def _measured(run: RunFacts) -> list[str]:
    if not run.steps:
        return ["No step was measured, because the model was not called."]
    before = f" after {_steps(run.warm_up, 'warm-up ')}" if run.warm_up else ""
    clock = "host" if run.device is None else "device"
    whole = "forward and backward" if run.has_backward else "the forward pass"
    where = f"on {run.provenance.device}; {clock} times, as a share of {whole}"
    remarks = [f"Medians of {_steps(run.num_timed)}{before}, {where}."]
    if not run.has_backward:
        remarks.append("Evaluation only: no step has a backward pass.")
    if run.device is not None and run.device.waiting >= _MIN_WAITING:
        percent = f"{100 * run.device.waiting:.0f} %"
        remarks.append(f"The device waited for the host {percent} of the time.")
    if run.num_differing:
        left_out = f"{_steps(run.num_differing)} left out: different calls or input shapes"
        remarks.append(f"Times are of the most common kind of step. {left_out}.")
    return [*remarks, *_evaluation(run)]


def _checked(run: RunFacts) -> list[str]:
    """Return how many steps were checked for NaN and Inf."""
    if run.checked_steps is None or not run.steps:
        return []
    if not run.checked_steps:
        return ["No step trained, so only the measured steps were checked for NaN and Inf."]
    number = _steps(run.checked_steps, "training ")
    remarks = [f"{number} checked for NaN and Inf: the loss, gradients and parameters."]
    if run.trained_modules:
        modules = [f"{each.name}, {_steps(each.steps)}" for each in run.trained_modules]
        remarks.append(f"Modules that train: {'; '.join(modules)}.")
    if run.unchecked_threads:
        others = ", ".join(run.unchecked_threads)
        remarks.append(
            f"Only the first thread that trains is checked for NaN and Inf, not {others}."
        )
    return remarks


def _evaluation(run: RunFacts) -> list[str]:
    if run.evaluation is None:
        return []
    number = run.evaluation.passes
    passes, them = f"{number} forward passes", "them"
    if number == 1:
        passes, them = "1 forward pass", "it"
    return [
        f"{passes} had no backward pass, as in an evaluation; other times in this table exclude "
        f"{them}."
    ]


def _steps(number: int, kind: str = "") -> str:
    noun = "step" if number == 1 else "steps"
    return f"{number} {kind}{noun}"


def _expected(run: RunFacts) -> list[str]:
    if run.expected is None:
        return []
    share = f"{100 * run.expected.error_share:.0f} %"
    return [
        f"Expected times are of the roofline of {run.expected.device}, ± {share}; × is measured ÷ "
        "expected, and * marks calls above this range that take at least 1 % of a step."
    ]
