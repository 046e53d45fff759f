"""Frozen linear layers in 4 or 8 bits that a gradient passes through (QLoRA), without data.

Each layer runs the same operators as the layer of its library in a training step, so temporaries
and tensors saved for the backward pass are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.training.quantized_products import (
    multiply_8_bits,
    multiply_dequantized,
    multiply_fused,
)

#: formats of bitsandbytes, for which peft prepares the rest of the model
PREPARED = ("nf4", "nf4-dq", "int8")
#: bitsandbytes' formats, and those of Triton kernels for GPTQ and AWQ; "dq" quantizes scales again
FrozenFormat = Literal["nf4", "nf4-dq", "int8", "gptq", "awq"]

#: weights that share a scale in bitsandbytes, and scales that share one of their own
_BLOCK, _BLOCK_OF_SCALES = 64, 256
#: weights that share a scale in GPTQ and AWQ
_GROUP = 128
#: values of 4 bits in a number of 32
_PACKED = 8
#: values of the types of 4 and 8 bits, which each layer has a table of
_CODES_4_BIT, _CODES_8_BIT = 16, 256


class QuantizedLinear(nn.Module):
    """A frozen linear layer whose weight is packed."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.bias = base.bias

    def dequantize(self) -> Tensor:
        """Return the weight as numbers that products can be computed with."""
        raise NotImplementedError

    def pack(self, base: nn.Linear, size: Sequence[int], dtype: torch.dtype) -> None:
        """Register the packed weight, a frozen parameter."""
        packed = base.weight.detach().new_empty(size, dtype=dtype)
        self.weight = nn.Parameter(packed, requires_grad=False)

    def keep(self, base: nn.Linear, **tensors: tuple[Sequence[int], torch.dtype]) -> None:
        """Register what the kernels need beside the weight, by shape and type."""
        for name, (shape, dtype) in tensors.items():
            self.register_buffer(name, base.weight.detach().new_empty(shape, dtype=dtype))


class NF4Linear(QuantizedLinear):
    """Linear layer of bitsandbytes in 4 bits: dequantized in the forward and backward pass."""

    def __init__(self, base: nn.Linear, *, quantizes_scales: bool) -> None:
        super().__init__(base)
        is_half = base.weight.dtype in (torch.float16, torch.bfloat16)
        self.compute_dtype = base.weight.dtype if is_half else torch.bfloat16
        self.quantizes_scales = quantizes_scales
        num_weights = base.weight.numel()
        num_scales = -(-num_weights // _BLOCK)
        scale_dtype = torch.uint8 if quantizes_scales else torch.float32
        self.pack(base, (-(-num_weights // 2), 1), torch.uint8)
        self.keep(base, absmax=([num_scales], scale_dtype), code=([_CODES_4_BIT], torch.float32))
        if quantizes_scales:
            self.keep(
                base,
                absmax_of_scales=([-(-num_scales // _BLOCK_OF_SCALES)], torch.float32),
                code_of_scales=([_CODES_8_BIT], torch.float32),
                offset=([], torch.float32),
            )

    def dequantize(self) -> Tensor:
        """Return the weight in the type of the computation."""
        scales: Any = self.absmax
        if self.quantizes_scales:
            made = (self.absmax, self.absmax_of_scales, self.code_of_scales)
            scales = torch.ops.torchscan.dequantize_blockwise(*made) + self.offset
        return _dequantize(self, [scales, self.code], self.compute_dtype)

    def forward(self, given: Tensor) -> Tensor:
        """Return the product in the type of the input; peft clones it before adding the adapter."""
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        product: Tensor = multiply_dequantized(
            given.to(self.compute_dtype), self.weight, self.dequantize
        )
        product = product if bias is None else product + bias
        return product.to(given.dtype).clone()


class AWQLinear(QuantizedLinear):
    """Linear layer of AWQ kernels: dequantized in the forward and backward pass."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        _keep_groups(self, base)

    def dequantize(self) -> Tensor:
        """Return the weight in the type of its scales."""
        scales: Any = self.scales
        return _dequantize(self, [scales, self.zeros], scales.dtype)

    def forward(self, given: Tensor) -> Tensor:
        """Return the product in the type of the input."""
        scales: Any = self.scales
        product: Tensor = multiply_dequantized(given.to(scales.dtype), self.weight, self.dequantize)
        product = product if self.bias is None else product + self.bias
        return product.to(given.dtype)


class GPTQLinear(QuantizedLinear):
    """Linear layer of Triton's GPTQ kernels, which dequantize inside of products."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        _keep_groups(self, base)
        self.keep(base, group_index=([self.in_features], torch.int32))

    def dequantize(self) -> Tensor:
        """Return the weight in the type of its scales."""
        scales: Any = self.scales
        return _dequantize(self, [scales, self.zeros, self.group_index], scales.dtype)

    def forward(self, given: Tensor) -> Tensor:
        """Return the product in the type of the input."""
        scales: Any = [self.scales, self.zeros, self.group_index]
        product: Tensor = multiply_fused(
            given.to(scales[0].dtype), self.weight, scales, self.out_features
        )
        product = product if self.bias is None else product + self.bias
        return product.to(given.dtype)


class Int8Linear(QuantizedLinear):
    """Linear layer of LLM.int8(): products in 8 bits, the backward pass in the input's type.

    Few input features have outliers, whose product in 16 bits is left out.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.pack(base, (self.out_features, self.in_features), torch.int8)
        self.keep(base, scales=([self.out_features], torch.float32))

    def dequantize(self) -> Tensor:
        """Return the weight in 32 bits."""
        scales: Any = self.scales
        return self.weight.float().mul_(scales.unsqueeze(1).mul(1.0 / 127.0))

    def forward(self, given: Tensor) -> Tensor:
        """Return the product in the type of the input."""
        scales: Any = self.scales
        product: Tensor = multiply_8_bits(given, self.weight, scales)
        return product if self.bias is None else product + self.bias


def quantize_frozen(model: nn.Module, layers: Sequence[nn.Module], kind: FrozenFormat) -> None:
    """Replace the frozen linear layers inside a model's layers by packed layers."""
    inside = {id(each) for layer in layers for each in layer.modules()}
    made: dict[int, QuantizedLinear] = {}
    for parent in list(model.modules()):
        for name, each in list(parent.named_children()):
            is_frozen = type(each) is nn.Linear and not each.weight.requires_grad
            if is_frozen and id(each) in inside:
                if id(each) not in made:
                    made[id(each)] = _FORMATS[kind](each)
                setattr(parent, name, made[id(each)])
    if not made:
        raise InputError(
            Argument("weights"),
            f" is {kind!r}, and no linear layer in the model's layers is frozen: give ",
            Give("lora", 16),
            ", for example",
        )


def prepare_for_training(model: nn.Module) -> None:
    """Convert 16-bit weights that are not packed to 32 bits, as peft does."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.to(torch.float32)


_FORMATS: dict[FrozenFormat, Callable[[Any], QuantizedLinear]] = {
    "nf4": lambda base: NF4Linear(base, quantizes_scales=False),
    "nf4-dq": lambda base: NF4Linear(base, quantizes_scales=True),
    "int8": Int8Linear,
    "gptq": GPTQLinear,
    "awq": AWQLinear,
}


def _keep_groups(layer: QuantizedLinear, base: nn.Linear) -> None:
    """Pack a weight whose groups along the input features have a scale and a zero point."""
    dtype = torch.float16 if base.weight.dtype == torch.float32 else base.weight.dtype
    num_groups = -(-layer.in_features // _GROUP)
    packed_width = -(-layer.out_features // _PACKED)
    layer.pack(base, (-(-layer.in_features // _PACKED), layer.out_features), torch.int32)
    layer.keep(
        base,
        scales=((num_groups, layer.out_features), dtype),
        zeros=((num_groups, packed_width), torch.int32),
    )


def _dequantize(layer: QuantizedLinear, scales: list[Any], dtype: torch.dtype) -> Tensor:
    shape = [layer.out_features, layer.in_features]
    weight: Tensor = torch.ops.torchscan.dequantize_4bit(layer.weight, scales, shape, dtype)
    return weight
