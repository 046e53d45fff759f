"""The steps that are over: all of a thousand, fewer and fewer of the earlier ones of more."""

from __future__ import annotations

from collections import Counter

from torchscan.measured import Key
from torchscan.runtime.checks import Checked
from torchscan.runtime.compiling import Compilation
from torchscan.runtime.exchanges import Group, group_here
from torchscan.runtime.facts import StepFacts
from torchscan.runtime.findings import NonFinite
from torchscan.runtime.memory import Shapes
from torchscan.runtime.run import Watched
from torchscan.runtime.step import Step

_MOST_STEPS = 1024
#: sorts of steps whose calls are described
_MOST_SORTS = 8
#: steps are alike that have the same calls, on inputs of the same shapes, and a backward pass or none
_Sort = tuple[tuple[Key, ...], Shapes, bool]


class KeptSteps:
    """What is known of steps, and which of them are the usual ones."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        #: how many there were
        self.number = 0
        self._steps: list[StepFacts] = []
        #: the last of each sort
        self._described: dict[_Sort, Step] = {}
        self._checked: list[Checked] = []
        #: the first producers in the first steps that have any, and how many have
        self._nonfinite: list[NonFinite] = []
        self._nonfinite_steps = 0
        #: those that it trains with, who may be gone when the steps are looked at
        self._group: Group | None = None

    @property
    def facts(self) -> list[StepFacts]:
        """Of those that were kept."""
        return self._steps

    def keep(self, step: Step) -> None:
        """One more."""
        self._group = self._group or group_here()
        facts = step.facts(self.number, self._steps[-1] if self._steps else None)
        self._steps.append(facts)
        self.number += 1
        self._describe(_sort_of(facts), step)
        self._checked += step.checked
        if step.nonfinite is not None:
            self._nonfinite_steps += 1
            self._nonfinite += [step.nonfinite] if len(self._nonfinite) < _MOST_STEPS else []
        if len(self._steps) > _MOST_STEPS:
            del self._steps[self._warm_up : -1 : 2]

    def _describe(self, sort: _Sort, step: Step) -> None:
        self._described.pop(sort, None)  # so that the one that comes next is the newest
        self._described[sort] = step
        if len(self._described) > _MOST_SORTS:
            del self._described[next(iter(self._described))]

    def watched(self, compilation: Compilation | None) -> Watched:
        """The usual ones after the first ones: those of the commonest sort."""
        left_out = min(self._warm_up, max(self.number - 1, 0))
        measured = [facts for facts in self._steps if facts.number >= left_out]
        sorts = Counter(sort for facts in reversed(measured) if (sort := _sort_of(facts)) in self._described)
        usual = sorts.most_common(1)[0][0] if sorts else None
        alike = [facts for facts in measured if _sort_of(facts) == usual]
        step = None if usual is None else self._described[usual]
        return Watched(
            number=self.number,
            warm_up=left_out,
            steps=alike,
            differing=len(measured) - len(alike),
            calls=() if step is None else step.calls(),
            timeline=None if step is None else step.timeline(),
            process=None if self._group is None else self._group.process,
            exchanges=() if step is None or self._group is None else step.exchanges(alike, step.timeline(), self._group),
            nonfinite=self._nonfinite,
            nonfinite_steps=self._nonfinite_steps,
            checked=self._checked,
            compilation=compilation,
        )


def _sort_of(facts: StepFacts) -> _Sort:
    return facts.keys, facts.shapes, facts.backward_span > 0
