"""Substitutes for tensors of the user's, which autograd gets in their place.

Autograd runs above the operators, on the tensors that the model hands over. So that it never
touches a tensor of the user's, it is handed a substitute: a meta tensor in a pass on shapes alone,
else another view of the same memory. Gradients arrive at the substitutes, in-place writes leave
their history there, and a graph that the model has kept from before ends there.

C++ code (a ScriptModule, vmap) that takes a tensor by itself gets no substitute. On data this does
no harm: what autograd leaves on it is put back. On shapes alone its gradients would be meta tensors
where data is expected, so the pass is run on data instead.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchscan.recording.bookkeeping.tensor_layouts import NO_FLOATS, is_plain, meta_copy
from torchscan.recording.bookkeeping.tensors import TensorTable
from torchscan.recording.execution.assumed import AssumedValues
from torchscan.recording.execution.kernels import Kernels
from torchscan.recording.execution.known_constants import answer_device_query, note_values
from torchscan.recording.execution.reads import CHECKING, COMPARING_DEVICES, READING_FUNCTIONS
from torchscan.recording.training.autocast import Autocast
from torchscan.recording.undo import WAITING, deliver_interrupts
from torchscan.torch_versions import is_functorch_wrapped, next_node, without_tracing

_NOTHING = contextlib.nullcontext()


class Substitutes(TorchFunctionMode):
    """Context in which functions get substitutes for tensors that the pass did not create."""

    def __init__(
        self,
        table: TensorTable,
        values: AssumedValues,
        kernels: Kernels,
        autocast: Autocast,
        *,
        on_meta: bool,
        is_without_data: bool = False,
        home: torch.device | None,
    ) -> None:
        """Begin without any.

        ``home`` is where all tensors are for the model, if they are elsewhere. With
        ``is_without_data``, tensors that are not on the meta device have no data either.
        """
        super().__init__()
        self._home = home
        self._table = table
        self._values = values
        self._kernels = kernels
        self._autocast = autocast
        self.on_meta = on_meta
        self._is_without_data = is_without_data
        #: by a reference to the original, which is not kept alive: with it goes its substitute,
        #: unless something else holds that
        self._substitutes: dict[weakref.ref[Tensor], Tensor] = {}
        self._references: dict[int, weakref.ref[Tensor]] = {}
        self._begin = next_node()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function with substitutes."""
        answer = answer_device_query(func, self._home)
        if answer is not None:
            return answer
        if func in READING_FUNCTIONS:
            self._values.read(args[0], func.__name__)
            args = (self._table.with_values(args[0]), *args[1:])
        with self._values.checked() if func in CHECKING else _NOTHING:
            result = self._call(func, args, kwargs)
        if WAITING:
            deliver_interrupts()
        return result

    def _call(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> Any:
        own_args = self._swap(tuple(args))
        own_kwargs = {name: self._swap(value) for name, value in (kwargs or {}).items()}
        if not self.on_meta:
            if self._is_without_data:  # torch casts what is on the device of the autocast alone
                own_args, own_kwargs = self._autocast.cast(func, own_args, own_kwargs)
            return self._kernels.of(func)(*own_args, **own_kwargs)
        if func in COMPARING_DEVICES:
            own_args = tuple(map(self._without_values, own_args))
        if func is Tensor.to:
            own_args, own_kwargs = _staying(self._home, *own_args, **own_kwargs)
        own_args, own_kwargs = self._autocast.cast(func, own_args, own_kwargs)
        result = self._kernels.of(func)(*own_args, **own_kwargs)
        note_values(result, func, own_args, own_kwargs, self._table, largest_floats=NO_FLOATS)
        if func is torch.tensor and isinstance(own_args[0], float):
            self._values.enter_number(result, own_args[0])
        return result

    def _without_values(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.is_meta:
            return value
        with without_tracing():
            substitute = meta_copy(value)
            self._table.enter_substitute(substitute, value)
        return substitute

    def __exit__(self, *exception: Any) -> None:
        """Let go of the gradients too."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call] # torch has no annotations
        for substitute in self._substitutes.values():
            substitute.grad = None
        self._references.clear()
        self._substitutes.clear()

    def _swap(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.of(value)
        if type(value) in (list, tuple):
            return type(value)(self._swap(item) for item in value)
        return value

    def of(self, tensor: Tensor) -> Tensor:
        """Return the tensor that functions get: the proxy of a tensor, or the tensor itself."""
        known = self.known(tensor)
        if known is not None:
            return known
        if not self._needs_one(tensor):
            return tensor
        with without_tracing():
            substitute = self._substitute(tensor)
            self._table.enter_substitute(substitute, tensor)
        # The callback is one in C: what a signal raises in one in Python would be lost.
        reference = self._references[id(tensor)] = weakref.ref(tensor, self._substitutes.pop)
        self._substitutes[reference] = substitute
        return substitute

    def known(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor that functions got: the pass's own, its proxy, or None for no call."""
        if self._table.is_from_pass(tensor):
            return tensor
        reference = self._references.get(id(tensor))
        if reference is None or reference() is not tensor:
            return None
        return self._substitutes[reference]

    def are_ours(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a proxy or was produced by the pass.

        Gradients that autograd leaves there are on no tensor of the user's.
        """
        return self._table.is_from_pass(tensor)

    def _needs_one(self, tensor: Tensor) -> bool:
        if not tensor.is_floating_point() and not tensor.is_complex():
            return False
        if not is_plain(tensor) or is_functorch_wrapped(tensor):
            return False
        node = tensor.grad_fn
        if self._table.is_from_pass(tensor):
            return False
        return node is None or node._sequence_nr() < self._begin

    def _substitute(self, tensor: Tensor) -> Tensor:
        made = meta_copy(tensor) if self.on_meta else tensor.detach()
        made.requires_grad_(tensor.requires_grad)
        if tensor.is_leaf:
            return made
        with torch.enable_grad():  # a tensor that is not a leaf may be written to
            return made.clone()


def _staying(
    home: torch.device | None, tensor: Tensor, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a move without the move, between the home device and the meta device.

    Tensors with and without values count as being on one device.
    """
    elsewhere = str(home) if tensor.is_meta else "meta"
    if args and isinstance(args[0], Tensor) and str(args[0].device) == elsewhere:
        args = (tensor.device, args[0].dtype, *args[1:])

    def stays(value: Any) -> Any:
        is_move = isinstance(value, torch.device | str) and str(value) == elsewhere
        return tensor.device if is_move else value

    return (tensor, *map(stays, args)), {name: stays(value) for name, value in kwargs.items()}
