"""Measurements of a run, as the HTML report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")

#: a call: the path of its module, and which of that module's calls it is
Key = tuple[str, int]
#: seconds of both passes, with everything inside; the L2 norm of the gradient of the call's result;
#: the share by which a step has changed its parameters; the standard deviation of its outputs; the
#: share of its units that are dead; values that are NaN or infinite, 0 where all were finite
Figure = Literal["latency", "gradient", "update", "std", "dead", "nonfinite"]
#: what it is, its value, what else, and the call that it is about
Verdict = tuple[str, str, str, Key | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of a run, by call."""

    #: what measured, in the line of the question: "9 steps on CPU"
    source: str
    figures: Mapping[Key, Mapping[Figure, float]]
    #: names of classes, by the paths of modules
    types: Mapping[str, str] = field(default_factory=dict)
    #: the statements at the top
    verdicts: Sequence[Verdict] = ()
    #: distributions of tensors over the steps, as plain data, each with its ``call``
    histories: Sequence[Mapping[str, Any]] = ()
    #: sources of values that are not finite, and what is known of them
    producers: Mapping[Key, str] = field(default_factory=dict)

    def inside(self, path: str) -> Measured:
        """Return the measurements inside the module at this path, by paths relative to it."""
        if not path:
            return self
        types = {}
        for outer, type_name in self.types.items():
            inner = _inner(path, outer)
            if inner is not None:
                types[inner] = type_name

        keys: dict[Key, Key] = {}
        calls: list[Key] = []
        for history in self.histories:
            outer, invocation, *_ = history["call"]
            calls.append((str(outer), int(invocation)))
        for key in (*self.figures, *self.producers, *calls):
            outer, invocation = key
            inner = _inner(path, outer)
            if inner is not None:
                keys[key] = inner, invocation

        histories = []
        for history, call in zip(self.histories, calls, strict=True):
            if call in keys:
                histories.append({**history, "call": list(keys[call])})
        verdicts = []
        for subject, value, text, place in self.verdicts:
            inner_place = None if place is None else keys.get(place)
            verdicts.append((subject, value, text, inner_place))
        return replace(
            self,
            types=types,
            figures=_with_keys(self.figures, keys),
            producers=_with_keys(self.producers, keys),
            histories=histories,
            verdicts=verdicts,
        )


def _with_keys(values: Mapping[Key, T], keys: Mapping[Key, Key]) -> Mapping[Key, T]:
    """Return the values whose keys have other ones, by these."""
    return {keys[key]: value for key, value in values.items() if key in keys}


def _inner(outer: str, path: str) -> str | None:
    """Return the path in the module at ``outer``, or None if it is not in it."""
    if path == outer:
        return ""
    if path.startswith(f"{outer}."):
        return path.removeprefix(f"{outer}.")
    return None


class Measuring(Protocol):
    """A measured run: an inspection, its facts, or a watched run."""

    def measured(self) -> Measured:
        """Return the measurements by call."""
