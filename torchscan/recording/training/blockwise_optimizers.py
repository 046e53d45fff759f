"""Optimizers of bitsandbytes by name, with 8-bit and paged states.

bitsandbytes need not be installed, and no values are computed: states have the sizes and types of
bitsandbytes, and each update is one operator, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

#: elements that share a scale, and number of elements below which states have 32 bits
_BLOCK, _MIN_SIZE_8_BIT = 256, 4096
#: smallest number of elements whose state is paged
_MIN_PAGED = 100_000

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define(
    "optimizer_update_32bit(str name, Tensor gradient, Tensor(a!) parameter, Tensor(b!) state1, "
    "Tensor(c!)? state2) -> ()"
)
_library.define(
    "optimizer_update_8bit_blockwise(str name, Tensor gradient, Tensor(a!) parameter, "
    "Tensor(b!) state1, Tensor(c!)? state2, Tensor(d!) absmax1, Tensor(e!)? absmax2) -> ()"
)


class _Algorithm(NamedTuple):
    """The name of an update, and its number of states for each element."""

    name: str
    num_states: int


_KINDS = {
    "adam": _Algorithm("adam", 2),
    "adamw": _Algorithm("adam", 2),
    "lamb": _Algorithm("lamb", 2),
    "lion": _Algorithm("lion", 1),
    "sgd": _Algorithm("momentum", 1),
    "rmsprop": _Algorithm("rmsprop", 1),
    "adagrad": _Algorithm("adagrad", 1),
}


#: names of common ones, as bitsandbytes spells them
BLOCKWISE_NAMES = (
    *("Adam8bit", "AdamW8bit", "LAMB", "LAMB8bit", "Lion", "Lion8bit", "SGD8bit"),
    *("RMSprop8bit", "Adagrad8bit", "PagedAdam", "PagedAdam8bit", "PagedAdamW"),
    *("PagedAdamW8bit", "PagedLion", "PagedLion8bit"),
)


class BlockwiseOptimizer(Optimizer):
    """An optimizer of bitsandbytes, with its state and kernels."""

    def __init__(
        self, parameters: Iterable[Tensor], *, kind: str, bits: int = 32, is_paged: bool = False
    ) -> None:
        super().__init__(parameters, {"kind": kind, "bits": bits, "is_paged": is_paged})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update one parameter after the other, each in one kernel."""
        for group in self.param_groups:
            kind = _KINDS[group["kind"]]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, kind, group["bits"])

    def _update(self, parameter: Tensor, kind: _Algorithm, bits: int) -> None:
        has_8_bits = bits == 8 and parameter.numel() >= _MIN_SIZE_8_BIT
        state = self.state[parameter]
        numbers = range(1, kind.num_states + 1)
        if not state:
            dtype = torch.uint8 if has_8_bits else torch.float32
            num_blocks = -(-parameter.numel() // _BLOCK)
            for number in numbers:
                state[f"state{number}"] = torch.zeros_like(parameter, dtype=dtype)
                if has_8_bits:
                    scales = parameter.new_zeros(num_blocks, dtype=torch.float32)
                    state[f"absmax{number}"] = scales
        tensors = [state.get("state1"), state.get("state2")]
        update = torch.ops.torchscan.optimizer_update_32bit
        if has_8_bits:
            tensors += [state.get("absmax1"), state.get("absmax2")]
            update = torch.ops.torchscan.optimizer_update_8bit_blockwise
        update(kind.name, parameter.grad, parameter, *tensors)


def blockwise_optimizer(name: str) -> Callable[[list[Tensor]], Optimizer] | None:
    """Return a function that creates bitsandbytes' optimizer of this name, or None."""
    rest = name.lower().replace("_", "")
    is_paged = rest.startswith("paged")
    rest = rest.removeprefix("paged")
    bits = 8 if rest.endswith("8bit") else 32
    kind = rest.removesuffix("8bit").removesuffix("32bit")
    if kind not in _KINDS:
        return None
    return lambda parameters: BlockwiseOptimizer(
        parameters, kind=kind, bits=bits, is_paged=is_paged
    )


def is_in_pages(optimizer: Optimizer, state: Tensor) -> bool:
    """Return whether a state is in paged memory, which the driver moves between GPU and host."""
    if not isinstance(optimizer, BlockwiseOptimizer):
        return False
    is_paged: Any = optimizer.defaults["is_paged"]
    return bool(is_paged) and state.numel() >= _MIN_PAGED


for _name in ("optimizer_update_32bit", "optimizer_update_8bit_blockwise"):
    _library.impl(_name, lambda *_args: None, "CompositeExplicitAutograd")
