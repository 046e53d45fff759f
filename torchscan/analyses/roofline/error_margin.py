"""The error margin of an estimated time: how far measured times lie from estimates like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from torchscan.hardware.device_specs import Device

Mode = Literal["eager", "compiled", "training", "compiled training"]
#: what most time goes into, of all that has products
Kind = Literal["convolutions", "matrices"]


class ErrorMargin(NamedTuple):
    """Four of five measured times are expected within the estimate times 1 ± ``share``."""

    share: float
    #: what that rests on
    reason: str

    @property
    def label(self) -> str:
        """The margin as text."""
        return f"± {100 * self.share:.0f} %: {self.reason}"


class Passed(NamedTuple):
    """The properties of a pass that its error margin depends on."""

    mode: Mode
    #: None: it has no convolutions, as all models have that were compared
    kind: Kind | None
    #: of the time of products, the share in 16 bits
    in_half: float
    #: of all time, the share that waits for launches
    launched: float


class Compared(NamedTuple):
    """Image models in mixed precision, contiguous, whose measured times estimates were compared with."""

    gpu: str
    mode: Mode
    kind: Kind
    models: int
    #: four of five measured times lay within the estimate times 1 ± this, of all and of those held out, rounded up
    share: float


#: as docs/accuracy.md has them, which ``scripts/benchmark --truth`` writes
COMPARED = (
    Compared("NVIDIA GeForce RTX 3090", "eager", "convolutions", 970, 0.07),
    Compared("NVIDIA GeForce RTX 3090", "eager", "matrices", 473, 0.07),
    Compared("NVIDIA GeForce RTX 4090", "eager", "convolutions", 974, 0.07),
    Compared("NVIDIA GeForce RTX 4090", "eager", "matrices", 470, 0.10),
    Compared("NVIDIA GeForce RTX 4090", "compiled", "convolutions", 970, 0.17),
    Compared("NVIDIA GeForce RTX 4090", "compiled", "matrices", 473, 0.14),
    Compared("NVIDIA GeForce RTX 3090", "training", "convolutions", 264, 0.19),
    Compared("NVIDIA GeForce RTX 3090", "training", "matrices", 125, 0.19),
)
#: on a card of NVIDIA's that was not compared, in other number formats, and of models without convolutions: as far as others
#: have found earlier versions to be off in the median where they were worst
ELSEWHERE = 0.4
#: on devices of other kinds
UNKNOWN = 0.5
#: of launches, which the host decides
LAUNCHES = 0.5


_NOUNS: Mapping[Mode, str] = {
    "eager": "eager pass",
    "compiled": "compiled pass",
    "training": "training step",
    "compiled training": "compiled training step",
}


def error_margin_of(device: Device, passed: Passed) -> ErrorMargin:
    """Return the error margin of a pass on a device."""
    share, reason = _of_kernels(device, passed)
    if passed.launched < 0.05:
        return ErrorMargin(share, reason)
    mixed = (1 - passed.launched) * share + passed.launched * max(share, LAUNCHES)
    margin = f"± {100 * LAUNCHES:.0f} %"
    launches = f"launches take {100 * passed.launched:.0f} % of the time ({margin})"
    guess = reason.removeprefix("a guess: ")
    why = f": {guess}" if guess != reason else ", as measured"
    return ErrorMargin(mixed, f"a guess: {launches}, kernels are ± {100 * share:.0f} %{why}")


def _of_kernels(device: Device, passed: Passed) -> tuple[float, str]:
    of_mode = [each for each in COMPARED if (each.gpu, each.mode) == (device.name, passed.mode)]
    known = next((each for each in of_mode if each.kind == passed.kind), None)
    if known is not None and passed.in_half > 0.9:
        which = f"{known.models:,} image models in mixed precision, mostly {passed.kind}"
        measured = f"each with a measured {_NOUNS[passed.mode]} on this card"
        return known.share, f"four of five of {which}, {measured}, lay within it"
    if device.vendor == "NVIDIA" or (not device.vendor and device.capability is not None):
        return (
            ELSEWHERE,
            f"a guess: no {_NOUNS[passed.mode]} {_where(passed, of_mode)} was compared with a measured one",
        )
    return UNKNOWN, "a guess: no time on a device of this kind was compared with a measured one"


def _where(passed: Passed, of_mode: list[Compared]) -> str:
    if not of_mode:
        return "on this card"
    return "without convolutions" if passed.kind is None else "in this number format"
