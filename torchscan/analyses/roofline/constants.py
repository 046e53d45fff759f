"""Constants of the time estimate. docs/reference/time-model.md explains them further.

They were fitted to the step times of some 1,400 models on one GPU and, for products of matrices,
attention and collectives, to times of single kernels on three (``scripts/fit``), as quantities that
have a meaning on any other. Rates are shares of the data sheet's rates.

Comments of constants that ``scripts/fit`` sets end with the values that it finds without one of the
three GPUs, and its tables: aiconfigurator's, of an A100, an H200 and an L40S. Median errors on the
fitted two thirds, on the rest and on a GPU left out:

======================  ========  ========  ========
kernels                 fitted    the rest  left out
======================  ========  ========  ========
products                5 to 10   5 to 9    7 to 10 %
attention, one token    7 to 9    7 to 10   9 to 13 %
attention, prompts      9 to 10   8 to 11   11 to 14 %
collectives             12 to 14  12 to 14  12 to 43 %
======================  ========  ========  ========
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# -- traffic -------------------------------------------------------------------------------------

#: kernels that stream through memory: pointwise ones, copies, normalization with known statistics
STREAMING = 0.90
#: where operands lie in another order than results, so that one of the two is not read or written
#: in whole lines
REORDERING = 0.80
#: adding at indexed places, with atomic operations
SCATTERING = 0.30
#: how much longer than streaming batch norms take that work out statistics, unless channels are
#: last: a block of threads goes through one channel, from sample to sample
BATCH_NORM, BATCH_NORM_BACKWARD = 1.7, 2.6
#: convolutions and recurrent layers: loads wait for tiles, stores for sums
CONTRACTIONS = 0.50
#: rows of a softmax that one warp keeps in registers, in elements, and that a block keeps in its
#: shared memory, in bytes
LAST_ROW_IN_REGISTERS, SHARED_MEMORY = 1024, 48 * 1024
#: bytes of the first-level cache of a multiprocessor, and the threads that it runs at a time
FIRST_CACHE, RESIDENT_THREADS = 128 * 1024, 2048
#: of the second-level cache, what rows may fill that blocks read again: the rest has copies, and
#: what is written
ROWS_KEPT = 0.5
#: seconds until a thread of the only block has found the target of a row and its score
LOSS_TURN = 1.05e-6
#: positions up to which the gradient of an embedding is one kernel; else the kernels that sort them
#: digit by digit, find equal ones and add their gradients
UNSORTED_POSITIONS, LAUNCHES_OF_SORTED_SCATTERING = 3072, 38
#: of 64 bytes per cycle and multiprocessor, what the second-level cache gives
CACHE = 0.30
#: the share of the cache that survives while as much data streams by
CACHE_KEPT = 0.75
#: of what other memory gives, what GDDR7 does, and GDDR6 that corrects errors, whose check bits
#: travel with the data
SLOWER_MEMORY = 0.84
#: of what other kernels stream, what products and decoding do. Each half of this GPU's cache asks
#: the other for what it lacks. 0.80 to 0.90 in single products with cold weights; served models
#: show 0.93 and more, which counts here
PRODUCTS_STREAM: Mapping[str, float] = {"Ampere GA100": 0.93}

# -- arithmetic ----------------------------------------------------------------------------------

#: products of matrices and convolutions that fill their tiles
MATRICES = 1.0
POINTWISE_CONVOLUTIONS = 0.95
GROUPED_ON_MATRIX_UNITS, GROUPED_ON_VECTOR_UNITS = 0.90, 0.90


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
#: gates of recurrent layers, one step at a time
RECURRENCE = 0.50
#: depthwise convolutions of 4 × 4, 5 × 5 and larger windows, of vector units; up to 3 × 3 they only
#: stream
DEPTHWISE_UP_TO_25, DEPTHWISE_LARGER = 0.15, 0.038
#: the same channels-last, where cuDNN has kernels that stream up to 7 × 7
DEPTHWISE_CHANNELS_LAST_LARGER = 0.02
#: anything else on vector units
VECTORS = 0.5
#: cycles of a multiprocessor for each row that is normalized: its threads wait for the sums of one
#: another, twice
CYCLES_OF_ROW = 250.0
#: cycles of a multiprocessor for each element, where threads have an address to compute for it:
#: joining tensors, averages over windows, interpolation, depthwise convolutions up to 3 × 3,
#: grouped ones
CYCLES_OF_JOINING, CYCLES_OF_AVERAGE, CYCLES_OF_INTERPOLATION = 0.65, 1.1, 2.0
CYCLES_OF_DEPTHWISE, CYCLES_OF_GROUPED = 1.4, 2.2

#: the same where a pointwise kernel loads one element at a time, because it casts, broadcasts or
#: reorders: on other architectures it takes as long as its traffic. Hopper: 0.72 to 0.85
CYCLES_OF_ELEMENT: Mapping[str, float] = {"Ampere GA100": 0.72, "Hopper": 0.78}
#: the same where threads update a mean and a variance, with a division for each element
CYCLES_OF_MOMENTS = 0.65
#: the same where rows are picked from a table (torch up to 2.7), where sums of gradients are added
#: to one, and for each gradient that is summed
CYCLES_OF_GATHERING, CYCLES_OF_SCATTERING, CYCLES_OF_SUMMING = 1.9, 3.7, 0.3
#: bytes that a multiprocessor moves in a cycle in kernels for lists of tensors in 16 bits, where a
#: thread loads four elements at a time: with one list that is read, and with several. An H100's
BYTES_OF_LIST, BYTES_OF_LISTS = 11.2, 16.7
#: cycles for each state of an optimizer in 8 bits, whose values are searched in a table: AdamW's
#: of bitsandbytes on an H100
CYCLES_OF_STATE_IN_8_BITS = 3.4

#: tiles of products, and the share of the peak that each can reach: small ones load more for each
#: product
TILES: Mapping[tuple[int, int], float] = {
    (256, 128): 1.0,
    (128, 256): 1.0,
    (128, 128): 1.0,
    (256, 64): 0.85,
    (128, 64): 0.85,
    (64, 128): 0.85,
    (64, 64): 0.7,
    (32, 32): 0.4,
}
#: products of matrices: their tiles, the largest first
PRODUCT_TILES = (
    *((256, 128), (128, 256), (128, 192), (192, 128), (128, 128)),
    *((256, 64), (64, 256), (192, 64), (64, 192), (128, 64), (64, 128), (64, 64)),
    *((256, 32), (32, 256), (192, 32), (32, 192), (128, 32), (32, 128)),
    *((64, 32), (32, 64), (32, 32)),
)
#: what loading the edges of a tile costs, relative to its products (``share_of_tile``). 50 to 64
TILE_LOADS = 63.0
#: cycles that the largest tile takes to begin and to end: until operands arrive, and results are
#: written. 3,050 to 6,800
TILE_START_CYCLES = 4100.0
#: the last tile of rows or columns, and the last wave, take as long as whole ones from this share
#: on. Chosen, because measured times grow little from one row to the next
PARTLY_FILLED = 0.3
#: of the share that a tile reaches in 16 bits, what it reaches in 8 and 4 in an engine:
#: accumulators are added up in between. Source: Cutlass's 8-bit products on H200 (aiconfigurator).
#: torch's own 8-bit products are cuBLAS's, which reach a share that is at least as large as in 16
#: bits: by torchao's roofline 0.78 and 0.69 on H100
NARROW_SHARE = 0.75
#: summands of a step, and of a piece at least where the sum is split: pieces are added up in
#: another pass. 590 to 740
PRODUCT_SUM_STEP, SPLIT_LENGTH = 64, 720
#: cycles that a product waits for each summand of its chain, up to this many: what no tile can
#: hide. 1.8 to 3.0; 1,750 to 3,000
CHAIN_CYCLES, CHAIN_LENGTH = 2.0, 2600
#: products are summed in steps of this many; channels of convolutions are padded to multiples of
#: this many
SUM_STEP, CHANNEL_STEP = 32, 8
#: a product with fewer tiles than multiprocessors is split along the sum, into pieces of at least
#: this many
SPLIT_STEP = 256
#: arithmetic and traffic overlap: time = (arithmetic^p + traffic^p)^(1/p)
OVERLAP = 3.0
#: operations on the vector units for each weight that is stored in 8 or 4 bits (to shift, convert
#: and scale it), during which nothing else is done. Chosen by two rows of gpt-fast's table
#: (Llama-2-7B on an A100, int8 and int4), met within 1 %
UNPACKING = 3.5
#: rows of the tiles of such kernels
ROWS_UNPACKED = 16

# -- compiled code -------------------------------------------------------------------------------

#: of what a product hands to the pointwise kernel after it, the share that is not written and read
#: again: a kernel that does both, or a cache, as a batch is small
EPILOGUES = 0.5
#: depthwise convolutions beyond 3 × 3, channels last: the share of the rate that they have in eager
#: passes
DEPTHWISE_COMPILED = 0.6

# -- layout --------------------------------------------------------------------------------------

#: cuDNN's half-precision convolutions work channels-last: the share of converting operands and
#: results that isn't hidden
TURNING_AROUND = 0.52

# -- launches ------------------------------------------------------------------------------------

#: seconds of an engine's kernel that turns scores into picks, and of the one that sorts picks by
#: expert, besides their launch: chains of a few reductions in a block
ROUTER_KERNEL, SORTING_KERNEL = 2.5e-6, 4.0e-6
#: seconds from the end of one kernel until the next is at full speed
LAUNCH = 5e-6
#: the same where kernels are launched ahead by compiled code
LAUNCH_COMPILED = 2.1e-6
#: seconds that Python and torch need to call an operator that launches a kernel, and one that makes
#: a view
HOST_CALL, HOST_VIEW = 20e-6, 2e-6
#: the same for autograd's engine, which is C++, and for optimizers, which have no modules; for
#: kernels of compiled code
HOST_BACKWARD, HOST_COMPILED = 8e-6, 5e-6
#: where the host computes itself, seconds to call an operator
HOST_FUNCTION = 5e-6
#: kernels that torch launches for each sample of a batch in a loop
HOST_LOOP = 20e-6
#: kernels that loop over batch and channels in each of few threads: seconds for each turn, which
#: waits for memory
SERIAL_TURN = 0.29e-6
#: threads of such kernels that a multiprocessor runs at once
SERIAL_THREADS = 512
#: tensors that a kernel for lists of tensors processes at once
LIST_LENGTH = 64

#: share of the peak that warps can issue with synchronous instructions at the full 16-bit rate; on
#: CDNA, the share that rocBLAS reaches
ISSUED: Mapping[str, float] = {"Volta": 0.92, "Ampere GA100": 0.90, "CDNA": 0.685}

# -- power ---------------------------------------------------------------------------------------

#: the share of the board's power left for arithmetic after memory, links and leakage
POWER_SHARE = 0.78
#: the same in a training step, which repeats for hours. The tables of kernels that the energies
#: below rest on are bursts of milliseconds, in which GPUs exceed their limit. Not on other
#: architectures, whose energies come from steps that were repeated for seconds. GA100: by two
#: models on one A100; Hopper: by MPT-7B, 13B and 30B up to 2,048 tokens on H100 with 700 W, with
#: the times of the attention that they ran, and it holds for cards with 500 W
SUSTAINED_SHARE: Mapping[str, float] = {
    "Ampere GA100": 0.55,
    "Hopper": 0.43,
    "Blackwell GB100": 0.43,
}
#: the same with the libraries of CUDA 13, whose products on Hopper take less energy: by an eager
#: step of Llama-8B with four layers on an H100 with 700 W. Blackwell is taken to be alike
SUSTAINED_SHARE_CUDA_13: Mapping[str, float] = {"Hopper": 0.656, "Blackwell GB100": 0.656}
#: picojoules for one operation of matrix units on 16 bits at boost clock, by architecture. Where
#: the power that the data sheet's rate takes is more than there is, clocks and voltage go down, and
#: the rate with the square root of the ratio.
PICOJOULES: Mapping[str, float] = {
    "Pascal GP100": 28.0,
    "Pascal": 20.0,
    "Volta": 2.0,
    "Turing": 2.2,
    "Ampere GA100": 1.1,
    "Ampere": 1.6,
    "Ada AD104": 1.2,
    "Ada": 1.8,
    "Hopper": 0.72,
    "Blackwell GB100": 0.67,
    "Blackwell": 1.4,
    "CDNA": 1.0,
}
#: the same for one operation of vector units in single precision; Pascal has no other units
PICOJOULES_SINGLE: Mapping[str, float] = {
    "Pascal GP100": 28.0,
    "Pascal": 20.0,
    "Volta": 14.6,
    "Turing": 14.6,
    "Ampere": 14.6,
    "Ada": 6.0,
    "Hopper": 14.6,
    "Blackwell GB100": 14.6,
    "Blackwell": 6.0,
}
#: watts up to which boards compute at their lowest voltage: then only the clock goes down, and the
#: rate with the ratio itself. Up to twice as much the one goes over into the other
LOW_POWER = 75.0

# -- links ---------------------------------------------------------------------------------------

#: share of the data sheet's links that collectives reach, by the number of devices: each pair uses
#: few of them. 0.55; 0.65 to 0.71; 0.68 to 0.71
LINK_SHARES: Mapping[int, float] = {2: 0.55, 4: 0.67, 8: 0.69}
#: how much more all-gathers and reduce-scatters reach on Hopper and later. On the H200 alone
RINGS_ON_HOPPER = 1.09
#: the same of PCIe, which devices share, and cross between sockets. On the L40S alone
PCIE_SHARES: Mapping[int, float] = {2: 0.62, 4: 0.16, 8: 0.043}
#: of a message from one device to another over its links (vidur's table of A100)
SEND_SHARE = 0.95
#: of an all-reduce of eight devices or more that the switch of NVLink adds up, on Hopper and later.
#: On the H200 alone, 0.90
SWITCH_SHARE = 0.92
#: of a collective in the background, the time that the computation beside it loses: to the
#: multiprocessors that NCCL's channels occupy, to bandwidth and to power. By the same rows of MPT,
#: from steps of few tokens beside steps of many
BACKGROUND_COST = 0.45
#: of the time that products and collectives of asynchronous tensor parallelism overlap, the share
#: that is won. By all rows of torchtitan that have it, of both sizes: none is held out
ASYNC_TP_GAIN = 0.3
#: of what networks carry
NETWORK = 0.9
#: cycles of a collective's kernel; seconds of a step of a ring, and of each doubling of machines.
#: The fit finds 10,400 to 13,600 cycles, with which the H200 is too slow; 0.7 to 1.0 µs; not fitted
LATENCY_CYCLES, LATENCY_OF_STEP, LATENCY_OF_MACHINES = 9.5e3, 1.0e-6, 8e-6
#: seconds of a step of a ring through several machines, inside of one and between two: NCCL's
#: ``hwLat`` of its protocol for large messages
STEP_INSIDE, STEP_BETWEEN = 3.4e-6, 14e-6
#: the same where the clock is not known
LATENCY = 6e-6
#: seconds until a pipeline is full, and the bytes from which half of that counts. 14 to 26 µs; 1.5
#: to 3.4 MB
PIPELINE, PIPELINE_BYTES = 18e-6, 1.8e6
#: seconds of an all-reduce in which each device reads all others, as engines do up to so many bytes
ONE_SHOT, ONE_SHOT_BYTES = 5e-6, 8 * 2**20
