"""Errors of torchscan. One ``except TorchscanError`` catches all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

from torchscan.escapes import printable_text
from torchscan.wording import (
    PYTHON,
    Spelling,
    Subject,
    Wording,
    parameters_in,
    write_choices,
    write_text,
)
from torchscan.wording import Argument as Argument
from torchscan.wording import Give as Give
from torchscan.wording import PythonOnly as PythonOnly
from torchscan.wording import Text as Text
from torchscan.wording import TorchName as TorchName
from torchscan.wording import Value as Value


@Wording.register
class TorchscanError(Exception):
    """Base of all errors of torchscan. The message says what is wrong, where, and what to try.

    ``str(error)`` is the message in the words of Python, and so is ``error.args[0]``.
    """

    #: the problem, as text and references to arguments
    parts: tuple[Text, ...] = ()
    #: what the problem is about, on the line below it, or None
    details: Text = None
    #: what to try, on the next line, or None if the problem says it
    advice: Text = None

    def __init__(self, *problem: Text, details: Text = None, advice: Text = None) -> None:
        self.parts = problem
        self.details = details
        self.advice = advice
        super().__init__(str(self))

    def name_subject(self, subject: str) -> None:
        """Begin the message with the name of its subject, unless it has it already."""
        if Subject(subject) not in self.parts and Subject(repr(subject)) not in self.parts:
            self.parts = (Subject(subject), ": ", *self.parts)
            self.args = (str(self),)

    def advise(self, advice: Text) -> None:
        """Replace the advice."""
        self.advice = advice
        self.args = (str(self),)

    @classmethod
    def about(cls, subject: object, *problem: Text) -> Self:
        """Return an error whose message begins with the name of its subject."""
        return cls(Subject(str(subject)), ": ", *problem)

    @property
    def problem(self) -> str:
        """The problem in one line, in the words of Python, without details and advice."""
        return printable_text(write_text(self.parts, PYTHON)).partition("\n")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in Python of the arguments that the message refers to."""
        return tuple(dict.fromkeys(parameters_in((self.parts, self.details, self.advice))))

    def write(self, spelling: Spelling) -> str:
        """Return the message in the words of an interface.

        It has no control characters, which names of modules and files may contain.
        """
        lines = [write_text(self.parts, spelling)]
        if self.details is not None:
            lines.append(f"  {write_text(self.details, spelling)}")
        if self.advice is not None:
            lines.append(f"  try: {write_text(self.advice, spelling)}")
        return printable_text("\n".join(lines))

    def __str__(self) -> str:
        """Return the message in the words of Python."""
        return self.write(PYTHON)

    def __repr__(self) -> str:
        """Return the class and the message."""
        return f"{type(self).__name__}({str(self)!r})"


class InputError(TorchscanError, ValueError):
    """An argument cannot be used: not a module, a malformed shape, an unknown option."""

    @classmethod
    def of_value(cls, parameter: str, value: object, *advice: Text) -> Self:
        """Return the error "``parameter`` is ``value``: ``advice``"."""
        return cls(Argument(parameter), " is ", Value(value), ": ", *advice)

    @classmethod
    def of_choice(cls, parameter: str, value: object, choices: Iterable[object]) -> Self:
        """Return the error of a value that is not one of the choices."""
        return cls.of_value(parameter, value, "choose from ", write_choices(choices))


class RecordError(TorchscanError, RuntimeError):
    """The model raised an exception while its pass was recorded; the exception is the cause."""

    #: ``Trace`` up to the failure, or None if there is none
    so_far: Any = None
    #: index of the module call that failed, or None if it is not known
    failed: int | None = None


class MissingFormulaError(TorchscanError):
    """``strict=True``, and the pass contains operators without a cost formula."""


class NeedsValuesError(TorchscanError):
    """The pass asked for a value, but runs on shapes alone. ``execute="auto"`` catches it."""


class BudgetError(TorchscanError, AssertionError):
    """A model exceeds its budget. The message names the limit, the excess and the layers."""


class NonFiniteError(TorchscanError, ArithmeticError):
    """A real step produced a NaN or an infinity. The message names the module and the operator."""


class AlarmError(TorchscanError):
    """A user's check raised an alarm in a real step. The message names the check and the place."""


@contextlib.contextmanager
def naming(subject: str) -> Iterator[None]:
    """Begin the messages of errors with the name of their subject, if they do not have it."""
    try:
        yield
    except TorchscanError as error:
        error.name_subject(subject)
        raise
