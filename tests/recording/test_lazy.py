"""Lazy modules: those that a pass reaches get their shapes on a copy, the others are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.versions import before
from torchscan import (
    InputError,
    MissingFormulaError,
    analyze_roofline,
    assert_budget,
    crawl_module,
    estimate_memory,
    receptive_field,
    record,
    summary,
)
from torchscan.analyses.module_graph import module_graph
from torchscan.notes import Note
from torchscan.targets import parse_target, with_model


class Unreached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.LazyLinear(4)
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Materializing(nn.Module):
    """Gives a buffer its shape in ``forward``, without a hook of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: Any = nn.UninitializedBuffer()
        self.weight: Any = nn.UninitializedParameter()

    def forward(self, x: Tensor) -> Tensor:
        if nn.parameter.is_lazy(self.weight):
            self.sums.materialize((x.shape[-1],))
            self.weight.materialize((x.shape[-1], 3))
        product: Tensor = (x + self.sums) @ self.weight
        return product


def is_unread(model: nn.Module) -> bool:
    return nn.parameter.is_lazy(model.get_parameter("head.weight"))


VERBS: dict[str, Callable[[nn.Module], Any]] = {
    "summary": lambda model: summary(model, (4,)),
    "crawl_module": lambda model: crawl_module(model, (4,), execute="real"),
    "estimate_memory": lambda model: estimate_memory(model, (4,)),
    "estimate_memory of training": lambda model: estimate_memory(
        model, (4,), training=True, optimizer="AdamW", precision="bf16"
    ),
    "analyze_roofline": lambda model: analyze_roofline(model, (4,), device="A100 SXM4 80GB"),
    "receptive_field": lambda model: receptive_field(model, (4,)),
    "to_page": lambda model: torchscan.html_report(torchscan.Scan(model, (4,))),
    "module_graph": lambda model: module_graph(record(model, (4,), training=True, mode="eval")),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_module_that_is_not_reached_stays_lazy(verb: Callable[[nn.Module], Any]) -> None:
    model = Unreached()
    verb(model)
    assert is_unread(model)
    assert type(model.head) is nn.LazyLinear


def test_its_parameters_make_totals_lower_bounds() -> None:
    provenance = record(Unreached(), (4,)).provenance
    notes = [Note.of("lazy-module", path=name) for name in ("head", "norm")]
    assert list(provenance.unreadable_weights) == notes
    with pytest.raises(MissingFormulaError, match="only a lower bound is known for Parameters"):
        assert_budget(Unreached(), (4,), max_params=100)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16-mixed", None])
@pytest.mark.parametrize("training", [False, True])
def test_precision_is_that_of_a_model_with_its_sizes(precision: Any, training: bool) -> None:
    kinds: list[list[nn.Module]] = [
        [nn.LazyLinear(8), nn.LazyLinear(3)],
        [nn.Linear(4, 8), nn.Linear(8, 3)],
    ]
    models = [nn.Sequential(*layers) for layers in kinds]
    options: Any = {
        "precision": precision,
        "training": training,
        "optimizer": "AdamW" if training else None,
    }
    lazy, sized = (estimate_memory(model, (4,), **options) for model in models)
    assert lazy.peak_bytes == sized.peak_bytes
    assert lazy.by_kind == sized.by_kind


def test_values_that_only_data_have_are_read_in_estimates_too() -> None:
    class Scaled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y * float(y.detach().sum())

    assert estimate_memory(Scaled(nn.LazyLinear(4)), (4,)).peak_bytes > 0


def test_a_target_may_be_lazy() -> None:
    shapes = with_model(
        parse_target("torch.nn:LazyLinear(4)"), lambda built: record_of(built.module)
    )
    assert shapes == [(4, 3), (4,)]


def record_of(model: nn.Module) -> list[tuple[int, ...]]:
    trace = record(model, (3,))
    return [trace.tensors[index].spec.shape for index in trace.ops[0].inputs[1:]]


@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_tensors_without_a_shape_in_ordinary_modules_get_theirs(execute: Any) -> None:
    model = Materializing()
    overall = crawl_module(model, args=(torch.rand(2, 4),), execute=execute)["overall"]
    assert (overall["grad_params"], overall["macs"], overall["buffer_size"]) == (12, 2 * 4 * 3, 16)
    assert nn.parameter.is_lazy(model.weight)
    assert nn.parameter.is_lazy(model.sums)


@before("2.9", "collectives do not run on shapes")
@before("2.6", "meshes without processes")
def test_a_plan_names_what_has_no_shape_to_be_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    with pytest.raises(InputError, match=r"^head\.weight is lazy, and a model is sharded before"):
        torchscan.parallel.plan(
            Unreached(),
            (4,),
            mesh={"dp": 2},
            apply=lambda model, mesh: fully_shard(model, mesh=mesh),
        )
