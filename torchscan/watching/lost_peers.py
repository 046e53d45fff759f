"""Errors that a rank raises because another rank is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: torch's errors of stores and sockets, which are about other ranks only
_NETWORK_ERRORS = frozenset({"DistNetworkError", "DistStoreError"})
#: what torch's backends say; other libraries lose connections of their own, to a data set for example
_BACKEND = re.compile(
    r"DistBackendError|gloo/|tensorpipe/|NCCL|ProcessGroup|monitoredBarrier|c10d|TCPStore"
)
_LOSS = re.compile(
    r"connection (was )?(closed|reset|refused|aborted|lost)|closed by (remote )?peer|reset by peer|broken pipe|pair closure"
    r"|socket closed|failed to recv|\beof\b"
    r"|timed? ?out|watchdog|failed to pass monitoredBarrier"
    r"|ncclRemoteError|remote process exited|network error|communicator was aborted|connectFullMesh",
    re.IGNORECASE,
)


def is_of_lost_peer(error: BaseException) -> bool:
    """Return whether this error, or one that led to it, reports a lost connection to another rank, or a timeout."""
    return any(_reports_loss(each) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from, as a traceback shows them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        shown_context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or shown_context


def _reports_loss(error: BaseException) -> bool:
    name, text = type(error).__name__, str(error)
    if name in _NETWORK_ERRORS:
        return True
    return bool(_BACKEND.search(f"{name}: {text}") and _LOSS.search(text))
