"""The module call that an exception left first."""

from __future__ import annotations

import sys
from typing import Any

from torchscan.recording.module_calls import Call


class ExceptionOrigin:
    """The first call that an exception left, until the exception is caught."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._call: Call | None = None
        #: the positional arguments of that call
        self.arguments: tuple[Any, ...] = ()

    def note(self, error: BaseException | None, call: Call, arguments: tuple[Any, ...]) -> None:
        """Note that an exception leaves a call; only the first call is its origin."""
        if error is not None and self.error is not error:
            self.error, self._call, self.arguments = error, call, arguments

    def call_of(self, error: BaseException) -> Call | None:
        """Return the first call that an exception left, or None if it left none."""
        return self._call if self.error is error else None

    def forget_caught(self) -> None:
        """Release an exception that was caught: its frames hold tensors."""
        if self.error is not None and sys.exception() is not self.error:
            self.forget()

    def forget(self) -> None:
        """Release the exception, the call and its arguments."""
        self.error, self._call, self.arguments = None, None, ()
