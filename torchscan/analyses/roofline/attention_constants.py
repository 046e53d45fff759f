"""Constants of the time of attention. ``constants`` explains the values that end comments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashAttention:
    """A version of FlashAttention. Between its two products stands a softmax on vector units."""

    #: share of the softmax that products do not hide
    exposed: float
    #: cycles that a tile of 128 queries takes besides its keys
    tile_cycles: float
    #: seconds of a tile for each key, with one query a head and heads of 128
    seconds_of_key: float
    #: cycles of the kernel that combines pieces of the keys, and of the copy where there are none
    combine_cycles: float
    copy_cycles: float
    #: True if keys of heads that share none with another are split
    splits_single_heads: bool


#: with synchronous instructions, as torch runs it; fitted to vLLM's kernels on A100 and L40S.
#: Cycles of a tile 4,360 to 4,850; of a key 16 to 20 ns; to combine 9,600 to 12,600; to copy 6,500
#: to 10,200
FLASH_2 = FlashAttention(
    exposed=1.0,
    tile_cycles=4600.0,
    seconds_of_key=18.0e-9,
    combine_cycles=11.0e3,
    copy_cycles=8.4e3,
    splits_single_heads=False,
)
#: with the asynchronous instructions of Hopper, as engines run it; fitted to vLLM's kernels on
#: H200. Exposed 0.35 to 0.42; cycles of a tile 8,470 to 9,510; of a key 5.8 to 7.6 ns; to combine
#: 3,200 to 3,380
FLASH_3 = FlashAttention(
    exposed=0.36,
    tile_cycles=9500.0,
    seconds_of_key=6.3e-9,
    combine_cycles=3.2e3,
    copy_cycles=0.0,
    splits_single_heads=True,
)
#: a softmax: exponentials of a multiprocessor in a cycle; other operations of vector units for each
#: score: scaling, maximum, difference, sum, conversion. 5.6 to 8.2
EXPONENTIALS_PER_CYCLE, SOFTMAX_OPERATIONS = 16, 6.0
#: share of Hopper's peak that synchronous instructions reach. Not fitted: with it, FlashAttention 2
#: reaches 0.4 of the peak there
SYNCHRONOUS_ON_HOPPER = 0.62
#: share of the peak that the backward pass of asynchronous kernels reaches: cuDNN's on Hopper, 0.31
#: at 512 to 0.52 at 8,192 keys; those of Blackwell are taken to be alike
ATTENTION_BACKWARD = 0.45
#: backward pass of FlashAttention 2, for a tile of 128 keys and each number of a head's width:
#: cycles of loading operands from shared memory for a query; cycles to begin and to end, with the
#: kernels before and after. From its published rates on an H100: 198 to 322 TFLOP/s at 512 to
#: 16,384 keys and widths of 64 and 128, met within 5 %. With them, an A100 reaches 62 % of its peak
#: (published: 63 %)
BACKWARD_LOADS, BACKWARD_TILE_CYCLES = 0.84, 235.0
#: cycles from a launch to the first tile, with the update of the cache: three kernels. 7,000 to
#: 9,000
ATTENTION_FLOOR_CYCLES = 8.6e3
#: the tiles of a prompt and its longest tile add up as ``(a^p + b^p)^(1/p)``, because the longest
#: ends last where tiles are few. 1.8 to 3.1
ATTENTION_TAIL = 2.0
#: seconds of a tile of one query a head, without its keys: it waits for memory some times. 4.0 to
#: 4.2 µs
ATTENTION_TILE_START = 4e-6
#: keys of a piece at least, and tiles of a multiprocessor at a time. 131 to 165; 3.4 to 4.7
ATTENTION_SPLIT_KEYS, RESIDENT_TILES = 147, 4.0
#: keys that it takes at a time: of a causal mask, blocks that lie beyond the diagonal are left out
ATTENTION_BLOCK = 128
