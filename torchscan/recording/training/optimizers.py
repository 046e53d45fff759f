"""The optimizer of a training step, working on meta tensors in place of the model's parameters.

The second step is recorded: the first one makes the state that stays.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchscan.errors import Argument, InputError, PythonOnly, TorchscanError
from torchscan.recording.execution.abstract import assumed_number
from torchscan.recording.execution.update_rules import (
    UPDATE_RULES,
    UPDATES_WITHOUT_SHAPE_FUNCTION,
)
from torchscan.recording.patches import replaced
from torchscan.recording.training.blockwise_optimizers import blockwise_optimizer
from torchscan.recording.undo import interruptible
from torchscan.torch_versions import OpOverload, TorchDispatchMode, aten, optimizer_hooks

#: the name of a class of torch.optim or bitsandbytes, a class or function that makes one of a list
#: of parameters, or one that exists
OptimizerChoice = str | Callable[[list[Tensor]], Optimizer] | Optimizer


_OPTIMIZER_MODULES = [
    module
    for name, module in sys.modules.items()
    # the second one is what clips gradients
    if name.startswith("torch.optim.") or name == "torch.utils._foreach_utils"
]
#: functions of theirs that say on which devices there is an implementation
_SUPPORTED = {
    f"_get_{kind}_supported_devices" for kind in ("foreach_kernels", "fused_kernels", "capturable")
}
_IS_GREATER = {
    aten.gt.Scalar: True,
    aten.ge.Scalar: True,
    aten.lt.Scalar: False,
    aten.le.Scalar: False,
}


class OptimizerError(InputError):
    """The optimizer that was asked for could not be made, or its step failed."""


def optimizer_on(choice: OptimizerChoice, parameters: Mapping[int, Tensor]) -> Optimizer:
    """Return the requested optimizer for proxy tensors, given by the parameter's identity."""
    if isinstance(choice, Optimizer):
        return _checked(lambda: _same_optimizer(choice, parameters))
    if isinstance(choice, list | tuple):
        raise OptimizerError(
            Argument("optimizer"),
            f" is a {type(choice).__name__} of {len(choice)}: give the one optimizer that takes "
            "the step",
        )
    make: Any = _class_named(choice) if isinstance(choice, str) else choice
    if not callable(make):
        raise OptimizerError.of_value(
            "optimizer",
            choice,
            "give a name ('AdamW')",
            PythonOnly(", a class, a function of the parameters or an instance"),
        )
    trainable = [each for each in parameters.values() if each.requires_grad]
    if not trainable:
        raise OptimizerError(
            "no parameter requires a gradient, so there is nothing to optimize: leave out ",
            Argument("optimizer"),
        )
    return _checked(lambda: make(trainable))


def class_of(choice: OptimizerChoice) -> type[Optimizer]:
    """Return the class of an optimizer, by name if a name is given."""
    kind: Any = _class_named(choice) if isinstance(choice, str) else choice
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        if isinstance(choice, str):
            raise OptimizerError.of_value(
                "optimizer", choice, "give one of torch.optim, whose states ZeRO-1 divides"
            )
        raise OptimizerError(
            Argument("optimizer"),
            f" is a {type(choice).__name__}: give its name or its class, because its state is "
            "divided among ranks",
        )
    return kind


def require_known(choice: OptimizerChoice | None) -> None:
    """Raise if it is a name that no optimizer has."""
    if isinstance(choice, str):
        _class_named(choice)


def installed_optimizer(choice: OptimizerChoice) -> OptimizerChoice:
    """Return the optimizer for a real step: bitsandbytes' own class in place of one without values."""
    if not isinstance(choice, str) or isinstance(_class_named(choice), type):
        return choice
    try:
        optim: Any = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise OptimizerError(
            f"{choice} is an optimizer of bitsandbytes, which is not installed: install it, or "
            "give one of torch.optim, such as 'AdamW'"
        ) from error
    classes = {name.lower(): made for name, made in vars(optim).items() if isinstance(made, type)}
    made: Any = classes.get(choice.lower().replace("_", ""))
    if made is None:
        raise OptimizerError(f"this version of bitsandbytes has no {choice}: choose another")
    return made  # type: ignore[no-any-return]


def fused(choice: OptimizerChoice) -> OptimizerChoice:
    """Return the optimizer with torch's fused kernel, which updates all parameters at once."""
    if isinstance(choice, Optimizer):
        raise OptimizerError("an existing optimizer is not changed: create it with fused=True")
    make: Any = _class_named(choice) if isinstance(choice, str) else choice

    def make_fused(parameters: list[Tensor]) -> Optimizer:
        made: Optimizer = make(parameters)
        if "fused" not in made.defaults:
            raise OptimizerError(f"{type(made).__name__} has no fused kernel")
        for group in made.param_groups:
            group.update(fused=True, foreach=False)
        return made

    return make_fused


def _checked(make: Callable[[], object]) -> Optimizer:
    try:
        made = make()
    except TorchscanError:
        raise
    except Exception as error:
        raise OptimizerError(
            f"creating the optimizer failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, Optimizer):
        raise OptimizerError(
            Argument("optimizer"),
            f" returned a {type(made).__name__}: give a function that returns a "
            "torch.optim.Optimizer",
        )
    return made


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
            return (
                [*known, "meta"] if threading.get_ident() == thread and device in known else known
            )

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

    So a norm is not small, a step leads downhill, and L-BFGS goes on to its last iteration. No size depends on them.
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
        is_meta = bool(args) and isinstance(args[0], Tensor) and args[0].is_meta
        if is_meta and func in _IS_GREATER and args[0].dim() == 0:
            return torch.tensor(_IS_GREATER[func] == (args[1] >= 0))
        if (
            not self._is_recorded
            and func in UPDATE_RULES
            and UPDATE_RULES[func](*args, **(kwargs or {})) is not None
        ):
            return None  # nothing but values would change
        try:
            return func(*args, **(kwargs or {}))
        except (NotImplementedError, RuntimeError):
            if (
                is_meta and func is aten._local_scalar_dense.default
            ):  # no record is made, which would have an answer
                return assumed_number(args[0])
            if func in UPDATES_WITHOUT_SHAPE_FUNCTION:
                return None
            raise


def _class_named(name: str) -> Callable[[list[Tensor]], Optimizer]:
    """Return the class of torch.optim by this name, or what makes an optimizer of bitsandbytes."""
    classes = {each.lower(): getattr(torch.optim, each) for each in dir(torch.optim)}
    known = classes.get(name.lower())
    if inspect.isclass(known) and issubclass(known, Optimizer):
        return known
    made = blockwise_optimizer(name)
    if made is None:
        raise OptimizerError.of_value(
            "optimizer",
            name,
            "give the name of a class in torch.optim, such as 'AdamW', or in bitsandbytes, such "
            "as 'AdamW8bit'",
            PythonOnly(", or a class"),
        )
    return made


def _same_optimizer(original: Optimizer, parameters: Mapping[int, Tensor]) -> Optimizer:
    """Return an optimizer with the same groups and options, but only the model's parameters."""
    groups = [
        {
            **_options(group),
            "params": [parameters[id(each)] for each in group["params"] if id(each) in parameters],
        }
        for group in original.param_groups
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise OptimizerError(
            "the optimizer has no parameter of this model: create it for this model, not for "
            "another or a copy"
        )
    return _of_class(original, groups)


def like(original: Optimizer, parameters: Sequence[Sequence[Tensor]]) -> Optimizer:
    """Return an optimizer with the same groups and options, and other parameters in each group.

    Groups without parameters are left out.
    """
    pairs = zip(original.param_groups, parameters, strict=True)
    return _of_class(
        original, [{**_options(group), "params": list(others)} for group, others in pairs if others]
    )


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(
        {name: value for name, value in group.items() if name not in ("params", "param_names")}
    )


def _of_class(original: Optimizer, groups: Sequence[Mapping[str, Any]]) -> Optimizer:
    accepted = inspect.signature(type(original)).parameters
    make: Any = type(original)
    options = {
        name: copy.deepcopy(value) for name, value in original.defaults.items() if name in accepted
    }
    return make(groups, **options)  # type: ignore[no-any-return]
