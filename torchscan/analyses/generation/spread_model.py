"""The part of a model that one device of a mesh has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchscan.once import once
from torchscan.recording.engine_plan import LATENT
from torchscan.recording.engine_sharding import as_engines_shard
from torchscan.recording.folding import without_equal_layers
from torchscan.recording.folding.layer_folds import outermost_lists
from torchscan.recording.sharding import Apply, by_its_own_plan, sharded
from torchscan.torch_versions import is_sharded_type

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: modules of which engines, too, have all on each device: routers, and what all heads share
_ON_EACH_DEVICE = {
    *("gate", "router", "shared_expert_gate", "k_proj", "v_proj", "indexer"),
    *LATENT,
}


class SpreadModel:
    """The model as the first device of a mesh has it."""

    def __init__(
        self,
        module: nn.Module,
        devices: DeviceMesh | None,
        apply: Apply | None,
        dtype: torch.dtype | None,
        *,
        expert_parallel: bool = False,
        is_engine: bool = True,
    ) -> None:
        """Shard nothing yet.

        Args:
            module: the model.
            devices: the mesh, or None.
            apply: the user's function that shards the model, or None.
            dtype: the type that parameters are converted to, or None.
            expert_parallel: True if the experts are divided among all devices.
            is_engine: True if the model is sharded as in inference engines, False if by the plan
                of transformers.
        """
        #: the model before it was sharded
        self.module = module
        self._by_default = by_its_own_plan
        if is_engine:
            self._by_default = partial(as_engines_shard, expert_parallel=expert_parallel)
        self._devices = devices
        self._apply = apply
        self._dtype = dtype

    @once
    def all_layers(self) -> nn.Module:
        """The part of this device, with all layers."""
        return self._shard(self.module)

    @once
    def some_layers(self) -> nn.Module | None:
        """The part of this device, in which layers that are equal to others are empty.

        None: there are none, or the user's function shards the model, which may count on all.
        """
        if self._devices is None or self._apply is not None:
            return None
        short = without_equal_layers(self.module)
        return None if short is None else self._shard(short)

    @property
    def is_converted(self) -> bool:
        """True if the part of a device has its precision already."""
        return self._devices is not None

    @once
    def sizes(self) -> Mapping[str, int]:
        """The elements of all parameters before they were divided, by their paths.

        There are none if the user's function divides them, or if there is one device.
        """
        if self._devices is None or self._apply is not None:
            return {}
        named = self.module.named_parameters(remove_duplicate=False)
        return {path: each.numel() for path, each in named}

    def whole_matrices(self, part: nn.Module) -> tuple[str, ...]:
        """Return the matrices of layers of which a device has all, by their paths in a layer.

        Routers are left out, and what all heads share. If the user's function divides the model,
        or "tp" has one device, there are none.
        """
        devices = self._devices
        if devices is None or self._apply is not None:
            return ()
        if "tp" not in (devices.mesh_dim_names or ()) or devices["tp"].size() == 1:
            return ()
        held = dict(part.named_parameters(remove_duplicate=False))
        found: dict[str, None] = {}
        for path, layers in outermost_lists(self.module, more_than=1):
            for name, matrix in layers.named_parameters(remove_duplicate=False):
                if _is_whole(name, matrix, held.get(f"{path}.{name}")):
                    _, _, in_layer = name.partition(".")
                    found[in_layer.removesuffix(".weight")] = None
        return tuple(found)

    def _shard(self, module: nn.Module) -> nn.Module:
        if self._devices is None:
            return module
        apply = self._apply or self._by_default
        return sharded(module, apply, self._devices, training=False, dtype=self._dtype)


def _is_whole(name: str, matrix: Tensor, own: Tensor | None) -> bool:
    """Return whether a device has all of a matrix, ``own``, that engines divide."""
    if own is None or own.shape != matrix.shape:
        return False
    if is_sharded_type(type(own)) or matrix.dim() < 2:
        return False
    parts = name.split(".")
    return _ON_EACH_DEVICE.isdisjoint(parts)
