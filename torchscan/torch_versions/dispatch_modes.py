"""Modes, tracers and transforms that see operators: which are active, and how to leave them."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
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
#: returns the hooks for saved tensors that were entered last, or None; torch 2.6 does not show them
top_hooks: Callable[[bool], Any] = getattr(
    _C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)


#: returns whether a tensor is the wrapper that vmap and grad put around one
is_functorch_wrapped: Callable[[Tensor], bool] = _C._functorch.is_functorch_wrapped_tensor
#: returns the transform of ``torch.func`` that is active in this thread, or None
innermost_transform: Callable[[], object] = _C._functorch.peek_interpreter_stack


def leave_later_modes() -> Callable[[], None]:
    """Return a function that leaves modes and saved-tensor hooks.

    These are the modes and hooks that this thread enters from now on.
    """
    functions, operators = count_function_modes(), count_dispatch_modes()
    hooks = top_hooks(True)

    def leave() -> None:
        while top_hooks(True) not in (hooks, None):
            _C._autograd._pop_saved_tensors_default_hooks()
        if top_hooks(True) != hooks:
            _C._autograd._push_saved_tensors_default_hooks(*hooks)
        while count_function_modes() > functions:
            torch.overrides._pop_mode()
        while count_dispatch_modes() > operators:
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


#: a context in which C++ code calls kernels itself; a tracer may have torch call them from Python
without_python_dispatcher: Any = getattr(_C, "_DisablePythonDispatcher", contextlib.nullcontext)
#: a context in which tensors are not those of inference mode: ``torch.inference_mode(False)`` takes
#: twice as long
making_ordinary_tensors: Any = partial(_C._InferenceMode, False)


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
    if innermost_transform() is not None:
        return outside_of_everything()
    if torch.is_grad_enabled():
        return without_dispatch_and_graph()
    context: contextlib.AbstractContextManager[object] = without_dispatch()
    return context


@contextlib.contextmanager
def without_dispatch_and_graph() -> Iterator[None]:
    """Leave every pass and graph inside the context, for code that enters no dispatch mode."""
    with without_dispatch(), torch.no_grad():
        yield


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
