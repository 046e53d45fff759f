"""The one or two traces that a question takes, and every answer, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Unpack

import torch
from torch import nn

from torchscan.analyses.checkpoint_curve import CheckpointCurve
from torchscan.analyses.conventions import Convention
from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.module_graph import ModuleGraph, module_graph
from torchscan.analyses.receptive_field import ReceptiveField, receptive_fields
from torchscan.analyses.roofline import Fabric, Roofline
from torchscan.analyses.totals import by_module, by_operator, require_prices
from torchscan.checkpoint_estimates import compare_checkpoints
from torchscan.device_estimates import DeviceEstimates
from torchscan.errors import InputError
from torchscan.escapes import printable
from torchscan.estimate_suggestions import asker_of, suggest_for_memory, suggest_for_time
from torchscan.hardware.process_memory import NO_OVERHEAD, Overhead, cuda_overhead
from torchscan.model_state import differs_from_trace, settings_of
from torchscan.once import has_answer, once
from torchscan.ops import OpCost
from torchscan.pass_changes import Change
from torchscan.question import Question, asking
from torchscan.recorded_pass import find_overflow
from torchscan.recording.arguments import ScanArguments
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.passes import record_step
from torchscan.recording.state import original_of
from torchscan.report.info import Info
from torchscan.report.info_content import info_of
from torchscan.size_search import SizeSearch
from torchscan.trace.events import Phase
from torchscan.trace.trace import Trace
from torchscan.user_warnings import warn_user


class Scan:
    """One question about a model: which pass, on which inputs, on which device.

    Nothing is recorded until an answer needs it. There are two traces: ``trace`` (fused operators)
    and ``steps`` (operators decomposed, as a device runs them). Every answer is read from one of
    them, and computed once: ask before you change the model, or make another scan.
    """

    @asking
    def __init__(
        self,
        module: nn.Module,
        input_shape: Shapes | None = None,
        dtype: DTypes | None = None,
        **asked: Unpack[ScanArguments],
    ) -> None:
        self.question = Question(module=module, input_shape=input_shape, dtype=dtype, **asked)
        self._change: Change | None = None

    @classmethod
    def of(cls, question: Question, change: Change | None = None) -> Scan:
        """Return the scan of an existing question, with the effects of a change on its passes."""
        scan = cls.__new__(cls)
        scan.question = question
        scan._change = change
        return scan

    @once
    def _estimates(self) -> DeviceEstimates:
        return DeviceEstimates(self.question, self._change)

    def __repr__(self) -> str:
        """Return a short text: which pass of which model."""
        what = "training step" if self.question.training else "inference"
        where = "" if self.question.device is None else f" on {self.question.device}"
        return f"<Scan of {printable(type(self.question.module).__name__)}: {what}{where}>"

    # -- records -----------------------------------------------------------------------------------

    @once
    def trace(self) -> Trace:
        """The trace with fused operators: the forward pass, and in training the backward pass."""
        trace, _ = self._trace_and_overheads
        return trace

    @property
    def settings(self) -> Mapping[str, str]:
        """The ``extra_repr()`` of each module by its path; none if the model was changed since."""
        return {} if self.is_changed else settings_of(original_of(self.question.module))

    @property
    def is_changed(self) -> bool:
        """True if the model was changed in place since ``trace``."""
        if not has_answer(self, "_trace_and_overheads"):
            return False
        return differs_from_trace(original_of(self.question.module), self.trace)

    @once
    def steps(self) -> Trace:
        """The trace with decomposed operators, as the device runs them.

        For a training step, it contains the optimizer's step.
        """
        return self._estimates.step.trace

    @once
    def without_formula(self) -> tuple[str, ...]:
        """The operators without a cost formula of ``trace``.

        If there are any, its costs are lower bounds.
        """
        return tuple(operators_without_formula(self.trace, call_costs(self.trace)))

    @once
    def steps_without_formula(self) -> tuple[str, ...]:
        """The operators without a cost formula of ``steps``."""
        return tuple(operators_without_formula(self.steps, call_costs(self.steps)))

    @once
    def forward(self) -> Scan:
        """The scan of the forward pass alone, which model zoos report."""
        if not self.question.training:
            return self
        return Scan.of(self.question.forward_alone())

    @once
    def _trace_and_overheads(self) -> tuple[Trace, tuple[Overhead, Overhead]]:
        on_cuda = torch.cuda.is_initialized() and is_on_cuda(self.question.module)
        before = cuda_overhead() if on_cuda else NO_OVERHEAD
        with self.question.show_progress():
            trace, _ = record_step(self.question.fused_pass())
        return trace, (before, cuda_overhead() if on_cuda else NO_OVERHEAD)

    # -- costs -------------------------------------------------------------------------------------

    @once
    def info(self) -> Info:
        """The costs of the pass, per layer and overall, with receptive fields."""
        return self.describe()

    @once
    def counts(self) -> Info:
        """The costs of the pass without receptive fields."""
        return self.describe(receptive_field=False)

    def describe(
        self,
        convention: Convention = "torchscan",
        *,
        strict: bool = False,
        receptive_field: bool = True,
        memory: bool = False,
        times: bool = False,
    ) -> Info:
        """Return the info dict, as described under :func:`torchscan.crawl_module`.

        ``times`` are those on the device.
        """
        trace, overheads = self._trace_and_overheads
        if strict:
            require_prices(trace, call_costs(trace))
        estimate = self.memory if memory else None
        roofline = self.roofline if times else None
        fields = self.fields if receptive_field else None
        return info_of(trace, convention, fields, overheads, estimate, roofline)

    def costs(
        self,
        by: Literal["operator", "module"] = "operator",
        *,
        convention: Convention = "torchscan",
        phase: Phase | None = None,
    ) -> dict[str, OpCost]:
        """Return the cost of each operator, or of each module with all that it calls.

        ``""`` is the model. ``phase`` restricts the costs to the "forward" or "backward" pass.
        """
        if by not in ("operator", "module"):
            raise InputError.of_choice("by", by, ("operator", "module"))
        count = by_operator if by == "operator" else by_module
        return count(self.trace, convention=convention, phase=phase)

    def graph(self, path: str = "", call: int = 0, *, fold: bool = False) -> ModuleGraph:
        """Return which module passes its results to which, inside one call of a module.

        Args:
            path: the module; "" is the model.
            call: 0 for the first call of this module, 1 for the second, …
            fold: collapse operators that follow each other, and identical modules of a list.
        """
        return module_graph(self.trace, path, call, fold=fold)

    @once
    def receptive_field(self) -> ReceptiveField:
        """The part of each input that one unit of each layer sees."""
        trace = self.trace
        with self.question.show_progress():
            return receptive_fields(trace)

    @once
    def fields(self) -> ReceptiveField | None:
        """The receptive fields, or None after an internal error: other numbers stay available."""
        try:
            return self.receptive_field
        except Exception as error:
            warn_user(f"following the receptive field failed, so layers have none: {error!r}")
            return None

    # -- memory and time ---------------------------------------------------------------------------

    @once
    def memory(self) -> MemoryEstimate:
        """Peak memory of the pass, where it occurs, and whether it fits on the device."""
        return replace(
            self._estimates.memory,
            _asker=asker_of(self.question, suggest_for_memory),
            _curve_asker=asker_of(self.question, compare_checkpoints),
        )

    def largest_batch(self) -> int:
        """Return the largest batch size that fits on the device.

        To find it, the pass is recorded at some 3 to 25 other sizes.
        """
        search = self.batch_search()
        with self.question.show_progress(", at other batch sizes"):
            return search.largest()

    def batch_search(self) -> SizeSearch:
        """Return the search before it starts, or raise if this question allows none."""
        return self._estimates.batch_search()

    def longest_sequence(self) -> int:
        """Return the largest number of tokens of a sequence that fit on the device.

        To find it, the pass is recorded at some 3 to 25 other lengths.
        """
        search = self.length_search()
        with self.question.show_progress(", at other lengths"):
            return search.largest()

    def length_search(self) -> SizeSearch:
        """Return the search before it starts, or raise if this question allows none."""
        return self._estimates.length_search()

    def checkpointing(self, max_memory: int | str | None = None) -> CheckpointCurve:
        """Return the memory and time of the training step over ways to checkpoint its layers.

        The step is recorded without checkpoints and with all layers checkpointed, and other ways
        are derived from these two passes. The argument ``checkpoint`` has no influence.

        Args:
            max_memory: the most memory that torch may reserve: bytes, or a text such as "20 GiB".
        """
        return compare_checkpoints(self._estimates, max_memory)

    @once
    def roofline(self) -> Roofline:
        """The expected time on the device, and the limit of each operator.

        By default, the device is this machine's.
        """
        estimates = self._estimates
        for each in find_overflow(estimates.step_on_target, estimates.target):
            warn_user(str(each))
        return replace(estimates.roofline, _asker=asker_of(self.question, suggest_for_time))

    def roofline_with(self, fabric: Fabric) -> Roofline:
        """Return the roofline of one of several linked devices, with the time that links take."""
        estimates = self._estimates
        return estimates.roofline_of(estimates.step_on_target, fabric)

    @property
    def has_device(self) -> bool:
        """True if there is a device to estimate memory and time for."""
        return self._estimates.has_device
