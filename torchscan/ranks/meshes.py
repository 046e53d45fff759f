"""``parallel.search``: on which meshes of so many devices a language model trains, and how fast."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpointed

from torchscan.analyses.memory_estimate import OUTPUT_DROPPED
from torchscan.analyses.mesh_search import Extrapolated, MeshChoice, MeshSearch, Short, format_mesh
from torchscan.analyses.roofline import Fabric, Rates
from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.errors import Argument, Give, InputError, Text, TorchscanError
from torchscan.hardware.device_specs import Device, device_named
from torchscan.notes import Note
from torchscan.precisions import Precision, name_choices, supported_precision
from torchscan.progress import progress as told
from torchscan.ranks.plan import Asked as Step
from torchscan.ranks.plan import planned
from torchscan.recording.adapters import ADAPTERS_AS_IN_PEFT, adapt
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.folding.layer_folds import outermost_lists
from torchscan.recording.folding.shortened import EqualLayers, kinds_in, shortened
from torchscan.recording.request import require_module, require_positive
from torchscan.recording.sequences import positions_of
from torchscan.recording.sharding import Apply, by_its_own_plan
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.units import Tokens, tokens_of
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: those in which steps are compared
_PRECISIONS: tuple[Precision, ...] = ("bf16", "bf16-mixed", "fp32")

#: layers of each kind in the shorter passes: two from the beginning and two from the end
_LAYERS = 4
#: codes of assumptions about a single mesh
_OF_ONE_MESH = ("collectives-hidden", "rank-share")


@explain_wrong_types
def search(
    module: nn.Module,
    *,
    num_gpus: int,
    device: str | None = None,
    length: Tokens = 4096,
    batch_size: int = 1,
    global_batch_size: int | None = None,
    meshes: Sequence[Mapping[str, int]] | None = None,
    precision: Precision = "bf16",
    optimizer: OptimizerChoice = "AdamW",
    checkpoint: bool = False,
    lora: int | None = None,
    apply: Apply | None = None,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    progress: bool = True,
) -> MeshSearch:
    """Compare training steps on all meshes of ``num_gpus`` GPUs, the fastest that fit first.

    On each mesh, passes of few layers are recorded on shapes alone; each further layer of a kind
    adds as much as the last one. For the best mesh, a pass of all layers is recorded too, because
    fragmentation depends on all of them.

    Args:
        module: a language model, as of transformers; on the meta device, as a rule. It is left unchanged.
        num_gpus: the number of devices.
        device: the name of the GPU, which ``torchscan devices`` lists; None: this machine's.
        length: tokens of a sequence: a number, or a text such as "4k".
        batch_size: sequences at once for each device: ``tp`` devices that work on the same ones have ``tp`` times as many.
        global_batch_size: sequences of all devices at once instead: each copy of the model has its share of them.
        meshes: those to compare: ``{"dp": 8, "tp": 8}``. FSDP shards along "dp", by layers; along "replicate" there are copies
            of what is sharded so (HSDP); tensor parallelism is along "tp". By default all that make sense, "tp" in a machine.
        precision: "bf16": the model is converted; "bf16-mixed": weights in 32 bits, gathered in 16, gradients summed up in 32.
        optimizer: the name of a class in ``torch.optim``, the class, or a function that makes one of a list of parameters.
        checkpoint: recompute each layer in the backward pass, so that only its input is kept.
        lora: freeze the model, and train adapters of this rank beside all linear layers in its layers, as peft does: in
            32 bits, with a dropout.
        apply: shards the model instead, as for :func:`plan`.
        per_machine: how many devices there are in a machine.
        network_gbs: what the network carries for each device, in one direction, in 10^9 bytes per second.
        progress: say what takes more than a second, in a terminal or a notebook.
    """
    require_module(module)
    _require_tokens(module)
    for name, value in (("num_gpus", num_gpus), ("batch_size", batch_size)):
        require_positive(name, value)
    for name, number in (("global_batch_size", global_batch_size), ("lora", lora)):
        if number is not None:
            require_positive(name, number)
    if global_batch_size is not None and batch_size != 1:
        raise InputError(
            Argument("batch_size"),
            " and ",
            Argument("global_batch_size"),
            " are both given: give the sequences of each device, or of all",
        )
    chosen_precision = supported_precision(precision, _PRECISIONS)
    if chosen_precision is None:
        raise InputError.of_value("precision", None, "give ", name_choices(_PRECISIONS))
    length = tokens_of("length", length)
    limit = positions_of(module)
    if limit is not None and length > limit:
        raise InputError(
            f"the model has {limit:,} positions, fewer than sequences of {length:,} tokens need: "
            "give ",
            Give("length", limit),
            " or less",
        )
    asked = _MeshQuestion(
        module=module,
        device=device_named(device),
        length=length,
        sequences=batch_size * num_gpus if global_batch_size is None else global_batch_size,
        precision=chosen_precision,
        optimizer=optimizer,
        checkpoint=checkpoint,
        lora=lora,
        apply=apply,
        per_machine=per_machine,
        network_gbs=network_gbs,
    )
    chosen = (
        _checked(meshes, num_gpus)
        if meshes is not None
        else list(_candidates(num_gpus, per_machine))
    )
    with told(f"torchscan: {type(module).__name__} on {len(chosen)} meshes", is_shown=progress):
        return _searched(asked, num_gpus, chosen)


def _candidates(num_gpus: int, per_machine: int) -> Iterator[dict[str, int]]:
    """Tensor parallelism within a machine; along the rest FSDP, over all of it, or in copies of at least one machine."""
    for tp in _divisors(num_gpus):
        if tp > per_machine:
            break
        rest = num_gpus // tp
        for copies in _divisors(rest):
            if copies == 1 or rest // copies * tp >= per_machine:
                yield _without_ones({"replicate": copies, "dp": rest // copies, "tp": tp})


def _without_ones(mesh: Mapping[str, int]) -> dict[str, int]:
    """Along ``dp`` there is one process where whole models are copied: FSDP shards along the last of two dimensions."""
    copies, others = (
        mesh.get("replicate", 1),
        {name: size for name, size in mesh.items() if size > 1},
    )
    if copies > 1:
        return {
            "replicate": copies,
            "dp": mesh.get("dp", 1),
            **({"tp": mesh["tp"]} if mesh.get("tp", 1) > 1 else {}),
        }
    return others or {"dp": 1}


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _checked(meshes: Sequence[Mapping[str, int]], num_gpus: int) -> list[Mapping[str, int]]:
    for mesh in meshes:
        unknown = [name for name in mesh if name not in ("replicate", "dp", "tp")]
        if unknown:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has a dimension {unknown[0]}: choose from "
                "replicate, dp and tp"
            )
        size = math.prod(mesh.values())
        if size != num_gpus:
            raise InputError(
                f"the mesh {format_mesh(mesh)} has {size} devices, not {num_gpus}: give ",
                Give("num_gpus", size),
                ", or another mesh",
            )
    return [_without_ones(each) for each in meshes]


def _require_tokens(module: nn.Module) -> None:
    """Raise an InputError unless the model is a language model."""
    missing = [name for name in ("input_ids", "labels") if not _takes(module, name)]
    if missing:
        raise InputError(
            f"{type_name_of(module)} does not take {' and '.join(missing)}: give a language "
            "model; torchscan.parallel.plan shards models of any kind"
        )


def _takes(module: nn.Module, name: str) -> bool:
    """Return whether ``forward`` takes an argument with this name."""
    taken = inspect.signature(module.forward).parameters
    return name in taken or any(each.kind is each.VAR_KEYWORD for each in taken.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeshQuestion:
    """All of a question but the mesh."""

    module: nn.Module
    device: Device
    length: int
    #: of all devices
    sequences: int
    precision: Precision
    optimizer: OptimizerChoice
    checkpoint: bool
    lora: int | None
    apply: Apply | None
    per_machine: int
    network_gbs: float

    @property
    def dtype(self) -> torch.dtype:
        """The type in which weights are stored."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def short(
        self, mesh: Mapping[str, int], kinds: Sequence[EqualLayers], numbers: Sequence[int]
    ) -> Short:
        """A pass of so many layers of each kind."""
        paths: dict[str, str] = {}

        def apply(model: nn.Module, devices: DeviceMesh) -> object:
            paths.update(shortened(model, kinds, numbers))
            model.train()
            if self.lora is not None:
                adapt(model, self._layers(model), self.lora)
            if self.checkpoint:
                _checkpoint(self._layers(model))
            return (
                self.apply(model, devices)
                if self.apply is not None
                else self._sharded(model, devices)
            )

        step = self._step(self._sequences(mesh))
        if (
            self.precision == "bf16-mixed"
        ):  # it is FSDP that gathers weights in 16 bits, also among one
            mesh = {"dp": 1, **mesh} if "dp" not in mesh else mesh
        rank = planned(self.module, mesh, apply, 0, step, self._fabric, self.dtype)
        return Short(rank, numbers, paths, self._fabric)

    def _sequences(self, mesh: Mapping[str, int]) -> int:
        """Return the sequences of one copy of the model."""
        copies = math.prod(mesh.values()) // mesh.get("tp", 1)
        if self.sequences % copies:
            raise InputError(
                f"{self.sequences:,} sequences cannot be divided among {copies:,} copies of the "
                "model: give a multiple as ",
                Argument("global_batch_size"),
            )
        if self.lora is not None and mesh.get("tp", 1) > 1 and self.apply is None:
            raise InputError(
                "adapters have no plan for tensor parallelism: shard them with ", Give("apply")
            )
        return self.sequences // copies

    def _step(self, sequences: int) -> Step:
        tokens = torch.zeros(sequences, self.length, dtype=torch.long)
        return Step(
            input_shape=None,
            dtype=None,
            device=self.device.name,
            args=None,
            kwargs={
                "input_ids": tokens,
                "labels": tokens,
                **({"use_cache": False} if _takes(self.module, "use_cache") else {}),
            },
            batch_size=1,
            training=True,
            loss=_loss_of,
            optimizer=self.optimizer,
        )

    @property
    def _fabric(self) -> Fabric:
        return Fabric(
            device=self.device, per_machine=self.per_machine, network=1e9 * self.network_gbs
        )

    def _layers(self, model: nn.Module) -> list[nn.Module]:
        """Return the layers of all module lists, also of short ones."""
        lists = [model.get_submodule(path) for path, _ in outermost_lists(self.module, more_than=1)]
        return [layer for each in lists for layer in each.children()]

    def _sharded(self, model: nn.Module, devices: DeviceMesh) -> nn.Module:
        """Tensor parallelism, then FSDP by layers, and of what is outside of them."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        names = devices.mesh_dim_names or ()
        if "tp" in names:
            by_its_own_plan(model, devices)
        along = tuple(name for name in ("replicate", "dp") if name in names)
        if along:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            options: dict[str, Any] = (
                {"mp_policy": policy} if self.precision == "bf16-mixed" else {}
            )
            for each in (*self._layers(model), model):
                fully_shard(each, mesh=devices[along], **options)
        return model


def _loss_of(output: Any) -> Any:
    return output["loss"]


def _checkpoint(layers: Sequence[Any]) -> None:
    for layer in layers:
        layer.forward = partial(checkpointed, layer.forward, use_reentrant=False)


def _searched(
    asked: _MeshQuestion, num_gpus: int, meshes: Sequence[Mapping[str, int]]
) -> MeshSearch:
    kinds = kinds_in(asked.module, _LAYERS + 1)
    choices: list[MeshChoice] = []
    refused: dict[str, Note] = {}
    errors: list[TorchscanError] = []
    assumptions: dict[Note, None] = {}
    error_margin: ErrorMargin | None = None
    for mesh in meshes:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "FSDP2-wrapped module"
                )  # of views, which nobody writes to here
                choice, base = _choice(asked, mesh, kinds)
        except TorchscanError as error:
            refused[format_mesh(mesh)] = Note.of("mesh-refused", error=error.problem)
            errors.append(error)
            continue
        choices.append(choice)
        error_margin = base.rank.roofline.error_margin if base.rank.roofline is not None else None
        assumptions |= dict.fromkeys(_assumptions_for_all(base))
    if not choices:
        reason: Text = next(iter(errors), "there is none to compare")
        raise InputError("no mesh is possible: ", reason)
    choices = _replay_best(asked, choices, kinds)
    replayed = sum(each.is_replayed for each in choices) if kinds else 0
    if asked.lora is not None:
        assumptions[ADAPTERS_AS_IN_PEFT] = None
    return MeshSearch(
        device=asked.device.name,
        num_gpus=num_gpus,
        length=asked.length,
        sequences=asked.sequences,
        precision=asked.precision,
        optimizer=asked.optimizer
        if isinstance(asked.optimizer, str)
        else getattr(asked.optimizer, "__name__", "given"),
        checkpoint=asked.checkpoint,
        lora=asked.lora,
        error_margin=error_margin,
        params=sum(each.numel() for each in dict.fromkeys(asked.module.parameters())),
        choices=tuple(choices),
        refused=refused,
        num_traces=len(choices) * (1 + len(kinds)) + replayed,
        assumptions=tuple(assumptions),
    )


def _replay_best(
    asked: _MeshQuestion, choices: Sequence[MeshChoice], kinds: Sequence[EqualLayers]
) -> list[MeshChoice]:
    """Return the choices, the fastest that fit first; the best one with the memory of all layers.

    Few layers leave smaller gaps between blocks than all of them, so a mesh may turn out not to
    fit. Then the next one is the best.
    """
    ranked = sorted(choices, key=_sort_key)
    while ranked[0].fits and not ranked[0].is_replayed:
        ranked[0] = _replay_all_layers(asked, ranked[0], kinds)
        ranked.sort(key=_sort_key)
    return ranked


def _sort_key(choice: MeshChoice) -> tuple[bool, float]:
    return not choice.fits, -choice.tokens_per_second


def _replay_all_layers(
    asked: _MeshQuestion, choice: MeshChoice, kinds: Sequence[EqualLayers]
) -> MeshChoice:
    """Return the choice with the memory that torch's allocator takes for a pass of all layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        whole = asked.short(choice.mesh, kinds, [each.number for each in kinds])
    needed = choice.peak_bytes + _overhead_bytes(whole)
    fits = needed <= asked.device.memory_bytes
    return replace(choice, needed_bytes=needed, fits=fits, is_replayed=True)


def _choice(
    asked: _MeshQuestion, mesh: Mapping[str, int], kinds: Sequence[EqualLayers]
) -> tuple[MeshChoice, Short]:
    numbers = [_LAYERS] * len(kinds)
    base = asked.short(mesh, kinds, numbers)
    more = [
        asked.short(mesh, kinds, [n + (at == each) for at, n in enumerate(numbers)])
        for each in range(len(kinds))
    ]
    whole = Extrapolated(base, more, [each.number for each in kinds])
    by_kind, (time, waits) = whole.peak, whole.seconds
    peak = sum(by_kind.values())
    needed = peak + max(map(_overhead_bytes, (base, *more)))
    choice = MeshChoice(
        mesh=dict(mesh),
        local_params=whole.figure("local_params"),
        peak_bytes=peak,
        by_kind={kind: size for kind, size in by_kind.items() if size},
        needed_bytes=needed,
        fits=needed <= asked.device.memory_bytes,
        is_replayed=not kinds,
        sent_bytes=whole.figure("sent_bytes"),
        time_estimate=time,
        waiting=waits,
        tokens_per_second=asked.sequences * asked.length / time,
        mfu=2
        * whole.products
        / time
        / Rates(asked.device).peak("fp32" if asked.precision == "fp32" else "bf16"),
    )
    return choice, base


def _overhead_bytes(short: Short) -> int:
    """Return the bytes needed besides tensors: gaps, which further layers add to, workspaces, and the context."""
    memory = short.rank.memory
    assert memory.verdict is not None  # noqa: S101 - there is a device
    return (
        max(0, memory.verdict.reserved_bytes - memory.peak_bytes)
        + memory.verdict.cuda_context_bytes
    )


def _assumptions_for_all(short: Short) -> list[Note]:
    """Return the assumptions about a step that do not depend on the mesh."""
    roofline = short.rank.roofline
    notes = () if roofline is None else roofline.assumptions
    return [*(each for each in notes if each.code not in _OF_ONE_MESH), OUTPUT_DROPPED]
