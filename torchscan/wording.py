"""Texts of errors and warnings, which refer to arguments as data.

Each interface writes them in its own words: ``batch_size=2`` in Python, ``--batch-size 2`` in a
shell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

#: a string, a ``Wording`` (a ``Part``, or an error whose text is embedded), or a tuple of these
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


class Wording(ABC):
    """A text that each interface writes in its own words: a part of others, or an error."""

    __slots__ = ()

    @abstractmethod
    def write(self, spelling: Spelling) -> str:
        """Return the text in the words of an interface."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in Python of the arguments that the text refers to."""
        return ()


class Part(Wording):
    """A part of a text. It is not a dataclass, which takes long to import."""

    __slots__: tuple[str, ...] = ()

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

    @property
    def parameters(self) -> tuple[str, ...]:
        """The name in Python."""
        return (self.parameter,)


class Give(Part):
    """An argument to give, with its value; ``...`` leaves the value to the reader."""

    __slots__ = ("parameter", "value")

    def __init__(self, parameter: str, value: Any = ...) -> None:
        self.parameter = parameter
        self.value = value

    def write(self, spelling: Spelling) -> str:
        """Return the argument with its value."""
        return spelling.argument(self.parameter, self.value)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The name in Python."""
        return (self.parameter,)


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

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in Python of the arguments that the text refers to."""
        return tuple(parameters_in(self.text))


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
    if isinstance(text, Wording):
        return text.write(spelling)
    return str(text)


def write_choices(choices: Iterable[object]) -> Text:
    """Return values as a list, such as ``'fp32', 'bf16'``."""
    listed: list[Text] = []
    for choice in choices:
        listed += [", ", Value(choice)]
    return tuple(listed[1:])


def parameters_in(text: Text) -> Iterator[str]:
    """Yield the names of the arguments that a text refers to."""
    if isinstance(text, tuple):
        for part in text:
            yield from parameters_in(part)
    elif isinstance(text, Wording):
        yield from text.parameters
