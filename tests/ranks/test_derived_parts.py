"""Parts of a model on a rank: the layers of modules, and memory, against sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from torchscan.analyses.derived_memory import DerivedMemory
from torchscan.analyses.fsdp_costs import NOTHING, UnitBytes
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.mesh_parts import enclosing_layer
from torchscan.analyses.part_costs import OptimizerCosts, PartCosts, PassCosts


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
