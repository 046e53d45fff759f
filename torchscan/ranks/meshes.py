"""``parallel.search``: the meshes on which a language model can train, and how fast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Unpack

from torch import nn

from torchscan.analyses.fsdp_times import DerivedSharding
from torchscan.analyses.memory_estimate import OUTPUT_DROPPED
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.mesh_search import MeshSearch
from torchscan.analyses.model_products import FlopsConvention
from torchscan.analyses.pipeline_schedule import Schedule
from torchscan.errors import TorchscanError
from torchscan.notes import Note
from torchscan.precisions import Precision
from torchscan.question import asking
from torchscan.ranks.best_steps import BestSteps, sort_key
from torchscan.ranks.mesh_candidates import CandidateQuestion
from torchscan.ranks.mesh_choices import DerivedChoices, RankedStep, RecordedChoices
from torchscan.ranks.mesh_options import MeshOptions
from torchscan.ranks.mesh_question import MeshQuestion, require_tokens
from torchscan.ranks.mesh_refusals import Refusals
from torchscan.ranks.short_models import LayeredModel
from torchscan.recording.adapters import ADAPTERS_AS_IN_PEFT
from torchscan.recording.arguments import ChangeArguments
from torchscan.recording.bookkeeping.known_outcomes import sharing_outcomes
from torchscan.recording.request import require_module
from torchscan.recording.sharding import Apply
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.recording.training.recipe import Checkpoint
from torchscan.terminal import progress as told
from torchscan.units import Tokens

#: time relative to the best from which on a step is left out
_SLOW = 1.25


@asking
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
    checkpoint: Checkpoint | None = None,
    accumulation_steps: int | None = None,
    schedule: Schedule | None = None,
    stages_per_rank: int | None = None,
    apply: Apply | None = None,
    sharding: DerivedSharding | Sequence[DerivedSharding] = "fsdp2",
    sequence_parallel: bool = True,
    async_tp: bool = False,
    flops: FlopsConvention = "dense",
    per_machine: int = 8,
    link_gbs: float | None = None,
    network_gbs: float = 50.0,
    progress: bool = True,
    **changes: Unpack[ChangeArguments],
) -> MeshSearch:
    """Compare training steps on all meshes of ``num_gpus`` GPUs, the fastest that fit first.

    For each degree of tensor parallelism, passes of a few layers are recorded on one rank. Steps on
    all meshes are derived from them, with FSDP, copies (HSDP), context parallelism and pipelines,
    and with activation checkpointing, micro batches and schedules. For the best three steps without
    pipelines, passes on the mesh itself are recorded ("cp" only if there is no dimension but "dp"
    beside it). Fragmentation depends on all layers, so the allocator is replayed with the requests
    of all of them if layers repeat.

    Args:
        module: a language model, for example of transformers, usually on the meta device. It is
            left unchanged.
        num_gpus: the number of devices.
        device: the name of the GPU, which ``torchscan devices`` lists; None: this machine's.
        length: tokens of a sequence: a number, or a text such as "4k".
        batch_size: sequences in a step for each device: ``tp`` devices that work on the same
            sequences have ``tp`` times as many.
        global_batch_size: sequences of all devices in a step, instead of ``batch_size``. They are
            divided among the copies of the model.
        meshes: the meshes to compare: ``{"dp": 8, "tp": 8}``. FSDP shards layer by layer along "dp"
            and "cp", with copies of the sharded model along "replicate" (HSDP). Ranks along "cp"
            have parts of the same sequences (context parallelism), along "ep" parts of the experts,
            along "tp" parts of each layer, and along "pp" stages of a pipeline. By default, all
            meshes that make sense, with "tp" and "ep" inside a machine.
        precision: "bf16": the model is converted; "bf16-mixed": weights in 32 bits, gathered in 16,
            gradients summed in 32.
        optimizer: the name of a class in ``torch.optim``, the class, or a function that makes an
            optimizer from a list of parameters.
        checkpoint: recompute layers in the backward pass: True for all, False for none, a number
            for every n-th layer, "selective" as torchtitan's "op", a policy, or a list of
            operators; None compares none, "selective" and all.
        accumulation_steps: the number of micro batches in a step of each copy of the model; None
            compares numbers that divide its sequences.
        schedule: the schedule of pipelines: "1F1B", "Interleaved1F1B" or "InterleavedZeroBubble";
            None compares all.
        stages_per_rank: the number of stages of each rank in interleaved schedules; None compares 2
            and 4.
        apply: the function that shards the model, as for :func:`plan`.
        sharding: the kind of FSDP: "fsdp2", "fsdp1" with flat parameters, or "zero2", whose
            parameters stay all-gathered until the backward pass is over; or several to compare.
        sequence_parallel: divide activations between matrix products along "tp" by sequence, and
            the loss by vocabulary, if the model's plan allows it.
        async_tp: overlap collectives of ``sequence_parallel`` with matrix products, as torch's
            compiler does.
        flops: the scores of attention that MFU counts: "dense" for all, as PaLM and torchtitan do;
            "computed" for those that a causal mask leaves.
        per_machine: the number of devices in a machine, joined by its links: 72 for NVL72.
        link_gbs: the bandwidth of the links between devices of a machine, in one direction, in 10^9
            bytes per second; None: that of the device's data sheet.
        network_gbs: the bandwidth of the network for each device, in one direction, in 10^9 bytes
            per second.
        progress: show what takes more than a second, in a terminal or a notebook.
    """
    require_module(module)
    options = MeshOptions(
        num_gpus=num_gpus,
        device=device,
        length=length,
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        meshes=meshes,
        precision=precision,
        optimizer=optimizer,
        checkpoint=checkpoint,
        accumulation_steps=accumulation_steps,
        schedule=schedule,
        stages_per_rank=stages_per_rank,
        apply=apply,
        sharding=sharding,
        sequence_parallel=sequence_parallel,
        async_tp=async_tp,
        flops=flops,
        per_machine=per_machine,
        link_gbs=link_gbs,
        network_gbs=network_gbs,
        changes=changes,
    )
    return search_with(module, options, progress=progress)


def search_with(module: nn.Module, options: MeshOptions, *, progress: bool) -> MeshSearch:
    """Return the answer of :func:`search` for options that were validated before."""
    require_tokens(module)
    model = LayeredModel(module)
    question = MeshQuestion.of(model, options)
    candidates = CandidateQuestion(
        sequence_parallel=question.sequence_parallel,
        num_gpus=options.num_gpus,
        per_machine=options.per_machine,
        length=question.length,
        sequences=options.sequences,
        num_layers=len(model.kind_by_layer),
        num_experts=model.num_experts,
        checkpoints=options.checkpoints(has_layers=bool(model.kinds)),
        shardings=options.shardings,
        accumulation_steps=options.num_passes,
        is_sharded_by_user=options.apply is not None,
        **options.pipelines,
    )
    given = options.given_layouts
    layouts = list(candidates.layouts()) if given is None else given
    label = f"torchscan: {type(module).__name__} on {len(layouts)} meshes"
    with told(label, is_shown=progress), sharing_outcomes():
        comparison = _MeshComparison(question, candidates, compares_given=given is not None)
        return comparison.answer(layouts, options.num_gpus)


class _MeshComparison:
    """Compares the meshes of a search."""

    def __init__(
        self, question: MeshQuestion, candidates: CandidateQuestion, *, compares_given: bool
    ) -> None:
        """Compare meshes; with ``compares_given``, none is left out because it is slow."""
        self._question = question
        self._compares_given = compares_given
        self._candidates = candidates
        self._derived = DerivedChoices(question, candidates)
        self._recorded = RecordedChoices(question)
        self._refusals = Refusals()
        self._best = BestSteps(
            question, self._recorded, self._refusals, compares_given=compares_given
        )

    def answer(self, layouts: Sequence[MeshLayout], num_gpus: int) -> MeshSearch:
        """Return the result. Raise an InputError if no mesh is possible."""
        question = self._question
        if question.apply is None:
            ranked = self._best.record(self._derive(layouts))
        else:
            ranked = self._record_all(layouts)
        if not ranked:
            raise self._refusals.explain()
        ranked = self._best.complete(ranked)
        assumptions = {**self._derived.passes.assumptions, **self._recorded.assumptions}
        assumptions[OUTPUT_DROPPED] = None
        if question.keeps_sequences and any(each.tp > 1 for each in layouts):
            name = type(question.module).__name__
            assumptions[Note.of("sequences-not-divided", model=name)] = None
        if question.recipe.offloaded:
            assumptions[Note.of("transfers-not-timed")] = None
        if isinstance(question.recipe.lora, int):
            assumptions[ADAPTERS_AS_IN_PEFT] = None
        parameters = dict.fromkeys(question.module.parameters())
        choices = tuple(each.choice for each in ranked)
        return MeshSearch(
            device=question.device.name,
            num_gpus=num_gpus,
            length=question.length,
            sequences=question.sequences,
            precision=question.precision,
            optimizer=getattr(question.optimizer, "__name__", str(question.optimizer)),
            lora=getattr(question.recipe.lora, "r", question.recipe.lora),
            float8=question.recipe.float8,
            compiled=question.recipe.compiled,
            flops=question.flops,
            error_margin=self._recorded.error_margin or self._derived.passes.error_margin,
            params=sum(each.numel() for each in parameters),
            choices=choices,
            refused=self._refusals.reasons,
            num_steps=self._derived.num_steps or len(ranked),
            num_traces=self._derived.passes.num_traces + self._recorded.num_traces,
            assumptions=tuple(assumptions),
        )

    def _derive(self, layouts: Sequence[MeshLayout]) -> list[RankedStep]:
        """Return the best step on each mesh, for each choice of checkpoint.

        Meshes without pipelines come first, because the best of them rules out slow pipelines.
        """
        ranked: list[RankedStep] = []
        best = math.inf
        for layout in sorted(layouts, key=lambda each: each.pp):
            max_time = math.inf if self._compares_given else _SLOW * best
            try:
                steps = self._derived.best_on(layout, max_time)
            except TorchscanError as error:
                self._refusals.add(layout, error)
                continue
            if not steps:
                self._refusals.add_slow(layout, _SLOW)
            ranked += steps
            times = (each.choice.time_estimate for each in steps if each.choice.fits)
            best = min((best, *times))
        return sorted(ranked, key=sort_key)

    def _record_all(self, layouts: Sequence[MeshLayout]) -> list[RankedStep]:
        """Return the recorded steps on all meshes, because a user's ``apply`` cannot be derived."""
        ranked: list[RankedStep] = []
        for layout in layouts:
            try:
                steps = list(self._candidates.steps(layout))
                ranked += [RankedStep(step, self._recorded.record(step)) for step in steps]
            except TorchscanError as error:
                self._refusals.add(layout, error)
        return sorted(ranked, key=sort_key)
