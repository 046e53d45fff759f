"""The comparison of ways to checkpoint the layers of a model, on a device."""

from __future__ import annotations

from dataclasses import replace

from torchscan.analyses.checkpoint_curve import CheckpointCurve
from torchscan.checkpointing import CheckpointComparison, CheckpointEstimate
from torchscan.device_estimates import DeviceEstimates
from torchscan.errors import Give, InputError
from torchscan.question import Question
from torchscan.recorded_pass import RecordedPass
from torchscan.recording.state import original_of
from torchscan.recording.training.recipe import checkpointed_paths
from torchscan.torch_versions import SHOWS_SAVED_TENSOR_HOOKS
from torchscan.trace.trace import Trace
from torchscan.units import bytes_of


def compare_checkpoints(
    estimates: DeviceEstimates, max_memory: int | str | None = None
) -> CheckpointCurve:
    """Return the memory and time of a training step over ways to checkpoint its layers.

    See :meth:`torchscan.Scan.checkpointing`.
    """
    question = estimates.question
    _require_comparable(question)
    device = estimates.require_gpu("the time of what is computed again")
    limit = None
    if max_memory is not None:
        limit = bytes_of("max_memory", max_memory)
        limited = min(device.memory_bytes, device.cuda_context_bytes + limit)
        device = replace(device, memory_bytes=limited)
    without = DeviceEstimates(replace(question, checkpoint=False))
    full = DeviceEstimates(replace(question, checkpoint=True))
    layers = checkpointed_paths(original_of(question.module))

    def estimate(recorded: Trace) -> CheckpointEstimate:
        step = RecordedPass(recorded, without.step.request, compiled=estimates.is_compiled)
        verdict = step.on(device).verdict()
        peak, roofline = max(step.timeline.totals), estimates.roofline_of(step)
        return CheckpointEstimate(peak, verdict.reserved_bytes, verdict.fits, roofline, step.trace)

    with estimates.question.show_progress(", over checkpoints"):
        usual = estimate(without.step.recorded)
        recorded, room = full.step.recorded, device.room_bytes
        comparison = CheckpointComparison(usual, recorded, layers, estimate, room)
        choices = comparison.choices()
    return CheckpointCurve(
        device=device.name,
        question=estimates.label,
        num_layers=len(layers),
        max_memory=limit,
        limit=device.room_bytes,
        choices=choices,
        error_margin=usual.roofline.error_margin,
        assumptions=usual.roofline.assumptions,
    )


def _require_comparable(question: Question) -> None:
    """Raise an InputError if the question has no checkpoints to compare, or torch hides them."""
    if not question.training:
        training = Give("training", True)
        raise InputError("checkpoints belong to a training step: give ", training)
    if not SHOWS_SAVED_TENSOR_HOOKS:
        raise InputError(
            "torch 2.6 does not report what checkpoints save: use torch 2.7 or later, or compare "
            "single checkpoints with the argument checkpoint"
        )
