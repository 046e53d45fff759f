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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from torchscan.notes import Note
from torchscan.recording.kernel_access import Access, find_access
from torchscan.recording.patches import Contexts, overridden, substituted
from torchscan.recording.undo import run_at_end_of_pass
from torchscan.torch_versions import (
    count_dispatch_modes,
    device_switches,
    without_wrapped_kernels,
)
from torchscan.trace.kernel_operators import ONLY_WRITTEN, kernel_operator, running_kernels_by

_MAX_INTEGER = 2**63
#: torch's limit on the parameters of an operator
_MAX_PARAMETERS = 64
#: properties that code reads to choose sizes of blocks
_ASSUMED_GPU = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, warp_size=32
)
#: between the name of a tuple and the index of an item
_INSIDE = "__"
#: types in a schema; None stands for a tensor that is not there
_TYPES = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "int[]",
    type(None): "Tensor?",
}


def kernel_launches(assume: Callable[[Note], None]) -> Contexts:
    """Yield the contexts in which launches are recorded; Triton must have been imported.

    Code that launches kernels first chooses a device and queries its number of multiprocessors.
    """
    jit = sys.modules["triton.runtime.jit"]
    yield overridden(jit.KernelInterface, "__getitem__", _launching_operators)
    yield without_wrapped_kernels()
    for owner, name in device_switches():
        yield substituted(owner, name, lambda _: -1)
    yield overridden(torch.cuda, "get_device_properties", partial(_with_assumed_gpu, assume))


def _with_assumed_gpu(
    assume: Callable[[Note], None], properties: Callable[..., Any]
) -> Callable[..., Any]:
    """Return ``get_device_properties`` with those of an H100 for devices that are not GPUs.

    Without a GPU, code may also ask for the current device or for one by its number.
    """

    def properties_of(device: Any = None) -> Any:
        is_gpu = not isinstance(device, torch.device) or device.type not in ("cpu", "meta")
        if is_gpu and torch.cuda.is_available():
            return properties(device)
        assume(Note.of("kernels-for-gpu", gpu=_ASSUMED_GPU.name))
        return _ASSUMED_GPU

    return properties_of


def _launching_operators(getitem: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a ``__getitem__`` whose launches call operators."""

    def launcher(kernel: Any, grid: Any) -> Callable[..., Any]:
        run = getitem(kernel, grid)

        def launch(*args: Any, **kwargs: Any) -> Any:
            values: dict[str, Any] = {}
            _flatten("", (*args, *kwargs.values()), values)
            tensors = [value for value in values.values() if isinstance(value, Tensor)]
            is_recorded = count_dispatch_modes() or any(each.is_meta for each in tensors)
            if not is_recorded:  # by another thread, or by the implementation of an operator
                return run(*args, **kwargs)
            return _Launch(kernel=kernel, run=run, args=args, kwargs=kwargs).call_operator()

        return launch

    return launcher


@dataclass(kw_only=True)
class _Launch:
    """A kernel that is about to be launched on a grid."""

    #: the ``@triton.jit`` function, or the autotuner or heuristics around it
    kernel: Any
    #: Triton's own launch
    run: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    #: the compiled kernel, which Triton returns, or None without data
    compiled: Any = None

    def call_operator(self) -> Any:
        """Call the operator that stands for the kernel, and return what Triton returns."""
        function, known = self._function_and_arguments()
        values: dict[str, Any] = {}
        for name in function.arg_names:
            if name in known:
                _flatten(name, known[name], values)
        values = _within_limit(values)
        access = self._access(function, values)
        name = re.sub(r"\W", "_", function.__name__)
        operator = kernel_operator(name, _describe_parameters(values, access))

        only_written = access.written - access.read
        positional = [value for each, value in values.items() if each not in only_written]
        keywords = {each: value for each, value in values.items() if each in only_written}
        with running_kernels_by(self._run_on):
            operator(*positional, **keywords)
        return self.compiled

    def _function_and_arguments(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the ``@triton.jit`` function and its arguments, with those that tuners choose.

        Of a tuner's configurations, the first counts.
        """
        function = self.kernel
        by_position = zip(function.arg_names, self.args, strict=False)
        known = dict(by_position) | dict(self.kwargs)
        while hasattr(function, "fn") and hasattr(function.fn, "arg_names"):
            for config in getattr(function, "configs", ())[:1]:
                known = {**config.kwargs, **known}
                _set_best(function, config)
            heuristics = getattr(function, "values", None) or {}
            for name, choose in heuristics.items():
                with contextlib.suppress(Exception):  # it may ask a GPU
                    known.setdefault(name, choose(dict(known)))
            function = function.fn
        for parameter in getattr(function, "params", ()):
            if parameter.has_default:
                known.setdefault(parameter.name, parameter.default)
        return function, known

    def _access(self, function: Any, values: Mapping[str, Any]) -> Access:
        """Return the tensors that the kernel reads and writes; all of a tuple count alike."""
        found = find_access(function, function.arg_names)
        read: set[str] = set()
        written: set[str] = set()
        for name, value in values.items():
            if not isinstance(value, Tensor):
                continue
            argument = name.partition(_INSIDE)[0]
            if argument in found.read:
                read.add(name)
            if argument in found.written:
                written.add(name)
        return Access(frozenset(read), frozenset(written))

    def _run_on(self, values: Mapping[str, Any]) -> None:
        """Launch the kernel on the tensors that a pass has put in place of its arguments."""
        # Triton refuses arguments that are too many; here they only need some name.
        names = [*self.kernel.arg_names, *map(str, range(len(self.args)))]
        args = [
            _with_tensors(name, argument, values)
            for name, argument in zip(names, self.args, strict=False)
        ]
        kwargs = {
            name: _with_tensors(name, argument, values) for name, argument in self.kwargs.items()
        }
        self.compiled = self.run(*args, **kwargs)


def _set_best(tuner: Any, config: Any) -> None:
    """Set the configuration that code reads after a launch; reset it when the pass ends."""
    if hasattr(tuner, "best_config"):
        return

    def put_back() -> None:
        if vars(tuner).get("best_config") is config:
            del tuner.best_config

    run_at_end_of_pass(put_back)
    tuner.best_config = config


def _within_limit(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments, without strides if there are more than a torch operator may have.

    If that is not enough, the last arguments that are not tensors are left out, too.
    """
    surplus = len(values) - _MAX_PARAMETERS
    if surplus <= 0:
        return values
    plain = [name for name, value in values.items() if not isinstance(value, Tensor)]
    strides = [name for name in plain if "stride" in name]
    others = [name for name in reversed(plain) if name not in strides]
    left_out = [*strides, *others[: max(0, surplus - len(strides))]]
    return {name: value for name, value in values.items() if name not in left_out}


def _flatten(name: str, value: Any, found: dict[str, Any]) -> None:
    """Add a value as an operator takes it; tuples with tensors item by item."""
    base = getattr(value, "base", None)
    if isinstance(base, Tensor):  # of a descriptor
        found[name] = base
    elif isinstance(value, list | tuple) and not all(isinstance(each, int) for each in value):
        for index, item in enumerate(value):
            _flatten(f"{name}{_INSIDE}{index}", item, found)
    else:
        found[name] = _plain(value)


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)  # of a constant, or of an enumeration
    if value is None or isinstance(value, Tensor | bool | str):
        return value
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Integral):
        number = int(value)
        return number if abs(number) < _MAX_INTEGER else str(number)
    return float(value) if isinstance(value, Real) else str(value)


def _with_tensors(name: str, argument: Any, values: Mapping[str, Any]) -> Any:
    """Return the argument of a launch with tensors from ``values`` in place of its own."""
    value = values.get(name)
    if isinstance(argument, Tensor):
        return argument if value is None else value
    if isinstance(argument, list | tuple):
        items = [
            _with_tensors(f"{name}{_INSIDE}{index}", item, values)
            for index, item in enumerate(argument)
        ]
        is_named = hasattr(argument, "_fields")
        return type(argument)(*items) if is_named else type(argument)(items)
    if dataclasses.is_dataclass(argument) and isinstance(value, Tensor):  # a descriptor
        return dataclasses.replace(argument, base=value)  # type: ignore[type-var]
    return argument


def _describe_parameters(values: Mapping[str, Any], access: Access) -> str:
    """Return the parameters of an operator, as :func:`kernel_operator` takes them."""
    parameters: list[str] = []
    for name, value in values.items():
        kind = _TYPES.get(type(value), "Tensor")  # a tensor or a parameter
        is_only_written = name in access.written and name not in access.read
        before = ONLY_WRITTEN if is_only_written else ""
        mark = f"(a{len(parameters)}!)" if name in access.written else ""
        parameters.append(f"{before}{kind}{mark} {name}")
    return ", ".join(parameters)
