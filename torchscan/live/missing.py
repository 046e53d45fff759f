"""Which processes of a run are not in what was recorded of it, or left it before the others did."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchscan.live.store import Reader


@dataclass(frozen=True, slots=True)
class _Part:
    """What one process has recorded."""

    rank: int
    #: its last training step; None: none was recorded
    last: int | None
    #: when it was gone without closing the run, in seconds since 1970; None: it was not
    gone: float | None


def missing_in(files: Sequence[Path]) -> list[str]:
    """In sentences: who has recorded nothing, and who was gone without closing the run, the first of them first.

    Of a group torch or its launcher ends the others when one is gone, so that the first is the one to look at.
    """
    about = [_about(each) for each in files]
    number = max((int(each.get("processes", 1)) for each in about), default=1)
    parts = [_part(file, each) for file, each in zip(files, about, strict=True)]
    there = {part.rank for part in parts}
    absent = [f"process {rank} of {number} has recorded nothing" for rank in range(number) if rank not in there]
    gone = sorted((part for part in parts if part.gone is not None), key=lambda part: part.gone or 0.0)
    return absent + ([_said(gone, number)] if gone else [])


def _about(file: Path) -> Mapping[str, Any]:
    with contextlib.closing(Reader(file)) as reader:
        return reader.about()


def _part(file: Path, about: Mapping[str, Any]) -> _Part:
    with contextlib.closing(Reader(file)) as reader:
        last = reader.last("train")
    return _Part(
        rank=int(file.stem.removeprefix("rank")),
        last=None if last is None else last[0],
        gone=about.get("ended"),
    )


def _said(gone: Sequence[_Part], number: int) -> str:
    """``process 1 of 4 was gone at 2026-11-25 08:46:03, its last step 18, and did not close the run; then process 3 (19)``."""
    first, *others = gone
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.gone))
    last = "no step recorded" if first.last is None else f"its last step {first.last}"
    who = f"process {first.rank} of {number}" if number > 1 else "the process"
    then = ", ".join(f"{part.rank}" if part.last is None else f"{part.rank} ({part.last})" for part in others)
    return f"{who} was gone at {when}, {last}, and did not close the run" + (f"; then {then}" if then else "")
