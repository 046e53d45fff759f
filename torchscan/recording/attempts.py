"""The ways in which a pass can be run: on shapes alone or on data, with a graph or without."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from torchscan.errors import Argument, InputError
from torchscan.notes import Note
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensor_layouts import CONCRETE_FLOATS, NO_FLOATS
from torchscan.recording.execution.abstract import AbstractExecution
from torchscan.recording.execution.outcomes import Execution
from torchscan.recording.execution.pretending import PretendingExecution
from torchscan.recording.execution.real import RealExecution
from torchscan.recording.request import PassRequest
from torchscan.torch_versions import WithoutData

_META = torch.device("meta")
#: kinds of device that may have an active autocast
_AUTOCASTING = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way of running a pass, and why this one."""

    #: True if the pass works on shapes alone
    is_abstract: bool
    reasons: tuple[Note, ...]
    device: torch.device
    grad_mode: Callable[[], contextlib.AbstractContextManager[object]] = torch.inference_mode
    #: True if autograd records a graph
    has_graph: bool = False
    #: kinds of device whose active autocast is switched off for the pass: it casts parameters,
    #: which have a device, but no meta tensors
    ignored_autocasts: Collection[str] = ()
    #: whether operators arrive as autograd sees them, with its tensors and composites decomposed
    is_decomposed: bool = False
    #: whether there is no other way if this one fails
    is_last_resort: bool = True
    #: where the model is, if its tensors are elsewhere
    home: torch.device | None = None
    #: makes tensors that have a device and no data, as those of the model do
    without_data: WithoutData | None = None
    #: by their paths the values of buffers that have none of their own
    buffers: Mapping[str, Tensor] = field(default_factory=dict)

    def with_graph(self) -> Attempt:
        """Return the attempt with gradients, which the model computes or the caller asks for."""
        return replace(self, grad_mode=torch.enable_grad, has_graph=True, is_decomposed=True)

    def because(self, reason: Note) -> Attempt:
        """Return the attempt with one more reason."""
        return replace(self, reasons=(*self.reasons, reason))

    def execution(self, device_type: str) -> Execution:
        """Return the object that runs the operators, as on a device of this kind.

        In a decomposed pass all floats are meta tensors, because autograd and composites compare
        devices.
        """
        if self.without_data is not None:
            return PretendingExecution(self.without_data)
        if not self.is_abstract:
            return RealExecution()
        return AbstractExecution(NO_FLOATS if self.is_decomposed else CONCRETE_FLOATS, device_type)


#: whether a model without data is built again, with data, if its pass asks for values
_has_another_chance: ContextVar[bool] = ContextVar("has_another_chance", default=False)


@contextlib.contextmanager
def another_chance() -> Iterator[None]:
    """Mark a pass as one that is repeated on data if it raises a NeedsValuesError."""
    token = _has_another_chance.set(True)
    try:
        yield
    finally:
        _has_another_chance.reset(token)


def attempts_for(request: PassRequest, inventory: Inventory) -> list[Attempt]:
    """Return the ways to run a pass, in the order in which to try them.

    None of them has a graph: in inference mode, composite operators arrive fused.
    """
    requested = Note.of("requested")
    on_meta = [slot.path for slot in inventory.all_slots if slot.tensor.is_meta]
    abstract, real = _shapes_and_data(request, inventory)
    if not on_meta and not request.originals:
        abstract = replace(abstract, home=real.device)
    if request.execute == "abstract":
        return [replace(abstract, reasons=(requested,))]
    if request.execute == "real":
        if on_meta:
            raise InputError(
                Argument("execute"),
                f" is 'real', and {on_meta[0]} is on the meta device, without data: give a model "
                "with data",
            )
        return [real.because(requested)]

    if inventory.is_sharded:
        sharded = real.because(Note.of("model-sharded"))
        return [replace(sharded, without_data=inventory.without_data)]
    if real.device.type == "cuda":
        return [real.because(Note.of("model-on-cuda"))]
    if on_meta:
        return [replace(abstract, is_last_resort=not _has_another_chance.get())]
    if real.device.type in abstract.ignored_autocasts:
        return [real.because(Note.of("autocast-active"))]
    return [abstract, real]


def _shapes_and_data(request: PassRequest, inventory: Inventory) -> tuple[Attempt, Attempt]:
    """Return the attempts on shapes alone, and on data where the model or its first argument is."""
    device = torch.device("cpu")
    if inventory.all_slots:
        device = inventory.all_slots[0].tensor.device
    elif request.args or request.kwargs:
        for tensor in tensors_in((request.args, request.kwargs))[:1]:
            device = tensor.device

    ignored = {device for device in _AUTOCASTING if torch.is_autocast_enabled(device)}
    grad_mode: Callable[[], Any] = torch.inference_mode
    if request.is_decomposed:
        # The autocast on the target device is followed: see recording.training.autocast.
        ignored.discard(request.device_type)
    if request.is_decomposed or inventory.is_sharded:
        # Inference mode changes how DTensors place the results of composite operators.
        grad_mode = torch.no_grad
    abstract = Attempt(
        is_abstract=True,
        reasons=(Note.of("shapes-suffice"),),
        device=_META,
        grad_mode=grad_mode,
        ignored_autocasts=ignored,
        is_decomposed=request.is_decomposed,
    )
    real = replace(abstract, is_abstract=False, reasons=(), device=device, ignored_autocasts=())
    return abstract, real
