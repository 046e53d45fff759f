"""Sparse tensors of every layout, wherever a model has them, through every verb: an answer, or one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from torchscan import InputError, TorchscanError, estimate_memory, receptive_field, record
from torchscan.analyses.totals import total_cost

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse .* tensor support", "ignore:Sparse invariant"
)

EYE = torch.eye(6)
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "coo": EYE.to_sparse,
    "csr": EYE.to_sparse_csr,
    "csc": EYE.to_sparse_csc,
    "bsr": lambda: EYE.to_sparse_bsr((2, 2)),
}
X = torch.rand(6, 8)


class Filters(nn.Module):
    """A linear layer, and a sparse matrix that is a buffer, a parameter, an attribute or an argument."""

    def __init__(self, place: str, matrix: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        if place == "buffer":
            self.register_buffer("matrix", matrix)
        elif place != "argument":
            self.matrix = (
                matrix if place == "attribute" else nn.Parameter(matrix, requires_grad=False)
            )

    def forward(self, x: Tensor, matrix: Tensor | None = None) -> Tensor:
        return (self.matrix if matrix is None else matrix) @ self.layer(x)


def asked(place: str, layout: str) -> tuple[nn.Module, dict[str, Any]]:
    matrix = LAYOUTS[layout]()
    return Filters(place, matrix), {"args": (X, matrix) if place == "argument" else (X,)}


PLACES = ["buffer", "parameter", "attribute", "argument"]


class Squared(Filters):
    """A dense product, then that of the sparse matrix with itself."""

    def forward(self, x: Tensor, matrix: Tensor | None = None) -> Tensor:
        return (self.matrix @ self.matrix).to_dense() @ super().forward(x, matrix)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_product_of_sparse_matrices_is_a_lower_bound_that_says_why(layout: str) -> None:
    """At least one product for each of the six elements; 6 · 8 · 3, 6 · 3 and 6 · 6 · 3 others."""
    model = Squared("buffer", LAYOUTS[layout]())
    info = torchscan.crawl_module(model, args=(X,))
    assert (info["overall"]["macs"], info["overall"]["complete"]) == (144 + 18 + 108 + 6, False)
    reason = "the cost of aten.matmul.default depends on values of tensors"
    text = torchscan.format_info(info, width=200)
    assert f"Values are lower bounds, because {reason}." in text
    assert "no cost formula" not in text
    with pytest.raises(torchscan.MissingFormulaError) as caught:
        torchscan.crawl_module(model, args=(X,), strict=True)
    in_layer = reason.replace("default", "default in (the model)")
    assert str(caught.value) == f"{in_layer}: leave out strict=True for lower bounds"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_sparse_matrix_has_the_costs_of_what_it_stores(place: str, layout: str) -> None:
    model, options = asked(place, layout)
    stored = 12 if layout == "bsr" else 6
    trace = record(model, **options)
    assert total_cost(trace).macs == 6 * 8 * 3 + stored * 3
    scan = torchscan.Scan(model, **options, device="A100 SXM4 80GB")
    assert scan.memory.peak_bytes > 0
    assert scan.roofline.time_estimate > 0
    torchscan.html_report(scan)
    receptive_field(model, **options)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("place", PLACES)
def test_training_with_one_is_estimated(place: str, layout: str) -> None:
    model, options = asked(place, layout)
    scan = torchscan.Scan(
        model, **options, training=True, optimizer="AdamW", device="A100 SXM4 80GB"
    )
    assert scan.memory.peak_bytes > 0
    assert scan.roofline.time_estimate > 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_another_precision_is_refused_in_the_words_of_the_interface(
    place: str, layout: str, precision: Any
) -> None:
    model, options = asked(place, layout)
    with pytest.raises(TorchscanError, match=r"sparse_|SparseCsr") as caught:
        estimate_memory(model, **options, precision=precision)
    assert "precision=None" in str(caught.value)


def test_a_sparse_parameter_that_trains_is_refused_by_optimizers() -> None:
    model, options = asked("parameter", "csr")
    model.get_parameter("matrix").requires_grad_()
    with pytest.raises(
        InputError, match=r"^matrix is a sparse_csr tensor, which no torch optimizer"
    ):
        estimate_memory(model, **options, training=True, optimizer="SGD")


def test_a_gradient_that_torch_would_not_take_back_stays() -> None:
    model, options = asked("parameter", "csr")
    matrix = model.get_parameter("matrix").requires_grad_()
    model(X).sum().backward()
    gradient = matrix.grad
    with pytest.raises(InputError, match=r"call zero_grad\(\) first"):
        record(model, **options, training=True, mode="eval")
    assert matrix.grad is gradient
    assert gradient is not None
    matrix.grad = None
    assert record(model, **options, training=True, mode="eval").ops
