"""Verbs that estimate whether a pass fits on a device, and how long it takes there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from torch import nn

from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.errors import TorchscanError
from torchscan.notes import Note
from torchscan.question import asking
from torchscan.recording.arguments import StepArguments
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.scan import Scan
from torchscan.size_search import SizeSearch


@asking
def estimate_memory(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    largest_batch: bool = False,
    longest_sequence: bool = False,
    **asked: Unpack[StepArguments],
) -> MemoryEstimate:
    """Estimate the peak memory of a pass: its size, its layer, and what it consists of.

    Only shapes are computed. With a ``device``, the result also has the verdict whether the pass
    fits there. Without one, kernels are those of the device that the model is on.

    Args:
        largest_batch: also find the largest batch that fits, by recording the pass at 3 to 25 other
            batch sizes.
        longest_sequence: also find the most tokens of a sequence that fit, by recording the pass at
            as many other lengths.
    """
    scan = Scan(module, input_shape, dtype, **asked)
    return memory_of(scan, largest_batch=largest_batch, longest_sequence=longest_sequence)


def memory_of(
    scan: Scan, *, largest_batch: bool = False, longest_sequence: bool = False
) -> MemoryEstimate:
    """Return the estimate of a scan, with the requested largest sizes.

    They are missing for a model that fails at other sizes.
    """
    estimate = scan.memory
    if largest_batch:
        names = ("largest_batch_size", "safe_batch_size")
        estimate = _with_largest(
            estimate,
            scan.batch_search(),
            names,
            lambda error: Note.of("no-largest-batch", error=error),
        )
    if longest_sequence:
        names = ("longest_sequence", "safe_sequence")
        estimate = _with_largest(
            estimate,
            scan.length_search(),
            names,
            lambda error: Note.of("no-longest-sequence", error=error),
        )
    return estimate


def _with_largest(
    estimate: MemoryEstimate,
    search: SizeSearch,
    names: tuple[str, str],
    note_of: Callable[[str], Note],
) -> MemoryEstimate:
    try:
        sizes = search.largest(), search.largest_within_margin()
    except TorchscanError as error:
        note = note_of(str(error).splitlines()[0])
        return replace(estimate, assumptions=(*estimate.assumptions, note))
    assert estimate.verdict is not None  # noqa: S101 - a search without a device raises
    found: dict[str, Any] = dict(zip(names, sizes, strict=True))
    return replace(estimate, verdict=replace(estimate.verdict, **found))


@asking
def analyze_roofline(
    module: nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    **asked: Unpack[StepArguments],
) -> Roofline:
    """Estimate the time of a pass on a device, and what limits each operator.

    Only shapes are computed. By default, the device is this machine's; :func:`register_device` adds
    others.
    """
    return Scan(module, input_shape, dtype, **asked).roofline
