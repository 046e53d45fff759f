"""The question of a search for ways to serve a model, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import nn

from torchscan.analyses.generation.engines import Engine
from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.generation.serving_costs import BITS, Compute
from torchscan.analyses.generation.serving_limits import ServingLimits
from torchscan.analyses.generation.serving_margin import ServingMargin
from torchscan.analyses.generation.serving_search import (
    ModelLayout,
    ServingChoice,
    ServingSearch,
    by_rate,
)
from torchscan.analyses.generation.shared_passes import LayerCheck
from torchscan.analyses.generation.stored import stored
from torchscan.errors import TorchscanError
from torchscan.generation_session import opened_generation
from torchscan.generation_setting import GenerationOptions
from torchscan.hardware.device_specs import Device
from torchscan.notes import Note
from torchscan.precisions import Precision
from torchscan.recording.engine_sharding import WeightCounts
from torchscan.recording.generation_passes import Length
from torchscan.recording.precision import type_of

#: factor from one batch size to the next; mixtures of experts have more ways, which take longer
_GROWTH, _GROWTH_WITH_EXPERTS = 2, 4
#: the estimate of a batch size, with products in a format
_Answer = Callable[[int, Compute | None], Generation]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """The GPUs that share a copy and a format, with the estimates of batches that fit."""

    layout: ModelLayout
    generations: Sequence[Generation]

    @property
    def num_traces(self) -> int:
        """Number of recorded passes."""
        return max(each.num_traces for each in self.generations)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingQuestion:
    """All of a search."""

    module: nn.Module
    prompt: int
    new: int
    device: Device
    engine: Engine
    precision: Precision | None
    weights: str | None
    cache: str | None
    most: int
    per_machine: int
    network_gbs: float
    limits: ServingLimits
    #: arguments that errors may advise to give
    arguments: Collection[str]

    def answer(self, formats: Sequence[Compute | None], *, separate: bool) -> ServingSearch:
        """Return the estimates of all ways, sorted."""
        limits = self.limits
        ways, refused = self._ways(formats)
        choices = [limits.combined(each, way.layout) for way in ways for each in way.generations]
        if separate:
            choices += self._separated(ways)
        ordered = by_rate(choices)
        margin: ServingMargin | None = None
        assumptions: tuple[Note, ...] = ()
        if ordered:
            best = ordered[0].generation
            margin, assumptions = best.margin, best.assumptions
        if separate:
            is_near = limits.num_gpus <= self.per_machine
            link = "links of the machine" if is_near else "network"
            assumptions = (*assumptions, Note.of("prompts-apart", link=link))
        return ServingSearch(
            device=self.device.name,
            num_gpus=limits.num_gpus,
            engine=self.engine.name,
            prompt=self.prompt,
            new=self.new,
            max_first_token=limits.max_first_token,
            max_per_token=limits.max_per_token,
            price=limits.price,
            choices=ordered,
            refused=refused,
            margin=margin,
            assumptions=assumptions,
            num_traces=sum(way.num_traces for way in ways),
        )

    def _ways(self, formats: Sequence[Compute | None]) -> tuple[list[_Way], dict[str, Note]]:
        """Return the ways that fit, and the reasons why others were left out."""
        ways: list[_Way] = []
        refused: dict[str, Note] = {}
        checks: dict[Length, LayerCheck] = {}
        counts = WeightCounts.of(self.module)
        for layout in self._layouts(has_experts=counts.experts > 0):
            try:
                by_format = self._estimates(layout, formats, counts, checks, refused)
            except TorchscanError as error:
                refused[str(layout)] = self._refuse(error)
                continue
            ways += (_Way(layout=layout, generations=each) for each in by_format if each)
        return ways, refused

    def _estimates(
        self,
        layout: ModelLayout,
        formats: Sequence[Compute | None],
        counts: WeightCounts,
        checks: dict[Length, LayerCheck],
        refused: dict[str, Note],
    ) -> list[tuple[Generation, ...]]:
        """Return the estimates of batches that fit, for each format; ``refused`` gets reasons."""
        names = {each: f"{layout}, {each}" for each in formats}
        if None in names:
            names[None] = str(layout)
        fitting = [each for each in formats if self._may_fit(counts, layout, each)]
        no_room = Note.of("model-has-no-room", device=self.device.name)
        refused.update((names[each], no_room) for each in formats if each not in fitting)
        estimates: list[tuple[Generation, ...]] = []
        if not fitting:
            return estimates
        growth = _GROWTH_WITH_EXPERTS if counts.experts else _GROWTH
        with self._opened(layout, checks) as answer:
            for each in fitting:
                try:
                    generations = tuple(self._estimate(answer, each, growth))
                except TorchscanError as error:
                    refused[names[each]] = self._refuse(error)
                    continue
                estimates.append(generations)
                if not generations:
                    refused[names[each]] = no_room
        return estimates

    def _refuse(self, error: TorchscanError) -> Note:
        """Return the reason of an error, without advice on arguments that a search lacks."""
        problem = error.parts[0]
        reason = error.problem
        if isinstance(problem, str) and not set(error.parameters) <= set(self.arguments):
            reason = problem
        return Note.of("way-refused", reason=reason)

    def _layouts(self, *, has_experts: bool) -> Iterator[ModelLayout]:
        """Yield the ways to share a copy, of which several fill all GPUs, inside a machine."""
        num_gpus = self.limits.num_gpus
        most = min(num_gpus, self.per_machine)
        sizes = [size for size in range(1, most + 1) if num_gpus % size == 0]
        for size in sizes:
            yield ModelLayout(size)
        if not has_experts:
            return
        for size in sizes[1:]:
            for tp in sizes:
                # groups of several GPUs that share the experts: of all GPUs only
                is_compared = tp in (1, size) or size == sizes[-1]
                if size % tp == 0 and is_compared:
                    yield ModelLayout(tp, size // tp, expert_parallel=True)

    def _may_fit(self, counts: WeightCounts, layout: ModelLayout, compute: Compute | None) -> bool:
        """Return whether the weights leave room on a GPU, if all were stored in the format."""
        groups = layout.num_gpus if layout.expert_parallel else layout.tp
        number = counts.experts / groups + counts.others / layout.tp
        bits = 8 * counts.itemsize
        if self.precision is not None:
            bits = 8 * type_of(self.precision).itemsize
        if self.weights is not None:
            bits = stored(self.weights, "weights").bits
        elif compute is not None:
            bits = BITS[compute]
        return number * bits / 8 < self.device.room_bytes

    def _opened(
        self, layout: ModelLayout, checks: dict[Length, LayerCheck]
    ) -> AbstractContextManager[_Answer]:
        options = GenerationOptions(
            device=self.device.name,
            precision=self.precision,
            weights=self.weights,
            cache=self.cache,
            engine=self.engine,
            mesh=layout.mesh,
            expert_parallel=layout.expert_parallel,
            per_machine=self.per_machine,
            network_gbs=self.network_gbs,
        )
        return opened_generation(self.module, self.prompt, self.new, options, checks)

    def _estimate(
        self, answer: _Answer, compute: Compute | None, growth: int
    ) -> Iterator[Generation]:
        """Estimate growing batches, until one does not fit or is slower than the limit."""
        generation = answer(1, compute)
        if not generation.fits:
            return
        yield generation
        most = min(self.most, generation.max_batch_size or self.most)
        while not self._is_slow(generation) and generation.batch_size < most:
            generation = answer(min(growth * generation.batch_size, most), compute)
            yield generation
        if not self._is_slow(generation) or generation.batch_size <= 2:
            return
        below = generation.batch_size * 3 // 4
        if growth > _GROWTH:
            middle = answer(generation.batch_size // 2, compute)
            yield middle
            if self._is_slow(middle):
                below //= 2
        yield answer(below, compute)

    def _is_slow(self, generation: Generation) -> bool:
        limit = self.limits.max_per_token
        return limit is not None and generation.per_token_under_load > limit

    def _separated(self, ways: Sequence[_Way]) -> Iterator[ServingChoice]:
        for prompts in ways:
            for tokens in ways:
                first = prompts.generations[0]
                if first.compute != tokens.generations[0].compute:
                    continue
                for each in tokens.generations:
                    choice = self.limits.separated(first, prompts.layout, each, tokens.layout)
                    if choice is not None:
                        yield choice
