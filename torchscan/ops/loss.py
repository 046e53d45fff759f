"""Losses: a price per element, and the sum or mean of all elements."""

from __future__ import annotations

from torchscan.ops.op_costs import Work
from torchscan.ops.operator_names import Operator
from torchscan.ops.per_element import Output, first_output, per_element
from torchscan.ops.registry import Formula, cost_of, window_of
from torchscan.ops.windows import Looks, elementwise
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

_NONE, _MEAN, _SUM = 0, 1, 2  # torch's numbers for the reductions


def _reduction(count: int, reduction: int) -> int:
    """Return n − 1 sums, and one division for the mean."""
    return {_NONE: 0, _MEAN: count, _SUM: max(count - 1, 0)}[reduction]


def _declare(per_element: int, *operators: Operator) -> None:
    cost_of(*operators)(_loss(per_element))
    window_of(*operators)(loss_window)


def loss_window(
    self: TensorSpec, *_: object, inputs: tuple[TensorSpec, ...], out: TensorSpec
) -> Looks:
    """Read element by element if there is no reduction."""
    return elementwise(inputs=inputs, out=out) if out.shape == self.shape else ()


def _loss(per_element: int) -> Formula:
    def loss(
        self: TensorSpec,
        target: TensorSpec,
        *_: object,
        weight: TensorSpec | None = None,
        pos_weight: TensorSpec | None = None,
        reduction: int = _MEAN,
        out: TensorSpec,
    ) -> Work:
        """FLOPs = per_element · n, and the reduction.

        It is 1 more per element with a weight, 4 with one for positives.
        """
        each = per_element + (weight is not None) + 4 * (pos_weight is not None)
        flops = each * self.numel + _reduction(self.numel, reduction)
        return Work(other_flops=flops)

    return loss


_declare(2, aten.mse_loss)  # difference, square
_declare(
    6, aten.smooth_l1_loss, aten.huber_loss
)  # |x − y|, 2; a comparison; half its square, scaled, 3
_declare(9, aten.binary_cross_entropy)  # (y − 1)·max(log(1 − x), −100) − y·max(log x, −100)
_declare(8, aten.binary_cross_entropy_with_logits)  # (1 − y)·x − logsigmoid(x): 3 + 5
_declare(4, aten.soft_margin_loss)  # log(1 + exp(−y·x))
_declare(4, aten.multi_margin_loss)  # max(margin − x_y + x, 0), summed

per_element(3, aten.mse_loss_backward)  # 2/n · (x − y) · g
per_element(
    5, aten.smooth_l1_loss_backward, aten.huber_loss_backward
)  # x − y, two comparisons, a quotient, a product
per_element(7, aten.binary_cross_entropy_backward)  # g · (x − y) / max((1 − x)·x, ε) / n
per_element(6, aten.soft_margin_loss_backward)
per_element(4, aten.multi_margin_loss_backward)
per_element(1, aten.nll_loss2d_backward)


@cost_of(aten.nll_loss_backward)
def negative_log_likelihood_backward(
    grad_output: TensorSpec,
    self: TensorSpec,
    target: TensorSpec,
    weight: TensorSpec | None = None,
    *_: object,
    out: TensorSpec,
) -> Work:
    """Zeros, and the gradient at each target; no score is read."""
    elements, size = target.numel + 1, target.stored_bytes + grad_output.stored_bytes
    if weight is not None:
        elements, size = elements + weight.numel, size + weight.stored_bytes
    return Work(other_flops=out.numel, elements_read=elements, bytes_read=size)


@cost_of(aten.nll_loss_forward, aten.nll_loss2d_forward, aten.nll_loss, aten.nll_loss2d)
def negative_log_likelihood(
    self: TensorSpec,
    target: TensorSpec,
    weight: TensorSpec | None = None,
    reduction: int = _MEAN,
    *_: object,
    out: Output,
) -> Work:
    """One score per target is picked and negated: 1 each (2 with a weight), and the reduction."""
    count = target.numel
    flops, elements_read = count, 2 * count
    bytes_read = count * self.dtype.itemsize + target.stored_bytes
    if weight is not None:
        flops += count
        elements_read += count
        bytes_read += weight.stored_bytes
    return Work(
        other_flops=flops + _reduction(count, reduction),
        elements_read=elements_read,
        bytes_read=bytes_read,
    )


@cost_of(aten._ctc_loss, aten._cudnn_ctc_loss)
def connectionist_temporal_classification(
    log_probs: TensorSpec, targets: TensorSpec, *_: object, out: Output
) -> Work:
    """13 for each of T steps and 2·L + 1 states (L labels and the blanks around them).

    Each takes the log of a sum of three exponentials.

    Two comparisons for the largest, three differences, three exponentials, two sums, a logarithm,
    two sums: 13.
    """
    steps = log_probs.shape[0]
    labels = (
        targets.shape[1] if len(targets.shape) == 2 else targets.numel // max(log_probs.shape[1], 1)
    )
    flops = 13 * steps * first_output(out).numel * (2 * labels + 1)
    return Work(other_flops=flops)


@cost_of(aten._ctc_loss_backward)
def connectionist_backward(
    grad: TensorSpec, log_probs: TensorSpec, targets: TensorSpec, *_: object, out: Output
) -> Work:
    """FLOPs = those of the loss, backward in time, and 5 per class and step for the gradient."""
    steps, samples = log_probs.shape[0], log_probs.shape[1]
    labels = targets.shape[1] if len(targets.shape) == 2 else targets.numel // max(samples, 1)
    flops = 13 * steps * samples * (2 * labels + 1) + 5 * log_probs.numel
    return Work(other_flops=flops)


@cost_of("torchscan::liger_cross_entropy")
def liger_cross_entropy(
    logits: TensorSpec, losses: TensorSpec, target: TensorSpec, *, out: object
) -> Work:
    """A softmax (a maximum, a difference, an exponential and a sum) and its gradient: 7 per logit.

    Logits are read twice, for the sum and for the gradient that replaces them.
    """
    size = 2 * logits.stored_bytes + target.stored_bytes
    count = 2 * logits.numel + target.numel
    return Work(other_flops=7 * logits.numel, elements_read=count, bytes_read=size)


@cost_of("torchscan::unsloth_cross_entropy")
def unsloth_cross_entropy(logits: TensorSpec, *_: object, out: object) -> Work:
    """4 per logit: a maximum, a difference, an exponential and a sum."""
    return Work(other_flops=4 * logits.numel)


@cost_of("torchscan::unsloth_cross_entropy_backward")
def unsloth_cross_entropy_backward(
    gradient: TensorSpec, logits: TensorSpec, *_: object, out: object
) -> Work:
    """3 per logit: a difference, an exponential and the product with the row's gradient."""
    return Work(other_flops=3 * logits.numel)
