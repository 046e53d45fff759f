"""The module call that an exception left first."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torchscan.recording.module_calls import Call

if TYPE_CHECKING:
    from torchscan.recording.execution.calls import OpRequest


@dataclass(slots=True)
class ExceptionOrigin:
    """The first call that an exception left, until the exception is caught."""

    error: BaseException | None = None
    _call: Call | None = None
    #: the positional arguments of that call
    arguments: tuple[Any, ...] = ()

    def note(self, error: BaseException | None, call: Call, arguments: tuple[Any, ...]) -> None:
        """Note that an exception leaves a call; only the first call is its origin."""
        if error is not None and self.error is not error:
            self.error, self._call, self.arguments = error, call, arguments

    def call_of(self, error: BaseException) -> Call | None:
        """Return the first call that an exception left, or None if it left none."""
        return self._call if self.error is error else None

    def forget_caught(self) -> None:
        """Release an exception that was caught: its frames hold tensors."""
        if sys.exception() is not self.error:
            self.forget()

    def forget(self) -> None:
        """Release the exception, the call and its arguments."""
        self.error, self._call, self.arguments = None, None, ()


class Failure(NamedTuple):
    """An exception, and where it came from."""

    error: BaseException
    #: the innermost module call that it left
    call: Call | None
    #: the operator call that failed, or None if something else did
    request: OpRequest | None
