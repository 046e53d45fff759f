"""Assumptions that values of tensors depend on."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class About(IntEnum):
    """The kind of information in values that depend on an assumption, the strongest last.

    See :mod:`torchscan.recording.execution.assumed`.
    """

    #: integers that were made up for a pass on shapes alone, or what was computed from such: only
    #: torch.cond and the ends of torch's loops depend on them
    EXAMPLES = 0
    #: how many were picked, and where
    LOADS = 1
    #: integers that were made up, or computed from such: every pass has the same
    IDS = 2
    #: random numbers between 0 and 1, as they were drawn
    FRACTIONS = 3
    #: what was computed from random numbers
    DRAWN = 4
    #: how often this one was, in fewer rows than there are choices: a load only if most others are
    #: asked for too
    LOAD = 5
    #: of each choice, whether it was picked
    MARKS = 6
    #: whether it is this one that was picked
    HITS = 7
    #: which one was picked
    PICKS = 8
    #: what was computed from inputs that were made up
    DATA = 9

    @property
    def is_picked(self) -> bool:
        """True if the information comes from indices that were assumed."""
        return self is About.LOADS or About.LOAD <= self <= About.PICKS

    @property
    def is_integer(self) -> bool:
        """True if the information comes from integers that were made up."""
        return self in (About.EXAMPLES, About.IDS)

    @property
    def is_drawn(self) -> bool:
        """True if the information comes from random numbers that the model draws."""
        return self in (About.FRACTIONS, About.DRAWN)


class Assumed(NamedTuple):
    """The assumption that the values of a tensor depend on."""

    about: About
    #: what picked by values that are not known
    operator: str = ""
    #: and from how many
    choices: int = 1
    #: the number of the call that did
    call: int = -1

    def with_about(self, about: About) -> Assumed:
        """Return the same assumption with another kind of information."""
        return self if about is self.about else self._replace(about=about)
