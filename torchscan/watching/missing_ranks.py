"""Notes on ranks that recorded nothing, left their run open or lost steps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torchscan.notes import Note
from torchscan.watching.lost_steps import LostSteps, lost_in, note_of_lost, num_left, settled_about
from torchscan.watching.run_files import has_worker, is_locked, ledger_of, rank_of_file
from torchscan.watching.run_reader import Reader

#: processes that have recorded nothing and are named one by one
_MAX_NAMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankProgress:
    """The progress of one rank."""

    rank: int
    #: number of processes
    processes: int
    #: its last training step; None: none was recorded
    last: int | None
    #: when it ended without closing the run, or by an exception, in seconds since 1970; or None
    gone: float | None
    #: type and text of the exception that ended it, or None
    raised: str | None
    #: True if the exception is what a rank raises because another one is gone
    has_lost_peer: bool
    lost: Sequence[LostSteps]
    #: steps that a worker has still to write, as the process that trains has ended
    num_left: int

    def to_data(self) -> dict[str, Any]:
        """Return plain data about the end of the process."""
        return {
            "rank": self.rank,
            "time": self.gone,
            "step": self.last,
            "raised": self.raised,
            "has_lost_peer": self.has_lost_peer,
        }


def missing_in(files: Sequence[Path]) -> list[Note]:
    """Return which ranks have recorded nothing, which left the run open, and which lost steps.

    The cause comes first. When a rank is gone, the others lose their connection to it at once, or
    their launcher ends them. They may record their error before the worker of the rank that was
    killed has noticed anything, so a lost connection is never the cause, whenever it was raised.
    Among the rest, the earliest is.
    """
    parts = [_part(each) for each in files]
    number = max((part.processes for part in parts), default=1)
    notes = _absent_ranks({part.rank for part in parts}, number)
    gone = [part for part in parts if part.gone is not None]
    gone.sort(key=lambda part: (part.has_lost_peer, part.gone or 0.0))
    if gone:
        ranks = [part.to_data() for part in gone]
        notes.append(Note.of("ranks-ended", num_ranks=number, ranks=ranks))
    for part in parts:
        lost = note_of_lost(part.lost, rank=part.rank, num_ranks=number)
        if part.num_left:
            left = part.num_left
            notes.append(Note.of("steps-pending", count=left, rank=part.rank, num_ranks=number))
        elif lost is not None:
            notes.append(lost)
    return notes


def _absent_ranks(present: set[int], number: int) -> list[Note]:
    """Return notes about ranks without a file, up to a limit one by one."""
    named = list(islice((rank for rank in range(number) if rank not in present), _MAX_NAMED))
    notes = [Note.of("rank-absent", rank=rank, num_ranks=number) for rank in named]
    num_others = number - len(present) - len(named)
    if num_others > 0:
        notes.append(Note.of("ranks-absent", count=num_others, num_ranks=number))
    return notes


def _part(file: Path) -> _RankProgress:
    with contextlib.closing(Reader(file)) as reader:
        about, last = settled_about(file, reader.about()), reader.last("train")
        times = [*reader.times("train"), *reader.times("eval")]
    latest = max((when for _, when in times), default=None)
    gone, is_trained = about.get("ended"), is_locked(file.with_suffix(".lock"))
    if gone is None and not about.get("closed", True) and not is_trained:
        # Its worker was gone with it, or has not noticed yet: the ledger has the last begun step.
        ledger = ledger_of(file)
        written = ledger if ledger.exists() else file
        gone = latest or written.stat().st_mtime
    num_unwritten = 0
    if not is_trained and has_worker(file):
        num_unwritten = num_left(file, about)
    return _RankProgress(
        rank=rank_of_file(file),
        processes=int(about.get("processes", 1)),
        last=None if last is None else last[0],
        gone=gone,
        raised=about.get("raised"),
        has_lost_peer=bool(about.get("lost_peer")),
        lost=lost_in(about),
        num_left=num_unwritten,
    )
