"""Passes of one rank without data parallelism, from which steps on all meshes are derived."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from torchscan.analyses.fsdp_costs import ParameterShape
from torchscan.analyses.mesh_derivation import LocalModel
from torchscan.analyses.mesh_parts import LocalTrace
from torchscan.analyses.part_costs import (
    AFTER,
    BEFORE,
    AttentionShapes,
    OptimizerCosts,
    PartCosts,
    RingCosts,
    on_line,
)
from torchscan.analyses.roofline import Fabric, Rates, numbers_of, roofline_of
from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.notes import Note
from torchscan.ranks.layer_choices import choices_of, spread_choices
from torchscan.ranks.parameter_shapes import ParameterShapes, StorageSizes, split_outside
from torchscan.ranks.rank_recording import RankQuestion
from torchscan.ranks.ring_passes import record_ring
from torchscan.ranks.short_models import LayeredModel
from torchscan.recording.expert_parallel import divide_experts
from torchscan.recording.folding.shortened import EqualLayers
from torchscan.recording.pretended_group import pretended
from torchscan.recording.sequence_parallel import sum_gradients
from torchscan.recording.sharding import Apply, sharded
from torchscan.recording.training.checkpoints import checkpoint_layers
from torchscan.recording.training.float8_all_gather import (
    hold_in_8_bits,
    layers_gathered_in_8_bits,
)

#: codes of assumptions about a single mesh
OF_ONE_MESH = ("collectives-hidden", "rank-share")
#: numbers of sequences for which passes are recorded; values for other numbers lie on a line
#: through the two around them. Kernels of few sequences wait for their launch or find their data in
#: the cache, so a line through few would give wrong times for many
_SEQUENCES = (1, 4, 16, 64)
#: layers of a kind in a pass: the memory of one in the middle is that of all
_MIN_LAYERS = 2
_OUTSIDE = (BEFORE, AFTER)


class LocalMesh(NamedTuple):
    """The part of a mesh on which the pass of a rank depends."""

    ep: int
    tp: int
    #: parts of sequences, which change attention only
    cp: int = 1
    #: True if FSDP all-gathers weights in 8 bits
    gathers_in_8_bits: bool = False


class _LocalPass(NamedTuple):
    """A recorded pass, by parts."""

    #: by the path of a layer in the short model
    parts: Mapping[str, PartCosts]
    #: former paths of layers, by new ones
    paths: Mapping[str, str]
    #: choice of checkpoint of each layer, by its new path
    checkpoints: Mapping[str, Any]
    shapes: Mapping[str, tuple[ParameterShape, ...]]
    #: operands of the attention of each layer, by its new path
    attentions: Mapping[str, AttentionShapes | None]
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
    step: Callable[[int], RankQuestion]
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
    """The passes of all meshes along "ep" and "tp", each recorded at its first use."""

    def __init__(self, question: LocalQuestion) -> None:
        self._question = question
        self._passes: dict[tuple[LocalMesh, int, Any], _LocalPass] = {}
        self._rings: dict[tuple[Any, ...], RingCosts] = {}
        choices = [choice for each in question.checkpoints for choice in choices_of(each)]
        self._choices = tuple(dict.fromkeys(choices))
        smallest = min((each.number for each in question.model.kinds), default=0)
        #: layers of one pass can be checkpointed in different ways
        self._is_mixed = smallest >= len(self._choices)
        self.assumptions: dict[Note, None] = {}
        self.error_margin: ErrorMargin | None = None

    @property
    def num_traces(self) -> int:
        """Number of recorded passes."""
        return len(self._passes)

    def model(self, inner: LocalMesh, checkpoint: Any, sequences: float) -> LocalModel:
        """Return the parts of the model on one rank for a micro batch of so many sequences.

        Ranks along "cp" share them: a rank has as many tokens as fewer complete sequences have, but
        for attention.
        """
        choices = choices_of(checkpoint)
        around, place = _on_line(sequences / inner.cp)
        of_ring = inner._replace(cp=1)
        passes: dict[Any, list[_LocalPass]] = {}
        for choice in choices:
            passes[choice] = [self._pass(of_ring, number, choice) for number in around]
        one, other = passes[choices[0]]
        costs = {name: on_line(one.costs(name), other.costs(name), place) for name in _OUTSIDE}
        shapes = {name: one.shapes[name] for name in _OUTSIDE}
        order: list[str] = []
        paths: dict[tuple[EqualLayers, Any], str] = {}
        for index, kind in enumerate(self._question.model.kind_by_layer.values()):
            choice = choices[(index + 1) % len(choices)]
            first, second = passes[choice]
            if (kind, choice) not in paths:
                paths[kind, choice] = self._layer_of(kind, first, choice)
            path = paths[kind, choice]
            name = f"{path}: {choice}"
            order.append(name)
            if name not in costs:
                layer = on_line(first.costs(path), second.costs(path), place)
                costs[name] = self._in_ring(layer, first.attentions[path], inner, sequences)
                shapes[name] = first.shapes[path]
        return LocalModel(
            order=(BEFORE, *order, AFTER),
            costs=costs,
            shapes=shapes,
            optimizer=one.optimizer,
            context_bytes=self._question.fabric.device.cuda_context_bytes,
            compiled=self._question.compiled,
        )

    def _in_ring(
        self,
        layer: PartCosts,
        attention: AttentionShapes | None,
        inner: LocalMesh,
        sequences: float,
    ) -> PartCosts:
        """Return the costs of a layer with its attention divided along "cp"."""
        if inner.cp == 1 or attention is None:
            return layer
        around, place = _on_line(sequences)
        few, many = [self._ring(attention, inner, number) for number in around]
        return layer.in_ring(on_line(few, many, place))

    def _ring(self, shapes: AttentionShapes, inner: LocalMesh, sequences: int) -> RingCosts:
        key = (shapes, inner.cp, inner.tp, sequences)
        if key not in self._rings:
            question = self._question
            self._rings[key] = record_ring(
                shapes,
                question.dtype,
                question.fabric,
                cp=inner.cp,
                tp=inner.tp,
                sequences=sequences,
            )
        return self._rings[key]

    def _layer_of(self, kind: EqualLayers, recorded: _LocalPass, checkpoint: Any) -> str:
        """Return the path of a layer of the kind in the short model, the last one that fits."""
        former = {f"{kind.path}.{index}" for index in kind.indices}
        fitting: list[str] = []
        for path, before in recorded.paths.items():
            if before in former and recorded.checkpoints[path] == checkpoint:
                fitting.append(path)
        return fitting[-1]

    def _pass(self, inner: LocalMesh, sequences: int, checkpoint: Any) -> _LocalPass:
        key = (inner, sequences, None if self._is_mixed else checkpoint)
        if key not in self._passes:
            choices = self._choices if self._is_mixed else (checkpoint,)
            self._passes[key] = self._record(inner, sequences, choices)
        return self._passes[key]

    def _record(self, inner: LocalMesh, sequences: int, choices: Sequence[Any]) -> _LocalPass:
        question = self._question
        kinds = question.model.kinds
        numbers = [min(each.number, max(_MIN_LAYERS, len(choices))) for each in kinds]
        short, paths = question.model.shorten(numbers)
        checkpoints = spread_choices(paths, question.model, choices)
        shapes: dict[str, tuple[ParameterShape, ...]] = {}

        def apply(model: nn.Module, devices: Any) -> None:
            shapes.update(self._shard(model, devices, inner, checkpoints))

        step = question.step(sequences)
        mesh = {"ep": inner.ep, "tp": inner.tp} if inner.ep > 1 else {"tp": inner.tp}
        with pretended(mesh, 0) as devices, question.around():
            model = sharded(short, apply, devices, training=True, dtype=question.dtype)
            trace = step.scan_of(model).steps
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
        before, after = split_outside(trace, shapes, list(paths))
        return _LocalPass(
            parts=local.parts(),
            paths=paths,
            checkpoints=checkpoints,
            shapes={**shapes, BEFORE: before, AFTER: after},
            attentions={path: local.attention_shapes(path) for path in paths},
            optimizer=local.optimizer(),
        )

    def _shard(
        self, model: nn.Module, devices: Any, inner: LocalMesh, checkpoints: Mapping[str, Any]
    ) -> dict[str, tuple[ParameterShape, ...]]:
        """Change and divide a model as one rank has it, and return the shapes of its parameters."""
        question = self._question
        model.train()
        layers = {path: model.get_submodule(path) for path in checkpoints}
        question.change(model, list(layers.values()))
        for path, choice in checkpoints.items():
            if choice:
                checkpoint_layers(model, [layers[path]], choice)
        if inner.tp > 1:
            question.divide(model, devices)
            sum_gradients(model)
        experts = divide_experts(model, devices["ep"]) if inner.ep > 1 else []
        shapes = ParameterShapes(question.sizes, experts)
        if inner.gathers_in_8_bits:
            hold_in_8_bits(model)
            shapes.gather_in_8_bits(layers_gathered_in_8_bits(model))
        return shapes.of(model, layers)


def _on_line(sequences: float) -> tuple[tuple[int, int], float]:
    """Return the recorded numbers around so many sequences, and their place on the line."""
    last = len(_SEQUENCES) - 1
    above = min(bisect_left(_SEQUENCES, sequences, lo=1), last)
    few, many = _SEQUENCES[above - 1], _SEQUENCES[above]
    return (few, many), (sequences - few) / (many - few)
