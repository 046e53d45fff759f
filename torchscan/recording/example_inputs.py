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
from torchscan.recording.bookkeeping.tensors import CONCRETE_INTEGERS

Shape = Sequence[int]
Shapes = Shape | Sequence[Shape] | Mapping[str, Shape]
DTypes = torch.dtype | Sequence[torch.dtype | None] | Mapping[str, torch.dtype | None]

_HOW = "give one shape without the batch dimension, such as (3, 224, 224), a list of them, one per input, or a dict by name"


def example_inputs(
    module: nn.Module,
    input_shape: Shapes,
    dtype: DTypes | None,
    batch_size: int,
    device: torch.device,
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and keyword arguments.

    Random normal values for floating-point inputs, zeros for integers (a valid index anywhere), True for booleans.
    """
    names = list(input_shape) if isinstance(input_shape, Mapping) else None
    shapes = _as_shapes(input_shape)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError.of_value("batch_size", batch_size, "give a positive integer")
    dtypes = _as_dtypes(_by_position(dtype, names), len(shapes), module)
    sizes = ((batch_size, *shape) for shape in shapes)
    tensors = tuple(
        _make_example(size, kind, device) for size, kind in zip(sizes, dtypes, strict=True)
    )
    return (tensors, {}) if names is None else ((), dict(zip(names, tensors, strict=True)))


def floating_dtype_of(module: nn.Module) -> torch.dtype:
    """The dtype of the first floating-point or complex parameter or buffer, which is the one that inputs should have."""
    for tensor in tensors_of(module):
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.dtype
    return torch.get_default_dtype()


def _make_example(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    try:
        return _example(size, dtype, device)
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:
        message = str(error).partition("\n")[0][:200]
        raise InputError(
            f"an input of {dtype} {str(size)[:60]} cannot be created: {message}"
        ) from error


def _example(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    if is_integer and (device.type != "meta" or math.prod(size) <= CONCRETE_INTEGERS):
        known = (
            torch.device("cpu") if device.type == "meta" else device
        )  # integers keep their values in every pass
        return torch.full(size, dtype == torch.bool, dtype=dtype, device=known)
    if device.type == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    drawn_as = torch.complex64 if dtype.is_complex else torch.float32
    generator = torch.Generator("cpu").manual_seed(
        0
    )  # of our own: the user's random state is not ours to advance
    return torch.randn(size, dtype=drawn_as, generator=generator, device="cpu").to(device, dtype)


def _as_shapes(input_shape: Shapes) -> list[tuple[int, ...]]:
    _refuse_tensors(input_shape)
    single = _as_shape(input_shape)
    if single is not None:
        return [single]
    several = input_shape.values() if isinstance(input_shape, Mapping) else input_shape
    shapes = (
        [_as_shape(each) for each in several]
        if isinstance(input_shape, list | tuple | Mapping)
        else [None]
    )
    if not all(shape is not None for shape in shapes):
        raise InputError.of_value("input_shape", input_shape, _HOW)
    return [shape for shape in shapes if shape is not None]


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
    """A tensor or array that is not a single number, however deep it is in lists; else None."""
    if isinstance(value, list | tuple | Mapping):
        inner = map(_data_in, value.values() if isinstance(value, Mapping) else value)
        return next((each for each in inner if each is not None), None)
    return value if getattr(value, "ndim", 0) else None


def _as_shape(value: Any) -> tuple[int, ...] | None:
    """A tuple or list of whole numbers (NumPy's too) that are not negative; else None."""
    if not isinstance(value, list | tuple) or (isinstance(value, list) and not value):
        return None
    if any(isinstance(size, bool) or not hasattr(size, "__index__") for size in value):
        return None
    try:
        sizes = tuple(operator.index(size) for size in value)
    except TypeError:  # a tensor or array of a fraction has an index, which fails
        return None
    return sizes if all(size >= 0 for size in sizes) else None


def _by_position(
    dtype: DTypes | None, names: list[str] | None
) -> torch.dtype | Sequence[torch.dtype | None] | None:
    """Return types in the order of the inputs; None means the model's type."""
    if not isinstance(dtype, Mapping):
        return dtype
    unknown = [name for name in dtype if name not in (names or ())]
    if unknown:
        raise InputError(
            Argument("dtype"),
            f" names {unknown[0]!r}, which is not an input: choose from "
            f"{', '.join(names or ()) or 'inputs that input_shape names'}",
        )
    return [dtype.get(name) for name in names or ()]


def _as_dtypes(
    dtype: torch.dtype | Sequence[torch.dtype | None] | None, inputs: int, module: nn.Module
) -> list[torch.dtype]:
    if dtype is None:
        return [floating_dtype_of(module)] * inputs
    given: list[Any] = list(dtype) if isinstance(dtype, list | tuple) else [dtype] * inputs
    dtypes = [floating_dtype_of(module) if kind is None else kind for kind in given]
    if not all(isinstance(kind, torch.dtype) for kind in dtypes):
        wrong = next(kind for kind in dtypes if not isinstance(kind, torch.dtype))
        if (isinstance(wrong, int) and not isinstance(wrong, bool)) or _as_shape(wrong) is not None:
            raise InputError.of_value(
                "dtype", dtype, "give the shapes of several inputs as one list, [(10,), (20,)]"
            )
        name = wrong.removeprefix("torch.") if isinstance(wrong, str) else ""
        how = (
            f"give torch.{name}"
            if isinstance(getattr(torch, name, None), torch.dtype)
            else "give a torch.dtype, such as torch.long"
        )
        raise InputError.of_value("dtype", dtype, f"{how}, or one per input")
    if len(dtypes) != inputs:
        raise InputError(
            Argument("dtype"),
            f" has {len(dtypes)} types for {inputs} inputs: give one type, or one per input",
        )
    return dtypes
