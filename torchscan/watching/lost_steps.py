"""Steps that were sampled and are not in a run, and ranks that ended early: which, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchscan.notes import Note
from torchscan.watching.run_files import Entry, has_worker, read_ledger
from torchscan.watching.schema import Phase
from torchscan.watching.validation import MAX_INTEGER

#: ranges that are kept apart; beyond that, neighbors of the same reason become one
_MAX_RANGES = 32
_MAX_BRIEF = 6
_MAX_ERROR = 300
#: reasons
TOO_SLOW = Note.of("writer-too-slow")
TRAINING_ENDED = Note.of("training-ended")
RUN_REMOVED = Note.of("run-removed")
WRITER_ENDED = Note.of("writer-ended")
INTERNAL_ERROR = Note.of("internal-error")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSteps:
    """Steps from ``first`` to ``last`` that were sampled and are not in the run."""

    phase: Phase
    #: first lost training step, or for evaluations the training step after which they ran
    first: int
    last: int
    #: number of lost steps; smaller than the range if not every step is sampled
    count: int
    why: Note

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        own = {name: getattr(self, name) for name in ("phase", "first", "last", "count")}
        return {**own, "why": self.why.to_data()}

    def __str__(self) -> str:
        """Return ``3 steps, 4 to 9 (the disk is full)``."""
        note = Note.of(
            "lost-range",
            phase=self.phase,
            first=self.first,
            last=self.last,
            count=self.count,
            why=self.why.to_data(),
        )
        return str(note)


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
        return [each.to_data() for each in self.ranges]

    def to_brief_data(self) -> list[dict[str, Any]]:
        """Return the same with one range for each phase and reason, and no more than a few."""
        joined: dict[tuple[str, Note], LostSteps] = {}
        for each in self.ranges:
            key = (each.phase, each.why)
            joined[key] = _joined(joined[key], each) if key in joined else each
        kept = sorted(joined.values(), key=lambda lost: -lost.count)[:_MAX_BRIEF]
        return [each.to_data() for each in kept]

    def _fits(self, index: int, new: LostSteps) -> bool:
        """Return whether a range and a later one become one, as neighbors or to save room."""
        each = self.ranges[index]
        if (each.phase, each.why) != (new.phase, new.why) or each.first > new.first:
            return False
        return len(self.ranges) >= _MAX_RANGES or 0 <= new.first - each.last <= 1


def _joined(one: LostSteps, other: LostSteps) -> LostSteps:
    first, last = min(one.first, other.first), max(one.last, other.last)
    return replace(one, first=first, last=last, count=one.count + other.count)


def lost_step(phase: Phase, step: int, why: Note) -> LostSteps:
    """Return a single step as lost."""
    return LostSteps(phase=phase, first=step, last=step, count=1, why=why)


def missing_at_end(
    session: Mapping[str, Any], phase: Phase, step: int, count: int, why: Note
) -> LostSteps:
    """Return ``count`` steps up to ``step`` as lost, after the last that the session wrote."""
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
    phase, why = data.get("phase"), _reason_from(data.get("why"))
    numbers = [data.get(name) for name in ("first", "last", "count")]
    if phase not in ("train", "eval") or why is None:
        return None
    if any(type(number) is not int or not 0 <= number <= MAX_INTEGER for number in numbers):
        return None
    first, last, count = (int(str(number)) for number in numbers)
    return LostSteps(phase=phase, first=first, last=last, count=count, why=why)


def _reason_from(data: object) -> Note | None:
    """Return the reason in plain data, or None. Files of versions before 3 hold a sentence."""
    if isinstance(data, str):
        return Note.from_text(data[:_MAX_ERROR])
    try:
        return Note.from_data(data)
    except ValueError:
        return None


def note_of_error(error: Exception) -> Note:
    """Return the reason that an unexpected exception is."""
    return Note.of("unexpected-error", error=format_error(error))


def format_error(error: BaseException) -> str:
    """Return the type and text of an exception, short enough for a ledger."""
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR]


def note_of_lost(lost: Sequence[LostSteps], **rank: int) -> Note | None:
    """Return a note about lost steps, with ``rank`` and ``num_ranks`` if given; or None."""
    if not sum(each.count for each in lost):
        return None
    return Note.of("steps-lost", ranges=[each.to_data() for each in lost], **rank)


def is_settled(about: Mapping[str, Any]) -> bool:
    """Return whether a store counts all lost steps. Stores of earlier versions count none."""
    session = about.get("session")
    return not isinstance(session, Mapping) or bool(session.get("is_settled"))


def settled_about(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a store, corrected by its ledger unless a worker still writes."""
    entry = None if is_settled(about) or has_worker(path) else read_ledger(path)
    return dict(about) if entry is None else settled_by(entry, about)


def settled_by(entry: Entry, about: Mapping[str, Any], why: Note = WRITER_ENDED) -> dict[str, Any]:
    """Return the entries of a store, with steps that were begun and are missing counted as lost."""
    if _session_id(about) != entry.session:
        return dict(about)
    known = entry.about if _session_id(entry.about) == entry.session else {}
    found = {**about, **known}
    session = dict(found["session"])
    if session.get("is_settled"):
        return found
    losses = Losses(lost_from(found.get("lost")))
    count = entry.num_begun - _number(session, "written") - _number(session, "lost")
    if count > 0:
        losses.add(missing_at_end(session, entry.phase, entry.step, count, why))
    session |= {"lost": _number(session, "lost") + max(count, 0), "is_settled": True}
    return {**found, "session": session, "lost": losses.to_data()}


def lost_in(about: Mapping[str, Any]) -> tuple[LostSteps, ...]:
    """Return the lost steps of a run."""
    return tuple(lost_from(about.get("lost")))


def num_left(path: Path, about: Mapping[str, Any]) -> int:
    """Return the number of steps that a worker still has to write, as far as it is known."""
    entry = read_ledger(path)
    if entry is None or _session_id(about) != entry.session or is_settled(about):
        return 0
    session = about["session"]
    return max(0, entry.num_begun - _number(session, "written") - _number(session, "lost"))


def _session_id(about: Mapping[str, Any]) -> object:
    session = about.get("session")
    return session.get("id") if isinstance(session, Mapping) else None


def _number(session: Mapping[str, Any], name: str) -> int:
    value = session.get(name, 0)
    return value if type(value) is int else 0
