"""The frequency with which steps are sampled."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from typing import Literal

#: of every so many rows one has its least and greatest value looked for, if each step is looked at
_IN_TURN = 16
#: what a step that is looked at takes longer, as a multiple of the time that is spent on looking:
#: torch calls hooks, caches are cold afterwards, and the worker has a core that training may want.
#: Of a ResNet-18 on two cores it was 16 ms for 5
_BESIDES = 3.0
#: the power of two that is the longest way from one to the next
_MAX_EXPONENT = 13
#: passes that are looked at in each doubling of their number, at any cost: 64 of the first 2,000
_IN_A_DOUBLING = 8


class Frequency:
    """The choice of steps to sample, for training or for evaluations."""

    def __init__(self, every: int | Literal["auto"], budget: float) -> None:
        self._is_auto = every == "auto"
        #: from one that is looked at to the next: two at least, if it is to be found out how long
        #: the others take
        self.every = 2 if every == "auto" else every
        self._budget = budget
        #: seconds from one pass to the next, of those that nobody looked at
        self._periods: deque[float] = deque(maxlen=32)
        #: start time of the previous pass, or None if it was sampled
        self._before: float | None = None
        self._turn = 0
        #: when an evaluation was looked at, as the number of passes of training and evaluations
        #: before
        self._seen: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether to sample this training step."""
        every = self._every(step) if self._is_auto else self.every
        return self._note(step % every == 0)

    def is_evaluation_due(self, number: int, place: int, clock: int) -> bool:
        """Return whether to sample this pass of an evaluation, the one at ``place``.

        Its first pass is sampled, unless fewer than ``every`` passes have run since the last
        sample. Training passes count, too.
        """
        every = self._every(number) if self._is_auto else self.every
        is_long_ago = self._seen is None or clock - self._seen >= every
        is_due = place % every == 0 if place else is_long_ago
        if is_due:
            self._seen = clock
        return self._note(is_due)

    def _every(self, number: int) -> int:
        """Return the steps from one sample to the next, fewer at the beginning of a run."""
        exponent = max(1, (number // _IN_A_DOUBLING).bit_length() - 1)
        return min(self.every, 1 << exponent)

    def _note(self, is_due: bool) -> bool:
        self._turn += is_due
        if self._is_auto:
            now = time.perf_counter()
            if self._before is not None:
                self._periods.append(now - self._before)
            self._before = None if is_due else now
        return is_due

    @property
    def turn(self) -> tuple[int, int]:
        """The first row of this pass with statistics of all values, and the rows to the next."""
        return self._turn, max(1, _IN_TURN // self.every)

    def note_cost(self, nanoseconds: int) -> None:
        """Note the time that the last sample took.

        ``every`` is a power of two, so that ranks sample the same steps.
        """
        if self._is_auto and self._periods:
            share = _BESIDES * nanoseconds * 1e-9 / statistics.median(self._periods)
            self.every = 2 ** max(
                1, math.ceil(min(_MAX_EXPONENT, math.log2(max(share / self._budget, 1.0))))
            )
