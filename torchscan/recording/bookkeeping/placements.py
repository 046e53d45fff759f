"""The placement of a model's parameters on ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.torch_versions import is_sharded_type
from torchscan.trace.events import Processes


def processes_of(inventory: Inventory) -> Processes:
    """Read from the parameters: each knows its mesh."""
    from torch.distributed import get_rank

    spread = {
        slot.path: slot.tensor for slot in inventory.slots if is_sharded_type(type(slot.tensor))
    }
    mesh: dict[str, int] = {}
    for each in spread.values():
        mesh |= _mesh_of(each)
    return Processes(get_rank(), mesh, {path: _placed(each) for path, each in spread.items()})


def _mesh_of(tensor: Any) -> Mapping[str, int]:
    mesh = tensor.device_mesh
    return dict(zip(_names_of(mesh), mesh.shape, strict=True))


def _names_of(mesh: Any) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or map(str, range(mesh.ndim)))


def _placed(tensor: Tensor) -> str:
    spread: Any = tensor
    return ", ".join(
        f"{name}: {each}"
        for name, each in zip(_names_of(spread.device_mesh), spread.placements, strict=True)
    )
