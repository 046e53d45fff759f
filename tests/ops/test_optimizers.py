"""A step of torch's optimizers, one tensor after the other, several at once, or fused: every operator has a price."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls
from torchscan import record
from torchscan.analyses.totals import total_cost
from torchscan.types import OpCost

OPTIMIZERS = [
    *(
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
    ),
    *(
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.ASGD,
        torch.optim.Rprop,
        torch.optim.Adafactor,
    ),
]
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


def second_step(kind: Any, **options: Any) -> OpCost:
    """The cost of the second step, when its state is there, for 20 parameters."""
    layer = nn.Linear(4, 5, bias=False)
    optimizer = kind(layer.parameters(), lr=0.1, **options)
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    trace = record(Calls(lambda _: optimizer.step()), args=(), execute="real")
    return total_cost(trace, strict=True)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_every_operator_of_a_step_has_a_price(kind: Any, foreach: bool) -> None:
    assert second_step(kind, foreach=foreach).flops >= 2 * 20


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.__name__)
def test_every_operator_of_a_fused_step_has_a_price(kind: Any) -> None:
    assert second_step(kind, fused=True).flops >= 2 * 20


def test_a_fused_step_costs_what_its_equation_says() -> None:
    """13 for each of 20 parameters, and one number is counted up by one."""
    assert second_step(torch.optim.Adam, fused=True).flops == 13 * 20 + 1


@pytest.mark.parametrize(
    ("kind", "options", "flops"),
    [
        # weight decay adds a product to the gradient, and AdamW shrinks the parameter instead
        (torch.optim.Adam, {"weight_decay": 0.1}, 13 + 2),
        (torch.optim.AdamW, {"weight_decay": 0.1}, 13 + 1),
        (torch.optim.AdamW, {"weight_decay": 0.0}, 13),
        (torch.optim.Adam, {"amsgrad": True}, 13 + 1),
        (torch.optim.Adam, {"amsgrad": True, "maximize": True}, 13 + 2),
        # the sum of squares 2, and the step a square root, a sum, a product, a quotient, a difference
        (torch.optim.Adagrad, {}, 2 + 5),
        (torch.optim.Adagrad, {"weight_decay": 0.1, "maximize": True}, 7 + 2 + 1),
        (torch.optim.SGD, {"weight_decay": 0.1}, 2 + 2),
        (torch.optim.SGD, {"momentum": 0.9}, 2 + 3),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, 2 + 3 + 2),
        (torch.optim.SGD, {"maximize": True}, 2 + 1),
    ],
)
def test_options_of_a_fused_step_cost_more(kind: Any, options: dict[str, Any], flops: int) -> None:
    """For each of 20 parameters; all but SGD count their steps."""
    num_counted = 0 if kind is torch.optim.SGD else 1
    assert second_step(kind, fused=True, **options).flops == flops * 20 + num_counted


def test_gradient_descent_takes_a_product_and_a_difference() -> None:
    assert second_step(torch.optim.SGD, foreach=False).flops == 2 * 20
    assert second_step(torch.optim.SGD, foreach=True).flops == 2 * 20


@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad]
)
def test_a_fused_step_whose_rate_is_a_tensor_runs_on_shapes(kind: Any) -> None:
    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return kind(parameters, lr=torch.tensor(0.1), fused=True)

    trace = torchscan.Scan(nn.Linear(4, 5), (4,), training=True, optimizer=make).steps
    assert trace.provenance.execution == "abstract"
    assert any("_fused_" in op.signature.operator for op in trace.ops)
