"""Functions of users that torch runs: kernels, autograd functions and control flow."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from types import BuiltinMethodType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

#: modules of torch's control flow, and the names under which they look up what runs it
_CONTROL_FLOW = {
    "cond": "cond_op",
    "while_loop": "while_loop_op",
    "scan": "scan_op",
    "map": "map_impl",
    "associative_scan": "associative_scan_op",
}
_ASSOCIATIVE_SCAN = "torch._higher_order_ops.associative_scan"


def without_wrapped_kernels() -> contextlib.AbstractContextManager[None]:
    """Return a context in which ``wrap_triton`` returns the kernel itself."""
    triton: Any = importlib.import_module("torch._library.triton")
    if not hasattr(triton, "set_wrap_triton_enabled"):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = triton.set_wrap_triton_enabled(False)
    return context


def function_of_triton_op(op: OpOverload) -> Callable[..., Any] | None:
    """Return the function that ``torch.library.triton_op`` turned into this operator, or None.

    It is also None if the operator has another implementation for some device.
    """
    definitions = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})
    definition: Any = definitions.get(f"{op.namespace}::{op._opname}")
    functional: Any = sys.modules.get("torch._subclasses.functional_tensor")
    mode = getattr(functional, "FunctionalTensorMode", None)
    if definition is None or mode is None or mode not in definition._torch_dispatch_fns:
        return None
    if len(definition._backend_fns) > 1:  # on some device something else runs
        return None
    function: Callable[..., Any] | None = definition._abstract_fn
    return function


def with_operands_of_functions(
    swap: Callable[[Tensor], Tensor], is_wanted: Callable[[], bool]
) -> tuple[type, str, Callable[[Any], Any]]:
    """Return what to override so that custom autograd functions receive other tensors.

    Where torch has it, the method is one below ``Function.apply``, because programs keep that under
    other names. Later versions of torch have ``Function.apply`` in C++, with nothing below it.
    """
    owner: Any = torch.autograd.function._SingleLevelFunction
    if isinstance(torch.autograd.Function.apply, BuiltinMethodType):
        owner = torch.autograd.Function
    own = vars(owner).get("apply")

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        run = super(owner, function).apply if own is None else own.__get__(None, function)
        if not is_wanted():  # in another thread
            return run(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            operands = list(args)
            for index, operand in enumerate(args):
                if isinstance(operand, Tensor):
                    operands[index] = swap(operand)
        return run(*operands, **kwargs)

    return owner, "apply", lambda _: classmethod(apply)


def call_of(function: type[torch.autograd.Function]) -> Any:
    """Return a call of an autograd function that a pass on shapes can follow.

    ``function.apply`` under another name is out of its reach in torch 2.14 and later.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function.apply(*args, **kwargs)

    return call


@functools.lru_cache(maxsize=1)
def control_flow() -> tuple[tuple[Any, str], ...]:
    """Return modules and names under which torch finds its operators that take functions.

    There are none in versions that compile the functions in another way.
    """
    utils = importlib.import_module("torch._higher_order_ops.utils")
    if not hasattr(utils, "_hop_compile_and_call"):
        return ()
    found: list[tuple[Any, str]] = [(utils, "_hop_compile_and_call")]
    for module, name in _CONTROL_FLOW.items():
        owner = importlib.import_module(f"torch._higher_order_ops.{module}")
        if hasattr(owner, name):
            found.append((owner, name))
    return tuple(found)


def scan_in_pairs(
    combine: Callable[..., Any], rows: Sequence[Tensor], additional_inputs: Sequence[Any]
) -> Sequence[Tensor]:
    """Return the partial results of ``associative_scan``, by torch's recursion without a kernel."""

    def combine_pairs(*pairs: Any) -> Any:
        return combine(*pairs, *additional_inputs)

    module = importlib.import_module(_ASSOCIATIVE_SCAN)
    results: Sequence[Tensor] = module.generic_associative_scan(combine_pairs, list(rows))
    return results


def leaves_in(value: Any) -> list[Any]:
    """Return the tensors, and what else is not a container, in nested containers."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(value)


def arranged_like(example: Any, tensors: Sequence[Tensor | None]) -> Any:
    """Return tensors in containers like those of an example."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten(tensors, _pytree.tree_structure(example))


def requires_gpu(frame: FrameType) -> bool:
    """Return whether this line of torch refuses tensors of the CPU, for which it has no kernel."""
    return frame.f_globals.get("__name__") == _ASSOCIATIVE_SCAN
