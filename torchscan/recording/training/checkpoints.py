"""Checkpoints where the model has none: blocks whose inside is computed again in the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from torchscan.recording.patches import overridden


@contextlib.contextmanager
def checkpointed(modules: Collection[nn.Module]) -> Iterator[None]:
    """Let each of these keep its arguments alone, as ``torch.utils.checkpoint`` does."""

    def again(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(overridden(module, "forward", again))
        yield
