"""Number formats of the products of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature

#: the number format that products of a call are computed in
Format = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4"]

#: convolutions and recurrent layers are cuDNN's, for which torch has switches of their own
Products = Literal["convolutions", "recurrent", "products"]

_FORMATS: dict[torch.dtype, Format] = {
    torch.float64: "fp64",
    torch.complex128: "fp64",
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.int8: "int8",
    torch.uint8: "int8",
    torch.qint8: "int8",
    torch.quint8: "int8",
}
#: products of linear layers, for which 8-bit formats exist
_OF_LINEAR_LAYERS = ("aten.addmm", "aten.mm", "aten.linear")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The arithmetic of a pass, as far as the types of its tensors do not determine it."""

    #: the products that use matrix units for single precision, with shortened operands
    tf32: frozenset[Products] = frozenset()
    #: True if linear layers in 16 bits have operands in 8
    fp8: bool = False


def format_of(signature: OpSignature, cost: OpCost, numbers: Numbers) -> Format:
    """Return the format that a call computes in, given by its first operand that is a number."""
    dtypes = [spec.dtype for spec in (*signature.inputs, *signature.outputs)]
    known = [each for each in dtypes if each in _FORMATS]
    floating = [each for each in known if each.is_floating_point]
    dtype, *_ = (*floating, *known, torch.float32)
    form = _FORMATS[dtype]
    if not cost.macs:
        return form
    if form in ("fp16", "bf16"):
        is_narrowed = numbers.fp8 and signature.operator in _OF_LINEAR_LAYERS
        return "fp8" if is_narrowed else form
    if form == "fp32" and _products_of(signature) in numbers.tf32:
        return "tf32"
    return form


def _products_of(signature: OpSignature) -> Products:
    name = signature.operator
    if "conv" in name:
        return "convolutions"
    if any(each in name for each in ("rnn", "lstm", "gru")):
        return "recurrent"
    return "products"
