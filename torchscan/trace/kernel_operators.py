"""Operators that stand for Triton kernels, in the namespace ``triton``.

A kernel has no schema, so an operator with its name and parameters is defined when the kernel is
first launched, or when a trace with such a launch is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torchscan.torch_versions import OpOverload

KERNELS = "triton"
#: stands before a parameter that a kernel only writes to
ONLY_WRITTEN = "out "
_NAME = re.compile(r" (\w+)(?:,|$)")
_library = torch.library.Library(KERNELS, "FRAGMENT")
_namespace: Any = getattr(torch.ops, KERNELS)
_operators: dict[tuple[str, str], OpOverload] = {}
#: by operator
_names: dict[OpOverload, tuple[str, ...]] = {}
_lock = threading.Lock()
#: launches a kernel; takes its arguments by parameter name
RunKernel = Callable[[Mapping[str, Any]], None]


class _Current(threading.local):
    """The launch that this thread is making."""

    run: RunKernel | None = None


_current = _Current()


@contextlib.contextmanager
def running_kernels_by(run: RunKernel) -> Iterator[None]:
    """Return a context in which the operator of a kernel calls ``run`` if its tensors have data."""
    before = _current.run
    _current.run = run
    try:
        yield
    finally:
        _current.run = before


def kernel_operator(name: str, parameters: str) -> OpOverload:
    """Return the operator of a kernel with these parameters, in the order of the kernel.

    Each is written as in a schema, those that the kernel only writes to after ``ONLY_WRITTEN``.
    Kernels of the same name but different parameters are overloads of one operator.
    """
    with _lock:
        operator = _operators.get((name, parameters))
        if operator is None:
            overload = _define(name, parameters)
            packet = getattr(_namespace, name)
            operator = getattr(packet, overload)
            _operators[name, parameters] = operator
            _names[operator] = tuple(_NAME.findall(parameters))
    return operator


def was_launched(name: str) -> bool:
    """Return whether a pass has launched a kernel of this name."""
    with _lock:
        return any(name == kernel for kernel, _ in _operators)


def names_in_kernel(operator: OpOverload) -> tuple[str, ...]:
    """Return the names of a kernel's parameters, in the order of the kernel."""
    return _names[operator]


def parameters_of(operator: OpOverload) -> tuple[str, str]:
    """Return the arguments with which :func:`kernel_operator` returns this operator."""
    with _lock:
        for key, known in _operators.items():
            if known is operator:
                return key
    raise KeyError(operator)


def _define(name: str, parameters: str) -> str:
    """Define an operator and return the name of its overload, which its parameters decide.

    Parameters that are only written to are keyword-only, like ``out=`` of other operators: they do
    not count as read.
    """
    digest = hashlib.sha256(parameters.encode())
    overload = f"k{digest.hexdigest()[:8]}"
    full_name = f"{name}.{overload}"
    in_schema, only_written = [], []
    for parameter in parameters.split(", "):
        if parameter.startswith(ONLY_WRITTEN):
            only_written.append(parameter.removeprefix(ONLY_WRITTEN))
        else:
            in_schema.append(parameter)
    if only_written:
        in_schema.append("*")
    listed = ", ".join(in_schema + only_written)
    marks = re.findall(r"Tensor\((a\d+!)\)", listed)
    returned = ", ".join(f"Tensor({mark})" for mark in marks)
    schema = f"{full_name}({listed}) -> ({returned})"
    _library.define(schema)
    _library.impl(full_name, _implementation(listed), "CompositeExplicitAutograd")
    # Code that launches kernels computes their gradients itself.
    _library.impl(full_name, torch.library.fallthrough_kernel, "Autograd")
    return overload


def _implementation(parameters: str) -> Callable[..., Any]:
    """Return the function of an operator: launch the kernel, if there is data.

    It returns the tensors that the kernel writes to.
    """
    positional, _, _ = parameters.partition("*")
    names = _NAME.findall(positional)
    written = re.findall(r"Tensor\(a\d+!\) (\w+)", parameters)

    def run(*args: Any, **kwargs: Any) -> Any:
        by_position = zip(names, args, strict=True)
        values = dict(by_position) | kwargs
        tensors = [value for value in values.values() if isinstance(value, Tensor)]
        has_data = not any(tensor.is_meta for tensor in tensors)
        launch = _current.run
        if launch is not None and has_data:
            launch(values)
        results = tuple(values[name] for name in written)
        if len(results) == 1:
            return results[0]
        return results or None

    return run
