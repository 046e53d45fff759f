"""Low-rank adapters (LoRA) on the frozen linear layers of a model, added in place."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, InputError
from torchscan.notes import Note

ADAPTERS_AS_IN_PEFT = Note.of("adapters-as-in-peft")

#: a common rate of dropout; all rates between 0 and 1 cost the same
_DROPPED = 0.05
_SCALE = 2.0


class Adapted(nn.Module):
    """A frozen linear layer, and two small ones beside it that are trained, as peft computes them.

    ``y = W x + s · B A dropout(x)``. Adapters are in 32 bits even if the layer is in 16 bits: their
    input is converted, and so is the sum.
    """

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.dropout = nn.Dropout(_DROPPED)
        self.into = nn.Linear(base.in_features, rank, bias=False, device="meta")
        self.out_of = nn.Linear(rank, base.out_features, bias=False, device="meta")
        for each in (self.into, self.out_of):
            # as the base has it: without data, or a proxy tensor
            made = base.weight.detach().new_empty(each.weight.shape, dtype=torch.float32)
            each.weight = nn.Parameter(made)

    @property
    def weight(self) -> Tensor:
        """The layer's weight, which some modules read themselves."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias."""
        return self.base.bias

    def forward(self, given: Tensor) -> Tensor:
        """Return the sum of layer and adapter, in the type of the layer's result."""
        result: Tensor = self.base(given)
        widened = given.to(self.into.weight.dtype)
        adapted: Tensor = result + self.out_of(self.into(self.dropout(widened))) * _SCALE
        return adapted.to(result.dtype)


def adapt(module: nn.Module, layers: Iterable[nn.Module], rank: int) -> None:
    """Freeze the model, and add adapters to all linear layers inside, or among, its layers."""
    module.requires_grad_(False)
    inside = {
        id(each) for layer in layers for each in layer.modules() if isinstance(each, nn.Linear)
    }
    if not inside:
        raise InputError(
            "the layers of this model have no linear layer (torch.nn.Linear) to put adapters "
            "beside: leave out ",
            Argument("lora"),
        )
    adapted: dict[int, Adapted] = {}
    for parent in list(module.modules()):
        for name, each in list(parent.named_children()):
            if isinstance(each, nn.Linear) and id(each) in inside:
                setattr(parent, name, adapted.setdefault(id(each), Adapted(each, rank)))


def adapter_parts(module: Any) -> tuple[Any, Any, Any, Any] | None:
    """Return the linear layer, the dropout and both matrices of one plain adapter, or None."""
    if isinstance(module, Adapted):
        return module.base, module.dropout, module.into, module.out_of
    names = list(getattr(module, "lora_A", ()))
    is_linear = hasattr(getattr(module, "base_layer", None), "out_features")
    if len(names) != 1 or not is_linear or getattr(module, "lora_variant", None):
        return None
    name = names[0]
    pair = module.lora_A[name], module.lora_B[name]
    return module.base_layer, module.lora_dropout[name], *pair


def is_adapter_config(value: object) -> bool:
    """Return whether a value is a ``peft.LoraConfig``."""
    peft: Any = sys.modules.get("peft")
    return peft is not None and isinstance(value, peft.LoraConfig)


def inject_adapters(module: nn.Module, config: Any) -> None:
    """Put peft's own adapters into a copy of a model without data, and freeze the rest.

    They have 32 bits where weights have 16, as ``peft.get_peft_model`` makes them.
    """
    import peft

    name = "default"
    likeness = next(module.parameters())
    known = {id(each) for each in module.parameters()}
    try:
        # The config is copied, because peft completes it.
        with torch.random.fork_rng(devices=()):  # adapters of embeddings draw random numbers
            peft.inject_adapter_in_model(
                copy.deepcopy(config), module, name, low_cpu_mem_usage=True
            )
    except (ValueError, TypeError, NotImplementedError) as error:
        problem = str(error).partition("\n")[0]
        raise InputError(
            Argument("lora"), f" does not suit the model ({problem}): give another peft.LoraConfig"
        ) from error
    for path, owner in list(module.named_modules()):
        for key, tensor in list(owner._parameters.items()):
            if tensor is None or id(tensor) in known:
                continue
            is_adapter = ".lora_" in f".{path}.{key}"
            dtype = torch.float32 if is_adapter else tensor.dtype
            made = likeness.detach().new_empty(tensor.shape, dtype=dtype)
            owner._parameters[key] = nn.Parameter(made, tensor.requires_grad)
