"""Autograd: the backward pass that runs, the nodes of its graph and their hooks."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchscan.torch_versions.dispatch_modes import (
    making_ordinary_tensors,
    top_hooks,
    without_dispatch,
)

_C: Any = torch._C

NO_BACKWARD_PASS = -1
#: returns the number of the backward pass that this thread works on, or :data:`NO_BACKWARD_PASS`
backward_pass: Callable[[], int] = _C._current_graph_task_id
#: returns the node of the graph whose gradient this thread computes
current_node: Callable[[], Any] = _C._current_autograd_node
#: returns the number that autograd gives the next node of a graph made in this thread
next_node: Callable[[], int] = _C._autograd._get_sequence_nr
#: the type of the nodes that add gradients to leaves, such as parameters
LEAF_NODE: Any = _C._functions.AccumulateGrad
#: sets whether gradients are recorded; ``torch.set_grad_enabled`` is a class written in Python
set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled


def share_storage(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share memory."""
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


#: the same in C++, if torch has it
share_memory: Callable[[Tensor, Tensor], bool] = getattr(_C, "_is_alias_of", share_storage)
#: True if hooks for saved tensors can be seen; False on torch 2.6
SHOWS_SAVED_TENSOR_HOOKS = hasattr(_C._autograd, "_top_saved_tensors_default_hooks")
#: True if a saved tensor tells whether hooks have packed it
TELLS_UNPACKING = hasattr(getattr(_C._autograd, "SavedTensor", None), "unpack_hook")
#: place of the function that Python's functions hand a graph to
RUNS_BACKWARD: tuple[Any, str] = (torch.autograd, "_engine_run_backward")
#: place of the function that anomaly mode asks for the frames that create a node
FORMATS_STACK: tuple[dict[str, Any], str] = (
    vars(importlib.import_module("torch.fx.traceback")),
    "format_stack",
)


def set_version(tensor: Tensor, version: int) -> None:
    """Set the version counter of a tensor. Later versions of torch take several tensors at once."""
    try:
        _C._autograd._unsafe_set_version_counter((tensor,), (version,))
    except TypeError:
        _C._autograd._unsafe_set_version_counter(tensor, version)


def take_wide_gradients(parameter: Tensor, dtype: torch.dtype) -> None:
    """Let a parameter have gradients of another type, where torch can."""
    if hasattr(parameter, "grad_dtype") and parameter.grad_dtype != dtype:
        parameter.grad_dtype = dtype


def engine() -> Any:
    """Return autograd's engine."""
    return torch.autograd.Variable._execution_engine


def at_end_of_backward_pass(call: Callable[[], object]) -> None:
    """Call a function when the current backward pass is over; its graph may be kept."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(call)


class GradientHook:
    """One hook for the gradients of many results of nodes.

    A hook of a node costs torch a table, a handle and a weak reference, and is called after all
    hooks of its results. Nodes can also share the table from which torch reads the hooks of
    a tensor. These are called in the order of registration.
    """

    def __init__(self) -> None:
        #: tensors that hand a table to a node, each at its index among the results of another node
        self._carriers: list[Any] = []
        #: tables with the shared hook, by the same index
        self._tables: dict[int, dict[int, Callable[[Tensor | None], None]]] = {}
        self._note: Callable[[int, Tensor | None], None] = _ignore

    def call(self, note: Callable[[int, Tensor | None], None]) -> None:
        """Call a function for the nodes that get the hook from now on, and not for others.

        It gets the index of the result and its gradient; :func:`current_node` is the node then.
        """
        self.forget()
        self._note = note

    def put_on(self, node: Any, index: int) -> None:
        """Register the hook for a result of a node."""
        table = self._tables.get(index)
        if table is None:
            table = self._tables[index] = {0: partial(self._note, index)}
            self._carrier(index)._backward_hooks = table
        node._register_hook_dict(self._carriers[index])

    def put_other_on(self, node: Any, index: int, note: Callable[[Tensor | None], object]) -> None:
        """Register another hook for a result of a node, as long as the node lives."""
        carrier = self._carrier(index)
        carrier._backward_hooks = {0: note}
        node._register_hook_dict(carrier)
        carrier._backward_hooks = self._tables.get(index)

    def forget(self) -> None:
        """Remove the shared hook from all nodes."""
        for table in self._tables.values():
            table.clear()
        self._tables.clear()
        self._note = _ignore  # the function may hold a step's tensors

    def _carrier(self, index: int) -> Any:
        known = len(self._carriers)
        if index >= known:
            with torch.enable_grad(), making_ordinary_tensors(), without_dispatch():
                source = torch.zeros(1, requires_grad=True, device="cpu").expand(2 * index + 1)
                self._carriers += source.unbind()[known:]
        return self._carriers[index]


def _ignore(_index: int, _gradient: Tensor | None) -> None:
    """Do nothing: no function is called."""


def keeps_for_gradients() -> bool:
    """Return whether hooks see saved tensors, as a checkpoint's do. False on torch 2.6."""
    return top_hooks(True) is not None


@contextlib.contextmanager
def without_hooks_for_gradients() -> Iterator[None]:
    """Disable earlier hooks for saved tensors, except in torch 2.6, which does not show them."""
    taken = []
    try:
        while (top := top_hooks(True)) is not None:
            taken.append(top)
            _C._autograd._pop_saved_tensors_default_hooks()
        yield
    finally:
        while taken:
            _C._autograd._push_saved_tensors_default_hooks(*taken.pop())
