"""Kernels that exist for some devices only.

On meta tensors torch takes attention, dropout and recurrent layers apart into operators that no
fused kernel runs, with score matrices and masks that it never writes. On tensors of a simulated
mesh, which pretend to be on a CPU, it chooses the CPU's kernels. So the call goes to the kernel
that the target device would choose; torch has its gradient too.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchscan.errors import Give, InputError
from torchscan.recording.execution.attention_rules import runs_in_one_kernel
from torchscan.recording.execution.recurrent_kernels import (
    RECURRENT,
    recurrent_on_cpu,
    recurrent_on_cuda,
)
from torchscan.recording.patches import Contexts, replaced
from torchscan.torch_versions import (
    HAS_FUSED_RMS_NORM,
    WRITTEN_IN_PYTHON,
    aten,
    below_autograd,
    has_no_data,
    is_divided_along,
    is_fake_type,
    is_functorch_wrapped,
    scaled_dot_product_attention,
    without_torch_function,
)

#: dimension of a query that has its sequence
_SEQUENCE_DIM = 2
_HALF = (torch.float16, torch.bfloat16)
_RMS_NORM = frozenset({torch.rms_norm, aten.rms_norm, aten.rms_norm.default})
_DROPOUT = frozenset({torch.dropout, aten.dropout, aten.dropout.default})


class Kernels:
    """The kernels of one kind of device, "cpu" or "cuda"."""

    def __init__(self, device_type: str, *, has_flash: bool = True) -> None:
        self._device_type = device_type
        self._has_flash = has_flash

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to call instead of a torch function, usually the function itself."""
        if function is scaled_dot_product_attention:
            return self.attention
        if function in _DROPOUT and self._device_type == "cuda":
            return dropout_on_cuda
        if function in _RMS_NORM and self._device_type == "cuda" and HAS_FUSED_RMS_NORM:
            return rms_norm_on_cuda
        if function in RECURRENT:
            if self._device_type == "cpu":
                return recurrent_on_cpu(function)
            return recurrent_on_cuda(function)
        return function

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Run attention, in one kernel if there is one for these arguments."""
        options = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
        fused = None
        if has_no_data(query):
            if self._device_type == "cpu":
                fused = _fused_on_cpu(query, key, value, **options)
            else:
                fused = _fused_on_cuda(query, key, value, **options, has_flash=self._has_flash)
            if fused is None and self._device_type == "cuda" and not query.is_meta:
                _require_ring_kernel(query)
                return _compute_in_pieces(query, key, value, **options)
        if fused is None:
            return scaled_dot_product_attention(query, key, value, *args, **kwargs)
        return fused


def _fused_on_cpu(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    if not runs_in_one_kernel(query, key, value, **options):
        return None
    mask = _added_to_scores(options.get("attn_mask"), query)
    causal, scale = options.get("is_causal", False), options.get("scale")
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )[0]


def _fused_on_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    has_flash: bool = True,
) -> Any:
    """Return attention in one kernel, or None if there is none for these operands.

    Flash attention takes 16 bits and no mask, the memory-efficient kernel any type and a mask, but
    no grouped queries.
    """
    if not query.dim() == key.dim() == value.dim() == 4 or 0 in (*query.shape, *key.shape):
        return None
    if query.shape[-1] != key.shape[-1]:
        return None
    if has_flash and attn_mask is None and _fits_flash(query, value):
        results = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
        return results[0]

    if enable_gqa and query.shape[1] != key.shape[1]:
        return None
    mask = _added_to_scores(attn_mask, query)
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    needs_gradient = any(each.requires_grad for each in (query, key, value))
    for_gradient = torch.is_grad_enabled() and needs_gradient
    results = aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, for_gradient, dropout_p, is_causal, scale=scale
    )
    return results[0]


def _fits_flash(query: Tensor, value: Tensor) -> bool:
    width = query.shape[-1]
    return query.dtype in _HALF and width == value.shape[-1] <= 256 and width % 8 == 0


def _require_ring_kernel(query: Tensor) -> None:
    """Raise an InputError if sequences in 32 bits are divided among ranks.

    torch's ring attention consists of fused kernels, and those of 32 bits take no grouped queries.
    """
    if query.dtype == torch.float32 and is_divided_along(query, _SEQUENCE_DIM):
        raise InputError(
            "attention with grouped queries is in float32 over sharded sequences (cp), and torch "
            "has a kernel for 16 bits only: give ",
            Give("precision", "bf16-mixed"),
            ", or convert the model to bfloat16",
        )


def _compute_in_pieces(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """Return attention made of products and a softmax.

    torch itself might choose a fused kernel of the CPU.
    """
    mask = _added_to_scores(attn_mask, query)
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, **options
    )[0]


def dropout_on_cuda(input: Tensor, p: float, train: bool) -> Tensor:  # noqa: A002 - torch's names
    """Run dropout in one kernel, which keeps a byte per element, unless all is kept or dropped."""
    is_fused = has_no_data(input) and train and 0 < p < 1 and input.numel() > 0
    if not is_fused:
        return torch.dropout(input, p, train)
    dropped: Tensor = aten.native_dropout(input, p, True)[0]
    return dropped


def rms_norm_on_cuda(
    input: Tensor,  # noqa: A002 - torch's names
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Return the norm of one kernel, where torch has pieces for tensors that are on no card."""
    is_followed = (input.is_meta or is_fake_type(type(input))) and not is_functorch_wrapped(input)
    takes = not input.is_complex() and (weight is None or weight.dtype is input.dtype)
    if not is_followed or not takes:
        return torch.rms_norm(input, normalized_shape, weight, eps)
    apply: Callable[..., Tensor] = _FusedRMSNorm.apply
    return apply(input, list(normalized_shape), weight, eps)


class _FusedRMSNorm(torch.autograd.Function):
    """The kernel of cards, and that of its gradient."""

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
    ) -> Any:
        with below_autograd():
            normalized, scales = aten._fused_rms_norm(source, shape, weight, eps)
        ctx.save_for_backward(source, weight, scales)
        ctx.shape, ctx.eps = shape, eps
        return normalized

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        source, weight, scales = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        if torch.is_grad_enabled():  # the gradient has one itself, which the kernel has not
            with without_torch_function():  # or it would come back here
                again = torch.rms_norm(source, ctx.shape, weight, ctx.eps)
            inputs = list(itertools.compress((source, weight), wanted))
            found = iter(torch.autograd.grad(again, inputs, gradient, create_graph=True))
            wants_source, wants_weight = wanted
            of_source = next(found) if wants_source else None
            of_weight = next(found) if wants_weight else None
            return of_source, None, of_weight, None
        of_source, of_weight = aten._fused_rms_norm_backward(
            gradient, source, ctx.shape, scales, weight, wanted
        )
        return of_source, None, of_weight, None


def _added_to_scores(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """Return a mask to add to scores: one of booleans becomes one of zeros and −∞."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    added = torch.zeros_like(mask, dtype=query.dtype, device=query.device)
    return added.masked_fill_(mask.logical_not().to(query.device), float("-inf"))


# -- functions of torch's own --------------------------------------------------------------------

_ASK_FOR_OVERRIDES = {
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
}


def functions_let_through() -> Contexts:
    """Yield contexts in which functions that torch has in Python do not ask for overrides.

    This holds in the present thread. The functions that they call do ask.
    """
    thread = threading.get_ident()

    def elsewhere(ask: Callable[..., bool]) -> Callable[..., bool]:
        return lambda *values: threading.get_ident() != thread and ask(*values)

    for module in WRITTEN_IN_PYTHON:
        for name in _ASK_FOR_OVERRIDES & vars(module).keys():
            yield replaced(vars(module), name, elsewhere)
