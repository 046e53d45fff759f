"""Collectives and sharded tensors in a pass: results that arrive, placements, and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.patches import Contexts, overridden
from torchscan.torch_versions import (
    arrived,
    outside_of_everything,
    placement_verbs,
    resizing_verbs,
    waiting_verbs,
    without_modes,
)


def wait_for(result: Any) -> None:
    """Wait for asynchronous collectives whose results are in the output.

    Code that uses the output would wait for them.
    """
    with outside_of_everything():
        for tensor in tensors_in(result):
            arrived(tensor)


def collectives_followed(table: TensorTable) -> Contexts:
    """Yield the contexts in which sharded tensors and collectives are followed."""
    for verb in (*placement_verbs(), *waiting_verbs()):
        yield overridden(*verb, _unrecorded)

    def noting_size(resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def run(tensor: Tensor) -> None:
            resize(tensor)
            table.note_size(tensor)  # no operator reports it

        return run

    for verb in resizing_verbs():
        yield overridden(*verb, noting_size)


def _unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a function's own operators out of the trace.

    It runs on no data to find the shape of its result, or assembles what other ranks sent.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        with without_modes():
            return function(*args, **kwargs)

    return run
