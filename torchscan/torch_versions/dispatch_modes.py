"""Modes, tracers and transforms that see operators: which are active, and how to leave them."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as without_functorch
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._python_dispatch import _pop_mode as pop_mode

_C: Any = torch._C

#: the number of active modes that take the place of torch's functions
count_function_modes: Callable[[], int] = _C._len_torch_function_stack
#: the number of active modes that take the place of operators
count_dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack


def modes_as_now() -> Callable[[], None]:
    """Return a function that leaves the modes that this thread has entered in the meantime."""
    functions, operators = count_function_modes(), _C._len_torch_dispatch_stack()

    def leave() -> None:
        while count_function_modes() > functions:
            torch.overrides._pop_mode()
        while _C._len_torch_dispatch_stack() > operators:
            pop_mode()

    return leave


def traces() -> str | None:
    """Return the name of a tracer of torch that is active, or None.

    The tracers record all that torch does, in a way that code cannot leave.
    """
    if is_tracing():
        return "torch.jit.trace"
    fx = sys.modules.get("torch.fx._symbolic_trace")
    code = getattr(nn.Module.__call__, "__code__", None)
    is_patched = fx is not None and code is not None and code.co_filename == fx.__file__
    if is_patched and _C._get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is None:
        return "torch.fx"
    return None


#: returns whether ``torch.jit.trace`` is active
is_tracing: Callable[[], bool] = _C._is_tracing
#: a context in which no subclass or mode takes the place of torch's functions
without_torch_function: Any = _C.DisableTorchFunction
#: a context in which modes of operators see nothing, and no others are entered
without_dispatch: Any = _C._DisableTorchDispatch
#: a context in which operators are not differentiated, and arrive as they are called
below_autograd: Any = _C._AutoDispatchBelowAutograd


def without_python_dispatcher() -> contextlib.AbstractContextManager[object]:
    """Return a context in which C++ code calls kernels itself.

    A tracer may have torch call them from Python.
    """
    guard = getattr(_C, "_DisablePythonDispatcher", contextlib.nullcontext)
    context: contextlib.AbstractContextManager[object] = guard()
    return context


def making_ordinary_tensors() -> contextlib.AbstractContextManager[object]:
    """Return a context in which tensors are not those of inference mode.

    It does the same as ``torch.inference_mode(False)``, in less than half its time.
    """
    context: contextlib.AbstractContextManager[object] = _C._InferenceMode(False)
    return context


@contextlib.contextmanager
def outside_of_everything() -> Iterator[None]:
    """Leave every pass, graph and transformation (vmap, grad) inside the context."""
    with without_functorch(), without_modes(), torch.no_grad():
        yield


def without_tracing() -> contextlib.AbstractContextManager[object]:
    """Return a context outside of every pass and graph, for code that enters no dispatch mode.

    It is much faster than :func:`outside_of_everything`, and where there is no graph to leave it is
    an object of C++ code.
    """
    if is_transforming():
        return outside_of_everything()
    if torch.is_grad_enabled():
        return _without_graph()
    context: contextlib.AbstractContextManager[object] = without_dispatch()
    return context


@contextlib.contextmanager
def _without_graph() -> Iterator[None]:
    with without_dispatch(), torch.no_grad():
        yield


#: returns whether a tensor is the wrapper that vmap and grad put around one
is_functorch_wrapped: Callable[[Tensor], bool] = _C._functorch.is_functorch_wrapped_tensor
#: returns the transform of ``torch.func`` that is active in this thread, or None
innermost_transform: Callable[[], object] = _C._functorch.peek_interpreter_stack


def is_transforming() -> bool:
    """Return whether vmap or grad is active in this thread."""
    return innermost_transform() is not None


def without_transforms() -> contextlib.AbstractContextManager[object]:
    """Compute with ordinary tensors inside the context, also while vmap or grad is active."""
    if not is_transforming():
        return contextlib.nullcontext()
    transforms: Any = importlib.import_module("torch._functorch.pyfunctorch")
    cleared: contextlib.AbstractContextManager[object]
    cleared = transforms.temporarily_clear_interpreter_stack()
    return cleared
