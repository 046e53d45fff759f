"""Checks of every step of a run, added to its facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torchscan.inspecting.findings import FindingKey, NonFinite
from torchscan.inspecting.memory_trend import MemoryTrend
from torchscan.inspecting.run import CheckedModule, RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFacts:
    """Checks and findings of a run's guard."""

    #: number of training steps whose loss, gradients and parameters were checked: of the inspected
    #: module, or else of all
    checked_steps: int = 0
    #: modules that train, if there are several
    trained_modules: tuple[CheckedModule, ...] = ()
    #: number of steps that a GradScaler skipped because scaled gradients overflowed
    skipped_steps: int = 0
    #: first of these steps, or None
    first_skipped: int | None = None
    findings: tuple[NonFinite, ...] = ()
    #: number of steps in which something was not finite
    nonfinite_steps: int = 0
    #: names of threads that trained as well and were not checked
    unchecked_threads: tuple[str, ...] = ()
    #: memory after optimizer steps, or None with too few
    memory: MemoryTrend | None = None


def add_checks(
    run: RunFacts,
    checked: GuardFacts,
    *,
    is_guard_first: bool = False,
    reported: Collection[FindingKey] = (),
) -> RunFacts:
    """Return a run with what the cheap check of every step has found.

    If the guard is first, a training step that it has checked has its finding or none, except for
    findings of the inspection that were ``reported`` because no check followed.
    """
    close = list(run.nonfinite)
    nonfinite_steps = max(run.nonfinite_steps, checked.nonfinite_steps)
    if is_guard_first:
        close = [
            found for found in close if found.key in reported or not _is_superseded(found, checked)
        ]
        checked_steps = {found.step for found in checked.findings if found.root is None}
        others = [
            found for found in close if found.is_evaluation or found.step not in checked_steps
        ]
        nonfinite_steps = checked.nonfinite_steps + len(others)
    evidence = None if run.evidence is None else replace(run.evidence, memory=checked.memory)
    return replace(
        run,
        evidence=evidence,
        nonfinite=_first_in_each_step(close, checked.findings),
        nonfinite_steps=nonfinite_steps,
        checked_steps=checked.checked_steps,
        trained_modules=checked.trained_modules,
        unchecked_threads=checked.unchecked_threads,
        skipped_steps=checked.skipped_steps,
        first_skipped=checked.first_skipped,
    )


def _is_superseded(found: NonFinite, checked: GuardFacts) -> bool:
    """Return whether the guard has checked this step, and has found nothing or knows the place."""
    if found.is_evaluation or found.step >= checked.checked_steps:
        return False
    own = [other for other in checked.findings if other.root is None]
    if found.phase == "update":  # it may have been written after the last check
        return any(other.step >= found.step for other in own)
    return all(other.is_located for other in own if other.step == found.step)


def _first_in_each_step(
    close: Sequence[NonFinite], cheap: Sequence[NonFinite]
) -> tuple[NonFinite, ...]:
    """Return one finding for each step: that of the ``close`` inspection, if it saw the source.

    Where it only saw consequences, the finding of the ``cheap`` check comes first.
    """
    evaluated = [found for found in close if found.is_evaluation]
    trained = [found for found in close if not found.is_evaluation]
    late = {found.step: found for found in trained if found.phase in ("loss", "update")}
    sure = {found.step: found for found in trained if found.step not in late}
    own, of_others = {}, []
    for found in cheap:
        if found.root is None:
            own[found.step] = found
        else:
            of_others.append(found)
    first = {**late, **own, **sure}
    every = [*first.values(), *of_others, *evaluated]
    every.sort(key=lambda found: found.step)
    return tuple(every)
