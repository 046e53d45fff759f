"""Tensors of which each rank has a part: DTensors, and results of collectives in flight."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn


def is_sharded_type(kind: type) -> bool:
    """Return whether tensors of this type are sharded, as DTensors are."""
    api = sys.modules.get("torch.distributed.tensor._api")
    return api is not None and issubclass(kind, api.DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, also while it arrives, or any other tensor as it is."""
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor
    part: Any = tensor
    if is_sharded_type(type(part)):
        part = part._local_tensor
    return part.elem if _is_on_its_way(part) else part  # type: ignore[no-any-return]


def sharded_from(part: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """Return the DTensor of which this rank has ``part``."""
    from torch.distributed.tensor import DTensor

    found: Tensor = DTensor.from_local(part, mesh, placements, run_check=False)
    return found


def placed_like(tensor: Any, other: Any) -> Tensor:
    """Return a DTensor with the placements of another one. Ranks exchange what they lack."""
    placed: Tensor = tensor.redistribute(placements=other.placements)
    return placed


def is_divided_along(tensor: Tensor, dim: int) -> bool:
    """Return whether a DTensor is divided along a dimension; other tensors are not."""
    placements: Sequence[Any] = getattr(tensor, "placements", ())
    return any(each.is_shard(dim) for each in placements)


def is_divided_unevenly(tensor: Tensor) -> bool:
    """Return whether some ranks have more of a DTensor than others."""
    spread: Any = tensor
    if not is_sharded_type(type(tensor)):
        return False
    pairs = zip(spread.placements, spread.device_mesh.shape, strict=True)
    return any(
        placement.is_shard() and tensor.shape[placement.dim] % number for placement, number in pairs
    )


def is_placed_elsewhere(tensor: Tensor | None, other: Tensor) -> bool:
    """Return whether two DTensors have different placements."""
    both: Any = tensor, other
    return (
        tensor is not None
        and all(is_sharded_type(type(each)) for each in both)
        and both[0].placements != both[1].placements
    )


def groups_of_shards(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Return the groups of ranks among which tensors are divided.

    There is one for each dimension of each mesh along which any DTensor is not replicated.
    """
    groups: dict[tuple[Any, int], Any] = {}
    for tensor in tensors:
        if not is_sharded_type(type(tensor)):
            continue
        sharded: Any = tensor
        mesh = sharded.device_mesh
        for dim, placement in enumerate(sharded.placements):
            if not placement.is_replicate():
                groups[mesh, dim] = mesh.get_group(dim)
    return list(groups.values())


def whole_mesh_of(module: nn.Module) -> Any:
    """Return the complete ``DeviceMesh`` of a model's parameters.

    FSDP and tensor parallelism may each know a part of it.
    """
    sharded: list[Any] = [each for each in module.parameters() if is_sharded_type(type(each))]
    meshes: dict[int, Any] = {}
    for parameter in sharded:
        mesh = parameter.device_mesh
        if hasattr(mesh, "_get_root_mesh"):
            root = mesh._get_root_mesh()
        else:
            from torch.distributed.device_mesh import _mesh_resources  # older versions

            root = _mesh_resources.get_root_mesh(mesh)
        if root is not None:
            meshes[id(root)] = root
    return max(meshes.values(), key=lambda mesh: mesh.ndim, default=None)


def dimensions_of(module: nn.Module) -> set[str]:
    """Return the mesh dimensions along which parameters are sharded or replicated.

    A pipeline's dimension is not among them.
    """
    spread: list[Any] = [each for each in module.parameters() if is_sharded_type(type(each))]
    return {name for each in spread for name in each.device_mesh.mesh_dim_names or ()}


def joined_mesh(mesh: Any, names: Sequence[str]) -> Any:
    """Return the dimensions of a mesh as one."""
    if len(names) == 1:
        return mesh[names[0]]
    return mesh[tuple(names)]._flatten("_".join(names))


def placement_verbs() -> list[tuple[Any, str]]:
    """Return the functions that find the placement of a DTensor's results: objects and names."""
    api = sys.modules.get("torch.distributed.tensor._api")
    if api is None:
        return []
    propagator = api.DTensor._op_dispatcher.sharding_propagator
    names = ("propagate_op_sharding", "propagate_op_sharding_non_cached")
    return [(propagator, name) for name in names]


def forget_placements() -> None:
    """Clear the placements of results that DTensors remember, also those of equal former meshes."""
    if "torch.distributed.tensor._api" not in sys.modules:
        return
    from torch.distributed.tensor import debug

    clear = getattr(debug, "_clear_sharding_prop_cache", None) or getattr(
        debug, "_clear_python_sharding_prop_cache", None
    )
    if clear is not None:
        clear()
    planner = sys.modules.get("torch.distributed.tensor._redistribute")
    for name in ("_gen_transform_infos", "clear_redistribute_planner_cache"):
        known = getattr(planner, name, None)
        if known is not None:
            getattr(known, "cache_clear", known)()


def on_its_way(tensor: Tensor) -> Tensor:
    """Wrap the result of a collective, as torch's functions return it: its users wait for it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(tensor)


def arrived(tensor: Tensor) -> None:
    """Wait for the collective whose result a tensor is, if it is one."""
    part: Any = tensor
    if is_sharded_type(type(tensor)):
        part = part._local_tensor
    if _is_on_its_way(part):
        part.trigger_wait()


def _is_on_its_way(tensor: Tensor) -> bool:
    """Return whether a tensor is the result of a collective that may still run."""
    kind = getattr(
        sys.modules.get("torch.distributed._functional_collectives"), "AsyncCollectiveTensor", None
    )
    return kind is not None and isinstance(tensor, kind)
