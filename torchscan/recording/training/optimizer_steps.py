"""Steps of optimizers on meta tensors, with the implementations of the target device.

The second step is recorded: the first one makes the state that stays.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchscan.errors import TorchscanError
from torchscan.recording.execution.meta_calls import assumed_number
from torchscan.recording.execution.update_rules import (
    UPDATE_RULES,
    UPDATES_WITHOUT_SHAPE_FUNCTION,
)
from torchscan.recording.patches import replaced
from torchscan.recording.training.optimizers import OptimizerError
from torchscan.recording.undo import interruptible
from torchscan.torch_versions import OpOverload, TorchDispatchMode, aten, optimizer_hooks

_OPTIMIZER_MODULES = [
    module
    for name, module in sys.modules.items()
    # the second one is what clips gradients
    if name.startswith("torch.optim.") or name == "torch.utils._foreach_utils"
]
#: functions of theirs that say on which devices there is an implementation
_SUPPORTED = {
    "_get_foreach_kernels_supported_devices",
    "_get_fused_kernels_supported_devices",
    "_get_capturable_supported_devices",
}
_IS_GREATER = {
    aten.gt.Scalar: True,
    aten.ge.Scalar: True,
    aten.lt.Scalar: False,
    aten.le.Scalar: False,
}


def take_step(optimizer: Optimizer, *, is_recorded: bool) -> None:
    """Take one step on meta tensors, with values from :class:`_AssumedValues` for its decisions."""
    losses = itertools.count(1.0)  # each another, so that nobody thinks the end was reached
    arguments: list[Any] = [lambda: next(losses)] if needs_closure(optimizer) else []
    try:
        with _AssumedValues(is_recorded=is_recorded):
            interruptible(optimizer.step, *arguments)
    except TorchscanError:
        raise
    except Exception as error:
        raise OptimizerError(
            f"{type(optimizer).__name__}.step() failed on meta tensors: {type(error).__name__}: "
            f"{error}"
        ) from error


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step needs a closure."""
    taken = inspect.signature(optimizer.step).parameters.get("closure")
    return taken is not None and taken.default is inspect.Parameter.empty


def state_of(optimizer: Optimizer) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Yield the tensors of an optimizer's state, with their parameter and name."""
    # torch's ZeRO optimizer has another one for the parameters of this rank
    owner: Any = getattr(optimizer, "optim", optimizer)
    for parameter, state in owner.state.items():
        for name, value in state.items():
            values = value if isinstance(value, list | tuple) else [value]
            yield from ((parameter, name, each) for each in values if isinstance(each, Tensor))


@contextlib.contextmanager
def implementations_of(device: str) -> Iterator[None]:
    """Let torch choose for-loop, foreach or fused updates as on ``device``, and call no hooks.

    Both hold in this thread only.
    """
    thread = threading.get_ident()

    def with_meta(supported: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def devices(*args: Any, **kwargs: Any) -> list[str]:
            known = supported(*args, **kwargs)
            if threading.get_ident() == thread and device in known:
                return [*known, "meta"]
            return known

        return devices

    def elsewhere(hook: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: None if threading.get_ident() == thread else hook(*args)

    with contextlib.ExitStack() as stack:
        for module in _OPTIMIZER_MODULES:
            for name in _SUPPORTED & vars(module).keys():
                stack.enter_context(replaced(vars(module), name, with_meta))
        for hooks in optimizer_hooks():
            for key in list(hooks):
                stack.enter_context(replaced(hooks, key, elsewhere))
        yield


class _AssumedValues(TorchDispatchMode):
    """Mode that answers an optimizer's reads of values: 1, or a number beyond any bound.

    So a norm is not small, a step leads downhill, and L-BFGS goes on to its last iteration. No size
    depends on them.
    """

    def __init__(self, *, is_recorded: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it without annotations
        self._is_recorded = is_recorded

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return True, so that torch's compiler is not imported."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer, or run the operator."""
        source: Any = args[0] if args else None
        is_meta = isinstance(source, Tensor) and source.is_meta
        if is_meta and func in _IS_GREATER and source.dim() == 0:
            return torch.tensor(_IS_GREATER[func] == (args[1] >= 0))
        kwargs = kwargs or {}
        if not self._is_recorded and func in UPDATE_RULES:
            result = UPDATE_RULES[func](*args, **kwargs)
            if result is not None:
                return None  # nothing but values would change
        return _run_or_assume(func, args, kwargs)


def _run_or_assume(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator, or return what an optimizer goes on with if its shapes are not known."""
    try:
        return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            # No trace is made, which would have an answer.
            return assumed_number(args[0])
        if func in UPDATES_WITHOUT_SHAPE_FUNCTION:
            return None
        raise
