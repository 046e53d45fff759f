"""Operators of torchvision other than pooling and convolutions. It need not be installed."""

from __future__ import annotations

import math

from torchscan.ops.op_costs import Work
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec


@cost_of("torchvision::nms")
def non_maximum_suppression(
    dets: TensorSpec, scores: TensorSpec, *_: object, out: TensorSpec
) -> Work:
    """Return the cost of sorting n boxes, of their areas (3 each), and of overlaps.

    The overlap of each pair is computed as if none had been suppressed before.

    A pair takes 4 extremes, 2 differences, 2 comparisons with zero and a product for the
    intersection, 2 sums for the union, a quotient, a comparison: 13.
    """
    boxes = dets.shape[0]
    sorting = boxes * math.ceil(math.log2(max(boxes, 1)))
    flops = sorting + 3 * boxes + 13 * (boxes * (boxes - 1) // 2)
    return Work(other_flops=flops)
