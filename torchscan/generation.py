"""The verbs that say what generating text with a language model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from torch import Tensor, nn

from torchscan.analyses.generation.engines import Engine, EngineName
from torchscan.analyses.generation.formulas import Fitted, SymbolicCosts
from torchscan.analyses.generation.generation_result import Generation, GenerationSweep
from torchscan.analyses.generation.serving_costs import Compute
from torchscan.errors import Argument, Give, InputError, Value
from torchscan.generation_session import explained_steps, opened_generation
from torchscan.generation_setting import GENERATION_PRECISIONS, GenerationOptions
from torchscan.precisions import Precision, supported_precision
from torchscan.recording.folding import UnfoldableError
from torchscan.recording.generation_passes import Generating, Length, Step, Stepping
from torchscan.recording.request import require_module, require_positive
from torchscan.recording.sharding import Apply
from torchscan.recording.state import original_of
from torchscan.units import Tokens, tokens_of
from torchscan.wrong_arguments import explain_wrong_types


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
        price: what the device costs an hour, in any currency: a sweep then has the price of a
            million new tokens.
        device: the name of the GPU, which ``torchscan devices`` lists; None: this machine's.
        precision: "fp32", "fp16", "bf16": what the model is converted to; None: the model as it is.
        weights: the format in which weights of products are stored, except the last product:
            "int8", "fp8", "int4", "nf4", "fp4", "mxfp4", "nvfp4"; with the number of weights that
            share a scale, "int4:32". Kernels unpack them.
        cache: the format in which keys and values are stored: "fp8", "int8".
        compute: the format in which products with these weights are computed: "fp8", "fp4". Inputs
            are quantized, and weights are stored in "fp8" or "nvfp4". None: the model's own format.
        engine: the program that serves the model: "cuda-graph" (compiled, in one CUDA graph,
            without time of the host), "vllm", "vllm-0.12", "vllm-0.6", "sglang", "tensorrt-llm",
            "transformers" (eager PyTorch), or a ``torchscan.types.Engine``.
        inputs: what the pass over the prompt is given besides, by argument name, for one sequence:
            an image, a sound. Where the model finds the places of an image among the tokens, also
            the tokens that the prompt begins with.
        step: ``step(model, cache, token)`` runs the model on tokens of shape [batch, length] and
            returns its output and the new cache; ``cache`` is None at first. For models that are
            called in a way of their own.
        mesh: several devices among which the model is spread, ``{"tp": 8}``; with
            ``{"dp": 2, "tp": 4}`` there are two such groups, each with a batch of its own. Memory
            is that of one device. Along "tp", models of transformers are sharded as in inference
            engines, or by their own plan if ``engine`` is "transformers".
        expert_parallel: divide the experts of each layer among all devices of the mesh, "dp" and
            "tp", instead of each expert along "tp". Groups exchange tokens around the experts.
        apply: shards the model, as for :func:`parallel.plan`, in another way.
        per_machine: how many devices there are in a machine.
        network_gbs: what the network carries for each device, in one direction, in 10^9 bytes per
            second.
        progress: say what takes more than a second, in a terminal or a notebook.
    """
    sizes = list(batch_size) if isinstance(batch_size, Sequence) else [batch_size]
    _require_sizes(sizes)
    _require_price(price, is_sweep=not isinstance(batch_size, int))
    options = GenerationOptions(
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
    with opened_generation(module, prompt, new, options) as answer:
        generations = tuple(answer(size) for size in dict.fromkeys(sizes))
    if isinstance(batch_size, int):
        return generations[0]
    return GenerationSweep(generations=generations, price=price)


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
        near: the length from which on there are records: choose one that is longer than a sliding
            window.
        precision: what the model is converted to.
        step: how the model is called.
        progress: say what takes more than a second.
    """
    module = original_of(module)
    require_module(module)
    near = tokens_of("near", near)
    precision = supported_precision(precision, GENERATION_PRECISIONS)
    called = module if step is None else Stepping(module, step)
    kernels = {"device_type": "cuda", "has_flash": True}

    def passes_of(batch_size: int) -> Generating:
        return Generating(called, batch_size=batch_size, precision=precision, kernels=kernels)

    with explained_steps(module, step, is_shown=progress):
        short = passes_of(1)
        short.fold(Length(near))
        try:
            return Fitted(lambda batch_size: passes_of(batch_size).folded_like(short), near).costs()
        except UnfoldableError:  # in a longer pass, layers differ that are equal in a short one
            return Fitted(passes_of, near).costs()


def _require_sizes(batch_sizes: object) -> None:
    if isinstance(batch_sizes, str) or not isinstance(batch_sizes, Sequence) or not batch_sizes:
        raise InputError.of_value(
            "batch_size", batch_sizes, "give at least one, such as ", Value([1, 8])
        )
    for each in batch_sizes:
        require_positive("batch_size", each)


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
