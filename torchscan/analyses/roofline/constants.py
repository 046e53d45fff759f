"""Constants of the time estimate. docs/reference/time-model.md explains them further.

Those of attention and collectives are in ``attention_constants`` and ``collective_constants``.

All were fitted to the step times of some 1,400 models on one GPU and, for products of matrices,
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
