"""From a request to a record: which way of running the pass is tried first, and which ones if it fails."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchscan._version import __version__
from torchscan.errors import InputError, NeedsValuesError, RecordError, TorchscanError, warn_user
from torchscan.garbage import collected_later
from torchscan.ops import is_known
from torchscan.recording.attempts import Attempt, attempts_for
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.parameters import parameter_records, shared_among_processes, unseen_parameters
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.nesting import make_room_for_nesting
from torchscan.recording.precision import CopyError, on_meta_copy
from torchscan.recording.rebuilt import rebuilt_buffers
from torchscan.recording.recorder import Recorder
from torchscan.recording.request import PassRequest, check_request, require_visible_kernels
from torchscan.recording.running import run
from torchscan.recording.sayings import Saying, says
from torchscan.recording.state import original_of, set_training, unchanged
from torchscan.recording.surroundings import refuse_tracers
from torchscan.recording.training.autocast import Autocast
from torchscan.recording.unpacked import with_unpacked
from torchscan.torch_versions import is_fake_type, is_wrapped_by_ddp, prepare_optimizers
from torchscan.trace.events import ParameterRecord, Provenance
from torchscan.trace.trace import Trace


def record_pass(request: PassRequest) -> Trace:
    """Run the pass that was asked for and return its record."""
    return record_step(request)[0]


def record_step(request: PassRequest) -> tuple[Trace, PassRequest]:
    """The record, and the request that leads to it without detours: to repeat it with other batch sizes."""
    check_request(request)
    refuse_tracers()
    inventory = _inventory(request)
    is_fake = inventory.is_fake or any(is_fake_type(type(each)) for each in tensors_in((request.args, request.kwargs)))
    if is_fake and not inventory.is_spread:
        request = on_meta_copy(request)  # meta tensors do as well
        inventory = _inventory(request)
    if inventory.is_spread and request.execute == "auto":
        trace = _record(request, inventory)  # what processes do with their parts needs tensors on a device
        return trace, request
    if request.execute == "auto" and request.in_pieces:
        return _record_in_pieces(request, inventory)
    trace = _record(request, inventory)
    return trace, replace(request, execute=trace.provenance.execution)


def _inventory(request: PassRequest) -> Inventory:
    inventory = Inventory(original_of(request.module))
    require_visible_kernels(inventory)
    return inventory


# -- what is tried instead -----------------------------------------------------------------------------------------------


def _record_in_pieces(request: PassRequest, inventory: Inventory) -> tuple[Trace, PassRequest]:
    """On shapes alone; if C++ code needs the parameters, a copy on the meta device; if values are asked for, on data."""
    abstract = replace(request, execute="abstract")
    has_data = not request.is_converted and not inventory.has_meta_tensors
    is_last_resort = not has_data or request.autocast is not None
    try:
        return _record(abstract, inventory, is_last_resort=is_last_resort), abstract
    except (NeedsValuesError, RecordError) as error:
        if isinstance(error, RecordError) and is_last_resort:
            raise
        reason = _first_line(error)
    if has_data:
        with contextlib.suppress(NeedsValuesError, RecordError, CopyError):
            copied = on_meta_copy(abstract)
            return _record(copied, _inventory(copied), is_last_resort=is_last_resort), copied
        if not is_last_resort:
            real = replace(request, execute="real")
            remark = f"that it may run on data, and on these data, because on shapes alone {reason}"
            return _record(real, inventory).assuming(remark), real
    raise NeedsValuesError(f"{reason}\n  try: a model with data, as it is: precision=None, and not on the meta device")


def _first_line(error: Exception) -> str:
    """What went wrong, without what to try."""
    return str(error).partition("\n")[0]


def _record(request: PassRequest, inventory: Inventory, *, is_last_resort: bool = True) -> Trace:
    """On shapes alone; if this fails and the request leaves the choice, on data.

    Unless that is the last resort, no branch on shapes alone may read an index that was assumed.
    """
    first, *others = attempts_for(request, inventory)
    first = replace(first, is_last_resort=first.is_last_resort and is_last_resort and not others)
    try:
        return _record_in(first, request, inventory)
    except TorchscanError as error:
        second = _second(first, others, inventory, error)
        if second is None:
            raise
    return _record_in(second, request, inventory)


def _second(first: Attempt, others: Sequence[Attempt], inventory: Inventory, error: TorchscanError) -> Attempt | None:
    """What is tried next: to run it on data; without any, to know those values that its constructor can make again."""
    if isinstance(error, InputError):
        return None
    if others:
        return others[0].because(f"the shape-only pass could not go on: {_first_line(error)}")
    buffers = rebuilt_buffers(inventory) if first.is_abstract and isinstance(error, NeedsValuesError) else {}
    return replace(first, buffers=buffers) if buffers else None


def _record_in(attempt: Attempt, request: PassRequest, inventory: Inventory) -> Trace:
    """In inference mode operators arrive whole; a model that differentiates inside its forward pass cannot run there."""
    if not request.has_backward:
        try:
            return _record_once(_without_graph(attempt, request, inventory), request, inventory)
        except RecordError as error:
            if not says(error.__cause__, Saying.NEEDS_GRAPH):
                raise
        attempt = attempt.because("the model computes gradients on its way")
    with torch.inference_mode(False):
        return _record_once(attempt.with_graph(), request, inventory)


def _without_graph(attempt: Attempt, request: PassRequest, inventory: Inventory) -> Attempt:
    """In inference mode DTensors place the results of composite operators as they do nowhere else."""
    attempt = attempt.without_graph(request)
    return replace(attempt, grad_mode=torch.no_grad) if inventory.is_spread else attempt


# -- one attempt ---------------------------------------------------------------------------------------------------------


class _Assumptions:
    """What was assumed on the way, each thing once."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        self.texts.setdefault(text)


def _record_once(attempt: Attempt, request: PassRequest, inventory: Inventory) -> Trace:
    """Where tensors have data, those in cycles must not pile up."""
    with collected_later() if attempt.is_abstract else contextlib.nullcontext():
        return _recorded(attempt, request, inventory)


def _recorded(attempt: Attempt, request: PassRequest, inventory: Inventory) -> Trace:
    inventory = _initialised(inventory, request, attempt)
    if request.optimizer is not None:
        prepare_optimizers()
    assumptions = _Assumptions()
    autocast = Autocast(request.autocast, request.device_type)
    last = attempt.is_last_resort
    recorder = Recorder(
        inventory, attempt.execution(request.device_type), is_known, assumptions.add, autocast.forget, is_last_resort=last
    )
    if not attempt.is_abstract:
        recorder.name_parts(inventory)
    if request.has_backward and is_wrapped_by_ddp(request.module) and inventory.root is not request.module:
        assumptions.add("that gradients are not summed up among processes: of DDP, the model in it is recorded")
    followed = request.device_type if request.in_pieces else None

    def body() -> None:
        make_room_for_nesting(inventory)
        with attempt.without_autocast(followed, assumptions.add):
            run(request, attempt, recorder, inventory, autocast)

    try:
        unchanged(inventory, request.mode, [request.args, request.kwargs], recorder.table, body)
    except RecordError as error:
        error.so_far = _so_far(recorder, inventory, _provenance(request, attempt, recorder, tuple(assumptions.texts), ()))
        raise
    autocast.forget()  # the model may have left a context open
    recorder.values.tell()
    if attempt.buffers:
        assumptions.add("that integer buffers hold what those of a second model do, made from the same config")
    unread = unseen_parameters(inventory, recorder.took_packed)
    for what in unread:
        assumptions.add(f"no parameters and no memory for {what}")
    # before the rest of the record: it may have to enter those that were not used
    parameters = parameter_records(inventory, recorder.table, recorder.took_packed)
    among = shared_among_processes(parameters)
    if among is not None:
        assumptions.add(among)
    _warn_of_leftovers(recorder.table)
    provenance = _provenance(request, attempt, recorder, tuple(assumptions.texts), unread)
    return with_unpacked(_trace(recorder, parameters, provenance), inventory.slots)


def _so_far(recorder: Recorder, inventory: Inventory, provenance: Provenance) -> Trace | None:
    """The record of a pass that has failed. What went wrong matters more than a mistake of ours in this."""
    with contextlib.suppress(Exception):
        return _trace(recorder, parameter_records(inventory, recorder.table, recorder.took_packed), provenance)
    return None


def _provenance(
    request: PassRequest, attempt: Attempt, recorder: Recorder, assumptions: tuple[str, ...], unread: Sequence[str]
) -> Provenance:
    return Provenance(
        execution=attempt.name,
        reason=attempt.reason,
        mode=request.mode,
        backward=request.has_backward,
        batch_size=request.batch_size if request.from_shapes else None,
        inputs=tuple(recorder.inputs),
        assumptions=assumptions,
        missed=tuple(sorted(recorder.tree.missed)),
        unread=tuple(unread),
        torchscan_version=__version__,
        torch_version=torch.__version__,
    )


def _trace(recorder: Recorder, parameters: tuple[ParameterRecord, ...], provenance: Provenance) -> Trace:
    return Trace(
        modules=recorder.module_calls(),
        ops=recorder.op_calls(),
        tensors=tuple(recorder.table.records),
        storages=recorder.table.storages.records(),
        parameters=parameters,
        provenance=provenance,
    )


def _warn_of_leftovers(table: TensorTable) -> None:
    """A meta tensor that outlives the pass would make the model fail later, far from here."""
    for generation in (0, 2):  # some are held by nothing but cycles, as a rule new ones
        if table.leftovers():
            gc.collect(generation)
    left = table.leftovers()
    if left:
        shapes = ", ".join(str(list(spec.shape)) for spec in left[:3])
        warn_user(
            f"the model keeps {len(left)} meta tensor(s) where torchscan cannot remove them ({shapes}; in a "
            "functools.lru_cache?): clear them before you use the model, or pass execute='real'"
        )


# -- lazy parts ----------------------------------------------------------------------------------------------------------


def _initialised(inventory: Inventory, request: PassRequest, attempt: Attempt) -> Inventory:
    """Of a model with lazy parts a copy that has been through a pass, which is what initialises them.

    It shares the tensors that are there. The initialisation is not part of the record.
    """
    if not any(slot.is_lazy for slot in inventory.slots):
        return inventory
    copied = _copy_to_initialise(inventory, attempt.device)
    forward = replace(request, backward=False, accumulate=False, optimizer=None)
    # Not in inference mode: its tensors cannot become the data of a parameter on the meta device.
    attempt = replace(attempt, grad_mode=torch.no_grad)
    autocast = Autocast(request.autocast, request.device_type)
    recorder = Recorder(copied, attempt.execution(request.device_type), lambda _: True, lambda _: None, autocast.forget)
    set_training(list(copied.modules.values()), request.mode)
    unchanged(inventory, "same", (), recorder.table, lambda: run(forward, attempt, recorder, copied, autocast))
    return Inventory(copied.root)


def _copy_to_initialise(inventory: Inventory, device: torch.device) -> Inventory:
    shared = {id(slot.tensor): _uninitialised(slot.tensor, device) if slot.is_lazy else slot.tensor for slot in inventory.slots}
    try:
        module: nn.Module = copy.deepcopy(inventory.root, shared)
    except Exception as error:
        raise InputError(f"a model with lazy parameters is recorded on a copy, which could not be made: {error}") from error
    return Inventory(module)


def _uninitialised(tensor: Tensor, device: torch.device) -> Tensor:
    kind: Any = type(tensor)
    return kind(requires_grad=tensor.requires_grad, device=device, dtype=tensor.dtype)  # type: ignore[no-any-return]
