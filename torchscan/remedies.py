"""What to try on a pass that is slow or large, each change by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from torchscan.analyses.memory_timeline import LayerMemory
from torchscan.analyses.remedies import Figure, Remedies, Remedy
from torchscan.errors import TorchscanError
from torchscan.recording.training.optimizers import OptimizerChoice, fused

#: what saves less is not worth a line
_LEAST = 0.01
#: how many times as many samples larger batches have
_LARGER = 4
_CONTAINERS = {"Sequential", "ModuleList"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The pass as it is, as far as it decides what to try."""

    training: bool
    precision: str | None
    compiled: bool
    optimizer: OptimizerChoice | None
    #: None: the arguments were given
    batch_size: int | None
    on_gpu: bool
    #: the type of 16 bits that the device is made for
    half: Literal["bf16", "fp16"]
    layers: Sequence[LayerMemory]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something to try."""

    name: str
    how: str
    #: arguments of the question that are others
    arguments: Mapping[str, Any] = field(default_factory=dict)
    channels_last: bool = False
    #: paths of modules
    checkpointed: tuple[str, ...] = ()
    #: how many times as many samples one pass has
    samples: float = 1.0


def for_time(pass_: Situation) -> Iterator[Change]:
    """What may make it faster."""
    if not pass_.compiled and pass_.on_gpu:
        yield Change(name="compile", how="torch.compile(model)", arguments={"compiled": True})
    yield from _precisions(pass_)
    if pass_.precision in (None, "fp32") and pass_.on_gpu:
        how = 'torch.set_float32_matmul_precision("high")'
        yield Change(name="products in tf32", how=how, arguments={"precision": "tf32"})
    if pass_.on_gpu:
        yield Change(name="channels last", how=_CHANNELS_LAST, channels_last=True)
    if pass_.batch_size is not None:
        batch = _LARGER * pass_.batch_size
        how = f"batch_size={batch}; the time is for {pass_.batch_size}"
        yield Change(name="larger batches", how=how, arguments={"batch_size": batch}, samples=_LARGER)
    yield from _fused(pass_)


def for_memory(pass_: Situation) -> Iterator[Change]:
    """What may make it smaller."""
    blocks = blocks_of(pass_.layers) if pass_.training else ()
    if blocks:
        yield Change(name="checkpoints", how=f"torch.utils.checkpoint for {_named(blocks)}", checkpointed=blocks)
    yield from _precisions(pass_)
    yield from _fused(pass_)
    if pass_.batch_size is not None and pass_.batch_size > 1:
        half = pass_.batch_size // 2
        accumulated = {"accumulate": True} if pass_.training else {}
        how = f"batch_size={half}" + (", gradients accumulated" if pass_.training else "")
        yield Change(name="smaller batches", how=how, arguments={"batch_size": half, **accumulated})


def remedies_of(figure: Figure, before: float, changes: Iterator[Change], ask: Callable[[Change], float]) -> Remedies:
    """Ask for each change, and for all together that help; what fails is named with its reason."""
    tried: list[tuple[Change, Remedy]] = []
    failed: list[str] = []
    for each in changes:
        try:
            tried.append((each, _remedy(each, before, ask)))
        except TorchscanError as error:
            failed.append(f"{each.name}: {str(error).splitlines()[0]}")
    tried.sort(key=lambda pair: -pair[1].saves)
    helping = [(change, remedy) for change, remedy in tried if remedy.saves >= _LEAST]
    at_once = [change for change, _ in helping if change.samples == 1.0 and "batch_size" not in change.arguments]
    if len(at_once) > 1:
        with suppress(TorchscanError):
            helping.insert(0, (together := _together(at_once), _remedy(together, before, ask)))
    others = [f"{remedy.change}: {_cost(remedy.saves)}" for _, remedy in tried if remedy.saves < _LEAST]
    remedies = tuple(remedy for _, remedy in helping)
    return Remedies(figure=figure, before=before, remedies=remedies, of_no_help=(*others, *failed))


def _remedy(change: Change, before: float, ask: Callable[[Change], float]) -> Remedy:
    after = ask(change) / change.samples
    return Remedy(change=change.name, how=change.how, after=after, saves=1 - after / before if before else 0.0)


def _together(changes: Sequence[Change]) -> Change:
    """All of them; of two that set the same argument, the one that comes first."""
    arguments: dict[str, Any] = {}
    taken = [each for each in changes if not arguments.keys() & each.arguments.keys() and not arguments.update(each.arguments)]
    return Change(
        name="together",
        how=", ".join(each.name for each in taken),
        arguments=arguments,
        channels_last=any(each.channels_last for each in taken),
        checkpointed=tuple(path for each in taken for path in each.checkpointed),
    )


def blocks_of(layers: Sequence[LayerMemory]) -> tuple[str, ...]:
    """The outermost modules that stand beside others of their type, and contain some."""
    chosen: list[str] = []
    parents = {layer.path.rpartition(".")[0] for layer in layers if layer.path}
    siblings: dict[tuple[str, str], list[str]] = {}
    for layer in sorted(layers, key=lambda each: each.depth):
        if layer.path in parents and layer.type_name not in _CONTAINERS and layer.activation_bytes:
            siblings.setdefault((layer.path.rpartition(".")[0], layer.type_name), []).append(layer.path)
    for (parent, _), paths in siblings.items():
        if len(paths) > 1 and not any(f"{parent}.".startswith(f"{each}.") for each in chosen):
            chosen += paths
    return tuple(chosen)


_CHANNELS_LAST = "model and images .to(memory_format=torch.channels_last)"
_HALF = {"bf16": ("bfloat16", "torch.bfloat16"), "fp16": ("half precision", "torch.float16")}


def _precisions(pass_: Situation) -> Iterator[Change]:
    """Formats of 16 bits, if the pass has wider ones; a whole model in them is for inference."""
    name, dtype = _HALF[pass_.half]
    if pass_.precision in (None, "fp32", "tf32"):
        how = f'torch.autocast("{"cuda" if pass_.on_gpu else "cpu"}", {dtype})'
        yield Change(name=f"{name} by autocast", how=how, arguments={"precision": f"{pass_.half}-mixed"})
    if not pass_.training and pass_.precision in (None, "fp32", "tf32", "fp16-mixed", "bf16-mixed"):
        yield Change(name=name, how=f"model.to({dtype})", arguments={"precision": pass_.half})


def _fused(pass_: Situation) -> Iterator[Change]:
    if pass_.optimizer is not None and pass_.on_gpu:
        try:
            yield Change(name="fused optimizer", how="fused=True", arguments={"optimizer": fused(pass_.optimizer)})
        except TorchscanError:  # one that exists
            return


def _named(blocks: Sequence[str]) -> str:
    return blocks[0] if len(blocks) == 1 else f"{blocks[0]} … {blocks[-1]}"


def _cost(saves: float) -> str:
    percent = round(-100 * saves)
    return "no difference" if percent == 0 else f"{abs(percent)} % {'more' if percent > 0 else 'less'}"
