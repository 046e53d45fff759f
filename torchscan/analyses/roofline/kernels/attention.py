"""Fused attention: FlashAttention's tiles, for prompts and for single tokens.

A multiprocessor works on a tile: 128 queries of a head, or, when tokens are generated, the one query
of the heads that share a key head. A tile goes through all its keys, one block after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchscan.analyses.roofline.constants import (
    ATTENTION_BACKWARD,
    ATTENTION_BLOCK,
    ATTENTION_FLOOR_CYCLES,
    ATTENTION_KEY,
    ATTENTION_PEAK,
    ATTENTION_RESIDENT_TILES,
    ATTENTION_SPLIT_KEYS,
    ATTENTION_TAIL,
    ATTENTION_TILE_CYCLES,
    ATTENTION_TILE_START,
    COMBINE_CYCLES,
    COPY_CYCLES,
    STREAMING,
)
from torchscan.analyses.roofline.kernels.kernel_registry import Kernel, Machine, rule
from torchscan.ops import OpCost
from torchscan.trace.events import OpSignature

#: queries of a tile, and queries that share keys at most when tokens are generated
TILE_QUERIES, MAX_SHARED_QUERIES = 128, 64
#: queries of a head up to which tokens are generated (several, if they are drafted)
MAX_DECODED = 16
_KERNELS = ("flash", "efficient", "cudnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    is_causal: bool

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return max(1, self.heads // max(self.key_heads, 1))


@rule(
    *(f"_scaled_dot_product_{name}_attention" for name in _KERNELS),
    "_scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_attention",
)
def _attention(signature: OpSignature, _cost: OpCost, machine: Machine) -> Kernel:
    shape = _shape_of(signature)
    if shape.queries <= MAX_DECODED and shape.queries < shape.keys:
        return _of_single_tokens(shape, machine)
    return _of_prompt(shape, machine, causal_share=_causal_shares(shape))


@rule(
    *(f"_scaled_dot_product_{name}_attention_backward" for name in _KERNELS),
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
def _attention_backward(signature: OpSignature, _cost: OpCost, _machine: Machine) -> Kernel:
    min_share, executed = _causal_shares(_shape_of(signature, first=1))
    return Kernel(
        matrices=ATTENTION_BACKWARD, min_share=min_share, executed=executed, launches=3
    )


def _shape_of(signature: OpSignature, first: int = 0) -> _Shape:
    """Return the shape of a call, whose operands from ``first`` on are queries, keys and values."""
    query, key = signature.inputs[first].shape, signature.inputs[first + 1].shape
    return _Shape(
        batch=math.prod(query[:-3]),
        heads=query[-3] if len(query) > 2 else 1,
        key_heads=key[-3] if len(key) > 2 else 1,
        queries=query[-2],
        keys=key[-2],
        width=query[-1],
        is_causal=bool(signature.arguments.get("is_causal", False)),
    )


def _causal_shares(shape: _Shape) -> tuple[float, float]:
    """Return the share of the scores that has to be computed, and the share that is: blocks beyond the diagonal are skipped."""
    if not shape.is_causal or shape.queries != shape.keys:
        return 1.0, 1.0
    keys = shape.keys
    return (keys + 1) / (2 * keys), min(1.0, (keys + ATTENTION_BLOCK) / (2 * keys))


def _of_prompt(
    shape: _Shape, machine: Machine, causal_share: tuple[float, float]
) -> Kernel:
    """Return the kernel of many queries: tiles fill the device, but for the longest one at the end."""
    min_share, executed = causal_share
    kind = "async" if machine.has_async_attention else "sync"
    peak, tile_cycles = ATTENTION_PEAK[kind], ATTENTION_TILE_CYCLES[kind]
    tiles = shape.batch * shape.heads * math.ceil(shape.queries / TILE_QUERIES)
    floor = machine.seconds(ATTENTION_FLOOR_CYCLES)
    if machine.flops_per_cycle is None:
        return Kernel(matrices=peak, min_share=min_share, executed=executed, alone=floor)
    cycles_of_key = 4 * TILE_QUERIES * shape.width / (machine.flops_per_cycle * peak)
    mean = tile_cycles + executed * shape.keys * cycles_of_key
    longest = tile_cycles + shape.keys * cycles_of_key
    total = tiles * mean / machine.multiprocessors
    elapsed = float((total**ATTENTION_TAIL + longest**ATTENTION_TAIL) ** (1 / ATTENTION_TAIL))
    flops = 4 * shape.batch * shape.heads * shape.queries * shape.keys * shape.width * executed
    share = flops / (elapsed * machine.multiprocessors * machine.flops_per_cycle)
    return Kernel(matrices=share, min_share=min_share, executed=executed, alone=floor)


def _of_single_tokens(shape: _Shape, machine: Machine) -> Kernel:
    """Return the kernel of one query a head: long keys are split among multiprocessors that would be idle.

    FlashAttention 2 splits keys only where several query heads share them. Its pieces are then
    combined by a second kernel; without pieces, the results of a batch are copied.
    """
    is_async = machine.has_async_attention
    kind = "async" if is_async else "sync"
    shared = math.ceil(shape.queries * shape.group / MAX_SHARED_QUERIES)
    tiles = max(1, shape.batch * shape.key_heads * shared)
    pieces = 1
    if is_async or shape.group > 1:
        room = int(ATTENTION_RESIDENT_TILES * machine.multiprocessors) // tiles
        pieces = max(1, min(room, math.ceil(shape.keys / ATTENTION_SPLIT_KEYS)))
    seconds = ATTENTION_TILE_START + ATTENTION_KEY[kind] * shape.width / 128 * shape.keys / pieces
    seconds *= max(1.0, tiles * pieces / machine.multiprocessors)
    after = 0.0
    if pieces > 1:
        after = COMBINE_CYCLES[kind]
    elif not is_async and shape.group > 1 and shape.key_heads > 1 and shape.batch > 1:
        after = COPY_CYCLES
    clock = machine.clock_hz or 0.0
    return Kernel(
        traffic=STREAMING,
        cycles=seconds * clock * machine.multiprocessors,
        alone=machine.seconds(ATTENTION_FLOOR_CYCLES + after),
    )
