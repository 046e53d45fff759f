"""Each text of torch's that is told apart by its words, provoked on torch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.test_record import Calls
from torchscan import RecordError, record
from torchscan.recording.sayings import Saying, says


@torch.library.custom_op("torchscan_sayings::silent", mutates_args=())
def silent(x: Tensor) -> Tensor:
    """It says neither what shape it returns nor what its gradient is."""
    return x.clone()


_library = torch.library.Library("torchscan_sayings", "FRAGMENT")
_library.define("only_on_cpu(Tensor x) -> Tensor")
_library.impl("only_on_cpu", lambda x: x.clone(), "CPU")


def inference(run: Callable[[Tensor], Any]) -> Any:
    with torch.inference_mode():
        return run(torch.ones(2, 4))


def outside(run: Callable[[Tensor], Any]) -> Any:
    """What is made in inference mode, used where gradients are followed."""
    return run(inference(lambda x: x * 2))


def saved(x: Tensor) -> Tensor:
    return torch.ones(2, 4, requires_grad=True) * x


class Elsewhere(torch.autograd.Function):
    """Its gradient is on another device than its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.ones(2)


PROVOKED: list[tuple[Saying, Callable[[], Any]]] = [
    (Saying.NEEDS_GRAPH, lambda: inference(lambda x: torch.autograd.grad(x.sum(), x))),
    (Saying.NEEDS_GRAPH, lambda: inference(lambda x: x.sum().backward())),
    (
        Saying.NEEDS_GRAPH,
        lambda: inference(lambda x: torch.autograd.backward(x.requires_grad_().sum())),
    ),
    (Saying.NEEDS_GRAPH, lambda: inference(lambda x: x.register_hook(print))),
    (Saying.NEEDS_GRAPH, lambda: outside(lambda x: x.requires_grad_())),
    (Saying.NEEDS_GRAPH, lambda: outside(lambda x: x.add_(1))),
    (Saying.NEEDS_GRAPH, lambda: outside(saved)),
    (
        Saying.NEEDS_GRAPH,
        lambda: Elsewhere.apply(torch.ones(2, device="meta", requires_grad=True)).sum().backward(),
    ),
    (Saying.NO_SHAPE_FUNCTION, lambda: silent(torch.ones(2, device="meta"))),
    (
        Saying.NO_SHAPE_FUNCTION,
        lambda: torch.ops.torchscan_sayings.only_on_cpu(torch.ones(2, device="meta")),
    ),
    (Saying.NO_GRADIENT, lambda: silent(torch.ones(2, requires_grad=True)).sum().backward()),
    (Saying.ONE_SAMPLE, lambda: nn.BatchNorm1d(4)(torch.ones(1, 4))),
    (Saying.ONE_SAMPLE, lambda: F.batch_norm(torch.ones(1, 4, 1), None, None, training=True)),
    (Saying.WRONG_TYPE, lambda: nn.Linear(4, 2)(torch.ones(1, 4, dtype=torch.float64))),
    (Saying.WRONG_TYPE, lambda: nn.LayerNorm(4)(torch.ones(1, 4, dtype=torch.float64))),
]


@pytest.mark.parametrize(("saying", "provoke"), PROVOKED)
def test_torch_says_it_in_these_words(saying: Saying, provoke: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of which type is not the question
        provoke()
    assert says(caught.value, saying), str(caught.value)


@pytest.mark.parametrize("saying", Saying)
def test_other_exceptions_say_something_else(saying: Saying) -> None:
    with pytest.raises(RuntimeError) as caught:
        nn.Conv2d(3, 8, 3)(torch.ones(1, 4, 8, 8))
    assert not says(caught.value, saying)
    assert not says(None, saying)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"execute": "abstract"}, "register_fake"),
        ({"execute": "real", "training": True, "mode": "eval"}, "register_autograd"),
    ],
)
def test_a_custom_operator_without_a_part_is_told_how_to_get_it(
    options: dict[str, Any], hint: str
) -> None:
    with pytest.raises(RecordError, match=hint):
        record(Calls(lambda self, x: silent(self.layer(x)), layer=nn.Linear(4, 4)), (4,), **options)
