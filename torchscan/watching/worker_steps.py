"""Sampled steps in the worker: their distributions are written to the store and shown to sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchscan.notes import Note
from torchscan.watching.guests import Guests
from torchscan.watching.lost_steps import lost_step
from torchscan.watching.message_socket import Message
from torchscan.watching.run_database import StoreError
from torchscan.watching.schema import Announced, SampledStep, Series
from torchscan.watching.worker_session import WorkerSession

if TYPE_CHECKING:
    from torchscan.watching.digest import Digest
    from torchscan.watching.distribution_columns import Distributions

#: a step's message and the position of its values in the memory
Record = tuple[Message, int]
#: lists of numbers of series that are kept
_MAX_LISTS = 16
#: what places a step in the run
_TIMES = ("step", "phase", "number", "time")


class StepWriter:
    """Writer of steps, which loads torch for the first one."""

    def __init__(
        self, session: WorkerSession, guests: Guests, announced: Mapping[int, Announced]
    ) -> None:
        """``announced`` has the series by their numbers on the line, also those that come later."""
        self._session, self._guests = session, guests
        self._announced = announced
        #: the numbers of series in the file, by those on the line
        self._known: dict[int, int] = {}
        #: the same for the lists of steps, by the identities of the lists
        self._in_file: dict[int, tuple[list[int], list[int]]] = {}
        self._has_nan = False
        self._digest: Digest | None = None

    @property
    def is_ready(self) -> bool:
        """True once torch is loaded."""
        return self._digest is not None

    def get_ready(self) -> Digest:
        """Load torch, unless that is done, and return what reads steps."""
        if self._digest is None:
            from torchscan.watching.digest import Digest  # torch, for the first time

            self._digest = Digest(self._guests)
        return self._digest

    def take(self, records: Sequence[Record]) -> None:
        """Write steps, and count as lost those that cannot be written."""
        session = self._session
        try:
            self._write(records)
            session.has_failed = False
        except Exception as error:
            # The disk may be full now and not later, or it is an internal error.
            if len(records) > 1:  # it may concern one of them
                for each in records:
                    self.take([each])
                return
            ((message, _),) = records
            why = session.report_failure(error)
            session.inlet.counters.note_failed()
            session.count_lost(lost_step(message["phase"], message["step"], why))
            session.keep(session.accounts())

    def _write(self, records: Sequence[Record]) -> None:
        """Write steps in one transaction."""
        session = self._session
        digested = self.get_ready().read(session.inlet.memory, records, self._announced)
        times: list[dict[str, Any]] = []
        for message, _ in records:
            times.append({name: message[name] for name in _TIMES})
        has_written = False
        try:
            session.place.require()
            steps = []
            for when, each in zip(times, digested, strict=True):
                numbers = self._stored(each.numbers)
                steps.append(SampledStep(**when, distributions=each.numbered(numbers)))
            session.write_steps(steps)
            has_written = True
        except StoreError:
            self._known.clear()  # what was new may not be there
            self._in_file.clear()
            raise
        finally:
            if has_written or len(records) == 1:  # else they come again, one by one
                for (message, _), when, each in zip(records, times, digested, strict=True):
                    self._look_for_nan(message, each.found, each.series)
                    if self._guests.has_sinks:
                        self._guests.show(each.seen(when))

    def _look_for_nan(self, message: Message, found: Distributions, series: list[Series]) -> None:
        """Report the first NaN, once."""
        num_nan = found.columns.figures["nan"]
        if self._has_nan or not num_nan.any():
            return
        self._has_nan = True
        first, *others = (each for place, each in enumerate(series) if num_nan[found.rows[place]])
        step = message["step"]
        loss_step, loss = message["wrong_loss"] or (None, "")
        if loss_step is not None and loss_step >= step:
            loss_step, loss = None, ""
        note = Note.of(
            "nan-seen",
            step=step,
            series=first.label,
            path=first.path,
            invocation=first.invocation,
            others=len(others),
            loss_step=loss_step,
            loss=loss,
        )
        self._session.report_event(note)

    def _stored(self, numbers: list[int]) -> list[int]:
        """Return the numbers that series have in the file, in the same list for the same series."""
        own, in_file = self._in_file.get(id(numbers), (None, []))
        if own is numbers:
            return in_file
        for number in numbers:
            if number not in self._known:
                series = self._announced[number].series
                self._known[number] = self._session.store.number_of(series)
        in_file = [self._known[number] for number in numbers]
        if len(self._in_file) >= _MAX_LISTS:
            self._in_file.clear()
        self._in_file[id(numbers)] = numbers, in_file
        return in_file
