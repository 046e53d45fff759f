"""Isolation of a pass from the caller: its counters, tracers and transformations do not see it.

Function modes stay, because the default device is one.
"""

from __future__ import annotations

from functools import partial

import torch

from torchscan.errors import InputError
from torchscan.recording.undo import Undo
from torchscan.torch_versions import (
    traces,
    without_functorch,
    without_hooks_for_gradients,
    without_modes,
    without_python_dispatcher,
)


def refuse_tracers() -> None:
    """A program of everything that torch does is being written down, in a way that can't be stepped out of."""
    tracer = traces()
    if tracer is not None:
        raise InputError(
            f"{tracer} is tracing, and would trace the pass too: call torchscan before or after"
        )


def leave_surroundings(undo: Undo) -> None:
    """Until the pass is over: modes of operators, vmap and grad, hooks for gradients, inference, and looking for anomalies."""
    for context in (
        without_functorch,
        without_python_dispatcher,
        without_modes,
        without_hooks_for_gradients,
    ):
        undo.enter(context, is_of_process=False)
    undo.enter(partial(torch.inference_mode, False), is_of_process=False)
    undo.enter(partial(torch.autograd.set_detect_anomaly, False))
