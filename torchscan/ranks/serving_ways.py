"""``parallel.search_serving``: how to serve a language model within limits of latency."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import nn

from torchscan.analyses.generation.engines import Engine, EngineName, engine_named
from torchscan.analyses.generation.serving_costs import Compute
from torchscan.analyses.generation.serving_limits import ServingLimits
from torchscan.analyses.generation.serving_search import ServingSearch
from torchscan.analyses.roofline import Fabric
from torchscan.errors import Argument, InputError, Value
from torchscan.hardware.device_specs import Device, device_named
from torchscan.precisions import Precision
from torchscan.ranks.serving_question import ServingQuestion
from torchscan.recording.request import require_module, require_positive
from torchscan.terminal import progress as told
from torchscan.units import Tokens, checked_seconds, parse_argument, parse_duration, tokens_of
from torchscan.wrong_arguments import explain_wrong_types

#: sequences at once that engines allow by default
_MAX_SEQUENCES = 256


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
    max_batch_size: int = _MAX_SEQUENCES,
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
    gpu = device_named(device, is_timed=True)
    compared = _formats(gpu, formats, weights)
    arguments = inspect.signature(search_serving).parameters
    question = ServingQuestion(
        module=module,
        prompt=tokens_of("prompt", prompt),
        new=tokens_of("new", new),
        device=gpu,
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
            fabric=Fabric(device=gpu, per_machine=per_machine, network=1e9 * network_gbs),
        ),
        arguments=arguments,
    )
    with told(f"torchscan: {type(module).__name__} on {num_gpus} GPUs", is_shown=progress):
        return question.answer(compared, separate=separate)


def _seconds(name: str, limit: float | str | None) -> float | None:
    """Return a limit in seconds."""
    if limit is None:
        return None
    if isinstance(limit, str):
        return parse_argument(name, limit, parse_duration)
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
        example = Value([None, "fp8"])
        raise InputError.of_value("formats", formats, "give formats to compare, such as ", example)
    has_format = any(each is not None for each in formats)
    if weights is not None and has_format:
        raise InputError(
            Argument("weights"), " and ", Argument("formats"), " are both given: give one of them"
        )
    return tuple(dict.fromkeys(formats))
