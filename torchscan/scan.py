"""The one or two traces that a question takes, and every answer, computed once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, Literal, Unpack

import torch
from torch import nn

from torchscan.analyses.accumulated_steps import repeat_passes
from torchscan.analyses.checkpoint_curve import CheckpointCurve
from torchscan.analyses.conventions import Convention
from torchscan.analyses.host_transfers import add_transfers
from torchscan.analyses.memory_estimate import OUTPUT_DROPPED, MemoryEstimate, estimate_of
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.module_graph import ModuleGraph, module_graph
from torchscan.analyses.receptive_field import ReceptiveField, receptive_fields
from torchscan.analyses.roofline import (
    Fabric,
    Rates,
    Roofline,
    numbers_of,
    require_float8,
    require_format,
    roofline_of,
)
from torchscan.analyses.suggestions_result import Answers, Asker, SuggestionMetric, Suggestions
from torchscan.analyses.totals import by_module, by_operator, require_prices
from torchscan.checkpointing import CheckpointComparison, CheckpointEstimate
from torchscan.errors import Argument, Give, InputError
from torchscan.escapes import printable
from torchscan.hardware.device_specs import Device, can_estimate_for, device_named
from torchscan.hardware.process_memory import NO_OVERHEAD, Overhead, cuda_overhead
from torchscan.once import once
from torchscan.ops import OpCost
from torchscan.pass_changes import Change, Situation, for_memory, for_time
from torchscan.precisions import checked_precision
from torchscan.progress import progress
from torchscan.question import KernelDevice, Question, asking
from torchscan.recorded_pass import RecordedPass, find_overflow, kernels_of
from torchscan.recording.arguments import ScanArguments
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.passes import record_pass, record_step
from torchscan.recording.state import original_of
from torchscan.recording.training.float8 import required_multiple
from torchscan.recording.training.recipe import checkpointed_paths
from torchscan.report.info import Info
from torchscan.report.info_content import info_of
from torchscan.size_search import SizeSearch, batches, lengths
from torchscan.suggestions import Answer, suggestions_of
from torchscan.torch_versions import compiled_from
from torchscan.trace.events import Phase
from torchscan.trace.trace import Trace
from torchscan.units import bytes_of, share
from torchscan.user_warnings import warn_user

_A_DEVICE = (Give("device", "NVIDIA H200"), ", for example")


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
        self._ask(Question(module=module, input_shape=input_shape, dtype=dtype, **asked))

    @classmethod
    def of(cls, question: Question, change: Change | None = None) -> Scan:
        """Return the scan of an existing question, with the effects of a change on its passes."""
        scan = cls.__new__(cls)
        scan._ask(question, change)
        return scan

    def _ask(self, question: Question, change: Change | None = None) -> None:
        self.question = question
        self._change = change
        self._steps: dict[KernelDevice, RecordedPass] = {}

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

    @once
    def steps(self) -> Trace:
        """The trace with decomposed operators, as the device runs them.

        For a training step, it contains the optimizer's step.
        """
        return self._step.trace

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
        on_cuda = is_on_cuda(self.question.module)
        before = cuda_overhead() if on_cuda else NO_OVERHEAD
        with self._telling():
            trace = record_pass(self.question.fused_pass())
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
        with self._telling():
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
        if checked_precision(self.question.precision) in ("fp8", "fp8-mixed"):
            raise InputError(
                "memory is not estimated for fp8, whose weights can be stored in many ways: give ",
                *("another ", Argument("precision"), ", such as 'bf16'"),
            )
        if self._gpu is None and self.question.cuda_context is not None:
            raise InputError(Argument("cuda_context"), " needs a device: give ", _A_DEVICE)
        verdict = None if self._gpu is None else self._step.on(self._gpu).verdict()
        estimate = estimate_of(self._step.trace, self._step.timeline, verdict)
        assumptions = estimate.assumptions
        if self._step.request.drops_output:
            assumptions = (OUTPUT_DROPPED, *assumptions)
        return replace(
            estimate,
            assumptions=assumptions,
            _asker=self._asker(Scan._memory_suggestions),
            _curve_asker=self._asker(Scan.checkpointing),
        )

    def _memory_suggestions(self) -> Suggestions:
        metric: SuggestionMetric = "peak_bytes"
        if self._gpu is not None:
            metric = "reserved_bytes"
        step = self._step
        situation = self._situation(self._device, step)
        changes = for_memory(replace(situation, layers=step.timeline.layers))
        return suggestions_of(metric, self._question_text, changes, self._memory_with)

    def _memory_with(self, change: Change) -> Answer:
        estimate = self._with(change).memory
        verdict = estimate.verdict
        if verdict is None:
            return Answer(estimate.peak_bytes)
        return Answer(verdict.reserved_bytes, fits=verdict.fits)

    def _time_suggestions(self) -> Suggestions:
        changes = for_time(self._situation(self._target, self._step_on_target))
        text = self._question_text
        roofline = self._roofline
        for limiter, time in roofline.time_by_limiter.items():
            if time:
                part = share(time / roofline.time_estimate)
                text = f"{text}; limited by {limiter} ({part} of the time)"
                break  # the first one limits most of the time
        return suggestions_of("time_estimate", text, changes, self._time_with)

    def _time_with(self, change: Change) -> Answer:
        scan = self._with(change)
        if change.is_of_batch:
            step = scan._step_for(kernels_of(self._target))
            if find_overflow(step, self._target):
                raise InputError(f"twice as many samples do not fit on {self._target.name}")
        return Answer(scan._roofline.time_estimate, error_share=scan._roofline.error_margin.share)

    @property
    def _question_text(self) -> str:
        """The question in a line."""
        question = self.question
        parts = ["no device" if self._device is None else self._device.name]
        parts.append(question.precision or "the model's own precision")
        if question.input_shape is not None:
            parts.append(f"batch size {question.batch_size}")
        if question.training:
            parts.append("a training step")
        return ", ".join(parts)

    def _with(self, change: Change) -> Scan:
        return Scan.of(replace(self.question, **change.arguments), change)

    def _asker(self, ask: Callable[..., Answers]) -> Asker[Answers]:
        """Return an object that asks the question again, of the model as it is then.

        It holds neither this scan nor the model.
        """
        names = [each.name for each in fields(Question) if each.name != "module"]
        arguments = {name: getattr(self.question, name) for name in names}

        def ask_again(module: nn.Module, *options: Any) -> Answers:
            return ask(Scan.of(Question(module=module, **arguments)), *options)

        return Asker(self.question.module, ask_again)

    def _situation(self, device: Device | None, step: RecordedPass) -> Situation:
        question, trace = self.question, step.trace
        batch_size = None
        if question.input_shape is not None and trace.provenance.execution == "abstract":
            batch_size = question.batch_size
        formats = None
        if device is not None and device.flops_per_second:
            formats = frozenset(device.flops_per_second)
        return Situation(
            training=question.training,
            precision=checked_precision(question.precision),
            compiled=self._is_compiled,
            optimizer=question.optimizer,
            batch_size=batch_size,
            on_gpu=is_on_cuda(question.module) if device is None else device.has_allocator,
            formats=formats,
            is_single=any(each.dtype is torch.float32 for each in question.module.parameters()),
            has_convolutions=any("convolution" in op.signature.operator for op in trace.ops),
        )

    def largest_batch(self) -> int:
        """Return the largest batch size that fits on the device.

        To find it, the pass is recorded at some 3 to 25 other sizes.
        """
        search = self.batch_search()
        with self._telling(", at other batch sizes"):
            return search.largest()

    def batch_search(self) -> SizeSearch:
        """Return the search before it starts, or raise if this question allows none."""
        if self._gpu is not None and self.question.input_shape is None:
            raise InputError(
                "the largest batch needs inputs made from shapes: give ",
                Give("input_shape"),
                " instead of complete arguments",
            )
        gpu = self._require_gpu("the largest batch")
        sizes = batches(self._step.request, self._required_multiple)
        return SizeSearch(sizes, gpu, self._step.on(gpu))

    def longest_sequence(self) -> int:
        """Return the largest number of tokens of a sequence that fit on the device.

        To find it, the pass is recorded at some 3 to 25 other lengths.
        """
        search = self.length_search()
        with self._telling(", at other lengths"):
            return search.largest()

    def length_search(self) -> SizeSearch:
        """Return the search before it starts, or raise if this question allows none."""
        gpu = self._require_gpu("the longest sequence")
        sizes = lengths(self._step.request, self._required_multiple)
        return SizeSearch(sizes, gpu, self._step.on(gpu))

    @property
    def _required_multiple(self) -> int:
        """The number that rows of products must be a multiple of."""
        recipe = self.question.float8
        return 1 if recipe is None else required_multiple(recipe)

    def _require_gpu(self, what: str) -> Device:
        """Return the device, or raise if there is none, or if this pass needs data."""
        if self._gpu is None:
            raise InputError(f"{what} depends on the device: give ", _A_DEVICE)
        if self._step.trace.provenance.execution != "abstract":
            raise InputError(
                f"{what} is found on shapes alone, and this pass needs data: give a model whose "
                "pass needs none"
            )
        return self._gpu

    def checkpointing(self, max_memory: int | str | None = None) -> CheckpointCurve:
        """Return the memory and time of the training step over ways to checkpoint its layers.

        The step is recorded without checkpoints and with all layers checkpointed, and other ways
        are derived from these two passes. The argument ``checkpoint`` has no influence.

        Args:
            max_memory: the most memory that torch may reserve: bytes, or a text such as "20 GiB".
        """
        if not self.question.training:
            training = Give("training", True)
            raise InputError("checkpoints belong to a training step: give ", training)
        device = self._require_gpu("the time of what is computed again")
        limit = None
        if max_memory is not None:
            limit = bytes_of("max_memory", max_memory)
            limited = min(device.memory_bytes, device.cuda_context_bytes + limit)
            device = replace(device, memory_bytes=limited)
        without = Scan.of(replace(self.question, checkpoint=False))
        full = Scan.of(replace(self.question, checkpoint=True))
        layers = checkpointed_paths(original_of(self.question.module))

        def estimate(recorded: Trace) -> CheckpointEstimate:
            step = RecordedPass(recorded, without._step.request, compiled=self._is_compiled)
            verdict = step.on(device).verdict()
            peak, roofline = max(step.timeline.totals), self._roofline_of_step(step)
            return CheckpointEstimate(
                peak, verdict.reserved_bytes, verdict.fits, roofline, step.trace
            )

        with self._telling(", over checkpoints"):
            usual = estimate(without._step.recorded)
            recorded, room = full._step.recorded, device.room_bytes
            comparison = CheckpointComparison(usual, recorded, layers, estimate, room)
            choices = comparison.choices()
        return CheckpointCurve(
            device=device.name,
            question=self._question_text,
            num_layers=len(layers),
            max_memory=limit,
            limit=device.room_bytes,
            choices=choices,
            error_margin=usual.roofline.error_margin,
            assumptions=usual.roofline.assumptions,
        )

    @once
    def roofline(self) -> Roofline:
        """The expected time on the device, and the limit of each operator.

        By default, the device is this machine's.
        """
        for each in find_overflow(self._step_on_target, self._target):
            warn_user(str(each))
        return replace(self._roofline, _asker=self._asker(Scan._time_suggestions))

    def roofline_with(self, fabric: Fabric) -> Roofline:
        """Return the roofline of one of several linked devices, with the time that links take."""
        return self._roofline_of(fabric)

    @once
    def _target(self) -> Device:
        return self._device or self._named(self.question.device)

    @once
    def _roofline(self) -> Roofline:
        return self._roofline_of(None)

    def _roofline_of(self, fabric: Fabric | None) -> Roofline:
        return self._roofline_of_step(self._step_on_target, fabric)

    def _roofline_of_step(self, step: RecordedPass, fabric: Fabric | None = None) -> Roofline:
        device = self._target
        precision = checked_precision(self.question.precision)
        rates = Rates(device)
        require_format(device, precision)
        roofline = roofline_of(
            step.trace,
            rates,
            precision=precision,
            numbers=numbers_of(device, precision),
            compiled=self._is_compiled,
            warnings=find_overflow(step, device),
            fabric=fabric,
        )
        roofline = add_transfers(roofline, step.trace, device)
        return repeat_passes(roofline, self.question.accumulation_steps)

    @property
    def _is_compiled(self) -> bool:
        """True if torch.compile compiles the model."""
        return self.question.compiled or compiled_from(self.question.module) is not None

    @property
    def has_device(self) -> bool:
        """True if there is a device to estimate memory and time for."""
        return can_estimate_for(self.question.device)

    @once
    def _device(self) -> Device | None:
        if not self.has_device:
            return None
        return self._named(str(self.question.device))

    def _named(self, name: str | None) -> Device:
        """Return the device of a name (None for this machine's), with the requested context."""
        device = device_named(name)
        context = self.question.cuda_context_bytes
        require_float8(device, self.question.float8)
        if context is None:
            return device
        return replace(device, known_cuda_context_bytes=context)

    @property
    def _gpu(self) -> Device | None:
        """The device, or an error if torch's allocator does not manage its memory."""
        if self._device is not None and not self._device.has_allocator:
            raise InputError(
                f"{self._device.name} is not a CUDA device, so its memory cannot be estimated: "
                "leave out ",
                Argument("device"),
            )
        return self._device

    @once
    def _step(self) -> RecordedPass:
        if self._device is not None:
            return self._step_for(kernels_of(self._device))
        return self._step_for(KernelDevice("cuda" if is_on_cuda(self.question.module) else "cpu"))

    @property
    def _step_on_target(self) -> RecordedPass:
        return self._step_for(kernels_of(self._target))

    def _telling(self, how: str = "") -> AbstractContextManager[None]:
        return progress(
            f"torchscan: {type(self.question.module).__name__}{how}",
            is_shown=self.question.progress,
        )

    def _step_for(self, kernels: KernelDevice) -> RecordedPass:
        """Return the pass for these kernels, which devices with the same kernels share."""
        if kernels not in self._steps:
            with self._telling(", operator by operator"):
                request = self.question.decomposed_pass(kernels, self._change)
                trace, direct_request = record_step(request)
                self._steps[kernels] = RecordedPass(
                    trace, direct_request, compiled=self._is_compiled
                )
        return self._steps[kernels]
