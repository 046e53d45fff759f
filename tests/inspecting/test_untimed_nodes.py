"""Nodes that only return a view are not timed, and hide nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchscan import inspect
from torchscan.inspecting.run import RunFacts


class Viewed(nn.Module):
    """A layer whose result is viewed: ``view`` is part of its call."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        return self.view(self.layer(x)) * 2.0


class InfiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        return gradient * math.inf


def trained(model: nn.Module) -> RunFacts:
    with inspect(model, warm_up=0) as run:
        for _ in range(2):
            model(torch.rand(2, 4)).sum().backward()
    return run.facts


def num_nodes(view: Callable[[Tensor], Tensor]) -> int:
    facts = trained(Viewed(view))
    assert facts.evidence is not None
    return facts.evidence.num_nodes


def same(x: Tensor) -> Tensor:
    return x


def test_views_count_as_nodes() -> None:
    assert num_nodes(lambda x: x.t().unsqueeze(0)) == num_nodes(same) + 2


@pytest.mark.parametrize("view", [same, Tensor.t], ids=["no view", "view"])
def test_the_source_of_a_gradient_behind_a_view_is_found(view: Callable[[Tensor], Tensor]) -> None:
    def spoil(x: Tensor) -> Tensor:
        spoiled: Tensor = InfiniteGradient.apply(view(x))
        return spoiled

    (first, *_) = trained(Viewed(spoil)).nonfinite
    assert (first.path, first.phase, first.operator) == ("", "backward", "InfiniteGradientBackward")


def test_gradients_are_counted_through_views_once_something_was_found() -> None:
    """The gradient of the layer's result passes a view in the layer's caller."""

    def spoil(x: Tensor) -> Tensor:
        spoiled: Tensor = InfiniteGradient.apply(x.t())
        return spoiled

    facts = trained(Viewed(spoil))
    layer = next(call for call in facts.calls if call.path == "layer")
    assert layer.grad_out_inf == 8
