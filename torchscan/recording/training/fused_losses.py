"""Fused cross entropy: the loss of a language model, without holding all logits at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.training.gradients import BackwardError

CrossEntropy = Literal["chunked", "liger"]
#: label of tokens without a loss
_IGNORED = -100
#: chunks of a sequence in torchtune
_NUM_CHUNKS = 8

_library = torch.library.Library("torchscan", "FRAGMENT")
_library.define("liger_cross_entropy(Tensor(a!) logits, Tensor(b!) losses, Tensor target) -> ()")


def fuse_cross_entropy(model: nn.Module, kind: CrossEntropy) -> None:
    """Compute the loss of a copy of a language model of transformers from its hidden states.

    The output projection returns hidden states unchanged, and the loss function multiplies them
    with the weight.
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
    _refuse_adapters(head, kind)
    loss = _FusedLoss(head, sum_in_chunks if kind == "chunked" else sum_by_liger)
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
        """Return the loss of hidden states, in place of logits, and labels."""
        self._is_computed = True
        weight = self._head.weight
        targets = options.get("shift_labels")
        if targets is None:
            targets = F.pad(labels, (0, 1), value=_IGNORED)[..., 1:].contiguous()
        total = self._multiply(logits.to(weight.dtype), weight, self._head.bias, targets)
        count = options.get("num_items_in_batch")
        return total / ((targets != _IGNORED).sum() if count is None else count)


def sum_in_chunks(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the sum of losses as torchtune computes it: a part of each sequence at a time."""
    total = hidden.new_zeros((), dtype=torch.float32)
    chunks = zip(hidden.chunk(_NUM_CHUNKS, 1), targets.chunk(_NUM_CHUNKS, 1), strict=True)
    for chunk, target in chunks:
        logits = F.linear(chunk, weight, bias).flatten(0, 1)
        total = total + F.cross_entropy(
            logits.float(), target.flatten(), ignore_index=_IGNORED, reduction="sum"
        )
    return total


def sum_by_liger(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the sum of losses as Liger computes it."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    total: Tensor = _liger_sum(rows, weight, bias, targets.flatten())
    return total


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


_liger_sum: Any = _LigerLoss.apply


@torch.library.impl(_library, "liger_cross_entropy", "CompositeExplicitAutograd")
def leave_without_values(_logits: Tensor, _losses: Tensor, _target: Tensor) -> None:
    """Write nothing: losses and gradients have no values."""
