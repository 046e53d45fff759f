"""Launches of Triton kernels, recorded as operators of the namespace ``triton``.

torch does not see a launch. While a pass is recorded, a launch therefore calls an operator with the
kernel's name and parameters, which is recorded like all others: without data it does nothing, with
data it launches the kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchscan.recording.kernel_access import Access, find_access
from torchscan.recording.patches import Contexts, overridden
from torchscan.torch_versions import count_dispatch_modes, without_wrapped_kernels
from torchscan.trace.kernel_operators import kernel_operator, running_kernels_by


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """A kernel that is about to be launched on a grid."""

    #: the compiled function, with or without what tunes it
    kernel: Any
    #: what Triton itself would have run
    run: Callable[..., Any]
    #: the arguments by the names of its parameters
    arguments: Mapping[str, Any]
    #: arguments that are not parameters: the numbers of warps and stages, for example
    options: Mapping[str, Any]

    def run_on(self, values: Mapping[str, Any]) -> None:
        """Launch the kernel on the tensors that a pass has put in place of its arguments."""
        arguments = {
            name: _with_tensor(argument, values.get(name))
            for name, argument in self.arguments.items()
        }
        self.run(**arguments, **self.options)


def kernel_launches() -> Contexts:
    """Yield the contexts in which launches are recorded; there are none without Triton."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return
    yield overridden(jit.KernelInterface, "__getitem__", _recorded)
    yield without_wrapped_kernels()


def _recorded(getitem: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``kernel[grid]`` whose launches call operators."""

    def recorded_getitem(kernel: Any, grid: Any) -> Callable[..., Any]:
        run = getitem(kernel, grid)

        def launch(*args: Any, **kwargs: Any) -> Any:
            has_meta = any(isinstance(each, Tensor) and each.is_meta for each in args)
            if not has_meta and not count_dispatch_modes():  # of a thread that is not recorded
                return run(*args, **kwargs)
            _call_operator(_launch_of(kernel, run, args, kwargs))
            return None

        return launch

    return recorded_getitem


def _launch_of(
    kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> _Launch:
    names = kernel.arg_names
    arguments = dict(zip(names, args, strict=False))
    arguments |= {name: value for name, value in kwargs.items() if name in names}
    options = {name: value for name, value in kwargs.items() if name not in names}
    return _Launch(kernel=kernel, run=run, arguments=arguments, options=options)


def _call_operator(launch: _Launch) -> None:
    """Call the operator of a kernel: as often as kernels are launched, by the model or by torch."""
    function = launch.kernel
    known = dict(launch.arguments)
    while hasattr(function, "fn") and hasattr(function.fn, "arg_names"):
        _add_chosen(function, known)
        function = function.fn
    for parameter in getattr(function, "params", ()):
        if parameter.has_default:
            known.setdefault(parameter.name, parameter.default)

    values = {name: _plain(known[name]) for name in function.arg_names if name in known}
    pointers = [name for name, value in values.items() if isinstance(value, Tensor)]
    access = find_access(function, pointers)
    signature, only_written = _signature_of(values, access)
    operator = kernel_operator(_name_of(function), signature)

    positional = [value for name, value in values.items() if name not in only_written]
    keywords = {name: values[name] for name in values if name in only_written}
    with running_kernels_by(launch.run_on):
        operator(*positional, **keywords)


def _add_chosen(tuner: Any, known: dict[str, Any]) -> None:
    """Add what a tuner or a heuristic would choose; a tuner's first choice stands for all."""
    for config in getattr(tuner, "configs", ())[:1]:
        for name, value in config.kwargs.items():
            known.setdefault(name, value)
    heuristics = getattr(tuner, "values", None)
    for name, choose in heuristics.items() if isinstance(heuristics, Mapping) else ():
        with contextlib.suppress(Exception):  # it may ask a GPU
            known.setdefault(name, choose(dict(known)))


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", "") or "kernel"
    return re.sub(r"\W", "_", name)


def _plain(value: Any) -> Any:
    """Return a value that an operator takes."""
    if value is None or isinstance(value, Tensor | bool | int | float | str):
        return value
    base = getattr(value, "base", None)  # of a descriptor
    if isinstance(base, Tensor):
        return base
    if isinstance(value, list | tuple) and value:
        for kind in (Tensor, int):
            if all(isinstance(each, kind) for each in value):
                return list(value)
    return str(getattr(value, "value", value))


def _signature_of(values: Mapping[str, Any], access: Access) -> tuple[str, frozenset[str]]:
    """Return the parameters of a schema, and the names of tensors that are only written to.

    These are keyword-only, like ``out=`` of other operators: they do not count as read.
    """
    only_written = access.written - access.read
    by_position: list[str] = []
    by_keyword: list[str] = []
    for index, (name, value) in enumerate(values.items()):
        mark = f"(a{index}!)" if name in access.written else ""
        parts = by_keyword if name in only_written else by_position
        parts.append(f"{_type_of(value, mark)} {name}")
    parameters = [*by_position, *(["*", *by_keyword] if by_keyword else [])]
    return ", ".join(parameters), only_written


def _type_of(value: Any, mark: str) -> str:
    if isinstance(value, Tensor):
        return f"Tensor{mark}"
    if value is None:
        return "Tensor?"
    if isinstance(value, list):
        return "Tensor[]" if isinstance(value[0], Tensor) else "int[]"
    return type(value).__name__ if type(value) in (bool, int, float) else "str"


def _with_tensor(argument: Any, value: Any) -> Any:
    """Return the argument of a launch with the tensor that a pass has put in its place."""
    if isinstance(argument, Tensor) and isinstance(value, Tensor):
        return value
    if isinstance(getattr(argument, "base", None), Tensor) and isinstance(value, Tensor):
        return dataclasses.replace(argument, base=value)
    return argument
