"""The steps of a run that are kept, and what was observed in them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchscan.inspecting.call_memory import Shapes
from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.exchanges import Exchange, Group, Process, current_group
from torchscan.inspecting.facts import InspectedCall, StepFacts
from torchscan.inspecting.findings import NonFinite
from torchscan.inspecting.step import Step
from torchscan.inspecting.step_labels import StepCounts
from torchscan.inspecting.step_timeline import Timeline
from torchscan.measured import Key
from torchscan.observing.compiling import Compilation

_MAX_STEPS = 1024
#: kinds of steps whose calls are described
_MAX_KINDS = 8
#: calls of a step and the shapes of its inputs: steps that agree in these are of one kind
_Kind = tuple[tuple[Key, ...], Shapes]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSteps:
    """Steps that train, or passes that do not, and the usual ones among them."""

    #: number of all steps
    number: int
    #: number of steps before the measured ones
    warm_up: int
    #: number of calls of the model in all steps
    num_passes: int
    #: kept steps of the most common kind
    steps: Sequence[StepFacts] = ()
    #: number of kept steps of other kinds
    num_differing: int
    #: calls of the last of the usual steps
    calls: Sequence[InspectedCall] = ()
    timeline: Timeline | None = None
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observations of a model: its usual steps, evaluations and findings."""

    #: True if gradients of the model's parameters were computed
    trains: bool
    #: steps that train, or passes if no step trains
    usual: WatchedSteps
    #: forward passes without a backward pass, or None without any or if no step trains
    evaluation: WatchedSteps | None = None
    nonfinite: Sequence[NonFinite] = ()
    nonfinite_steps: int = 0
    checked: Sequence[CheckResult] = ()
    process: Process | None = None
    compilation: Compilation | None = None


class KeptSteps:
    """Facts and findings of finished steps."""

    def __init__(self, warm_up: int) -> None:
        self._counts = StepCounts()
        #: steps whose results the device has not computed yet
        self._waiting: deque[Step] = deque()
        self._training = _StepLog(warm_up)
        self._evaluation = _StepLog(warm_up)
        #: steps that exceptions ended, which are shown if there is nothing else
        self._failed = _StepLog(warm_up)
        self._checked: list[CheckResult] = []
        #: sources of the first steps that have any
        self._nonfinite: list[NonFinite] = []
        #: number of all steps with a source
        self._nonfinite_steps = 0
        #: ranks that train together; their group may be gone when the results are read
        self._group: Group | None = None

    @property
    def facts(self) -> Sequence[StepFacts]:
        """Facts of the kept steps: those that train, if any does."""
        return (self._training if self._training.number else self._other).facts

    @property
    def _other(self) -> _StepLog:
        return self._evaluation if self._evaluation.number else self._failed

    @property
    def counts(self) -> StepCounts:
        """Counts of all finished steps."""
        counts = self._counts
        for step in self._waiting:
            counts = step.count_in(counts)
        return counts

    def add(self, step: Step) -> None:
        """Add a step that is over. It is kept once it is settled."""
        self._waiting.append(step)

    def settle(self, *, waits: bool) -> None:
        """Report what was found in steps whose results have arrived, or in all if it ``waits``."""
        while self._waiting and (waits or self._waiting[0].is_known):
            step = self._waiting.popleft()
            try:
                step.settle()
            finally:  # a listener may raise
                self._keep(step)

    def _keep(self, step: Step) -> None:
        self._group = self._group or current_group()
        self._counts = step.count_in(self._counts)
        if step.has_failed:
            self._failed.keep(step)
        else:
            (self._training if step.trains else self._evaluation).keep(step)
        self._checked += step.checked
        if step.nonfinite is not None:
            self._nonfinite_steps += 1
            if len(self._nonfinite) < _MAX_STEPS:
                self._nonfinite.append(step.nonfinite)

    def watched(self, compilation: Compilation | None) -> Observations:
        """Return the usual steps that train, and separately the usual passes that do not.

        If no step trains, the passes are the steps, also by name.
        """
        trains = self._training.number > 0
        if not trains:
            self._nonfinite = [replace(each, is_evaluation=False) for each in self._nonfinite]
            self._checked = [replace(each, is_evaluation=False) for each in self._checked]
            usual = self._other.find_usual(self._group)
            evaluation = None
        else:
            usual = self._training.find_usual(self._group)
            passes = self._evaluation.find_usual(None)
            evaluation = passes if passes.number else None
        return Observations(
            trains=trains,
            usual=usual,
            evaluation=evaluation,
            process=None if self._group is None else self._group.process,
            nonfinite=self._nonfinite,
            nonfinite_steps=self._nonfinite_steps,
            checked=self._checked,
            compilation=compilation,
        )


class _StepLog:
    """Facts of steps that train, or of passes that do not."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        #: number of steps, also of those that are not kept
        self.number = 0
        #: number of calls of the model in them
        self._num_passes = 0
        self.facts: list[StepFacts] = []
        #: the last step of each kind, the newest kind last
        self._last: dict[_Kind, Step] = {}

    def keep(self, step: Step) -> None:
        """Keep a step."""
        facts = step.facts(self.number, self.facts[-1] if self.facts else None)
        self.facts.append(facts)
        self.number += 1
        self._num_passes += sum(parent < 0 for parent in facts.parents)
        kind = facts.keys, facts.shapes
        self._last.pop(kind, None)
        self._last[kind] = step
        if len(self._last) > _MAX_KINDS:
            del self._last[next(iter(self._last))]
        if len(self.facts) > _MAX_STEPS:
            del self.facts[self._warm_up : -1 : 2]

    def find_usual(self, group: Group | None) -> WatchedSteps:
        """Return the steps of the most common kind, without the first ones, which warm up."""
        warm_up = min(self._warm_up, max(self.number - 1, 0))
        measured = [facts for facts in self.facts if facts.number >= warm_up]
        kinds = [(facts.keys, facts.shapes) for facts in reversed(measured)]
        common = Counter(kind for kind in kinds if kind in self._last).most_common(1)
        if not common:
            return WatchedSteps(
                number=self.number,
                warm_up=warm_up,
                num_passes=self._num_passes,
                num_differing=len(measured),
            )

        ((usual, _),) = common
        alike = [facts for facts in measured if (facts.keys, facts.shapes) == usual]
        step = self._last[usual]
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
