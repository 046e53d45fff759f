"""Products of matrices, and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchscan.analyses.roofline.constants import (
    CHAIN_CYCLES,
    CHAIN_LENGTH,
    CONTRACTIONS,
    MATRICES,
    PARTLY_FILLED,
    PRODUCT_SUM_STEP,
    PRODUCT_TILES,
    RECURRENCE,
    SPLIT_LENGTH,
    SPLIT_STEP,
    STREAMING,
    SUM_STEP,
    TILE_LOADS,
    TILE_START_CYCLES,
    TILES,
)
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, rule
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature, TensorSpec


def filled(rows: int, columns: int, sums: int, batch: int, multiprocessors: int) -> float:
    """Return the useful share of what the device computes for ``batch`` products.

    A tile is computed whole, and a wave takes as long whether all multiprocessors have a tile or
    one::

        work  = min over tiles of waves · multiprocessors · tile · padded sums / share of the peak
        share = rows · columns · sums / work
    """
    padded = padded_to(sums, SUM_STEP)
    min_work = math.inf
    for (tall, wide), share in TILES.items():
        tiles_of_product = math.ceil(rows / tall) * math.ceil(columns / wide)
        tiles = tiles_of_product * batch
        free = multiprocessors // max(tiles, 1)
        pieces = max(1, min(free, sums // SPLIT_STEP))
        waves = math.ceil(tiles * pieces / multiprocessors) / pieces
        work = waves * multiprocessors * tall * wide * padded / share
        min_work = min(min_work, work)
    if not min_work:
        return 1.0
    return rows * columns * sums * batch / min_work


def product_share(rows: int, columns: int, sums: int, batch: int, machine: Machine) -> float:
    """Return the useful share of what the device computes for ``batch`` products of matrices.

    A wave of tiles takes as long whether all multiprocessors have one. Where there are fewer tiles
    than multiprocessors, sums are split. A tile takes some cycles to begin and to end, more if it
    is larger::

        time  = min over tiles of waves · (tile · padded sums / pieces / share + start)
        share = rows · columns · sums / (time · multiprocessors)
    """
    padded = padded_to(sums, PRODUCT_SUM_STEP)
    macs_per_cycle = (machine.flops_per_cycle or 0.0) / 2
    shortest = math.inf
    for tall, wide in PRODUCT_TILES:
        tiles = batch * _count_whole(rows / tall) * _count_whole(columns / wide)
        free = machine.multiprocessors / max(tiles, 1)
        pieces = max(1.0, min(free, sums / SPLIT_LENGTH))
        waves = _count_whole(tiles * pieces / machine.multiprocessors)
        edge = math.sqrt(tall * wide / _LARGEST_TILE)
        start = macs_per_cycle * TILE_START_CYCLES * edge
        reached = pieces * share_of_tile(tall, wide)
        macs = tall * wide * padded / reached + start
        shortest = min(shortest, waves * machine.multiprocessors * macs)
    if not shortest:
        return 1.0
    return rows * columns * sums * batch / shortest


def _count_whole(count: float) -> float:
    """Return a count of tiles or waves, of which the last is shorter if little of it is filled.

    A library has kernels of other tiles for such sizes, and splits the sums of a last wave.
    """
    if count <= 1:
        return 1.0
    return math.floor(count) + min(1.0, math.fmod(count, 1) / PARTLY_FILLED)


def share_of_tile(tall: int, wide: int) -> float:
    """Return the share of the peak that a tile reaches, relative to the largest.

    Its loads grow with its edges, its products with its area.
    """
    height, width = PRODUCT_TILES[0]
    work_of_largest = 1 + TILE_LOADS * (1 / height + 1 / width)
    work = 1 + TILE_LOADS * (1 / tall + 1 / wide)
    return work_of_largest / work


_LARGEST_TILE = math.prod(PRODUCT_TILES[0])


def padded_to(count: int, step: int) -> int:
    """Return the next multiple of ``step``, at least one of them."""
    return -(-max(count, 1) // step) * step


@rule("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm", "_int_mm")
def _product(signature: OpSignature, cost: OpCost, machine: Machine) -> Kernel:
    """Return the kernel of a product of the last two operands.

    Those of ``linear`` come first, and its weight is transposed.
    """
    operands = [spec for spec in signature.inputs if len(spec.shape) >= 2]
    if len(operands) < 2 or not cost.macs:
        return any_product(signature, cost, machine)
    *outer, columns = signature.outputs[0].shape
    if signature.operator in _BATCHED:
        batch, rows, columns = _fold_batch(outer[0], outer[1], columns, operands)
    else:
        batch, rows = 1, math.prod(outer)
    sums = cost.macs // max(rows * columns * batch, 1)
    share = product_share(rows, columns, sums, batch, machine)
    return _kernel_of_product(share, sums, machine)


_BATCHED = ("aten.bmm", "aten.baddbmm")


def _fold_batch(
    batch: int, rows: int, columns: int, operands: Sequence[TensorSpec]
) -> tuple[int, int, int]:
    """Return the products of a batch, and the rows and columns of each.

    If one of the two factors is the same matrix for the whole batch, there is a single product:
    the other factor's rows, or columns, lie side by side. Linear layers end up here, with an
    expanded weight, where torch cannot flatten their input.
    """
    left, right = operands[-2:]
    if _is_expanded(right):
        return 1, batch * rows, columns
    if _is_expanded(left):
        return 1, rows, batch * columns
    return batch, rows, columns


def _is_expanded(factor: TensorSpec) -> bool:
    return factor.stride[:1] == (0,)


@rule("_grouped_mm", "_scaled_grouped_mm")
def _grouped_product(signature: OpSignature, cost: OpCost, machine: Machine) -> Kernel:
    """Return one product for each expert that gets rows.

    As many experts as possible get rows, each the same number.
    """
    left, right = signature.inputs[:2]
    if (len(left.shape), len(right.shape)) != (2, 3):
        return any_product(signature, cost, machine)
    slots, sums = left.shape
    columns = right.shape[-1]
    experts = max(1, min(right.shape[0], slots))
    rows = math.ceil(slots / experts)
    share = product_share(rows, columns, sums, experts, machine)
    return _kernel_of_product(share, sums, machine)


def _kernel_of_product(share: float, sums: int, machine: Machine) -> Kernel:
    """Return the kernel of a product, whose chain of sums waits for operands at each step.

    No tile can hide these waits.
    """
    latency = machine.seconds(CHAIN_CYCLES * min(sums, CHAIN_LENGTH))
    return Kernel(traffic=machine.product_traffic, matrices=MATRICES * share, alone=latency)


@rule("mv", "addmv", "dot", "vdot")
def _with_vector(_signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    return Kernel(traffic=STREAMING, units="vector")


def any_product(_signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Return the kernel of products without a rule."""
    return Kernel(traffic=CONTRACTIONS, matrices=MATRICES)


@rule(
    "_cudnn_rnn", "_cudnn_rnn_backward", "lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer"
)
def _recurrent(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    """Return kernels of steps, of which each waits for the previous one, at any batch size."""
    source = signature.inputs[0].shape
    is_batch_first = signature.arguments.get("batch_first", False) and len(source) > 2
    steps = source[1] if is_batch_first else source[0]
    packed = signature.arguments.get("batch_sizes", None)
    is_packed = isinstance(packed, tuple) and bool(packed)
    if is_packed and all(isinstance(each, int) for each in packed):
        steps = len(packed)
    weights = [spec for spec in signature.inputs[1:] if len(spec.shape) == 2]
    launches = max(1, steps * len(weights) // 2)
    return Kernel(traffic=CONTRACTIONS, matrices=RECURRENCE, launches=launches)
