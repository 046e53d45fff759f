"""Fused attention: the tiles of FlashAttention, for prompts and for single tokens.

A multiprocessor works on a tile: on 128 queries of a head or, while tokens are generated, on the
query heads that share a key head. A tile goes through its keys, one block after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchscan.analyses.roofline.attention_constants import (
    ATTENTION_BACKWARD,
    ATTENTION_FLOOR_CYCLES,
    ATTENTION_SPLIT_KEYS,
    ATTENTION_TAIL,
    ATTENTION_TILE_START,
    BACKWARD_LOADS,
    BACKWARD_TILE_CYCLES,
    EXPONENTIALS_PER_CYCLE,
    FLASH_2,
    FLASH_3,
    RESIDENT_TILES,
    SOFTMAX_OPERATIONS,
    SYNCHRONOUS_ON_HOPPER,
    FlashAttention,
)
from torchscan.analyses.roofline.constants import MATRICES
from torchscan.analyses.roofline.kernels.attention_shape import OF_ENGINES, AttentionShape
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, rule
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature

#: queries of a tile
TILE_QUERIES = 128
#: query heads of a tile that share keys, while tokens are generated
MAX_SHARED_QUERIES = 64
#: queries of a head up to which tokens are generated: several, if they are drafted
MAX_DECODED = 16
#: width of the heads that seconds of a key are given for
HEAD_WIDTH = 128
#: widest head of which several tiles fit into the registers of a multiprocessor
MAX_HEAD_WIDTH = 256
_KERNELS = ("flash", "efficient", "cudnn")
#: scores again, and the gradients of scores, queries, keys and values
_BACKWARD_PRODUCTS = 5


@rule(
    *(f"_scaled_dot_product_{name}_attention" for name in _KERNELS),
    "_scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_attention",
    OF_ENGINES.replace(".", "::"),
)
def _attention(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    shape = AttentionShape.of(signature)
    if shape.queries <= MAX_DECODED and shape.queries < shape.keys:
        return _attend_single_tokens(shape, machine)
    return _attend_prompt(shape, machine)


@rule("torchscan::latent_attention")
def _latent_attention(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    return _attend_single_tokens(AttentionShape.of_latents(signature), machine)


@rule(
    *(f"_scaled_dot_product_{name}_attention_backward" for name in _KERNELS),
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def _attention_backward(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    """Return a kernel whose tiles are 128 keys, and go through the queries."""
    shape = AttentionShape.of(signature, first=1)
    is_async = machine.is_hopper and "cudnn" in signature.operator
    share = ATTENTION_BACKWARD
    if machine.flops_per_cycle is not None and not (is_async or machine.has_async_backward):
        elapsed = _elapsed_cycles_backward(shape, machine, machine.flops_per_cycle)
        computed = _BACKWARD_PRODUCTS / 2 * shape.computed_flops / machine.multiprocessors
        share = computed / (elapsed * machine.flops_per_cycle)
    return Kernel(matrices=share, min_share=shape.min_share, executed=shape.computed_share)


def _elapsed_cycles_backward(
    shape: AttentionShape, machine: Machine, flops_per_cycle: float
) -> float:
    """Return the cycles until the last tile is done.

    FlashAttention 2 has five products, whose operands come from shared memory. That takes as many
    cycles on each GPU, so the products wait for it where matrix units are fast.
    """
    products = 2 * _BACKWARD_PRODUCTS * TILE_QUERIES * shape.mean_width / flops_per_cycle
    loads = BACKWARD_LOADS * shape.mean_width
    cycles_of_query = max(products, loads) + TILE_QUERIES * _cycles_of_score(machine)
    tiles = shape.batch * shape.heads * math.ceil(shape.keys / TILE_QUERIES)
    start = BACKWARD_TILE_CYCLES * shape.mean_width
    return _cycles_of_tiles(tiles, start, cycles_of_query, shape, machine)


def _attend_prompt(shape: AttentionShape, machine: Machine) -> Kernel:
    """Return the kernel of many queries.

    Tiles fill the device, except for the longest at the end.
    """
    share = 1.0
    if machine.flops_per_cycle is not None:
        elapsed = _elapsed_cycles(shape, machine, machine.flops_per_cycle)
        computed = shape.computed_flops / machine.multiprocessors
        share = computed / (elapsed * machine.flops_per_cycle)
    return Kernel(
        matrices=share,
        min_share=shape.min_share,
        executed=shape.computed_share,
        alone=machine.seconds(ATTENTION_FLOOR_CYCLES),
        keeps_busy=True,
    )


def _elapsed_cycles(shape: AttentionShape, machine: Machine, flops_per_cycle: float) -> float:
    """Return the cycles until the last tile is done, without the power limit."""
    flash = _flash_of(machine)
    tiles = shape.batch * shape.heads * math.ceil(shape.queries / TILE_QUERIES)
    cycles_of_key = 4 * TILE_QUERIES * shape.mean_width / flops_per_cycle
    if machine.is_hopper and not machine.has_async_attention:
        cycles_of_key /= SYNCHRONOUS_ON_HOPPER
    cycles_of_key += flash.exposed * TILE_QUERIES * _cycles_of_score(machine)

    return _cycles_of_tiles(tiles, flash.tile_cycles, cycles_of_key, shape, machine)


def _cycles_of_tiles(
    tiles: int, start: float, cycles_of_step: float, shape: AttentionShape, machine: Machine
) -> float:
    """Return the cycles of all tiles; the longest one ends last where tiles are few."""
    longest = start + shape.longest_tile * cycles_of_step
    mean = start + shape.mean_tile * cycles_of_step
    filled = tiles * mean / machine.multiprocessors
    return float((filled**ATTENTION_TAIL + longest**ATTENTION_TAIL) ** (1 / ATTENTION_TAIL))


def _cycles_of_score(machine: Machine) -> float:
    """Return the cycles of a multiprocessor for the softmax of a score."""
    return 1 / EXPONENTIALS_PER_CYCLE + SOFTMAX_OPERATIONS / machine.vector_lanes


def _attend_single_tokens(shape: AttentionShape, machine: Machine) -> Kernel:
    """Return the kernel of one query a head: long keys are split among idle multiprocessors.

    FlashAttention 2 splits keys only where several query heads share them. A second kernel combines
    the pieces; without pieces, results are copied into the order of heads.
    """
    flash = _flash_of(machine)
    rows = shape.queries * shape.group
    tiles = shape.batch * shape.key_heads * math.ceil(rows / MAX_SHARED_QUERIES)
    keys = min(shape.keys, shape.seen + shape.queries - 1)
    tile = _decoding_tile(shape, machine)
    pieces = 1
    if flash.splits_single_heads or shape.group > 1:
        room = int(tile.resident * machine.multiprocessors) // max(tiles, 1)
        pieces = max(1, min(room, math.ceil(keys / ATTENTION_SPLIT_KEYS)))

    seconds = ATTENTION_TILE_START + tile.seconds_of_key * keys / pieces
    seconds *= max(1.0, tiles * pieces / machine.multiprocessors)
    cycles_after = 0.0
    if pieces > 1:
        cycles_after = flash.combine_cycles
    elif min(shape.group, shape.key_heads, shape.batch) > 1:
        cycles_after = flash.copy_cycles
    return Kernel(
        traffic=machine.product_traffic,
        matrices=tile.matrices,
        executed=tile.executed,
        keeps_busy=tile.is_wide,
        cycles=seconds * (machine.clock_hz or 0.0) * machine.multiprocessors,
        alone=machine.seconds(ATTENTION_FLOOR_CYCLES + cycles_after),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodingTile:
    """A tile of the query heads that share a key head, while tokens are generated."""

    seconds_of_key: float
    #: tiles that a multiprocessor works on at a time
    resident: float = RESIDENT_TILES
    #: True if results fill the registers of a multiprocessor, as with latents
    is_wide: bool = False
    #: share of the matrix units' peak, and computed products as a share of the counted ones
    matrices: float = MATRICES
    executed: float = 1.0


def _decoding_tile(shape: AttentionShape, machine: Machine) -> _DecodingTile:
    """Return the tile of a head, or of latents, where the products of all heads take longer.

    A tile of 64 results of 512 numbers fills the registers. So there is one at a time, and its
    products wait for its softmax.
    """
    seconds_of_key = _flash_of(machine).seconds_of_key * shape.mean_width / HEAD_WIDTH
    if shape.value_width <= MAX_HEAD_WIDTH or machine.flops_per_cycle is None:
        return _DecodingTile(seconds_of_key=seconds_of_key)
    rows = shape.queries * shape.group
    padded = MAX_SHARED_QUERIES * math.ceil(rows / MAX_SHARED_QUERIES)
    of_products = 4 * MAX_SHARED_QUERIES * shape.mean_width / machine.flops_per_cycle
    of_key = of_products + MAX_SHARED_QUERIES * _cycles_of_score(machine)
    return _DecodingTile(
        seconds_of_key=machine.seconds(of_key),
        resident=1.0,
        is_wide=True,
        matrices=of_products / of_key,
        executed=padded / rows,
    )


def _flash_of(machine: Machine) -> FlashAttention:
    return FLASH_3 if machine.has_async_attention else FLASH_2
