"""How far times that were measured lie from estimates like this one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from torchscan.analyses.roofline.rates import Format
from torchscan.hardware.devices import Device

Mode = Literal["eager", "compiled", "training"]
#: what most time goes into, of all that has products
Kind = Literal["convolutions", "matrices"]


class Spread(NamedTuple):
    """Four of five measured times are expected within the estimate times 1 ± ``share``."""

    share: float
    #: what that rests on
    reason: str


class Compared(NamedTuple):
    """Image models in mixed precision, contiguous, whose measured times estimates were compared with."""

    card: str
    mode: Mode
    kind: Kind
    models: int
    #: four of five measured times lay within the estimate times 1 ± this, rounded up
    share: float


#: as docs/how-true.md has them, which ``scripts/benchmark --truth`` writes
COMPARED = (
    Compared("NVIDIA GeForce RTX 3090", "eager", "convolutions", 970, 0.07),
    Compared("NVIDIA GeForce RTX 3090", "eager", "matrices", 473, 0.07),
    Compared("NVIDIA GeForce RTX 4090", "eager", "convolutions", 974, 0.07),
    Compared("NVIDIA GeForce RTX 4090", "eager", "matrices", 470, 0.10),
    Compared("NVIDIA GeForce RTX 4090", "compiled", "convolutions", 967, 0.19),
    Compared("NVIDIA GeForce RTX 4090", "compiled", "matrices", 476, 0.13),
    Compared("NVIDIA GeForce RTX 3090", "training", "convolutions", 264, 0.19),
    Compared("NVIDIA GeForce RTX 3090", "training", "matrices", 125, 0.13),
)
#: on a card of NVIDIA's that was not compared, and in other number formats
ELSEWHERE = 0.25
#: on devices of other kinds
UNKNOWN = 0.5
#: of launches, which the host decides
LAUNCHES = 0.5

_NOUNS = {"eager": "eager passes", "compiled": "compiled passes", "training": "training steps"}


def spread_of(device: Device, mode: Mode, kind: Kind, formats: Collection[Format], launched: float) -> Spread:
    """The spread of a pass that computes in these formats and waits for launches for a share ``launched`` of its time."""
    share, reason = _of_kernels(device, mode, kind, formats)
    if launched < 0.05:
        return Spread(share, reason)
    mixed = (1 - launched) * share + launched * max(share, LAUNCHES)
    return Spread(mixed, f"{reason}; {100 * launched:.0f} % of the time is launches, which depend on the host")


def _of_kernels(device: Device, mode: Mode, kind: Kind, formats: Collection[Format]) -> tuple[float, str]:
    same = next((each for each in COMPARED if each[:3] == (device.name, mode, kind)), None)
    is_half = not formats or bool({"fp16", "bf16"}.intersection(formats))
    if same and is_half:
        which = f"{_NOUNS[mode]} of image models, mostly {kind}, measured on this card"
        return same.share, f"four of five of {same.models:,} {which} lay within it"
    if device.vendor == "NVIDIA":
        where = "on this card" if is_half else "in this number format"
        return ELSEWHERE, f"a guess: none of the {_NOUNS[mode]} that were compared was {where}"
    return UNKNOWN, "a guess: nothing on such a device was compared"
