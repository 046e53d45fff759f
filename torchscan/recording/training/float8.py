"""Linear layers that train in 8 bits, with the operators that torchao's ``Float8Linear`` runs.

The operands of each matrix product are cast: the largest absolute value of a tensor, or of each of
its rows, gives a scale, and the scaled and saturated values are stored in 8 bits. The backward pass
keeps the input and the weight in 16 bits, and casts them again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, InputError
from torchscan.recording.execution.block_scales import MX_BLOCK
from torchscan.recording.training.float8_casts import CASTS, Quantized
from torchscan.recording.training.float8_products import multiply_blocks, multiply_in_8_bits
from torchscan.torch_versions import HAS_SCALES_IN_8_BITS, import_compiler, take_wide_gradients

#: the recipes of torchao, by their names there; "mx": blocks of 32 with scales of 8 bits
Float8 = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp", "mx"]
#: sizes of weights must be multiples of this
_ALIGNED = 16
#: the attribute of an input that is in 8 bits already, as tensor parallelism gathers it
HANDED_OVER = "_torchscan_in_8_bits"


def required_multiple(recipe: Float8) -> int:
    """Return what the sizes of an 8-bit product are multiples of."""
    return MX_BLOCK if recipe == "mx" else _ALIGNED


def convert_to_float8(
    module: nn.Module,
    recipe: Float8,
    *,
    skip: Collection[str] = ("lm_head",),
    all_gather: bool = False,
) -> list[Float8Linear]:
    """Replace linear layers of a copy of a model in place, and return the new layers.

    A layer stays as it is if its path contains a name of ``skip``, or if a size of its weight is
    not a multiple of 16 (for "mx": 32), which 8-bit products need. With ``all_gather``, FSDP
    gathers their weights in 8 bits.
    """
    if recipe == "mx" and not HAS_SCALES_IN_8_BITS:
        raise InputError(
            Argument("float8"),
            f" is 'mx', and torch {torch.__version__} has no matrix products with MX scales: use "
            "torch 2.8 or later, or give another recipe",
        )
    # An import within a pass would keep the frames of the pass alive, and their tensors.
    import_compiler()
    multiple = required_multiple(recipe)
    converted: dict[int, Float8Linear] = {}
    for parent, name, layer in _linear_layers(module, skip, multiple):
        if id(layer) not in converted:
            converted[id(layer)] = Float8Linear(layer, recipe, is_gathered=all_gather)
        setattr(parent, name, converted[id(layer)])
    if not converted:
        raise InputError(
            Argument("float8"),
            f" is {recipe!r}, and no layer can be converted: give a model with linear layers "
            f"(torch.nn.Linear) whose sizes are multiples of {multiple}",
        )
    return list(converted.values())


def _linear_layers(
    module: nn.Module, skipped: Collection[str], multiple: int
) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Return the layers to convert, with their parents and their names in these."""
    found = []
    for path, parent in module.named_modules():
        for name, child in parent._modules.items():
            is_skipped = any(each in f"{path}.{name}" for each in skipped)
            # a subclass may compute something else
            if type(child) is not nn.Linear or is_skipped:
                continue
            if not any(size % multiple for size in child.weight.shape):
                found.append((parent, name, child))
    return found


class Float8Linear(nn.Linear):
    """A linear layer whose three matrix products run in 8 bits."""

    def __init__(self, base: nn.Linear, recipe: Float8, *, is_gathered: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features = base.in_features
        self.out_features = base.out_features
        self.weight = base.weight
        self.bias = base.bias
        self.recipe = recipe
        #: True if FSDP all-gathers the weight in 8 bits
        self.is_gathered = is_gathered
        #: the weight and its scale as they were all-gathered in 8 bits, or None
        self.gathered: Quantized | None = None
        #: the gradient of the output as it was all-gathered in 8 bits, or None
        self.gradient: Quantized | None = None
        self.train(base.training)

    def forward(self, states: Tensor) -> Tensor:
        """Return ``states @ weight.T + bias``."""
        handed_over: Quantized | None = getattr(states, HANDED_OVER, None)
        if torch.is_autocast_enabled():
            states = states.to(torch.get_autocast_dtype("cuda"))
        rows = states.reshape(-1, states.shape[-1])
        self._require_aligned(rows.shape[0])
        if self.recipe == "mx":
            product = multiply_blocks(rows, self.weight.t())
        else:
            casts = CASTS[self.recipe]
            weight = self.weight.t() if self.gathered is None else self.weight
            if self.gathered is not None:
                take_wide_gradients(self.weight, rows.dtype)
            product = multiply_in_8_bits(rows, weight, casts, self.gathered, self, handed_over)
        output: Tensor = product.reshape(*states.shape[:-1], product.shape[-1])
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def _require_aligned(self, num_rows: int) -> None:
        """Raise unless the gradient of the weight, a sum over rows, can be computed in 8 bits."""
        multiple = required_multiple(self.recipe)
        is_wide = self.recipe == "rowwise_with_gw_hp" or not self.weight.requires_grad
        if num_rows % multiple and not is_wide:
            raise ValueError(
                f"8-bit products need a multiple of {multiple} rows (sequences × tokens), and "
                f"there are {num_rows}: change the batch size or the length"
            )
