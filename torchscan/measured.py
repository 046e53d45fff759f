"""Measurements of a run, as the HTML report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

#: a call: the path of its module, and which of that module's calls it is
Key = tuple[str, int]
#: seconds of both passes, with everything inside; the L2 norm of the gradient of the call's result; the share by which a step
#: has changed its parameters; the standard deviation of its outputs; the share of its units that
#: are dead; values that are NaN or infinite, 0 where all were finite
Figure = Literal["latency", "gradient", "update", "std", "dead", "nonfinite"]
#: what it is, its value, what else, and the call that it is about
Verdict = tuple[str, str, str, Key | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of a run, by call."""

    #: what measured, in the line of the question: "9 steps on CPU"
    source: str
    figures: Mapping[Key, Mapping[Figure, float]]
    #: of each module, by its path
    types: Mapping[str, str] = field(default_factory=dict)
    #: what is said first
    verdicts: Sequence[Verdict] = ()
    #: how tensors of calls were distributed over the steps, as plain data, with the ``call`` that each is of
    histories: Sequence[Mapping[str, Any]] = ()
    #: who made the first value that is not finite, and what is known of it
    producers: Mapping[Key, str] = field(default_factory=dict)

    def inside(self, path: str) -> Measured:
        """Return the measurements inside the module at this path, by paths relative to it."""
        if not path:
            return self
        known = (*self.figures, *self.producers, *(_key(each["call"]) for each in self.histories))
        keys = {
            key: (inner, key[1]) for key in known if (inner := _inner(path, key[0])) is not None
        }
        return replace(
            self,
            types={
                inner: name
                for outer, name in self.types.items()
                if (inner := _inner(path, outer)) is not None
            },
            figures={keys[key]: each for key, each in self.figures.items() if key in keys},
            producers={keys[key]: each for key, each in self.producers.items() if key in keys},
            histories=[
                {**each, "call": list(keys[place])}
                for each in self.histories
                if (place := _key(each["call"])) in keys
            ],
            verdicts=[
                (what, value, said, None if key is None else keys.get(key))
                for what, value, said, key in self.verdicts
            ],
        )


def _key(call: Sequence[Any]) -> Key:
    return str(call[0]), int(call[1])


def _inner(outer: str, path: str) -> str | None:
    """The path in the module at ``outer``; None: it is not in it."""
    return (
        ""
        if path == outer
        else path.removeprefix(f"{outer}.")
        if path.startswith(f"{outer}.")
        else None
    )


class Measuring(Protocol):
    """A measured run: an inspection, its facts, or a watched run."""

    def measured(self) -> Measured:
        """Return the measurements by call."""
