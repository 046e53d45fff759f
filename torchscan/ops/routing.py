"""The number of experts, or of rows of a table, that are read if each row of the data picks some."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Routing:
    """A router: each of ``rows`` tokens picks ``picks`` different experts out of ``choices``."""

    choices: int
    picks: int
    rows: int

    @property
    def slots(self) -> int:
        """The number of pairs of a row and a choice."""
        return self.rows * self.picks

    @property
    def expected(self) -> float:
        """The expected number of different choices, if all are equally likely.

        It is ``n·(1 − (1 − k/n)^rows)`` for k picks of n choices in each row.
        """
        return self.choices * self.expected_share

    @property
    def expected_share(self) -> float:
        """The probability that a choice is picked at all."""
        return 1 - (1 - self.picks / self.choices) ** self.rows if self.choices else 0.0

    @property
    def fewest(self) -> int:
        """The smallest number of different choices: every row picks the same k."""
        return self.picks if self.rows else 0

    @property
    def fewest_share(self) -> float:
        """The smallest number of different choices, as a share of all."""
        return self.fewest / self.choices if self.choices else 0.0

    def of(self, choices: int, slots: int) -> Routing:
        """Return this routing if it has these slots and choices, else one pick per slot.

        One pick per slot holds for any routing.
        """
        return (
            self if (self.choices, self.slots) == (choices, slots) else Routing(choices, 1, slots)
        )


#: a routing that is not known
UNKNOWN = Routing(0, 0, 0)
