"""Samples the tensors of one step, in the training process.

Its cost is the cost of watching: torch calls it for each module and each gradient. So everything
that is the same in every step is known from :mod:`torchscan.watching.call_sites`, each tensor takes
one gather of a few hundred values, and the rest is done at once at the end of the step.
"""

from __future__ import annotations

import contextlib
import functools
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Concatenate, ParamSpec
from weakref import ref

import torch
from torch import Tensor, nn

from torchscan.observing.steps import Pass
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.torch_versions import (
    NO_BACKWARD_PASS,
    GradientHook,
    at_end_of_backward_pass,
    backward_pass,
    count_function_modes,
    current_node,
    innermost_transform,
    is_tracing,
    next_node,
    without_torch_function,
)
from torchscan.watching.activation_bounds import unit_dim_of
from torchscan.watching.call_sites import CallSite, CallSites, SeriesNumbers
from torchscan.watching.contributions import (
    BegunCall,
    Contribution,
    Source,
    edges_of_call,
    source_of,
)
from torchscan.watching.held_tensors import MAX_HELD
from torchscan.watching.parameter_memory import ParameterMemory
from torchscan.watching.row_groups import RowGroup
from torchscan.watching.rows import Rows
from torchscan.watching.schema import Kind
from torchscan.watching.step_samples import AllValues, StepSamples

#: kinds of tensors that users choose, in the plural
LOGGED: dict[str, Kind] = {
    "inputs": "input",
    "outputs": "output",
    "input_grads": "input_grad",
    "output_grads": "output_grad",
    "params": "param",
    "param_grads": "param_grad",
}
#: rows of a step; a model that is called without end, and without gradients, has more
_MAX_ROWS = 20_000
_NO_ARGUMENTS: dict[str, Any] = {}
_NO_CONTEXT = contextlib.nullcontext()
#: above every row
_MAX_ROW = 2**32


def is_transformed() -> bool:
    """Return whether this call is traced or transformed, so that it is not a real pass."""
    return is_tracing() or innermost_transform() is not None


class _Use:
    """A hook without effect, which lives as long as the node that it was put on."""

    def note(self, *_: object) -> None:
        """Do nothing."""


#: a module that is called, and what is known of the call
_OpenCall = tuple[nn.Module, CallSite]


P = ParamSpec("P")


def _guarded(
    method: Callable[Concatenate[StepSampler, P], None],
) -> Callable[Concatenate[StepSampler, P], None]:
    """Keep internal errors from torch and users, and add up the time that the method takes."""

    @functools.wraps(method)
    def guarded(sampler: StepSampler, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if sampler.is_over or is_transformed():
            return
        start = perf_counter_ns()
        try:
            if count_function_modes():
                with without_torch_function():
                    method(sampler, *args, **kwargs)
            else:
                method(sampler, *args, **kwargs)
        except Exception as error:
            sampler.fail(error)
        sampler.took += perf_counter_ns() - start

    return guarded


class StepSampler:
    """Collects the samples of one step. The calls of one thread are followed."""

    def __init__(
        self,
        of: Pass,
        rows: Rows,
        numbers: SeriesNumbers,
        sites: CallSites,
        memory: ParameterMemory,
        gradient_hook: GradientHook,
        *,
        kinds: Collection[Kind],
        sample_norms: bool,
        note_backward: Callable[[], None],
        end_root: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], object], None],
        fail: Callable[[Exception], None],
    ) -> None:
        rows.clear()
        self._pass, self._rows, self._numbers, self._sites = of, rows, numbers, sites
        self._memory = memory
        self._known_sites = sites.by_module
        self._sample_norms = sample_norms
        self._begin_backward, self._end_root, self.fail = note_backward, end_root, fail
        self._thread = get_ident()
        self._takes_params = of.phase == "train" and "param" in kinds
        self._takes_param_grads = of.phase == "train" and "param_grad" in kinds
        self._takes_inputs = "input" in kinds
        self._takes_input_grads = "input_grad" in kinds
        self._takes_outputs = "output" in kinds
        self._takes_output_grads = "output_grad" in kinds
        self._takes_calls_inputs = self._takes_inputs or self._takes_input_grads
        self._takes_calls_outputs = self._takes_outputs or self._takes_output_grads
        #: what is known of open calls, by their number, if gradients of inputs are sampled
        self._begun: dict[int, BegunCall] = {}
        #: calls that have started and not ended, the outermost first
        self.open_calls: list[_OpenCall] = []
        #: calls of modules in this step, by the identity of the module
        self._num_calls: dict[int, int] = {}
        self._rows_by_series: dict[int, int] = {}
        #: tensors that were sampled, by identity, and their versions and rows as one number:
        #: thousands of tuples that live until the end of the step keep Python's collector busy
        self._known: dict[int, ref[Tensor]] = {}
        self._versions: dict[int, int] = {}
        #: series of the gradients of such tensors, by the row of the tensor; of most there is one
        self._gradients: dict[int, int | list[int]] = {}
        #: rows of tensors by the number of the node that produced them, if one hook serves them all
        self._rows_by_node: dict[int, int] = {}
        self._gradient_hook = gradient_hook
        gradient_hook.call(self.note_gradient)
        self._is_channels_first: bool | None = None
        self._awaited = NO_BACKWARD_PASS
        #: True during a call that belongs to another pass
        self.is_aside = False
        self.is_over = False
        #: nanoseconds that sampling has taken
        self.took = 0
        #: L2 norm of all gradients that were sampled, on the device, or None
        self.gradient_norm: Tensor | None = None
        self._before: list[int | None] = []
        self._after: list[int | None] = []
        self._after_group: RowGroup | None = None
        if self._takes_params and sites.parameter_tensors:
            self._take_parameters(sites.parameter_tensors)

    def _take_parameters(self, parameters: list[Tensor]) -> None:
        """Sample the parameters before the step, unless they are known from the last one."""
        group = self._memory.take(self._pass.number, parameters)
        if group is not None:
            self._before = self._rows.add_group(group)
            return

        self._before, _ = self._rows.add_all(parameters)

    def relabel(self, as_pass: Pass) -> None:
        """Note that the step is another pass than it seemed to be."""
        self._pass = as_pass

    # -- calls -----------------------------------------------------------------------------------

    def forget_open(self) -> None:
        """Forget calls that were interrupted: torch does not report their end."""
        self.open_calls.clear()
        self._begun.clear()

    def note_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the start of a call, and sample its inputs, which the call may write to."""
        # torch waits for this at each module: the usual case makes few calls
        if get_ident() != self._thread or backward_pass() != NO_BACKWARD_PASS:
            return  # a checkpoint runs a module again
        start = perf_counter_ns()
        try:
            identity = id(module)
            invocation = self._num_calls.get(identity, 0)
            site: CallSite | None
            try:
                site = self._known_sites[identity][invocation]
            except (KeyError, IndexError):
                site = self._sites.site(module, invocation)
            if site is None or self.is_over or is_transformed():
                return
            self._num_calls[identity] = invocation + 1
            self.open_calls.append((module, site))
            if args and self._takes_calls_inputs and site.is_sampled:
                if count_function_modes():
                    with without_torch_function():
                        self._sample_inputs(site, tensors_in(args), 0)
                else:
                    self._sample_inputs(site, tensors_in(args), 0)
        except Exception as error:
            self.fail(error)
        self.took += perf_counter_ns() - start

    def _sample_inputs(self, site: CallSite, tensors: Sequence[Tensor], first: int) -> None:
        if self.is_aside or len(self._rows.numels) >= _MAX_ROWS:
            return
        if self._takes_inputs:
            numbers = site.inputs
            index = first
            for tensor in tensors:
                row = self._row_of(tensor, None)
                if row is not None:
                    known = index < len(numbers)
                    number = numbers[index] if known else site.number("input", numbers, index)
                    if self._numbers.wholes:
                        self._keep(number, row, tensor)
                    else:
                        self._rows_by_series[number] = row
                index += 1
        if self._takes_input_grads:
            begun = self._begun.setdefault(len(self.open_calls), BegunCall(next_node(), {}))
            begun.sources.update(_sources_of(site, tensors, first))

    def note_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Note that a call has returned, or was left by an exception, and sample its outputs."""
        # torch waits for this at each module: the usual case makes few calls
        if get_ident() != self._thread or backward_pass() != NO_BACKWARD_PASS:
            return
        start = perf_counter_ns()
        try:
            begun = self._begun.pop(len(self.open_calls), None) if self._begun else None
            site = self._pop(module)
            if site is None or self.is_over or is_transformed():
                return
            # torch leaves out the keyword arguments if an exception has left the call
            result = rest[-1]
            kwargs = rest[0] if len(rest) > 1 else _NO_ARGUMENTS
            if count_function_modes():
                with without_torch_function():
                    self._sample_end(site, args, kwargs, result, begun)
            else:
                self._sample_end(site, args, kwargs, result, begun)
            if not self.open_calls:
                self.is_aside = False
                self._end_root(module, args, kwargs, result)
        except Exception as error:
            self.fail(error)
        self.took += perf_counter_ns() - start

    def _pop(self, module: nn.Module) -> CallSite | None:
        """Return the site of the innermost open call of a module, which has ended, or None."""
        calls = self.open_calls
        if calls and calls[-1][0] is module:
            return calls.pop()[1]
        for index in range(len(calls) - 1, -1, -1):
            open_module, site = calls[index]
            if open_module is module:  # calls inside it were interrupted
                del calls[index:]
                return site
        return None

    def _sample_end(
        self,
        site: CallSite,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: object,
        begun: BegunCall | None,
    ) -> None:
        outputs = tensors_in(result)
        if site.is_sampled and not self.is_aside and len(self._rows.numels) < _MAX_ROWS:
            if kwargs and self._takes_calls_inputs:
                self._sample_inputs(site, tensors_in(kwargs), len(tensors_in(args)))
            if begun is not None:
                self._await_contributions(begun, outputs)
            if self._takes_calls_outputs:
                self._sample_outputs(site, outputs)
        if not self.open_calls:
            for node in {each.grad_fn for each in outputs if each.grad_fn is not None}:
                node.register_prehook(self._note_backward)

    def _sample_outputs(self, site: CallSite, outputs: Sequence[Tensor]) -> None:
        if site.has_channels_first is not None:
            self._is_channels_first = site.has_channels_first
        unit_dim = None
        if site.can_die and outputs:
            unit_dim = unit_dim_of(outputs[0], self._is_channels_first)
        for index, tensor in enumerate(outputs):
            row = self._row_of(tensor, unit_dim)
            if row is None:
                continue
            if self._takes_outputs:
                numbers = site.outputs
                known = index < len(numbers)
                number = numbers[index] if known else site.number("output", numbers, index)
                if self._numbers.wholes:
                    self._keep(number, row, tensor)
                else:
                    self._rows_by_series[number] = row
            if not self._takes_output_grads:
                continue
            node: Any = tensor.grad_fn
            if node is None:
                continue
            numbers = site.output_grads
            known = index < len(numbers)
            number = numbers[index] if known else site.number("output_grad", numbers, index)
            self._await_gradient(row, number, node, tensor.output_nr)

    @_guarded
    def note_attached(self, module: nn.Module, name: str, tensor: Tensor, alias: Tensor) -> None:
        """Sample a tensor that the user has attached to a module.

        Its gradient flows through its alias.
        """
        site = self._sites.site(module, 0)
        if self.open_calls and self.open_calls[-1][0] is module:
            site = self.open_calls[-1][1]
        is_again = backward_pass() != NO_BACKWARD_PASS
        if site is None or not site.is_sampled or self.is_aside or is_again:
            return
        row = self._row_of(alias, None)
        if row is None:
            return
        path, invocation = site.path, site.invocation
        self._keep(self._numbers.of(path, "attached", name, invocation, module), row, alias)
        if alias.grad_fn is None:
            return
        number = self._numbers.of(path, "attached_grad", name, invocation, module)
        self._await_gradient(row, number, alias.grad_fn, alias.output_nr)
        if tensor.grad_fn is not None and alias is not tensor:
            self._await_whole_gradient(number, tensor, alias)

    # -- rows ------------------------------------------------------------------------------------

    def _row_of(self, tensor: Tensor, unit_dim: int | None) -> int | None:
        """Return the row of a tensor, which is new unless the tensor was sampled as it is."""
        identity = id(tensor)
        known = self._known.get(identity)
        if known is not None and known() is tensor:
            version, row_known = divmod(self._versions[identity], _MAX_ROW)
            if version == tensor._version:
                return row_known
        # leaves and views may share memory that is filled again, or released, without a new version
        max_held = 0 if tensor.is_leaf or tensor._is_view() else MAX_HELD
        row = self._rows.add(tensor, unit_dim, max_held=max_held)
        if row is not None and not tensor.is_inference():
            self._known[identity] = ref(tensor)
            self._versions[identity] = tensor._version * _MAX_ROW + row
        return row

    def _keep(self, number: int, row: int, tensor: Tensor) -> None:
        self._rows_by_series[number] = row
        limits = self._numbers.wholes
        if limits and tensor.numel() <= limits.get(number, -1):
            self._rows.add_whole(number, tensor)

    # -- the backward pass -----------------------------------------------------------------------

    def _await_gradient(self, row: int, number: int, node: Any, output_nr: int) -> None:
        """Wait for the gradient of a tensor, which several modules may take or return."""
        series = self._gradients.get(row)
        if series is None:
            self._gradients[row] = number
            node_number = node._sequence_nr()
            if output_nr or node_number in self._rows_by_node:
                node.register_prehook(partial(self._note_gradient, row, output_nr))
            else:
                self._rows_by_node[node_number] = row
                self._gradient_hook.put_on(node)
        elif isinstance(series, int):
            self._gradients[row] = [series, number]
        else:
            series.append(number)

    def note_gradient(self, gradient: Tensor | None) -> None:
        """Sample the gradient of the first result of the current node."""
        node = current_node()
        row = None if node is None else self._rows_by_node.get(node._sequence_nr())
        if row is not None:
            self._note_gradient(row, 0, (gradient,))

    def _note_gradient(self, row: int, index: int, gradients: tuple[Tensor | None, ...]) -> None:
        """Sample the gradient of a tensor that was sampled, for all series that wait for it."""
        if self.is_over or is_transformed():
            return
        start = perf_counter_ns()
        try:
            if self._awaited != backward_pass():
                self._await_end()
            gradient = gradients[index] if index < len(gradients) else None
            found = None if gradient is None else self._rows.add(gradient, max_held=MAX_HELD)
            if gradient is not None and found is not None:
                if self._sample_norms:
                    self._rows.note_sample_norm(found, gradient)
                series = self._gradients[row]
                for number in (series,) if isinstance(series, int) else series:
                    self._keep(number, found, gradient)
        except Exception as error:
            self.fail(error)
        self.took += perf_counter_ns() - start

    def _await_contributions(self, begun: BegunCall, outputs: Sequence[Tensor]) -> None:
        edges_by_number = edges_of_call(begun, outputs) or {}
        for number, edges in edges_by_number.items():
            contribution = Contribution(len(edges))
            note = partial(self._note_contribution, contribution, number)
            for node, index in edges:
                node.register_hook(partial(note, index))

    @_guarded
    def _note_contribution(
        self,
        contribution: Contribution,
        number: int,
        index: int,
        gradients: tuple[Tensor | None, ...],
        _: object,
    ) -> None:
        """Sample the gradient that an operator of a call has computed for an input."""
        self._await_end()
        gradient = gradients[index] if index < len(gradients) else None
        if gradient is None:
            return
        if contribution.row is not None and contribution.backward_pass == backward_pass():
            self._rows.add_to(contribution.row, number, gradient)
            return

        is_only = contribution.num_edges == 1
        contribution.backward_pass = backward_pass()
        contribution.row = self._rows.add(gradient)
        if contribution.row is None:
            return
        if self._sample_norms and is_only:
            self._rows.note_sample_norm(contribution.row, gradient)
        self._keep(number, contribution.row, gradient)

    def _await_whole_gradient(self, number: int, tensor: Tensor, alias: Tensor) -> None:
        """Record the gradient of the tensor itself if its alias is not used.

        A hook lives as long as its node, and the node as long as something uses its result.
        """
        use = _Use()
        alias_node: Any = alias.grad_fn
        alias_node.register_prehook(use.note)
        node: Any = tensor.grad_fn
        note = partial(self._note_whole, ref(use), number, tensor.output_nr)
        node.register_prehook(note)

    @_guarded
    def _note_whole(
        self, use: ref[_Use], number: int, index: int, gradients: tuple[Tensor | None, ...]
    ) -> None:
        gradient = gradients[index] if index < len(gradients) else None
        if use() is not None or number in self._rows_by_series or gradient is None:
            return
        self._await_end()
        row = self._rows.add(gradient)
        if row is not None:
            self._keep(number, row, gradient)

    @_guarded
    def _note_backward(self, *_: object) -> None:
        self._await_end()

    def _await_end(self) -> None:
        if self._awaited != backward_pass():
            self._awaited = backward_pass()
            self._begin_backward()
            # behind the callbacks of others, such as those that reduce gradients over ranks
            at_end_of_backward_pass(lambda: at_end_of_backward_pass(self._note_end_of_backward))

    @_guarded
    def _note_end_of_backward(self) -> None:
        """Sample the gradients of parameters: they may be scaled, clipped or cleared next."""
        self._awaited = NO_BACKWARD_PASS
        self._rows.flush()
        if not self._takes_param_grads:
            return
        numbers: list[int] = []
        gradients: list[Tensor] = []
        every = self._sites.parameter_numbers("param_grad")
        for number, tensor in zip(every, self._sites.parameter_tensors, strict=True):
            # functional_call puts tensors that are not leaves in the place of parameters
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None:
                numbers.append(number)
                gradients.append(gradient)
        rows, group = self._rows.add_all(gradients)
        self.gradient_norm = self._rows.note_norms(group, rows, gradients)
        self._keep_all(numbers, gradients, rows)

    @_guarded
    def note_updated(self) -> None:
        """Sample the parameters after an optimizer's step: later writes belong to no step."""
        if self._before:
            self._sample_parameters()

    def _sample_parameters(self) -> None:
        self._after, self._after_group = self._rows.add_all(self._sites.parameter_tensors)

    def _keep_all(
        self, numbers: Sequence[int], tensors: Sequence[Tensor], rows: Sequence[int | None]
    ) -> None:
        if not self._numbers.wholes and None not in rows:
            self._rows_by_series.update(zip(numbers, rows, strict=True))  # type: ignore[arg-type]
            return
        for number, tensor, row in zip(numbers, tensors, rows, strict=True):
            if row is not None:
                self._keep(number, row, tensor)

    # -- the end of the step ---------------------------------------------------------------------

    def finish(self) -> StepSamples:
        """Return the samples, with the parameters as they are now if no optimizer has stepped."""
        start = perf_counter_ns()
        self.is_over = True
        if self._before:
            self._finish_parameters()
        rows = self._rows
        pairs: list[int] = []
        for old, new in zip(self._before, self._after, strict=False):
            if old is not None and new is not None:
                pairs += (old, new)
        series = self._rows_by_series
        is_inference = torch.is_inference_mode_enabled()
        with torch.inference_mode(False) if is_inference else _NO_CONTEXT:
            places, values = rows.join()
        if rows.lost:
            series = {number: row for number, row in series.items() if row not in rows.lost}
        integers = chain(chain.from_iterable(series.items()), rows.numels, rows.sizes)
        samples = StepSamples(
            step=self._pass.step,
            phase=self._pass.phase,
            number=self._pass.number,
            time=time.time(),
            num_series=len(series),
            num_rows=len(rows),
            num_exact=len(places),
            num_pairs=len(pairs) // 2,
            integers=array("q", [*integers, *places, *pairs]),
            values=values,
            wholes=tuple(AllValues(number, values) for number, values in rows.wholes.items()),
        )
        self._gradient_hook.forget()
        self._rows_by_node.clear()
        self._known.clear()
        self._versions.clear()
        self._gradients.clear()
        self.open_calls.clear()
        self.took += perf_counter_ns() - start
        return samples

    def _finish_parameters(self) -> None:
        parameters = self._sites.parameter_tensors
        if self._after_group is None:
            self._sample_parameters()
        numbers = self._sites.parameter_numbers("param")
        self._keep_all(numbers, parameters, self._after)
        if self._after_group is not None:
            self._memory.keep(self._pass.number, parameters, self._after_group)


def _sources_of(site: CallSite, inputs: Sequence[Tensor], first: int) -> dict[int, Source]:
    """Return the nodes that the gradients of inputs flow to, by the numbers of their series."""
    found: dict[int, Source] = {}
    for index, tensor in enumerate(inputs, first):
        source = source_of(tensor)
        if source is not None:
            found[site.number("input_grad", site.input_grads, index)] = source
    return found
