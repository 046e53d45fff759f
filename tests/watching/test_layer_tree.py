"""Rows of the heat map, which hold what is inside them, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from torchscan.watching.explore.layer_tree import LayerTree, RowFolder
from torchscan.watching.layer_columns import QUANTITIES, ColumnOfLayers
from torchscan.watching.schema import Series

NAN = math.nan


def outputs(*paths: str) -> list[Series]:
    return [Series(path=path, type_name="Net", kind="output", name="0") for path in paths]


def fold(tree: LayerTree, values: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Return the quantities of all rows, from those of some modules."""
    column = torch.full((len(QUANTITIES), len(values)), NAN)
    for at, known in enumerate(values.values()):
        for name, value in known.items():
            column[QUANTITIES.index(name), at] = value
    modules = torch.tensor([tree.row_by_path[path] for path in values])
    found = RowFolder(tree).fold(
        ColumnOfLayers(first=3, last=3, step=3, num_steps=1, modules=modules, values=column)
    )
    assert (found.first, found.modules.tolist()) == (3, list(range(len(tree))))
    return dict(zip(QUANTITIES, found.values.tolist(), strict=True))


TREE = LayerTree(outputs("a.0", "a.1", "a", "b", ""))
FIRST = {"gradient": 3.0, "update": 0.5, "weight": 4.0, "dead": 0.5, "units": 10.0, "places": 1.0}
SECOND = {"gradient": 4.0, "update": 0.0, "weight": 3.0, "dead": 1.0, "units": 30.0, "places": 2.0}


def test_a_row_has_the_norms_and_units_of_all_modules_inside_it() -> None:
    """The weight of norm 4 changed by 2, that of norm 3 by 0; 5 of 10 and 30 of 30 units died."""
    found = fold(TREE, {"a.0": FIRST, "a.1": SECOND})
    assert [row.path for row in TREE.rows] == ["", "a", "a.0", "a.1", "b"]
    assert found["gradient"] == pytest.approx([5, 5, 3, 4, NAN], nan_ok=True)
    assert found["update"] == pytest.approx([0.4, 0.4, 0.5, 0, NAN], nan_ok=True)
    assert found["dead"] == pytest.approx([0.875, 0.875, 0.5, 1, NAN], nan_ok=True)
    assert found["places"] == [3, 3, 1, 2, 0]


def test_a_row_has_the_standard_deviation_of_its_own_output() -> None:
    own = {"std": 6.0, "num_stds": 3.0}
    found = fold(TREE, {"a.0": own, "b": {"std": 0.0, "num_stds": 0.0}})
    pairs = zip(found["std"], found["num_stds"], strict=True)
    stds = [std / number if number else NAN for std, number in pairs]
    assert stds == pytest.approx([NAN, NAN, 2, NAN, NAN], nan_ok=True)


def test_a_range_of_modules_has_the_largest_standard_deviation() -> None:
    tree = LayerTree(outputs(*(str(number) for number in range(60)), ""))
    ranges = [number for number, row in enumerate(tree.rows) if row.num_folded]
    assert (len(ranges), tree.rows[ranges[1]].name) == (12, "5 … 9")
    found = fold(tree, {str(number): {"std": float(number), "num_stds": 1.0} for number in (5, 7)})
    assert found["std"][ranges[0]] == 0
    assert (found["std"][ranges[1]], found["num_stds"][ranges[1]]) == (7, 1)


def test_modules_of_older_columns_have_equal_weights() -> None:
    """Neither the norms of weights nor the numbers of units are known."""
    values = {"a.0": {"update": 0.3, "dead": 0.5}, "a.1": {"update": 0.4, "dead": 1.0}}
    found = fold(TREE, values)
    mean = math.sqrt((0.3**2 + 0.4**2) / 2)
    assert found["update"] == pytest.approx([mean, mean, 0.3, 0.4, NAN], nan_ok=True)
    assert found["dead"] == pytest.approx([0.75, 0.75, 0.5, 1, NAN], nan_ok=True)


def test_a_value_that_is_not_finite_does_not_hide_the_others() -> None:
    found = fold(TREE, {"a.0": {**FIRST, "gradient": math.inf}, "a.1": SECOND})
    assert found["gradient"] == pytest.approx([4, 4, NAN, 4, NAN], nan_ok=True)
