"""What a run has measured, as the page of a model shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

#: a call: the path of its module, and which of that module's calls it is
Key = tuple[str, int]
#: seconds of both passes, with everything inside; the L2 norm of the gradient of the call's result; the share by which a step
#: has changed its parameters; values that are NaN or infinite
Figure = Literal["latency", "gradient", "update", "nonfinite"]


#: what it is, its value, what else, and the call that it is about
Verdict = tuple[str, str, str, Key | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of a run, by call."""

    #: what measured, in the line of the question: "9 steps on CPU"
    source: str
    figures: Mapping[Key, Mapping[Figure, float]]
    #: what is said first
    verdicts: Sequence[Verdict] = ()
    #: who made the first value that is not finite, and what is known of it
    producers: Mapping[Key, str] = field(default_factory=dict)


class Measuring(Protocol):
    """What has measured a run: an inspection, or the facts of one, or a run that was watched."""

    def measured(self) -> Measured:
        """By call."""
