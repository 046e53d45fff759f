"""Between the training process and its worker: memory that both see, and a socket over which they say what is in it.

Nobody waits: where there is no room, a step is dropped and counted. The socket closes when either process ends.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchscan.live.sampled import Sampled

#: bytes of memory, at least, and how many steps there must be room for. It takes none of the machine's until it is used
_LEAST, _STEPS = 2**26, 8
_CHUNK = 2**16
_IN_MEMORY = "/dev/shm"  # noqa: S108 - the names in it are new ones

Message = dict[str, Any]


def shared_file(size: int) -> Path:
    """A new file in memory, where the machine has such a place. Whoever opens it removes its name."""
    number, name = tempfile.mkstemp(prefix="torchscan-", dir=_IN_MEMORY if os.path.isdir(_IN_MEMORY) else None)
    os.ftruncate(number, size)
    os.close(number)
    return Path(name)


def mapped(path: Path) -> mmap.mmap:
    """The memory of such a file."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class Line:
    """A socket that never waits: what it cannot send at once, it sends later."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.socket.setblocking(False)
        self._waiting = bytearray()
        self._received = bytearray()
        self.is_open = True

    def say(self, message: Message) -> None:
        """Send it as soon as there is room."""
        self._waiting += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        with self._closed_by_other():
            while self._waiting:
                sent = self.socket.send(self._waiting[:_CHUNK])
                del self._waiting[:sent]

    @property
    def has_said_all(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def heard(self) -> Iterator[Message]:
        """What has come since."""
        with self._closed_by_other():
            while self.is_open:
                data = self.socket.recv(_CHUNK)
                self.is_open = bool(data)
                self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            yield json.loads(line)

    @contextlib.contextmanager
    def _closed_by_other(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            pass
        except OSError:  # a broken pipe, or a connection that was reset
            self.is_open = False

    def close(self) -> None:
        """Say and hear no more."""
        self.is_open = False
        self.socket.close()


class Outlet:
    """The end of the training process. Steps lie in the memory one behind the other, around and around."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._memory: mmap.mmap | None = None
        self._size = 0
        #: where the next step goes, and the sizes of those that were not read yet
        self._at = 0
        self._unread: deque[tuple[int, int]] = deque()
        #: how many are still to be read of the memory before
        self._left_over = 0

    def make_room(self, sampled: Sampled) -> None:
        """For steps of this size. What lies in the memory that there was is still read."""
        if sampled.nbytes > self._size:
            path = shared_file(max(_LEAST, _STEPS * sampled.nbytes))
            self._memory = mapped(path)
            self._size, self._at = len(self._memory), 0
            self._left_over += len(self._unread)
            self._unread.clear()
            self.line.say({"is": "memory", "path": str(path)})

    def put(self, sampled: Sampled) -> bool:
        """Whether there was room for it."""
        self.make_room(sampled)
        at = self._place(sampled.nbytes)
        if at is None or self._memory is None:
            return False
        sampled.write(self._memory, at)
        self._unread.append((at, sampled.nbytes))
        self._at = at + sampled.nbytes
        self.line.say({"is": "step", "at": at, **sampled.header})
        return True

    def note_read(self) -> None:
        """The oldest was read: there is room again."""
        if self._left_over:
            self._left_over -= 1
        elif self._unread:
            self._unread.popleft()

    @property
    def is_empty(self) -> bool:
        """Whether all was read."""
        return not self._unread and not self._left_over

    def _place(self, size: int) -> int | None:
        """From where on so much is free."""
        if not self._unread:
            return 0 if size <= self._size else None
        oldest = self._unread[0][0]
        if self._at > oldest:
            if self._at + size <= self._size:
                return self._at
            return 0 if size < oldest else None
        return self._at if self._at + size < oldest else None
