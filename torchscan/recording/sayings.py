"""Texts of torch's exceptions, for causes that only the text distinguishes.

The tests provoke each of them on real torch, so that another wording in a new version is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Literal


class HigherOrderError(NotImplementedError):
    """Raised by torchscan for an operator that takes functions and is not known."""


class Saying(Enum):
    """The cause of an exception."""

    #: gradients were requested in inference mode, or use a tensor made in it, or start from known
    #: values, which only inference mode leaves on the CPU
    NEEDS_GRAPH = auto()
    #: a custom operator does not say what shape it returns
    NO_SHAPE_FUNCTION = auto()
    #: an operator takes functions: torchscan raises an error, older versions of torch before it
    TAKES_FUNCTIONS = auto()
    #: a custom operator has no gradient
    NO_GRADIENT = auto()
    #: batch statistics of one sample
    ONE_SAMPLE = auto()
    #: a module has no forward
    NO_FORWARD = auto()
    #: attention takes nested tensors only in kernels that are not taken here
    NESTED_ATTENTION = auto()
    #: Triton finds no GPU to compile a kernel for
    NO_DRIVER = auto()
    #: operands whose types do not go together
    WRONG_TYPE = auto()
    #: another process of the group has ended, or does something else
    NOBODY_ANSWERS = auto()


_WORDS: Mapping[Saying, tuple[str, ...]] = {
    Saying.NEEDS_GRAPH: (
        "require grad",
        "requires_grad",
        "inference tensor",
        "returned an invalid gradient",
    ),
    Saying.NO_SHAPE_FUNCTION: ("fake impl", "meta kernel"),
    Saying.TAKES_FUNCTIONS: ("no rule registered for hop",),
    Saying.NO_GRADIENT: ("no autograd formula was registered",),
    Saying.ONE_SAMPLE: ("more than 1 value per channel",),
    Saying.NO_FORWARD: ('missing the required "forward" function',),
    Saying.NESTED_ATTENTION: ("does not support nestedtensor outside of its fast path",),
    Saying.NO_DRIVER: ("0 active drivers",),
    Saying.WRONG_TYPE: ("dtype", "scalar type", "input type (", "weight type ("),
    Saying.NOBODY_ANSWERS: (
        "connection closed by peer",
        "connection reset by peer",
        "timed out waiting",
    ),
}


#: how many of them a layer takes, how many it is given, and what they are
Features = tuple[int, int, Literal["features", "channels"]]

_FEATURES = (
    re.compile(r"input_size\. Expected (?P<taken>\d+), got (?P<given>\d+)"),
    re.compile(r"input_size: got (?P<given>\d+) expected (?P<taken>\d+)"),
    re.compile(r"embedding dimension of (?P<taken>\d+), but got (?P<given>\d+)"),
    re.compile(
        r"normalized_shape=\[(?P<taken>\d+)\].* input of size[^\d]*\[(?:\d+, )*(?P<given>\d+)\]"
    ),
)
_CHANNELS = re.compile(r"running_mean should contain (?P<given>\d+) elements not (?P<taken>\d+)")


def features_in(error: BaseException) -> Features | None:
    """Return the sizes that do not match, if the text of an exception has both."""
    text = str(error)
    for pattern in _FEATURES:
        found = pattern.search(text)
        if found is not None:
            return int(found["taken"]), int(found["given"]), "features"
    found = _CHANNELS.search(text)
    if found is not None:
        return int(found["taken"]), int(found["given"]), "channels"
    return None


def says(error: BaseException | None, saying: Saying) -> bool:
    """Return whether an exception has this cause, by its text unless it is torchscan's own."""
    if isinstance(error, HigherOrderError):
        return saying is Saying.TAKES_FUNCTIONS
    text = str(error).lower()
    return any(words in text for words in _WORDS[saying])
