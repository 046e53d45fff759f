"""Passes of one rank without data parallelism, from which steps on all meshes are derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import nn

from torchscan.analyses.fsdp_costs import ParameterShape
from torchscan.analyses.mesh_derivation import LocalModel
from torchscan.analyses.mesh_parts import (
    AFTER,
    BEFORE,
    LocalTrace,
    OptimizerCosts,
    PartCosts,
    on_line,
)
from torchscan.analyses.roofline import Fabric, Rates, numbers_of, roofline_of
from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.notes import Note
from torchscan.ranks.plan import Asked
from torchscan.ranks.short_models import LayeredModel
from torchscan.recording.folding.shortened import EqualLayers
from torchscan.recording.pretended_group import pretended
from torchscan.recording.sequence_parallel import sum_gradients
from torchscan.recording.sharding import Apply, sharded
from torchscan.recording.training.checkpoints import checkpoint_layers
from torchscan.torch_versions import is_sharded_type
from torchscan.trace.trace import Trace

#: codes of assumptions about a single mesh
OF_ONE_MESH = ("collectives-hidden", "rank-share")
#: numbers of sequences for which passes are recorded; values for other numbers lie on a line
#: through them. A part of one sequence may stay in the cache, so a line through one and two would
#: give too long times for many
_SEQUENCES = (1, 4)
#: layers of a kind in a pass: the memory of one in the middle is that of all
_MIN_LAYERS = 2
_OUTSIDE = (BEFORE, AFTER)


class StorageSizes(NamedTuple):
    """Bytes of an element, or None for those of the model itself."""

    stored: int | None = None
    gathered: int | None = None
    reduced: int | None = None


class _LocalPass(NamedTuple):
    """A recorded pass, by parts."""

    #: by the path of a layer in the short model
    parts: Mapping[str, PartCosts]
    #: former paths of layers, by new ones
    paths: Mapping[str, str]
    #: choice of checkpoint of each layer, by its new path
    checkpoints: Mapping[str, Any]
    shapes: Mapping[str, tuple[ParameterShape, ...]]
    optimizer: OptimizerCosts

    def costs(self, name: str) -> PartCosts:
        """Return the costs of a part, which are zero if it runs no operator."""
        return self.parts.get(name, PartCosts())


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQuestion:
    """The passes to record on one rank."""

    model: LayeredModel
    fabric: Fabric
    #: type that the model is converted to, and of elements in FSDP
    dtype: torch.dtype
    sizes: StorageSizes
    #: the step of a number of sequences
    step: Callable[[int], Asked]
    #: changes the copy before it is sharded, apart from checkpoints
    change: Callable[[nn.Module, Sequence[nn.Module]], None]
    #: divides layers along "tp"
    divide: Apply
    #: makes the context in which a step is recorded
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    #: choices of checkpoint to compare
    checkpoints: tuple[Any, ...]
    compiled: bool = False


class LocalPasses:
    """The passes of all degrees of tensor parallelism, each recorded at its first use."""

    def __init__(self, question: LocalQuestion) -> None:
        self._question = question
        self._passes: dict[tuple[int, int, Any], _LocalPass] = {}
        self._choices = tuple(
            dict.fromkeys(choice for each in question.checkpoints for choice in _parts_of(each))
        )
        smallest = min((each.number for each in question.model.kinds), default=0)
        #: layers of one pass can be checkpointed in different ways
        self._is_mixed = smallest >= len(self._choices)
        self.assumptions: dict[Note, None] = {}
        self.error_margin: ErrorMargin | None = None

    @property
    def num_traces(self) -> int:
        """Number of recorded passes."""
        return len(self._passes)

    def model(self, tp: int, checkpoint: Any, sequences: float) -> LocalModel:
        """Return the parts of the model on one rank, for a micro batch of this many sequences."""
        choices = _parts_of(checkpoint)
        passes = {
            choice: [self._pass(tp, number, choice) for number in _SEQUENCES] for choice in choices
        }
        one, other = passes[choices[0]]
        smallest, largest = _SEQUENCES
        place = (sequences - smallest) / (largest - smallest)
        costs = {name: on_line(one.costs(name), other.costs(name), place) for name in _OUTSIDE}
        shapes = {name: one.shapes[name] for name in _OUTSIDE}
        order: list[str] = []
        for index, kind in enumerate(self._question.model.kind_by_layer.values()):
            choice = choices[(index + 1) % len(choices)]
            first, second = passes[choice]
            path = self._layer_of(kind, first, choice)
            name = f"{path}: {choice}"
            order.append(name)
            if name not in costs:
                costs[name] = on_line(first.costs(path), second.costs(path), place)
                shapes[name] = first.shapes[path]
        return LocalModel(
            order=(BEFORE, *order, AFTER),
            costs=costs,
            shapes=shapes,
            optimizer=one.optimizer,
            context_bytes=self._question.fabric.device.cuda_context_bytes,
        )

    def _layer_of(self, kind: EqualLayers, recorded: _LocalPass, checkpoint: Any) -> str:
        """Return the path of a layer of the kind in the short model, the last one that fits."""
        former = {f"{kind.path}.{index}" for index in kind.indices}
        found = [
            path
            for path, before in recorded.paths.items()
            if before in former and recorded.checkpoints[path] == checkpoint
        ]
        return found[-1]

    def _pass(self, tp: int, sequences: int, checkpoint: Any) -> _LocalPass:
        key = (tp, sequences, None if self._is_mixed else checkpoint)
        if key not in self._passes:
            choices = self._choices if self._is_mixed else (checkpoint,)
            self._passes[key] = self._record(tp, sequences, choices)
        return self._passes[key]

    def _record(self, tp: int, sequences: int, choices: Sequence[Any]) -> _LocalPass:
        question = self._question
        kinds = question.model.kinds
        numbers = [min(each.number, max(_MIN_LAYERS, len(choices))) for each in kinds]
        short, paths = question.model.shorten(numbers)
        checkpoints = _spread(paths, question.model, choices)
        shapes: dict[str, tuple[ParameterShape, ...]] = {}

        def apply(model: nn.Module, devices: Any) -> None:
            model.train()
            layers = {path: model.get_submodule(path) for path in paths}
            question.change(model, list(layers.values()))
            for path, choice in checkpoints.items():
                if choice:
                    checkpoint_layers(model, [layers[path]], choice)
            if tp > 1:
                question.divide(model, devices)
                sum_gradients(model)
            shapes.update(_shapes_of(model, layers, question.sizes))

        step = question.step(sequences)
        with pretended({"tp": tp}, 0) as devices, question.around():
            model = sharded(short, apply, devices, training=True, dtype=question.dtype)
            trace = step.of(model).steps
        rates, fabric = Rates(question.fabric.device), question.fabric
        roofline = roofline_of(
            trace,
            rates,
            numbers=numbers_of(rates.device, None),
            compiled=question.compiled,
            fabric=fabric,
        )
        notes = (each for each in roofline.assumptions if each.code not in OF_ONE_MESH)
        self.assumptions |= dict.fromkeys(notes)
        self.error_margin = roofline.error_margin
        local = LocalTrace(trace, roofline, fabric, list(paths))
        before, after = _split_outside(trace, shapes, list(paths))
        return _LocalPass(
            parts=local.parts(),
            paths=paths,
            checkpoints=checkpoints,
            shapes={**shapes, BEFORE: before, AFTER: after},
            optimizer=local.optimizer(),
        )


def _parts_of(checkpoint: Any) -> tuple[Any, ...]:
    """Return the choices of layers that follow each other, from every n-th layer on."""
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, int):
        return (checkpoint,)
    return (True, *[False] * (checkpoint - 1))


def _spread(
    paths: Mapping[str, str], model: LayeredModel, choices: Sequence[Any]
) -> dict[str, Any]:
    """Return a choice of checkpoint for each layer, so that each kind of layer has each choice."""
    choices_by_kind = {kind: cycle(choices) for kind in model.kinds}
    chosen: dict[str, Any] = {}
    for path, former in paths.items():
        kind = model.kind_by_layer[former]
        chosen[path] = next(choices_by_kind[kind])
    return chosen


def _shapes_of(
    model: nn.Module, layers: Mapping[str, nn.Module], sizes: StorageSizes
) -> dict[str, tuple[ParameterShape, ...]]:
    """Return the parameters of each layer, and of the rest by their own paths."""
    met: set[int] = set()
    shapes: dict[str, tuple[ParameterShape, ...]] = {}
    for path, layer in layers.items():
        own = [each for each in layer.parameters() if id(each) not in met]
        met |= {id(each) for each in own}
        shapes[path] = tuple(_shape_of(each, sizes) for each in own)
    for path, parameter in model.named_parameters():
        if id(parameter) not in met:
            shapes[path] = (_shape_of(parameter, sizes),)
    return shapes


def _shape_of(parameter: Any, sizes: StorageSizes) -> ParameterShape:
    local = parameter.to_local() if is_sharded_type(type(parameter)) else parameter
    rows = local.shape[0] if local.dim() else 1
    size = local.element_size()
    return ParameterShape(
        rows=rows,
        width=local.numel() // max(1, rows),
        stored=sizes.stored or size,
        gathered=sizes.gathered or size,
        reduced=sizes.reduced or size,
        is_trained=parameter.requires_grad,
    )


def _split_outside(
    trace: Trace, shapes: Mapping[str, tuple[ParameterShape, ...]], layers: Sequence[str]
) -> tuple[tuple[ParameterShape, ...], tuple[ParameterShape, ...]]:
    """Return the parameters outside of layers that are used before the layers, and after them."""
    inside = tuple(f"{each}." for each in layers)
    used: set[int] = set()
    for op in trace.ops:
        if f"{trace.path_of(op)}.".startswith(inside):
            break
        used.update(trace.tensors[tensor].storage for tensor in op.inputs)

    before: list[ParameterShape] = []
    after: list[ParameterShape] = []
    for record in trace.parameters:
        if record.path in shapes:
            part = after if used.isdisjoint(record.storages) else before
            part += shapes[record.path]
    return tuple(before), tuple(after)
