"""The memory and time of a question's pass on a device, estimated from decomposed passes."""

from __future__ import annotations

from dataclasses import replace

from torchscan.analyses.accumulated_steps import repeat_passes
from torchscan.analyses.host_transfers import add_transfers
from torchscan.analyses.memory_estimate import OUTPUT_DROPPED, MemoryEstimate, estimate_of
from torchscan.analyses.roofline import (
    Fabric,
    Rates,
    Roofline,
    numbers_of,
    require_float8,
    require_format,
    roofline_of,
)
from torchscan.errors import Argument, Give, InputError
from torchscan.hardware.device_specs import Device, can_estimate_for, device_named
from torchscan.once import once
from torchscan.pass_changes import Change
from torchscan.precisions import checked_precision
from torchscan.question import KernelDevice, Question
from torchscan.recorded_pass import RecordedPass, find_overflow, kernels_of
from torchscan.recording.bookkeeping.inventory import is_on_cuda
from torchscan.recording.passes import record_step
from torchscan.recording.training.float8 import required_multiple
from torchscan.size_search import SizeSearch, batches, lengths
from torchscan.torch_versions import compiled_from

_A_DEVICE = (Give("device", "NVIDIA H200"), ", for example")


class DeviceEstimates:
    """The estimates of one question, each computed once.

    Passes are recorded when an estimate needs them, one for each kind of kernels.
    """

    def __init__(self, question: Question, change: Change | None = None) -> None:
        """``change``: its effects on the pass, besides those on the question."""
        self.question = question
        self._change = change
        self._steps: dict[KernelDevice, RecordedPass] = {}

    def with_change(self, change: Change) -> DeviceEstimates:
        """Return the estimates with a change."""
        return DeviceEstimates(replace(self.question, **change.arguments), change)

    @property
    def label(self) -> str:
        """The question in a line."""
        question = self.question
        parts = ["no device" if self.device is None else self.device.name]
        parts.append(question.precision or "the model's own precision")
        if question.input_shape is not None:
            parts.append(f"batch size {question.batch_size}")
        if question.training:
            parts.append("a training step")
        return ", ".join(parts)

    # -- devices -----------------------------------------------------------------------------------

    @property
    def has_device(self) -> bool:
        """True if there is a device to estimate memory and time for."""
        return can_estimate_for(self.question.device)

    @once
    def device(self) -> Device | None:
        """The requested device, or None."""
        if not self.has_device:
            return None
        return self._named(str(self.question.device))

    @once
    def target(self) -> Device:
        """The requested device, or this machine's."""
        return self.device or self._named(self.question.device)

    @property
    def gpu(self) -> Device | None:
        """The requested device, or an error if torch's allocator does not manage its memory."""
        if self.device is not None and not self.device.has_allocator:
            raise InputError(
                f"{self.device.name} is not a CUDA device, so its memory cannot be estimated: "
                "leave out ",
                Argument("device"),
            )
        return self.device

    def require_gpu(self, what: str) -> Device:
        """Return the device, or raise if there is none, or if this pass needs data."""
        if self.gpu is None:
            raise InputError(f"{what} depends on the device: give ", _A_DEVICE)
        if self.step.trace.provenance.execution != "abstract":
            raise InputError(
                f"{what} is found on shapes alone, and this pass needs data: give a model whose "
                "pass needs none"
            )
        return self.gpu

    def _named(self, name: str | None) -> Device:
        """Return the device of a name (None for this machine's), with the requested context."""
        device = device_named(name)
        context = self.question.cuda_context_bytes
        require_float8(device, self.question.float8)
        if context is None:
            return device
        return replace(device, known_cuda_context_bytes=context)

    # -- passes ------------------------------------------------------------------------------------

    @once
    def step(self) -> RecordedPass:
        """The pass for the requested device, or for the one that has the model."""
        if self.device is not None:
            return self.step_for(kernels_of(self.device))
        return self.step_for(KernelDevice("cuda" if is_on_cuda(self.question.module) else "cpu"))

    @property
    def step_on_target(self) -> RecordedPass:
        """The pass for the target."""
        return self.step_for(kernels_of(self.target))

    def step_for(self, kernels: KernelDevice) -> RecordedPass:
        """Return the pass for these kernels, which devices with the same kernels share."""
        if kernels not in self._steps:
            with self.question.show_progress(", operator by operator"):
                request = self.question.decomposed_pass(kernels, self._change)
                trace, direct_request = record_step(request)
                self._steps[kernels] = RecordedPass(
                    trace, direct_request, compiled=self.is_compiled
                )
        return self._steps[kernels]

    @property
    def is_compiled(self) -> bool:
        """True if torch.compile compiles the model."""
        return self.question.compiled or compiled_from(self.question.module) is not None

    # -- estimates ---------------------------------------------------------------------------------

    @once
    def memory(self) -> MemoryEstimate:
        """Peak memory of the pass, where it occurs, and whether it fits on the device."""
        if checked_precision(self.question.precision) in ("fp8", "fp8-mixed"):
            raise InputError(
                "memory is not estimated for fp8, whose weights can be stored in many ways: give ",
                *("another ", Argument("precision"), ", such as 'bf16'"),
            )
        if self.gpu is None and self.question.cuda_context is not None:
            raise InputError(Argument("cuda_context"), " needs a device: give ", _A_DEVICE)
        verdict = None if self.gpu is None else self.step.on(self.gpu).verdict()
        estimate = estimate_of(self.step.trace, self.step.timeline, verdict)
        if not self.step.request.drops_output:
            return estimate
        return replace(estimate, assumptions=(OUTPUT_DROPPED, *estimate.assumptions))

    @once
    def roofline(self) -> Roofline:
        """The expected time on the target, and the limit of each operator."""
        return self.roofline_of(self.step_on_target)

    def roofline_of(self, step: RecordedPass, fabric: Fabric | None = None) -> Roofline:
        """Return the roofline of a pass, with the time that links of several devices take."""
        device = self.target
        precision = checked_precision(self.question.precision)
        rates = Rates(device)
        require_format(device, precision)
        roofline = roofline_of(
            step.trace,
            rates,
            precision=precision,
            numbers=numbers_of(device, precision),
            compiled=self.is_compiled,
            warnings=find_overflow(step, device),
            fabric=fabric,
        )
        roofline = add_transfers(roofline, step.trace, device)
        return repeat_passes(roofline, self.question.accumulation_steps)

    def batch_search(self) -> SizeSearch:
        """Return the search for the largest batch, or raise if this question allows none."""
        if self.gpu is not None and self.question.input_shape is None:
            raise InputError(
                "the largest batch needs inputs made from shapes: give ",
                Give("input_shape"),
                " instead of complete arguments",
            )
        gpu = self.require_gpu("the largest batch")
        sizes = batches(self.step.request, self._required_multiple)
        return SizeSearch(sizes, gpu, self.step.on(gpu))

    def length_search(self) -> SizeSearch:
        """Return the search for the longest sequence, or raise if this question allows none."""
        gpu = self.require_gpu("the longest sequence")
        sizes = lengths(self.step.request, self._required_multiple)
        return SizeSearch(sizes, gpu, self.step.on(gpu))

    @property
    def _required_multiple(self) -> int:
        """The number that rows of products must be a multiple of."""
        recipe = self.question.float8
        return 1 if recipe is None else required_multiple(recipe)
