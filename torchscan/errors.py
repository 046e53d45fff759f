"""Errors and warnings of torchscan, and the text that they consist of.

One ``except TorchscanError`` catches every error. Texts refer to arguments as data, so that each
interface writes them in its own words: ``batch_size=2`` in Python, ``--batch-size 2`` in a shell.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator
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
    """A part of a text that each interface writes in its own words.

    It is not a dataclass, which takes long to import.
    """

    __slots__: tuple[str, ...] = ()

    def write(self, spelling: Spelling) -> str:
        """Return the part in the words of an interface."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the part in the words of Python."""
        return self.write(PYTHON)

    def __eq__(self, other: object) -> bool:
        """Return whether the other part is of the same type and has the same values."""
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        """Return the hash of the type and the values."""
        return hash(repr(self))

    def __repr__(self) -> str:
        """Return the call that creates the part."""
        values = ", ".join([repr(getattr(self, name)) for name in self.__slots__])
        return f"{type(self).__name__}({values})"


class Argument(Part):
    """The name of an argument."""

    __slots__ = ("parameter",)

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter

    def write(self, spelling: Spelling) -> str:
        """Return the name."""
        return spelling.name(self.parameter)


class Give(Part):
    """An argument to give, with its value; ``...`` leaves the value to the reader."""

    __slots__ = ("parameter", "value")

    def __init__(self, parameter: str, value: Any = ...) -> None:
        self.parameter = parameter
        self.value = value

    def write(self, spelling: Spelling) -> str:
        """Return the argument with its value."""
        return spelling.argument(self.parameter, self.value)


class Value(Part):
    """A value that was given."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = _to_plain_value(value)

    def write(self, spelling: Spelling) -> str:
        """Return the value in one line, shortened if it is long."""
        text = " ".join(spelling.value(self.value).split())
        return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


class PythonOnly(Part):
    """A text that only callers in Python can follow, and others do not see."""

    __slots__ = ("text",)

    def __init__(self, text: Text) -> None:
        self.text = text

    def write(self, spelling: Spelling) -> str:
        """Return the text, or nothing."""
        return write_text(self.text, spelling) if spelling.is_python else ""


class Subject(Part):
    """The name of what an error is about, such as one of several models."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, spelling: Spelling) -> str:  # noqa: ARG002 - a name is the same everywhere
        """Return the name."""
        return self.name


class TorchName:
    """A name of torch, such as ``torch.long``, as a value."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        """Return the name as code."""
        return self.name


def _to_plain_value(value: Any, max_depth: int = 4) -> Any:
    """Return a value of which lists and dicts are copied, and other objects are their code.

    An error then keeps no model or tensor alive, can be pickled, and always has the same text.
    """
    if max_depth and type(value) in (list, tuple):
        return type(value)([_to_plain_value(each, max_depth - 1) for each in value])
    if max_depth and type(value) is dict:
        return {name: _to_plain_value(each, max_depth - 1) for name, each in value.items()}
    if value is None or value is ... or type(value) in (bool, int, float, str, TorchName):
        return value
    is_dtype = (type(value).__module__, type(value).__qualname__) == ("torch", "dtype")
    return value if is_dtype else TorchName(repr(value))


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
        return tuple(dict.fromkeys(_parameters_in((self.parts, self.details, self.advice))))

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


class TorchscanWarning(UserWarning):
    """A warning of torchscan. ``str(warning)`` is its text in the words of Python."""

    #: what has happened, and what to do
    parts: tuple[Text, ...] = ()

    def __init__(self, *text: Text) -> None:
        self.parts = text
        super().__init__(str(self))

    def write(self, spelling: Spelling) -> str:
        """Return the text in the words of an interface."""
        return printable_text(write_text(self.parts, spelling))

    def __str__(self) -> str:
        """Return the text in the words of Python."""
        return self.write(PYTHON)


@contextlib.contextmanager
def naming(subject: str) -> Iterator[None]:
    """Begin the messages of errors with the name of their subject, if they do not have it."""
    try:
        yield
    except TorchscanError as error:
        error.name_subject(subject)
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


def warn_or_print(text: str) -> None:
    """Warn, or print a line if warnings are errors: this never ends a training."""
    with contextlib.suppress(OSError, ValueError):  # standard error is closed, or has no reader
        try:
            warn_user(text)
        except Warning:
            if sys.stderr is not None:
                print(f"torchscan: {printable_text(text)}", file=sys.stderr)  # noqa: T201
