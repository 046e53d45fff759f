"""Lost steps of runs whose processes ended before they could record them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchscan.notes import Note
from torchscan.watching.ledger import Entry, has_worker, read_ledger
from torchscan.watching.losses import WRITER_ENDED, Losses, LostSteps, lost_from, missing_at_end


def is_settled(about: Mapping[str, Any]) -> bool:
    """Return whether a store counts all lost steps itself. Stores of earlier versions count none."""
    session = about.get("session")
    return not isinstance(session, Mapping) or bool(session.get("is_settled"))


def settled_about(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a store, corrected by its ledger if there is no worker to write them."""
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
