"""The optimizer of a training step, working on meta tensors in place of the model's parameters."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchscan.errors import Argument, InputError, PythonOnly, TorchscanError
from torchscan.recording.training.blockwise_optimizers import (
    BLOCKWISE_NAMES,
    blockwise_optimizer,
)

#: the name of a class of torch.optim or bitsandbytes, a class or function that makes one of a list
#: of parameters, or one that exists
OptimizerChoice = str | Callable[[list[Tensor]], Optimizer] | Optimizer


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


def name_of(choice: OptimizerChoice) -> str:
    """Return the name of an optimizer: of its class, or of the function that makes it."""
    kind: Any = choice
    if isinstance(choice, str):
        kind = _class_named(choice)
        if not isinstance(kind, type):
            return choice
    if isinstance(choice, Optimizer):
        kind = type(choice)
    return getattr(kind, "__name__", "an optimizer")


def installed_optimizer(choice: OptimizerChoice) -> OptimizerChoice:
    """Return the optimizer for a real step.

    It is bitsandbytes' own class in place of one without values.
    """
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


def _class_named(name: str) -> Callable[[list[Tensor]], Optimizer]:
    """Return the class of torch.optim by this name, or what makes an optimizer of bitsandbytes."""
    classes = {}
    for each, known in vars(torch.optim).items():
        if inspect.isclass(known) and issubclass(known, Optimizer):
            classes[each.lower()] = known
    if name.lower() in classes:
        return classes[name.lower()]
    made = blockwise_optimizer(name)
    if made is None:
        spelled = {each.lower(): each for each in BLOCKWISE_NAMES}
        spelled |= {lower: known.__name__ for lower, known in classes.items()}
        near = difflib.get_close_matches(name.lower(), spelled, 1)
        advice = f"did you mean {spelled[near[0]]!r}? Give" if near else "give"
        raise OptimizerError.of_value(
            "optimizer",
            name,
            f"{advice} the name of a class in torch.optim, such as 'AdamW', or in bitsandbytes, "
            "such as 'AdamW8bit'",
            PythonOnly(", or a class"),
        )
    return made


def _same_optimizer(original: Optimizer, parameters: Mapping[int, Tensor]) -> Optimizer:
    """Return an optimizer with the same groups and options, but only the model's parameters."""
    groups = []
    for group in original.param_groups:
        params = [parameters[id(each)] for each in group["params"] if id(each) in parameters]
        options = _options(group)
        if params:
            groups.append({**options, "params": params})
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
    groups = [{**_options(group), "params": list(others)} for group, others in pairs if others]
    return _of_class(original, groups)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in group if name not in ("params", "param_names")]
    return copy.deepcopy({name: group[name] for name in names})


def _of_class(original: Optimizer, groups: Sequence[Mapping[str, Any]]) -> Optimizer:
    accepted = inspect.signature(type(original)).parameters
    make: Any = type(original)
    options = {}
    for name, value in original.defaults.items():
        if name in accepted:
            options[name] = copy.deepcopy(value)
    return make(groups, **options)  # type: ignore[no-any-return]
