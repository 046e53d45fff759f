"""Internal errors of an observer: they end the observation, never the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchscan.errors import TorchscanError
from torchscan.user_warnings import warn_or_print

#: characters of an internal error that are shown
_MAX_MESSAGE = 300


class InternalErrors:
    """Handler of internal errors of an observer: stops it, with one warning."""

    def __init__(
        self,
        activity: str,
        stop: Callable[[], object],
        warn: Callable[[str], object] = warn_or_print,
    ) -> None:
        """``activity`` is the word of the warning, for example "inspecting"; ``stop`` ends it."""
        self._activity, self._stop, self._warn = activity, stop, warn
        self.has_failed = False

    def give_up(self, error: Exception) -> None:
        """End the observation after an error. Raise it if it is one that the user asked for."""
        if isinstance(error, TorchscanError):
            raise error
        if self.has_failed:
            return
        self.has_failed = True
        self._stop()
        text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
        self._warn(
            f"torchscan hit an internal error and stopped {self._activity}; "
            f"training is not affected: {text}"
        )

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle errors raised inside the context."""
        try:
            yield
        except Exception as error:
            self.give_up(error)
