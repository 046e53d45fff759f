"""Backward passes as they start: the tensor that ``backward()`` is called on, and whom it trains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchscan.observing.loss_scales import LossScales
from torchscan.observing.wrapped_functions import wrap_function
from torchscan.torch_versions import RUNS_BACKWARD

#: nodes of a graph that are searched for a parameter
_MAX_NODES = 20_000


class BackwardWatch:
    """Reports the tensors that each backward pass starts at, before it runs.

    It takes the place of the function of torch that runs backward passes, and of
    ``GradScaler.scale``, since a backward pass starts at the scaled loss.
    """

    def __init__(self, report: Callable[[Sequence[Tensor], LossScales], None]) -> None:
        self._report = report
        self._scales = LossScales()
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Report from now on."""
        if self._undo:
            return
        names, name = RUNS_BACKWARD
        scaler: Any = torch.amp.GradScaler
        self._undo = [
            wrap_function(names, name, self._run, names.__setitem__),
            wrap_function(vars(scaler), "scale", self._scale, partial(setattr, scaler)),
        ]

    def close(self) -> None:
        """Report nothing any more."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _run(
        self, run: Callable[..., Any], tensors: Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        if self._undo:
            self._report(tensors, self._scales)
        return run(tensors, *args, **kwargs)

    def _scale(self, scale: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        is_loss = isinstance(outputs, Tensor) and isinstance(scaled, Tensor)
        if is_loss and scaled is not outputs:
            self._scales.note(scaled, outputs, scaler)
        return scaled


def reaches_parameter(
    tensors: Sequence[Tensor], parameter_ids: Collection[int], first_node: int
) -> bool:
    """Return whether a backward pass from these tensors computes gradients of parameters.

    ``parameter_ids`` are identities of the parameters. Nodes older than ``first_node`` are not
    searched: they were made before the model was called.
    """
    seen: set[Any] = set()
    pending = [tensor.grad_fn for tensor in tensors if isinstance(tensor, Tensor)]
    while pending and len(seen) < _MAX_NODES:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if variable is None:
                if following._sequence_nr() >= first_node:
                    pending.append(following)
            elif id(variable) in parameter_ids:
                return True
    return bool(pending)
