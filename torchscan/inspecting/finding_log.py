"""Findings of the guard: which are news, what a second look adds, and which are kept.

A second look repeats a call of a root module on a copy, which is inspected closely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from torchscan.inspecting.findings import Bad, NonFinite, Phase
from torchscan.inspecting.finiteness import FINE, NonFiniteCount, check_values
from torchscan.inspecting.repeated_calls import look_again
from torchscan.inspecting.root_call import ModuleSteps, RootCall
from torchscan.inspecting.root_calls import RootCalls
from torchscan.inspecting.root_names import InspectionLink, RootNames
from torchscan.inspecting.trained_tensors import TrainedTensors
from torchscan.inspecting.values import Listener
from torchscan.notes import Note

#: calls that are repeated in a run
_MAX_LOOKS = 16
#: findings that are kept
_MAX_FINDINGS = 1024
#: cause of values that were finite after the last optimizer step
WRITTEN_SINCE_UPDATE = Note.of("written-since-update")
_REPEAT_LIMIT = Note.of("repeat-limit", limit=_MAX_LOOKS)


class StepMark(NamedTuple):
    """The step that goes on when a check is sent to a device, which is read later."""

    steps: ModuleSteps | None
    #: training steps of the root that have begun
    num_begun: int
    num_updates: int | None


class FindingLog:
    """The findings of one run."""

    def __init__(
        self,
        listener: Listener,
        calls: RootCalls,
        tensors: TrainedTensors,
        names: RootNames,
        link: InspectionLink,
    ) -> None:
        self._listener = listener
        self._calls = calls
        self._tensors = tensors
        self._names = names
        self._link = link
        self._bad_steps: set[tuple[int, int]] = set()
        self._num_looks = 0
        self.findings: list[NonFinite] = []
        #: number of optimizer steps that have begun, while one goes on, or None
        self.update: int | None = None
        #: number of the last optimizer step in which something was found, or None
        self._bad_update: int | None = None

    @property
    def num_bad_steps(self) -> int:
        """Number of steps in which something is not finite."""
        return len(self._bad_steps)

    def mark_step(self) -> StepMark:
        """Return the step that goes on."""
        steps = self.find_steps()
        num_begun = 0 if steps is None else steps.begun
        return StepMark(steps, num_begun, self._tensors.num_updates_of(steps))

    def begin_finding(
        self,
        steps: ModuleSteps | None,
        *,
        is_scaled: bool = False,
        num_begun: int | None = None,
    ) -> bool:
        """Count a step in which something is not finite; return whether it is the first finding.

        Findings of an inspection in a gradient that ``is_scaled`` do not count. The step is the one
        that goes on, unless ``num_begun`` gives the number of the steps up to it.
        """
        if steps is None:
            num_begun = -1
        elif num_begun is None:
            num_begun = steps.begun
        key = id(steps), num_begun
        has_found = self._link.has_found() and not is_scaled
        is_news = key not in self._bad_steps and not has_found and not self._tensors.is_spoiled()
        self._bad_steps.add(key)
        if self.update is not None:  # the next passes of LBFGS in it are consequences
            is_news = is_news and self.update != self._bad_update
            self._bad_update = self.update
        return is_news

    def find_steps(self) -> ModuleSteps | None:
        """Return the root of the current step: the inspected one, or else the last one called.

        Roots whose results are only detached do not count once another root has trained.
        """
        calls = [
            call for call in self._calls.recent if call.steps.has_parameters and call.has_graph
        ]
        calls = [call for call in calls if call.steps.is_trained] or calls
        inspected = self._link.inspected()
        for call in calls:
            if call.module() is inspected:
                return call.steps
        return calls[-1].steps if calls else None

    def repeat_call(
        self, call: RootCall, gradients: Mapping[int, Tensor] | None = None
    ) -> NonFinite | Note | None:
        """Return what a second look at a call finds, or None if all is finite.

        Return the reason if the call cannot be repeated.
        """
        if self._num_looks >= _MAX_LOOKS:
            return _REPEAT_LIMIT
        self._num_looks += 1
        found = look_again(call, gradients)
        return self._blame_write(found) if isinstance(found, NonFinite) else found

    def refine(self, found: NonFinite) -> NonFinite | None:
        """Return a finding of an inspection, with what the guard knows about parameters.

        Return None if the guard has already located it in training, or if it follows from
        parameters that have been reported. Values on a GPU may be read only after the guard has
        repeated the step's calls, so the guard may know the operator.
        """
        if not found.is_evaluation:
            located = {own.key for own in self.findings if own.is_located and own.root is None}
            if found.key in located:
                return None
        if found.phase == "forward" and found.weights and self._tensors.is_spoiled():
            return None
        return self._blame_write(found)

    def _blame_write(self, found: NonFinite) -> NonFinite:
        """Return a finding about parameters that were finite as one about a write to them."""
        if found.phase != "forward" or not found.weights or not self._tensors.has_seen_finite:
            return found
        return replace(
            found, phase="update", cause=WRITTEN_SINCE_UPDATE, operator=None, line=None, inputs=()
        )

    def report(self, found: NonFinite, call: RootCall) -> None:
        """Keep a finding in a call, and pass it to the listener, which may raise."""
        found = replace(found, root=self._names.find_name(call.module()))
        if call.has_graph and call.steps.is_trained:
            self._keep(found, call.step, self._tensors.num_updates_of(call.steps))
        else:
            self.report_step(found, self.find_steps() or call.steps)

    def report_step(self, found: NonFinite, steps: ModuleSteps | None) -> None:
        """Keep a finding in the current step of a root, and pass it to the listener.

        If the root does not train, the step is that of a root which trains in the same loop.
        """
        if steps is not None and not steps.is_trained:
            steps = self.find_steps() or steps
        number = 0 if steps is None else max(steps.begun - 1, 0)
        self._keep(found, number, self._tensors.num_updates_of(steps))

    def report_marked(self, found: NonFinite, mark: StepMark) -> None:
        """Keep a finding in an earlier step, and pass it to the listener, which may raise."""
        self._keep(found, max(mark.num_begun - 1, 0), mark.num_updates)

    def _keep(self, found: NonFinite, number: int, num_updates: int | None) -> None:
        found = replace(found, step=number, update=None if num_updates == number else num_updates)
        if found.weights:
            self._tensors.note_bad(
                each for each in self._tensors.known_parameters() if not check_values(each).is_fine
            )
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(found)
        self._listener(found)

    def describe_tensors(
        self, phase: Phase, bad: Sequence[tuple[Tensor, Tensor]], **more: Any
    ) -> NonFinite:
        """Return a finding about the first of these parameters, by the module that has it.

        Each comes with the values that are not finite: its own or its gradient's.
        """
        if not bad:
            return describe_values(phase, FINE, 0, num_others=0, **more)
        owners = [self._tensors.find_owner(parameter) for parameter, _ in bad]
        first = owners[0]
        total = FINE
        weights = []
        for owner, (_, values) in zip(owners, bad, strict=True):
            counts = check_values(values)
            total += counts
            if owner.root is first.root and owner.path == first.path:
                weights.append(Bad(owner.name, counts.nan, counts.inf, values.numel()))
        return describe_values(
            phase,
            total,
            sum(values.numel() for _, values in bad),
            path=first.path,
            type_name=first.type_name,
            weights=tuple(weights),
            num_others=len(bad) - len(weights),
            root=self._names.find_name(first.root),
            **more,
        )


def describe_values(phase: Phase, counts: NonFiniteCount, numel: int, **more: Any) -> NonFinite:
    """Return a finding about ``numel`` values of a root, unless ``more`` names a module in it."""
    placed = {"step": 0, "path": "", "type_name": "", **more}
    return NonFinite(
        phase=phase, invocation=0, nan=counts.nan, inf=counts.inf, numel=numel, **placed
    )
