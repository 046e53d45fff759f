"""Memory shared by the training process and its worker, and a socket that wakes the other side.

All data from training is in the memory, so nothing is lost when training is killed: what was put
is still there for the worker. Training never waits; a step without room is dropped and counted.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchscan.watching.message_socket import Message
from torchscan.watching.processes import above_standard
from torchscan.watching.step_samples import StepSamples, padded_size

#: min bytes for records, and the number of steps that fit. Memory is taken only when it is used
_MIN_SIZE, _NUM_STEPS = 2**26, 8
#: bytes that are written to ahead of a step
_MAX_TOUCHED = 2**23
#: records that may lie in the memory at once: its first part lists them
_NUM_RECORDS = 2**15
#: bytes of the counters, and of these with the list of records
_COUNTERS_SIZE = 4096
CONTROL_SIZE = _COUNTERS_SIZE + 16 * _NUM_RECORDS
#: a row of the curves, which every pass has: a mark that no JSON begins with, whether it is an
#: evaluation, which of the values are known, step, number, time and the values
ROW, ROW_MARK = struct.Struct("<BBBxxxxxqqdddd"), 0


class Counters:
    """Whole numbers in shared memory. Each is written by one of the two processes only."""

    _PUT, _BEGUN, _BEGUN_STEP, _BEGUN_PHASE, _TAKEN, _BEAT, _FAILED = range(7)

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, CONTROL_SIZE)
        self._numbers = memoryview(self._memory).cast("Q")

    @property
    def put(self) -> int:
        """Records put into the memory since the run began."""
        return self._numbers[self._PUT]

    @property
    def taken(self) -> int:
        """Records that the worker has finished with."""
        return self._numbers[self._TAKEN]

    @taken.setter
    def taken(self, number: int) -> None:
        self._numbers[self._TAKEN] = number

    @property
    def beat(self) -> int:
        """Signs of life of the worker."""
        return self._numbers[self._BEAT]

    def note_beat(self) -> None:
        """Add a sign of life."""
        self._numbers[self._BEAT] += 1

    @property
    def failed(self) -> int:
        """Steps that the worker has taken and could not write."""
        return self._numbers[self._FAILED]

    def note_failed(self) -> None:
        """Count a step that could not be written."""
        self._numbers[self._FAILED] += 1

    @property
    def num_begun(self) -> int:
        """Steps of which sampling has begun."""
        return self._numbers[self._BEGUN]

    @property
    def last_begun(self) -> tuple[bool, int]:
        """The last of these: True if it is an evaluation, and its training step."""
        return bool(self._numbers[self._BEGUN_PHASE]), self._numbers[self._BEGUN_STEP]

    def note_begun(self, number: int, *, is_evaluation: bool, step: int) -> None:
        """Set the number of steps that were begun, and the last of them."""
        self._numbers[self._BEGUN_STEP] = step
        self._numbers[self._BEGUN_PHASE] = int(is_evaluation)
        self._numbers[self._BEGUN] = number

    def place_of(self, record: int) -> tuple[int, int]:
        """Return where a record begins, and the bytes of its message."""
        index = self._index_of(record)
        return self._numbers[index], self._numbers[index + 1]

    def add(self, at: int, size: int) -> None:
        """List one more record; its bytes are there already."""
        numbers = self._numbers
        put = numbers[self._PUT]
        index = self._index_of(put)
        numbers[index] = at
        numbers[index + 1] = size
        numbers[self._PUT] = put + 1

    def _index_of(self, record: int) -> int:
        return (_COUNTERS_SIZE // 8) + 2 * (record % _NUM_RECORDS)


def shared_memory() -> int:
    """Return a new file in memory, if the system has such files. It ends with its last process."""
    if hasattr(os, "memfd_create"):
        return above_standard(os.memfd_create("torchscan", os.MFD_CLOEXEC))
    number, name = tempfile.mkstemp(prefix="torchscan-")
    os.unlink(name)
    return above_standard(number)


class _Placed(NamedTuple):
    """The bytes of a record."""

    at: int
    size: int
    is_step: bool


class Outlet:
    """The training process's end of the memory, which is a ring of records."""

    def __init__(self) -> None:
        self._file = shared_memory()
        os.ftruncate(self._file, CONTROL_SIZE)
        self.counters = Counters(self._file)
        self._memory: mmap.mmap | None = None
        #: bytes for records, which begin behind the control part
        self._size = 0
        #: the end of the part that was written to: new pages take much longer than the writing
        self._touched = CONTROL_SIZE
        #: where the next record goes, and those that the worker has not finished with
        self._at = CONTROL_SIZE
        self._unread: deque[_Placed] = deque()
        self._num_freed = 0
        #: messages for which there was no room yet
        self._waiting: deque[Message] = deque()

    def send_files(self, end: socket.socket, lock: int) -> None:
        """Send a worker its files over a new socket."""
        socket.send_fds(end, [b"m"], [self._file, lock])

    def send(self, message: Message) -> None:
        """Put a message, as soon as there is room."""
        self._waiting.append(message)
        self.flush()

    def send_row(self, row: Sequence[Any]) -> None:
        """Put a row of the curves: phase, step, number, time and three values or None."""
        if self._waiting:
            self._waiting.append({"is": "curves", "rows": [row]})
            return
        phase, step, number, when, loss, rate, norm = row
        known = (loss is not None) | (rate is not None) << 1 | (norm is not None) << 2
        place = ROW_MARK, phase == "eval", known, step, number, when
        data = ROW.pack(*place, loss or 0.0, rate or 0.0, norm or 0.0)
        if not self._put_bytes(data, None):
            self._waiting.append({"is": "curves", "rows": [row]})

    def flush(self) -> bool:
        """Put waiting messages into the memory, and return whether there was room for all."""
        while self._waiting and self._put_bytes(json.dumps(self._waiting[0]).encode(), None):
            self._waiting.popleft()
        return not self._waiting

    def put(self, sampled: StepSamples) -> bool:
        """Put a step into the memory, and return whether there was room."""
        return self.flush() and self._put_bytes(sampled.header(), sampled)

    @property
    def num_steps_left(self) -> int:
        """Steps that the worker has not finished with."""
        self._free_taken()
        return sum(each.is_step for each in self._unread)

    @property
    def is_empty(self) -> bool:
        """Return whether the worker has processed everything that was sent or is waiting."""
        self._free_taken()
        return not self._unread and not self._waiting

    def close(self) -> None:
        """Close the memory; nothing can be put after that."""
        os.close(self._file)

    def _put_bytes(self, data: bytes, sampled: StepSamples | None) -> bool:
        head = padded_size(len(data))
        size = head + (0 if sampled is None else sampled.nbytes)
        if self._num_freed < self.counters.taken:
            self._free_taken()
        if size > self._size:
            # Room for steps of this size. Records in the memory stay where they are.
            self._size = max(_MIN_SIZE, _NUM_STEPS * size)
            os.ftruncate(self._file, CONTROL_SIZE + self._size)
            self._memory = mmap.mmap(self._file, CONTROL_SIZE + self._size)
        at = self._place(size)
        if at is None or self._memory is None or len(self._unread) >= _NUM_RECORDS:
            return False
        if at + size > self._touched:
            self._touch(at + size)
        self._memory[at : at + len(data)] = data
        if sampled is not None:
            sampled.write(self._memory, at + head)
        self._unread.append(_Placed(at, size, sampled is not None))
        self._at = at + size
        self.counters.add(at, len(data))
        return True

    def _free_taken(self) -> None:
        taken = self.counters.taken
        while self._num_freed < taken and self._unread:
            self._unread.popleft()
            self._num_freed += 1

    def _touch(self, end: int) -> None:
        """Write to the pages behind a record that ends here, before training needs them."""
        num_ahead = min(_NUM_STEPS * (end - self._touched), _MAX_TOUCHED)
        self._touched = min(CONTROL_SIZE + self._size, end + num_ahead)
        if self._memory is not None:
            self._memory[end : self._touched] = bytes(self._touched - end)

    def _place(self, size: int) -> int | None:
        """Return the start of ``size`` free bytes, or None if there are none."""
        end = CONTROL_SIZE + self._size
        if not self._unread:
            return CONTROL_SIZE if size <= self._size else None
        oldest = self._unread[0].at
        if self._at > oldest:
            if self._at + size <= end:
                return self._at
            return CONTROL_SIZE if CONTROL_SIZE + size < oldest else None
        return self._at if self._at + size < oldest else None
