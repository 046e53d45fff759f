"""Samples the tensors of one step, in the training process.

Its cost is the cost of watching: torch calls it for each module and each gradient. So everything
that is the same in every step is known from :mod:`torchscan.watching.call_sites`, each tensor takes
one gather of a few hundred values, and the rest is done at once at the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from torch import Tensor, nn

from torchscan.observing.steps import Pass
from torchscan.recording.bookkeeping.containers import tensors_in
from torchscan.torch_versions import (
    NO_BACKWARD_PASS,
    backward_pass,
    count_function_modes,
    keyword_arguments,
    without_torch_function,
)
from torchscan.watching.call_sampler import MAX_ROWS, CallSampler
from torchscan.watching.call_sites import CallSite
from torchscan.watching.contributions import BegunCall
from torchscan.watching.gradient_sampler import GradientSampler
from torchscan.watching.parameter_sampler import ParameterSampler
from torchscan.watching.sampling_context import SamplingContext
from torchscan.watching.sampling_guard import SamplingGuard, guarded, is_transformed
from torchscan.watching.series_rows import SeriesRows
from torchscan.watching.step_samples import StepSamples

_NO_ARGUMENTS: dict[str, Any] = {}

#: a module that is called, and what is known of the call
_OpenCall = tuple[nn.Module, CallSite]


class StepSampler:
    """Collector of the samples of one step. The calls of one thread are followed."""

    def __init__(
        self,
        of: Pass,
        context: SamplingContext,
        *,
        note_backward: Callable[[], None],
        end_root: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], object], None],
        fail: Callable[[Exception], None],
    ) -> None:
        context.rows.clear()
        self._pass, self._rows, self._sites = of, context.rows, context.sites
        self._numbers, self._known_sites = context.numbers, context.sites.by_module
        self._end_root = end_root
        self._thread = get_ident()
        #: calls that have started and not ended, the outermost first
        self.open_calls: list[_OpenCall] = []
        #: calls of modules in this step, by the identity of the module
        self._num_calls: dict[int, int] = {}
        self.guard = SamplingGuard(fail)

        trains, kinds = of.phase == "train", context.kinds
        self._series_rows = SeriesRows(context.rows, context.numbers)
        self._parameters = ParameterSampler(context, self._series_rows)
        self._gradients = GradientSampler(
            context,
            self._series_rows,
            self.guard,
            parameters=self._parameters if trains and "param_grad" in kinds else None,
            note_begin=note_backward,
        )
        self.calls = CallSampler(context, self._series_rows, self._gradients)
        if trains and "param" in kinds:
            self._parameters.sample_before(of.number)

    @property
    def gradient_norm(self) -> Tensor | None:
        """L2 norm of all gradients of parameters that were sampled, or None."""
        return self._parameters.gradient_norm

    def relabel(self, as_pass: Pass) -> None:
        """Note that the step is another pass than it seemed to be."""
        self._pass = as_pass

    # -- calls -----------------------------------------------------------------------------------

    def forget_open(self) -> None:
        """Forget calls that were interrupted: torch does not report their end."""
        self.open_calls.clear()
        self.calls.begun.clear()

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
            if site is None or self.guard.is_over or is_transformed():
                return
            self._num_calls[identity] = invocation + 1
            self.open_calls.append((module, site))
            if self.calls.needs_inputs and site.is_sampled:
                is_without = site.takes_keywords is False
                kwargs = _NO_ARGUMENTS if is_without else keyword_arguments(module)
                if count_function_modes():
                    with without_torch_function():
                        self._sample_start(site, args, kwargs)
                else:
                    self._sample_start(site, args, kwargs)
        except Exception as error:
            self.guard.fail(error)
        self.guard.took += perf_counter_ns() - start

    def note_end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Note that a call has returned, or was left by an exception, and sample its outputs."""
        # torch waits for this at each module: the usual case makes few calls
        if get_ident() != self._thread or backward_pass() != NO_BACKWARD_PASS:
            return
        start = perf_counter_ns()
        try:
            begun = self.calls.begun
            call = begun.pop(len(self.open_calls), None) if begun else None
            site = self._pop(module)
            if site is None or self.guard.is_over or is_transformed():
                return
            # torch leaves out the keyword arguments if an exception has left the call
            result = rest[-1]
            kwargs = missed = _NO_ARGUMENTS
            if len(rest) > 1:
                kwargs = rest[0]
                missed = site.note_keywords(kwargs)
            if count_function_modes():
                with without_torch_function():
                    self._sample_end(site, args, missed, result, call)
            else:
                self._sample_end(site, args, missed, result, call)
            if not self.open_calls:
                self.calls.is_aside = False
                self._end_root(module, args, kwargs, result)
        except Exception as error:
            self.guard.fail(error)
        self.guard.took += perf_counter_ns() - start

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

    def _sample_start(
        self, site: CallSite, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        inputs = tensors_in(args)
        if kwargs:
            inputs = [*inputs, *tensors_in(kwargs)]
        self.calls.begin(site, inputs, len(self.open_calls))

    def _sample_end(
        self,
        site: CallSite,
        args: tuple[Any, ...],
        missed: Mapping[str, Any],
        result: object,
        call: BegunCall | None,
    ) -> None:
        outputs = tensors_in(result)
        if site.is_sampled and not self.calls.is_aside and len(self._rows.numels) < MAX_ROWS:
            if missed and self.calls.needs_inputs:
                self.calls.add_inputs(site, tensors_in(missed), len(tensors_in(args)), call)
            if call is not None:
                self._gradients.await_contributions(call, outputs)
            if self.calls.needs_outputs:
                self.calls.sample_outputs(site, outputs)
        if not self.open_calls:
            for node in {each.grad_fn for each in outputs if each.grad_fn is not None}:
                node.register_prehook(self._gradients.note_backward)

    @guarded
    def note_attached(self, module: nn.Module, name: str, tensor: Tensor, alias: Tensor) -> None:
        """Sample a tensor that the user has attached to a module.

        Its gradient flows through its alias.
        """
        site = self._sites.site(module, 0)
        if self.open_calls and self.open_calls[-1][0] is module:
            site = self.open_calls[-1][1]
        is_again = backward_pass() != NO_BACKWARD_PASS
        if site is None or not site.is_sampled or self.calls.is_aside or is_again:
            return
        row = self._series_rows.row_of(alias, None)
        if row is None:
            return
        path, invocation = site.path, site.invocation
        self._series_rows.keep(
            self._numbers.of(path, "attached", name, invocation, module), row, alias
        )
        if alias.grad_fn is None:
            return
        number = self._numbers.of(path, "attached_grad", name, invocation, module)
        self._gradients.await_gradient(row, number, alias.grad_fn, alias.output_nr)
        if tensor.grad_fn is not None and alias is not tensor:
            self._gradients.await_whole_gradient(number, tensor, alias)

    @guarded
    def note_updated(self) -> None:
        """Sample the parameters after an optimizer's step: later writes belong to no step."""
        self._parameters.sample_after()

    def finish(self) -> StepSamples:
        """Return the samples, with the parameters as they are now if no optimizer has stepped."""
        start = perf_counter_ns()
        self.guard.is_over = True
        pairs = self._parameters.finish(self._pass.number)
        samples = self._series_rows.collect(self._pass, pairs)
        self._gradients.forget()
        self._series_rows.forget_tensors()
        self.open_calls.clear()
        self.guard.took += perf_counter_ns() - start
        return samples
