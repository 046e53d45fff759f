"""Suggestions: changes to a pass, each with its estimate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from torch import nn

from torchscan.errors import InputError
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import RowsResult

Answers = TypeVar("Answers")
#: seconds, or bytes
SuggestionMetric = Literal["time_estimate", "peak_bytes", "reserved_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One change, estimated by itself, or several together."""

    change: str
    #: code to write, or the changes that are made together; None for the pass as it is
    how: Note | None
    #: the metric with the change
    after: float
    #: share of the metric that the change saves
    saves: float
    #: error margin of a time, as a share
    error_share: float | None = None
    #: True if the pass fits on the device, or None unless memory on a device was estimated
    fits: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions(RowsResult):
    """Changes to a pass, those that save most first."""

    metric: SuggestionMetric
    #: device, precision and batch size
    question: str
    #: the pass without a change
    baseline: Suggestion
    suggestions: tuple[Suggestion, ...]
    #: changes that save less than one percent, and those without an estimate, with the reason
    ineffective: tuple[Note, ...]

    def __iter__(self) -> Iterator[Suggestion]:
        return iter(self.suggestions)

    def __len__(self) -> int:
        return len(self.suggestions)

    @property
    def before(self) -> float:
        """The metric of the pass as it is."""
        return self.baseline.after

    def __repr__(self) -> str:
        """Return a short text: the number, and the best one."""
        if not self.suggestions:
            return "<Suggestions: 0>"
        best = self.suggestions[0]
        saves = f"{best.change} saves {100 * best.saves:.0f} %"
        return f"<Suggestions: {len(self.suggestions)}: {saves}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        names = ("change", "how", "after", "saves", "error_share", "fits")
        suggestions = []
        for each in self.suggestions:
            plain = {name: to_plain(getattr(each, name)) for name in names}
            suggestions.append(plain)
        return {
            "metric": self.metric,
            "question": self.question,
            "before": self.before,
            "suggestions": suggestions,
            "ineffective": to_plain(self.ineffective),
        }


class Asker(Generic[Answers]):
    """Asks again, with changes, for what a result is an estimate of.

    It holds no reference to the model: a result may be kept longer than the model. A copy that was
    pickled cannot ask.
    """

    def __init__(
        self, module: nn.Module | None = None, ask: Callable[..., Answers] | None = None
    ) -> None:
        self._module = None if module is None else weakref.ref(module)
        self._ask = ask

    def answers(self, *options: Any) -> Answers:
        """Return the answers for the model as it is now."""
        module = None if self._module is None else self._module()
        if module is None or self._ask is None:
            raise InputError(
                "the model of this estimate was garbage-collected: keep a reference to it, and "
                "estimate again"
            )
        return self._ask(module, *options)

    def __reduce__(self) -> tuple[type[Asker[Any]], tuple[()]]:
        """Without the model."""
        return Asker, ()


#: of results that cannot be asked again
NOBODY: Asker[Any] = Asker()
