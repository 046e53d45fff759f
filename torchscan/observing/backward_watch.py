"""Backward passes as they start, with their losses, and steps of optimizers."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchscan.observing.wrapped_functions import wrap_function
from torchscan.torch_versions import LEAF_NODE, RUNS_BACKWARD

#: maximum number of scaled losses that are remembered
_MAX_LOSSES = 8


class ScaledLoss(NamedTuple):
    """A scaled loss, and the loss before it was scaled."""

    scaled: weakref.ref[Tensor]
    loss: Tensor
    #: NaN on a CUDA device, where reading it would synchronize
    scale: float


class LossScales:
    """The losses that ``GradScaler`` has scaled last."""

    def __init__(self) -> None:
        self._losses: deque[ScaledLoss] = deque(maxlen=_MAX_LOSSES)

    def note(self, scaled: Tensor, loss: Tensor, scaler: object) -> None:
        """Remember the loss that a scaler has scaled."""
        of_scaler: Any = scaler
        scale = math.nan if scaled.is_cuda else float(of_scaler.get_scale())
        self._losses.append(ScaledLoss(weakref.ref(scaled), loss.detach(), scale))

    def unscale(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], float | None]:
        """Return the losses before they were scaled, and their scale, or None if there is none."""
        losses: list[Tensor] = []
        scale = None
        if not self._losses:
            return list(tensors), None
        for tensor in tensors:
            known = next((each for each in self._losses if each.scaled() is tensor), None)
            if known is None:
                losses.append(tensor)
            else:
                losses.append(known.loss)
                scale = known.scale
        return losses, scale


#: maximum number of nodes that are searched for a parameter
_MAX_NODES = 20_000
#: positions of the arguments that follow the tensors
_GRADIENTS, _RETAIN_GRAPH, _INPUTS = 0, 1, 3


class BackwardPass(NamedTuple):
    """A backward pass that is about to run."""

    #: tensors that it starts at
    tensors: Sequence[Tensor]
    #: tensors whose gradients are asked for; empty if gradients of all parameters are stored
    inputs: Sequence[Tensor]
    #: losses as they were before they were scaled
    scales: LossScales
    #: gradients that it starts from, one per tensor; None stands for 1
    gradients: Sequence[Tensor | None] = ()
    #: True if the graph is retained
    keeps_graph: bool = False
    #: True if gradients are added to those of parameters; ``torch.autograd.grad`` returns them
    is_stored: bool = True

    def trains(self, parameter_ids: Collection[int], first_node: int) -> bool:
        """Return whether gradients of these parameters are computed.

        ``parameter_ids`` are their identities. Nodes older than ``first_node`` are not searched.
        """
        if self.inputs:
            return any(id(each) in parameter_ids for each in self.inputs)
        return _reaches_parameter(self.tensors, parameter_ids, first_node)


#: called before a backward pass; the pass runs in the context that it returns, if any
Report = Callable[[BackwardPass], AbstractContextManager[object] | None]


class BackwardWatch:
    """Observer of backward passes: reports each one before it runs.

    It wraps the function with which torch runs backward passes, and ``GradScaler.scale``, because a
    backward pass starts at the scaled loss.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._scales = LossScales()
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start to report."""
        if self._undo:
            return
        owner, name = RUNS_BACKWARD
        names = vars(owner)
        scaler: Any = torch.amp.GradScaler
        self._undo = [
            wrap_function(names, name, self._run, names.__setitem__),
            wrap_function(vars(scaler), "scale", self._scale, partial(setattr, scaler)),
        ]

    def close(self) -> None:
        """Stop reporting."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _run(
        self, run: Callable[..., Any], tensors: Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        context = None
        if self._undo:
            inputs = args[_INPUTS] if len(args) > _INPUTS else kwargs.get("inputs", ())
            keeps_graph = kwargs.get("retain_graph", False)
            if len(args) > _RETAIN_GRAPH:
                keeps_graph = args[_RETAIN_GRAPH]
            backward = BackwardPass(
                tensors=tensors,
                inputs=inputs or (),
                scales=self._scales,
                gradients=args[_GRADIENTS] if args else (),
                keeps_graph=bool(keeps_graph),
                is_stored=kwargs.get("accumulate_grad", True),
            )
            context = self._report(backward)
        if context is None:
            return run(tensors, *args, **kwargs)
        with context:
            return run(tensors, *args, **kwargs)

    def _scale(self, scale: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        is_loss = isinstance(outputs, Tensor) and isinstance(scaled, Tensor)
        # a disabled scaler returns the loss itself
        if is_loss and scaled is not outputs:
            self._scales.note(scaled, outputs, scaler)
        return scaled


def _reaches_parameter(
    tensors: Sequence[Tensor], parameter_ids: Collection[int], first_node: int
) -> bool:
    seen: set[Any] = set()
    pending: list[Any] = [tensor.grad_fn for tensor in tensors if isinstance(tensor, Tensor)]
    while pending and len(seen) < _MAX_NODES:
        node = pending.pop()
        if node is None or node in seen or (first_node and node._sequence_nr() < first_node):
            continue
        seen.add(node)
        following: Any
        for following, _ in node.next_functions:
            if type(following) is not LEAF_NODE:
                pending.append(following)
            elif id(following.variable) in parameter_ids:
                return True
    return bool(pending)


class OptimizerWatch:
    """Observer of optimizers: reports before and after each step."""

    def __init__(
        self, before: Callable[[Optimizer], None], after: Callable[[Optimizer], None]
    ) -> None:
        self._before, self._after = before, after
        self._handles: tuple[RemovableHandle, ...] = ()

    def start(self) -> None:
        """Start to report."""
        self._handles = (
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer)),
        )

    def close(self) -> None:
        """Stop reporting."""
        for handle in self._handles:
            handle.remove()
        self._handles = ()
