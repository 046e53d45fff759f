"""Counts of torch's FlopCounterMode on CUDA or the meta device: two FLOPs for each product.

It decomposes composite operators until it meets a matrix product, a convolution or an attention
kernel. On the CPU, it doesn't know the kernels of attention and of the LSTM, and reports nothing
for them.
"""

from __future__ import annotations

from collections import Counter

from torchscan.analyses.conventions.rules import (
    ATTENTION,
    CONVOLUTIONS,
    PLAIN_CONVOLUTIONS,
    RECURRENT,
    RECURRENT_CELLS,
    OperatorRule,
    argument,
    by_operator,
    products,
    rule_for,
)
from torchscan.ops.einsum import parse as parse_equation
from torchscan.trace.events import OpSignature
from torchscan.trace.trace import Trace

_RULES: dict[str, OperatorRule] = {}
_MATRIX_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten._scaled_mm")
#: decomposed into matrix products
_CHAINS = ("aten.inner", "aten.tensordot", "aten.chain_matmul", "aten.linalg_multi_dot")
_ATTENTION_BACKWARD = tuple(f"{name}_backward" for name in ATTENTION)


def flop_counter(trace: Trace) -> list[int]:
    """Return the numbers of FlopCounterMode."""
    return by_operator(trace, _RULES)


@rule_for(_RULES, *_MATRIX_PRODUCTS, *_CHAINS)
@rule_for(_RULES, *ATTENTION, *_ATTENTION_BACKWARD)
@rule_for(_RULES, *CONVOLUTIONS, *PLAIN_CONVOLUTIONS)
@rule_for(_RULES, *RECURRENT, *RECURRENT_CELLS)
def _two_per_product(signature: OpSignature) -> int:
    return 2 * products(signature)


@rule_for(_RULES, "aten.linear", "aten.matmul")
def _unless_by_vector(signature: OpSignature) -> int:
    """Count two per product, but none with a vector: its operators (mv, dot) have no formula."""
    right = signature.inputs[1]
    if len(right.shape) == 1:
        return 0
    return _two_per_product(signature)


@rule_for(_RULES, "aten.convolution_backward")
def _convolution_backward(signature: OpSignature) -> int:
    """Count the gradient of the weight of a grouped convolution as if it had no groups."""
    groups: int = argument(signature, "groups")
    for_input, for_weight, _ = map(int, argument(signature, "output_mask"))
    num_gradients = for_input + for_weight
    once = products(signature) // max(num_gradients, 1)
    return 2 * once * (for_input + for_weight * groups)


@rule_for(_RULES, "aten.einsum")
def _einsum(signature: OpSignature) -> int:
    """Count matrix products, which operands meet in that share an index which the result lacks.

    Others are multiplied by elements.
    """
    equation, operands = signature.args[:2]
    terms, result = parse_equation(equation, [spec.shape for spec in operands])
    uses: Counter[str] = Counter()
    for term in terms:
        uses.update(index for index in term if index not in result)
    has_shared = any(count > 1 for count in uses.values())
    return _two_per_product(signature) if has_shared else 0
