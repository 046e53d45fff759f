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


def kernel_launches() -> Contexts:
    """Yield the contexts in which launches are recorded; there are none without Triton."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return
    yield overridden(jit.KernelInterface, "__getitem__", _launching_operators)
    yield without_wrapped_kernels()


def _launching_operators(getitem: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``kernel[grid]`` whose launches call operators."""

    def launcher(kernel: Any, grid: Any) -> Callable[..., Any]:
        run = getitem(kernel, grid)

        def launch(*args: Any, **kwargs: Any) -> Any:
            tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
            is_recorded = count_dispatch_modes() or any(each.is_meta for each in tensors)
            if not is_recorded:  # by another thread, or by the implementation of an operator
                return run(*args, **kwargs)
            names = kernel.arg_names
            given = dict(zip(names, args, strict=False)) | kwargs
            arguments = {name: value for name, value in given.items() if name in names}
            options = {name: value for name, value in given.items() if name not in names}
            _Launch(kernel, run, arguments, options).call_operator()
            return None

        return launch

    return launcher


@dataclass(frozen=True)
class _Launch:
    """A kernel that is about to be launched on a grid."""

    #: the compiled function, or what tunes it
    kernel: Any
    #: Triton's own launch
    run: Callable[..., Any]
    #: the arguments by the names of the kernel's parameters
    arguments: Mapping[str, Any]
    #: arguments that are not parameters: the numbers of warps and stages, for example
    options: Mapping[str, Any]

    def call_operator(self) -> None:
        """Call the operator that stands for the kernel."""
        function, known = self._function_and_arguments()
        values = {name: _plain(known[name]) for name in function.arg_names if name in known}
        pointers = [name for name, value in values.items() if isinstance(value, Tensor)]
        access = find_access(function, pointers)

        # Keyword-only, like out= of other operators: these tensors do not count as read.
        only_written = access.written - access.read
        by_position = [name for name in values if name not in only_written]
        by_keyword = [name for name in values if name in only_written]
        name = re.sub(r"\W", "_", function.__name__)
        operator = kernel_operator(name, _schema_of(values, by_position, by_keyword, access))

        positional = [values[each] for each in by_position]
        keywords = {each: values[each] for each in by_keyword}
        with running_kernels_by(self._run_on):
            operator(*positional, **keywords)

    def _function_and_arguments(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the function that is compiled, and its arguments with those that are chosen.

        A tuner's first choice stands for all of them.
        """
        function, known = self.kernel, dict(self.arguments)
        while hasattr(function, "fn") and hasattr(function.fn, "arg_names"):
            for config in getattr(function, "configs", ())[:1]:
                known = {**config.kwargs, **known}
            heuristics = getattr(function, "values", None) or {}
            for name, choose in heuristics.items():
                with contextlib.suppress(Exception):  # it may ask a GPU
                    known.setdefault(name, choose(dict(known)))
            function = function.fn
        for parameter in function.params:
            if parameter.has_default:
                known.setdefault(parameter.name, parameter.default)
        return function, known

    def _run_on(self, values: Mapping[str, Any]) -> None:
        """Launch the kernel on the tensors that a pass has put in place of its arguments."""
        arguments = dict(self.arguments)
        for name, argument in self.arguments.items():
            value = values.get(name)
            if not isinstance(value, Tensor):
                continue
            if isinstance(argument, Tensor):
                arguments[name] = value
            else:  # a descriptor of a tensor
                arguments[name] = dataclasses.replace(argument, base=value)
        self.run(**arguments, **self.options)


def _plain(value: Any) -> Any:
    """Return a value that an operator takes."""
    if value is None or isinstance(value, Tensor | bool | int | float | str):
        return value
    base = getattr(value, "base", None)
    if isinstance(base, Tensor):  # of a descriptor
        return base
    if isinstance(value, list | tuple) and value:
        for kind in (Tensor, int):
            if all(isinstance(each, kind) for each in value):
                return list(value)
    return str(getattr(value, "value", value))


def _schema_of(
    values: Mapping[str, Any], by_position: list[str], by_keyword: list[str], access: Access
) -> str:
    """Return the parameters of an operator, as a schema lists them."""
    parameters = []
    for name in (*by_position, *by_keyword):
        if by_keyword and name == by_keyword[0]:
            parameters.append("*")
        mark = f"(a{len(parameters)}!)" if name in access.written else ""
        parameters.append(f"{_type_of(values[name], mark)} {name}")
    return ", ".join(parameters)


def _type_of(value: Any, mark: str) -> str:
    if isinstance(value, Tensor):
        return f"Tensor{mark}"
    if value is None:
        return "Tensor?"
    if isinstance(value, list):
        return "Tensor[]" if isinstance(value[0], Tensor) else "int[]"
    return type(value).__name__
