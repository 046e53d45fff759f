"""Ranks that are missing in a run, or that ended before the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torchscan.live.ledger import has_worker, ledger_of
from torchscan.live.lock import is_locked
from torchscan.live.losses import LostSteps, describe_lost
from torchscan.live.settling import lost_in, num_left, settled_about
from torchscan.live.store import Reader

#: processes that have recorded nothing and are named one by one
_MAX_NAMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankProgress:
    """The progress of one rank."""

    rank: int
    #: how many processes there were
    processes: int
    #: its last training step; None: none was recorded
    last: int | None
    #: when it was gone without closing the run, or by an exception, in seconds since 1970; None: neither
    gone: float | None
    #: by which exception
    raised: str | None
    #: True if the exception is what a rank raises because another one is gone
    has_lost_peer: bool
    lost: Sequence[LostSteps]
    #: steps that a worker has still to write, as the process that trains has ended
    num_left: int

    @property
    def where(self) -> str:
        """``1 (19)``, with its last step."""
        return f"{self.rank}" if self.last is None else f"{self.rank} ({self.last})"


def missing_in(files: Sequence[Path]) -> list[str]:
    """Return sentences: which ranks have recorded nothing, which left the run open, and which lost steps.

    The cause comes first. When a rank is gone, the others lose their connection to it at once, or are ended by their launcher.
    They may record their error before the worker of the rank that was killed has noticed anything, so a lost connection is
    never the cause, whenever it was raised. Among the rest, the earliest is.
    """
    parts = [_part(each) for each in files]
    number = max((part.processes for part in parts), default=1)
    there = {part.rank for part in parts}
    absent = list(islice((rank for rank in range(number) if rank not in there), _MAX_NAMED))
    said = [f"process {rank} of {number} has recorded nothing" for rank in absent]
    num_others = number - len(there) - len(absent)
    if num_others > 0:
        said.append(f"{num_others} other processes of {number} have recorded nothing")
    gone = [part for part in parts if part.gone is not None]
    gone.sort(key=lambda part: (part.has_lost_peer, part.gone or 0.0))
    ended = [_describe_missing(gone, number)] if gone else []
    return [*said, *ended, *(lost for part in parts if (lost := _lost_by(part, number)))]


def _lost_by(part: _RankProgress, number: int) -> str:
    whose = f"process {part.rank} of {number}: " if number > 1 else ""
    if part.num_left:
        noun = "step is" if part.num_left == 1 else "steps are"
        return f"{whose}{part.num_left} sampled {noun} not written yet; the process that writes the run is still running"
    said = describe_lost(part.lost)
    return f"{whose}{said}" if said else ""


def _part(file: Path) -> _RankProgress:
    with contextlib.closing(Reader(file)) as reader:
        about, last = settled_about(file, reader.about()), reader.last("train")
        times = [*reader.times("train"), *reader.times("eval")]
    latest = max((when for _, when in times), default=None)
    gone, is_trained = about.get("ended"), is_locked(file.with_suffix(".lock"))
    if gone is None and not about.get("closed", True) and not is_trained:
        gone = latest or _touched(file)  # its worker was gone with it, or has not noticed yet
    return _RankProgress(
        rank=_rank_of(file),
        processes=int(about.get("processes", 1)),
        last=None if last is None else last[0],
        gone=gone,
        raised=about.get("raised"),
        has_lost_peer=bool(about.get("lost_peer")),
        lost=lost_in(about),
        num_left=num_left(file, about) if not is_trained and has_worker(file) else 0,
    )


def _touched(file: Path) -> float:
    """Return when the last step began, as far as it is known; or else when the file was written."""
    begun = ledger_of(file)
    return (begun if begun.exists() else file).stat().st_mtime


def _rank_of(file: Path) -> int:
    """Return the rank in a file's name; of a file under another name, 0."""
    digits = file.stem.removeprefix("rank")
    return int(digits) if digits.isdecimal() else 0


def _describe_missing(gone: Sequence[_RankProgress], number: int) -> str:
    """``process 1 of 4 was gone at 08:46:03, its last recorded step 18, and did not close the run; then process 3 (19)``."""
    first, *others = gone
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.gone))
    last = "no step recorded" if first.last is None else f"its last recorded step {first.last}"
    who = f"process {first.rank} of {number}" if number > 1 else "the process"
    how = "did not close the run" if first.raised is None else f"had raised {first.raised}"
    if first.has_lost_peer:
        how = f"had lost its connection to another process ({first.raised})"
    then = (
        f"; then process{'es' if len(others) > 1 else ''} {', '.join(each.where for each in others)}"
        if others
        else ""
    )
    return f"{who} was gone at {when}, {last}, and {how}{then}"
