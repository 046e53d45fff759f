"""Matrix products and everything that is one in disguise.

A product of an (m, k) and a (k, n) matrix takes ``m·n·k`` multiply-accumulates. A bias is what the accumulator starts from
and costs nothing, but a scale (``alpha``, ``beta``) other than one costs a multiplication per element that it scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchscan.ops.registry import Work, cost_of
from torchscan.trace.events import TensorSpec

aten = torch.ops.aten


@cost_of(aten.linear)
def linear(input: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, *, out: TensorSpec) -> Work:
    """MACs = numel(out) · in_features."""
    return Work(macs=out.numel * weight.shape[-1])


@cost_of(aten.mm, aten.bmm, aten.matmul, aten.mv, aten.dot, aten.vdot)
def matmul(self: TensorSpec, other: TensorSpec, *, out: TensorSpec) -> Work:
    """MACs = numel(out) · k, with k the dimension that is summed over."""
    return Work(macs=out.numel * self.shape[-1])


@cost_of(aten.addmm, aten.baddbmm, aten.addmv)
def addmm(
    self: TensorSpec,
    left: TensorSpec,
    right: TensorSpec,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · k; FLOPs + numel(out) if alpha ≠ 1, + numel(self) if beta is neither 0 nor 1."""
    scaling = (out.numel if alpha != 1 else 0) + (self.numel if beta not in (0, 1) else 0)
    return Work(macs=out.numel * left.shape[-1], other_flops=scaling)


@cost_of(aten.addbmm)
def addbmm(
    self: TensorSpec,
    batch1: TensorSpec,
    batch2: TensorSpec,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: TensorSpec,
) -> Work:
    """MACs = b · numel(out) · k, the products of the batch summed up; scaling as in addmm."""
    scaling = (out.numel if alpha != 1 else 0) + (self.numel if beta not in (0, 1) else 0)
    return Work(macs=batch1.shape[0] * out.numel * batch1.shape[-1], other_flops=scaling)


@cost_of(aten._int_mm, of_integers=True)
def integer_product(self: TensorSpec, mat2: TensorSpec, *, out: TensorSpec) -> Work:
    """MACs = numel(out) · k, of 8-bit integers."""
    return Work(macs=out.numel * self.shape[-1])


@cost_of(aten.linalg_vecdot)
def dot_along(x: TensorSpec, y: TensorSpec, *, dim: int = -1, out: TensorSpec) -> Work:
    """MACs = numel(out) · k, with k the dimension that is summed over."""
    return Work(macs=out.numel * x.shape[dim])


@cost_of(aten.outer, aten.ger)
def outer(self: TensorSpec, vec2: TensorSpec, *, out: TensorSpec) -> Work:
    """MACs = n · m: a product with k = 1."""
    return Work(macs=out.numel)


@cost_of(aten.bilinear)
def bilinear(
    input1: TensorSpec,
    input2: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    *,
    out: TensorSpec,
) -> Work:
    """``out[n, o] = Σ_i Σ_j x1[n, i] W[o, i, j] x2[n, j]``: MACs = N·O·I·J for W·x2, N·O·I for x1."""
    rows = out.numel
    _, left, right = weight.shape
    del input1, input2
    return Work(macs=rows * left * right + rows * left)


@cost_of(aten._grouped_mm)
def grouped_mm(self: TensorSpec, mat2: TensorSpec, offs: TensorSpec | None = None, *_: object, out: TensorSpec) -> Work:
    """One product per group: MACs = numel(out) · k; where the groups divide k itself, each product sums over its share."""
    divides_inner = len(self.shape) == 2 and len(mat2.shape) == 2
    groups = out.shape[0] if divides_inner else 1
    return Work(macs=out.numel * self.shape[-1] // groups)


@cost_of(aten.linalg_multi_dot)
def multi_dot(tensors: Sequence[TensorSpec], *, out: TensorSpec) -> Work:
    """The cheapest order, as the operator picks it: ``m[i,j] = min_k m[i,k] + m[k+1,j] + d_i·d_{k+1}·d_{j+1}``."""
    sizes = [tensors[0].shape[0] if len(tensors[0].shape) == 2 else 1]
    sizes += [spec.shape[0] for spec in tensors[1:]]
    sizes.append(tensors[-1].shape[1] if len(tensors[-1].shape) == 2 else 1)
    return Work(macs=_cheapest_chain(sizes))


def _cheapest_chain(sizes: list[int]) -> int:
    length = len(sizes) - 1
    best = [[0] * length for _ in range(length)]
    for span in range(1, length):
        for first in range(length - span):
            last = first + span
            best[first][last] = min(
                best[first][cut] + best[cut + 1][last] + sizes[first] * sizes[cut + 1] * sizes[last + 1]
                for cut in range(first, last)
            )
    return best[0][-1]
