"""Steps that were sampled and are not in the run: which, how many and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torchscan.live.schema import Phase
from torchscan.live.validation import MAX_INTEGER

#: ranges that are kept apart; beyond that, neighbors of the same reason become one
_MAX_RANGES = 32
_MAX_BRIEF = 6
_MAX_WHY = 300
#: reasons
BEHIND = "the worker did not keep up"
UNDER_WAY = "under way when the training process ended"
REMOVED = "the folder of the run was removed"
NO_WORKER = "the process that writes the run had ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSteps:
    """Steps from ``first`` to ``last`` that were sampled and are not in the run."""

    phase: Phase
    #: training steps; of evaluations those after which they ran
    first: int
    last: int
    #: may be less than the range has, as not every step is sampled
    count: int
    why: str

    def __str__(self) -> str:
        noun = (
            ("step" if self.count == 1 else "steps")
            if self.phase == "train"
            else _EVALUATIONS[self.count != 1]
        )
        where = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        if self.count == 1:
            return f"{noun} {where} ({self.why})"
        return f"{self.count} {noun}, {where} ({self.why})"


_EVALUATIONS = ("evaluation at step", "evaluations")


class Losses:
    """A short list of lost steps, however many there are."""

    def __init__(self, known: Iterable[LostSteps] = ()) -> None:
        self.ranges: list[LostSteps] = list(known)

    @property
    def count(self) -> int:
        """The number of lost steps."""
        return sum(each.count for each in self.ranges)

    def add(self, lost: LostSteps) -> None:
        """Add steps that come after those before, or are joined with them."""
        fitting = [index for index in range(len(self.ranges)) if self._fits(index, lost)]
        if not fitting:
            self.ranges.append(lost)
        else:
            self.ranges[fitting[-1]] = _joined(self.ranges[fitting[-1]], lost)

    def forget_from(self, step: int) -> None:
        """Forget lost steps that are recorded again, because training goes back to this step."""
        kept = []
        for each in self.ranges:
            start = step if each.phase == "train" else step + 1
            if each.last < start:
                kept.append(each)
            elif each.first < start:
                kept.append(
                    replace(each, last=start - 1, count=min(each.count, start - each.first))
                )
        self.ranges = kept

    def to_data(self) -> list[dict[str, Any]]:
        """Return plain data for JSON."""
        return [asdict(each) for each in self.ranges]

    def to_brief_data(self) -> list[dict[str, Any]]:
        """Return the same with one range for each phase and reason, and no more than a few."""
        joined: dict[tuple[str, str], LostSteps] = {}
        for each in self.ranges:
            key = (each.phase, each.why)
            joined[key] = _joined(joined[key], each) if key in joined else each
        kept = sorted(joined.values(), key=lambda lost: -lost.count)[:_MAX_BRIEF]
        return [asdict(each) for each in kept]

    def _fits(self, index: int, new: LostSteps) -> bool:
        """Return whether a range and a later one become one: neighbors, or when there are too many."""
        each = self.ranges[index]
        if (each.phase, each.why) != (new.phase, new.why) or each.first > new.first:
            return False
        return len(self.ranges) >= _MAX_RANGES or 0 <= new.first - each.last <= 1


def _joined(one: LostSteps, other: LostSteps) -> LostSteps:
    first, last = min(one.first, other.first), max(one.last, other.last)
    return replace(one, first=first, last=last, count=one.count + other.count)


def lost_step(phase: Phase, step: int, why: str) -> LostSteps:
    """Return a single step as lost."""
    return LostSteps(phase=phase, first=step, last=step, count=1, why=why[:_MAX_WHY])


def missing_at_end(
    session: Mapping[str, Any], phase: Phase, step: int, count: int, why: str
) -> LostSteps:
    """Return so many steps up to this one as lost, which follow the last that the session has written."""
    last = session.get("last")
    first = step
    if count > 1:
        follows = isinstance(last, Sequence) and len(last) == 2 and last[0] == phase
        first = min(step, last[1] + 1) if follows and last is not None else max(0, step + 1 - count)
    return LostSteps(phase=phase, first=first, last=step, count=count, why=why)


def lost_from(data: object) -> list[LostSteps]:
    """Return the losses in plain data, without entries that are malformed."""
    entries = data if isinstance(data, Sequence) and not isinstance(data, str) else []
    return [lost for each in entries if (lost := _lost_from(each)) is not None]


def _lost_from(data: object) -> LostSteps | None:
    if not isinstance(data, Mapping):
        return None
    phase, why = data.get("phase"), data.get("why")
    numbers = [data.get(name) for name in ("first", "last", "count")]
    if phase not in ("train", "eval") or not isinstance(why, str):
        return None
    if any(type(number) is not int or not 0 <= number <= MAX_INTEGER for number in numbers):
        return None
    first, last, count = (int(str(number)) for number in numbers)
    return LostSteps(phase=phase, first=first, last=last, count=count, why=why[:_MAX_WHY])


def describe_lost(lost: Sequence[LostSteps], limit: int = 3) -> str:
    """Return ``13 sampled steps are not in the run: steps 4 to 9 (…), …``, or an empty text."""
    count = sum(each.count for each in lost)
    if not count:
        return ""
    named = "; ".join(str(each) for each in lost[:limit])
    more = f"; and {len(lost) - limit} more ranges" if len(lost) > limit else ""
    verb = "sampled step is" if count == 1 else "sampled steps are"
    return f"{count} {verb} not in the run: {named}{more}"
