"""The numbers that budgets limit and tables list: how each is computed, printed and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from torchscan import units

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(ABC, Generic[Answer]):
    """One number, read from an answer."""

    heading: str
    value: Callable[[Answer], Any]
    text: Callable[[Any], str]
    #: returns the unit that several of them share in a table, or None if they have none
    scale: Callable[[Iterable[float]], units.Scale] | None = None
    #: converts the text of a limit to a number, or None if there are no limits
    parse: Callable[[str], float] | None = None
    #: True if its limit is a minimum
    is_min: bool = False
    #: returns the share by which an estimate may be off, or None if it is not an estimate
    error_share: Callable[[Answer], float] | None = None

    @abstractmethod
    def doubts(self, answer: Answer) -> list[str]:
        """Return the reasons why a value is only a bound."""

    def exceeds(self, value: float, limit: float) -> bool:
        """Return whether a value is beyond its limit."""
        return value < limit if self.is_min else value > limit

    def read(self, answer: Answer, scale: units.Scale | None = None) -> str:
        """Return the text of a value with its error margin. A lower bound is marked.

        ``scale`` sets the unit; by default it fits the value.
        """
        value = self.value(answer)
        text = self.written(value, is_bound=bool(self.doubts(answer)), scale=scale)
        return f"{text}{range_of(self.off(answer))}"

    def off(self, answer: Answer) -> float | None:
        """Return the error margin as a share, or None if the value is not an estimate."""
        if self.error_share is None:
            return None
        return self.error_share(answer)

    def written(self, value: Any, *, is_bound: bool, scale: units.Scale | None = None) -> str:
        """Return the text of a value. A bound is marked."""
        text = self.text(value) if scale is None else scale.text(value)
        if not is_bound:
            return text
        sign = "≤" if self.is_min else "≥"
        return f"{sign} {text}"


def range_of(error_share: float | None) -> str:
    """Return the text that follows an estimate: ``0.4 -> " ± 40 %"``."""
    if error_share is None:
        return ""
    return f" ± {100 * error_share:.0f} %"


#: options of a measure by the kind of its number
COUNT_OPTIONS: Mapping[str, Any] = {
    "text": units.count,
    "parse": units.parse_count,
    "scale": units.scale_of_wholes,
}
MEMORY_OPTIONS: Mapping[str, Any] = {
    "text": units.memory,
    "parse": units.parse_memory,
    "scale": partial(units.scale_of_wholes, is_memory=True),
}
DURATION_OPTIONS: Mapping[str, Any] = {
    "text": units.duration,
    "parse": units.parse_duration,
    "scale": partial(units.scale_of_durations, least=1.0),
}
