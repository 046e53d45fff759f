"""The number of threads with which torch computes on small tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Let torch use one thread: on small tensors, waiting for others takes longer than the work.

    On a machine that is busy with training, it can take a hundred times as long.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
