"""Operators of torchvision, which need not be installed."""

from __future__ import annotations

import math

from torchscan.ops.convolution import multiply_kernel
from torchscan.ops.op_costs import Work, elements
from torchscan.ops.per_element import Output, first_output
from torchscan.ops.registry import cost_of
from torchscan.trace.events import TensorSpec

# -- boxes -----------------------------------------------------------------------------------------


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
    areas = 3 * boxes
    pairs = boxes * (boxes - 1) // 2
    return Work(other_flops=sorting + areas + 13 * pairs)


@cost_of("torchvision::roi_align", "torchvision::ps_roi_align")
def roi_align(
    input: TensorSpec,
    rois: TensorSpec,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool = True,
    *,
    out: Output,
) -> Work:
    """Return the cost of the mean of r² samples per output.

    Each is interpolated between four neighbors: 7 each, r² − 1 sums, a division.

    A sample's place and its neighbors' weights take 14, once for all its channels
    (position-sensitive: each part of a box has its own channels). Without a ratio (r ≤ 0), the
    number of samples depends on the size of the boxes: at least one, or none where boxes may be
    empty, aligned or position-sensitive ones.
    """
    samples = _fewest_samples(sampling_ratio, aligned)
    results = first_output(out).numel
    places = rois.shape[0] * pooled_height * pooled_width
    interpolated = samples * results
    flops = 8 * interpolated + 14 * samples * places
    elements_read = 4 * interpolated + rois.numel
    return Work(other_flops=flops, elements_read=elements_read, is_lower_bound=sampling_ratio <= 0)


@cost_of("torchvision::_roi_align_backward")
def roi_align_backward(
    grad: TensorSpec,
    rois: TensorSpec,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool = True,
    *,
    out: TensorSpec,
) -> Work:
    """1 + 8·r² per output.

    Each gradient is divided, weighted and added to the four neighbors of each sample.
    """
    samples = _fewest_samples(sampling_ratio, aligned)
    weights = 14 * samples * grad.numel
    flops = weights // max(channels, 1)
    if samples > 0:
        flops += (1 + 8 * samples) * grad.numel
    return Work(other_flops=flops, is_lower_bound=sampling_ratio <= 0)


def _fewest_samples(sampling_ratio: int, aligned: bool) -> int:
    if sampling_ratio > 0:
        return sampling_ratio**2
    return 0 if aligned else 1


# -- deformable convolutions -----------------------------------------------------------------------


@cost_of("torchvision::deform_conv2d")
def deformable_convolution(
    input: TensorSpec,
    weight: TensorSpec,
    offset: TensorSpec,
    mask: TensorSpec,
    bias: TensorSpec,
    *_: object,
    use_mask: bool = False,
    out: TensorSpec,
) -> Work:
    """MACs = numel(out) · k.

    Each sample of each input channel is interpolated between four neighbors.

    A position takes 14 (its distances and the neighbors' weights); a sample takes 7, with a mask 1
    more.
    """
    samples = _count_samples(input, weight, out)
    positions = offset.numel // 2
    products = multiply_kernel(out, weight)
    flops = 7 * samples + 14 * positions
    elements_read = 4 * samples + products
    elements_read += elements([weight, offset, bias])
    if use_mask:
        flops += samples
        elements_read += mask.numel
    return Work(macs=products, other_flops=flops, elements_read=elements_read)


@cost_of("torchvision::_deform_conv2d_backward")
def deformable_convolution_backward(
    grad: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec,
    offset: TensorSpec,
    *_: object,
    out: tuple[TensorSpec, ...],
) -> Work:
    """Return the cost of gradients: twice the MACs of the forward pass.

    Each sample is interpolated again, and spread to four neighbors and its offset.
    """
    samples = _count_samples(input, weight, grad)
    macs = 2 * multiply_kernel(grad, weight)
    flops = (7 + 8 + 14) * samples
    flops += 14 * offset.numel // 2
    return Work(macs=macs, other_flops=flops)


def _count_samples(input: TensorSpec, weight: TensorSpec, out: TensorSpec) -> int:
    """Return the number of samples that a deformable convolution interpolates."""
    num_taps = math.prod(weight.shape[2:])
    num_places = math.prod(out.shape[2:])
    samples_per_tap = out.shape[0] * input.shape[1] * num_places
    return samples_per_tap * num_taps
