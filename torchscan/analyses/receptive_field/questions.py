"""A cache of the answers in one walk.

Models repeat the same layers at other places of the input. So a sight is stored as one that starts
at zero, with its offsets: equal sights have one number, and one answer serves all questions that
differ only in the offsets. Both are kept as long as the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchscan.analyses.receptive_field.sights import Glance, Sight, moved
from torchscan.analyses.receptive_field.symmetry import Turn, turn_between

#: the number of a sight that starts at zero, and what is to be added to its envelopes ``low`` and
#: ``high``. A plain tuple, as it is created and compared for every operator call
Seen = tuple[int, int, int]
#: answers by question; the key of a question that depends on where things are seen has that, too
Answers = dict[tuple[Any, ...], Seen | None]
#: what the operands see, by their positions, and of which axis; the answer, and how it was found
WorkOut = Callable[[Sequence[tuple[int, Sight]], int], tuple[Sight | None, Glance]]


class Sights:
    """All sights of one walk, each once."""

    def __init__(self) -> None:
        self._numbers: dict[Sight, int] = {}
        self._kept: list[Sight] = []
        #: most answers are operands of the next question
        self._moved: dict[Seen, Sight] = {}
        self._turns: dict[tuple[int, int], Turn | None] = {}

    def __getitem__(self, seen: Seen) -> Sight:
        """Return the sight as it is seen."""
        if seen not in self._moved:
            number, low, high = seen
            sight = self._kept[number]
            if low or high:
                sight = moved(sight, low, high)
            self._moved[seen] = sight
        return self._moved[seen]

    def seen(self, sight: Sight | None) -> Seen | None:
        """Return a sight as its number and where its ends are."""
        if sight is None:
            return None
        low = sight.low[0].base if sight.low else 0
        high = sight.high[0].base if sight.high else 0
        bare = moved(sight, -low, -high) if low or high else sight
        number = self._numbers.setdefault(bare, len(self._kept))
        if number == len(self._kept):
            self._kept.append(bare)
        self._moved[number, low, high] = sight
        return number, low, high

    def turn(self, one: int, other: int) -> Turn | None:
        """Return the turn from one sight to another, or None if there is none."""
        if (one, other) not in self._turns:
            self._turns[one, other] = turn_between(self._kept[one], self._kept[other])
        return self._turns[one, other]

    def ask(
        self,
        answers: Answers,
        length: int,
        seeing: Sequence[tuple[int, Seen]],
        work_out: WorkOut,
        axis: int,
    ) -> Seen | None:
        """Return the sight that results from these operands, computed unless the cache has it."""
        position, (number, low, high) = seeing[0]
        asked: tuple[Any, ...] = (length, position, number)
        if len(seeing) > 1:
            others = [
                (at, other, its_low - low, its_high - high)
                for at, (other, its_low, its_high) in seeing[1:]
            ]
            asked += tuple(others)
        if asked in answers:
            return self._shift(answers[asked], low, high)
        if (asked, low, high) in answers:
            return answers[asked, low, high]
        sight, glance = work_out([(at, self[each]) for at, each in seeing], axis)
        seen = self.seen(sight)
        if not glance.is_bound:
            answers[asked] = self._shift(seen, -low, -high)
        elif not glance.is_named:
            answers[asked, low, high] = seen
        return seen

    def _shift(self, seen: Seen | None, low: int, high: int) -> Seen | None:
        if seen is None:
            return None
        number, seen_low, seen_high = seen
        sight = self._kept[number]
        moved_low = seen_low + low if sight.low else 0
        moved_high = seen_high + high if sight.high else 0
        return number, moved_low, moved_high
