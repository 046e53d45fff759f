"""Calls that a compiler fuses with others."""

from __future__ import annotations

from torchscan.ops import OpCost
from torchscan.ops.communication import COLLECTIVES
from torchscan.trace.events import OpCall

#: streaming operators that a compiler puts into kernels of their own, or leaves to torch's
_SEARCHING = ("sort", "topk", "unique", "_unique2", "nonzero", "cumsum", "multinomial", "bernoulli")
_PLACING = (
    "index_put",
    "_index_put",
    "scatter",
    "embedding_dense_backward",
    "im2col",
    "col2im",
    "max_pool",
    "grid_sampler",
)
_SUMS = frozenset({"mean", "sum", "amax"})
_APART = (
    *(*_SEARCHING, *_PLACING, "torchscan.", "_foreach", "_fused", "_fft", "linalg", "_cudnn"),
    "fsdp.",
)


def is_fusible(op: OpCall, cost: OpCost) -> bool:
    """Return whether a compiler generates the kernel of this call.

    It does so for all calls but products, collectives and the operators in ``_APART``, such as
    sorts and scatters, those of optimizers and FSDP's own copies, which no compiled graph has.
    """
    if cost.macs or op.signature.operator in COLLECTIVES:
        return False
    return not op.signature.operator.removeprefix("aten.").startswith(_APART)


def begins_kernel(op: OpCall) -> bool:
    """Return whether a call starts a kernel, because it reads all of its operand first.

    Statistics of a batch norm do that, and sums over images whose channels lie innermost. Calls
    before it belong to another kernel.
    """
    name = op.signature.operator.removeprefix("aten.")
    if "batch_norm" in name:
        return bool(op.signature.arguments.get("training", True))
    if name.startswith("native_group_norm") or name == "_adaptive_avg_pool2d":
        return True
    if name not in _SUMS:
        return False
    dims = op.signature.arguments.get("dim", None)
    is_over_places = isinstance(dims, tuple) and {dim % 4 for dim in dims} >= {2, 3}
    return is_over_places and len(op.signature.inputs[0].shape) == 4
