"""Counts of fvcore's FlopCountAnalysis: one "flop" for each product of a contraction.

It has its own factors for norms, pools and resizing. Operators that it does not know count nothing:
convolutions with ``padding="same"``, recurrent layers (cells it knows, as linear layers),
``baddbmm``, fused attention. Fused attention is counted here nevertheless, as its two products:
published tables (timm's) come from runs in which it was not fused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from torchscan.analyses.conventions.rules import (
    ATTENTION,
    CONVOLUTIONS,
    PLAIN_CONVOLUTIONS,
    RECURRENT_CELLS,
    OperatorRule,
    argument,
    by_operator,
    per_input,
    per_output,
    products,
    rule_for,
)
from torchscan.ops.einsum import parse as parse_equation
from torchscan.trace.events import OpSignature
from torchscan.trace.trace import Trace

_GRID_SAMPLERS = ("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
_RULES: dict[str, OperatorRule] = {
    **dict.fromkeys((*PLAIN_CONVOLUTIONS, *ATTENTION, *RECURRENT_CELLS), products),
    **dict.fromkeys(("aten.linear", "aten.addmm"), products),
    **dict.fromkeys(("aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d"), per_input(1)),
    "aten.upsample_nearest2d": per_output(1),
    "aten.upsample_bilinear2d": per_output(4),
    **dict.fromkeys(_GRID_SAMPLERS, per_output(4)),
}


def fvcore(trace: Trace) -> list[int]:
    """Return the numbers of FlopCountAnalysis."""
    return by_operator(trace, _RULES)


@rule_for(_RULES, *CONVOLUTIONS)
def _convolution(signature: OpSignature) -> int:
    """Count nothing if padding is given by name: that is another operator, which fvcore ignores."""
    if isinstance(argument(signature, "padding"), str):
        return 0
    return products(signature)


@rule_for(_RULES, "aten.mm", "aten.bmm", "aten.matmul")
def _matrix_product(signature: OpSignature) -> int:
    """Return ``numel(left) · columns of the right``.

    A left matrix that is broadcast over the right ones counts once.
    """
    left, right = signature.inputs
    if len(right.shape) < 2:
        return left.numel
    return left.numel * right.shape[-1]


@rule_for(_RULES, "aten.layer_norm", "aten.native_layer_norm")
@rule_for(_RULES, "aten.group_norm", "aten.native_group_norm", "aten.instance_norm")
def _norm(signature: OpSignature) -> int:
    """Count 5 per element, 4 without an affine map."""
    return _count_norm(signature, 5)


@rule_for(_RULES, "aten.batch_norm", "aten.native_batch_norm")
@rule_for(_RULES, "aten._native_batch_norm_legit", "aten.cudnn_batch_norm")
def _batch_norm(signature: OpSignature) -> int:
    """Count 2 per element in evaluation, 1 without an affine map; in training as other norms."""
    return _count_norm(signature, 5 if argument(signature, "training") else 2)


def _count_norm(signature: OpSignature, per_element: int) -> int:
    """Return the count of a norm, 1 less per element without an affine map."""
    if argument(signature, "weight") is None:
        per_element -= 1
    return signature.inputs[0].numel * per_element


# -- Einstein sums: fvcore asks numpy for the cheapest order ---------------------------------------


@rule_for(_RULES, "aten.einsum")
def _einsum(signature: OpSignature) -> int:
    """Return half of the operations that numpy states, which it rounds to four digits.

    Two forms of a batched product count one per combination of their indices.
    """
    equation, operands = signature.args[:2]
    terms, result = parse_equation(equation, [spec.shape for spec in operands])
    sizes: dict[str, int] = {}
    for index in itertools.chain(*terms):
        sizes[index] = max(term.get(index, 1) for term in terms)

    if _is_batched_product(["".join(term) for term in terms], result):
        return math.prod(sizes.values())
    operations = _cheapest([set(term) for term in terms], set(result), sizes)
    rounded = float(f"{operations + 1:.3e}")
    return int(rounded // 2)


def _is_batched_product(terms: Sequence[str], result: str) -> bool:
    """Return whether an equation is ``abc,abd->acd`` or ``abc,adc->adb``, in any letters."""
    equation = ",".join(terms) + "->" + result
    indices = dict.fromkeys("".join(terms))
    letters = {ord(index): chr(ord("a") + position) for position, index in enumerate(indices)}
    renamed = equation.translate(letters)
    return renamed in ("abc,abd->acd", "abc,adc->adb")


def _cheapest(terms: Sequence[set[str]], result: set[str], sizes: dict[str, int]) -> int:
    """Return the operations of the cheapest order.

    Three operands and more are multiplied in pairs, unless nothing is summed. No intermediate
    result may be larger than every operand and the result.
    """
    together = set().union(*terms)
    if len(terms) <= 2 or together == result:
        return _operations(together, together - result, len(terms), sizes)
    largest = max(_size(term, sizes) for term in (*terms, result))
    operands = [frozenset(term) for term in terms]
    return _cheapest_pairs(operands, frozenset(result), sizes, largest)


def _cheapest_pairs(
    terms: Sequence[frozenset[str]], result: frozenset[str], sizes: dict[str, int], largest: int
) -> int:
    if len(terms) == 1:
        return 0
    costs = []
    for left, right in itertools.combinations(range(len(terms)), 2):
        rest = [term for position, term in enumerate(terms) if position not in (left, right)]
        pair = terms[left] | terms[right]
        kept = pair & result.union(*rest)
        if _size(kept, sizes) <= largest:
            cost = _operations(pair, pair - kept, 2, sizes)
            costs.append(cost + _cheapest_pairs([*rest, kept], result, sizes, largest))
    if costs:
        return min(costs)
    everything = frozenset().union(*terms)
    return _operations(everything, everything - result, len(terms), sizes)


def _operations(
    indices: Iterable[str], summed: Iterable[str], num_operands: int, sizes: dict[str, int]
) -> int:
    """Return a product with each further operand, and an addition if an index is summed.

    Both count once for each combination of the indices.
    """
    per_combination = max(1, num_operands - 1)
    if summed:
        per_combination += 1
    return _size(indices, sizes) * per_combination


def _size(indices: Iterable[str], sizes: dict[str, int]) -> int:
    return math.prod(sizes[index] for index in indices)
