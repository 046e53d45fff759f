"""Distances between the rows of matrices, and their gradients."""

from __future__ import annotations

import math

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


@cost_of(aten.cdist, aten._cdist_forward, aten._euclidean_dist)
def pairwise_distances(
    x1: TensorSpec, x2: TensorSpec, p: float = 2.0, *_: object, out: TensorSpec
) -> Work:
    """M differences per pair.

    Euclidean: their squares are multiply-accumulates, M per pair, and a root.

    Other norms only add: |d| summed or compared (p = 1, ∞: 2M per pair), d ≠ 0 counted (p = 0: 2M),
    or |d|^p summed and a root (3M + 1).
    """
    return _distances(out.numel, x1.shape[-1], p)


@cost_of(aten.pdist, aten._pdist_forward)
def distances_within(self: TensorSpec, p: float = 2.0, *, out: TensorSpec) -> Work:
    """Return the cost of the distances of all n (n − 1) / 2 pairs of rows, each as in ``cdist``."""
    return _distances(out.numel, self.shape[-1], p)


def _distances(pairs: int, length: int, p: float) -> Work:
    if p == 2:
        flops = pairs * (length + 1)
        return Work(macs=pairs * length, other_flops=flops)
    if p in (0, 1, math.inf):
        return Work(other_flops=3 * pairs * length)
    return Work(other_flops=pairs * (4 * length + 1))


@cost_of(aten._cdist_backward)
def pairwise_distances_backward(
    grad: TensorSpec, x1: TensorSpec, x2: TensorSpec, p: float, *_: object, out: TensorSpec
) -> Work:
    """``g · d / distance`` summed over the other points.

    Euclidean: a difference and a multiply-accumulate per pair and coordinate, a quotient per pair.
    Other norms: a difference, a sign or power, two products, a sum per coordinate.
    """
    terms = grad.numel * x1.shape[-1]
    if p == 2:
        return Work(macs=terms, other_flops=terms + grad.numel)
    return Work(other_flops=5 * terms)
