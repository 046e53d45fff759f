"""Expected times of the calls of a real step, from a roofline, and the MFU of the step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchscan.analyses.roofline import Roofline
from torchscan.trace.events import Phase


class ExpectedTimes(NamedTuple):
    """Seconds that a call should take, with everything in it."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected time of a step by the roofline of its device."""

    device: str
    #: seconds of the forward pass
    forward: float
    #: seconds of the backward pass
    backward: float
    #: error margin, as a share
    error_share: float
    #: operations of the step's products, two per multiply-accumulate
    operations: int
    #: seconds that these products take at the device's dense peaks
    at_peak: float
    #: dense peaks of their formats, in FLOP/s
    peaks: dict[str, float]


def expected_of(roofline: Roofline) -> Expected:
    """Return the expected time of a complete step."""
    macs: Counter[str] = Counter()
    for load in roofline.operators:
        macs[load.precision] += load.macs
    peaks = {
        name: roofline.peak_flops[name]
        for name, number in macs.items()
        if number and name in roofline.peak_flops
    }
    return Expected(
        device=roofline.device,
        forward=roofline.time_by_phase.get("forward", 0.0),
        backward=roofline.time_by_phase.get("backward", 0.0),
        error_share=roofline.error_margin.share,
        operations=2 * macs.total(),
        at_peak=sum(2 * macs[name] / peak for name, peak in peaks.items()),
        peaks=peaks,
    )


def expected_times(
    roofline: Roofline, paths: Sequence[str], parents: Sequence[int | None]
) -> list[ExpectedTimes]:
    """Return the expected times of each call. Calls of one module share its time equally."""
    own: dict[tuple[str, Phase], float] = defaultdict(float)
    for load in roofline.operators:
        own[load.layer, load.phase] += load.time_estimate
    number = Counter(paths)
    forward, backward = (
        [own[path, phase] / number[path] for path in paths] for phase in ("forward", "backward")
    )
    for index in range(len(paths) - 1, -1, -1):
        parent = parents[index]
        if parent is not None:
            forward[parent] += forward[index]
            backward[parent] += backward[index]
    return list(map(ExpectedTimes, forward, backward))
