"""Everything that torchscan raises, in one hierarchy, so that one ``except`` catches it all."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from torchscan.escapes import printable_text


class TorchscanError(Exception):
    """Base of all errors of torchscan. The message says what is wrong, where, and what to try."""

    def __str__(self) -> str:
        """Return the message without control characters, which names of modules and files may contain."""
        return printable_text(super().__str__())


class InputError(TorchscanError, ValueError):
    """An argument cannot be used: not a module, a malformed shape, an unknown option."""


class RecordError(TorchscanError, RuntimeError):
    """The model raised while its pass was recorded; the original exception is chained as the cause."""

    #: the record up to there, a ``Trace``, and which call of a module failed in it; None: there is none
    so_far: Any = None
    failed: int | None = None
    #: the ``input_shape`` without what may be a batch dimension, to be tried before it is suggested; None: there is none
    without_batch: Any = None


class UnpricedError(TorchscanError):
    """``strict=True``, and the pass contains unpriced operators."""


class NeedsValuesError(TorchscanError):
    """The pass asked for a value, but runs on shapes alone. Caught by ``execute="auto"``."""


class BudgetError(TorchscanError, AssertionError):
    """A model exceeds its budget. The message says which limit, by how much, and which layers to look at."""


class NonFiniteError(TorchscanError, ArithmeticError):
    """A real step made a value that is NaN or infinite. The message says which module did, and by which operator."""


class AlarmError(TorchscanError):
    """A check of the user's raised an alarm in a real step. The message says which check, and where."""


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Say which of several failed: errors begin with its name."""
    try:
        yield
    except TorchscanError as error:
        if str(error).startswith((f"{what}: ", repr(what))):
            raise
        raise type(error)(f"{what}: {error}") from error.__cause__


_NOT_THE_USERS = ("torchscan", "functools", "torch")


def warn_user(message: str) -> None:
    """Warn at the line that called torchscan, however deep inside the reason was found."""
    depth, frame = 2, sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS
    ):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(printable_text(message), stacklevel=depth)
