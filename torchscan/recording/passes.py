"""One pass of a model, from arguments to record: which way it runs, on what, and what is said when it fails."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchscan._version import __version__
from torchscan.errors import InputError, NeedsValuesError, RecordError, TorchscanError
from torchscan.ops import is_known
from torchscan.recording.bookkeeping.containers import named_tensors, tensors_in
from torchscan.recording.bookkeeping.inventory import Inventory, Slot, has_hollow_tensors
from torchscan.recording.execution.abstract import AbstractExecution
from torchscan.recording.execution.calls import Execution
from torchscan.recording.execution.higher_order import flex_attention_runs_as_it_is
from torchscan.recording.execution.kernels import Kernels, functions_let_through
from torchscan.recording.execution.real import RealExecution
from torchscan.recording.failures import explain
from torchscan.recording.precision import CopyError, without_data
from torchscan.recording.recorder import Recorder, module_hooks
from torchscan.recording.request import PassRequest, check_request
from torchscan.recording.state import original_of, training_flags, unchanged
from torchscan.recording.training.autocast import Autocast, autocast_of_hollow_tensors
from torchscan.recording.training.gradients import BackwardError, Substitutes, loss_of
from torchscan.recording.training.optimizers import OptimizerError
from torchscan.recording.training.step import differentiate, name_gradients, optimize
from torchscan.trace.events import InputRecord, ParameterRecord, Provenance
from torchscan.trace.trace import Trace

_META = torch.device("meta")


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

        But for that on the kind of device that is ``followed``: see :mod:`torchscan.recording.training.autocast`.
        """
        with contextlib.ExitStack() as stack:
            for device in set(_autocast_devices()) - {followed} if self.name == "abstract" else ():
                self.assume(f"no autocast, although it is active on {device}: it does not reach a pass on shapes alone")
                stack.enter_context(torch.autocast(device, enabled=False))
            yield

    def assume(self, text: str) -> None:
        if text not in self.assumptions:
            self.assumptions.append(text)


def record_pass(request: PassRequest) -> Trace:
    """Run the pass that was asked for and return its record."""
    check_request(request)
    inventory = Inventory(original_of(request.module))
    first, *others = _attempts(request, inventory)
    try:
        return _run_with_or_without_graph(request, inventory, first)
    except TorchscanError as error:
        if not others or isinstance(error, InputError):
            raise
        second = others[0]
        second.reason = f"the shape-only pass could not go on: {error}"
    return _run_with_or_without_graph(request, inventory, second)


def _run_with_or_without_graph(request: PassRequest, inventory: Inventory, attempt: _Attempt) -> Trace:
    """In inference mode operators arrive whole; a model that differentiates inside its forward pass cannot run there."""
    if not request.backward:
        if request.in_pieces:
            attempt.grad_mode, attempt.in_pieces = torch.no_grad, True
        try:
            return _run(request, inventory, attempt)
        except RecordError as error:
            if not any(word in str(error.__cause__) for word in ("require grad", "requires_grad", "Inference tensor")):
                raise
        attempt.reason = f"{attempt.reason}; the model computes gradients on its way".removeprefix("; ")
        attempt.assumptions.clear()
    attempt.grad_mode, attempt.in_pieces = torch.enable_grad, True
    with torch.inference_mode(False):
        return _run(request, inventory, attempt)


def _run(request: PassRequest, inventory: Inventory, attempt: _Attempt) -> Trace:
    if any(slot.is_lazy for slot in inventory.slots):
        inventory = Inventory(_initialised_copy(request, inventory, attempt))
    recorder = Recorder(inventory, attempt.execution(), is_known, attempt.assume)
    with (
        unchanged(inventory, request.mode, [request.args, request.kwargs]),
        attempt.autocast(request.device_type if request.in_pieces else None),
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
            kernels = Kernels(request.device_type, has_flash=request.has_flash)
            autocast = Autocast(request.autocast, request.device_type)
            recorder.after_recomputation = autocast.forget
            substitutes = Substitutes(recorder.table, kernels, autocast, without_data=attempt.name == "abstract")
            if attempt.in_pieces:
                stack.enter_context(substitutes)
            if attempt.in_pieces and substitutes.without_data:
                stack.enter_context(functions_let_through())
            if attempt.name == "abstract":
                stack.enter_context(autocast_of_hollow_tensors(request.device_type))
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
                optimize(request.optimizer, recorder, substitutes, request.originals, request.device_type)
            recorder.table.storages.forget()
    except (BackwardError, OptimizerError):
        raise
    except Exception as error:
        raise explain(error, recorder, module, inputs, request.input_shape) from error
    return inputs


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


def record_step(request: PassRequest) -> tuple[Trace, PassRequest]:
    """On shapes alone; where C++ is handed parameters, of a copy without data; where values are asked for, on data.

    Also the request that was recorded in the end.
    """
    try:
        return record_pass(request), request
    except NeedsValuesError as error:
        reason = str(error).splitlines()[0]
    if not request.is_converted and not has_hollow_tensors(request.module):
        with contextlib.suppress(NeedsValuesError, CopyError):
            hollow = without_data(request)
            return record_pass(hollow), hollow
        if request.autocast is None:
            trace = record_pass(replace(request, execute="real"))
            return _assuming(trace, f"that it may run on data, and on these data, because on shapes alone {reason}"), request
    raise NeedsValuesError(f"{reason}\n  try: a model with data, as it is: precision=None, and not on the meta device")


def _assuming(trace: Trace, remark: str) -> Trace:
    assumptions = (*trace.provenance.assumptions, remark)
    return replace(trace, provenance=replace(trace.provenance, assumptions=assumptions))
