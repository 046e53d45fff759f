"""Findings of an inspection beside a guard, which checks every training step as well."""

from __future__ import annotations

from dataclasses import replace

from torchscan.inspecting.checked_steps import add_checks
from torchscan.inspecting.findings import FindingKey, NonFinite
from torchscan.inspecting.inspector import Inspector
from torchscan.inspecting.kept_steps import Observations
from torchscan.inspecting.nonfinite_guard import NonFiniteGuard
from torchscan.inspecting.root_call import RootCall
from torchscan.inspecting.run import RunFacts
from torchscan.inspecting.step_labels import StepCounts
from torchscan.inspecting.values import Listener


class GuardedFindings:
    """The findings of an inspection: reported, refined by the guard, or left to it."""

    def __init__(self, listener: Listener, guard: NonFiniteGuard, *, is_guard_first: bool) -> None:
        self._listener = listener
        self._guard = guard
        #: True if findings of training steps are left to the guard
        self._is_guard_first = is_guard_first
        #: the finding of the current step that is left to the guard, and the call of a root with it
        self._held: NonFinite | None = None
        self._held_call: RootCall | None = None
        #: findings that were reported after all, because no backward pass followed
        self._reported: set[FindingKey] = set()
        self._num_trained = 0
        #: findings as the guard has refined them, or None for values that are intended
        self._refined: dict[FindingKey, NonFinite | None] = {}

    def follow(self, inspector: Inspector) -> None:
        """Have the guard refer to the inspector from now on."""
        self._guard.inspection.follow(inspector, is_guard_first=self._is_guard_first)

    def hear(self, found: NonFinite) -> None:
        """Report a finding, unless a GradScaler is looking for it or the guard reports it."""
        guard = self._guard
        if not guard.is_started:
            self._listener(found)
            return
        if self._is_guard_first and guard.is_checking_here and not found.is_evaluation:
            self._held, self._held_call = found, guard.open_call()
            return
        if guard.is_scaled and found.phase in ("backward", "loss"):
            self._refined[found.key] = None
            return
        better = guard.refine(found)
        self._refined[found.key] = better
        if better is not None and found.phase != "loss":
            self._listener(better)

    def release(self, over: StepCounts) -> None:
        """Report the finding that was left to the guard, unless it has checked a backward pass.

        A step may have several passes: one that the script has skipped, and the next.
        """
        is_checked = over.trained > self._num_trained
        self._num_trained = over.trained
        held, self._held = self._held, None
        call, self._held_call = self._held_call, None
        if call is not None and not call.is_reached:
            is_checked = False
        if held is not None and not is_checked:
            self._reported.add(held.key)
            self._listener(held)

    def refine(self, watched: Observations) -> Observations:
        """Return observations with refined findings, without those that are intended."""
        refined = [self._refined.get(found.key, found) for found in watched.nonfinite]
        kept = tuple(found for found in refined if found is not None)
        num_steps = watched.nonfinite_steps - (len(refined) - len(kept))
        return replace(watched, nonfinite=kept, nonfinite_steps=num_steps)

    def add_checks(self, facts: RunFacts) -> RunFacts:
        """Return the facts of a run with what the guard has checked and found so far."""
        return add_checks(
            facts,
            self._guard.facts(),
            is_guard_first=self._is_guard_first,
            reported=self._reported,
        )
