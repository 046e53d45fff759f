"""A simulated process group: this process is one of its ranks, and no data comes from others."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchscan.errors import Argument, InputError, Value
from torchscan.recording.patches import Contexts, overridden, substituted
from torchscan.recording.training.offloading import shards_on_host
from torchscan.torch_versions import (
    chunking_verbs,
    fake_store,
    forget_placements,
    has_collectives_on_shapes,
    is_fake_type,
    pinning_verbs,
    reducing_verbs,
    with_buckets_without_data,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: ranks that can be simulated: each takes some bytes of the mesh
_MAX_RANKS = 2**20
#: what torch's compiler sets when it is imported, as FSDP2 does
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@contextlib.contextmanager
def pretended(mesh: Mapping[str, int], rank: int) -> Iterator[DeviceMesh]:
    """Simulate a mesh as one of its ranks sees it. Afterwards there is no group, as before."""
    size = size_of(mesh)
    if not 0 <= rank < size:
        dims = " × ".join(f"{number} {name}" for name, number in mesh.items())
        raise InputError(
            Argument("rank"), f" is {rank!r}: the mesh {dims} has ranks 0 to {size - 1}"
        )
    _require_groups()
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh

    hook = sys.excepthook  # torch replaces it, and says from then on of which process an error is
    cache = os.environ.get(_CACHE)
    distributed.init_process_group("fake", store=fake_store(), rank=rank, world_size=size)
    try:
        with contextlib.ExitStack() as stack:
            for context in _contexts_of_group():
                stack.enter_context(context)
            forget_placements()
            stack.callback(_open.pop)
            _open.append(stack)
            yield init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    finally:
        distributed.destroy_process_group()
        forget_placements()
        sys.excepthook = hook
        if cache is None:
            os.environ.pop(_CACHE, None)


def _require_groups() -> None:
    """Raise an InputError if torch cannot simulate a process group, or has a real one."""
    import torch.distributed as distributed

    if not distributed.is_available():
        raise InputError(
            "this build of torch has no torch.distributed, which meshes need: install another"
        )
    if not has_collectives_on_shapes():
        raise InputError(
            f"torch is {torch.__version__}, and meshes need 2.9 or newer, whose collectives run "
            "on shapes: install a newer one"
        )
    if distributed.is_initialized():
        raise InputError(
            "a process group already exists: call plan() before init_process_group(), or in "
            "another process"
        )


def _contexts_of_group() -> Contexts:
    """Yield contexts in which FSDP2 works on tensors without data."""
    for verb in chunking_verbs():
        yield substituted(*verb, _Chunks)
    for verb in reducing_verbs():
        yield overridden(*verb, with_buckets_without_data)
    for verb in pinning_verbs():
        yield overridden(*verb, _left_where_it_is)
    yield shards_on_host()
    yield _without_complaints()


#: what is entered until the simulated group ends, of groups in their order
_open: list[contextlib.ExitStack] = []


def until_end(context: contextlib.AbstractContextManager[object]) -> None:
    """Enter a context until the simulated group ends, or for good in a real group."""
    if _open:
        _open[-1].enter_context(context)
    else:
        context.__enter__()


def _left_where_it_is(pin: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def pinned(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor if is_fake_type(type(tensor)) else pin(tensor, *args, **kwargs)

    return pinned


@contextlib.contextmanager
def _without_complaints() -> Iterator[None]:
    """Silence torch's log of operators that fail on shapes, whose errors are raised anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


class _Chunks(Sequence[Tensor]):
    """The chunks of a tensor, one per rank, as ``torch.chunk`` splits it, made on demand."""

    def __init__(self, tensor: Tensor, number: int, dim: int) -> None:
        self._tensor, self._number, self._dim = tensor, number, dim
        self._size = -(-tensor.shape[dim] // number)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self._number:
            raise IndexError(place)
        begin = place * self._size
        left = min(self._size, self._tensor.shape[self._dim] - begin)
        if left <= 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, left)


def size_of(mesh: Mapping[str, int]) -> int:
    """Return the number of ranks of a mesh, or raise an InputError if its sizes are invalid."""
    sizes = list(mesh.values()) if isinstance(mesh, Mapping) else []
    are_valid = all(
        isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in sizes
    )
    if not sizes or not are_valid:
        raise InputError.of_value(
            "mesh",
            mesh,
            "give the size of each dimension by its name, such as ",
            Value({"dp": 8, "tp": 8}),
        )
    size = math.prod(mesh.values())
    if size > _MAX_RANKS:
        raise InputError(
            Argument("mesh"),
            " is ",
            Value(mesh),
            f", with {size:,} ranks: give at most {_MAX_RANKS:,}",
        )
    return size
