"""Recording the backward pass: of what gradients are taken, and how the shapes of attention's are found.

Autograd runs above the operators, on the tensors that the model hands over. A parameter with data and a result without would
not go together there, so parameters are replaced by twins without data before autograd sees them. Gradients are asked for,
never accumulated: ``.grad`` stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from torchscan.errors import InputError
from torchscan.trace.containers import tensors_in
from torchscan.trace.tensors import is_plain

#: True: a gradient for every output; a function: the loss that it makes of the output
Backward = bool | Callable[[Any], Tensor]

_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class NothingToDifferentiateError(InputError):
    """No output has a gradient."""


class Twins(TorchFunctionMode):
    """While entered, functions get a tensor's twin in its place."""

    def __init__(self, originals: Sequence[Tensor], enter: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self._twins: dict[int, Tensor] = {}
        for original in originals:
            if id(original) not in self._twins:
                twin = torch.empty_strided(
                    original.shape, original.stride(), dtype=original.dtype, device="meta", requires_grad=True
                )
                self._twins[id(original)] = twin
                enter(twin, original)

    def of(self, tensor: Tensor) -> Tensor:
        """The twin of a tensor, or the tensor itself."""
        return self._twins.get(id(tensor), tensor)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function with twins."""
        return func(*self._swap(args), **{name: self._swap(value) for name, value in (kwargs or {}).items()})

    def _swap(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.of(value)
        if type(value) in (list, tuple):
            return type(value)(self._swap(item) for item in value)
        return value


def needs_twin(tensor: Tensor) -> bool:
    """Whether gradients are taken of it and it has data."""
    return tensor.requires_grad and is_plain(tensor) and not tensor.is_meta


@contextlib.contextmanager
def attention_as_one() -> Iterator[None]:
    """With gradients, torch takes attention apart where there is no data; let it be the kernel that there is with data."""
    original = F.scaled_dot_product_attention

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        options = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
        if not _runs_in_one(query, key, value, **options):
            return original(query, key, value, *args, **kwargs)
        rest = {name: options.get(name) for name in ("attn_mask", "scale")}
        return _flash_attention(query, key, value, 0.0, options.get("is_causal", False), **rest)[0]

    F.scaled_dot_product_attention = attention  # put back below
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original


def _runs_in_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    **_: Any,
) -> bool:
    """What the fused kernel of the CPU takes; only for tensors without data, which nobody but a pass on shapes has."""
    alike = query.dim() == key.dim() == value.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1]
    alike = alike and key.shape == value.shape and query.shape[0] == key.shape[0] and 0 not in (*query.shape, *key.shape)
    heads = alike and (query.shape[1] % key.shape[1] == 0 if enable_gqa else query.shape[1] == key.shape[1])
    plain = not dropout_p and (attn_mask is None or not attn_mask.requires_grad)
    return query.is_meta and heads and plain and query.stride(-1) == 1


def differentiable_outputs(result: Any, backward: Backward) -> list[Tensor]:
    """What the backward pass starts from."""
    if not isinstance(backward, bool):
        result = backward(result)
    outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    if not outputs:
        raise NothingToDifferentiateError("backward: no output depends on a parameter or an input that requires a gradient")
    return outputs


def gradients_of_ones(outputs: Sequence[Tensor]) -> list[Tensor]:
    """A gradient for each output; no part of the pass."""
    with _disable_current_modes(), torch.no_grad():
        return [torch.ones_like(output) for output in outputs]
