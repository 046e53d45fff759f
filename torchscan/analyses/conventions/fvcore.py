"""fvcore's FlopCountAnalysis: one "flop" for each product of a contraction, and its own factors for norms, pools and resizing.

Operators that it does not know count nothing: convolutions with ``padding="same"``, recurrent layers (cells it knows, as
linear layers), ``baddbmm``, fused attention. Fused attention is counted here nevertheless, as its two products: published
tables (timm's) come from runs in which it was not fused.
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
    argument,
    by_operator,
    per_input,
    per_output,
    products,
)
from torchscan.ops.einsum import parse as parse_equation
from torchscan.trace.events import OpSignature
from torchscan.trace.trace import Trace

_BATCH_NORMS = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
_OTHER_NORMS = (
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "native_group_norm",
    "instance_norm",
)


def fvcore(trace: Trace) -> list[int]:
    """The numbers of FlopCountAnalysis."""
    return by_operator(trace, _RULES)


def _convolution(signature: OpSignature) -> int:
    """With its padding by name it is an operator of its own, which fvcore does not know."""
    return 0 if isinstance(argument(signature, "padding"), str) else products(signature)


def _matrix_product(signature: OpSignature) -> int:
    """``numel(left) · columns of the right``: a left matrix that is broadcast over the right ones counts once."""
    left, right = signature.inputs
    return left.numel * (right.shape[-1] if len(right.shape) > 1 else 1)


def _norm(signature: OpSignature) -> int:
    """5 per element, 4 without an affine map."""
    return signature.inputs[0].numel * (4 if argument(signature, "weight") is None else 5)


def _batch_norm(signature: OpSignature) -> int:
    """In evaluation 2 per element, 1 without an affine map; in training as other norms."""
    if argument(signature, "training"):
        return _norm(signature)
    return signature.inputs[0].numel * (1 if argument(signature, "weight") is None else 2)


# -- Einstein sums: fvcore asks numpy for the cheapest order ---------------------------------------------------------------


def _einsum(signature: OpSignature) -> int:
    """Half of the operations that numpy states, which it rounds to four digits, except in two forms of a batched product."""
    equation, operands = signature.args[0], signature.args[1]
    terms, result = parse_equation(equation, [spec.shape for spec in operands])
    sizes = {index: max(term.get(index, 1) for term in terms) for term in terms for index in term}
    if _is_batched_product([*map("".join, terms)], result):
        return math.prod(sizes.values())
    operations = _cheapest([set(term) for term in terms], set(result), sizes)
    return int(float(f"{operations + 1:.3e}") // 2)


def _is_batched_product(terms: Sequence[str], result: str) -> bool:
    """``abc,abd->acd`` or ``abc,adc->adb``, whatever the letters."""
    letters = dict.fromkeys("".join(terms))
    name = {letter: chr(ord("a") + position) for position, letter in enumerate(letters)}
    equation = ",".join("".join(name[each] for each in term) for term in terms)
    return (equation, "".join(name[each] for each in result)) in (
        ("abc,abd", "acd"),
        ("abc,adc", "adb"),
    )


def _cheapest(terms: Sequence[set[str]], result: set[str], sizes: dict[str, int]) -> int:
    """Three operands and more go pair by pair, unless nothing is summed; no step may be larger than what there is already."""
    together = set().union(*terms)
    if len(terms) <= 2 or together == result:
        return _operations(together, together - result, len(terms), sizes)
    largest = max(_size(term, sizes) for term in (*terms, result))
    return _cheapest_pairs([frozenset(term) for term in terms], frozenset(result), sizes, largest)


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
    everything = frozenset().union(*terms)
    return min(costs, default=_operations(everything, everything - result, len(terms), sizes))


def _operations(
    indices: Iterable[str], summed: Iterable[str], operands: int, sizes: dict[str, int]
) -> int:
    """For each combination of indices a product with each further operand, and an addition if anything is summed."""
    return _size(indices, sizes) * (max(1, operands - 1) + bool(summed))


def _size(indices: Iterable[str], sizes: dict[str, int]) -> int:
    return math.prod(sizes[index] for index in indices)


_RULES = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(
        (*PLAIN_CONVOLUTIONS, *ATTENTION, *RECURRENT_CELLS, "aten.linear", "aten.addmm"), products
    ),
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul"), _matrix_product),
    "aten.einsum": _einsum,
    **{f"aten.{name}": _batch_norm for name in _BATCH_NORMS},
    **{f"aten.{name}": _norm for name in _OTHER_NORMS},
    **dict.fromkeys(("aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d"), per_input(1)),
    "aten.upsample_nearest2d": per_output(1),
    "aten.upsample_bilinear2d": per_output(4),
    **dict.fromkeys(
        ("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d"), per_output(4)
    ),
}
