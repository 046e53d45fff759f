"""Where a pass is started: modes, transformations and hooks of whoever calls are not the model's, and see nothing of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from torchscan.errors import InputError
from torchscan.torch_versions import traces, without_functorch, without_hooks_for_gradients, without_modes


@contextlib.contextmanager
def outside_of_surroundings() -> Iterator[None]:
    """Left for as long as a pass takes: a counter or tracer, fake tensors, vmap and grad, hooks for gradients, anomalies."""
    tracer = traces()
    if tracer is not None:
        raise InputError(f"{tracer} is tracing, and would trace the pass too: record the model before or after")
    with without_functorch(), without_modes(), without_hooks_for_gradients(), torch.autograd.set_detect_anomaly(False):
        yield
