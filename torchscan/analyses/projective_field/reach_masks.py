"""The positions of an input that reach each element of a tensor, as bits, and steps of windows.

A mask is a tensor of 64-bit words. Its first dimension holds the positions along an axis of the
input, 64 in a word; the others are those of the tensor, with size one where all elements along them
are reached alike. Unlike the envelopes of receptive fields, masks end where tensors end, and know
of each element between the first and the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchscan.analyses.projective_field.mask_sizes import check_size, empty_mask
from torchscan.analyses.projective_field.read_masks import Border, running, tapped
from torchscan.analyses.receptive_field.envelope_reshapes import find_runs
from torchscan.analyses.receptive_field.envelope_steps import shape_after
from torchscan.analyses.receptive_field.envelopes import Shape
from torchscan.ops.windows import Along, At, Look, Piece, Reshape, Step, Unfold, UpTo

#: positions in a word
WORD = 64


def no_positions(positions: Sequence[int]) -> Tensor:
    """Return the mask of a scalar that no position reaches."""
    num_words = max(-(-len(positions) // WORD), 1)
    return torch.zeros(num_words, dtype=torch.int64, device="cpu")


def own_positions(positions: Sequence[int], rank: int, dim: int, size: int) -> Tensor:
    """Return the mask of an input: a position reaches the elements that have it along ``dim``."""
    num_words = len(no_positions(positions))
    mask = torch.zeros((num_words, size), dtype=torch.int64, device="cpu")
    bits = torch.arange(len(positions), device="cpu")
    places = torch.tensor(positions, dtype=torch.int64, device="cpu")
    values = torch.ones_like(bits).bitwise_left_shift(bits % WORD)
    mask.index_put_((bits // WORD, places), values, accumulate=True)
    sizes = [1] * rank
    sizes[dim] = size
    return mask.view(num_words, *sizes)


def reached_along(mask: Tensor, dim: int) -> Tensor:
    """Return the mask with one element along a dimension, reached by all that reach any of them."""
    while mask.shape[dim] > 1:
        half = mask.shape[dim] // 2
        both = mask.narrow(dim, 0, half) | mask.narrow(dim, half, half)
        if mask.shape[dim] % 2:
            both = torch.cat([both, mask.narrow(dim, 2 * half, 1)], dim)
        mask = both
    return mask


def reached_anywhere(mask: Tensor, rank: int) -> Tensor:
    """Return the mask of a tensor whose elements each depend on all elements of another."""
    for dim in range(1, mask.dim()):
        mask = reached_along(mask, dim)
    return mask.reshape(len(mask), *[1] * rank)


def of_rank(mask: Tensor, rank: int) -> Tensor:
    """Return the mask for a tensor of this rank; without one, elements are reached alike."""
    return mask if mask.dim() == rank + 1 else mask.reshape(len(mask), *[1] * rank)


def without_repeats(mask: Tensor) -> Tensor:
    """Return the mask with size one along dimensions whose elements are reached alike."""
    for dim in range(1, mask.dim()):
        first, last = mask.narrow(dim, 0, 1), mask.narrow(dim, -1, 1)
        # most masks that are not repeated differ at their ends, which are compared faster
        if mask.shape[dim] > 1 and torch.equal(first, last) and bool((mask == first).all()):
            mask = first
    return mask


def after_step(mask: Tensor, shape: Shape, step: Step, border: Border = "none") -> Tensor:
    """Return the mask after a step from a tensor of this shape."""
    if isinstance(step, Look):
        return _after_look(mask, shape, step, border)
    if isinstance(step, Reshape):
        return _after_reshape(mask, shape, step.shape)
    if isinstance(step, Unfold):
        return _after_unfold(mask, shape, step)
    return mask


def placed(mask: Tensor, piece: Piece, size: int) -> Tensor:
    """Return the mask of a result that has a tensor as a piece, and nothing else."""
    dim = piece.dim + 1
    sizes = list(mask.shape)
    sizes[dim] = size
    result = empty_mask(sizes)
    result.narrow(dim, piece.start, piece.stop - piece.start).copy_(mask)
    return result


def united(masks: Sequence[Tensor]) -> Tensor:
    """Return the mask of what is reached according to any of the masks."""
    result, *others = masks
    for other in others:
        check_size(torch.broadcast_shapes(result.shape, other.shape))
        result = result | other
    return result


# -- a look --------------------------------------------------------------------------------------


def _after_look(mask: Tensor, shape: Shape, step: Look, border: Border) -> Tensor:
    targets: list[int] = []  # for each dimension that is left, that of the result
    for dim, (how, size) in enumerate(zip(step.dims, shape, strict=True), 1):
        if isinstance(how, At):
            mask = mask.narrow(dim, how.index if mask.shape[dim] > 1 else 0, 1)
        elif isinstance(how, Along):
            mask = tapped(mask, dim, size, how.taps, step.shape[how.dim], border)
            targets.append(how.dim)
        elif isinstance(how, UpTo):
            mask = running(mask, dim, step.shape[how.dim])
            targets.append(how.dim)
        else:
            mask = reached_along(mask, dim)
    sizes = [len(mask)]
    for how, size in zip(step.dims, mask.shape[1:], strict=True):
        if isinstance(how, Along | UpTo):
            sizes.append(size)
    return _with_dims(mask.reshape(sizes), targets, step.shape)


def _with_dims(mask: Tensor, targets: list[int], shape: Shape) -> Tensor:
    """Return the mask with its dimensions where they are in a result of this shape."""
    for target in sorted(set(targets)):
        if targets.count(target) > 1:
            mask, targets = _on_diagonal(mask, targets, target, shape[target])
    order = sorted(range(len(targets)), key=targets.__getitem__)
    mask = mask.permute(0, *[dim + 1 for dim in order])
    sizes = [1] * len(shape)
    for target, size in zip(sorted(targets), mask.shape[1:], strict=True):
        sizes[target] = size
    return mask.reshape(len(mask), *sizes)


def _on_diagonal(
    mask: Tensor, targets: Sequence[int], target: int, size: int
) -> tuple[Tensor, list[int]]:
    """Return the mask with one dimension for all that are read along the same of the result."""
    dims = [dim for dim, each in enumerate(targets, 1) if each == target]
    sizes = [-1] * mask.dim()
    for dim in dims:
        sizes[dim] = size
    mask = mask.expand(sizes)
    while len(dims) > 1:
        *dims, one, other = dims
        mask = mask.diagonal(0, one, other)  # which becomes the last dimension
        dims.append(mask.dim() - 1)
    return mask, [*[each for each in targets if each != target], target]


# -- a reshape, an unfolding ---------------------------------------------------------------------


def _after_reshape(mask: Tensor, shape: Shape, new: Shape) -> Tensor:
    """Return the mask after a reshape: only dimensions that are joined or split are expanded."""
    expanded = list(mask.shape)
    sizes = [len(mask), *[1] * len(new)]
    for run in find_runs(shape, new):
        if all(mask.shape[old + 1] == 1 for old in run.olds):
            continue
        for old in run.olds:
            expanded[old + 1] = shape[old]
        for each in run.news:
            sizes[each + 1] = new[each]
    check_size(sizes)
    return without_repeats(mask.expand(expanded).reshape(sizes))


def _after_unfold(mask: Tensor, shape: Shape, step: Unfold) -> Tensor:
    if mask.shape[step.dim + 1] == 1:
        return mask.unsqueeze(-1)
    num_windows = shape_after(shape, step)[step.dim]
    starts = step.step * torch.arange(num_windows, device="cpu")
    offsets = step.spacing * torch.arange(step.size, device="cpu")
    indices = (starts.unsqueeze(1) + offsets).flatten()
    sizes = list(mask.shape)
    sizes[step.dim + 1] = len(indices)
    check_size(sizes)
    sizes[step.dim + 1 : step.dim + 2] = [num_windows, step.size]
    return mask.index_select(step.dim + 1, indices).view(sizes).movedim(step.dim + 2, -1)
