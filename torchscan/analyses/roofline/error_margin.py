"""The error margin of an estimated time: how far measured times lie from estimates like it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torchscan.hardware.device_specs import Device
from torchscan.notes import Note
from torchscan.plain import to_plain

Mode = Literal["eager", "compiled", "training", "compiled training"]
#: what most time goes into, of all that has products
Kind = Literal["convolutions", "matrices"]


class ErrorMargin(NamedTuple):
    """Four of five measured times are expected within the estimate times 1 ± ``share``."""

    #: margin as a share of the estimate
    share: float
    #: evidence for the margin
    reason: Note

    @property
    def label(self) -> str:
        """The share and the reason as text."""
        return f"± {100 * self.share:.0f} %, {self.reason}"


class Passed(NamedTuple):
    """The properties of a pass that its error margin depends on."""

    mode: Mode
    #: None: it has no convolutions, as all models have that were compared
    kind: Kind | None
    #: of the time of products, the share in 16 bits
    in_half: float
    #: of all time, the share that waits for launches
    launched: float
    #: of the time of products, the share in 8 bits
    in_eight: float = 0.0
    #: True if it has fused attention, as language models have
    has_attention: bool = False


class Compared(NamedTuple):
    """Contiguous image models in mixed precision, whose estimates were compared with times."""

    gpu: str
    mode: Mode
    kind: Kind
    models: int
    #: four of five measured times lay within the estimate times 1 ± this, of all and of those held
    #: out, rounded up
    share: float


#: as docs/accuracy.md has them, which ``scripts/benchmark --truth`` writes
COMPARED = (
    Compared("NVIDIA GeForce RTX 3090", "eager", "convolutions", 968, 0.06),
    Compared("NVIDIA GeForce RTX 3090", "eager", "matrices", 475, 0.07),
    Compared("NVIDIA GeForce RTX 4090", "eager", "convolutions", 980, 0.07),
    Compared("NVIDIA GeForce RTX 4090", "eager", "matrices", 464, 0.07),
    Compared("NVIDIA GeForce RTX 4090", "compiled", "convolutions", 965, 0.16),
    Compared("NVIDIA GeForce RTX 4090", "compiled", "matrices", 478, 0.15),
    Compared("NVIDIA GeForce RTX 3090", "training", "convolutions", 264, 0.16),
    Compared("NVIDIA GeForce RTX 3090", "training", "matrices", 125, 0.19),
)


class Trained(NamedTuple):
    """Published training steps of language models, on one GPU and on meshes."""

    #: True if linear layers compute in 8 bits
    is_float8: bool
    #: architectures of GPUs
    archs: tuple[str, ...]
    sources: int
    steps: int
    #: contains four of five steps of each source
    share: float


#: as ``scripts/truth_training.py --margins`` derives them
TRAINED = (
    Trained(False, ("Ampere GA100", "Hopper"), 4, 71, 0.11),
    Trained(True, ("Hopper",), 2, 18, 0.24),
)
#: on a card of NVIDIA's that was not compared, in other number formats, and of models without
#: convolutions: as far as others have found earlier versions to be off in the median where they
#: were worst
ELSEWHERE = 0.4
#: on devices of other kinds
UNKNOWN = 0.5
#: of launches, which the host decides
LAUNCHES = 0.5


def error_margin_of(device: Device, passed: Passed) -> ErrorMargin:
    """Return the error margin of a pass on a device."""
    of_kernels = _margin_of_training(device, passed) or _margin_of_kernels(device, passed)
    if passed.launched < 0.05:
        return of_kernels
    share, reason = of_kernels
    mixed = (1 - passed.launched) * share + passed.launched * max(share, LAUNCHES)
    launches = Note.of(
        "launches-not-validated",
        launched=passed.launched,
        launch_margin=LAUNCHES,
        kernel_margin=share,
        kernels=to_plain(reason),
    )
    return ErrorMargin(mixed, launches)


def _margin_of_kernels(device: Device, passed: Passed) -> ErrorMargin:
    of_mode = [each for each in COMPARED if (each.gpu, each.mode) == (device.name, passed.mode)]
    known = next((each for each in of_mode if each.kind == passed.kind), None)
    if known is not None and passed.in_half > 0.9:
        validated = Note.of("validated", models=known.models, kind=known.kind, mode=passed.mode)
        return ErrorMargin(known.share, validated)
    if device.vendor == "NVIDIA" or (not device.vendor and device.capability is not None):
        missing = "format"
        if not of_mode:
            missing = "device"
        elif passed.kind is None:
            missing = "convolutions"
        return ErrorMargin(ELSEWHERE, Note.of("not-validated", mode=passed.mode, missing=missing))
    return ErrorMargin(UNKNOWN, Note.of("device-kind-not-validated"))


def _margin_of_training(device: Device, passed: Passed) -> ErrorMargin | None:
    """Return the margin of the published training steps that a pass is like, or None."""
    is_training = passed.mode.endswith("training")
    is_narrow = passed.in_half + passed.in_eight > 0.9
    if not (is_training and is_narrow and passed.has_attention and passed.kind is None):
        return None
    is_float8 = passed.in_eight > 0.1
    for each in TRAINED:
        if each.is_float8 == is_float8 and device.arch.startswith(each.archs):
            bits = 8 if is_float8 else 16
            reason = Note.of(
                "training-validated", steps=each.steps, sources=each.sources, bits=bits
            )
            return ErrorMargin(each.share, reason)
    return None
