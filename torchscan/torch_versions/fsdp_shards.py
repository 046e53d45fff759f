"""FSDP2: the parameters that it shards, and the places where it allocates and copies them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn


def is_sharded_by_fsdp(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on a module, or on one inside it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and any(isinstance(each, kind) for each in nn.Module.modules(module))


def is_offloaded(module: nn.Module) -> bool:
    """Return whether FSDP2 keeps parts of a module on the host."""
    policy: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "CPUOffloadPolicy", None)
    if policy is None or not is_sharded_by_fsdp(module):
        return False
    groups = [
        getattr(each._get_fsdp_state(), "_fsdp_param_group", None)
        for each in _sharded_modules(module)
    ]
    return any(isinstance(getattr(group, "offload_policy", None), policy) for group in groups)


def shards_of_fsdp(module: nn.Module) -> list[ShardOfFSDP]:
    """Return the parameters that FSDP2 shards in a module."""
    if not is_sharded_by_fsdp(module):
        return []
    states = [each._get_fsdp_state() for each in _sharded_modules(module)]
    groups: list[Any] = []
    for state in states:
        several = getattr(state, "_fsdp_param_groups", None)
        groups += [state._fsdp_param_group] if several is None else several
    shards = (each for group in groups if group is not None for each in group.fsdp_params)
    return list(map(ShardOfFSDP, shards))


def _sharded_modules(module: nn.Module) -> list[Any]:
    return [each for each in nn.Module.modules(module) if hasattr(each, "_get_fsdp_state")]


def sharded_by_gathered(module: nn.Module) -> dict[int, Tensor]:
    """Return the sharded parameters of FSDP2 by the identities of all-gathered ones.

    These replace them in a pass, and with ``reshard_after_forward=False`` from then on until a
    backward pass ends. Their memory is freed then.
    """
    found: dict[int, Tensor] = {}
    for shard in shards_of_fsdp(module):
        current = shard.module._parameters.get(shard.name)
        if current is not None and current is not shard.parameter:
            found[id(current)] = shard.parameter
    return found


class ShardOfFSDP:
    """A parameter that FSDP2 shards."""

    def __init__(self, shard: Any) -> None:
        """``shard``: torch's object for it."""
        self._shard = shard

    @property
    def module(self) -> nn.Module:
        """The module that has the parameter."""
        module: nn.Module = self._shard._module_info.module
        return module

    @property
    def name(self) -> str:
        """The name of the parameter in its module."""
        return str(self._shard._module_info.param_name)

    @property
    def parameter(self) -> Tensor:
        """The sharded parameter, which optimizers update."""
        parameter: Tensor = self._shard.sharded_param
        return parameter

    @property
    def part(self) -> Tensor:
        """This rank's part of the parameter, padded as that of the first rank."""
        data: Tensor = self._shard._sharded_param_data
        return data.view(self._shard.padded_sharded_param_size)

    @property
    def rows(self) -> int:
        """The number of rows of the parameter, without the padding of the last rank."""
        return int(self._shard._orig_size[0])

    @property
    def groups(self) -> list[Any]:
        """The process groups of the mesh dimensions along which the parameter is sharded."""
        spec = self._shard._sharding_spec
        placed = zip(range(spec.mesh.ndim), spec.placements, strict=True)
        return [spec.mesh.get_group(dim) for dim, each in placed if not each.is_replicate()]

    @property
    def placement(self) -> tuple[Any, Sequence[Any]] | None:
        """The mesh and placements of the all-gathered parameter if it is a DTensor, or None."""
        spec = self._shard._unsharded_dtensor_spec
        return None if spec is None else (spec.mesh, spec.placements)

    def extend_all_gather(
        self, before: Callable[..., object], after: Callable[..., object]
    ) -> None:
        """Have FSDP2 call a function before, and one after, it all-gathers the parameter.

        It looks for them on the tensor, once when it is sharded.
        """
        tensor = self._shard._sharded_local_tensor
        tensor.fsdp_pre_all_gather = before
        tensor.fsdp_post_all_gather = after
        self._shard._init_extensions()


def resizing_verbs() -> list[tuple[Any, str]]:
    """Return the places of the functions with which FSDP2 frees and allocates storages."""
    modules = [
        sys.modules.get(f"torch.distributed.fsdp._fully_shard.{name}")
        for name in ("_fsdp_param", "_fsdp_param_group")
    ]
    names = ("alloc_storage", "free_storage")
    return [(each, name) for each in modules for name in names if hasattr(each, name)]


def chunking_verbs() -> list[tuple[Any, str]]:
    """Return the place of the function with which FSDP2 creates the chunks of all ranks."""
    from torch.distributed.fsdp import _fully_shard

    module: Any = getattr(_fully_shard, "_fsdp_param", None)
    return [(module, "_chunk_with_empty")] if hasattr(module, "_chunk_with_empty") else []


def sharded_tensor_verbs() -> dict[str, tuple[Any, str]]:
    """Return places of FSDP2: inputs of an all-gather, new shards of a parameter or gradient."""
    from torch.distributed.fsdp import _fully_shard

    shard: Any = getattr(getattr(_fully_shard, "_fsdp_param", None), "FSDPParam", None)
    names = {"inputs": "all_gather_inputs", "shards": "to_sharded_dtensor"}
    return {kind: (shard, name) for kind, name in names.items() if hasattr(shard, name)}


def with_inputs_copied(
    copy: Callable[[Tensor], Tensor],
) -> Callable[[Any], Any]:
    """Return what replaces FSDP2's property: offloaded shards are copied before an all-gather."""

    def replace(before: Any) -> Any:
        def inputs(shard: Any) -> Any:
            if not shard.offload_to_cpu or shard.sharded_state.name != "SHARDED":
                return before.fget(shard)
            on_host = shard._sharded_param_data
            shard._sharded_param_data = copy(on_host)
            try:
                return before.fget(shard)
            finally:
                shard._sharded_param_data = on_host

        return property(inputs)

    return replace


def with_shards_copied(
    copy: Callable[[Tensor], Tensor],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what replaces FSDP2's method: shards of gradients are copied to the host.

    That of the parameter is made first, on the host.
    """

    def replace(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(shard: Any, tensor: Tensor) -> Any:
            is_gradient = shard.offload_to_cpu and hasattr(shard, "sharded_param")
            return make(shard, copy(tensor) if is_gradient else tensor)

        return made

    return replace
