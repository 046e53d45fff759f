"""What would help: changes to a pass, and what each makes of an estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torchscan.errors import InputError
from torchscan.results import Result

#: seconds, or bytes
Figure = Literal["time_estimate", "peak_bytes", "reserved_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change, estimated by itself."""

    change: str
    #: what to write
    how: str
    #: the figure with the change
    after: float
    #: the share of the figure that it saves
    saves: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies(Result):
    """Changes to a pass, each by itself, those that save most first."""

    figure: Figure
    #: the figure as the pass is
    before: float
    remedies: tuple[Remedy, ...]
    #: changes that save less than one per cent, and those that have no estimate, with the reason
    of_no_help: tuple[str, ...]

    def __repr__(self) -> str:
        """A short one: the best of them."""
        best = f": {self.remedies[0].change} saves {100 * self.remedies[0].saves:.0f} %" if self.remedies else ""
        return f"<Remedies: {len(self.remedies)}{best}>"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data."""
        names = ("change", "how", "after", "saves")
        return {
            "figure": self.figure,
            "before": self.before,
            "remedies": [{name: getattr(each, name) for name in names} for each in self.remedies],
            "of_no_help": list(self.of_no_help),
        }


class Asker:
    """Asks again, with changes, for what a result is an estimate of. A copy of the result that was pickled cannot."""

    def __init__(self, ask: Callable[[], Remedies] | None = None) -> None:
        self._ask = ask

    def remedies(self) -> Remedies:
        """What would help."""
        if self._ask is None:
            raise InputError("this estimate was loaded or made of a record, and its model is not at hand: estimate it again")
        return self._ask()

    def __reduce__(self) -> tuple[type[Asker], tuple[()]]:
        """Without the model."""
        return Asker, ()


#: of results that cannot be asked again
NOBODY = Asker()
