"""A group of processes that are not there: this one is one of them, and what it is told by the others is nothing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torchscan.errors import InputError
from torchscan.torch_versions import fake_store

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@contextlib.contextmanager
def pretended(mesh: Mapping[str, int], rank: int) -> Iterator[DeviceMesh]:
    """The mesh, as process number ``rank`` of it sees it. Afterwards there is no group, as before."""
    size = _size_of(mesh)
    if not 0 <= rank < size:
        raise InputError(f"rank is {rank!r}: a mesh of {_said(mesh)} has ranks 0 to {size - 1}")
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh

    if not distributed.is_available():
        raise InputError("this build of torch has no torch.distributed")
    if distributed.is_initialized():
        raise InputError("there is a process group already: call plan() before init_process_group(), or in another process")
    distributed.init_process_group("fake", store=fake_store(), rank=rank, world_size=size)
    try:
        yield init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    finally:
        distributed.destroy_process_group()


def _size_of(mesh: Mapping[str, int]) -> int:
    if not mesh or not all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in mesh.values()):
        raise InputError(f"mesh is {mesh!r}: give the size of each dimension by its name, {{'dp': 8, 'tp': 8}}, say")
    return math.prod(mesh.values())


def _said(mesh: Mapping[str, int]) -> str:
    return " × ".join(f"{size} {name}" for name, size in mesh.items())
