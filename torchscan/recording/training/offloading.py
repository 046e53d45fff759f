"""Offloading of activations, parameters and optimizer state to the host, with the copies of a step.

A tensor on the host is one element, expanded to its shape: it takes no memory of the device. Each
copy is one operator, so that its bytes are in the trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.patches import overridden
from torchscan.torch_versions import (
    is_sharded_type,
    local_part,
    sharded_tensor_verbs,
    with_inputs_copied,
    with_shards_copied,
)

Offload = Literal["optimizer", "parameters", "activations"]
#: smaller tensors stay, as in torchtune
_MIN_BYTES = 1024
_COPIES = ("copy_to_device", "copy_to_host")

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define("copy_to_host(Tensor tensor) -> Tensor")
_library.define("copy_to_device(Tensor tensor, int[] stride) -> Tensor")
_library.define("update_from_host(Tensor(a!) tensor, Tensor updated) -> ()")


def offload_activations(model: nn.Module) -> None:
    """Keep the saved tensors of a model's forward pass on the host, except for its own tensors."""
    forward: Callable[..., Any] = model.forward
    model.forward = partial(_SavedTensors(tensors_of(model)).run, forward)


def offload_update(parameters: Iterable[Tensor]) -> None:
    """Copy gradients to the host, update parameters there, and copy the parameters back."""
    for parameter in parameters:
        if parameter.grad is not None:
            updated = torch.ops.torchscan.copy_to_host(parameter.grad)
            torch.ops.torchscan.update_from_host(parameter, updated)


@contextlib.contextmanager
def shards_on_host() -> Iterator[None]:
    """Keep the shards that FSDP2 offloads on the host, where it has a policy for it.

    They are copied to the device before each all-gather, and gradients to the host after each
    reduction, where the optimizer updates them.
    """
    verbs = sharded_tensor_verbs()
    with contextlib.ExitStack() as stack:
        if len(verbs) > 1:
            inputs, shards = verbs["inputs"], verbs["shards"]
            to_device, to_host = (getattr(torch.ops.torchscan, name) for name in _COPIES)
            copy = with_inputs_copied(lambda flat: to_device(flat, [1]))
            stack.enter_context(overridden(*inputs, copy))
            stack.enter_context(overridden(*shards, with_shards_copied(to_host)))
        yield


def leave_shards_on_host(tensors: Iterable[Tensor], table: TensorTable) -> None:
    """Count no memory of the device for shards."""
    for tensor in tensors:
        if is_sharded_type(type(tensor)):
            table.storages.is_elsewhere(table.find(local_part(tensor)).storage)


class _Kept(NamedTuple):
    """A saved tensor on the host."""

    tensor: Tensor
    stride: tuple[int, ...]


class _SavedTensors:
    """The hooks of tensors that autograd saves."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        # The storages themselves are kept, so that no other one gets the identity of one of them.
        self._own = [each.untyped_storage() for each in own]
        self._identities = set(map(id, self._own))

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass."""
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            return forward(*args, **kwargs)

    def pack(self, tensor: Tensor) -> Tensor | _Kept:
        """Return a tensor on the host, or the tensor if it stays."""
        is_small = tensor.numel() * tensor.element_size() < _MIN_BYTES
        if is_small or id(tensor.untyped_storage()) in self._identities:
            return tensor
        return _Kept(torch.ops.torchscan.copy_to_host(tensor), tensor.stride())

    def unpack(self, kept: Tensor | _Kept) -> Tensor:
        """Return the tensor on the device again."""
        if isinstance(kept, Tensor):
            return kept
        tensor: Tensor = torch.ops.torchscan.copy_to_device(kept.tensor, kept.stride)
        return tensor


@torch.library.impl(_library, "copy_to_host", "CompositeExplicitAutograd")
def represent_on_host(tensor: Tensor) -> Tensor:
    """Return a tensor of this shape that takes no memory of the device."""
    return tensor.new_empty(()).expand(tensor.shape)


@torch.library.impl(_library, "copy_to_device", "CompositeExplicitAutograd")
def represent_on_device(tensor: Tensor, stride: list[int]) -> Tensor:
    """Return a tensor with these strides, without values."""
    return tensor.new_empty_strided(tensor.shape, stride)


@torch.library.impl(_library, "update_from_host", "CompositeExplicitAutograd")
def leave_as_it_is(_tensor: Tensor, _updated: Tensor) -> None:
    """Write nothing: parameters have no values."""
