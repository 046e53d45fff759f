"""Launches of Triton kernels, as a pass records them, without the kernels."""

from __future__ import annotations

from typing import Any

from torchscan.trace.kernel_operators import ONLY_WRITTEN, kernel_operator
from torchscan.types import OpSignature, TensorSpec


def launch(name: str, written: dict[str, TensorSpec], **read: Any) -> OpSignature:
    """Return the launch of a kernel that reads some arguments and writes others."""
    kinds = {bool: "bool", int: "int", str: "str", TensorSpec: "Tensor"}
    parameters = [f"{kinds[type(value)]} {each}" for each, value in read.items()]
    parameters += [f"{ONLY_WRITTEN}Tensor(a{i}!) {each}" for i, each in enumerate(written)]
    operator = kernel_operator(name, ", ".join(parameters))
    outputs = tuple(written.values())
    args, kwargs = tuple(read.values()), dict(written)
    return OpSignature(op=operator, args=args, kwargs=kwargs, outputs=outputs, is_view=False)
