"""Looks at the tensors of one step: in the training process, and at the cost of a few copies of a few hundred values each."""

from __future__ import annotations

import fnmatch
import functools
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Concatenate, NamedTuple, ParamSpec

import torch
from torch import Tensor, nn

from torchscan.live.activation_bounds import Units, bounds_of, can_die
from torchscan.live.contributions import BegunCall, Contribution, Source, edges_of_call, source_of
from torchscan.live.rows import Rows
from torchscan.live.sampled import AllValues, Sampled
from torchscan.live.schema import Announced, Kind, Series
from torchscan.live.steps import Pass
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.call_tree import Call, Given, is_in_backward_pass
from torchscan.torch_versions import (
    NO_BACKWARD_PASS,
    at_end_of_backward_pass,
    backward_pass,
    count_function_modes,
    is_tracing,
    is_transforming,
    next_node,
    without_dispatch,
    without_torch_function,
)

#: what can be looked at, in the plural that users write
LOGGED: dict[str, Kind] = {
    "inputs": "input",
    "outputs": "output",
    "input_grads": "input_grad",
    "output_grads": "output_grad",
    "params": "param",
    "param_grads": "param_grad",
}
#: in a step: whoever calls a model for ever, and asks for no gradients, is seen so often
_MAX_ROWS = 20_000
_GRADIENT_OF: dict[Kind, Kind] = {
    "input": "input_grad",
    "output": "output_grad",
    "attached": "attached_grad",
}


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


class SeriesNumbers:
    """Series by the numbers that they have on the line, and those that were not announced yet."""

    def __init__(self, whole: Sequence[tuple[str, int]] = ()) -> None:
        """``whole``: patterns of series of which all values are taken, each with how many these may be."""
        self._numbers: dict[tuple[str, Kind, str, int, type], int] = {}
        self._whole = whole
        self.new: list[Announced] = []
        #: those of which all values are taken, if there are no more than so many
        self.wholes: dict[int, int] = {}
        #: patterns that no series was called yet
        self.unmet = dict.fromkeys(pattern for pattern, _ in whole)

    def of(self, path: str, kind: Kind, name: str, invocation: int, module: nn.Module) -> int:
        """The number of a series, which may be new."""
        key = path, kind, name, invocation, type(module)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            series = Series(
                path=path,
                type_name=type_name_of(module),
                kind=kind,
                name=name,
                invocation=invocation,
            )
            is_output = kind == "output"
            self.new.append(
                Announced(
                    series, bounds_of(module) if is_output else None, is_output and can_die(module)
                )
            )
            limits = {
                pattern: most
                for pattern, most in self._whole
                if fnmatch.fnmatchcase(series.label, pattern)
            }
            if limits:
                self.wholes[number] = max(limits.values())
                self.unmet = {pattern: None for pattern in self.unmet if pattern not in limits}
        return number


class Before:
    """Parameters after a step, which equal those before the next one unless written to."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._versions: list[tuple[int, int]] = []
        self._number = -1

    def note(
        self, number: int, parameters: Sequence[Parameter], rows: Sequence[int | None]
    ) -> None:
        """After the step with this number."""
        self._number = number
        self._rows = [row for row in rows if row is not None]
        self._versions = _versions(parameters) if len(self._rows) == len(rows) else []

    def taken(self, number: int, parameters: Sequence[Parameter]) -> list[int]:
        """Before this one; none if they have to be looked at again: some write without a trace."""
        follows = number == self._number + 1 and bool(parameters)
        found = self._rows if follows and _versions(parameters) == self._versions else []
        self._rows, self._versions = [], []
        return found


def _versions(parameters: Iterable[Parameter]) -> list[tuple[int, int]]:
    return [
        (id(each.tensor), -1 if each.tensor.is_inference() else each.tensor._version)
        for each in parameters
    ]


class _Use:
    """A hook without effect, which lives as long as the node that it was put on."""

    def note(self, *_: object) -> None:
        """Do nothing."""


def is_transformed() -> bool:
    """Return whether this call is traced or transformed, so that it is not a real pass."""
    return is_tracing() or is_transforming()


P = ParamSpec("P")


def _guarded(
    method: Callable[Concatenate[Probe, P], None],
) -> Callable[Concatenate[Probe, P], None]:
    """Torch and users call it, and need not know of our mistakes. What it takes is noted."""

    @functools.wraps(method)
    def guarded(probe: Probe, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if probe.is_over or is_transformed():
            return
        start = time.perf_counter_ns()
        try:
            if count_function_modes():
                with without_torch_function():
                    method(probe, *args, **kwargs)
            else:
                method(probe, *args, **kwargs)
        except Exception as error:
            probe.fail(error)
        probe.took += time.perf_counter_ns() - start

    return guarded


class Probe:
    """Looks at one step, and has what it saw when the step is over."""

    def __init__(
        self,
        of: Pass,
        rows: Rows,
        numbers: SeriesNumbers,
        parameters: Sequence[Parameter],
        before: Before,
        *,
        kinds: Collection[Kind],
        follows: Callable[[str], bool],
        is_exact: Callable[[int], bool],
        sample_norms: bool,
        begin_backward: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """``is_exact`` says of which rows the least and the greatest value are looked for, ``follows`` of which modules any."""
        kept = before.taken(of.number, parameters)
        rows.clear(kept)
        self._pass, self._remembered = of, before
        self._begin_backward, self.fail = begin_backward, fail
        self._rows, self._numbers, self._parameters = rows, numbers, parameters
        self._kinds, self._follows, self._is_exact = (
            {*kinds, "attached", "attached_grad"},
            follows,
            is_exact,
        )
        self._sample_norms = sample_norms
        #: series, and their rows
        self._rows_by_series: dict[int, int] = {}
        self._units = Units()
        #: rows of tensors that were looked at, until they are written to
        self._known: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        #: rows of gradients of such tensors, by the row of the tensor
        self._gradients: dict[int, list[int]] = {}
        #: calls that go on, by their ids, and what they were given
        self._entries: dict[int, BegunCall] = {}
        self._before: list[int | None] = [*range(len(kept))]
        if "param" in kinds and not kept:
            self._before = self._look_at_parameters(lambda _: False)
        self._after: list[int | None] = []
        #: the backward pass whose end is awaited
        self._awaited = NO_BACKWARD_PASS
        #: whether the call that goes on is of another pass
        self.is_aside = False
        self.is_over = False
        #: nanoseconds that it took
        self.took = 0

    # -- calls ---------------------------------------------------------------------------------------------------------

    @_guarded
    def note_start(self, call: Call, args: tuple[object, ...]) -> None:
        """A call starts: what it is given may be written to in it."""
        if self._looks_at(call) and self._wants("input"):
            inputs = tensors_in(args)
            self._note_all(call, "input", inputs)
            if "input_grad" in self._kinds:
                self._entries[id(call)] = BegunCall(next_node(), self._sources_of(call, inputs))

    @_guarded
    def note_end(self, call: Call, given: Given, result: object) -> None:
        """A call has ended, or was left by an exception."""
        is_looked_at = self._looks_at(call)
        if call.parent is None:
            self.is_aside = False
        outputs = tensors_in(result)
        entry = self._entries.pop(id(call), None)
        if is_looked_at and given[1] and self._wants("input"):
            first = len(tensors_in(given[0]))
            self._note_all(call, "input", tensors_in(given[1]), first=first)
            if entry is not None:
                entry.sources.update(self._sources_of(call, tensors_in(given[1]), first))
        if is_looked_at and entry is not None:
            self._await_contributions(entry, outputs)
        if is_looked_at and self._wants("output"):
            self._note_all(call, "output", outputs)
        if call.parent is None:
            for node in {tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None}:
                node.register_prehook(lambda *_: self._note_backward())

    def _looks_at(self, call: Call) -> bool:
        """Not at what is computed again in a backward pass: it was seen."""
        return (
            self._follows(call.path)
            and not self.is_aside
            and not is_in_backward_pass()
            and len(self._rows) < _MAX_ROWS
        )

    @_guarded
    def note_attached(
        self,
        path: str,
        name: str,
        invocation: int,
        module: nn.Module,
        tensor: Tensor,
        alias: Tensor,
    ) -> None:
        """Note a tensor that the user has named, and its alias, through which its gradient flows."""
        if self._follows(path) and not self.is_aside and not is_in_backward_pass():
            self._note(path, "attached", name, invocation, module, alias)
            if tensor.grad_fn is not None and alias.grad_fn is not None and alias is not tensor:
                number = self._numbers.of(path, "attached_grad", name, invocation, module)
                self._await_whole_gradient(number, tensor, alias)

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
        if kind != "input" and gradient in self._kinds and tensor.grad_fn is not None:
            self._await_gradient(
                row, self._numbers.of(path, gradient, name, invocation, module), tensor
            )

    def _known_row(self, tensor: Tensor) -> int | None:
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != tensor._version:
            return None
        return known[2]

    def _look(self, tensor: Tensor, unit_dim: int | None = None) -> int | None:
        return self._rows.add(tensor, is_exact=self._is_exact(len(self._rows)), unit_dim=unit_dim)

    def _keep(self, number: int, row: int, tensor: Tensor) -> None:
        self._rows_by_series[number] = row
        if tensor.numel() <= self._numbers.wholes.get(number, -1):
            self._rows.add_whole(number, tensor)

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def _await_gradient(self, row: int, number: int, tensor: Tensor) -> None:
        """Wait for the gradient of a tensor, which several modules may get or return."""
        waiting = self._gradients.get(row)
        if waiting is not None:
            waiting.append(number)
            return
        self._gradients[row] = [number]
        assert tensor.grad_fn is not None  # noqa: S101 - asked before
        tensor.grad_fn.register_prehook(partial(self._note_gradient, row, tensor.output_nr))

    @_guarded
    def _note_gradient(self, row: int, number: int, gradients: tuple[Tensor | None, ...]) -> None:
        self._await_end()
        gradient = gradients[number] if number < len(gradients) else None
        found = None if gradient is None else self._look(gradient)
        if gradient is None or found is None:
            return
        if self._sample_norms:
            self._rows.note_sample_norm(found, gradient)
        for series in self._gradients[row]:
            self._keep(series, found, gradient)

    def _sources_of(
        self, call: Call, inputs: Sequence[Tensor], first: int = 0
    ) -> dict[int, Source]:
        """Return the nodes that the gradients of a call's inputs go to, by the numbers of their series."""
        found: dict[int, Source] = {}
        for place, tensor in enumerate(inputs, first):
            source = source_of(tensor)
            if source is not None:
                found[
                    self._numbers.of(
                        call.path, "input_grad", str(place), call.invocation, call.module
                    )
                ] = source
        return found

    def _await_contributions(self, entry: BegunCall, outputs: Sequence[Tensor]) -> None:
        edges = edges_of_call(entry, outputs)
        for number, found in (edges or {}).items():
            contribution = Contribution(len(found))
            for node, index in found:
                node.register_hook(partial(self._note_contribution, contribution, number, index))

    @_guarded
    def _note_contribution(
        self,
        into: Contribution,
        number: int,
        index: int,
        gradients: tuple[Tensor | None, ...],
        _: object,
    ) -> None:
        """Note the gradient that an operator of a call has computed for the input that it read."""
        self._await_end()
        gradient = gradients[index] if index < len(gradients) else None
        if gradient is None:
            return
        if into.row is not None and into.backward_pass == backward_pass():
            self._rows.add_to(into.row, number, gradient)
            return
        is_one = into.num_edges == 1
        into.backward_pass = backward_pass()
        into.row = self._look(gradient) if is_one else self._rows.add(gradient, is_exact=False)
        if into.row is None:
            return
        if self._sample_norms and is_one:
            self._rows.note_sample_norm(into.row, gradient)
        self._keep(number, into.row, gradient)

    def _await_whole_gradient(self, number: int, tensor: Tensor, alias: Tensor) -> None:
        """Record the gradient of the tensor itself if its alias is not used.

        A hook lives as long as its node, and the node as long as something uses its result.
        """
        use = _Use()
        assert alias.grad_fn is not None  # noqa: S101 - asked before
        assert tensor.grad_fn is not None  # noqa: S101 - asked before
        alias.grad_fn.register_prehook(use.note)
        tensor.grad_fn.register_prehook(
            partial(self._note_whole, weakref.ref(use), number, tensor.output_nr)
        )

    @_guarded
    def _note_whole(
        self, use: weakref.ref[_Use], number: int, index: int, gradients: tuple[Tensor | None, ...]
    ) -> None:
        gradient = gradients[index] if index < len(gradients) else None
        if use() is not None or number in self._rows_by_series or gradient is None:
            return
        self._await_end()
        row = self._look(gradient)
        if row is not None:
            self._keep(number, row, gradient)

    @_guarded
    def _note_backward(self) -> None:
        self._await_end()

    def _await_end(self) -> None:
        if self._awaited != backward_pass():
            self._awaited = backward_pass()
            self._begin_backward()
            at_end_of_backward_pass(
                lambda: at_end_of_backward_pass(self._note_end_of_backward)
            )  # after those of others

    @_guarded
    def _note_end_of_backward(self) -> None:
        """Gradients of parameters are there, summed over processes, and may be scaled, clipped or cleared next."""
        self._awaited = NO_BACKWARD_PASS
        if "param_grad" not in self._kinds:
            return
        parameters = [each for each in self._parameters if each.tensor.grad is not None]
        gradients = [each.tensor.grad for each in parameters if each.tensor.grad is not None]
        self._note_parameters(
            parameters, "param_grad", gradients, self._rows.add_all(gradients, self._is_exact)
        )

    @_guarded
    def note_updated(self) -> None:
        """Note that an optimizer has made its step.

        Later writes to parameters belong to no step.
        """
        if self._before:
            self._after = self._look_at_parameters(self._is_exact)

    def _look_at_parameters(self, is_exact: Callable[[int], bool]) -> list[int | None]:
        return self._rows.add_all((each.tensor for each in self._parameters), is_exact)

    def _note_parameters(
        self,
        parameters: Sequence[Parameter],
        kind: Kind,
        tensors: Iterable[Tensor],
        rows: Sequence[int | None],
    ) -> None:
        for each, tensor, row in zip(parameters, tensors, rows, strict=True):
            if row is not None:
                self._keep(
                    self._numbers.of(each.path, kind, each.name, 0, each.module), row, tensor
                )

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def finish(self) -> Sampled:
        """Return the samples, with the parameters as they are now if no optimizer was noticed."""
        start = time.perf_counter_ns()
        self.is_over = True
        if self._before:
            after = self._after or self._look_at_parameters(self._is_exact)
            self._note_parameters(
                self._parameters, "param", [each.tensor for each in self._parameters], after
            )
            self._remembered.note(self._pass.number, self._parameters, after)
            self._after = after
        pairs = [
            (one, two)
            for one, two in zip(self._before, self._after, strict=True)
            if one is not None and two is not None
        ]
        with without_dispatch(), torch.inference_mode(False):
            sampled = Sampled(
                step=self._pass.step,
                phase=self._pass.phase,
                number=self._pass.number,
                time=time.time(),
                series=_whole_numbers(list(self._rows_by_series.items())).view(-1, 2),
                numels=_whole_numbers(self._rows.numels),
                sizes=_whole_numbers(self._rows.sizes),
                exact=self._rows.exact(),
                pairs=_whole_numbers(pairs).view(-1, 2),
                samples=self._rows.samples()[:, : max(self._rows.sizes, default=0)],
                wholes=tuple(
                    AllValues(number, values) for number, values in self._rows.wholes.items()
                ),
            )
        self._known.clear()
        self._gradients.clear()
        self._entries.clear()
        self.took += time.perf_counter_ns() - start
        return sampled


def _whole_numbers(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")
