"""An architecture of the field: its name, and how to build it with the arguments of one call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model and one call of it."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


#: models with more parameters are not built with data
MAX_WITH_DATA = 1_500_000_000

#: builds a model on a device, complete or (if possible) with few layers
Build = Callable[[str, bool], Built]


class NoInputKnownError(Exception):
    """An argument of this name has no rule for its value."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model by name, and the ways to build it: the first that can be built and called counts."""

    name: str
    builds: tuple[Build, ...]
    #: devices on which it is built, one after the other until it can be called
    devices: tuple[str, ...] = ("meta",)


#: words of names that tell the size of an architecture, or the data it was trained on
_SIZES = re.compile(
    r"(?<![a-z])(?:atto|femto|pico|nano|zepto|tiny|mini|small|medium|base|large|xlarge|huge|giant|"
    r"gigantic|enormous|colossal|micro|little|so\d*m?|xx?s|xx?l|s|m|b|l|t|h|g|n|x|xs|"
    r"instruct|chat|it|quickgelu|worldwide)(?![a-z])|\d+(?:\.\d+)?(?:[bmk](?![a-z]))?"
)


def drop_sizes(name: str) -> str:
    """Return a name without numbers and words for sizes: "resnet50" and "resnet101" are equal."""
    words = _SIZES.sub(" ", name.lower())
    return " ".join(re.sub(r"[^a-z]+", " ", words).split())


def one_of_each_size(names: Iterable[str]) -> Iterator[str]:
    """Yield the first of the names that differ in numbers and words for sizes only."""
    known: set[str] = set()
    for name in names:
        kind = drop_sizes(name)
        if kind not in known:
            known.add(kind)
            yield name
