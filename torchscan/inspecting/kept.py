"""The steps that are over: all of a thousand, fewer and fewer of the earlier ones of more.

Steps with a backward pass train. Forward passes without one, such as those of a validation, are kept separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torchscan.inspecting.call_memory import Shapes
from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.exchanges import Group, current_group
from torchscan.inspecting.facts import StepFacts
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.run import Observations, WatchedSteps
from torchscan.inspecting.step import Step, StepCounts
from torchscan.measured import Key
from torchscan.observing.compiling import Compilation

_MAX_STEPS = 1024
#: sorts of steps whose calls are described
_MAX_SORTS = 8
#: steps are alike that have the same calls, on inputs of the same shapes
_Sort = tuple[tuple[Key, ...], Shapes]


class _StepsOfKind:
    """Steps that train, or forward passes without a backward pass, and the usual ones among them."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        #: how many there were, and how many calls of the model in them
        self.number = self._num_passes = 0
        self.facts: list[StepFacts] = []
        #: the last of each sort
        self._described: dict[_Sort, Step] = {}

    def keep(self, step: Step) -> None:
        """Keep a step."""
        facts = step.facts(self.number, self.facts[-1] if self.facts else None)
        self.facts.append(facts)
        self.number += 1
        self._num_passes += sum(parent < 0 for parent in facts.parents)
        self._describe(_sort_of(facts), step)
        if len(self.facts) > _MAX_STEPS:
            del self.facts[self._warm_up : -1 : 2]

    def _describe(self, sort: _Sort, step: Step) -> None:
        self._described.pop(sort, None)  # so that the one that comes next is the newest
        self._described[sort] = step
        if len(self._described) > _MAX_SORTS:
            del self._described[next(iter(self._described))]

    def usual(self, group: Group | None) -> WatchedSteps:
        """Return the steps of the most common kind, without the first ones, which warm up."""
        warm_up = min(self._warm_up, max(self.number - 1, 0))
        measured = [facts for facts in self.facts if facts.number >= warm_up]
        sorts = Counter(
            sort for facts in reversed(measured) if (sort := _sort_of(facts)) in self._described
        )
        if not sorts:
            return WatchedSteps(
                number=self.number,
                warm_up=warm_up,
                num_passes=self._num_passes,
                num_differing=len(measured),
            )

        usual = sorts.most_common(1)[0][0]
        alike = [facts for facts in measured if _sort_of(facts) == usual]
        step = self._described[usual]
        timeline = step.timeline()
        return WatchedSteps(
            number=self.number,
            warm_up=warm_up,
            num_passes=self._num_passes,
            steps=alike,
            num_differing=len(measured) - len(alike),
            calls=step.calls(),
            timeline=timeline,
            exchanges=() if group is None else step.exchanges(alike, timeline, group),
        )


class KeptSteps:
    """Facts and findings of finished steps."""

    def __init__(self, warm_up: int) -> None:
        self.counts = StepCounts()
        self._training, self._evaluation = _StepsOfKind(warm_up), _StepsOfKind(warm_up)
        #: neither steps nor evaluations: they are shown if there is nothing else
        self._failed = _StepsOfKind(warm_up)
        self._checked: list[CheckResult] = []
        #: the first producers in the first steps that have any, and how many have
        self._nonfinite: list[NonFinite] = []
        self._nonfinite_steps = 0
        #: those that it trains with, who may be gone when the steps are looked at
        self._group: Group | None = None

    @property
    def facts(self) -> Sequence[StepFacts]:
        """Facts of the kept steps: those that train, if any does."""
        return (self._training if self._training.number else self._other).facts

    @property
    def _other(self) -> _StepsOfKind:
        return self._evaluation if self._evaluation.number else self._failed

    def keep(self, step: Step) -> None:
        """One more."""
        self._group = self._group or current_group()
        if step.has_failed:
            self._failed.keep(step)
        else:
            self.counts = self.counts.add(step)
            (self._training if step.trains else self._evaluation).keep(step)
        self._checked += step.checked
        if step.nonfinite is not None:
            self._nonfinite_steps += 1
            if len(self._nonfinite) < _MAX_STEPS:
                self._nonfinite.append(step.nonfinite)

    def watched(self, compilation: Compilation | None) -> Observations:
        """Return the usual steps that train, and apart from them the usual passes that do not.

        If none trains, passes are the steps, also by name.
        """
        trains = self._training.number > 0
        if not trains:
            self._nonfinite = [replace(each, is_evaluation=False) for each in self._nonfinite]
            self._checked = [replace(each, is_evaluation=False) for each in self._checked]
        evaluation = (self._evaluation if trains else self._other).usual(
            None if trains else self._group
        )
        return Observations(
            trains=trains,
            usual=self._training.usual(self._group) if trains else evaluation,
            evaluation=evaluation if trains and evaluation.number else None,
            process=None if self._group is None else self._group.process,
            nonfinite=self._nonfinite,
            nonfinite_steps=self._nonfinite_steps,
            checked=self._checked,
            compilation=compilation,
        )


def _sort_of(facts: StepFacts) -> _Sort:
    return facts.keys, facts.shapes
