"""Lines of an index that is split into two, against values by hand."""

from __future__ import annotations

import pytest

from torchscan.analyses.receptive_field import envelopes
from torchscan.analyses.receptive_field.digits import Digits, joined, split
from torchscan.analyses.receptive_field.envelopes import Term, fused
from torchscan.analyses.receptive_field.periodic_lines import PeriodicLine


def test_a_hull_has_the_slope_of_its_line_below_the_lowest_dip() -> None:
    """A line that rises by 3, but lies 4 lower at one of 32 places: f(i) ≥ 3·i − 4.

    Its index is 3·j + k, so the hull of the line over all k is 9·j − 4, at any j.
    """
    table = [3 * index for index in range(32)]
    table[5] -= 4
    sums, is_hull = split(PeriodicLine(tuple(table), 96), 64, 1024, 3, 1)
    ((hull, inner),) = sums
    assert (is_hull, inner) == (True, None)
    assert [hull.at(index) for index in (0, 1, 31, 32, 1000)] == [-4, 5, 275, 284, 8996]


def test_digits_of_each_term_are_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four terms of 131 · 127 places, too many to fuse two of them, which make six pairs."""
    joins = []

    def count_joins(digits: Digits) -> PeriodicLine | None:
        joins.append(digits)
        return joined(digits)

    monkeypatch.setattr(envelopes, "joined", count_joins)
    inner = (127, PeriodicLine((0,), 1))
    terms = []
    for raised in range(1, 5):
        table = [127 * block + (block == raised) for block in range(131)]
        terms.append(Term(0, (((0, PeriodicLine(tuple(table), 131 * 127)), inner),)))
    assert fused(terms, (131 * 127,)) == (tuple(terms), False)
    assert len(joins) == 4
