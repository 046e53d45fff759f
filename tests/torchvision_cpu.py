"""Imports torchvision beside a CPU build of torch, for which its compiled operators cannot be loaded.

The schemas that its import expects are declared first; ``nms``, which detection models run, gets a plain implementation.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["torchvision"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
    "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio) -> (Tensor, Tensor)",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    left_top, right_bottom = (
        boxes[:, None, :2].maximum(boxes[None, :, :2]),
        boxes[:, None, 2:].minimum(boxes[None, :, 2:]),
    )
    overlap = (right_bottom - left_top).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    suppresses = overlap / (area[:, None] + area[None, :] - overlap) > iou_threshold
    alive, kept = torch.ones_like(scores, dtype=torch.bool), []
    for index in scores.argsort(descending=True).tolist():
        if alive[index]:
            kept.append(index)
            alive &= ~suppresses[index]
    return torch.tensor(kept, dtype=torch.long)


if torch.version.cuda is None and not hasattr(
    torch.ops.torchvision, "nms"
):  # beside CUDA's build they load by themselves
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _schema in _SCHEMAS:
        _library.define(_schema)
    _library.impl("nms", _nms, "CPU")

import torchvision  # noqa: E402
import torchvision.extension  # noqa: E402


def _has_ops() -> bool:
    """Return True: a lambda could not be scripted."""
    return True


if torch.version.cuda is None:
    torchvision.extension._has_ops = _has_ops
