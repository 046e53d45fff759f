"""Law: operands of different types are refused on shapes where torch refuses them, and give the type that torch gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.versions import skip_before
from torchscan import NeedsValuesError, RecordError, crawl_module, record

Product = Callable[[Tensor, Tensor], Tensor]

EQUATIONS = [
    "i,j->ij",
    "i,j",
    "...i,j->...ij",
    "bi,bj->bij",
    "ij,j->ij",
    "i,i->i",
    "i,i->",
    "i,i",
    "bij,bjk->bik",
    "bij,bjk",
    "bi,bj->b",
    "ij,kj->ik",
    "ij,k->j",
    "b...,b...->b...",
    "i,j,i->ij",
    "i,j,j->i",
    "ii,j->ij",
]
SHAPES: dict[str, int] = {"b": 2, "i": 3, "j": 4, "k": 5}

#: of a ``[3, 4]`` and a ``[4, 5]``
PRODUCTS: dict[str, Product] = {
    "matmul": lambda x, y: x @ y,
    "matmul of rows": lambda x, y: x[0] @ y[:, 0],
    "matmul of a row": lambda x, y: x @ y[:, 0],
    "mm": lambda x, y: torch.mm(x, y),
    "mv": lambda x, y: torch.mv(x, y[:, 0]),
    "dot": lambda x, y: torch.dot(x[0], y[:, 0]),
    "vdot": lambda x, y: torch.vdot(x[0], y[:, 0]),
    "inner": lambda x, y: torch.inner(x, y.mT),
    "outer": lambda x, y: torch.outer(x[0], y[0]),
    "ger": lambda x, y: torch.ger(x[0], y[0]),
    "kron": lambda x, y: torch.kron(x, y),
    "tensordot": lambda x, y: torch.tensordot(x, y, dims=1),
    "tensordot 0": lambda x, y: torch.tensordot(x, y, dims=0),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "linear": lambda x, y: F.linear(x, y.mT),
    "addmm": lambda x, y: torch.addmm(x[0, 0], x, y),
    "addmv": lambda x, y: torch.addmv(x[0, 0], x, y[:, 0]),
    "addr": lambda x, y: torch.addr(x[0, 0], x[0], y[0]),
    "baddbmm": lambda x, y: torch.baddbmm(x[0, 0], x[None], y[None]),
    "addbmm": lambda x, y: torch.addbmm(x[0, 0], x[None], y[None]),
    "multi_dot": lambda x, y: torch.linalg.multi_dot([x, y, y.mT]),
    "chain_matmul": lambda x, y: torch.linalg.multi_dot([x, y]),
    "bilinear": lambda x, y: F.bilinear(x, x, y[:, :4, None].expand(4, 4, 4)),
    "conv1d": lambda x, y: F.conv1d(x[None], y[:3, :3, None].mT),
    "conv_transpose1d": lambda x, y: F.conv_transpose1d(x[None], y[:3, :3, None]),
    "cdist": lambda x, y: torch.cdist(x, y.mT),
    "cross": lambda x, y: torch.linalg.cross(x[:, :1].mT, y[:1, :3]),
    "vecdot": lambda x, y: torch.linalg.vecdot(x, y[:, :3].mT),
    "addcmul": lambda x, y: torch.addcmul(x[0, 0], x[:, :3], y[:3, :3]),
    "embedding_bag": lambda x, y: F.embedding_bag(x[:1].long(), y),
    "bucketize": lambda x, y: torch.bucketize(x, y[0]),
}


class Multiplies(nn.Module):
    """Applies a product to one tensor and a another, in the types asked for."""

    def __init__(
        self, product: Callable[..., Tensor], types: tuple[torch.dtype, ...], shapes: Any
    ) -> None:
        super().__init__()
        self.product = product
        self.types = types
        self.shapes = shapes
        self.unknown = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        operands = [
            (x * self.unknown * torch.ones(shape, device=x.device)).to(kind)
            for shape, kind in zip(self.shapes, self.types, strict=True)
        ]
        return self.product(*operands)


def outcome(model: nn.Module, execute: Any) -> Any:
    try:
        trace = record(model, args=(torch.ones(()),), execute=execute)
    except (
        RecordError,
        NeedsValuesError,
    ):  # the shape function of torch 2.15 refuses some
        return "refused"
    return [
        (out.shape, out.dtype)
        for out in [trace.tensors[index].spec for index in trace.root.outputs]
    ]


KINDS = [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_refuses_and_promotes_as_on_data(equation: str) -> None:
    terms = equation.partition("->")[0].replace("...", "b").split(",")
    shapes = [[SHAPES[index] for index in term] for term in terms]
    for types in itertools.product(KINDS[:4], repeat=len(terms)):
        model = Multiplies(lambda *xs: torch.einsum(equation, *xs), types, shapes)
        assert outcome(model, "abstract") == outcome(model, "real"), types


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products_refuse_and_promote_as_on_data(product: Product) -> None:
    if product is PRODUCTS["addmv"]:
        skip_before("2.13", "addmv on shapes takes types that it refuses with data")
    for types in itertools.product(KINDS[1:4], repeat=2):
        model = Multiplies(product, types, [(3, 4), (4, 5)])
        assert outcome(model, "abstract") == outcome(model, "real"), types


def test_rotary_embeddings_of_integer_positions_run_on_shapes() -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("frequencies", torch.rand(8))

        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(4, device=x.device)
            return self.layer(x) + torch.einsum("i,j->ij", positions, self.frequencies).sin()

    with torch.device("meta"):
        model = Rotary()
    assert crawl_module(model, args=(torch.rand(4, 8),))["overall"]["macs"] == 4 * 8 * 8 + 4 * 8
