"""The verb that says what generating text with a language model takes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from torchscan.analyses.generation.capacity import longest, work_bytes
from torchscan.analyses.generation.parameters import active_parameters, distinct_parameters, weights_bytes
from torchscan.analyses.generation.result import Generation
from torchscan.analyses.generation.serving import Serving
from torchscan.analyses.generation.stored import stored
from torchscan.analyses.roofline import Rates, Roofline, numbers_of, require_format, roofline_of
from torchscan.errors import InputError
from torchscan.hardware.devices import device_named
from torchscan.progress import progress as told
from torchscan.recording.generation import Generating, Length, Step, Stepping
from torchscan.recording.precision import Precision, checked_precision
from torchscan.recording.request import require_module
from torchscan.trace.trace import Trace


def analyze_generation(
    module: nn.Module,
    prompt: int = 512,
    new: int = 128,
    *,
    batch_size: int = 1,
    device: str = "auto",
    precision: Precision | None = None,
    weights: str | None = None,
    cache: str | None = None,
    eager: bool = False,
    step: Step | None = None,
    progress: bool = True,
) -> Generation:
    """What a language model takes on a device, and how fast it answers there, computed on shapes alone.

    Two passes are recorded: one over the prompt, and one over a single token, which gets the cache that the first returned. So
    it holds for any model of transformers that generates, and for all that take and return a cache by the same name.

    Args:
        module: the model. It is left unchanged; it may be on the meta device.
        prompt: tokens that each sequence begins with.
        new: tokens that are generated for each.
        batch_size: sequences at once.
        device: the card: ``torchscan devices`` lists all known ones; "auto": this machine's.
        precision: "fp32", "fp16", "bf16": what the model is converted to; None: the model as it is.
        weights: the format in which weights are stored that go into products, but for the last: "int8", "fp8", "int4", "nf4",
            "mxfp4"; with the number of weights that share a scale, "int4:32". Arithmetic stays in the model's own.
        cache: the format in which keys and values are stored: "fp8", "int8".
        eager: as plain PyTorch runs it, kernel by kernel, copying the cache for each token; by default as engines do that
            serve: compiled, in a CUDA graph, with a cache that is appended to.
        step: ``step(model, cache, token)`` runs the model on tokens of shape [batch, length] and returns its output and the new
            cache; ``cache`` is None at first. For models that are called in a way of their own.
        progress: say what takes more than a second, in a terminal or a notebook.
    """
    require_module(module)
    for name, number in (("prompt", prompt), ("new", new), ("batch_size", batch_size)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"{name} is {number!r}: give a positive integer")
    serving = Serving(
        weights=None if weights is None else stored(weights, "weights"),
        cache=None if cache is None else stored(cache, "cache"),
        eager=eager,
    )
    if precision is not None and (checked_precision(precision) not in ("fp32", "fp16", "bf16", "tf32")):
        raise InputError(f"precision is {precision!r}: give 'bf16', 'fp16' or 'fp32'; weights= says how weights are stored")
    asked = _Asked(module, Length(prompt, new), batch_size, device, precision, serving, step)
    with told(f"torchscan: {type(module).__name__}, token by token", is_shown=progress):
        return asked.answer()


class _Asked:
    """A question and its records."""

    def __init__(
        self,
        module: nn.Module,
        length: Length,
        batch_size: int,
        device: str,
        precision: Precision | None,
        serving: Serving,
        step: Step | None,
    ) -> None:
        self._device = device_named(device)
        require_format(self._device, precision)
        self._is_gpu = self._device.vendor != "CPU"
        kernels = {"device_type": "cuda" if self._is_gpu else "cpu", "has_flash": self._device.has_flash}
        called = module if step is None else Stepping(module, step)
        self._passes = Generating(called, batch_size=batch_size, precision=precision, kernels=kernels)
        self._length, self._batch_size, self._serving, self._precision = length, batch_size, serving, precision
        self._limit = _positions_of(module)

    def answer(self) -> Generation:
        """All of it."""
        prompt, new = self._length.prompt, self._length.generated
        if self._limit is not None and prompt + new > self._limit:
            raise InputError(f"the model has {self._limit} positions, and {prompt} + {new} tokens were asked for")
        prefill = self._roofline(self._passes.prompted(Length(prompt)).trace)
        middle = self._passes.continued(Length(prompt, new // 2)).trace
        decode, work = self._roofline(middle), work_bytes(middle)
        held = weights_bytes(middle, self._serving.weights)
        at_end, before = self._cache(prompt + new), self._cache(prompt + new - 1)
        room = self._device.room_bytes - held - work
        return Generation(
            device=self._device.name,
            precision=self._precision,
            weights=None if self._serving.weights is None else str(self._serving.weights),
            cache=None if self._serving.cache is None else str(self._serving.cache),
            prompt=prompt,
            new=new,
            batch_size=self._batch_size,
            params=sum(each.numel for each in distinct_parameters(middle)),
            active_params=active_parameters(middle),
            weights_bytes=held,
            cache_bytes=at_end,
            cache_bytes_per_token=at_end - before,
            work_bytes=work,
            max_context=longest(self._cache, room // self._batch_size, prompt + new, self._limit),
            max_batch=max(0, self._device.room_bytes - held) // (at_end + work // self._batch_size),
            first_token=prefill.time_estimate,
            per_token=decode.time_estimate,
            prefill=prefill,
            decode=decode,
            records=self._passes.records,
            assumptions=self._assumptions(decode),
            warnings=decode.warnings,
        )

    def _cache(self, length: int) -> int:
        """Bytes of the cache of one sequence."""
        prompt = min(self._length.prompt, length)
        bytes_ = self._passes.cache_bytes(Length(prompt, length - prompt), self._share_of_cache)
        return bytes_ // self._batch_size

    def _share_of_cache(self, tensor: Tensor) -> Fraction:
        format_ = self._serving.cache
        return Fraction(1) if format_ is None else format_.share(tensor.shape[-1], tensor.element_size())

    def _roofline(self, trace: Trace) -> Roofline:
        return roofline_of(
            trace,
            Rates(self._device),
            precision=self._precision,
            numbers=numbers_of(self._device, self._precision),
            compiled=self._is_gpu and not self._serving.eager,
            serving=self._serving,
        )

    def _assumptions(self, decode: Roofline) -> tuple[str, ...]:
        kernels = "a compiled model in a CUDA graph" if self._is_gpu else "kernels that are called one by one"
        served = (
            "kernels that are launched one by one, and a cache that is copied for each token"
            if self._serving.eager
            else f"{kernels}, a cache that is appended to in place, and sampling on the device"
        )
        return (served, "that all sequences have the same length, and begin and end together", *decode.assumptions)


def _positions_of(module: nn.Module) -> int | None:
    """How many tokens its config allows."""
    config: Any = getattr(module, "config", None)
    config = getattr(config, "text_config", config)
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None
