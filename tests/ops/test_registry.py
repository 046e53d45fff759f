"""Registering formulas, and what is said of operators without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.trace.test_record import Calls, op_names
from torchscan import TensorSpec, UnpricedError, Work, cost_of


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """Operators that torchscan has never heard of."""
    scope = torch.library.Library("torchscan_tests", "DEF")
    for name in ("mystery", "triple"):
        scope.define(f"{name}(Tensor x) -> Tensor")
        scope.impl(name, lambda x: x * 3, "CompositeExplicitAutograd")
        scope.impl(name, lambda x: torch.empty_like(x), "Meta")
    scope.define("composite(Tensor x) -> Tensor")
    scope.impl("composite", lambda x: x.exp() + 1, "CompositeImplicitAutograd")
    yield
    scope._destroy()


class Mysterious(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.torchscan_tests.mystery(x) + torch.ops.torchscan_tests.mystery(x)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Mysterious()), nn.ReLU())


def test_an_unknown_operator_is_listed_and_makes_lower_bounds_of_all_around_it() -> None:
    info = torchscan.crawl_module(model(), (4,))
    assert info["unpriced"] == {"torchscan_tests.mystery.default": 2}
    assert {layer["path"]: layer["complete"] for layer in info["layers"]} == {
        "": False,
        "0": True,
        "1": False,
        "1.0": False,
        "2": True,
    }
    assert not info["overall"]["complete"]
    assert info["overall"]["flops"] == 2 * 16 + 4 + 4


def test_strict_raises_and_names_operator_and_layer() -> None:
    with pytest.raises(UnpricedError, match=r"torchscan_tests\.mystery\.default in 1\.0"):
        torchscan.crawl_module(model(), (4,), strict=True)


def test_the_table_marks_lower_bounds() -> None:
    text = torchscan.format_info(torchscan.crawl_module(model(), (4,)))
    assert "≥ 40 FLOPs" in text
    assert "torchscan_tests.mystery.default (2×)" in text


def test_a_composite_operator_without_a_price_is_recorded_as_what_it_is_made_of() -> None:
    trace = torchscan.record(Calls(lambda _, x: torch.ops.torchscan_tests.composite(x)), (4,))
    assert op_names(trace) == ["exp", "add"]


def test_users_price_their_own_operators_once() -> None:
    @cost_of(torch.ops.torchscan_tests.triple)
    def triple(x: TensorSpec, *, out: TensorSpec) -> Work:
        return Work(macs=7, other_flops=x.numel)

    info = torchscan.crawl_module(Calls(lambda _, x: torch.ops.torchscan_tests.triple(x)), (4,), strict=True)
    assert (info["overall"]["macs"], info["overall"]["flops"]) == (7, 18)
    with pytest.raises(ValueError, match="has a cost already"):
        cost_of(torch.ops.torchscan_tests.triple)(triple)


def test_pricing_an_operator_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError):
        cost_of(torch.ops.torchscan_tests.misspelt)
