"""Changes of a pass that may save time or memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from torchscan.analyses.memory_timeline import LayerMemory
from torchscan.analyses.parameters import enclosing_modules
from torchscan.errors import TorchscanError
from torchscan.notes import Note
from torchscan.recording.training.optimizers import OptimizerChoice, fused

#: how many times as many samples larger batches have: the most that fit and help
_LARGER = (4, 2)
#: from the outermost blocks inwards, how often to try
_LEVELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The pass as it is, as far as it decides what to try."""

    training: bool
    precision: str | None
    compiled: bool
    optimizer: OptimizerChoice | None
    #: None: it cannot be chosen, or the pass needs data
    batch_size: int | None
    on_gpu: bool
    #: the formats that the device has rates for; None: not known
    formats: frozenset[str] | None
    has_convolutions: bool
    #: whether weights are in single precision
    is_single: bool
    layers: Sequence[LayerMemory] = ()

    @property
    def half(self) -> Literal["bf16", "fp16"]:
        """The type of 16 bits that the device is made for."""
        return "bf16" if self.formats is None or "bf16" in self.formats else "fp16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something to try. Of several by one name, the best is taken."""

    name: str
    #: what to write; None for the pass as it is
    how: Note | None
    #: arguments of the question that are others
    arguments: Mapping[str, Any] = field(default_factory=dict)
    channels_last: bool = False
    #: paths of modules
    checkpointed: tuple[str, ...] = ()
    #: how many times as many samples one pass has
    samples: int = 1

    @property
    def is_of_batch(self) -> bool:
        """True if the change sets another batch size."""
        return "batch_size" in self.arguments


def for_time(passed: Situation) -> Iterator[Change]:
    """Yield changes that may save time."""
    if not passed.compiled and passed.on_gpu:
        yield Change(name="compile", how=Note.of("compile"), arguments={"compiled": True})
    yield from _precisions(passed)
    has_tf32 = passed.formats is not None and "tf32" in passed.formats
    if has_tf32 and passed.is_single and passed.precision in (None, "fp32"):
        how = Note.of("tf32")
        yield Change(name="products in tf32", how=how, arguments={"precision": "tf32"})
    if passed.on_gpu and passed.has_convolutions:
        yield Change(name="channels last", how=Note.of("channels-last"), channels_last=True)
    if passed.batch_size is not None:
        for times in _LARGER:
            batch = times * passed.batch_size
            how = Note.of("larger-batch", batch_size=batch, time_of=passed.batch_size)
            arguments = {"batch_size": batch}
            yield Change(name="larger batches", how=how, arguments=arguments, samples=times)
    yield from _fused(passed)


def for_memory(passed: Situation) -> Iterator[Change]:
    """Yield changes that may save memory."""
    if passed.training:
        for blocks in block_choices(passed.layers):
            how = Note.of("checkpoint", modules=list(blocks))
            yield Change(name="checkpoints", how=how, checkpointed=blocks)
    yield from _precisions(passed)
    yield from _fused(passed)
    if passed.batch_size is not None and passed.batch_size > 1:
        half = passed.batch_size // 2
        how = Note.of("smaller-batch", batch_size=half)
        arguments: dict[str, Any] = {"batch_size": half}
        if passed.training:
            how = Note.of("smaller-batch-accumulated", batch_size=half)
            arguments["accumulate"] = True
        yield Change(name="smaller batches", how=how, arguments=arguments)


def block_choices(layers: Sequence[LayerMemory]) -> Iterator[tuple[str, ...]]:
    """Yield the modules that stand beside others of their type, and contain some, level by level.

    The outermost come first, then those inside of them.
    """
    outside: tuple[str, ...] = ()
    for _ in range(_LEVELS):
        inner = _blocks_in(layers, outside)
        if not inner:
            return
        yield inner
        outside = inner


def _blocks_in(layers: Sequence[LayerMemory], outside: tuple[str, ...]) -> tuple[str, ...]:
    """Return the next blocks inside of these; () stands for the model."""
    containing = {around for layer in layers for around in enclosing_modules(layer.path)}
    siblings: dict[tuple[str, str], list[str]] = {}
    for layer in sorted(layers, key=lambda each: each.depth):
        if layer.path not in containing or not layer.activation_bytes:
            continue
        if outside and not _is_within(layer.path, outside):
            continue
        parent, _, _ = layer.path.rpartition(".")
        siblings.setdefault((parent, layer.type_name), []).append(layer.path)
    chosen: list[str] = []
    for paths in siblings.values():
        if len(paths) > 1 and not _is_within(paths[0], chosen):
            chosen += paths
    return tuple(chosen)


def _is_within(path: str, outside: Iterable[str]) -> bool:
    return any(path.startswith(f"{each}.") for each in outside)


_HALF = {"bf16": ("bfloat16", "bfloat16"), "fp16": ("half precision", "float16")}


def _precisions(passed: Situation) -> Iterator[Change]:
    """Yield formats of 16 bits, if the pass has wider ones; conversion is for inference only."""
    if passed.precision is None and not passed.is_single:
        return
    name, dtype = _HALF[passed.half]
    is_whole = passed.precision in (None, "fp32", "tf32")
    if is_whole:
        how = Note.of("autocast", dtype=dtype)
        mixed = {"precision": f"{passed.half}-mixed"}
        yield Change(name=f"{name} by autocast", how=how, arguments=mixed)
    if not passed.training and (is_whole or passed.precision in ("fp16-mixed", "bf16-mixed")):
        how = Note.of("convert", dtype=dtype)
        yield Change(name=name, how=how, arguments={"precision": passed.half})


def _fused(passed: Situation) -> Iterator[Change]:
    if passed.optimizer is not None and passed.on_gpu:
        with suppress(TorchscanError):  # one that exists
            yield Change(
                name="fused optimizer",
                how=Note.of("fused-optimizer"),
                arguments={"optimizer": fused(passed.optimizer)},
            )
