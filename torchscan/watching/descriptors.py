"""Numbers of open files: 0, 1 and 2 belong to the program, also where it has closed them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

_FIRST_OWN = 3


def above_standard(number: int) -> int:
    """Return the same open file under a number above 2. Otherwise what is printed would go into it."""
    if number >= _FIRST_OWN:
        return number
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN)
    os.close(number)
    return moved


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets with numbers above 2."""
    one, other = (
        socket.socket(fileno=above_standard(each.detach())) for each in socket.socketpair()
    )
    return one, other


def open_standard_files() -> None:
    """Open ``/dev/null`` in place of standard files that are closed."""
    for number in range(_FIRST_OWN):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != number:
                    os.dup2(opened, number)
                    os.close(opened)
