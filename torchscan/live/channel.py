"""Between the training process and its worker: memory that both see, and a socket over which they say what is in it.

Nobody waits: where there is no room, a step is dropped and counted. The socket closes when either process ends.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import Any

from torchscan.live.sampled import Sampled

#: bytes of memory, at least, and how many steps there must be room for. It takes none of the machine's until it is used
_LEAST, _STEPS = 2**26, 8
_CHUNK = 2**16

Message = dict[str, Any]


def shared_memory() -> int:
    """A new file in memory, where the machine has such a place. It has no name, so it goes when nobody has it any more."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("torchscan", os.MFD_CLOEXEC)
    number, name = tempfile.mkstemp(prefix="torchscan-")
    os.unlink(name)
    return number


def take_memory(end: socket.socket) -> int:
    """What an outlet has sent over a new line before all else."""
    _, numbers, _, _ = socket.recv_fds(end, 1, 1)
    if not numbers:
        raise EOFError("whoever trains has gone")
    return numbers[0]


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
        try:
            while self._waiting:
                sent = self.socket.send(self._waiting[:_CHUNK])
                del self._waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:  # nobody listens, but what was said before is still to be heard
            self._waiting.clear()

    @property
    def has_said_all(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def heard(self) -> Iterator[Message]:
        """What has come since."""
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
            yield json.loads(line)

    def close(self) -> None:
        """Say and hear no more."""
        self.is_open = False
        self.socket.close()


class Outlet:
    """The end of the training process. Steps lie in the memory one behind the other, around and around."""

    def __init__(self, end: socket.socket) -> None:
        self._file = shared_memory()
        socket.send_fds(end, [b"m"], [self._file])
        self.line = Line(end)
        self._memory: mmap.mmap | None = None
        self._size = 0
        #: where the next step goes, and the sizes of those that were not read yet
        self._at = 0
        self._unread: deque[tuple[int, int]] = deque()

    def make_room(self, size: int) -> None:
        """For steps of this size. What lies in the memory stays where it is."""
        if size > self._size:
            self._size = max(_LEAST, _STEPS * size)
            os.ftruncate(self._file, self._size)
            self._memory = mmap.mmap(self._file, self._size)
            self.line.say({"is": "memory", "size": self._size})

    def put(self, sampled: Sampled) -> bool:
        """Whether there was room for it."""
        self.make_room(sampled.nbytes)
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
        if self._unread:
            self._unread.popleft()

    @property
    def is_empty(self) -> bool:
        """Whether all was read."""
        return not self._unread

    def close(self) -> None:
        """Nothing is put any more."""
        self.line.close()
        os.close(self._file)

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
