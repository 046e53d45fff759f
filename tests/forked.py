"""Processes of tests that are forked from one that has imported torch, which takes a second or two."""

from __future__ import annotations

import multiprocessing

multiprocessing.set_forkserver_preload(
    [
        "torch",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torchscan.watching.worker",
        "torchscan.watching.digest",
    ]
)
