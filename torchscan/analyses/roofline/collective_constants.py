"""Constants of the time of collectives. ``constants`` explains the values that end comments."""

from __future__ import annotations

from collections.abc import Mapping

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
