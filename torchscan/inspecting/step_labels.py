"""Numbers and kinds of steps, as findings name them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from torchscan.inspecting.checks import CheckResult
from torchscan.inspecting.findings import NonFinite

_Found = TypeVar("_Found", NonFinite, CheckResult)


class StepCounts(NamedTuple):
    """Counts of finished steps, by kind."""

    #: with a backward pass
    trained: int = 0
    #: without one, with gradients off
    evaluated: int = 0
    #: without one, with gradients on: steps that an exception ended, passes whose results were only
    #: read
    unfinished: int = 0

    def add(self, *, trains: bool, is_evaluation: bool) -> StepCounts:
        """Return the counts with a step of this kind added."""
        if trains:
            return self._replace(trained=self.trained + 1)
        if is_evaluation:
            return self._replace(evaluated=self.evaluated + 1)
        return self._replace(unfinished=self.unfinished + 1)

    @property
    def num_training(self) -> int:
        """Steps that train; if none does, passes with gradients on: they may be meant to."""
        return self.trained or self.unfinished


@dataclass(slots=True)
class StepLabel:
    """The number and kind of a step, as findings name it."""

    #: which of its kind it is, from 0
    number: int
    #: True if it began with gradients off
    is_evaluation: bool = False

    def set(self, before: StepCounts, *, is_evaluation: bool) -> None:
        """Set the label as the step begins, from the counts of earlier steps."""
        self.number = before.evaluated if is_evaluation else before.num_training
        self.is_evaluation = is_evaluation

    def put_on(self, found: _Found) -> _Found:
        """Return the finding with this label."""
        return replace(found, step=self.number, is_evaluation=self.is_evaluation)
