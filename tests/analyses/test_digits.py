"""Lines of an index that is split into two, against values by hand."""

from __future__ import annotations

from torchscan.analyses.receptive_field.digits import split
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
