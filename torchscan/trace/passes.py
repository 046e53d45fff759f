"""One pass of a model, from arguments to record: which way it runs, on what, and what is said when it fails."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from torchscan._version import __version__
from torchscan.errors import InputError, TorchscanError
from torchscan.trace.abstract import AbstractExecution
from torchscan.trace.calls import Execution
from torchscan.trace.containers import copy_containers, named_tensors, tensors_in
from torchscan.trace.events import InputRecord, ParameterRecord, Provenance
from torchscan.trace.example_inputs import DTypes, Shapes, example_inputs
from torchscan.trace.failures import explain
from torchscan.trace.real import RealExecution
from torchscan.trace.recorder import IsWhole, Recorder, module_hooks
from torchscan.trace.state import original_of, training_flags, unchanged
from torchscan.trace.trace import Trace

Mode = Literal["eval", "train", "same"]
Execute = Literal["auto", "abstract", "real"]

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class PassRequest:
    """What was asked for: the module, its inputs (shapes, or complete arguments), and how to run."""

    module: nn.Module
    input_shape: Shapes | None = None
    dtype: DTypes | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    batch_size: int = 1
    mode: Mode = "eval"
    execute: Execute = "auto"

    @property
    def from_shapes(self) -> bool:
        """Whether torchscan makes the inputs."""
        return self.input_shape is not None

    def inputs(self, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the forward pass."""
        kwargs = copy_containers(dict(self.kwargs or {}))
        if self.input_shape is None:
            return copy_containers(tuple(self.args or ())), kwargs
        return example_inputs(self.module, self.input_shape, self.dtype, self.batch_size, device), kwargs


@dataclass(slots=True)
class _Attempt:
    """One way of running the pass."""

    name: Literal["abstract", "real"]
    reason: str
    device: torch.device
    assumptions: list[str] = field(default_factory=list)

    def execution(self) -> Execution:
        return AbstractExecution(self.assume) if self.name == "abstract" else RealExecution()

    def assume(self, text: str) -> None:
        if text not in self.assumptions:
            self.assumptions.append(text)


def record_pass(request: PassRequest, is_whole: IsWhole) -> Trace:
    """Run the pass that was asked for and return its record."""
    _check(request)
    module = original_of(request.module)
    device = _device_of(module, request)
    first, *others = _attempts(request.execute, module, device)
    try:
        return _run(request, module, first, is_whole)
    except TorchscanError as error:
        if not others or isinstance(error, InputError):
            raise
        second = others[0]
        second.reason = f"the shape-only pass could not go on: {error}"
        try:
            return _run(request, module, second, is_whole)
        except TorchscanError as real_error:
            raise real_error from real_error.__cause__


def _run(request: PassRequest, module: nn.Module, attempt: _Attempt, is_whole: IsWhole) -> Trace:
    if any(nn.parameter.is_lazy(tensor) for _, tensor in _named_tensors_of(module)):
        module = _initialised_copy(request, module, attempt)
    with unchanged(module, request.mode, tensors_in((request.args, request.kwargs))), torch.inference_mode():
        recorder = Recorder(module, attempt.execution(), is_whole)
        args, kwargs = request.inputs(attempt.device)
        inputs = _name_tensors(recorder, module, args, kwargs)
        _forward(recorder, module, args, kwargs, inputs, request)
        parameters = tuple(_parameters_of(module, recorder))
    provenance = Provenance(
        execution=attempt.name,
        reason=attempt.reason,
        mode=request.mode,
        batch_size=request.batch_size if request.from_shapes else None,
        inputs=inputs,
        assumptions=tuple(attempt.assumptions),
        torchscan_version=__version__,
        torch_version=torch.__version__,
    )
    calls = tuple(call.closed() for call in recorder.calls)
    return Trace(calls, tuple(recorder.ops), tuple(recorder.table.records), parameters, provenance)


def _forward(
    recorder: Recorder,
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[InputRecord],
    request: PassRequest,
) -> None:
    try:
        with module_hooks(recorder), recorder:
            module(*args, **kwargs)
    except Exception as error:
        raise explain(error, recorder, module, inputs, request.input_shape) from error


def _check(request: PassRequest) -> None:
    given: object = request.module
    if not isinstance(given, nn.Module):
        what = "a class: create an instance of it" if isinstance(given, type) else "no torch.nn.Module"
        raise InputError(f"module is {given!r}, which is {what}")
    for name, value, allowed in (("mode", request.mode, get_args(Mode)), ("execute", request.execute, get_args(Execute))):
        if value not in allowed:
            raise InputError(f"{name} is {value!r}: give one of {', '.join(map(repr, allowed))}")
    if request.input_shape is not None and request.args is not None:
        raise InputError("input_shape and args were both given: give shapes or complete arguments (kwargs go with either)")
    if request.input_shape is None and request.args is None and request.kwargs is None:
        raise InputError(
            "no input was given: pass input_shape=(3, 224, 224), say, or the arguments themselves as args= and kwargs="
        )
    if isinstance(request.args, Tensor):
        raise InputError("args is a tensor: give a tuple of the positional arguments, args=(tensor,)")


def _initialised_copy(request: PassRequest, module: nn.Module, attempt: _Attempt) -> nn.Module:
    """Of a module with lazy parts a copy that has been through a pass, which is what initialises them.

    It shares the tensors that are there. The initialisation is not part of the record.
    """
    tensors = [tensor for _, tensor in _named_tensors_of(module)]
    shared = {id(each): _uninitialised(each, attempt.device) if nn.parameter.is_lazy(each) else each for each in tensors}
    twin: nn.Module = copy.deepcopy(module, shared)
    # Not in inference mode: its tensors cannot become the data of a parameter on the meta device.
    with unchanged(module, "same"), training_flags(list(twin.modules()), request.mode), torch.no_grad():
        args, kwargs = request.inputs(attempt.device)
        recorder = Recorder(twin, attempt.execution(), lambda _: True)
        inputs = _name_tensors(recorder, twin, args, kwargs)
        _forward(recorder, twin, args, kwargs, inputs, request)
    return twin


def _uninitialised(tensor: Tensor, device: torch.device) -> Tensor:
    kind: Any = type(tensor)
    return kind(requires_grad=tensor.requires_grad, device=device, dtype=tensor.dtype)  # type: ignore[no-any-return]


def _attempts(execute: Execute, module: nn.Module, device: torch.device) -> list[_Attempt]:
    """The ways to run, in the order in which to try them."""
    abstract = _Attempt("abstract", "asked for" if execute == "abstract" else "shapes are enough", _META)
    if execute == "abstract":
        return [abstract]
    hollow = [name for name, tensor in _named_tensors_of(module) if tensor.is_meta]
    if execute == "real":
        if hollow:
            raise InputError(f"execute='real' needs data, and {hollow[0]} has none (it is on the meta device)")
        return [_Attempt("real", "asked for", device)]
    if device.type == "cuda":
        return [_Attempt("real", "the model is on CUDA", device)]
    return [abstract] if hollow else [abstract, _Attempt("real", "", device)]


def _named_tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _device_of(module: nn.Module, request: PassRequest) -> torch.device:
    """Where the model lives: the device of its first tensor, else of its first argument, else the CPU."""
    for _, tensor in (*_named_tensors_of(module), *named_tensors((request.args, request.kwargs))):
        return tensor.device
    return torch.device("cpu")


def _name_tensors(recorder: Recorder, module: nn.Module, args: object, kwargs: object) -> tuple[InputRecord, ...]:
    for name, parameter in module.named_parameters():
        recorder.table.name(parameter, "parameter", name)
    for name, buffer in module.named_buffers():
        recorder.table.name(buffer, "buffer", name)
    named = [*named_tensors(args, "args"), *named_tensors(kwargs, "kwargs")]
    for name, tensor in named:
        recorder.table.name(tensor, "input", name)
    return tuple(InputRecord(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named)


def _parameters_of(module: nn.Module, recorder: Recorder) -> Iterator[ParameterRecord]:
    """Every parameter and buffer slot of every module."""
    for path, owner in module.named_modules():
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None and not nn.parameter.is_lazy(tensor):
                yield ParameterRecord(
                    owner=path,
                    name=name,
                    identity=tensor._cdata,
                    is_buffer=name in owner._buffers,
                    requires_grad=tensor.requires_grad,
                    numel=tensor.numel(),
                    stored_bytes=_stored_bytes(tensor),
                    is_used=recorder.table.is_used(tensor),
                )


def _stored_bytes(tensor: Tensor) -> int:
    """Bytes in memory; a tensor subclass (a quantised weight, say) is stored as the tensors that it wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        return sum(_stored_bytes(getattr(tensor, name)) for name in flatten()[0])
    return tensor.numel() * tensor.element_size()
