"""What FSDP2 reserves on an H200, by stream, worked out by hand in MiB.

A linear layer of 64 without a bias is sharded over two ranks, and its inputs are tiny. cuBLAS has a
workspace of 32 for either thread: 64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.versions import before
from torchscan.parallel import plan
from torchscan.types import Plan

MIB = 2**20
WORKSPACES, INPUTS = 2 * 32, 2

pytestmark = before("2.9", "collectives on shapes")


def planned(policy: MixedPrecisionPolicy | None = None, **options: Any) -> Plan:
    def shard(model: nn.Module, mesh: Any) -> None:
        chosen: dict[str, Any] = {} if policy is None else {"mp_policy": policy}
        fully_shard(model, mesh=mesh["dp"], **chosen)

    with torch.device("meta"):
        model = nn.Linear(2048, 8192, bias=False)
    options = {"input_shape": (2048,), "training": True, "device": "NVIDIA H200", **options}
    return plan(model, mesh={"dp": 2}, apply=shard, **options)


def reserved(**options: Any) -> float:
    verdict = planned(**options).memory.verdict
    assert verdict is not None
    return verdict.reserved_bytes / MIB


def test_gathered_and_reduced_parameters_have_streams_of_their_own() -> None:
    """The shard, 32. It is gathered into 64 in the stream of the copy, and copied to 64.

    The gradient, 64, does not go where the buffer of the all-gather was. It is copied to the input
    of the reduce-scatter, which goes where the gathered parameter was. What it returns, 32, is
    allocated in the stream that reduces.
    """
    assert reserved() == WORKSPACES + INPUTS + 32 + (64) + 64 + 64 + (32)


def test_parameters_of_16_bits_are_converted_in_the_stream_that_copies() -> None:
    """The shard of 32 is converted to 16, and gathered to 32, both in the stream of the copy.

    Copied to 32; the gradient, 32, to the input of the reduce-scatter in 32 bits, 64; its result, 32.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    expected = WORKSPACES + INPUTS + 32 + (16 + 32) + 32 + 32 + 64 + (32)
    assert reserved(policy=policy) == expected


def test_buffers_of_nccl_are_counted_with_the_context() -> None:
    verdict = planned().memory.verdict
    assert verdict is not None
    assert verdict.cuda_context_bytes == (512 + 256) * MIB
    assert verdict.cuda_context_range == ((274 + 128) * MIB, (1680 + 1024) * MIB)
