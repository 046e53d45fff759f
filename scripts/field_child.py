"""A process that measures models of one package, so that a crash or a hang ends one model only."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import time
import warnings
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from field_measuring import format_error, measure
from field_packages import packages

from tests.torchvision_cpu import torchvision  # noqa: F401 - which most packages import

#: seconds for one model, and for a package to be imported and its models to be listed
LIMIT, _LIMIT_TO_LIST = 120.0, 180.0
#: bytes of address space, so that a model that is too large ends in an error
_MAX_MEMORY = 12 << 30

Answer = dict[str, Any]


class Child:
    """A forked process, which needs not import torch again."""

    def __init__(self, package: str) -> None:
        context = get_context("fork")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(package, other), daemon=True)
        self._process.start()
        other.close()
        crashed = {"package": package, "names": [], "error": "crashes while it is imported"}
        self.listing: Answer = self._receive(_LIMIT_TO_LIST) or crashed

    def measure(self, name: str) -> Answer | None:
        """Return the answer for a model, or None if the process has died or takes too long."""
        with contextlib.suppress(OSError):  # it is dead, which receiving tells
            self._connection.send(name)
        return self._receive(LIMIT)

    def end(self) -> int | None:
        """End the process. Return its exit status if it had ended by itself, or None."""
        self._connection.close()
        self._process.join(2)
        status = self._process.exitcode
        if status is None:
            self._process.kill()
            self._process.join()
        return status

    def _receive(self, limit: float) -> Answer | None:
        try:
            answer: Answer | None = (
                self._connection.recv() if self._connection.poll(limit) else None
            )
        except (EOFError, OSError):
            return None
        return answer


def _refuse_to_connect(*_: Any, **__: Any) -> Any:
    raise OSError("no network")


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def _serve(name: str, connection: Connection) -> None:
    """Send the list of the package's models, then an answer for each name that arrives."""
    for stream in (1, 2):  # the libraries print
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    os.environ["HF_HUB_OFFLINE"] = "1"
    socket.getaddrinfo = _refuse_to_connect  # no model downloads its weights,
    time.sleep = _do_nothing  # nor waits before it tries again
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    package = packages()[name]
    listing: Answer = {"package": name, "distribution": package.distribution}
    known = {}
    try:
        listing["version"] = metadata.version(package.distribution)
        known = {case.name: case for case in package.cases()}
    except BaseException as error:  # packages exit, too
        listing["error"] = format_error(error)
    connection.send({**listing, "names": list(known)})
    with contextlib.suppress(EOFError):
        while True:
            connection.send(measure(known[connection.recv()]))
            gc.collect()  # models and caches refer to themselves
