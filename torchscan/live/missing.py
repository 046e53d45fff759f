"""Which processes of a run are not in what was recorded of it, or left it before the others did."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchscan.live.lock import is_locked
from torchscan.live.store import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one process has recorded."""

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

    @property
    def where(self) -> str:
        """``1 (19)``, with its last step."""
        return f"{self.rank}" if self.last is None else f"{self.rank} ({self.last})"


def missing_in(files: Sequence[Path]) -> list[str]:
    """Return in sentences which ranks recorded nothing, and which were gone without closing the run.

    The cause comes first. When a rank is gone, the others lose their connection to it at once, or are ended by their launcher.
    They may record their error before the worker of the rank that was killed has noticed anything, so a lost connection is
    never the cause, whenever it was raised. Among the rest, the earliest is.
    """
    parts = [_part(each) for each in files]
    number = max((part.processes for part in parts), default=1)
    there = {part.rank for part in parts}
    absent = [f"process {rank} of {number} has recorded nothing" for rank in range(number) if rank not in there]
    gone = [part for part in parts if part.gone is not None]
    gone.sort(key=lambda part: (part.has_lost_peer, part.gone or 0.0))
    return absent + ([_said(gone, number)] if gone else [])


def _part(file: Path) -> _Part:
    with contextlib.closing(Reader(file)) as reader:
        about, last = reader.about(), reader.last("train")
        latest = max((when for _, when in reader.times("train")), default=None)
    gone = about.get("ended")
    if gone is None and not about.get("closed", True) and not is_locked(file.with_suffix(".lock")):
        gone = latest or 0.0  # its worker was gone with it
    return _Part(
        rank=int(file.stem.removeprefix("rank")),
        processes=int(about.get("processes", 1)),
        last=None if last is None else last[0],
        gone=gone,
        raised=about.get("raised"),
        has_lost_peer=bool(about.get("lost_peer")),
    )


def _said(gone: Sequence[_Part], number: int) -> str:
    """``process 1 of 4 was gone at 08:46:03, its last recorded step 18, and did not close the run; then process 3 (19)``."""
    first, *others = gone
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.gone))
    last = "no step recorded" if first.last is None else f"its last recorded step {first.last}"
    who = f"process {first.rank} of {number}" if number > 1 else "the process"
    how = "did not close the run" if first.raised is None else f"had raised {first.raised}"
    if first.has_lost_peer:
        how = f"had lost its connection to another process ({first.raised})"
    then = f"; then process{'es' if len(others) > 1 else ''} {', '.join(each.where for each in others)}" if others else ""
    return f"{who} was gone at {when}, {last}, and {how}{then}"
