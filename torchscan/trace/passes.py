"""One pass of a model, from arguments to record: which way it runs, on what, and what is said when it fails."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from torchscan._version import __version__
from torchscan.errors import InputError, RecordError, TorchscanError
from torchscan.trace.abstract import AbstractExecution
from torchscan.trace.autocast import Autocast, autocast_of_hollow_tensors
from torchscan.trace.calls import Execution
from torchscan.trace.containers import copy_arguments, named_tensors, tensors_in
from torchscan.trace.events import InputRecord, ParameterRecord, Provenance
from torchscan.trace.example_inputs import DTypes, Shapes, example_inputs
from torchscan.trace.failures import explain
from torchscan.trace.gradients import Backward, BackwardError, Substitutes, loss_of
from torchscan.trace.higher_order import flex_attention_runs_as_it_is
from torchscan.trace.inventory import Inventory, Slot
from torchscan.trace.kernels import Kernels, functions_let_through
from torchscan.trace.optimizers import OptimizerChoice, OptimizerError
from torchscan.trace.real import RealExecution
from torchscan.trace.recorder import IsWhole, Recorder, module_hooks
from torchscan.trace.state import original_of, training_flags, unchanged
from torchscan.trace.tensors import own_copy
from torchscan.trace.trace import Trace
from torchscan.trace.training import differentiate, name_gradients, optimize

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
    backward: Backward = False
    #: also let an optimizer step
    optimizer: OptimizerChoice | None = None
    #: a batch whose gradients are added to those of one before
    accumulates: bool = False
    #: composite operators as what they are made of, also without gradients
    in_pieces: bool = False
    #: the type that autocast computes in
    autocast: torch.dtype | None = None
    #: by the identity of a parameter that of the one which it is a twin of, where the model is a copy
    originals: Mapping[int, int] = field(default_factory=dict)
    #: the kind of device whose kernels to assume where they differ
    target: str = "cpu"
    #: whether that device has flash attention, as CUDA devices since 8.0 have
    has_flash: bool = True

    @property
    def is_converted(self) -> bool:
        """Whether the model is a copy without data."""
        return bool(self.originals)

    @property
    def from_shapes(self) -> bool:
        """Whether torchscan makes the inputs."""
        return self.input_shape is not None

    def inputs(self, device: torch.device, kept: Collection[int]) -> tuple[tuple[Any, ...], dict[str, Any], set[int]]:
        """The arguments of the forward pass, and which of their tensors are our own.

        Tensors are copies, on ``device`` (on ``meta`` integers keep their values), but for those ``kept``, by identity.
        """
        owned: list[Tensor] = []

        def own(tensor: Tensor) -> Tensor:
            copied = tensor if id(tensor) in kept else own_copy(tensor, hollow=device.type == "meta")
            if copied is not tensor:
                owned.append(copied)
            return copied

        args, kwargs = copy_arguments((tuple(self.args or ()), dict(self.kwargs or {})), own)
        if self.input_shape is not None:
            args, named = example_inputs(self.module, self.input_shape, self.dtype, self.batch_size, device)
            kwargs |= named
            owned.extend((*args, *named.values()))
        return args, kwargs, {id(tensor) for tensor in owned}


@dataclass(slots=True)
class _Attempt:
    """One way of running the pass."""

    name: Literal["abstract", "real"]
    reason: str
    device: torch.device
    assumptions: list[str] = field(default_factory=list)
    grad_mode: Callable[[], contextlib.AbstractContextManager[object]] = torch.inference_mode
    #: whether operators arrive as what autograd sees: its tensors are ours, and composites come apart
    in_pieces: bool = False

    def execution(self) -> Execution:
        """In pieces, known floats are without data like all others: autograd and composites compare devices."""
        if self.name == "real":
            return RealExecution()
        return AbstractExecution(largest_floats=0) if self.in_pieces else AbstractExecution()

    @contextlib.contextmanager
    def autocast(self, followed: str | None) -> Iterator[None]:
        """An active autocast casts parameters, which have a device, but not activations that have none: switch it off.

        But for that on the kind of device that is ``followed``: see :mod:`torchscan.trace.autocast`.
        """
        with contextlib.ExitStack() as stack:
            for device in set(_autocast_devices()) - {followed} if self.name == "abstract" else ():
                self.assume(f"no autocast, although it is active on {device}: it does not reach a pass on shapes alone")
                stack.enter_context(torch.autocast(device, enabled=False))
            yield

    def assume(self, text: str) -> None:
        if text not in self.assumptions:
            self.assumptions.append(text)


def record_pass(request: PassRequest, is_whole: IsWhole) -> Trace:
    """Run the pass that was asked for and return its record."""
    _check(request)
    inventory = Inventory(original_of(request.module))
    first, *others = _attempts(request, inventory)
    try:
        return _run_with_or_without_graph(request, inventory, first, is_whole)
    except TorchscanError as error:
        if not others or isinstance(error, InputError):
            raise
        second = others[0]
        second.reason = f"the shape-only pass could not go on: {error}"
    return _run_with_or_without_graph(request, inventory, second, is_whole)


def _run_with_or_without_graph(request: PassRequest, inventory: Inventory, attempt: _Attempt, is_whole: IsWhole) -> Trace:
    """In inference mode operators arrive whole; a model that differentiates inside its forward pass cannot run there."""
    if not request.backward:
        if request.in_pieces:
            attempt.grad_mode, attempt.in_pieces = torch.no_grad, True
        try:
            return _run(request, inventory, attempt, is_whole)
        except RecordError as error:
            if not any(word in str(error.__cause__) for word in ("require grad", "requires_grad", "Inference tensor")):
                raise
        attempt.reason = f"{attempt.reason}; the model computes gradients on its way".removeprefix("; ")
        attempt.assumptions.clear()
    attempt.grad_mode, attempt.in_pieces = torch.enable_grad, True
    with torch.inference_mode(False):
        return _run(request, inventory, attempt, is_whole)


def _run(request: PassRequest, inventory: Inventory, attempt: _Attempt, is_whole: IsWhole) -> Trace:
    if any(slot.is_lazy for slot in inventory.slots):
        inventory = Inventory(_initialised_copy(request, inventory, attempt))
    recorder = Recorder(inventory, attempt.execution(), is_whole, attempt.assume)
    with (
        unchanged(inventory, request.mode, [request.args, request.kwargs]),
        attempt.autocast(request.target if request.in_pieces else None),
    ):
        inputs = _forward(request, recorder, attempt)
    provenance = Provenance(
        execution=attempt.name,
        reason=attempt.reason,
        mode=request.mode,
        backward=bool(request.backward),
        batch_size=request.batch_size if request.from_shapes else None,
        inputs=inputs,
        assumptions=tuple(attempt.assumptions),
        missed=tuple(sorted(recorder.missed)),
        torchscan_version=__version__,
        torch_version=torch.__version__,
    )
    recorder.warn_of_leftovers()
    calls = tuple(call.closed() for call in recorder.calls)
    first: dict[int, int] = {}
    identities = [first.setdefault(slot.tensor._cdata, position) for position, slot in enumerate(inventory.slots)]
    used = [recorder.table.is_used(slot.tensor) for slot in inventory.slots]
    slots = zip(inventory.slots, identities, used, strict=True)
    parameters = tuple(_parameter_record(*each, recorder) for each in slots)
    table = recorder.table
    return Trace(calls, tuple(recorder.ops), tuple(table.records), table.storages.records(), parameters, provenance)


def _forward(request: PassRequest, recorder: Recorder, attempt: _Attempt) -> tuple[InputRecord, ...]:
    module = recorder.inventory.root
    kept = {id(slot.tensor) for slot in recorder.inventory.slots}
    args, kwargs, owned = request.inputs(attempt.device, kept)
    named = [*named_tensors(args, "args"), *named_tensors(kwargs, "kwargs")]
    for name, tensor in named:
        if id(tensor) in owned:
            recorder.table.enter_own(tensor, "input", name)
        else:
            recorder.table.name(tensor, "input", name)
    if request.is_converted:
        for slot in recorder.inventory.slots:
            recorder.table.enter_own(slot.tensor, "buffer" if slot.is_buffer else "parameter", slot.path)
    inputs = tuple(InputRecord(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(attempt.grad_mode())
            stack.enter_context(flex_attention_runs_as_it_is())
            kernels = Kernels(request.target, has_flash=request.has_flash)
            autocast = Autocast(request.autocast, request.target)
            recorder.after_recomputation = autocast.forget
            substitutes = Substitutes(recorder.table, kernels, autocast, without_data=attempt.name == "abstract")
            if attempt.in_pieces:
                stack.enter_context(substitutes)
            if attempt.in_pieces and substitutes.without_data:
                stack.enter_context(functions_let_through())
            if attempt.name == "abstract":
                stack.enter_context(autocast_of_hollow_tensors(request.target))
            stack.enter_context(module_hooks(recorder))
            stack.enter_context(recorder)
            for _ in range(2 if request.accumulates else 1):
                result = loss = None  # of the batch before
                recorder.begin("forward")
                with autocast.on():
                    result = module(*args, **kwargs)
                    if isinstance(result, GeneratorType):  # nothing has run yet
                        recorder.resume()
                        deque(result, maxlen=0)
                    loss = loss_of(result, request.backward) if request.backward else None
                if request.backward:
                    differentiate(loss, recorder, substitutes)
            name_gradients(recorder, substitutes, [(name, tensor) for name, tensor in named if id(tensor) in owned])
            if request.optimizer is not None:
                optimize(request.optimizer, recorder, substitutes, request.originals, request.target)
            recorder.table.storages.forget()
    except (BackwardError, OptimizerError):
        raise
    except Exception as error:
        raise explain(error, recorder, module, inputs, request.input_shape) from error
    return inputs


def require_module(given: object) -> None:
    """Say what was given where a module is needed."""
    if not isinstance(given, nn.Module):
        what = "a class: create an instance of it" if isinstance(given, type) else "no torch.nn.Module"
        raise InputError(f"module is {given!r}, which is {what}")


def _check(request: PassRequest) -> None:
    require_module(request.module)
    if not (isinstance(request.backward, bool) or callable(request.backward)):
        raise InputError(f"backward is {request.backward!r}: give True, or a function that makes a loss of the output")
    for name, value, allowed in (("mode", request.mode, get_args(Mode)), ("execute", request.execute, get_args(Execute))):
        if value not in allowed:
            raise InputError(f"{name} is {value!r}: give one of {', '.join(map(repr, allowed))}")
    if request.input_shape is not None and request.args is not None:
        raise InputError("input_shape and args were both given: give shapes or complete arguments (kwargs go with either)")
    if request.input_shape is None and request.args is None and request.kwargs is None:
        raise InputError(
            "no input was given: pass input_shape=(3, 224, 224), say, or the arguments themselves as args= and kwargs="
        )
    twice = set(request.kwargs or ()) & set(request.input_shape if isinstance(request.input_shape, Mapping) else ())
    if twice:
        raise InputError(f"{min(twice)!r} was given in input_shape and in kwargs: give it once")
    if isinstance(request.args, Tensor):
        raise InputError("args is a tensor: give a tuple of the positional arguments, args=(tensor,)")
    if isinstance(request.args, Mapping):
        raise InputError("args is a dict: give keyword arguments as kwargs=, or the dict itself as args=(the_dict,)")
    if request.input_shape is None and (request.dtype is not None or request.batch_size != 1):
        raise InputError("dtype and batch_size are for inputs made from input_shape; complete arguments have their own")


def _initialised_copy(request: PassRequest, inventory: Inventory, attempt: _Attempt) -> nn.Module:
    """Of a module with lazy parts a copy that has been through a pass, which is what initialises them.

    It shares the tensors that are there. The initialisation is not part of the record.
    """
    shared = {
        id(slot.tensor): _uninitialised(slot.tensor, attempt.device) if slot.is_lazy else slot.tensor
        for slot in inventory.slots
    }
    try:
        twin = Inventory(copy.deepcopy(inventory.root, shared))
    except Exception as error:
        raise InputError(f"a model with lazy parts is recorded by way of a copy, and it cannot be copied: {error}") from error
    # Not in inference mode: its tensors cannot become the data of a parameter on the meta device.
    initialising = replace(attempt, grad_mode=torch.no_grad)
    with unchanged(inventory, "same"), training_flags(list(twin.modules.values()), request.mode):
        _forward(
            replace(request, backward=False),
            Recorder(twin, initialising.execution(), lambda _: True, lambda _: None),
            initialising,
        )
    return twin.root


def _uninitialised(tensor: Tensor, device: torch.device) -> Tensor:
    kind: Any = type(tensor)
    return kind(requires_grad=tensor.requires_grad, device=device, dtype=tensor.dtype)  # type: ignore[no-any-return]


def _attempts(request: PassRequest, inventory: Inventory) -> list[_Attempt]:
    """The ways to run, in the order in which to try them."""
    abstract = _Attempt("abstract", "asked for" if request.execute == "abstract" else "shapes are enough", _META)
    if request.execute == "abstract":
        return [abstract]
    device = _device_of(inventory, request)
    hollow = [slot.path for slot in inventory.slots if slot.tensor.is_meta]
    if request.execute == "real":
        if hollow:
            raise InputError(f"execute='real' needs data, and {hollow[0]} has none (it is on the meta device)")
        return [_Attempt("real", "asked for", device)]
    if device.type == "cuda":
        return [_Attempt("real", "the model is on CUDA", device)]
    if hollow:
        return [abstract]
    if device.type in _autocast_devices():
        return [_Attempt("real", "autocast is active", device)]
    return [abstract, _Attempt("real", "", device)]


def _autocast_devices() -> list[str]:
    return [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]


def _device_of(inventory: Inventory, request: PassRequest) -> torch.device:
    """Where the model lives: the device of its first tensor, else of its first argument, else the CPU."""
    for slot in inventory.slots:
        return slot.tensor.device
    for tensor in tensors_in((request.args, request.kwargs)):
        return tensor.device
    return torch.device("cpu")


def _parameter_record(slot: Slot, identity: int, is_used: bool, recorder: Recorder) -> ParameterRecord:
    tensor = slot.tensor
    return ParameterRecord(
        owner=slot.owner,
        name=slot.name,
        identity=identity,
        is_buffer=slot.is_buffer,
        requires_grad=tensor.requires_grad,
        numel=tensor.numel(),
        stored_bytes=sum(part.numel() * part.element_size() for part in _parts_of(tensor)),
        is_used=is_used,
        storages=tuple(recorder.table.foreign_storage(part) for part in _parts_of(tensor)),
    )


def _parts_of(tensor: Tensor) -> list[Tensor]:
    """What is in memory: a tensor subclass (a quantised weight, say) is stored as the tensors that it wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    return [part for name in flatten()[0] for part in _parts_of(getattr(tensor, name))]
