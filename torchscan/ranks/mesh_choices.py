"""Estimates of training steps on meshes: derived for all steps, recorded for the best ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

from torchscan.analyses.few_layers import Extrapolated, Short
from torchscan.analyses.mesh_derivation import LocalModel, StageDerivation
from torchscan.analyses.mesh_estimate import DerivedStep, StepDerivation, StepEstimate
from torchscan.analyses.mesh_layout import MeshLayout
from torchscan.analyses.mesh_search import MeshChoice
from torchscan.analyses.roofline import Rates
from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.notes import Note
from torchscan.ranks.layer_replays import LayerReplay, overhead_of
from torchscan.ranks.local_passes import OF_ONE_MESH, LocalMesh, LocalPasses
from torchscan.ranks.mesh_candidates import CandidateQuestion, MeshStep
from torchscan.ranks.mesh_question import MeshQuestion
from torchscan.ranks.sharded_options import require_whole_adapters

#: layers of each kind in the shorter pass on a mesh: two from the beginning and two from the end
_LAYERS = 4


class RankedStep(NamedTuple):
    """A step with its estimate."""

    step: MeshStep
    choice: MeshChoice

    @property
    def sort_key(self) -> tuple[bool, float]:
        """Fitting ones first, then the fastest."""
        return not self.choice.fits, -self.choice.tokens_per_second


class DerivedChoices:
    """Steps derived from passes of one rank."""

    def __init__(self, question: MeshQuestion, candidates: CandidateQuestion) -> None:
        self._question = question
        self._candidates = candidates
        self._rates = Rates(question.device)
        self.passes = LocalPasses(question.local(candidates.checkpoints))
        self._models: dict[tuple[LocalMesh, Any, float], LocalModel] = {}
        self._stages: dict[tuple[Any, ...], StageDerivation] = {}
        self.num_steps = 0

    def best_on(self, layout: MeshLayout, max_time: float = math.inf) -> list[RankedStep]:
        """Return the best step on a mesh for each choice of checkpoint.

        The best is the fastest that fits, else that with the least memory. Steps that take at least
        ``max_time`` seconds are left out.
        """
        if layout.tp > 1:
            require_whole_adapters(self._question.recipe)
        steps = list(self._candidates.steps(layout))
        self.num_steps += len(steps)
        found: list[RankedStep] = []
        for checkpoint in self._candidates.checkpoints:
            own = [step for step in steps if step.checkpoint is checkpoint]
            bounds = sorted((self.min_time(step), index) for index, step in enumerate(own))
            candidates = [(least, own[index]) for least, index in bounds if least < max_time]
            if candidates:
                found.append(self._best(candidates))
        return found

    def _best(self, candidates: Sequence[tuple[float, MeshStep]]) -> RankedStep:
        """Return the best of several steps, given a lower bound of the time of each.

        Steps that cannot win are not derived.
        """
        best: RankedStep | None = None
        best_time = math.inf
        too_large: list[tuple[int, MeshStep]] = []
        for min_time, step in candidates:
            if min_time >= best_time:
                break
            derived = self._derived(step)
            if derived.needed_bytes > self._question.device.memory_bytes:
                too_large.append((derived.needed_bytes, step))
            elif derived.min_time < best_time:
                choice = self._choice(step, derived)
                if choice.time_estimate < best_time:
                    best, best_time = RankedStep(step, choice), choice.time_estimate
        if best is not None:
            return best
        _, step = min(too_large, key=itemgetter(0))
        return RankedStep(step, self._choice(step, self._derived(step)))

    def min_time(self, step: MeshStep) -> float:
        """Return the seconds that a step takes at least."""
        return self._derivation(step).min_time(step.schedule, step.chunks)

    def _derivation(self, step: MeshStep) -> StepDerivation:
        layout = step.layout
        is_gathering = self._question.recipe.float8_all_gather and layout.is_sharded
        inner = LocalMesh(layout.ep, layout.tp, layout.cp, gathers_in_8_bits=is_gathering)
        key = (inner, step.checkpoint, step.sequences)
        if key not in self._models:
            self._models[key] = self.passes.model(*key)
        place = (step.layout, step.sharding, step.checkpoint, step.sequences)
        if place not in self._stages:
            self._stages[place] = StageDerivation(
                self._models[key], step.layout, self._question.fabric, self._rates, step.sharding
            )
        return StepDerivation(
            model=self._models[key],
            layout=step.layout,
            fabric=self._question.fabric,
            stages=self._stages[place],
            num_microbatches=step.num_microbatches,
            flops=self._question.flops,
        )

    def _derived(self, step: MeshStep) -> DerivedStep:
        return self._derivation(step).with_schedule(step.schedule, step.chunks)

    def _choice(self, step: MeshStep, derived: DerivedStep) -> MeshChoice:
        estimate = derived.estimate()
        recomputing = 0.0
        if step.checkpoint is not False and False in self._candidates.checkpoints:
            plain = self._derivation(replace(step, checkpoint=False))
            recomputing = max(0.0, self._derivation(step).computing - plain.computing)
        return to_choice(self._question, step, estimate, recomputing)


def to_choice(
    question: MeshQuestion, step: MeshStep, estimate: StepEstimate, recomputing: float | None
) -> MeshChoice:
    """Return the choice of a derived step."""
    tokens = question.sequences * question.length
    checkpoint = step.checkpoint if isinstance(step.checkpoint, bool | int | str) else "policy"
    return MeshChoice(
        mesh=step.layout.mesh,
        sharding=step.sharding if question.apply is None else None,
        checkpoint=checkpoint,
        batch_size=step.sequences,
        num_microbatches=step.num_microbatches,
        schedule=step.schedule,
        stages_per_rank=step.chunks,
        local_params=estimate.local_params,
        peak_bytes=estimate.peak_bytes,
        by_kind=estimate.by_kind,
        needed_bytes=estimate.needed_bytes,
        fits=estimate.needed_bytes <= question.device.memory_bytes,
        is_recorded=False,
        is_replayed=False,
        derived_time=None,
        derived_bytes=None,
        derived_sent_bytes=None,
        sent_bytes=estimate.sent_bytes,
        time_estimate=estimate.time,
        waiting=estimate.waiting,
        bubble=estimate.idle,
        recomputing=recomputing,
        tokens_per_second=tokens / estimate.time,
        mfu=2 * estimate.macs / estimate.time / question.peak,
    )


class RecordedChoices:
    """Steps whose passes are recorded on the mesh itself."""

    def __init__(self, question: MeshQuestion) -> None:
        self._question = question
        self._kinds = question.model.kinds
        #: kinds of which a pass has few layers
        self._long = [index for index, kind in enumerate(self._kinds) if kind.number > _LAYERS + 1]
        self.num_traces = 0
        self.assumptions: dict[Note, None] = {}
        self.error_margin: ErrorMargin | None = None

    def can_record(self, step: MeshStep) -> bool:
        """Return whether a step can be recorded: without a pipeline.

        FSDP of torch has no copies of what it shards along "dp" and "cp" together.
        """
        layout = step.layout
        is_every_layer = isinstance(step.checkpoint, bool) or not isinstance(step.checkpoint, int)
        has_parts = layout.cp > 1
        is_divided_twice = has_parts and (layout.replicate > 1 or layout.tp > 1)
        return layout.pp == 1 and is_every_layer and not is_divided_twice

    def record(self, step: MeshStep, derived: MeshChoice | None = None) -> MeshChoice:
        """Return the choice as recorded with few layers, and replayed with all if they repeat."""
        whole, replay, overhead = self._extrapolate(step)
        replayed = None if replay is None else replay.overhead_on(self._question.device)
        is_replayed = replayed is not None or not self._long
        by_kind = {kind: size for kind, size in whole.peak.items() if size}
        needed = sum(by_kind.values()) + (overhead if replayed is None else replayed)
        estimate = _estimate(whole, step, self._question, needed)
        if derived is None:
            choice = to_choice(self._question, step, estimate, None)
        else:
            choice = replace(
                to_choice(self._question, step, estimate, derived.recomputing),
                derived_time=derived.time_estimate,
                derived_bytes=derived.needed_bytes,
                derived_sent_bytes=derived.sent_bytes,
            )
        return replace(choice, by_kind=by_kind, is_recorded=True, is_replayed=is_replayed)

    def _extrapolate(self, step: MeshStep) -> tuple[Extrapolated, LayerReplay | None, int]:
        """Return the values of all layers, and the bytes that few layers need besides tensors.

        Between them are the requests in which a layer can be repeated, or None if layers of several
        kinds are missing.
        """
        numbers = [kind.number for kind in self._kinds]
        for index in self._long:
            numbers[index] = _LAYERS
        base = self._question.sharded_pass(step, numbers)
        more: list[Short] = []
        for index in self._long:
            longer = [*numbers]
            longer[index] += 1
            more.append(self._question.sharded_pass(step, longer))
        self.num_traces += 1 + len(more)
        self.remember(base)
        replay = None
        if len(self._long) == 1:
            kind, compiled = self._kinds[self._long[0]], self._question.recipe.compiled
            replay = LayerReplay(base, more[0], kind, compiled=compiled)
        few = base._replace(numbers=[numbers[index] for index in self._long])
        complete = [self._kinds[index].number for index in self._long]
        overhead = max(map(overhead_of, (base, *more)))
        return Extrapolated(few, more, complete), replay, overhead

    def record_all_layers(self, step: MeshStep, choice: MeshChoice) -> MeshChoice:
        """Return the choice with the memory that torch's allocator reserves for all layers."""
        whole = self._question.sharded_pass(step, [kind.number for kind in self._kinds])
        self.num_traces += 1
        needed = choice.peak_bytes + overhead_of(whole)
        fits = needed <= self._question.device.memory_bytes
        return replace(choice, needed_bytes=needed, fits=fits, is_replayed=True)

    def remember(self, short: Short) -> None:
        """Keep the assumptions about a step that do not depend on the mesh."""
        roofline = short.rank.roofline
        if roofline is not None:
            self.error_margin = roofline.error_margin
            notes = (each for each in roofline.assumptions if each.code not in OF_ONE_MESH)
            self.assumptions |= dict.fromkeys(notes)


def _estimate(
    whole: Extrapolated, step: MeshStep, question: MeshQuestion, needed_bytes: int
) -> StepEstimate:
    """Return the estimate of all layers. The optimizer runs once in a step."""
    seconds, waiting = 0.0, 0.0
    for phase, each in whole.waits.items():
        times = 1 if phase == "optimizer" else step.num_microbatches
        waits = each.waited_for + each.left
        waiting += times * waits
        seconds += times * (each.computing + waits)
    peak = whole.peak
    return StepEstimate(
        local_params=whole.figure("local_params"),
        peak_bytes=sum(peak.values()),
        by_kind=peak,
        needed_bytes=needed_bytes,
        sent_bytes=whole.sent_bytes(step.num_microbatches),
        time=seconds,
        waiting=waiting,
        idle=0.0,
        macs=step.num_microbatches * whole.products(question.flops),
    )
