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
    argument,
    by_operator,
    products,
)
from torchscan.ops.einsum import parse as parse_equation
from torchscan.trace.events import OpSignature
from torchscan.trace.trace import Trace

#: matrix products, and what is taken apart into them
_PRODUCTS = (
    *("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten._scaled_mm"),
    *("aten.inner", "aten.tensordot", "aten.chain_matmul", "aten.linalg_multi_dot"),
    *(f"{name}_backward" for name in ATTENTION),
    *(*CONVOLUTIONS, *PLAIN_CONVOLUTIONS, *ATTENTION, *RECURRENT, *RECURRENT_CELLS),
)


def flop_counter(trace: Trace) -> list[int]:
    """Return the numbers of FlopCounterMode."""
    return by_operator(trace, _RULES)


def _two_per_product(signature: OpSignature) -> int:
    return 2 * products(signature)


def _unless_by_vector(signature: OpSignature) -> int:
    """The product with a vector is an operator of its own (mv, dot), which it does not know."""
    return 0 if len(signature.inputs[1].shape) == 1 else _two_per_product(signature)


def _convolution_backward(signature: OpSignature) -> int:
    """The gradient of the weight of a grouped convolution counts as if it had no groups."""
    groups: int = argument(signature, "groups")
    for_input, for_weight, _ = map(int, argument(signature, "output_mask"))
    num_gradients = for_input + for_weight
    once = products(signature) // max(num_gradients, 1)
    return 2 * once * (for_input + for_weight * groups)


def _einsum(signature: OpSignature) -> int:
    """Operands that share an index which the result lacks meet in matrix products.

    Others are multiplied by elements.
    """
    equation, operands = signature.args[:2]
    terms, result = parse_equation(equation, [spec.shape for spec in operands])
    uses = Counter(index for term in terms for index in term if index not in result)
    has_shared = any(count > 1 for count in uses.values())
    return _two_per_product(signature) if has_shared else 0


_RULES = {
    **dict.fromkeys(_PRODUCTS, _two_per_product),
    **dict.fromkeys(("aten.linear", "aten.matmul"), _unless_by_vector),
    "aten.convolution_backward": _convolution_backward,
    "aten.einsum": _einsum,
}
