"""Shapes of the tensors that the calls of a step take and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from torchscan.inspecting.call_memory import MemoryWatch, Shapes
from torchscan.recording.bookkeeping.tensor_layouts import shape_of
from torchscan.recording.module_calls import Call

#: shapes as torch has them: it takes time to convert them, which waits until the step is over
_Sizes = tuple[tuple[int, ...], ...]
_NO_SIZES: tuple[_Sizes, _Sizes, _Sizes, _Sizes] = ((), (), (), ())


class ShapesOfCall(NamedTuple):
    """The shapes of one call, under the names of the fields of ``InspectedCall``."""

    input_shapes: Shapes
    grad_in_shapes: Shapes
    output_shapes: Shapes
    grad_out_shapes: Shapes


class CallShapes:
    """The shapes of the calls of one step."""

    def __init__(self, memory: MemoryWatch) -> None:
        self._memory = memory
        #: by index of a call: shapes of inputs, of those that a gradient is computed for, and the
        #: same of outputs
        self._sizes: dict[int, tuple[_Sizes, _Sizes, _Sizes, _Sizes]] = {}

    def note_end(self, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Note what a call that has ended was given and has returned."""
        given, returned = sizes_of(inputs), sizes_of(outputs)
        differentiable = _select_differentiable(inputs, given)
        sizes = given, differentiable, returned, _select_differentiable(outputs, returned)
        self._sizes[call.index] = self._memory.share_shapes(call.index, sizes)

    def of_inputs(self, index: int) -> Shapes:
        """Return the shapes of a call's inputs; none if its end was not noticed."""
        inputs, *_ = self._sizes.get(index, _NO_SIZES)
        return _to_shapes(inputs)

    def of_call(self, index: int, *, with_gradients: bool) -> ShapesOfCall:
        """Return the shapes of a call, and of its gradients if any were computed."""
        sizes = self._sizes.get(index, _NO_SIZES)
        shapes = ShapesOfCall(*map(_to_shapes, sizes))
        if with_gradients:
            return shapes
        return shapes._replace(grad_in_shapes=(), grad_out_shapes=())


def sizes_of(tensors: Sequence[Tensor]) -> _Sizes:
    """Return the shapes of tensors, as torch has them."""
    return tuple([shape_of(each) if each.is_nested else each.shape for each in tensors])


def _select_differentiable(tensors: Sequence[Tensor], sizes: _Sizes) -> _Sizes:
    flags = [tensor.requires_grad for tensor in tensors]
    if False not in flags:
        return sizes
    pairs = zip(sizes, tensors, strict=True)
    return tuple([size for size, tensor in pairs if tensor.requires_grad])


def _to_shapes(sizes: _Sizes) -> Shapes:
    return tuple(map(tuple, sizes))
