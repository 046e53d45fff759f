"""Folding deep layers into their parents."""

from __future__ import annotations

import copy

import pytest
from torch import nn

import torchscan
from torchscan import crawl_module


def info() -> dict[str, object]:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2), nn.ReLU())), nn.Linear(2, 3)
    )
    return crawl_module(model, (4,))


def test_figures_move_to_the_parent_that_stays() -> None:
    folded = torchscan.aggregate_info(info(), 1)["layers"]
    assert [
        (layer["path"], layer["grad_params"], layer["macs"], layer["flops"]) for layer in folded
    ] == [
        ("", 0, 0, 0),
        ("0", 20 + 10, 16 + 8, 32 + 16 + 2),
        ("1", 9, 6, 12),
    ]


def test_a_layer_is_shared_if_one_inside_it_is() -> None:
    """The second block holds nothing but the layer of the first."""
    layer = nn.Linear(4, 4)
    model = nn.Sequential(
        nn.Sequential(layer), nn.Sequential(layer), nn.Sequential(nn.Linear(4, 4))
    )
    folded = torchscan.aggregate_info(crawl_module(model, (4,)), 1)["layers"]
    assert [layer["is_shared"] for layer in folded] == [False, False, True, False]


def test_the_input_is_left_alone() -> None:
    original = info()
    before = copy.deepcopy(original)
    torchscan.aggregate_info(original, 0)
    assert original == before


def test_layers_that_took_others_in_are_leaves() -> None:
    assert [each["is_leaf"] for each in torchscan.aggregate_info(info(), 0)["layers"]] == [True]
    folded = torchscan.aggregate_info(info(), 1)["layers"]
    assert [each["is_leaf"] for each in folded] == [each["depth"] == 1 for each in folded]


def test_at_full_depth_nothing_changes() -> None:
    assert torchscan.aggregate_info(info(), 3) == info()


@pytest.mark.parametrize("depth", [-1, 4])
def test_a_depth_that_the_model_does_not_have_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="give 0 to 3, the depths of this model"):
        torchscan.aggregate_info(info(), depth)
