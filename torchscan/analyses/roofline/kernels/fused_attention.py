"""Fused attention: the tiles of FlashAttention, for prompts and for single tokens.

A multiprocessor works on a tile: on 128 queries of a head or, while tokens are generated, on the
query heads that share a key head. A tile goes through its keys, one block after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchscan.analyses.roofline.constants import (
    ATTENTION_BACKWARD,
    ATTENTION_BLOCK,
    ATTENTION_FLOOR_CYCLES,
    ATTENTION_SPLIT_KEYS,
    ATTENTION_TAIL,
    ATTENTION_TILE_START,
    EXPONENTIALS_PER_CYCLE,
    FLASH_2,
    FLASH_3,
    RESIDENT_TILES,
    SOFTMAX_OPERATIONS,
    SYNCHRONOUS_ON_HOPPER,
    FlashAttention,
)
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
_KERNELS = ("flash", "efficient", "cudnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes of a call of fused attention."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    is_causal: bool

    @classmethod
    def of(cls, signature: OpSignature, first: int = 0) -> AttentionShape:
        """Return the sizes of a call, whose operands from ``first`` on are queries and keys."""
        query, key = signature.inputs[first].shape, signature.inputs[first + 1].shape
        heads = query[-3] if len(query) > 2 else 1
        key_heads = key[-3] if len(key) > 2 else 1
        return cls(
            batch=math.prod(query[:-3]),
            heads=heads,
            key_heads=key_heads,
            queries=query[-2],
            keys=key[-2],
            width=query[-1],
            is_causal=bool(signature.arguments.get("is_causal", False)),
        )

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return max(1, self.heads // max(self.key_heads, 1))

    @property
    def skips_blocks(self) -> bool:
        """True if the blocks beyond the diagonal are not computed."""
        return self.is_causal and self.queries == self.keys

    @property
    def min_share(self) -> float:
        """Share of the scores that has to be computed."""
        return (self.keys + 1) / (2 * self.keys) if self.skips_blocks else 1.0

    @property
    def computed_share(self) -> float:
        """Share of the scores that is computed, in whole blocks."""
        if not self.skips_blocks:
            return 1.0
        return min(1.0, (self.keys + ATTENTION_BLOCK) / (2 * self.keys))

    @property
    def computed_flops(self) -> float:
        """Operations of the two products."""
        scores = self.batch * self.heads * self.queries * self.keys
        return 4 * scores * self.width * self.computed_share


@rule(
    *(f"_scaled_dot_product_{name}_attention" for name in _KERNELS),
    "_scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_attention",
)
def _attention(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    shape = AttentionShape.of(signature)
    if shape.queries <= MAX_DECODED and shape.queries < shape.keys:
        return _attend_single_tokens(shape, machine)
    return _attend_prompt(shape, machine)


@rule(
    *(f"_scaled_dot_product_{name}_attention_backward" for name in _KERNELS),
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def _attention_backward(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    shape = AttentionShape.of(signature, first=1)
    return Kernel(
        matrices=ATTENTION_BACKWARD, min_share=shape.min_share, executed=shape.computed_share
    )


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
    cycles_of_key = 4 * TILE_QUERIES * shape.width / flops_per_cycle
    if machine.is_hopper and not machine.has_async_attention:
        cycles_of_key /= SYNCHRONOUS_ON_HOPPER
    cycles_of_score = 1 / EXPONENTIALS_PER_CYCLE + SOFTMAX_OPERATIONS / machine.vector_lanes
    cycles_of_key += flash.exposed * TILE_QUERIES * cycles_of_score

    longest = flash.tile_cycles + shape.keys * cycles_of_key
    mean = flash.tile_cycles + shape.computed_share * shape.keys * cycles_of_key
    filled = tiles * mean / machine.multiprocessors
    return float((filled**ATTENTION_TAIL + longest**ATTENTION_TAIL) ** (1 / ATTENTION_TAIL))


def _attend_single_tokens(shape: AttentionShape, machine: Machine) -> Kernel:
    """Return the kernel of one query a head: long keys are split among idle multiprocessors.

    FlashAttention 2 splits keys only where several query heads share them. A second kernel combines
    the pieces; without pieces, results are copied into the order of heads.
    """
    flash = _flash_of(machine)
    tiles = shape.batch * shape.key_heads
    tiles *= math.ceil(shape.queries * shape.group / MAX_SHARED_QUERIES)
    pieces = 1
    if flash.splits_single_heads or shape.group > 1:
        room = int(RESIDENT_TILES * machine.multiprocessors) // max(tiles, 1)
        pieces = max(1, min(room, math.ceil(shape.keys / ATTENTION_SPLIT_KEYS)))

    seconds_of_key = flash.seconds_of_key * shape.width / HEAD_WIDTH
    seconds = ATTENTION_TILE_START + seconds_of_key * shape.keys / pieces
    seconds *= max(1.0, tiles * pieces / machine.multiprocessors)
    cycles_after = 0.0
    if pieces > 1:
        cycles_after = flash.combine_cycles
    elif min(shape.group, shape.key_heads, shape.batch) > 1:
        cycles_after = flash.copy_cycles
    return Kernel(
        traffic=machine.product_traffic,
        cycles=seconds * (machine.clock_hz or 0.0) * machine.multiprocessors,
        alone=machine.seconds(ATTENTION_FLOOR_CYCLES + cycles_after),
    )


def _flash_of(machine: Machine) -> FlashAttention:
    return FLASH_3 if machine.has_async_attention else FLASH_2
