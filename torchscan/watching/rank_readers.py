"""Readers of the files of a run's ranks, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from torchscan.errors import InputError
from torchscan.watching.run_files import is_rank_file, rank_of_file
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Phase, RunEvent


def readers_of(files: Iterable[Path]) -> Iterator[Reader]:
    """Yield a reader of each file, which is open until the next one is asked for."""
    for file in files:
        with contextlib.closing(Reader(file)) as reader:
            yield reader


def shown_phase(readers: Iterable[Reader]) -> Phase:
    """Return the phase that a page shows: evaluations only if no rank has a training step."""
    # To the end, so that each reader is closed.
    found = [reader.has_steps("train") for reader in readers]
    return "train" if any(found) else "eval"


def require_phase(phase: str) -> None:
    """Raise an InputError for anything but "train" and "eval"."""
    if phase not in ("train", "eval"):
        raise InputError(f"phase is {phase!r}: give 'train' or 'eval'")


def events_of(readers: Iterable[Reader]) -> tuple[RunEvent, ...]:
    """Return the events of all ranks in the order of time, each with its rank if it is known."""
    events: list[RunEvent] = []
    for reader in readers:
        found = reader.events()
        if is_rank_file(reader.path):
            rank = rank_of_file(reader.path)
            found = [replace(each, rank=rank) for each in found]
        events += found
    return tuple(sorted(events, key=lambda event: event.time))
