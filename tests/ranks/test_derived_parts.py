"""Parts of a model on a rank: the layers of modules, and memory, against sums by hand."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from torchscan.analyses.derived_memory import DerivedMemory
from torchscan.analyses.fsdp_costs import NOTHING, ParameterShape, UnitBytes
from torchscan.analyses.mesh_derivation import LocalModel, StageCosts, StageDerivation
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.mesh_parts import LocalTrace, enclosing_layer
from torchscan.analyses.part_costs import AFTER, BEFORE, OptimizerCosts, PartCosts, PassCosts
from torchscan.analyses.roofline import Fabric, Rates
from torchscan.hardware.device_specs import device_named
from torchscan.scan import Scan


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("layers.1", "layers.1"),
        ("layers.1.mlp.up", "layers.1"),
        ("layers.10.mlp", ""),
        ("head", ""),
    ],
)
def test_a_module_is_in_the_layer_whose_path_its_own_begins_with(path: str, layer: str) -> None:
    assert enclosing_layer(path, ["layers.0", "layers.1"]) == layer


class Products(nn.Module):
    """Four products with square matrices, of which two are layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = _square(), _square()
        self.layers = nn.ModuleList([_square(), _square()])

    def forward(self, given: Tensor) -> Tensor:
        """Return the last product."""
        hidden = self.first(given)
        for layer in self.layers:
            hidden = layer(hidden)
        result: Tensor = self.last(hidden)
        return result


def _square() -> nn.Linear:
    return nn.Linear(8, 8, bias=False)


LAYERS = ["layers.0", "layers.1"]


def _scan(model: nn.Module, optimizer: Any = "Adam") -> Scan:
    options: dict[str, Any] = {"training": True, "device": "NVIDIA H100 80GB HBM3"}
    return Scan(model, (8,), batch_size=4, optimizer=optimizer, **options)


def _local(scan: Scan) -> LocalTrace:
    return LocalTrace(scan.steps, scan.roofline, Fabric(device=device_named("H100")), LAYERS)


def test_a_part_keeps_its_operand_which_may_be_the_result_of_a_layer() -> None:
    """Each product keeps its operand of 4 × 8 floats, and a layer's result belongs to its reader.

    The first one needs no gradient of its operand. The second one's is no layer's result.
    """
    local = _local(_scan(Products()))
    parts, size, macs = local.parts(), 4 * 4 * 8, 4 * 8 * 8
    assert list(parts) == [BEFORE, *LAYERS, AFTER]
    assert [each.saved_bytes for each in parts.values()] == [2 * size, 0, size, size]
    assert [each.received_bytes for each in parts.values()] == [0, 0, size, size]
    assert [each.pending_bytes for each in parts.values()] == [size] * 4
    assert [each.output_bytes for each in parts.values()] == [0, size, size, 0]
    assert [each.macs for each in parts.values()] == [2 * macs, 3 * macs, 3 * macs, 3 * macs]


@pytest.mark.parametrize(("optimizer", "state"), [("Adam", 2.0), ("SGD", 0.0)])
def test_optimizer_time_and_state_are_proportional_to_trained_bytes(
    optimizer: str, state: float
) -> None:
    """Of four matrices of 8 × 8 floats, three are trained; Adam has two tensors for each."""
    model = Products()
    model.first.requires_grad_(False)
    scan = _scan(model, optimizer)
    local, trained = _local(scan), 3 * 4 * 8 * 8
    costs, operators = local.optimizer(), scan.roofline.operators
    times = [each.time_estimate for each in operators if each.phase == "optimizer"]
    assert local.trained_bytes() == trained
    assert times
    assert costs.seconds == pytest.approx(sum(times) / trained)
    assert costs.state_bytes == state


def _stage(mesh: dict[str, int]) -> StageCosts:
    """Return the costs of two layers, with as many parameters before them: 8 × 8 floats each.

    The passes of each of the four parts take 1 and 2 seconds, which hide all collectives.
    """
    costs = PartCosts(forward=PassCosts(computing=1.0), backward=PassCosts(computing=2.0))
    shape = ParameterShape(8, 8, 4, 4, 4, 4, is_trained=True)
    order = (BEFORE, *LAYERS, AFTER)
    model = LocalModel(
        order=order,
        costs=dict.fromkeys(order, costs),
        shapes={**dict.fromkeys(order, (shape,)), AFTER: ()},
        optimizer=OptimizerCosts(seconds=0.5, state_bytes=2.0, temporary_bytes=0.0),
        context_bytes=0,
    )
    device = device_named("H100")
    fabric = Fabric(device=device)
    derivation = StageDerivation(model, MeshLayout.of(mesh), fabric, Rates(device))
    return derivation.stage(order, accumulates=False)


#: bytes of a matrix that a rank sends to gather it, or to reduce its gradient, in a group of two
HALF = 4 * 8 * 8 // 2


@pytest.mark.parametrize("mesh", [{}, {"pp": 2}])
def test_without_copies_nothing_is_sent_or_waited_for(mesh: dict[str, int]) -> None:
    alone = _stage(mesh)
    assert (alone.sent_bytes, alone.sent_once, alone.waiting, alone.exposed) == (0, 0, 0, 0)
    assert (alone.forward, alone.backward, alone.local_params) == (4.0, 8.0, 3 * 8 * 8)
    assert alone.optimizer == 0.5 * 3 * 4 * 8 * 8


def test_layers_are_gathered_in_both_passes_of_each_micro_batch() -> None:
    """One gather of the parameters outside of layers, two of each layer, and three reductions."""
    sharded = _stage({"dp": 2})
    assert sharded.sent_bytes == (1 + 2 * 2 + 3) * HALF
    assert (sharded.sent_once, sharded.exposed) == (0, 0)
    assert sharded.waiting > 0, "the first and the last collective have nothing to run beside"
    assert sharded.forward > 4
    assert sharded.local_params == 3 * 8 * 8 // 2


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_gathers_and_reduces_once_in_a_step(stages: int) -> None:
    """Its micro batches take as long as without FSDP."""
    piped = _stage({"pp": stages, "dp": 2})
    assert (piped.sent_bytes, piped.sent_once) == (0, (3 + 3) * HALF)
    assert piped.exposed > 0
    assert (piped.forward, piped.backward, piped.waiting) == (4.0, 8.0, 0.0)


def _memory(units: list[UnitBytes], **options: Any) -> DerivedMemory:
    """Return the memory of equal layers, whose backward passes take 10 bytes each."""
    given: dict[str, Any] = {"layout": MeshLayout(dp=2), "root": NOTHING, "stays_gathered": False}
    return DerivedMemory(
        costs=[PartCosts(backward=PassCosts(peak_bytes=10.0))] * len(units),
        parts=[f"layers.{index}" for index in range(len(units))],
        units=units,
        optimizer=OptimizerCosts(seconds=0.0, state_bytes=2.0, temporary_bytes=0.0),
        **given | options,
    )


@pytest.mark.parametrize("stays_gathered", [False, True])
def test_parameters_of_a_layer_and_the_one_before_are_complete_in_its_backward_pass(
    stays_gathered: bool,
) -> None:
    """The second layer needs 1,000 bytes; the 100 of the first are gathered early, or still."""
    units = [NOTHING._replace(gathered=100), NOTHING._replace(gathered=1000)]
    memory = _memory(units, stays_gathered=stays_gathered)
    assert memory.backward_bytes(accumulates=False) == 10 + 1000 + 100


def test_a_pipeline_keeps_all_gradients_until_its_last_microbatch() -> None:
    """Complete gradients of the root and of two layers; otherwise they live in a pass only."""
    unit = NOTHING._replace(reduced=400, reduced_shard=200)
    units, root = [unit, unit], NOTHING._replace(reduced=50, reduced_shard=25)
    memory = _memory(units, root=root, layout=MeshLayout(pp=2, dp=2))
    assert memory.by_kind(accumulates=False)["gradients"] == 400 + 400 + 50
    alone = _memory(units, root=root)
    assert alone.by_kind(accumulates=False)["gradients"] == 0
    assert alone.by_kind(accumulates=True)["gradients"] == 200 + 200 + 25
