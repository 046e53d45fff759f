"""Suggestions for a slow or large pass: each change separately, and all useful ones together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torchscan.analyses.memory_timeline import LayerMemory
from torchscan.analyses.parameters import enclosing_modules
from torchscan.analyses.suggestions_result import Suggestion, SuggestionMetric, Suggestions
from torchscan.errors import TorchscanError
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.recording.training.optimizers import OptimizerChoice, fused

#: what saves less is not worth a line
_MIN_SAVED = 0.01
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


class Answer(NamedTuple):
    """The metric with a change."""

    value: float
    #: as :class:`Suggestion` has them
    error_share: float | None = None
    fits: bool | None = None


Ask = Callable[[Change], Answer]
AS_IT_IS = Change(name="as it is", how=None)


def for_time(passed: Situation) -> Iterator[Change]:
    """Yield changes that may save time."""
    if not passed.compiled and passed.on_gpu:
        yield Change(name="compile", how=Note.of("compile"), arguments={"compiled": True})
    yield from _precisions(passed)
    if (
        passed.is_single
        and passed.precision in (None, "fp32")
        and passed.formats is not None
        and "tf32" in passed.formats
    ):
        how = Note.of("tf32")
        yield Change(name="products in tf32", how=how, arguments={"precision": "tf32"})
    if passed.on_gpu and passed.has_convolutions:
        yield Change(name="channels last", how=Note.of("channels-last"), channels_last=True)
    for times in _LARGER if passed.batch_size is not None else ():
        batch = times * (passed.batch_size or 1)
        how = Note.of("larger-batch", batch_size=batch, time_of=passed.batch_size)
        yield Change(name="larger batches", how=how, arguments={"batch_size": batch}, samples=times)
    yield from _fused(passed)


def for_memory(passed: Situation) -> Iterator[Change]:
    """Yield changes that may save memory."""
    for blocks in block_choices(passed.layers) if passed.training else ():
        how = Note.of("checkpoint", modules=list(blocks))
        yield Change(name="checkpoints", how=how, checkpointed=blocks)
    yield from _precisions(passed)
    yield from _fused(passed)
    if passed.batch_size is not None and passed.batch_size > 1:
        half = passed.batch_size // 2
        accumulated = {"accumulate": True} if passed.training else {}
        how = Note.of("smaller-batch", batch_size=half)
        if passed.training:
            how = Note.of("smaller-batch-accumulated", batch_size=half)
        yield Change(name="smaller batches", how=how, arguments={"batch_size": half, **accumulated})


def suggestions_of(
    metric: SuggestionMetric, question: str, changes: Iterable[Change], ask: Ask
) -> Suggestions:
    """Return the estimates of each change and of all together that help.

    Changes whose estimate fails are listed with the reason.
    """
    baseline = _suggestion(AS_IT_IS, None, ask)
    tried, failed = _try_each(changes, baseline.after, ask)
    helping = [suggestion for _, suggestion in tried.values() if suggestion.saves >= _MIN_SAVED]
    together = _combine(
        [change for change, _ in tried.values()],
        [suggestion.change for suggestion in helping],
        baseline.after,
        ask,
    )
    if together is not None and together.saves > max(
        (suggestion.saves for suggestion in helping), default=_MIN_SAVED
    ):
        helping.append(together)
    others = [
        Note.of("saves-nothing", change=suggestion.change, saves=suggestion.saves)
        for _, suggestion in tried.values()
        if suggestion.saves < _MIN_SAVED
    ]
    for reason, failures in failed.items():
        if not all(each.variant is None and each.change in tried for each in failures):
            changes = to_plain(list(dict.fromkeys(failures)))
            others.append(Note.of("no-estimate", changes=changes, error=reason))
    ordered = sorted(helping, key=lambda each: -each.saves)
    return Suggestions(
        metric=metric,
        question=question,
        baseline=baseline,
        suggestions=tuple(ordered),
        ineffective=tuple(others),
    )


_Tried = dict[str, tuple[Change, Suggestion]]
_Failed = dict[str, list["_Failure"]]


def _try_each(changes: Iterable[Change], before: float, ask: Ask) -> tuple[_Tried, _Failed]:
    """Return the best variant of each change by its name, and failures by their reason."""
    tried: _Tried = {}
    failed: _Failed = {}
    for each in changes:
        try:
            suggestion = _suggestion(each, before, ask)
        except TorchscanError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            # another variant of the change may have succeeded: then this one is named by its code
            variant = each.how if each.name in tried else None
            failed.setdefault(reason, []).append(_Failure(each.name, variant))
            continue
        if each.name not in tried or tried[each.name][1].saves < suggestion.saves:
            tried[each.name] = each, suggestion
    return tried, failed


class _Failure(NamedTuple):
    """A change that has no estimate."""

    change: str
    #: what to write, if it is one of several variants of the change
    variant: Note | None


def _suggestion(change: Change, before: float | None, ask: Ask) -> Suggestion:
    answer = ask(change)
    after = answer.value if change.samples == 1 else answer.value / change.samples
    saves = 1 - after / before if before else 0.0
    return Suggestion(
        change=change.name,
        how=change.how,
        after=after,
        saves=saves,
        error_share=answer.error_share,
        fits=answer.fits,
    )


def _combine(
    tried: Sequence[Change], helping: Sequence[str], before: float, ask: Ask
) -> Suggestion | None:
    """The best of all changes that help, with each of the precisions that were tried, whether it helps by itself or not.

    Then with another batch, if that helps.
    """
    common = [
        each
        for each in tried
        if each.name in helping and not each.is_of_batch and "precision" not in each.arguments
    ]
    precisions = [each for each in tried if "precision" in each.arguments]
    batches = [each for each in tried if each.name in helping and each.is_of_batch]
    best = _best([common, *([*common, each] for each in precisions)], before, ask)
    if batches:
        chosen = common if best is None else best[0]
        best = max(
            filter(None, (best, _best([[*chosen, each] for each in batches], before, ask))),
            key=_saved,
            default=None,
        )
    return None if best is None or len(best[0]) < 2 else best[1]


_Combination = tuple[Sequence[Change], Suggestion]


def _best(choices: Iterable[Sequence[Change]], before: float, ask: Ask) -> _Combination | None:
    found: list[_Combination] = []
    for chosen in choices:
        if chosen:
            with suppress(TorchscanError):
                found.append((chosen, _suggestion(_merged(chosen), before, ask)))
    return max(found, key=_saved, default=None)


def _saved(combination: _Combination) -> float:
    return combination[1].saves


def _merged(changes: Sequence[Change]) -> Change:
    return Change(
        name="together",
        how=Note.of("combine", changes=[each.name for each in changes]),
        arguments={name: value for each in changes for name, value in each.arguments.items()},
        channels_last=any(each.channels_last for each in changes),
        checkpointed=tuple(path for each in changes for path in each.checkpointed),
        samples=math.prod(each.samples for each in changes),
    )


def block_choices(layers: Sequence[LayerMemory]) -> Iterator[tuple[str, ...]]:
    """Modules that stand beside others of their type and contain some: the outermost, then those inside them, and so on."""
    outside: tuple[str, ...] = ()
    for _ in range(_LEVELS):
        inner = _blocks_in(layers, outside)
        if not inner:
            return
        yield inner
        outside = inner


def _blocks_in(layers: Sequence[LayerMemory], outside: tuple[str, ...]) -> tuple[str, ...]:
    """The next blocks inside of these; () stands for the model."""
    containing = {around for layer in layers for around in enclosing_modules(layer.path)}
    siblings: dict[tuple[str, str], list[str]] = {}
    for layer in sorted(layers, key=lambda each: each.depth):
        if (
            layer.path in containing
            and layer.activation_bytes
            and (not outside or _is_within(layer.path, outside))
        ):
            siblings.setdefault((layer.path.rpartition(".")[0], layer.type_name), []).append(
                layer.path
            )
    chosen: list[str] = []
    for paths in siblings.values():
        if len(paths) > 1 and not _is_within(paths[0], chosen):
            chosen += paths
    return tuple(chosen)


def _is_within(path: str, outside: Iterable[str]) -> bool:
    return any(path.startswith(f"{each}.") for each in outside)


_HALF = {"bf16": ("bfloat16", "bfloat16"), "fp16": ("half precision", "float16")}


def _precisions(passed: Situation) -> Iterator[Change]:
    """Formats of 16 bits, if the pass has wider ones; a whole model in them is for inference."""
    if passed.precision is None and not passed.is_single:
        return
    name, dtype = _HALF[passed.half]
    if passed.precision in (None, "fp32", "tf32"):
        how = Note.of("autocast", dtype=dtype)
        yield Change(
            name=f"{name} by autocast", how=how, arguments={"precision": f"{passed.half}-mixed"}
        )
    if not passed.training and passed.precision in (
        None,
        "fp32",
        "tf32",
        "fp16-mixed",
        "bf16-mixed",
    ):
        yield Change(
            name=name, how=Note.of("convert", dtype=dtype), arguments={"precision": passed.half}
        )


def _fused(passed: Situation) -> Iterator[Change]:
    if passed.optimizer is not None and passed.on_gpu:
        with suppress(TorchscanError):  # one that exists
            yield Change(
                name="fused optimizer",
                how=Note.of("fused-optimizer"),
                arguments={"optimizer": fused(passed.optimizer)},
            )
