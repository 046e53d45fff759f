"""Shapes and dtypes -> the arguments of a forward pass."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError, TorchName
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.bookkeeping.tensor_layouts import CONCRETE_INTEGERS

Shape = Sequence[int]
Shapes = Shape | Sequence[Shape] | Mapping[str, Shape]
DTypes = torch.dtype | Sequence[torch.dtype | None] | Mapping[str, torch.dtype | None]

_HOW = (
    "give one shape without the batch dimension, such as (3, 224, 224), a list of them, one per "
    "input, or a dict by name"
)


def example_inputs(
    module: nn.Module,
    input_shape: Shapes,
    dtype: DTypes | None,
    batch_size: int,
    device: torch.device,
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return positional and keyword arguments of the given shapes.

    They have random normal values for floating-point inputs, zeros for integers (a valid index
    anywhere), True for booleans.
    """
    names = list(input_shape) if isinstance(input_shape, Mapping) else None
    shapes = _as_shapes(input_shape)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError.of_value("batch_size", batch_size, "give a positive integer")
    if dtype is None:
        dtypes = [floating_dtype_of(module)] * len(shapes)
    else:
        dtypes = _as_dtypes(_by_position(dtype, names), len(shapes), module)
    tensors = [
        _make_example((batch_size, *shape), kind, device)
        for shape, kind in zip(shapes, dtypes, strict=True)
    ]
    if names is None:
        return tuple(tensors), {}
    return (), dict(zip(names, tensors, strict=True))


def floating_dtype_of(module: nn.Module) -> torch.dtype:
    """Return the type of the first floating-point or complex parameter or buffer.

    Inputs should have it.
    """
    for tensor in tensors_of(module):
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.dtype
    return torch.get_default_dtype()


def _make_example(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    try:
        if is_integer and (device.type != "meta" or math.prod(size) <= CONCRETE_INTEGERS):
            # Integers keep their values in every pass.
            known = torch.device("cpu") if device.type == "meta" else device
            return torch.full(size, dtype == torch.bool, dtype=dtype, device=known)
        if device.type == "meta":
            return torch.empty(size, dtype=dtype, device=device)
        drawn_as = torch.complex64 if dtype.is_complex else torch.float32
        # A separate generator: a pass must not advance the user's random state.
        random = torch.Generator("cpu").manual_seed(0)
        return torch.randn(size, dtype=drawn_as, generator=random, device="cpu").to(device, dtype)
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:
        message = str(error).partition("\n")[0][:200]
        raise InputError(
            f"an input of {dtype} {str(size)[:60]} cannot be created: {message}"
        ) from error


def _as_shapes(input_shape: Shapes) -> list[tuple[int, ...]]:
    single = _as_shape(input_shape)
    if single is not None:
        return [single]
    _refuse_tensors(input_shape)
    if not isinstance(input_shape, list | tuple | Mapping):
        raise InputError.of_value("input_shape", input_shape, _HOW)
    several = input_shape.values() if isinstance(input_shape, Mapping) else input_shape
    shapes = []
    for each in several:
        shape = _as_shape(each)
        if shape is None:
            raise InputError.of_value("input_shape", input_shape, _HOW)
        shapes.append(shape)
    return shapes


def _refuse_tensors(input_shape: Any) -> None:
    data = _data_in(input_shape)
    if data is not None:
        what, x = "an array", TorchName("torch.from_numpy(x)")
        if isinstance(data, Tensor):
            what, x = "a tensor", TorchName("x")
        tensors = Give("args", (x,))
        if isinstance(input_shape, Mapping):
            tensors = Give("kwargs", {"x": x})
        raise InputError(
            Argument("input_shape"),
            f" is for shapes, such as (3, 224, 224), and has {what}: give ",
            tensors,
        )


def _data_in(value: Any) -> Any:
    """Return the first tensor or array in nested lists that is not a single number, or None."""
    if isinstance(value, list | tuple | Mapping):
        items = value.values() if isinstance(value, Mapping) else value
        for item in items:
            data = _data_in(item)
            if data is not None:
                return data
        return None
    return value if getattr(value, "ndim", 0) else None


def _as_shape(value: Any) -> tuple[int, ...] | None:
    """Return a tuple or list of integers (also NumPy's) that are not negative; else None."""
    if not isinstance(value, list | tuple) or (isinstance(value, list) and not value):
        return None
    for size in value:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            return None
        if getattr(size, "ndim", False):  # a tensor or array, not a number
            return None
    try:
        sizes = tuple(operator.index(size) for size in value)
    except TypeError:  # a tensor or array of a fraction has an index, which fails
        return None
    if any(size < 0 for size in sizes):
        return None
    return sizes


def _by_position(
    dtype: DTypes, names: list[str] | None
) -> torch.dtype | Sequence[torch.dtype | None]:
    """Return types in the order of the inputs; None means the model's type."""
    if not isinstance(dtype, Mapping):
        return dtype
    known = names or []
    for name in dtype:
        if name not in known:
            choices = ", ".join(known) or "inputs that input_shape names"
            raise InputError(
                Argument("dtype"), f" names {name!r}, which is not an input: choose from {choices}"
            )
    return [dtype.get(name) for name in known]


def _as_dtypes(
    dtype: torch.dtype | Sequence[torch.dtype | None], inputs: int, module: nn.Module
) -> list[torch.dtype]:
    given: list[Any] = list(dtype) if isinstance(dtype, list | tuple) else [dtype] * inputs
    dtypes: list[torch.dtype] = []
    for kind in given:
        if kind is None:
            dtypes.append(floating_dtype_of(module))
        elif isinstance(kind, torch.dtype):
            dtypes.append(kind)
        else:
            raise InputError.of_value("dtype", dtype, _advise_dtype(kind))
    if len(dtypes) != inputs:
        raise InputError(
            Argument("dtype"),
            f" has {len(dtypes)} types for {inputs} inputs: give one type, or one per input",
        )
    return dtypes


def _advise_dtype(wrong: object) -> str:
    """Return what to give in place of a value that is not a type."""
    is_integer = isinstance(wrong, int) and not isinstance(wrong, bool)
    if is_integer or _as_shape(wrong) is not None:
        return "give the shapes of several inputs as one list, [(10,), (20,)]"
    name = wrong.removeprefix("torch.") if isinstance(wrong, str) else ""
    if isinstance(getattr(torch, name, None), torch.dtype):
        return f"give torch.{name}, or one per input"
    return "give a torch.dtype, such as torch.long, or one per input"
