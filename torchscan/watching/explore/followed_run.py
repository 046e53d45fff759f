"""A run that a server shows while it is recorded: its page, and the distributions of calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchscan.report.paging.row_values import key_of
from torchscan.watching.distribution_columns import side_by_side
from torchscan.watching.distributions_over_steps import OverSteps
from torchscan.watching.explore.run_page import (
    data_of_run,
    measured_by_key,
    training_beside,
    with_training,
    wrong_in,
)
from torchscan.watching.explore.training import FollowedTraining, losses_of
from torchscan.watching.history import WatchedRun
from torchscan.watching.processes import single_thread
from torchscan.watching.rank_readers import readers_of
from torchscan.watching.run_files import ranks_in
from torchscan.watching.run_reader import Reader
from torchscan.watching.schema import Phase

#: calls whose distributions are kept at hand
_CALLS = 32
#: steps that are read before the first picture; then the others
_AT_FIRST = 160


class Followed:
    """One run, for any number of readers. It only reads."""

    def __init__(self, path: Path, name: str = "") -> None:
        self._run = WatchedRun(path)
        self.path, self._name = path, name or path.name
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, _CallHistory] = OrderedDict()
        self._training = FollowedTraining(self._run)

    def page(self, *others: Followed) -> dict[str, Any]:
        """Return all but the distributions. ``others`` are shown beside."""
        # asked first: a graph that comes in between is then asked for again, and not missed
        is_drawn = self._is_drawn
        data = data_of_run(self._run, self._run.last(), *(each._run for each in others))
        return with_training({**data, "isDrawn": is_drawn}, self.training(*others))

    def training(self, *others: Followed) -> dict[str, Any] | None:
        """Return the curves and the layers over the steps, or None before the first one.

        The losses of ``others`` are added.
        """
        losses = [losses_of(each._run, each._name) for each in others]
        return training_beside(self._training.data(), losses)

    @property
    def _is_drawn(self) -> bool:
        """True if the graph of the model exists, which takes some seconds after the first step."""
        drawn = [reader.has_graph() for reader in self._readers()]
        return any(drawn)

    def _readers(self) -> Iterator[Reader]:
        return readers_of(ranks_in(self._run.path))

    def figures(self, *others: Followed) -> dict[str, Any]:
        """Return the measurements of the last step, by call."""
        measured = self._run.last()
        runs = [self._run, *(each._run for each in others)]
        found = measured_by_key(self._run, measured)
        return {
            "source": measured.source,
            "wrong": wrong_in(runs),
            "isDrawn": self._is_drawn,
            **found,
        }

    def newest(self) -> tuple[object, ...]:
        """Return the amount of data. If the value changes, there are new data."""
        phase = self._run.shown_phase
        amounts: list[object] = []
        for reader in self._readers():
            last, last_pass = reader.last(phase), reader.last_pass(phase)
            num_events = len(reader.events())
            amounts.append((last, last_pass, num_events, reader.has_graph()))
        return tuple(amounts)

    def heat(self, key: str) -> dict[str, Any]:
        """Return the distributions of a call, by its key: of some steps, then of all."""
        with self._lock:
            call = self._calls.setdefault(key, _CallHistory(key))
            self._calls.move_to_end(key)
            while len(self._calls) > _CALLS:
                self._calls.popitem(last=False)
        with call.lock, single_thread():
            call.read(self._run)
            histories = []
            for series, columns in call.over.columns_by_series():
                about = {"run": self._name, "kind": series.kind, "name": series.what}
                histories.append({**about, **columns})
            return {"histories": histories, "isWhole": call.is_whole}


class _CallHistory:
    """The history of a call.

    Each step is read once, or all again if a run returned to a checkpoint.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self.lock = threading.Lock()
        self._forget()

    def _forget(self, phase: Phase = "train") -> None:
        self._phase = phase
        self.over = OverSteps(phase)
        #: of each process, when each step was written that has been read, by its number in the file
        self._read: dict[Path, dict[int, float]] = {}
        self.is_whole = False

    def read(self, run: WatchedRun) -> None:
        """Read the new data."""
        phase = run.shown_phase
        known = {reader.path: reader.written(phase) for reader in readers_of(ranks_in(run.path))}
        has_changed = phase != self._phase
        for path, written in known.items():
            read = self._read.get(path, {})
            # The last step that was read may have been removed or replaced.
            if read and written.get(max(read)) != read[max(read)]:
                has_changed = True
        if has_changed:
            self._forget(phase)
        are_read = []
        for reader in readers_of(ranks_in(run.path)):
            if reader.path in known:
                is_read = self._read_new(reader, known[reader.path])
                are_read.append(is_read)
        self.is_whole = all(are_read)

    def _read_new(self, reader: Reader, written: Mapping[int, float]) -> bool:
        """Read new steps, and return whether nothing is left to read."""
        read = self._read.setdefault(reader.path, {})
        new = sorted(written.keys() - read.keys(), reverse=True)
        wanted = new if read else new[:: max(1, len(new) // _AT_FIRST)]
        series = {
            number: each
            for number, each in reader.series().items()
            if key_of(each.path, each.invocation) == self._key
        }
        for number in wanted:
            watched = reader.step(self._phase, number)
            if watched is not None:
                found = side_by_side(watched.distributions)
                self.over.add_sampled(watched.place, found, series)
            read[number] = written[number]
        for number in read.keys() - written.keys():  # which is there no more, but in the picture
            del read[number]
        return len(wanted) == len(new)
