"""The place of this process among the ranks that train, and errors because another is gone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import torch

#: torch's errors of stores and sockets, which are about other ranks only
_NETWORK_ERRORS = frozenset({"DistNetworkError", "DistStoreError"})
#: words of torch's backends; other libraries may lose connections to a data set
_BACKEND = re.compile(
    r"DistBackendError|gloo/|tensorpipe/|NCCL|ProcessGroup|monitoredBarrier|c10d|TCPStore"
)
_LOSS = re.compile(
    r"connection (was )?(closed|reset|refused|aborted|lost)|closed by (remote )?peer"
    r"|reset by peer|broken pipe|pair closure|socket closed|failed to recv|\beof\b"
    r"|timed? ?out|watchdog|failed to pass monitoredBarrier"
    r"|ncclRemoteError|remote process exited|network error|communicator was aborted"
    r"|connectFullMesh",
    re.IGNORECASE,
)


def current_rank() -> int:
    """Return the rank of this process.

    Some launchers set no ``RANK``, and some only the rank in the machine.
    """
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    if _has_group():
        return torch.distributed.get_rank()
    return int(os.environ.get("LOCAL_RANK", "0"))


def current_world_size() -> int:
    """Return the number of ranks, as far as it is known."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return torch.distributed.get_world_size() if _has_group() else 1


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_of_lost_peer(error: BaseException) -> bool:
    """Return whether an error, or its cause, reports a lost connection to a rank or a timeout."""
    for each in _chain(error):
        name, text = type(each).__name__, str(each)
        is_of_backend = _BACKEND.search(f"{name}: {text}") is not None
        if name in _NETWORK_ERRORS or (is_of_backend and _LOSS.search(text)):
            return True
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from, as a traceback shows them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        shown_context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or shown_context
