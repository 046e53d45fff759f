"""Which pass a call of the model belongs to: a rule that is the same for steps that are looked at and for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from torchscan.live.schema import Phase

#: a pass begins; a call is of the pass that is under way; it is an evaluation in the middle of a training step
Place = Literal["new", "same", "aside"]


class Pass(NamedTuple):
    """A training step, or an evaluation after so many."""

    phase: Phase
    step: int
    #: of a training step the same; of an evaluation, which one it is
    number: int


class Steps:
    """A training step ends when gradients have begun to come, at the next call; or when somebody says so."""

    def __init__(self, last: Mapping[Phase, tuple[int, int]], reached: int, step: int | None) -> None:
        """``last``: of each phase the last step that was recorded, and its number. ``step``: the number of the first one.

        ``reached`` is that of the step which would have come next when the run was closed.
        """
        #: of the training step that comes next
        self.next = max(reached, last["train"][0] + 1 if "train" in last else 0) if step is None else step
        self._evaluations = last["eval"][1] + 1 if "eval" in last else 0
        self.current = Pass("eval", self.next, -1)
        self._is_over = True
        self.is_told = False
        self._is_counted = False
        #: parts of the model that were called in the evaluation that is under way
        self._called: set[int] = set()

    def note_backward(self) -> None:
        """Gradients come, or an optimizer makes its step."""
        self._is_over = not self.is_told

    def place_of(self, phase: Phase, part: int | None) -> Place:
        """Of a call that begins. ``part``: of what, if not of the model itself."""
        if self.current.phase == "train" and not self._is_over:
            return "same" if phase == "train" else "aside"
        if phase == self.current.phase == "eval" and part is not None and part not in self._called:
            self._called.add(part)
            return "same"
        return "new"

    def begin(self, phase: Phase, part: int | None) -> Pass:
        """A new one."""
        if phase == "train":
            self.current = Pass(phase, self.next, self.next)
            self._is_counted = not self.is_told
            self.next += self._is_counted
            self._is_over = False
        else:
            self.current = Pass(phase, self.next, self._evaluations)
            self._evaluations += 1
            self._called = set() if part is None else {part}
        return self.current

    def end(self, number: int | None) -> None:
        """The training step is over, and the next one has this number: whoever says so once says so always."""
        is_told, self.is_told, self._is_over = self.is_told, True, True
        self.next = self.next + is_told if number is None else number
