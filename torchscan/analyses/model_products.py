"""Products of a model in a training step, each counted once, for model FLOPs utilization (MFU)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torchscan.analyses.module_costs import call_costs
from torchscan.analyses.roofline.kernels.attention_shape import AttentionShape
from torchscan.trace.events import OpSignature
from torchscan.trace.trace import Trace

#: "dense": all scores of attention, ``12 · layers · hidden size · tokens`` as PaLM and torchtitan
#: count them; "computed": without those that a causal mask leaves out
FlopsConvention = Literal["dense", "computed"]


class CallProducts(NamedTuple):
    """MACs of a call that belong to the model, by either convention."""

    dense: float = 0.0
    computed: float = 0.0


def products_of(trace: Trace) -> list[CallProducts]:
    """Return the products of each call. Those that checkpoints recompute do not count."""
    products: list[CallProducts] = []
    for op, cost in zip(trace.ops, call_costs(trace), strict=True):
        macs = 0 if op.origin == "checkpoint" else cost.macs
        products.append(_products(op.signature, macs))
    return products


def _products(signature: OpSignature, macs: int) -> CallProducts:
    operator = signature.operator
    if not macs or "attention" not in operator:
        return CallProducts(macs, macs)
    is_backward = operator.endswith("backward")
    # fused attention recomputes one of the five products of its backward pass
    dense = macs * 4 / 5 if is_backward else macs
    shape = AttentionShape.of(signature, first=int(is_backward))
    return CallProducts(dense, dense * shape.min_share)
