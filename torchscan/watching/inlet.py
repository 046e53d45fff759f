"""The worker's end of the shared memory."""

from __future__ import annotations

import json
import mmap
import os

from torchscan.watching.channel import CONTROL_SIZE, ROW, ROW_MARK, Counters
from torchscan.watching.message_socket import Message
from torchscan.watching.step_samples import STEP_MARK, padded_size, read_header


class Inlet:
    """The worker's end of the memory."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.counters = Counters(file)
        self.memory = mmap.mmap(file, CONTROL_SIZE)

    def next(self, num_pending: int = 0) -> tuple[Message, int] | None:
        """Return the message of a record and the position of its step, or None.

        It is the oldest record behind ``num_pending`` others that are not handled yet.
        """
        record = self.counters.taken + num_pending
        if record >= self.counters.put:
            return None
        size = os.fstat(self._file).st_size
        if size > len(self.memory):
            self.memory = mmap.mmap(self._file, size)
        at, length = self.counters.place_of(record)
        data = self.memory[at : at + length]
        if data[0] == STEP_MARK:
            return read_header(data), at + padded_size(length)
        if data[0] != ROW_MARK:
            return json.loads(data), at + padded_size(length)
        _, is_evaluation, known, *place, loss, rate, norm = ROW.unpack(data)
        row = ["eval" if is_evaluation else "train", *place, None, None, None]
        for index, value in enumerate((loss, rate, norm)):
            if known >> index & 1:
                row[index - 3] = value
        return {"is": "curves", "rows": [row]}, at + padded_size(length)

    def free(self, count: int = 1) -> None:
        """Report the oldest records as handled."""
        self.counters.taken += count
