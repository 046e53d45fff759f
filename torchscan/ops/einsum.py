"""Einstein sums: operands are multiplied pair by pair.

An index that is no longer needed is summed.

A pair costs a multiply-accumulate for each combination of the indices of both. An index that occurs
in one operand only, and not in the result, is summed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchscan.ops.matmul import real_products
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of, window_of
from torchscan.ops.windows import WHOLE, At, Dim, Looks, here, look
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec

#: the sizes of the indices of one operand
Sizes = dict[str, int]


@cost_of(aten.einsum.default)
def einsum(
    equation: str,
    tensors: Sequence[TensorSpec],
    *,
    path: Sequence[int] | None = None,
    out: TensorSpec,
) -> Work:
    """MACs = Σ over the pairs: the product of the sizes of all their indices.

    The pairs are in the order of ``path``, or from the left.
    """
    operands, result = parse(equation, [spec.shape for spec in tensors])
    macs = additions = 0
    for left, right in _pair_operands(len(operands), path):
        pair = [operands.pop(position) for position in sorted({left, right}, reverse=True)]
        needed = set(result).union(*map(_real_indices, operands))
        reduced = []
        for each in pair:
            others = [_real_indices(other) for other in pair if other is not each]
            kept = _keep(each, needed.union(*others))
            reduced.append(kept)
            additions += _count(each) - _count(kept)
        merged = _merge(reduced)
        if len(pair) == 2:
            macs += _count(merged)
        operands.append(_keep(merged, needed))
    return Work(macs=real_products(out) * macs, other_flops=additions)


def products(
    equation: str, shapes: Sequence[Sequence[int]], path: Sequence[int] | None = None
) -> Iterator[tuple[int, int, bool]]:
    """Yield the positions of both operands of each product.

    A third value is true if the product sums over an index of both.

    The result of each product goes to the end of the operands. Where nothing is summed the product
    is element-wise.
    """
    operands, result = parse(equation, shapes)
    for left, right in _pair_operands(len(operands), path) if len(operands) > 1 else ():
        pair = [operands.pop(position) for position in sorted({left, right}, reverse=True)]
        needed = set(result).union(*map(_real_indices, operands))
        shared = set.intersection(*map(_real_indices, pair))
        yield left, right, not shared <= needed
        operands.append(_keep(_merge(pair), needed))


@window_of(aten.einsum.default)
def einsum_window(equation: str, tensors: Sequence[TensorSpec], *, out: TensorSpec) -> Looks:
    """Read along the indices of the result; all others are summed."""
    terms, result = _spell_terms(equation, [spec.shape for spec in tensors])
    where = {index: position for position, index in enumerate(result)}
    looks = []
    for term, spec in zip(terms, tensors, strict=True):
        dims: list[Dim] = []
        for index, size in zip(term, spec.shape, strict=True):
            position = where.get(index)
            if position is None:
                dims.append(WHOLE)
            elif size == out.shape[position]:
                dims.append(here(position))
            else:
                dims.append(At(0))
        looks.append(look(out, *dims))
    return tuple(looks)


def parse(equation: str, shapes: Sequence[Sequence[int]]) -> tuple[list[Sizes], str]:
    """Return the sizes of each operand's indices, and the indices of the result.

    ``...`` stands for digits, counted from the right.
    """
    named, result = _spell_terms(equation, shapes)
    operands = []
    for term, shape in zip(named, shapes, strict=True):
        sizes: Sizes = {}
        for index, size in zip(term, shape, strict=True):
            sizes[index] = _broadcast_size(size, sizes.get(index, 1))
        operands.append(sizes)
    return operands, result


def _spell_terms(equation: str, shapes: Sequence[Sequence[int]]) -> tuple[list[str], str]:
    """Return the indices of each operand and those of the result."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    hidden, named = [], []
    for term, shape in zip(terms, shapes, strict=True):
        count = len(shape) - len(term.replace("...", ""))
        hidden.append(count)
        named.append(_spell_out(term, count))
    if arrow:
        return named, _spell_out(result, max(hidden))
    letters = "".join(terms).replace("...", "")
    single = sorted(each for each in set(letters) if letters.count(each) == 1)
    return named, _digits(max(hidden)) + "".join(single)


def _digits(count: int) -> str:
    # These are not letters, which an equation may use.
    return "".join(chr(0x0660 + position) for position in reversed(range(count)))


def _spell_out(term: str, hidden: int) -> str:
    return term.replace("...", _digits(hidden))


def _pair_operands(operands: int, path: Sequence[int] | None) -> list[tuple[int, int]]:
    """Return the positions of each step's operands; its result goes to the end."""
    if operands == 1:
        return [(0, 0)]
    if path:
        return list(zip(path[::2], path[1::2], strict=True))
    return [(0, 1), *[(0, remaining - 1) for remaining in range(operands - 1, 1, -1)]]


def _real_indices(sizes: Sizes) -> set[str]:
    """Return the indices, without those of size one."""
    return {index for index, size in sizes.items() if size != 1}


def _keep(sizes: Sizes, needed: set[str]) -> Sizes:
    return {index: size for index, size in sizes.items() if index in needed}


def _merge(operands: Sequence[Sizes]) -> Sizes:
    merged: Sizes = {}
    for sizes in operands:
        for index, size in sizes.items():
            merged[index] = _broadcast_size(size, merged.get(index, 1))
    return merged


def _broadcast_size(size: int, other: int) -> int:
    """Return a size, or the other if it is one. The other may be missing."""
    return size if other == 1 else other


def _count(sizes: Sizes) -> int:
    return math.prod(sizes.values())
