"""Layouts and kinds of tensors, and tensors that have the layout of another one."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from torchscan.recording.undo import run_at_end_of_pass
from torchscan.torch_versions import (
    is_fake_type,
    making_ordinary_tensors,
    without_modes,
    without_torch_function,
)
from torchscan.trace.events import TensorSpec

#: integers and booleans up to this many elements keep their values in a pass on shapes alone
CONCRETE_INTEGERS = 2**22
#: floating-point tensors made from known values keep theirs up to this many elements
CONCRETE_FLOATS = 2**18
#: … or none do, not even those without elements
NO_FLOATS = -1

#: of no subclass
PLAIN_TYPES = frozenset({Tensor, nn.Parameter, nn.Buffer})


def are_plain(types: Collection[type]) -> bool:
    """Return whether tensors of these types wrap no other tensors. They may have no data."""
    if PLAIN_TYPES.issuperset(types):
        return True
    return all(each in PLAIN_TYPES or is_fake_type(each) for each in types)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape, or of a nested tensor that of all elements in a row.

    The shape of a nested tensor has symbols in it, or there is none.
    """
    if tensor.is_nested:
        return (tensor.numel(),)
    return tuple(tensor.shape)


def sample_shapes(tensor: Tensor) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of the samples of a nested tensor, or None if it is dense or jagged.

    Operators whose cost depends on the length of each sample do not see jagged tensors: torch
    converts these to strided nested ones (attention on a CPU), to padded ones or to single samples
    (products).
    """
    if not tensor.is_nested or tensor.layout is not torch.strided:
        return None
    with without_modes():
        shapes = tensor._nested_tensor_size()
    if not shapes.dim():  # there are no samples
        return ()
    return tuple(map(tuple, shapes.tolist()))


def has_strides(tensor: Tensor) -> bool:
    """Return whether a tensor is dense and strided."""
    return tensor.layout is torch.strided and not tensor.is_nested


def kind_of(tensor: Tensor) -> str:
    """Return how its elements are stored, in a word."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return str(tensor.layout).removeprefix("torch.")


def _span_of(tensor: Tensor) -> int:
    """Return the number of elements between the first and the last one, both included."""
    if not tensor.numel():
        return 0
    last = 0
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * step
    return last + 1


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has dense memory with strides, and is not of a subclass."""
    is_dense = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return is_dense and type(tensor) in (Tensor, nn.Parameter)


def same_view(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """Return the view of another storage that ``tensor`` is of its own."""
    view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def meta_copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a meta tensor like this one, or of another type, which belongs to no graph."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device="meta"
    )


def meta_tensor(spec: TensorSpec) -> Tensor:
    """Return a meta tensor of this spec."""
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")


def make_proxy(tensor: Tensor, spec: TensorSpec, storage: torch.UntypedStorage | None) -> Tensor:
    """Return a proxy tensor for ``tensor``: the same view of another storage, or a meta tensor.

    Views of the model's tensors must be ordinary tensors, not those of inference mode.
    """
    with making_ordinary_tensors():
        if storage is None:
            return meta_tensor(spec)
        return same_view(tensor, storage)


def show_shape(tensor: Tensor, proxy: Tensor) -> None:
    """Give the model's tensor the shape that an operator gave its proxy, by ``resize_`` or so.

    If the proxy has no values, the tensor's memory is for its size alone: it is never touched.
    """
    if tensor.device == proxy.device:
        memory = proxy.untyped_storage()
        offset = proxy.storage_offset()
    else:
        size = _span_of(proxy) * proxy.element_size()
        memory = torch.UntypedStorage(size, device=tensor.device)
        offset = 0

    data = tensor.data

    def put_back() -> None:
        with without_torch_function():
            tensor.data = data

    run_at_end_of_pass(put_back)
    with torch.no_grad():
        tensor.set_(memory, offset, proxy.shape, proxy.stride())
