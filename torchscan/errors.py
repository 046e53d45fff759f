"""Errors and warnings of torchscan, and the text that they consist of.

One ``except TorchscanError`` catches every error. Texts refer to arguments as data, so that each
interface writes them in its own words: ``batch_size=2`` in Python, ``--batch-size 2`` in a shell.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torchscan.escapes import printable_text

# -- texts ---------------------------------------------------------------------------------------

#: a string, a ``Part``, a tuple of these, or an error whose text is embedded
Text = Any


class Spelling(Protocol):
    """The words of an interface for arguments and their values."""

    #: True if the reader calls functions in Python
    is_python: bool

    def name(self, parameter: str) -> str:
        """Return the name of an argument."""

    def argument(self, parameter: str, value: Any) -> str:
        """Return an argument to give; a ``value`` of ``...`` is left to the reader."""

    def value(self, value: Any) -> str:
        """Return a value that was given."""


class PythonSpelling:
    """The words of calls in Python."""

    is_python = True

    def name(self, parameter: str) -> str:
        """Return the name of an argument."""
        return parameter

    def argument(self, parameter: str, value: Any) -> str:
        """Return an argument to give, such as ``batch_size=2``."""
        return f"{parameter}={'' if value is ... else self.value(value)}"

    def value(self, value: Any) -> str:
        """Return a value as code."""
        return repr(value)


PYTHON = PythonSpelling()
#: characters of a value that was given
_MAX_SHOWN = 100


class Part:
    """A part of a text that each interface writes in its own words."""

    __slots__ = ()

    def write(self, spelling: Spelling) -> str:
        """Return the part in the words of an interface."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the part in the words of Python."""
        return self.write(PYTHON)


@dataclass(frozen=True, slots=True)
class Argument(Part):
    """The name of an argument."""

    parameter: str

    def write(self, spelling: Spelling) -> str:
        """Return the name."""
        return spelling.name(self.parameter)

    __str__ = Part.__str__


@dataclass(frozen=True, slots=True)
class Give(Part):
    """An argument to give, with its value; ``...`` leaves the value to the reader."""

    parameter: str
    value: Any = ...

    def write(self, spelling: Spelling) -> str:
        """Return the argument with its value."""
        return spelling.argument(self.parameter, self.value)

    __str__ = Part.__str__


@dataclass(frozen=True, slots=True)
class Value(Part):
    """A value that was given."""

    value: Any

    def write(self, spelling: Spelling) -> str:
        """Return the value in one line, shortened if it is long."""
        text = " ".join(spelling.value(self.value).split())
        return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"

    __str__ = Part.__str__


@dataclass(frozen=True, slots=True)
class PythonOnly(Part):
    """A text that only callers in Python can follow, and others do not see."""

    text: Text

    def write(self, spelling: Spelling) -> str:
        """Return the text, or nothing."""
        return write_text(self.text, spelling) if spelling.is_python else ""

    __str__ = Part.__str__


@dataclass(frozen=True, slots=True)
class Subject(Part):
    """The name of what an error is about, such as one of several models."""

    name: str

    def write(self, spelling: Spelling) -> str:  # noqa: ARG002 - a name is the same everywhere
        """Return the name."""
        return self.name

    __str__ = Part.__str__


@dataclass(frozen=True, slots=True)
class TorchName:
    """A name of torch, such as ``torch.long``, as a value."""

    name: str

    def __repr__(self) -> str:
        """Return the name as code."""
        return self.name


def write_text(text: Text, spelling: Spelling) -> str:
    """Return a text in the words of an interface."""
    if isinstance(text, tuple):
        return "".join([write_text(part, spelling) for part in text])
    if isinstance(text, Part | TorchscanError):
        return text.write(spelling)
    return str(text)


def write_choices(choices: Iterable[object]) -> Text:
    """Return values as a list, such as ``'fp32', 'bf16'``."""
    listed: list[Text] = []
    for choice in choices:
        listed += [", ", Value(choice)]
    return tuple(listed[1:])


def _parameters_in(text: Text) -> Iterator[str]:
    """Yield the names of the arguments that a text refers to."""
    if isinstance(text, tuple):
        for part in text:
            yield from _parameters_in(part)
    elif isinstance(text, Argument | Give):
        yield text.parameter
    elif isinstance(text, PythonOnly):
        yield from _parameters_in(text.text)
    elif isinstance(text, TorchscanError):
        yield from text.parameters


# -- errors --------------------------------------------------------------------------------------


class TorchscanError(Exception):
    """Base of all errors of torchscan. The message says what is wrong, where, and what to try.

    ``args`` are the parts of the problem. ``str(error)`` is the message in the words of Python.
    """

    #: what the problem is about, in a line below it; None: nothing more is known
    details: Text = None
    #: what to try, in a line below the problem; None: the problem says it
    advice: Text = None

    def __init__(self, *problem: Text, details: Text = None, advice: Text = None) -> None:
        super().__init__(*problem)
        if details is not None:
            self.details = details
        if advice is not None:
            self.advice = advice

    @classmethod
    def about(cls, subject: object, *problem: Text) -> Self:
        """Return an error whose message begins with the name of its subject."""
        return cls(Subject(str(subject)), ": ", *problem)

    @property
    def problem(self) -> str:
        """The problem in one line, in the words of Python, without details and advice."""
        return printable_text(write_text(self.args, PYTHON)).partition("\n")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in Python of the arguments that the message refers to."""
        return tuple(dict.fromkeys(_parameters_in((self.args, self.details, self.advice))))

    def write(self, spelling: Spelling) -> str:
        """Return the message in the words of an interface.

        It has no control characters, which names of modules and files may contain.
        """
        lines = [write_text(self.args, spelling)]
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

    #: the trace up to the failure, a ``Trace``; None: there is none
    so_far: Any = None
    #: index of the module call that failed; None: unknown
    failed: int | None = None


class UnpricedError(TorchscanError):
    """``strict=True``, and the pass contains operators without a cost formula."""


class NeedsValuesError(TorchscanError):
    """The pass asked for a value, but runs on shapes alone. ``execute="auto"`` catches it."""


class BudgetError(TorchscanError, AssertionError):
    """A model exceeds its budget. The message names the limit, the excess and the layers."""


class NonFiniteError(TorchscanError, ArithmeticError):
    """A real step produced a NaN or an infinity. The message names the module and the operator."""


class AlarmError(TorchscanError):
    """A user's check raised an alarm in a real step. The message names the check and the place."""


class TorchscanWarning(UserWarning):
    """A warning of torchscan. ``args`` are the parts of its text."""

    def write(self, spelling: Spelling) -> str:
        """Return the text in the words of an interface."""
        return printable_text(write_text(self.args, spelling))

    def __str__(self) -> str:
        """Return the text in the words of Python."""
        return self.write(PYTHON)


@contextlib.contextmanager
def naming(subject: str) -> Iterator[None]:
    """Begin the messages of errors with the name of their subject, if they do not have it."""
    try:
        yield
    except TorchscanError as error:
        if Subject(subject) not in error.args and Subject(repr(subject)) not in error.args:
            error.args = (Subject(subject), ": ", *error.args)
        raise


_NOT_THE_USERS = ("torchscan", "functools", "torch")


def warn_user(*text: Text) -> None:
    """Warn at the line that called torchscan, however deep inside the reason was found."""
    depth, frame = 2, sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS
    ):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(TorchscanWarning(*text), stacklevel=depth)
