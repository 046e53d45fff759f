"""Notes below the table of an inspection: findings, compilation, and how times were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from torchscan.report.table import FullRemark
from torchscan.runtime.checks import Checked
from torchscan.runtime.compiling import CompiledFrame
from torchscan.runtime.findings import NonFinite
from torchscan.runtime.run import RunFacts

#: of a kind, before it is only said how many there are
_MAX_FINDINGS = 5
#: the share of the time in which the device waits from which it is told of
_WORTH_SAYING = 0.1


def remarks_of(run: RunFacts) -> list[str]:
    """Return the sources of NaN and Inf, alarms, what was compiled, and then notes on the values."""
    results = [*_findings(run), *_alarms(run), *_skipped(run), *_compiled(run)]
    return [
        *map(FullRemark, results),
        *_measured(run),
        *_checked(run),
        *_expected(run),
    ]


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
        """Description of the entry."""


F = TypeVar("F", bound=_InStep)


def _findings(run: RunFacts) -> list[str]:
    told = run.nonfinite
    said = _said_once(told, _of_finding, _most_telling, "findings are in run.facts.nonfinite")
    later = run.nonfinite_steps - len(told)
    return [
        *said,
        *([f"{later} later steps made values that are not finite, too."] if later > 0 else []),
    ]


def _of_finding(found: NonFinite) -> Hashable:
    return found.path, found.phase, found.is_evaluation


def _most_telling(alike: Sequence[NonFinite]) -> NonFinite:
    """On a device, only what comes after the first one knows its operator."""
    return next((each for each in alike if each.operator is not None), alike[0])


def _alarms(run: RunFacts) -> list[str]:
    alarms = [each for each in run.checked if each.message is not None]
    return _said_once(alarms, _of_alarm, lambda alike: alike[0], "alarms are in run.facts.checked")


def _of_alarm(alarm: Checked) -> Hashable:
    return alarm.check, alarm.path, alarm.kind, alarm.is_evaluation


def _said_once(
    found: Iterable[F],
    kind: Callable[[F], Hashable],
    choose: Callable[[Sequence[F]], F],
    others: str,
) -> list[str]:
    """Return one sentence per kind of entry, with the number of steps that have such."""
    alike: dict[Hashable, list[F]] = defaultdict(list)
    for each in found:
        alike[kind(each)].append(each)
    said = [
        f"{_when(each)}: {choose(each).description}."
        for each in list(alike.values())[:_MAX_FINDINGS]
    ]
    return [*said, *_more(len(alike), others)]


def _when(alike: Sequence[_InStep]) -> str:
    steps = {each.step for each in alike}
    if alike[0].is_evaluation:
        one, several = "evaluation pass", "evaluation passes"
    else:
        one, several = "step", "steps"
    first = min(alike, key=lambda each: each.step)
    updates = getattr(first, "update", None)
    number = f"{first.step}" if updates is None else f"{first.step} (optimizer step {updates})"
    if len(steps) == 1:
        return f"{one.capitalize()} {number}"
    return f"In {len(steps)} {several}, first in {one} {number}"


def _more(number: int, what: str) -> list[str]:
    return [f"{number - _MAX_FINDINGS} more {what}."] if number > _MAX_FINDINGS else []


# -- compiled ------------------------------------------------------------------------------------------------------------


def _compiled(run: RunFacts) -> list[str]:
    if run.compilation is None:
        return []
    once = [frame for frame in run.compilation.frames if frame.times == 1]
    again = [frame for frame in run.compilation.frames if frame.times > 1]
    breaks = [
        f"The graph was broken {_times(times)}: {reason}."
        for reason, times in run.compilation.breaks
    ]
    return [
        *([f"Compiled: {'; '.join(map(_name, once[:_MAX_FINDINGS]))}."] if once else []),
        *_more(len(once), "frames were compiled"),
        *(
            f"Compiled {_times(frame.times)}: {_name(frame)}{_why(frame)}."
            for frame in again[:_MAX_FINDINGS]
        ),
        *_more(len(again), "frames were compiled again"),
        *breaks[:_MAX_FINDINGS],
        *_more(len(breaks), "reasons broke it"),
    ]


def _name(frame: CompiledFrame) -> str:
    return frame.place if not frame.path else f"{frame.place} ({frame.path})"


def _why(frame: CompiledFrame) -> str:
    """Reasons are several lines."""
    return (
        f", again because {'; '.join(' '.join(reason.split()) for reason in frame.reasons)}"
        if frame.reasons
        else ""
    )


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


# -- how the figures came about ------------------------------------------------------------------------------------------


def _measured(run: RunFacts) -> list[str]:
    if not run.steps:
        return ["No step was measured: the model was not called."]
    before = f" after {run.warm_up} to warm up" if run.warm_up else ""
    whose = "the host" if run.device is None else "the device"
    shares = "shares of forward and backward" if run.trains else "shares of the forward pass"
    where = f"on {run.provenance.device}; times of {whose}, {shares}"
    medians = f"Medians of {_steps(run.num_timed)}{before}, {where}."
    forward_only = [] if run.trains else ["Evaluation only: no step has a backward pass."]
    return [medians, *forward_only, *_waiting(run), *_left_out(run), *_evaluation(run)]


def _checked(run: RunFacts) -> list[str]:
    """Return how many steps were checked for NaN and Inf."""
    if run.checked_steps is None or not run.steps:
        return []
    if not run.checked_steps:
        return ["No step trained: only the measured steps were checked for NaN and Inf."]
    number = _steps(run.checked_steps, "training ")
    said = [f"{number} checked for NaN and Inf: the loss, gradients and parameters."]
    if run.trained:
        said.append(
            f"Modules that train: {'; '.join(f'{each.name}, {_steps(each.steps)}' for each in run.trained)}."
        )
    if run.unchecked_threads:
        others = ", ".join(run.unchecked_threads)
        said.append(f"Only the first thread that trains is checked for NaN and Inf, not {others}.")
    return said


def _skipped(run: RunFacts) -> list[str]:
    """Return how many steps a GradScaler skipped, as it should."""
    if not run.skipped_steps:
        return []
    first = f"first step {run.first_skipped}"
    return [
        f"GradScaler skipped {_steps(run.skipped_steps)} ({first}), in which scaled gradients overflowed."
    ]


def _waiting(run: RunFacts) -> list[str]:
    if run.device is None or run.device.waiting < _WORTH_SAYING:
        return []
    return [
        f"In {100 * run.device.waiting:.0f} % of the time the host set the pace, as the device was done by then."
    ]


def _left_out(run: RunFacts) -> list[str]:
    if not run.differing:
        return []
    left_out = f"{_steps(run.differing)} left out: other calls or input shapes"
    return [f"Times are of the most common kind of step. {left_out}."]


def _evaluation(run: RunFacts) -> list[str]:
    if run.evaluation is None:
        return []
    number = run.evaluation.passes
    passes, them = ("1 forward pass", "it") if number == 1 else (f"{number} forward passes", "them")
    return [
        f"{passes} had no backward pass, as in an evaluation; the other times in this table exclude {them}."
    ]


def _steps(number: int, kind: str = "") -> str:
    return f"{number} {kind}{'step' if number == 1 else 'steps'}"


def _expected(run: RunFacts) -> list[str]:
    if run.expected is None:
        return []
    share = f"{100 * run.expected.share_off:.0f} %"
    return [
        f"Expected by the roofline of {run.expected.device}, ± {share}; × is measured over expected, "
        "and * marks calls beyond this range that take at least 1 % of a step."
    ]
