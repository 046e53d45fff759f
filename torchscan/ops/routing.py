"""How many of several matrices, or rows of a table, are read if each row of the data picks some of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Routing:
    """Each of ``rows`` picks ``picks`` different ones of ``choices``, as a router picks experts for a token."""

    choices: int
    picks: int
    rows: int

    @property
    def slots(self) -> int:
        """Pairs of a row and what it picks."""
        return self.rows * self.picks

    @property
    def expected(self) -> float:
        """How many different ones are picked if all are equally likely: ``n·(1 − (1 − k/n)^rows)`` of n, k for each row."""
        return self.choices * self.expected_share

    @property
    def expected_share(self) -> float:
        """The same of each choice: how likely it is to be picked."""
        return 1 - (1 - self.picks / self.choices) ** self.rows if self.choices else 0.0

    @property
    def fewest(self) -> int:
        """How few there can be: every row picks the same k, which are different."""
        return self.picks if self.rows else 0

    @property
    def fewest_share(self) -> float:
        """The same as a share of the choices."""
        return self.fewest / self.choices if self.choices else 0.0

    def of(self, choices: int, slots: int) -> Routing:
        """This routing if it made so many slots for so many choices, else what is true of any: each slot picks one."""
        return (
            self if (self.choices, self.slots) == (choices, slots) else Routing(choices, 1, slots)
        )


#: where nothing is known about who picks what
UNKNOWN = Routing(0, 0, 0)
