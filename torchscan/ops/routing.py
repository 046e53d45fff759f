"""The number of experts, or of rows of a table, that are read.

Each row of the data picks some.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

#: Blom's estimate of the expected largest of n normal values is the (n − 0.375)/(n + 0.25)
#: quantile (Blom 1958): 0.590 of 2 (0.564 exactly), 1.434 of 8 (1.424), 2.076 of 32 (2.070)
_BLOM = 0.375, 0.25


@dataclass(frozen=True, slots=True)
class Routing:
    """A router: each of ``rows`` tokens picks ``picks`` different experts out of ``choices``.

    If several devices have as many choices each, this is the routing to the device with the most.
    """

    choices: int
    picks: int
    rows: int
    #: devices that divide all choices among them; ``choices`` are those of each
    num_devices: int = 1

    @property
    def probability(self) -> float:
        """The probability that a row picks a certain choice."""
        return self.picks / (self.choices * self.num_devices) if self.choices else 0.0

    @property
    def picks_per_row(self) -> int:
        """Picks of a row among these choices, at most."""
        if self.num_devices == 1:
            return self.picks
        return min(-(-self._most_slots // max(self.rows, 1)), self.choices)

    @property
    def rows_with_picks(self) -> int:
        """Rows, if all of them have so many picks among these choices."""
        if self.num_devices == 1:
            return self.rows
        return min(-(-self._most_slots // max(self.picks_per_row, 1)), self.rows)

    @property
    def slots(self) -> int:
        """The number of pairs of a row and a choice."""
        return self.rows_with_picks * self.picks_per_row

    @property
    def _most_slots(self) -> int:
        """The expected slots of the device with the most, which vary as independent events."""
        mean = self.rows * self.picks / self.num_devices
        return math.ceil(mean + largest_of(self.num_devices) * math.sqrt(mean))

    @property
    def expected(self) -> float:
        """The expected number of different choices, if all are equally likely.

        It is ``n·(1 − (1 − k/n)^rows)`` for k picks of n choices in each row.
        """
        return self.choices * self.expected_share

    @property
    def expected_share(self) -> float:
        """The probability that a choice is picked at all, on the device with the most of these."""
        if not self.choices:
            return 0.0
        share = 1 - (1 - self.probability) ** self.rows
        if self.num_devices == 1:
            return share
        deviation = math.sqrt(share * (1 - share) / self.choices)
        largest = share + largest_of(self.num_devices) * deviation
        return min(1.0, max(largest, self.fewest_share))

    @property
    def fewest(self) -> int:
        """The smallest number of different choices: every row picks the same k."""
        return -(-self.picks // self.num_devices) if self.rows else 0

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


def largest_of(number: int) -> float:
    """Return the expected largest of so many independent standard normal values."""
    if number < 2:
        return 0.0
    above, below = _BLOM
    return NormalDist().inv_cdf((number - above) / (number + below))


#: a routing that is not known
UNKNOWN = Routing(0, 0, 0)
