"""The one or two records that a question takes, and every answer, computed once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Literal, Unpack

import torch
from torch import nn

from torchscan.analyses.accumulated_steps import repeat_passes
from torchscan.analyses.checkpoint_curve import CheckpointCurve
from torchscan.analyses.conventions import Convention
from torchscan.analyses.host_transfers import add_transfers
from torchscan.analyses.last_batch import last_batch
from torchscan.analyses.memory_estimate import OUTPUT_DROPPED, MemoryEstimate, estimate_of
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
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
from torchscan.errors import Argument, Give, InputError, warn_user
from torchscan.escapes import printable
from torchscan.hardware.device_specs import Device, can_estimate_for, device_named
from torchscan.hardware.process_memory import NO_OVERHEAD, Overhead, cuda_overhead
from torchscan.notes import Note
from torchscan.once import once
from torchscan.ops import OpCost
from torchscan.precisions import checked_precision
from torchscan.progress import progress
from torchscan.question import KernelDevice, Question, asking
from torchscan.recording.arguments import ScanArguments
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.passes import record_pass, record_step
from torchscan.recording.request import PassRequest
from torchscan.recording.state import original_of
from torchscan.recording.training.float8 import required_multiple
from torchscan.recording.training.recipe import checkpointed_paths
from torchscan.report.info import Info
from torchscan.report.info_content import info_of
from torchscan.size_search import SizeSearch, batches, lengths
from torchscan.suggestions import Answer, Change, Situation, for_memory, for_time, suggestions_of
from torchscan.torch_versions import compiled_from
from torchscan.trace.events import Phase
from torchscan.trace.trace import Trace
from torchscan.units import bytes_of, share

_A_DEVICE = (Give("device", "NVIDIA H200"), ", for example")


class Scan:
    """One question about a model: which pass, on which inputs, on which device. Nothing is recorded until an answer needs it.

    ``trace`` (operators whole) and ``steps`` (operators in pieces, as a device runs them) are the records; every answer is
    read from one of them and worked out once: ask before you change the model, or make another scan.
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
        """The scan of an existing question, with what a change does beyond its arguments."""
        scan = cls.__new__(cls)
        scan._ask(question, change)
        return scan

    def _ask(self, question: Question, change: Change | None = None) -> None:
        self.question = question
        self._change = change
        self._steps: dict[KernelDevice, _RecordedPass] = {}

    def __repr__(self) -> str:
        """A short one: which pass of which model."""
        what = "training step" if self.question.training else "inference"
        where = "" if self.question.device is None else f" on {self.question.device}"
        return f"<Scan of {printable(type(self.question.module).__name__)}: {what}{where}>"

    # -- records -----------------------------------------------------------------------------------------------------

    @once
    def trace(self) -> Trace:
        """The record with operators whole: the forward pass, and for a training step the backward pass."""
        return self._trace_and_overheads[0]

    @once
    def steps(self) -> Trace:
        """The record with operators in pieces, as the device runs them; for a training step with the optimizer's step."""
        return self._step.trace

    @once
    def without_formula(self) -> tuple[str, ...]:
        """The operators without a cost formula of ``trace``. If there are any, its costs are lower bounds."""
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

    # -- costs -------------------------------------------------------------------------------------------------------

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
        """The info dict, as described under :func:`torchscan.crawl_module`. ``times`` are those on the device."""
        trace, overheads = self._trace_and_overheads
        if strict:
            require_prices(trace, call_costs(trace))
        estimates = self.memory if memory else None, self.roofline if times else None
        return info_of(
            trace, convention, self.fields if receptive_field else None, overheads, *estimates
        )

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

    # -- memory and time ---------------------------------------------------------------------------------------------

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
        metric: SuggestionMetric = "peak_bytes" if self._gpu is None else "reserved_bytes"
        changes = for_memory(
            replace(self._situation(self._device, self._step), layers=self._step.timeline.layers)
        )
        return suggestions_of(metric, self._question_text, changes, self._memory_with)

    def _memory_with(self, change: Change) -> Answer:
        estimate = self._with(change).memory
        verdict = estimate.verdict
        return (
            Answer(estimate.peak_bytes)
            if verdict is None
            else Answer(verdict.reserved_bytes, fits=verdict.fits)
        )

    def _time_suggestions(self) -> Suggestions:
        changes = for_time(self._situation(self._target, self._step_for(_kernels_of(self._target))))
        return suggestions_of(
            "time_estimate",
            f"{self._question_text}{_limit(self._roofline)}",
            changes,
            self._time_with,
        )

    def _time_with(self, change: Change) -> Answer:
        scan = self._with(change)
        if change.is_of_batch and _overflow(
            scan._step_for(_kernels_of(self._target)), self._target
        ):
            raise InputError(f"twice as many samples do not fit on {self._target.name}")
        return Answer(scan._roofline.time_estimate, error_share=scan._roofline.error_margin.share)

    @property
    def _question_text(self) -> str:
        """The question in a line."""
        question = self.question
        device = "no device" if self._device is None else self._device.name
        said = [device, question.precision or "the model's own precision"]
        said += [f"batch size {question.batch_size}"] if question.input_shape is not None else []
        return ", ".join([*said, *(["a training step"] if question.training else [])])

    def _with(self, change: Change) -> Scan:
        return Scan.of(replace(self.question, **change.arguments), change)

    def _asker(self, ask: Callable[..., Answers]) -> Asker[Answers]:
        """Asks the question again, of the model as it is then; neither this scan nor the model is kept for it."""
        arguments = {
            each.name: getattr(self.question, each.name)
            for each in fields(Question)
            if each.name != "module"
        }
        return Asker(
            self.question.module,
            lambda module, *options: ask(Scan.of(Question(module=module, **arguments)), *options),
        )

    def _situation(self, device: Device | None, step: _RecordedPass) -> Situation:
        question, trace = self.question, step.trace
        can_change_batch = (
            question.input_shape is not None and trace.provenance.execution == "abstract"
        )
        return Situation(
            training=question.training,
            precision=checked_precision(question.precision),
            compiled=self._is_compiled,
            optimizer=question.optimizer,
            batch_size=question.batch_size if can_change_batch else None,
            on_gpu=is_on_cuda(question.module) if device is None else device.has_allocator,
            formats=frozenset(device.flops_per_second)
            if device is not None and device.flops_per_second
            else None,
            is_single=any(each.dtype is torch.float32 for each in question.module.parameters()),
            has_convolutions=any("convolution" in op.signature.operator for op in trace.ops),
        )

    def largest_batch(self) -> int:
        """The largest batch size that fits on the device, found by recording the pass at some 3 to 25 other sizes."""
        search = self.batch_search()
        with self._telling(", at other batch sizes"):
            return search.largest()

    def batch_search(self) -> SizeSearch:
        """The search, before it starts. Raises if this question allows none."""
        if self._gpu is not None and self.question.input_shape is None:
            raise InputError(
                "the largest batch needs inputs made from shapes: give ",
                Give("input_shape"),
                " instead of complete arguments",
            )
        card = self._card_for("the largest batch")
        return SizeSearch(
            batches(self._step.request, self._required_multiple), card, self._step.on(card)
        )

    def longest_sequence(self) -> int:
        """The most tokens of a sequence that fit on the device, found by recording the pass at some 3 to 25 other lengths."""
        search = self.length_search()
        with self._telling(", at other lengths"):
            return search.largest()

    def length_search(self) -> SizeSearch:
        """The search, before it starts. Raises if this question allows none."""
        card = self._card_for("the longest sequence")
        return SizeSearch(
            lengths(self._step.request, self._required_multiple), card, self._step.on(card)
        )

    @property
    def _required_multiple(self) -> int:
        """The number that rows of products must be a multiple of."""
        recipe = self.question.float8
        return 1 if recipe is None else required_multiple(recipe)

    def _card_for(self, what: str) -> Device:
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
        device = self._card_for("the time of what is computed again")
        limit = None if max_memory is None else bytes_of("max_memory", max_memory)
        if limit is not None:
            limited = min(device.memory_bytes, device.cuda_context_bytes + limit)
            device = replace(device, memory_bytes=limited)
        without, full = (
            Scan.of(replace(self.question, checkpoint=checkpoint)) for checkpoint in (False, True)
        )
        layers = checkpointed_paths(original_of(self.question.module))

        def estimate(recorded: Trace) -> CheckpointEstimate:
            step = _RecordedPass(recorded, without._step.request, compiled=self._is_compiled)
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
        for each in _overflow(self._step_for(_kernels_of(self._target)), self._target):
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
        return self._roofline_of_step(self._step_for(_kernels_of(self._target)), fabric)

    def _roofline_of_step(self, step: _RecordedPass, fabric: Fabric | None = None) -> Roofline:
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
            warnings=_overflow(step, device),
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
        return self._named(str(self.question.device)) if self.has_device else None

    def _named(self, name: str | None) -> Device:
        """The device of that name, None: this machine's, with the context that was given."""
        device, context = device_named(name), self.question.cuda_context_bytes
        require_float8(device, self.question.float8)
        return device if context is None else replace(device, known_cuda_context_bytes=context)

    @property
    def _gpu(self) -> Device | None:
        """The device. Raises if its memory is not managed by torch's allocator."""
        if self._device is not None and not self._device.has_allocator:
            raise InputError(
                f"{self._device.name} is not a CUDA device, so its memory cannot be estimated: "
                "leave out ",
                Argument("device"),
            )
        return self._device

    @once
    def _step(self) -> _RecordedPass:
        if self._device is not None:
            return self._step_for(_kernels_of(self._device))
        return self._step_for(KernelDevice("cuda" if is_on_cuda(self.question.module) else "cpu"))

    def _telling(self, how: str = "") -> AbstractContextManager[None]:
        return progress(
            f"torchscan: {type(self.question.module).__name__}{how}",
            is_shown=self.question.progress,
        )

    def _step_for(self, kernels: KernelDevice) -> _RecordedPass:
        """The step for these kernels; devices with the same kernels share a record."""
        if kernels not in self._steps:
            with self._telling(", operator by operator"):
                request = self.question.decomposed_pass(kernels, self._change)
                self._steps[kernels] = _RecordedPass(
                    *record_step(request), compiled=self._is_compiled
                )
        return self._steps[kernels]


class _RecordedPass:
    """A pass recorded in pieces, and what memory and time both read from it."""

    def __init__(self, recorded: Trace, request: PassRequest, *, compiled: bool) -> None:
        #: with all batches of a step
        self.recorded, self.request = recorded, request
        self.trace = last_batch(recorded)
        self.timeline = MemoryTimeline(self.trace, compiled=compiled)
        self._placements: dict[tuple[str, int], Placement] = {}

    def on(self, device: Device) -> Placement:
        """The blocks of memory, placed on a device in the order of all batches."""
        key = device.name, device.memory_bytes
        if key not in self._placements:
            timeline = self.timeline
            if self.recorded is not self.trace:
                timeline = MemoryTimeline(self.recorded, compiled=self.timeline.compiled)
            self._placements[key] = Placement(self.recorded, timeline, device)
        return self._placements[key]


def _is_gpu(device: Device) -> bool:
    return device.vendor != "CPU"


def _kernels_of(device: Device) -> KernelDevice:
    return KernelDevice("cuda" if _is_gpu(device) else "cpu", device.has_flash)


def _limit(roofline: Roofline) -> str:
    """Return the resource that limits most of the time."""
    most = [(limiter, time) for limiter, time in roofline.time_by_limiter.items() if time][:1]
    return "".join(
        f"; limited by {limiter} ({share(time / roofline.time_estimate)} of the time)"
        for limiter, time in most
    )


def _overflow(step: _RecordedPass, device: Device) -> list[Note]:
    """Return a warning if a pass needs more memory than the device has."""
    if device.has_allocator:
        verdict = step.on(device).verdict()
        needed, fits = verdict.reserved_bytes + verdict.cuda_context_bytes, verdict.fits
    else:
        needed = max((moment.total for moment in step.timeline.moments), default=0)
        fits = needed <= device.memory_bytes
    if fits:
        return []
    available = device.memory_bytes
    return [Note.of("device-too-small", device=device.name, needed=needed, available=available)]
