"""Messages between a trainer and its worker over a socket, and the files that it passes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

_CHUNK = 2**16
Message = dict[str, Any]


def take_files(end: socket.socket) -> tuple[int, int]:
    """Return the files that an outlet sends before all else: the memory and the worker's lock."""
    _, numbers, _, _ = socket.recv_fds(end, 1, 2)
    if len(numbers) != 2:
        raise EOFError("the training process has ended")
    for number in numbers:  # what a sink starts would keep the lock
        os.set_inheritable(number, False)
    return numbers[0], numbers[1]


class MessageSocket:
    """A socket that never waits: bytes without room are sent later."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.socket.setblocking(False)
        self._waiting = bytearray()
        self._received = bytearray()
        self.is_open = True

    def send(self, message: Message) -> None:
        """Send a message as soon as there is room."""
        self._waiting += json.dumps(message).encode() + b"\n"
        self.flush()

    def wake(self) -> None:
        """Wake the other side. A full socket means that it has not noticed earlier calls yet."""
        if not self._waiting:
            try:
                self.socket.send(b"\n")
            except OSError:  # full, or closed
                return

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        try:
            while self._waiting:
                sent = self.socket.send(self._waiting[:_CHUNK])
                del self._waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:  # the other side has closed; what it sent before can still be read
            self._waiting.clear()

    @property
    def is_drained(self) -> bool:
        """True if nothing waits."""
        return not self._waiting

    def heard(self) -> Iterator[Message]:
        """Yield the messages that have come since the last call."""
        try:
            while self.is_open:
                data = self.socket.recv(_CHUNK)
                self.is_open = bool(data)
                self._received += data
        except BlockingIOError:
            pass
        except OSError:  # a connection that was reset
            self.is_open = False
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)

    def close(self) -> None:
        """Send and receive no more."""
        self.is_open = False
        self.socket.close()
