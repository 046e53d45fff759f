"""Law: what combines known values with computed ones only to shape or type them moves the same bytes as a real pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchscan
from tests.recording.test_record import Calls
from torchscan import RecordError, record
from torchscan.analyses.totals import total_cost
from torchscan.ops import compute_cost

Shaping = Callable[[Tensor, Tensor], Any]

#: of a known value ``x`` and a computed ``y``, both ``[1, 8, 4]``
SHAPING: dict[str, Shaping] = {
    "broadcast_tensors": lambda x, y: torch.broadcast_tensors(x, y),
    "broadcast_tensors row": lambda x, y: torch.broadcast_tensors(y, x[:, :1]),
    "expand_as": lambda x, y: x[:, :1].expand_as(y),
    "view_as": lambda x, y: x.view_as(y),
    "reshape_as": lambda x, y: x.reshape_as(y),
    "reshape_as copy": lambda x, y: x.mT.reshape_as(y),
    "type_as": lambda x, y: x.type_as(y),
    "type_as other": lambda x, y: x.type_as(y.half()),
    "to": lambda x, y: x.to(y),
    "to other": lambda x, y: x.to(y.double()),
    "meshgrid ij": lambda x, y: torch.meshgrid(x[0, 0], y[0, 0], indexing="ij"),
    "meshgrid xy": lambda x, y: torch.meshgrid(y[0, 0], x[0, 0], indexing="xy"),
    "atleast_1d": lambda x, y: torch.atleast_1d(x[0, 0, 0], y),
    "atleast_2d": lambda x, y: torch.atleast_2d(x[0, 0], y[0, 0]),
    "atleast_3d": lambda x, y: torch.atleast_3d(x[0], y),
    "cartesian_prod": lambda x, y: torch.cartesian_prod(x[0, 0], y[0, 0]),
    "block_diag": lambda x, y: torch.block_diag(x[0], y[0]),
    "hstack": lambda x, y: torch.hstack([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "where": lambda x, y: torch.where(y > 0, x, y),
    "mse_loss": lambda x, y: F.mse_loss(y, x),
    "l1_loss": lambda x, y: F.l1_loss(y, x),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(y, x),
    "huber_loss": lambda x, y: F.huber_loss(y, x),
    "gaussian_nll_loss": lambda x, y: F.gaussian_nll_loss(y, x, x.exp()),
    "slice": lambda x, y: x[..., : y.shape[-1] // 2] + y[..., :2],
    "unfold": lambda x, y: x.unfold(1, 2, 2) + y.unfold(1, 2, 2),
    "split_with_sizes": lambda x, y: [
        a + b for a, b in zip(x.split([2, 6], 1), y.split([2, 6], 1), strict=True)
    ],
}


class Shapes(nn.Module):
    """Applies a function to a known value and to what a layer computes."""

    def __init__(self, shaping: Shaping, known: Tensor | None = None) -> None:
        super().__init__()
        self.shaping = shaping
        self.layer = nn.Linear(4, 4)
        self.known = known

    def forward(self, x: Tensor) -> Any:
        return self.shaping(x if self.known is None else self.known, self.layer(x))


def moved(trace: torchscan.types.Trace) -> list[Any]:
    """For each operator call that is not a view what it costs; and the size of all that was allocated."""
    costs = [
        (str(op.signature.op), compute_cost(op.signature))
        for op in trace.ops
        if not op.signature.is_view
    ]
    views = [str(op.signature.op) for op in trace.ops if op.signature.is_view]
    return [costs, views]


@pytest.mark.parametrize("shaping", SHAPING.values(), ids=SHAPING.keys())
@pytest.mark.parametrize(
    "known", [None, torch.ones(1, 8, 4), torch.ones(1, 8, 4, dtype=torch.long)]
)
def test_bytes_are_those_of_a_real_pass(shaping: Shaping, known: Tensor | None) -> None:
    model, x = Shapes(shaping, known), torch.rand(1, 8, 4)
    try:
        real = record(model, args=(x,), execute="real")
    except RecordError:
        pytest.skip("torch itself refuses this type")
    abstract = record(model, args=(x,))
    assert abstract.provenance.execution == "abstract"
    assert moved(abstract) == moved(real)


def test_a_loss_reads_each_operand_once() -> None:
    trace = record(Shapes(lambda x, y: F.mse_loss(y, x)), args=(torch.rand(1, 8, 4),))
    total = total_cost(trace)
    assert total.bytes_written == 4 * (32 + 1)  # the layer's output, the loss


def test_views_of_what_is_large_and_known_are_views() -> None:
    def forward(_: Calls, x: Tensor) -> Tensor:
        table = torch.arange(4.0).expand(2**21, 4)
        return x + table.view(-1, 2, 2).flatten(1)[0]

    both = [
        record(Calls(forward), args=(torch.rand(4),), execute=each) for each in ("abstract", "real")
    ]
    assert moved(both[0]) == moved(both[1])


def test_writing_to_such_a_view_leaves_the_model_as_it_is() -> None:
    known = torch.zeros(1, 8, 4)

    def write(x: Tensor, y: Tensor) -> Tensor:
        view, _ = torch.broadcast_tensors(x, y)
        view += y
        view.mul_(2)
        return x + view

    model = Shapes(write, known)
    abstract = record(model, args=(torch.rand(1, 8, 4),), execute="abstract")
    real = record(model, args=(torch.rand(1, 8, 4),), execute="real")
    assert moved(abstract) == moved(real)
    assert known.count_nonzero() == 0
    assert model.known is known


def test_the_values_of_such_a_view_are_known() -> None:
    def masked(x: Tensor, y: Tensor) -> Tensor:
        mask, _ = torch.broadcast_tensors(x, y)
        return y * 2 if bool((mask == 0).any()) else y

    trace = record(Shapes(masked, torch.zeros(1, 8, 4)), args=(torch.rand(1, 8, 4),))
    assert trace.provenance.execution == "abstract"
    assert [str(op.signature.op) for op in trace.ops][-1] == "aten.mul.Tensor"
