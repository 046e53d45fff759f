"""Recording the backward pass.

Autograd runs above the operators, on the tensors that the model hands over. So that it never touches a tensor of the user's, it
is handed a substitute: a meta tensor in a pass on shapes alone, else another view of the same memory. Gradients arrive at the
substitutes, in-place writes leave their history there, and a graph that the model has kept from before ends there.

What C++ code takes by itself (a custom autograd function, a ScriptModule, vmap) gets no substitute. On data this does no harm:
what autograd leaves on it is put back. On shapes alone its gradients would be meta tensors where data is expected, so the pass
is run on data instead.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from torchscan.errors import Give, InputError, NeedsValuesError
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.tensors import (
    NO_FLOATS,
    TensorTable,
    is_plain,
    kind_of,
    meta_copy,
)
from torchscan.recording.execution.assumed import AssumedValues
from torchscan.recording.execution.kernels import Kernels
from torchscan.recording.execution.known_constants import answer_device_query, note_values
from torchscan.recording.execution.reads import CHECKING, COMPARING_DEVICES, READING_FUNCTIONS
from torchscan.recording.training.autocast import Autocast
from torchscan.recording.undo import WAITING, deliver_interrupts, interruptible, run_at_end_of_pass
from torchscan.torch_versions import (
    engine,
    is_functorch_wrapped,
    next_node,
    outside_of_everything,
    stands_for_itself,
    without_torch_function,
    without_tracing,
)

#: True: a gradient for every output; a function: the loss that it makes of the output
Backward = bool | Callable[[Any], Tensor]


_NOTHING = contextlib.nullcontext()


class BackwardError(InputError):
    """Error for a pass without a differentiable output, or with a failing loss function."""


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
        """``home``: where all tensors are for the model, if they are elsewhere.

        ``is_without_data``: tensors that are not on the meta device have no data either.
        """
        super().__init__()
        self._home = home
        self._table = table
        self._values = values
        self._kernels = kernels
        self._autocast = autocast
        self.on_meta = on_meta
        self._is_without_data = is_without_data
        #: by a reference to the original, which is not kept alive: with it goes its substitute, unless somebody holds that
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
        own_args, own_kwargs = (
            self._swap(tuple(args)),
            {name: self._swap(value) for name, value in (kwargs or {}).items()},
        )
        if not self.on_meta:
            if self._is_without_data:  # torch casts what is on the device of the autocast alone
                own_args, own_kwargs = self._autocast.cast(func, own_args, own_kwargs)
            return self._kernels.of(func)(*own_args, **own_kwargs)
        if func in COMPARING_DEVICES:
            own_args = tuple(
                self._without_values(each) if isinstance(each, Tensor) else each
                for each in own_args
            )
        if func is Tensor.to:
            own_args, own_kwargs = _staying(self._home, *own_args, **own_kwargs)
        own_args, own_kwargs = self._autocast.cast(func, own_args, own_kwargs)
        result = self._kernels.of(func)(*own_args, **own_kwargs)
        note_values(result, func, own_args, own_kwargs, self._table, largest_floats=NO_FLOATS)
        return result

    def _without_values(self, tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return tensor
        with without_tracing():
            substitute = meta_copy(tensor)
            self._table.enter_substitute(substitute, tensor)
        return substitute

    def __exit__(self, *exception: Any) -> None:
        """Let go of the gradients too."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call] # torch leaves it without annotations
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
        return (
            None if reference is None or reference() is not tensor else self._substitutes[reference]
        )

    def are_ours(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a proxy or was produced by the pass.

        Gradients that autograd leaves there are on no tensor of the user's.
        """
        return self._table.is_from_pass(tensor)

    def _needs_one(self, tensor: Tensor) -> bool:
        differentiable = tensor.is_floating_point() or tensor.is_complex()
        return differentiable and is_ordinary(tensor) and not self._is_made_here(tensor)

    def _is_made_here(self, tensor: Tensor) -> bool:
        node = tensor.grad_fn
        return self._table.is_from_pass(tensor) or (
            node is not None and node._sequence_nr() >= self._begin
        )

    def _substitute(self, tensor: Tensor) -> Tensor:
        if self.on_meta:
            made = meta_copy(tensor)
        else:
            made = tensor.detach()
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
        return (
            tensor.device
            if isinstance(value, torch.device | str) and str(value) == elsewhere
            else value
        )

    return (tensor, *map(stays, args)), {name: stays(value) for name, value in kwargs.items()}


def is_ordinary(tensor: Tensor) -> bool:
    """Return whether a tensor is neither a subclass nor a wrapper of vmap or grad."""
    return is_plain(tensor) and not is_functorch_wrapped(tensor)


# -- the pass ------------------------------------------------------------------------------------------------------------


def loss_of(result: Any, backward: Backward) -> Any:
    """Return the value to differentiate."""
    if backward is True:
        return result
    assert callable(backward)  # noqa: S101 - for the type checker
    try:
        return backward(result)
    except (BackwardError, NeedsValuesError, NotImplementedError):
        raise
    except Exception as error:
        raise BackwardError(
            f"the loss failed on the model's output: {type(error).__name__}: {error}",
            advice="a function of the output alone, lambda output: loss(output, target)",
        ) from error


def differentiable_outputs(loss: Any) -> list[Tensor]:
    """Return the tensors of an output from which gradients can start."""
    tensors = tensors_in(loss)
    if not tensors:
        raise BackwardError(
            f"the loss has no tensor to start the backward pass from: it is {_kind_of(loss)}; "
            "give a function that computes a loss from the output"
        )
    outputs = [tensor for tensor in tensors if tensor.requires_grad]
    if not outputs:
        raise BackwardError(
            "no output depends on a parameter or an input that requires a gradient: unfreeze a "
            "parameter, or leave out ",
            Give("training", True),
        )
    return outputs


def run_backward(outputs: Sequence[Tensor], substitutes: Substitutes) -> None:
    """Run the backward pass from gradients of ones to the leaves of the graph, in this thread.

    Leaves that are not ours, because autograd was handed them directly, have their ``.grad`` afterwards as before; those in
    whose place nothing can be computed with have it when the pass is over.
    """
    with torch.no_grad():
        ones = [torch.ones_like(output) for output in outputs]
    with outside_of_everything(), without_torch_function():
        foreign = [leaf for leaf in _leaves(outputs) if not substitutes.are_ours(leaf)]
        gradients = [(leaf, leaf.grad) for leaf in foreign if not stands_for_itself(leaf)]
        for leaf, gradient in gradients:
            _require_assignable(leaf, gradient)
        for leaf, _ in gradients:
            leaf.grad = None
        for leaf in filter(stands_for_itself, foreign):
            before = leaf.grad
            run_at_end_of_pass(partial(setattr, leaf, "grad", before))
            leaf.grad = (
                before  # an assignment has what there was written down, which the engine does not
            )
    try:
        _run_engine(outputs, ones)
    finally:
        with without_torch_function():
            for leaf, gradient in gradients:
                leaf.grad = gradient


def _require_assignable(leaf: Tensor, gradient: Tensor | None) -> None:
    """Raise if torch cannot restore the gradient, as for sparse rows and columns."""
    if (
        gradient is not None
        and gradient.layout is not leaf.layout
        and leaf.layout is not torch.strided
    ):
        raise BackwardError(
            f"the gradient of a {kind_of(leaf)} parameter cannot be restored after the pass: call "
            "zero_grad() first"
        )


def _run_engine(outputs: Sequence[Tensor], ones: Sequence[Tensor]) -> None:
    with torch.autograd.set_multithreading_enabled(
        False
    ):  # torch.autograd.backward would leave substitutes out of what it calls
        run = engine().run_backward
        interruptible(
            run,
            tuple(outputs),
            tuple(ones),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )


def require_meta_leaves(outputs: Sequence[Tensor]) -> None:
    """Raise on shapes alone if a gradient of a tensor with data would be a meta tensor."""
    with without_torch_function():
        for leaf in _leaves(outputs):
            if not leaf.is_meta:
                raise NeedsValuesError(
                    f"C++ code or a custom function handed autograd a tensor {list(leaf.shape)} "
                    "that has data"
                )


def _leaves(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    waiting = [output.grad_fn for output in outputs]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
            variable = getattr(node, "variable", None)
            if isinstance(variable, Tensor):
                yield variable


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
