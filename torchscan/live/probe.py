"""Looks at the tensors of one step: in the training process, and at the cost of a few copies of a few hundred values each."""

from __future__ import annotations

import fnmatch
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchscan.live.layers import Units
from torchscan.live.rows import Rows
from torchscan.live.sampled import Sampled
from torchscan.live.schema import Kind, Phase, Series
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call, Given
from torchscan.torch_versions import at_end_of_backward_pass, without_dispatch

#: what can be looked at, in the plural that users write
LOGGED: dict[str, Kind] = {
    "inputs": "input",
    "outputs": "output",
    "input_grads": "input_grad",
    "output_grads": "output_grad",
    "params": "param",
    "param_grads": "param_grad",
}
_GRADIENT_OF: dict[Kind, Kind] = {"input": "input_grad", "output": "output_grad", "attached": "attached_grad"}


class Parameter(NamedTuple):
    """One of a module's, by the name that it has there."""

    path: str
    module: nn.Module
    name: str
    tensor: Tensor


def parameters_of(modules: Iterable[tuple[str, nn.Module]]) -> list[Parameter]:
    """Each once, by the first module that has it."""
    found: dict[int, Parameter] = {}
    for path, module in modules:
        for name, tensor in module._parameters.items():
            if tensor is not None and id(tensor) not in found and not nn.parameter.is_lazy(tensor):
                found[id(tensor)] = Parameter(path, module, name, tensor)
    return list(found.values())


class Numbers:
    """Series by the numbers that they have on the line, and those that were not announced yet."""

    def __init__(self, whole: Sequence[tuple[str, int]] = ()) -> None:
        """``whole``: patterns of series of which all values are taken, each with how many these may be."""
        self._numbers: dict[tuple[str, Kind, str, int], int] = {}
        self._whole = whole
        self.new: list[Series] = []
        #: those of which all values are taken, if there are no more than so many
        self.wholes: dict[int, int] = {}

    def of(self, path: str, kind: Kind, name: str, invocation: int, module: nn.Module) -> int:
        """The number of a series, which may be new."""
        key = path, kind, name, invocation
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            series = Series(path=path, type_name=type_name_of(module), kind=kind, name=name, invocation=invocation)
            self.new.append(series)
            limits = [most for pattern, most in self._whole if fnmatch.fnmatchcase(series.said, pattern)]
            if limits:
                self.wholes[number] = max(limits)
        return number


class Before:
    """Rows of parameters after a step: the same as those before the next one, unless somebody has written to them."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._versions: list[tuple[int, int]] = []

    def note(self, parameters: Sequence[Parameter], rows: Sequence[int | None]) -> None:
        """After a step."""
        self._rows = [row for row in rows if row is not None]
        self._versions = _versions(parameters) if len(self._rows) == len(rows) else []

    def taken(self, parameters: Sequence[Parameter]) -> list[int]:
        """Before the next one; none if they have to be looked at again."""
        found = self._rows if parameters and _versions(parameters) == self._versions else []
        self._rows, self._versions = [], []
        return found


def _versions(parameters: Iterable[Parameter]) -> list[tuple[int, int]]:
    return [(id(each.tensor), -1 if each.tensor.is_inference() else each.tensor._version) for each in parameters]


class Probe:
    """Looks at one step, and has what it saw when the step is over."""

    def __init__(
        self,
        rows: Rows,
        numbers: Numbers,
        parameters: Sequence[Parameter],
        before: Before,
        *,
        kinds: Collection[Kind],
        follows: Callable[[str], bool],
        is_exact: Callable[[int], bool],
        sample_norms: bool,
    ) -> None:
        """``is_exact`` says of which rows the least and the greatest value are looked for, ``follows`` of which modules any."""
        kept = before.taken(parameters)
        rows.clear(kept)
        self._remembered = before
        self._rows, self._numbers, self._parameters = rows, numbers, parameters
        self._kinds, self._follows, self._is_exact = {*kinds, "attached", "attached_grad"}, follows, is_exact
        self._sample_norms = sample_norms
        #: series, and their rows
        self._found: dict[int, int] = {}
        self._units = Units()
        #: rows of tensors that were looked at, until they are written to
        self._known: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        #: rows of gradients of such tensors, by the row of the tensor
        self._gradients: dict[int, list[int]] = {}
        self._before: list[int | None] = [*range(len(kept))]
        if "param" in kinds and not kept:
            self._before = self._look_at_parameters(lambda _: False)
        #: of its passes, what lives as long as the nodes of their results
        self._graphs: list[weakref.ref[object]] = []
        self._awaits_end = True
        self.is_over = False
        #: nanoseconds that it took
        self.took = 0
        self.has_begun_backward = False

    @property
    def can_go_on(self) -> bool:
        """Whether gradients are still to come: another forward pass is of the same step then."""
        return not self.has_begun_backward and any(graph() is not None for graph in self._graphs)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def note_start(self, call: Call, args: tuple[object, ...]) -> None:
        """A call starts: what it is given may be written to in it."""
        if self._wants("input") and self._follows(call.path):
            start = time.perf_counter_ns()
            self._note_all(call, "input", tensors_in(args))
            self.took += time.perf_counter_ns() - start

    def note_end(self, call: Call, given: Given, result: object) -> None:
        """A call has ended, or was left by an exception."""
        start = time.perf_counter_ns()
        outputs = tensors_in(result)
        if self._follows(call.path):
            if given[1] and self._wants("input"):
                self._note_all(call, "input", tensors_in(given[1]), first=len(tensors_in(given[0])))
            if self._wants("output"):
                self._note_all(call, "output", outputs)
        if call.parent is None:
            for tensor in outputs:
                if tensor.grad_fn is not None:
                    hook = partial(self._note_backward)
                    tensor.grad_fn.register_prehook(hook)
                    self._graphs.append(weakref.ref(hook))
        self.took += time.perf_counter_ns() - start

    def note_attached(self, path: str, name: str, invocation: int, module: nn.Module, tensor: Tensor) -> None:
        """A tensor that the user has named."""
        if self._follows(path):
            self._note(path, "attached", name, invocation, module, tensor)

    def _note_all(self, call: Call, kind: Kind, tensors: Sequence[Tensor], first: int = 0) -> None:
        unit_dim = self._units.dim_of(call.module, tensors) if kind == "output" else None
        for number, tensor in enumerate(tensors, first):
            self._note(call.path, kind, str(number), call.invocation, call.module, tensor, unit_dim)

    def _wants(self, kind: Kind) -> bool:
        return kind in self._kinds or _GRADIENT_OF[kind] in self._kinds

    def _note(
        self,
        path: str,
        kind: Kind,
        name: str,
        invocation: int,
        module: nn.Module,
        tensor: Tensor,
        unit_dim: int | None = None,
    ) -> None:
        row = self._known_row(tensor)
        if row is None:
            row = self._look(tensor, unit_dim)
            if row is None:
                return
            if not tensor.is_inference():
                self._known[id(tensor)] = weakref.ref(tensor), tensor._version, row
        if kind in self._kinds:
            self._keep(self._numbers.of(path, kind, name, invocation, module), row, tensor)
        gradient = _GRADIENT_OF[kind]
        if gradient in self._kinds and tensor.grad_fn is not None:
            self._await_gradient(row, self._numbers.of(path, gradient, name, invocation, module), tensor)

    def _known_row(self, tensor: Tensor) -> int | None:
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != tensor._version:
            return None
        return known[2]

    def _look(self, tensor: Tensor, unit_dim: int | None = None) -> int | None:
        return self._rows.add(tensor, is_exact=self._is_exact(len(self._rows)), unit_dim=unit_dim)

    def _keep(self, number: int, row: int, tensor: Tensor) -> None:
        self._found[number] = row
        if tensor.numel() <= self._numbers.wholes.get(number, -1):
            self._rows.add_whole(number, tensor)

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def _await_gradient(self, row: int, number: int, tensor: Tensor) -> None:
        """Of a tensor, which several modules may be given or return."""
        waiting = self._gradients.get(row)
        if waiting is not None:
            waiting.append(number)
            return
        self._gradients[row] = [number]
        assert tensor.grad_fn is not None  # noqa: S101 - asked before
        tensor.grad_fn.register_prehook(partial(self._note_gradient, row, tensor.output_nr))

    def _note_gradient(self, row: int, number: int, gradients: tuple[Tensor | None, ...]) -> None:
        self._note_backward(gradients)
        if self.is_over or number >= len(gradients):
            return
        start = time.perf_counter_ns()
        gradient = gradients[number]
        found = None if gradient is None else self._look(gradient)
        if gradient is not None and found is not None:
            if self._sample_norms:
                self._rows.note_sample_norm(found, gradient)
            for series in self._gradients[row]:
                self._keep(series, found, gradient)
        self.took += time.perf_counter_ns() - start

    def _note_backward(self, _: tuple[Tensor | None, ...]) -> None:
        self.has_begun_backward = True
        if self._awaits_end and not self.is_over:
            self._awaits_end = False
            at_end_of_backward_pass(self._note_end_of_backward)

    def _note_end_of_backward(self) -> None:
        """Gradients of parameters are there, and may be scaled, clipped or cleared next."""
        self._awaits_end = True
        if self.is_over or "param_grad" not in self._kinds:
            return
        start = time.perf_counter_ns()
        parameters = [each for each in self._parameters if each.tensor.grad is not None]
        gradients = [each.tensor.grad for each in parameters if each.tensor.grad is not None]
        self._note_parameters(parameters, "param_grad", gradients, self._rows.add_all(gradients, self._is_exact))
        self.took += time.perf_counter_ns() - start

    def _look_at_parameters(self, is_exact: Callable[[int], bool]) -> list[int | None]:
        return self._rows.add_all((each.tensor for each in self._parameters), is_exact)

    def _note_parameters(
        self, parameters: Sequence[Parameter], kind: Kind, tensors: Iterable[Tensor], rows: Sequence[int | None]
    ) -> None:
        for each, tensor, row in zip(parameters, tensors, rows, strict=True):
            if row is not None:
                self._keep(self._numbers.of(each.path, kind, each.name, 0, each.module), row, tensor)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def finish(self, step: int, phase: Phase, number: int) -> Sampled:
        """What was seen, with the parameters as they are now."""
        start = time.perf_counter_ns()
        self.is_over = True
        after = self._look_at_parameters(self._is_exact) if self._before else []
        if after:
            self._note_parameters(self._parameters, "param", [each.tensor for each in self._parameters], after)
            self._remembered.note(self._parameters, after)
        pairs = [(one, two) for one, two in zip(self._before, after, strict=True) if one is not None and two is not None]
        with without_dispatch(), torch.inference_mode(False):
            sampled = Sampled(
                step=step,
                phase=phase,
                number=number,
                time=time.time(),
                series=torch.tensor(list(self._found.items()), dtype=torch.int64).view(-1, 2),
                numels=torch.tensor(self._rows.numels, dtype=torch.int64),
                sizes=torch.tensor(self._rows.sizes, dtype=torch.int64),
                exact=self._rows.exact(),
                pairs=torch.tensor(pairs, dtype=torch.int64).view(-1, 2),
                samples=self._rows.samples(),
                wholes=tuple(self._rows.wholes),
            )
        self._known.clear()
        self._gradients.clear()
        self.took += time.perf_counter_ns() - start
        return sampled
