"""``parallel.search_serving``: how to serve a language model within limits of latency."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import nn

from torchscan.analyses.generation.engines import Engine, EngineName, engine_named
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
from torchscan.analyses.roofline import Fabric
from torchscan.errors import Argument, InputError, TorchscanError, Value
from torchscan.generation import opened_generation
from torchscan.generation_setting import GenerationOptions
from torchscan.hardware.device_specs import Device, device_named
from torchscan.notes import Note
from torchscan.precisions import Precision
from torchscan.progress import progress as told
from torchscan.recording.engine_sharding import WeightCounts
from torchscan.recording.generation_passes import Length
from torchscan.recording.precision import type_of
from torchscan.recording.request import require_module, require_positive
from torchscan.units import Tokens, checked_seconds, parse_duration, tokens_of
from torchscan.wrong_arguments import explain_wrong_types

#: sequences at once that engines allow by default
_MOST_SEQUENCES = 256
#: factor from one batch size to the next; mixtures of experts have more ways, which take longer
_GROWTH, _GROWTH_WITH_EXPERTS = 2, 4
#: the estimate of a batch size, with products in a format
_Answer = Callable[[int, Compute | None], Generation]


@explain_wrong_types
def search_serving(
    module: nn.Module,
    prompt: Tokens = 512,
    new: Tokens = 128,
    *,
    num_gpus: int,
    device: str | None = None,
    max_first_token: float | str | None = None,
    max_per_token: float | str | None = None,
    price: float | None = None,
    engine: EngineName | Engine = "cuda-graph",
    precision: Precision | None = None,
    formats: Sequence[Compute | None] | None = None,
    weights: str | None = None,
    cache: str | None = None,
    max_batch_size: int = _MOST_SEQUENCES,
    separate: bool = False,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    progress: bool = True,
) -> ServingSearch:
    """Find the way to serve a language model with the most tokens per second within limits.

    Compare degrees of tensor parallelism, formats of products and batch sizes, under a steady load:
    a request arrives whenever one ends. Experts are divided along their inner dimension or, with
    tensor or data parallel attention, among all GPUs of a copy. Only shapes are computed.

    Args:
        module: the model, as for :func:`torchscan.analyze_generation`.
        prompt: the number of tokens that each request begins with.
        new: the number of tokens that are generated for each request.
        num_gpus: the number of devices.
        device: the name of the GPU, which ``torchscan devices`` lists; None: this machine's.
        max_first_token: the longest time until the first token of a request: seconds, or a text
            such as "500 ms".
        max_per_token: the longest time per further token, with the prompts of other requests.
        price: the price of a device per hour, in any currency.
        engine: the program that serves the model, as for :func:`torchscan.analyze_generation`.
        precision: the format that the model is converted to; None: the model as it is.
        formats: the formats of products to compare; None stands for the model's own. By default,
            this one, and "fp8" if the device has it.
        weights: the format in which weights are stored, if products are not computed in it.
        cache: the format in which keys and values are stored.
        max_batch_size: the largest number of sequences of one copy of the model at once.
        separate: compare GPUs that only process prompts, with others that only generate, too. The
            first token contains the time to send keys and values of the prompt.
        per_machine: the number of devices in a machine. Tensor parallelism stays inside one.
        network_gbs: the bandwidth of the network for each device, in one direction, in 10^9 bytes
            per second.
        progress: show what takes more than a second, in a terminal or a notebook.
    """
    require_module(module)
    require_positive("num_gpus", num_gpus)
    require_positive("max_batch_size", max_batch_size)
    found = device_named(device, is_timed=True)
    compared = _formats(found, formats, weights)
    question = _ServingQuestion(
        module=module,
        prompt=tokens_of("prompt", prompt),
        new=tokens_of("new", new),
        device=found,
        engine=engine_named(engine),
        precision=precision,
        weights=weights,
        cache=cache,
        most=max_batch_size,
        per_machine=per_machine,
        network_gbs=network_gbs,
        limits=ServingLimits(
            num_gpus=num_gpus,
            max_first_token=_seconds("max_first_token", max_first_token),
            max_per_token=_seconds("max_per_token", max_per_token),
            price=price,
            fabric=Fabric(device=found, per_machine=per_machine, network=1e9 * network_gbs),
        ),
    )
    with told(f"torchscan: {type(module).__name__} on {num_gpus} GPUs", is_shown=progress):
        return question.answer(compared, separate=separate)


def _seconds(name: str, limit: float | str | None) -> float | None:
    """Return a limit in seconds."""
    if limit is None:
        return None
    if isinstance(limit, str):
        return parse_duration(limit)
    if isinstance(limit, bool) or not limit > 0:
        raise InputError.of_value(name, limit, 'give seconds, more than 0, or "30 ms"')
    return checked_seconds(name, limit)


def _formats(
    device: Device, formats: Sequence[Compute | None] | None, weights: str | None
) -> Sequence[Compute | None]:
    """Return the formats to compare: the model's own, and fp8 if the device has it."""
    if formats is None:
        has_fp8 = "fp8" in device.flops_per_second and weights is None
        return (None, "fp8") if has_fp8 else (None,)
    if isinstance(formats, str) or not formats:
        raise InputError.of_value(
            "formats", formats, "give formats to compare, such as ", Value([None, "fp8"])
        )
    if weights is not None and any(each is not None for each in formats):
        raise InputError(
            Argument("weights"), " and ", Argument("formats"), " are both given: give one of them"
        )
    return tuple(dict.fromkeys(formats))


def _refusal(error: TorchscanError) -> Note:
    """Return the reason of an error, without advice that names arguments which a search lacks."""
    arguments = inspect.signature(search_serving).parameters
    problem = error.parts[0]
    reason = error.problem
    if isinstance(problem, str) and not arguments.keys() >= set(error.parameters):
        reason = problem
    return Note.of("way-refused", reason=reason)


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
class _ServingQuestion:
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

    def answer(self, formats: Sequence[Compute | None], *, separate: bool) -> ServingSearch:
        """Estimate all ways, and sort them."""
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
                found = self._estimates(layout, formats, counts, checks, refused)
            except TorchscanError as error:
                refused[str(layout)] = _refusal(error)
                continue
            ways += (_Way(layout=layout, generations=each) for each in found if each)
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
        found: list[tuple[Generation, ...]] = []
        if not fitting:
            return found
        growth = _GROWTH_WITH_EXPERTS if counts.experts else _GROWTH
        with self._opened(layout, checks) as answer:
            for each in fitting:
                try:
                    generations = tuple(self._estimate(answer, each, growth))
                except TorchscanError as error:
                    refused[names[each]] = _refusal(error)
                    continue
                found.append(generations)
                if not generations:
                    refused[names[each]] = no_room
        return found

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
            below = below // 2 if self._is_slow(middle) else below
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
