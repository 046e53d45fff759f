"""The verbs that say what generating text with a language model takes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, overload

from torch import Tensor, nn

from torchscan.analyses.generation.active_parameters import (
    active_parameters,
    count_parameters,
    weights_bytes,
)
from torchscan.analyses.generation.cache_size import CacheSize
from torchscan.analyses.generation.capacity import longest, work_bytes
from torchscan.analyses.generation.engines import Engine, EngineName, engine_named
from torchscan.analyses.generation.formulas import Fitted, SymbolicCosts
from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.analyses.generation.kept_modules import kept_modules, quantization_of
from torchscan.analyses.generation.serving_costs import BITS, Compute, Serving
from torchscan.analyses.generation.serving_margin import serving_margin_of
from torchscan.analyses.generation.shared_passes import LayerCheck, SharedPasses, SpreadModel
from torchscan.analyses.generation.stored import Stored, stored
from torchscan.analyses.module_costs import call_costs, operators_without_formula
from torchscan.analyses.roofline import (
    Fabric,
    Rates,
    Roofline,
    numbers_of,
    require_format,
    roofline_of,
)
from torchscan.errors import Argument, Give, InputError, RecordError, Value
from torchscan.garbage import collected_later
from torchscan.hardware.device_specs import Device, device_named
from torchscan.notes import Note
from torchscan.once import forget, once
from torchscan.precisions import Precision, supported_precision
from torchscan.progress import progress as told
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.engine_plan import experts_in
from torchscan.recording.engine_sharding import WeightCounts
from torchscan.recording.folding import UnfoldableError
from torchscan.recording.generation_passes import Generating, Kept, Length, Step, Stepping
from torchscan.recording.precision import type_of
from torchscan.recording.pretended_group import pretended
from torchscan.recording.request import require_module, require_positive
from torchscan.recording.sequences import positions_of
from torchscan.recording.sharding import Apply
from torchscan.recording.state import original_of
from torchscan.trace.trace import Trace
from torchscan.units import Tokens, tokens_of
from torchscan.wrong_arguments import explain_wrong_types

_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")


@overload
def analyze_generation(
    module: nn.Module,
    prompt: Tokens = 512,
    new: Tokens = 128,
    *,
    batch_size: int = 1,
    **asked: Any,
) -> Generation: ...


@overload
def analyze_generation(
    module: nn.Module,
    prompt: Tokens = 512,
    new: Tokens = 128,
    *,
    batch_size: Sequence[int],
    **asked: Any,
) -> GenerationSweep: ...


@explain_wrong_types  # type: ignore[misc]  # **asked: what both share
def analyze_generation(
    module: nn.Module,
    prompt: Tokens = 512,
    new: Tokens = 128,
    *,
    batch_size: int | Sequence[int] = 1,
    price: float | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    weights: str | None = None,
    cache: str | None = None,
    compute: Compute | None = None,
    engine: EngineName | Engine = "cuda-graph",
    inputs: Mapping[str, Tensor] | None = None,
    step: Step | None = None,
    mesh: Mapping[str, int] | None = None,
    expert_parallel: bool = False,
    apply: Apply | None = None,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    progress: bool = True,
) -> Generation | GenerationSweep:
    """Estimate memory, speed and price of text generation with a language model on a device.

    Only shapes are computed. Two passes are recorded: one over the prompt, and one over a single
    token, which gets the cache of the first. This holds for each model of transformers that
    generates, and for all models that take and return a cache by the same name.

    Args:
        module: the model. It is left unchanged; it may be on the meta device.
        prompt: tokens that each sequence begins with: a number, or a text such as "4k".
        new: tokens that are generated for each.
        batch_size: sequences at once; a list answers for several, as a :class:`GenerationSweep`.
        price: what the device costs an hour, in any currency: a sweep then has the price of a million new tokens.
        device: the name of the GPU, which ``torchscan devices`` lists; None: this machine's.
        precision: "fp32", "fp16", "bf16": what the model is converted to; None: the model as it is.
        weights: the format in which weights of products are stored, except the last product:
            "int8", "fp8", "int4", "nf4", "fp4", "mxfp4", "nvfp4"; with the number of weights that
            share a scale, "int4:32". Kernels unpack them.
        cache: the format in which keys and values are stored: "fp8", "int8".
        compute: the format in which products with these weights are computed: "fp8", "fp4". Inputs are
            quantized, and weights are stored in "fp8" or "nvfp4". None: the model's own format.
        engine: the program that serves the model: "cuda-graph" (compiled, in one CUDA graph, without
            time of the host), "vllm", "vllm-0.12", "vllm-0.6", "sglang", "tensorrt-llm", "transformers" (eager
            PyTorch), or a ``torchscan.types.Engine``.
        inputs: what the pass over the prompt is given besides, by argument name, for one sequence: an image, a sound. Where
            the model finds the places of an image among the tokens, also the tokens that the prompt begins with.
        step: ``step(model, cache, token)`` runs the model on tokens of shape [batch, length] and returns its output and the new
            cache; ``cache`` is None at first. For models that are called in a way of their own.
        mesh: several devices among which the model is spread, ``{"tp": 8}``; with ``{"dp": 2, "tp": 4}`` there are two such
            groups, each with a batch of its own. Memory is that of one device. Along "tp", models
            of transformers are sharded as in inference engines, or by their own plan if ``engine``
            is "transformers".
        expert_parallel: divide the experts of each layer among all devices of the mesh, "dp" and
            "tp", instead of each expert along "tp". Groups exchange tokens around the experts.
        apply: shards the model, as for :func:`parallel.plan`, in another way.
        per_machine: how many devices there are in a machine.
        network_gbs: what the network carries for each device, in one direction, in 10^9 bytes per second.
        progress: say what takes more than a second, in a terminal or a notebook.
    """
    sizes = list(batch_size) if isinstance(batch_size, Sequence) else [batch_size]
    _require_sizes(sizes)
    _require_price(price, is_sweep=not isinstance(batch_size, int))
    opened = opened_generation(
        module,
        prompt,
        new,
        device=device,
        precision=precision,
        weights=weights,
        cache=cache,
        compute=compute,
        engine=engine,
        inputs=inputs,
        step=step,
        mesh=mesh,
        expert_parallel=expert_parallel,
        apply=apply,
        per_machine=per_machine,
        network_gbs=network_gbs,
        progress=progress,
    )
    with opened as answer:
        generations = tuple(answer(size) for size in dict.fromkeys(sizes))
    if isinstance(batch_size, int):
        return generations[0]
    return GenerationSweep(generations=generations, price=price)


@contextlib.contextmanager
def opened_generation(
    module: nn.Module,
    prompt: Tokens,
    new: Tokens,
    *,
    device: str | None = None,
    precision: Precision | None = None,
    weights: str | None = None,
    cache: str | None = None,
    compute: Compute | None = None,
    engine: EngineName | Engine = "cuda-graph",
    inputs: Mapping[str, Tensor] | None = None,
    step: Step | None = None,
    mesh: Mapping[str, int] | None = None,
    expert_parallel: bool = False,
    apply: Apply | None = None,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    progress: bool = False,
    checks: dict[Length, LayerCheck] | None = None,
) -> Iterator[Callable[..., Generation]]:
    """Return a function that estimates a batch size, which shares records with the others.

    Its second argument is ``compute``. The arguments are those of :func:`analyze_generation`;
    ``checks`` is what other calls found out about this model and precision.
    """
    module = original_of(module)
    found_engine = engine_named(engine)
    setting = _setting(
        module,
        prompt,
        new,
        device=device,
        precision=precision,
        serving=_serving(module, weights, cache, compute, found_engine),
        engine=found_engine,
    )
    setting = _joined(setting, mesh, per_machine, network_gbs)
    if expert_parallel:
        _require_experts(module, mesh, apply)
        if not found_engine.is_graphed:
            raise InputError(
                Argument("expert_parallel"),
                f" divides experts as inference engines do, and not {found_engine.name}: give ",
                Give("engine", "vllm"),
                ", for example",
            )
        setting = replace(setting, expert_parallel=True)
    with (
        _token_by_token(module, step, is_shown=progress),
        _spread(module, setting, apply) as spread,
    ):
        shared = SharedPasses(
            spread,
            step=step,
            inputs=inputs,
            kernels=setting.kernels,
            precision=setting.precision,
            length=setting.length,
            limit=setting.limit,
            checks={} if checks is None else checks,
        )

        @lru_cache(maxsize=8)
        def question_for(compute: Compute | None) -> _GenerationQuestion:
            serving = _serving(module, weights, cache, compute, found_engine)
            _require_rate(setting.device, serving)
            return _GenerationQuestion(shared, replace(setting, serving=serving))

        def answer(batch_size: int, compute: Compute | None = compute) -> Generation:
            return question_for(compute).answer(batch_size)

        yield answer


def _require_price(price: float | None, *, is_sweep: bool) -> None:
    if price is None:
        return
    if isinstance(price, bool) or not isinstance(price, int | float) or not price > 0:
        raise InputError.of_value(
            "price", price, "give the price of an hour of the device, as a number above 0"
        )
    if not is_sweep:
        raise InputError(
            Argument("price"), " needs several batch sizes: give ", Give("batch_size", [1, 8, 32])
        )


@explain_wrong_types
def symbolic_costs(
    module: nn.Module,
    near: Tokens = 64,
    *,
    precision: Precision | None = None,
    step: Step | None = None,
    progress: bool = True,
) -> SymbolicCosts:
    """Return the costs of a language model as exact polynomials in batch ``B`` and length ``T``.

    They are fitted to passes of few tokens and checked on two more passes, one of them eight times
    as long. A cost that is not a polynomial, for example of a model that splits its tokens into
    chunks, is left out.

    Args:
        module: the model, as for :func:`analyze_generation`.
        near: the length from which on there are records: choose one that is longer than a sliding window.
        precision: what the model is converted to.
        step: how the model is called.
        progress: say what takes more than a second.
    """
    module = original_of(module)
    require_module(module)
    near = tokens_of("near", near)
    precision = supported_precision(precision, _PRECISIONS)
    called = module if step is None else Stepping(module, step)
    kernels = {"device_type": "cuda", "has_flash": True}

    def passes_of(batch_size: int) -> Generating:
        return Generating(called, batch_size=batch_size, precision=precision, kernels=kernels)

    with _token_by_token(module, step, is_shown=progress):
        short = passes_of(1)
        short.fold(Length(near))
        try:
            return Fitted(lambda batch_size: passes_of(batch_size).folded_like(short), near).costs()
        except UnfoldableError:  # in a longer pass, layers differ that are equal in a short one
            return Fitted(passes_of, near).costs()


@contextlib.contextmanager
def _token_by_token(module: nn.Module, step: Step | None, *, is_shown: bool) -> Iterator[None]:
    """Say what takes its time, and of a model that fails how those are called that do not."""
    name = type_name_of(module)
    with told(f"torchscan: {name}, token by token", is_shown=is_shown):
        try:
            yield
        except RecordError as error:
            if step is not None:
                raise
            raise _with_advice(error, name) from error.__cause__


def _with_advice(error: RecordError, name: str) -> RecordError:
    """Return the error in one line, without the inputs, which the user did not choose."""
    found = RecordError(
        f"{name} cannot be run token by token: {error.problem}",
        "; a model that generates takes tokens and the cache that it returned: give its other "
        "arguments as ",
        *(Give("inputs"), ", or ", Give("step"), ", a function that calls the model"),
    )
    found.so_far, found.failed = error.so_far, error.failed
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """All of a question but the model and the batch."""

    device: Device
    precision: Precision | None
    serving: Serving
    engine: Engine
    length: Length
    #: tokens that the model has positions for
    limit: int | None
    #: the format of the weights in the checkpoint, if it is not the one of the question
    unapplied_format: str | None = None
    #: the devices among which the model is spread, and what joins them
    mesh: Mapping[str, int] | None = None
    fabric: Fabric | None = None
    #: True if the experts are divided among all devices
    expert_parallel: bool = False
    #: True if the model has experts, of which a token uses some
    is_mixture: bool = False

    @property
    def is_gpu(self) -> bool:
        return self.device.vendor != "CPU"

    @property
    def kernels(self) -> Mapping[str, Any]:
        """The kind of device whose kernels are recorded."""
        device_type = "cuda" if self.is_gpu else "cpu"
        return {
            "device_type": device_type,
            "has_flash": self.device.has_flash,
            "has_engine_attention": self.is_gpu and self.engine.is_graphed,
        }


def _serving(
    module: nn.Module,
    weights: str | None,
    cache: str | None,
    compute: Compute | None,
    engine: Engine,
) -> Serving:
    packed = None if weights is None else stored(weights, "weights")
    if packed is not None and not packed.is_packed:
        raise InputError.of_value(
            "weights", weights, "give ", Give("precision", weights), ", which converts the model"
        )
    if compute is not None:
        packed = _computed_weights(compute, packed)
    return Serving(
        weights=packed,
        kept_modules=kept_modules(module),
        cache=None if cache is None else stored(cache, "cache"),
        compute=compute,
        appends=engine.is_graphed,
        has_flash_3=engine.has_flash_3,
        fuses_quantization=engine.fuses_quantization,
        joins_projections=engine.joins_projections,
        joins_experts=engine.is_graphed,
    )


_WEIGHTS_OF: Mapping[Compute, str] = {"fp8": "fp8", "fp4": "nvfp4"}


def _computed_weights(compute: Compute, packed: Stored | None) -> Stored:
    """Return the format of weights that are multiplied in 8 or 4 bits."""
    if compute not in _WEIGHTS_OF:
        raise InputError.of_value("compute", compute, 'give "fp8" or "fp4"')
    usual = stored(_WEIGHTS_OF[compute], "weights")
    if packed is None:
        return usual
    is_mixed = compute == "fp8" and packed.name in ("mxfp4", "nvfp4")
    if (packed.bits != usual.bits and not is_mixed) or packed.name.startswith("int"):
        raise InputError(
            Argument("compute"),
            f" is {compute!r}, and weights are in {packed}: give ",
            Give("weights", str(usual)),
        )
    return packed


def _setting(
    module: nn.Module,
    prompt: Tokens,
    new: Tokens,
    *,
    device: str | None,
    precision: Precision | None,
    serving: Serving,
    engine: Engine,
) -> _Setting:
    require_module(module)
    prompt, new = tokens_of("prompt", prompt), tokens_of("new", new)
    advice = ("; ", Argument("weights"), " sets how weights are stored")
    precision = supported_precision(precision, _PRECISIONS, *advice)
    found, limit = device_named(device), positions_of(module)
    quantization = quantization_of(module).get("quant_method")
    is_mixture = any(experts_in(each) is not None for each in module.modules())
    require_format(found, precision)
    _require_rate(found, serving)
    if limit is not None and prompt + new > limit:
        raise InputError(
            f"the model has {limit:,} positions, fewer than {prompt:,} + {new:,} tokens: give a "
            "smaller ",
            Argument("prompt"),
            " or ",
            Argument("new"),
        )
    return _Setting(
        device=found,
        precision=precision,
        serving=serving,
        engine=engine,
        length=Length(prompt, new),
        limit=limit,
        unapplied_format=quantization if serving.weights is None else None,
        is_mixture=is_mixture,
    )


def _require_rate(device: Device, serving: Serving) -> None:
    """Refuse a format that the matrix units of a device do not have."""
    compute = serving.compute
    if compute is None:
        return
    if compute not in device.flops_per_second:
        others = [each for each in _WEIGHTS_OF if each in device.flops_per_second]
        advice = f"give {' or '.join(map(repr, others))}" if others else "leave it out"
        raise InputError(
            Argument("compute"),
            f" is {compute!r}, and {device.name} has no {compute} arithmetic: {advice}; ",
            Argument("weights"),
            " sets how weights are stored",
        )
    is_mixed = serving.weights is not None and serving.weights.bits < BITS[compute]
    if is_mixed and "fp4" not in device.flops_per_second:
        raise InputError(
            Argument("compute"),
            f" is {compute!r}, and {device.name} does not multiply it by weights in "
            f"{serving.weights}: leave it out",
        )


def _joined(
    setting: _Setting, mesh: Mapping[str, int] | None, per_machine: int, network_gbs: float
) -> _Setting:
    if mesh is None:
        return setting
    fabric = Fabric(
        device=setting.device,
        per_machine=per_machine,
        network=1e9 * network_gbs,
        is_engine=setting.engine.is_graphed,
    )
    return replace(setting, mesh=mesh, fabric=fabric)


@contextlib.contextmanager
def _spread(module: nn.Module, setting: _Setting, apply: Apply | None) -> Iterator[SpreadModel]:
    """Simulate the mesh."""
    if setting.mesh is None:
        if apply is not None:
            raise InputError(
                Argument("apply"),
                " shards the model over a mesh: give ",
                Give("mesh", {"tp": 8}),
                ", for example",
            )
        yield SpreadModel(module, None, None, None)
        return
    if apply is None and not setting.mesh.keys() <= {"dp", "tp"}:
        raise InputError.of_value(
            "mesh",
            dict(setting.mesh),
            'name its dimensions "dp" and "tp", or give ',
            Argument("apply"),
            "; ",
            Give("expert_parallel", True),
            " divides experts",
        )
    with pretended(setting.mesh, 0) as devices:
        dtype = None if setting.precision is None else type_of(setting.precision)
        spread = SpreadModel(
            module,
            devices,
            apply,
            dtype,
            expert_parallel=setting.expert_parallel,
            is_engine=setting.engine.is_graphed,
        )
        is_divided = setting.expert_parallel or setting.mesh.get("tp", 1) > 1
        try:
            yield spread
        except RecordError as error:
            if apply is not None or not is_divided:
                raise
            raise _failed_on_mesh(error, module) from error


def _failed_on_mesh(error: RecordError, module: nn.Module) -> InputError:
    """Return the error for a model whose part on one device cannot run."""
    return InputError(
        f"one device cannot run its part of {type_name_of(module)}: {error.problem}: if the model "
        "runs without ",
        Argument("mesh"),
        ", give ",
        Give("apply"),
        ", a function of the model and the mesh that shards it",
    )


def _require_experts(
    module: nn.Module, mesh: Mapping[str, int] | None, apply: Apply | None
) -> None:
    """Refuse expert parallelism without experts or devices to divide them among."""
    if not WeightCounts.of(module).experts:
        raise InputError(
            f"{type_name_of(module)} has no experts that can be divided: leave out ",
            Argument("expert_parallel"),
        )
    if mesh is None:
        raise InputError(
            Argument("expert_parallel"),
            " divides the experts among devices: give ",
            Give("mesh", {"tp": 8}),
            ", for example",
        )
    others = [name for name in mesh if name not in ("dp", "tp")]
    if others:
        raise InputError(
            Argument("expert_parallel"),
            f" divides the experts along dp and tp, and a dimension of the mesh is {others[0]!r}: "
            "give ",
            Give("mesh", {"dp": 2, "tp": 4}),
            ", for example",
        )
    if apply is not None:
        raise InputError(
            Argument("expert_parallel"),
            " and ",
            Argument("apply"),
            " are both given: have the function divide the experts",
        )


def _require_sizes(batch_sizes: object) -> None:
    if isinstance(batch_sizes, str) or not isinstance(batch_sizes, Sequence) or not batch_sizes:
        raise InputError.of_value(
            "batch_size", batch_sizes, "give at least one, such as ", Value([1, 8])
        )
    for each in batch_sizes:
        require_positive("batch_size", each)


def _unpriced(*traces: Trace) -> tuple[str, ...]:
    """The operators without a price, and the modules that a record does not follow."""
    names = [
        name
        for each in traces
        for name in (
            *operators_without_formula(each, call_costs(each)),
            *each.provenance.unrecorded_modules,
        )
    ]
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompts:
    """Time and memory of the pass over the prompts."""

    #: seconds of one prompt, and until each sequence has its first token
    time_of_one: float
    time_of_all: float
    #: bytes besides weights and caches
    work: int
    #: True if these are the bytes of all prompts at once
    is_of_all: bool
    #: a pass over prompts, without the layers that were left out
    trace: Trace


class _GenerationQuestion:
    """A question and its records, for any number of batch sizes."""

    def __init__(self, shared: SharedPasses, setting: _Setting) -> None:
        self._shared = shared
        self._setting = setting
        #: rooflines of passes over prompts by batch size
        self._prefills: dict[int, Roofline] = {}

    def answer(self, batch_size: int) -> Generation:
        """All of it."""
        require_positive("batch_size", batch_size)
        with collected_later():
            try:
                return self._answer(batch_size)
            except UnfoldableError:  # in longer passes, layers differ that are equal in short ones
                self._shared.run_all_layers()
                self._prefills.clear()
                forget(self, "_cache")
                return self._answer(batch_size)

    def _answer(self, batch_size: int) -> Generation:
        before = self._shared.num_records
        asked, serving, shared = self._setting, self._setting.serving, self._shared
        prompt, new = asked.length.prompt, asked.length.generated
        shared.alone.require_room(prompt)
        # before all else: then only one pass of all layers is recorded
        passes = shared.of_batch(batch_size)
        middle = passes.continued(Length(prompt, new // 2))
        prefill = self._prefill(1, prompt)
        decode = self._roofline(middle, graphed=asked.is_gpu and asked.engine.is_graphed)
        prompts = self._prompts(prefill, batch_size)
        work = work_bytes(middle)
        held = weights_bytes(middle.short, serving, middle.repeats)
        at_end = self._cache(prompt + new)
        room = asked.device.room_bytes - held
        limit = asked.limit if self._cache.may_go_on else prompt + new
        peak = max(work, prompts.work)
        return Generation(
            device=asked.device.name,
            precision=asked.precision,
            weights=None if serving.weights is None else str(serving.weights),
            cache=None if serving.cache is None else str(serving.cache),
            compute=serving.compute,
            engine=asked.engine,
            prompt=prompt,
            new=new,
            batch_size=batch_size,
            mesh=asked.mesh,
            params=count_parameters(middle.short, shared.sizes),
            active_params=active_parameters(middle.short, shared.sizes, middle.repeats),
            weights_bytes=held,
            cache_bytes=at_end,
            cache_bytes_per_token=at_end - self._cache(prompt + new - 1),
            work_bytes=work,
            prompt_work_bytes=prompts.work,
            max_context=longest(self._cache, (room - peak) // batch_size, prompt + new, limit),
            max_batch_size=self._max_batch_size(
                room, at_end, work // batch_size, batch_size, prompts
            ),
            first_token=prompts.time_of_one,
            first_token_of_all=prompts.time_of_all,
            per_token=decode.time_estimate + asked.engine.host_seconds(batch_size),
            margin=serving_margin_of(
                asked.device,
                asked.engine,
                batch_size,
                decode.error_margin,
                is_mixture=asked.is_mixture,
            ),
            prefill=prefill,
            decode=decode,
            num_traces=shared.num_records - before,
            without_formula=_unpriced(prompts.trace, middle.short),
            unreadable_weights=middle.short.provenance.unreadable_weights,
            assumptions=self._assumptions(decode),
            warnings=tuple(dict.fromkeys((*prefill.warnings, *decode.warnings))),
        )

    def _prompts(self, prefill: Roofline, batch_size: int) -> _Prompts:
        """Return what the prompts take, given the roofline of one.

        An engine with chunks processes as many prompts in one pass as fit into a chunk, and a
        longer prompt in several passes.
        """
        asked = self._setting
        host, prompt, chunk = asked.engine.host_seconds(1), asked.length.prompt, None
        if not self._cache.is_loop:
            chunk = asked.engine.prompt_chunk
        num_passes = 1
        if chunk is not None and asked.engine.splits_prompts:
            num_passes = -(-prompt // chunk)
        alone = prefill.time_estimate + host * num_passes
        if batch_size == 1:
            whole, together = alone, 1
        elif chunk is None:
            whole, together = self._prefill(batch_size, prompt).time_estimate + host, batch_size
        else:
            together = min(batch_size, max(1, chunk // prompt))
            of_pass = self._prefill(together, prompt).time_estimate
            whole = batch_size / together * (of_pass + host * num_passes)
        kept = self._shared.of_batch(together).prompted(Length(prompt))
        return _Prompts(
            time_of_one=alone,
            time_of_all=max(whole, alone),
            work=work_bytes(kept) // num_passes,
            is_of_all=chunk is None,
            trace=kept.short,
        )

    @staticmethod
    def _max_batch_size(
        room: int, cache: int, work: int, batch_size: int, prompts: _Prompts
    ) -> int:
        """Return the number of sequences that fit, each with a cache and the bytes of its token."""
        if prompts.is_of_all:
            return max(0, room) // max(1, cache + max(work, prompts.work // batch_size))
        return max(0, room - prompts.work) // max(1, cache + work)

    @once
    def _cache(self) -> CacheSize:
        asked = self._setting
        return CacheSize(
            self._shared.of_batch(1),
            asked.length,
            asked.serving.cache,
            asked.limit,
            is_loop=self._shared.is_loop,
        )

    def _prefill(self, batch_size: int, prompt: int) -> Roofline:
        """Return the roofline of a pass over the prompts of so many sequences."""
        if batch_size not in self._prefills:
            kept = self._shared.of_batch(batch_size).prompted(Length(prompt))
            self._prefills[batch_size] = self._roofline(kept)
        return self._prefills[batch_size]

    def _roofline(self, kept: Kept, *, graphed: bool = False) -> Roofline:
        asked = self._setting
        return roofline_of(
            kept.short,
            Rates(asked.device),
            precision=asked.precision,
            numbers=numbers_of(asked.device, asked.precision),
            compiled=asked.is_gpu and asked.engine.is_graphed,
            serving=asked.serving,
            fabric=asked.fabric,
            graphed=graphed,
            repeats=kept.repeats,
        )

    def _assumptions(self, decode: Roofline) -> tuple[Note, ...]:
        notes = [*self._engine_notes(), *self._beyond()]
        asked = self._setting
        if asked.expert_parallel and asked.mesh is not None:
            notes.append(Note.of("experts-divided", devices=math.prod(asked.mesh.values())))
        whole = self._shared.whole_matrices
        if whole:
            notes.append(Note.of("layers-not-divided", names=", ".join(whole)))
        return (*notes, *decode.assumptions)

    def _engine_notes(self) -> list[Note]:
        engine = self._setting.engine
        if not engine.is_graphed:
            serving = Note.of("eager-serving")
        elif self._setting.is_gpu:
            serving = Note.of("graphed-serving")
        else:
            serving = Note.of("host-serving")
        notes = [serving, Note.of("equal-sequences")]
        name = engine.version or engine.name
        if engine.host_time:
            notes.append(Note.of("engine-host-time", engine=name, seconds=engine.host_time))
        if engine.host_time_per_sequence:
            seconds = engine.host_time_per_sequence
            notes.append(Note.of("engine-sequence-time", engine=name, seconds=seconds))
        if self._setting.unapplied_format is not None:
            quantization = self._setting.unapplied_format
            notes.append(Note.of("checkpoint-format", quantization=quantization))
        if engine.prompt_chunk is not None:
            notes.append(Note.of("prompt-in-chunks", tokens=engine.prompt_chunk))
        return notes

    def _beyond(self) -> list[Note]:
        reach, asked = self._cache.reach, self._setting
        if not self._cache.may_go_on:
            return [Note.of("reach-limited", tokens=reach)]
        if asked.limit is not None and reach >= asked.limit:
            return []
        if self._cache(reach + 1) > self._cache(reach):
            return [Note.of("cache-grows", tokens=reach)]
        return [Note.of("cache-ends", tokens=reach)]
