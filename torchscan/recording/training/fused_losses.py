"""Fused cross entropy: the loss of a language model, without copies of its logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.training.gradients import BackwardError
from torchscan.torch_versions import call_of

CrossEntropy = Literal["chunked", "liger", "unsloth"]
#: label of tokens without a loss
_IGNORED = -100
#: chunks of a sequence in torchtune
_NUM_CHUNKS = 8

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define("liger_cross_entropy(Tensor(a!) logits, Tensor(b!) losses, Tensor target) -> ()")
_library.define("unsloth_cross_entropy(Tensor logits, Tensor target) -> (Tensor, Tensor)")
_library.define(
    "unsloth_cross_entropy_backward(Tensor gradient, Tensor(a!) logits, Tensor logsumexp, "
    "Tensor target) -> ()"
)


def fuse_cross_entropy(model: nn.Module, kind: CrossEntropy) -> None:
    """Compute the loss of a copy of a language model of transformers with a fused kernel.

    Where that takes hidden states, the output projection returns them as they are, and the loss
    function multiplies.
    """
    # The attribute itself is not read: that of a model without a loss logs a warning.
    with_loss: list[Any] = [
        each
        for each in model.modules()
        if hasattr(type(each), "loss_function") or "loss_function" in vars(each)
    ]
    with_head = [each for each in with_loss if hasattr(each, "get_output_embeddings")]
    found: Any = with_head[0] if with_head else None
    head = None if found is None else found.get_output_embeddings()
    if head is None or not isinstance(getattr(head, "weight", None), Tensor):
        raise InputError(
            Argument("cross_entropy"),
            f" is {kind!r}, and {type(model).__name__} has no loss function and output "
            "projection, as language models of transformers have: leave it out, and fuse them in "
            "the model",
        )
    loss = _FusedLoss(head, _SUMS[kind])
    if kind != "unsloth":
        _refuse_adapters(head, kind)
        head.forward = nn.Identity().forward
    found.loss_function = loss.compute
    model.forward = partial(loss.run, model.forward)


def _refuse_adapters(head: nn.Module, kind: CrossEntropy) -> None:
    """Raise an InputError if the output projection has more parameters than the loss reads."""
    if {name for name, _ in head.named_parameters()} - {"weight", "bias"}:
        raise InputError(
            Argument("cross_entropy"),
            f" is {kind!r}, which multiplies by the weight of the output projection alone, and "
            "that has adapters: leave it out of their target modules",
        )


class _FusedLoss:
    """The loss function of a model, with the weight of its output projection."""

    def __init__(self, head: Any, multiply: Callable[..., Tensor]) -> None:
        self._head = head
        self._multiply = multiply
        self._is_computed = False

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model. Raise unless it computes its loss."""
        self._is_computed = False
        output = forward(*args, **kwargs)
        if not self._is_computed:
            raise BackwardError(
                "the model computes no loss of its own, which ",
                Argument("cross_entropy"),
                " replaces: give labels among ",
                Give("kwargs"),
            )
        return output

    def compute(self, logits: Tensor, labels: Tensor, *_args: Any, **options: Any) -> Tensor:
        """Return the loss of labels and logits, or hidden states in their place."""
        self._is_computed = True
        weight = self._head.weight
        targets = options.get("shift_labels")
        if targets is None:
            targets = F.pad(labels, (0, 1), value=_IGNORED)[..., 1:].contiguous()
        total = self._multiply(logits, weight, self._head.bias, targets)
        count = options.get("num_items_in_batch")
        return total / ((targets != _IGNORED).sum() if count is None else count)


def sum_in_chunks(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the sum of losses as torchtune computes it: a part of each sequence at a time."""
    total = hidden.new_zeros((), dtype=torch.float32)
    hidden = hidden.to(weight.dtype)
    chunks = zip(hidden.chunk(_NUM_CHUNKS, 1), targets.chunk(_NUM_CHUNKS, 1), strict=True)
    for chunk, target in chunks:
        logits = F.linear(chunk, weight, bias).flatten(0, 1)
        total = total + F.cross_entropy(
            logits.float(), target.flatten(), ignore_index=_IGNORED, reduction="sum"
        )
    return total


def sum_by_liger(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the sum of losses as Liger computes it."""
    rows = hidden.to(weight.dtype).reshape(-1, hidden.shape[-1])
    total: Tensor = _liger_sum(rows, weight, bias, targets.flatten())
    return total


def sum_by_unsloth(
    logits: Tensor, _weight: Tensor, _bias: Tensor | None, targets: Tensor
) -> Tensor:
    """Return the sum of losses as Unsloth computes it, in the type of the logits."""
    losses: Tensor = unsloth_losses(logits.reshape(-1, logits.shape[-1]), targets.flatten())
    return losses.sum()


_SUMS: dict[CrossEntropy, Callable[..., Tensor]] = {
    "chunked": sum_in_chunks,
    "liger": sum_by_liger,
    "unsloth": sum_by_unsloth,
}


class _LigerLoss(torch.autograd.Function):
    """Liger's fused linear cross entropy, which computes gradients in the forward pass."""

    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
    ) -> Tensor:
        """Return the sum of losses; logits become their own gradient, chunk by chunk."""
        count, width = hidden.shape
        # about as many logits at once as the hidden states have elements
        expansion = -(-weight.shape[0] // width)
        size = min(count, 1 << (-(-count // expansion) - 1).bit_length())
        hidden_gradient = torch.zeros_like(hidden)
        weight_gradient = torch.zeros_like(weight) if weight.requires_grad else None
        bias_gradient = None
        if bias is not None and bias.requires_grad:
            bias_gradient = torch.zeros_like(bias)
        losses = torch.zeros(count, dtype=torch.float32, device=hidden.device)
        for start in range(0, count, size):
            part = slice(start, start + size)
            rows = hidden[part]
            gradient = F.linear(rows, weight, bias)
            torch.ops.torchscan.liger_cross_entropy(gradient, losses[part], targets[part])
            hidden_gradient[part] = gradient @ weight
            if weight_gradient is not None:
                weight_gradient.addmm_(gradient.t().to(weight.dtype), rows.to(weight.dtype))
            if bias_gradient is not None:
                bias_gradient += gradient.sum(0)
            del gradient
        context.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        return losses.sum()

    @staticmethod
    def backward(context: Any, _gradient: Tensor) -> Any:
        """Return the gradients unscaled, because nothing follows the loss."""
        return (*context.saved_tensors, None)


_liger_sum = call_of(_LigerLoss)


class _UnslothLoss(torch.autograd.Function):
    """Unsloth's cross entropy: the gradient of the logits replaces them in the backward pass."""

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row; keep the logits, and the logarithm of each row's sum."""
        losses, logsumexp = torch.ops.torchscan.unsloth_cross_entropy(logits, targets)
        context.save_for_backward(logits, logsumexp, targets)
        return losses  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Return the gradient of the logits, in their place."""
        logits, logsumexp, targets = context.saved_tensors
        kernel = torch.ops.torchscan.unsloth_cross_entropy_backward
        kernel(gradient, logits, logsumexp, targets)
        return logits, None


unsloth_losses = call_of(_UnslothLoss)


@torch.library.impl(_library, "liger_cross_entropy", "CompositeExplicitAutograd")
def leave_without_values(_logits: Tensor, _losses: Tensor, _target: Tensor) -> None:
    """Write nothing: losses and gradients have no values."""


@torch.library.impl(_library, "unsloth_cross_entropy", "CompositeExplicitAutograd")
def make_losses(logits: Tensor, _target: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses and logarithms of sums, without values."""
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=torch.float32),
        logits.new_empty(rows, dtype=torch.float32),
    )


@torch.library.impl(_library, "unsloth_cross_entropy_backward", "CompositeExplicitAutograd")
def leave_logits(_gradient: Tensor, _logits: Tensor, _logsumexp: Tensor, _target: Tensor) -> None:
    """Write nothing: gradients have no values."""
