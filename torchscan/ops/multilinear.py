"""Products of more than two operands: bilinear forms and chains of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.ops.matmul import real_products
from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@cost_of(aten.bilinear)
def bilinear(
    input1: TensorSpec,
    input2: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    *,
    out: TensorSpec,
) -> Work:
    """MACs = N·O·I·J for x1·W, N·O·J for x2.

    ``out[n, o] = Σ_j (Σ_i x1[n, i] W[o, i, j]) x2[n, j]``.
    """
    _, left, right = weight.shape
    macs = real_products(out) * out.numel * (left * right + right)
    return Work(macs=macs)


@cost_of(aten._trilinear)
def trilinear(
    i1: TensorSpec,
    i2: TensorSpec,
    i3: TensorSpec,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
    *,
    out: TensorSpec,
) -> Work:
    """Return the cost of ``Σ i1·i2·i3`` over ``sumdim``, slice by slice of ``unroll_dim``.

    Bilinear layers and their gradients call it. The first product, i1·i2, is summed over the
    dimensions that i3 lacks: a MAC for each combination of dimensions. Its result times i3 follows.
    """
    left = _expand_shape(i1.shape, expand1)
    middle = _expand_shape(i2.shape, expand2)
    right = _expand_shape(i3.shape, expand3)
    slices = max(left[unroll_dim], middle[unroll_dim], right[unroll_dim])
    for sizes in (left, middle, right):
        sizes[unroll_dim] = 1
    summed = set(sumdim) & set(expand3)
    pair, kept = [], []
    for dim, both in enumerate(zip(left, middle, strict=True)):
        # A size of 0 stays, a size of 1 is stretched.
        size = 0 if 0 in both else max(both)
        pair.append(size)
        kept.append(1 if dim in summed else size)
    together = [max(one, other) for one, other in zip(kept, right, strict=True)]
    macs = real_products(out) * slices * (math.prod(pair) + math.prod(together))
    return Work(macs=macs)


def _expand_shape(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Return the shape with a size of one inserted at each of ``dims``.

    These are positions in the result.
    """
    expanded = list(shape)
    for dim in sorted(dims):
        expanded.insert(dim, 1)
    return expanded


@cost_of(aten.linalg_multi_dot)
def multi_dot(tensors: Sequence[TensorSpec], *, out: TensorSpec) -> Work:
    """Return the MACs of the cheapest order, which the operator picks.

    ``m[i,j] = min_k m[i,k] + m[k+1,j] + d_i·d_{k+1}·d_{j+1}``.
    """
    first, *others = tensors
    last = tensors[-1]
    # The operands at the ends may be vectors.
    rows = first.shape[0] if len(first.shape) == 2 else 1
    columns = last.shape[1] if len(last.shape) == 2 else 1
    sizes = [rows, *(spec.shape[0] for spec in others), columns]
    return Work(macs=real_products(out) * _cheapest_chain(sizes))


def _cheapest_chain(sizes: list[int]) -> int:
    length = len(sizes) - 1
    best = [[0] * length for _ in range(length)]
    for span in range(1, length):
        for first in range(length - span):
            last = first + span
            counts = []
            for cut in range(first, last):
                product = sizes[first] * sizes[cut + 1] * sizes[last + 1]
                counts.append(best[first][cut] + best[cut + 1][last] + product)
            best[first][last] = min(counts)
    return best[0][-1]
