"""The passes of a generation: one over the prompt, one over a token, to which goes the cache that the first returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError, RecordError, TorchscanError
from torchscan.notes import Note
from torchscan.once import once
from torchscan.precisions import Precision
from torchscan.recording.bookkeeping.containers import held_tensors
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.folding import Folded, Repeats, UnfoldableError
from torchscan.recording.folding.alike import difference
from torchscan.recording.handover import Handover
from torchscan.recording.passes import record_step
from torchscan.recording.precision import in_precision
from torchscan.recording.request import PassRequest
from torchscan.trace.trace import Trace

#: ``step(model, cache, token)``: the output and the cache, which is None before the prompt
Step = Callable[[nn.Module, Any, Tensor], tuple[Any, Any]]


class Kept:
    """A record of a pass, and the cache that it has returned."""

    def __init__(
        self,
        recorded: Trace,
        cache: Mapping[str, Any],
        storages: Mapping[str, int],
        folded: Folded | None,
    ) -> None:
        """``storages``: the number of its memory by the name of a cached tensor; ``folded``: the model that was run."""
        self._recorded = recorded
        #: by the arguments of the model that take it
        self.cache = cache
        self._storages = storages
        self._folded = folded

    @once
    def trace(self) -> Trace:
        """The trace of all layers."""
        return self._recorded if self._folded is None else self._folded.unfolded(self._recorded)

    @once
    def repeats(self) -> Repeats | None:
        """The layers that were left out, or None if all ran."""
        if self._folded is None:
            return None
        return self._folded.repeats(self._recorded, lambda: self.trace)

    @property
    def short(self) -> Trace:
        """The trace without the layers that were left out."""
        return self._recorded

    @property
    def operators(self) -> int:
        """Number of operator calls that were recorded."""
        return len(self._recorded.ops)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the cache by their names. Counters, of a single element, are none of it."""
        return {name: tensor for name, tensor in held_tensors(self.cache) if tensor.numel() > 1}

    @property
    def cached_bytes(self) -> int:
        """Bytes of the cache's tensors, of all layers."""
        return sum(
            self.times.get(name, 1) * each.numel() * each.element_size()
            for name, each in self.tensors.items()
        )

    @once
    def times(self) -> Mapping[str, int]:
        """For how many layers a tensor of the cache stands, if for more than one."""
        times = {} if self._folded is None else self._folded.times(self._recorded)
        return {
            name: times[storage] for name, storage in self._storages.items() if storage in times
        }


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a text: tokens of the prompt, and generated tokens."""

    prompt: int
    generated: int = 0


class Generating:
    """A model that generates, on shapes alone. Each pass is recorded once."""

    def __init__(
        self,
        module: nn.Module,
        *,
        batch_size: int,
        precision: Precision | None = None,
        kernels: Mapping[str, Any],
        inputs: Mapping[str, Tensor] | None = None,
        like: nn.Module | None = None,
        lacks_layers: bool = False,
    ) -> None:
        """``kernels``: the arguments of a request that say for which kind of device it is; ``inputs``: of one sequence.

        ``like``: the model before it was spread over devices, in which equal layers look equal.
        ``lacks_layers``: True if the model cannot run with all layers, because some are empty.
        """
        self._lacks_layers = lacks_layers
        self._takes = _arguments_of(module)
        #: whether there is an encoder for the prompt
        self.is_translated = "decoder_input_ids" in self._takes and "encoder_outputs" in self._takes
        self._name = type_name_of(module)
        self._like = like
        self._require_known(inputs or {})
        request = PassRequest(
            module=module,
            args=(),
            kwargs=inputs or {},
            execute="auto",
            is_decomposed=True,
            **kernels,
        )
        self._request = in_precision(request, precision)
        #: the model without layers that are equal to others, once it is known that these can stand in for them
        self.folded: Folded | None = None
        main = getattr(module, "main_input_name", None) or self._takes[0]
        #: whether the encoder is given what is no text, so that the prompt is what the decoder begins with
        self._is_heard = self.is_translated and main in self._prompt_kwargs
        if self.is_translated and not self._is_heard:
            self._require_tokens(main)
        fractions = {name for name, each in self._prompt_kwargs.items() if each.is_floating_point()}
        self._token = next(name for name in (main, *self._takes) if name not in fractions)
        self.batch_size = batch_size
        #: False from the first pass on that fails with the attention of an engine
        self._has_engine_attention = True
        #: how many passes have been recorded
        self.records = 0
        self.prompted = lru_cache(8)(self._prompted)
        self.continued = lru_cache(8)(self._continued)

    def _require_known(self, inputs: Mapping[str, Tensor]) -> None:
        for name, each in inputs.items():
            if name not in self._takes:
                raise InputError(
                    Argument("inputs"),
                    f" has {name!r}, which {self._name} does not take: choose from "
                    f"{', '.join(self._takes)}",
                )
            if not isinstance(each, Tensor):
                raise InputError(
                    f"inputs[{name!r}] is a {type(each).__name__}: give a tensor, for one sequence"
                )

    def _require_tokens(self, main: str) -> None:
        """Transformers says what its encoders take: text is called ``input_ids``."""
        if main == getattr(self._request.module, "main_input_name", "input_ids") != "input_ids":
            raise InputError(
                f"{self._name} encodes {main}, not tokens: give ",
                Give("inputs", {main: ...}),
                ", a tensor for one sequence",
            )

    @property
    def _prompt_kwargs(self) -> Mapping[str, Tensor]:
        """Return the other arguments of the pass over the prompt, in the model's precision."""
        return self._request.kwargs or {}

    def _prompted(self, length: Length) -> Kept:
        """The pass over the prompt, and what was generated after it."""
        total = length.prompt + length.generated
        given = {name: self._for_all(each) for name, each in self._prompt_kwargs.items()}
        if self._is_heard:
            return self._record({**given, **self._decoded(total, total)}, {})
        if self.is_translated:
            prompt = {self._token: self._tokens(length.prompt)}
            return self._record(
                {**given, **prompt, **self._decoded(1 + length.generated, 1 + length.generated)}, {}
            )
        if length.prompt < self.begun:
            given = {}  # too short for its images: the cache of so many tokens is as large without them
        return self._record({**given, self._token: self._tokens(total, given.get(self._token))}, {})

    def _continued(self, length: Length) -> Kept:
        """The pass over one more token."""
        before = length.generated + (length.prompt if self._is_heard else 1)
        token = (
            self._decoded(1, before + 1) if self.is_translated else {self._token: self._tokens(1)}
        )
        try:
            return self._record(token, self.prompted(length).cache)
        except UnfoldableError:  # what is known of the prompt lacks layers, too
            self.prompted.cache_clear()
            return self._record(token, self.prompted(length).cache)

    def _decoded(self, number: int, seen: int) -> Mapping[str, Tensor]:
        """Tokens for a decoder, which sees so many. A mask that it makes itself is one of fractions, which have no values."""
        mask = torch.ones(self.batch_size, seen, dtype=torch.long)
        masks = {"decoder_attention_mask": mask} if "decoder_attention_mask" in self._takes else {}
        return {"decoder_input_ids": self._tokens(number), **masks}

    def _tokens(self, number: int, begun: Tensor | None = None) -> Tensor:
        tokens = torch.zeros(self.batch_size, number, dtype=torch.long)
        return tokens if begun is None else torch.cat([begun, tokens[:, begun.shape[1] :]], 1)

    @property
    def begun(self) -> int:
        """Tokens that each prompt begins with."""
        begun = self._prompt_kwargs.get(self._token)
        return 0 if begun is None else begun.shape[1]

    def require_room(self, prompt: int) -> None:
        """Refuse a prompt that is shorter than what it begins with."""
        if prompt < self.begun:
            raise InputError(
                Argument("prompt"),
                f" is {prompt:,}, and inputs has {self.begun:,} tokens of it: give a longer ",
                Argument("prompt"),
            )

    def _for_all(self, tensor: Tensor) -> Tensor:
        """Repeat the tensor of one sequence for all sequences."""
        return tensor.repeat(self.batch_size, *[1] * (tensor.dim() - 1))

    def _record(self, inputs: Mapping[str, Tensor], cache: Mapping[str, Any]) -> Kept:
        """Without layers that are equal to others, as long as that is possible."""
        if self.folded is not None:
            try:
                return self._recorded(
                    replace(self._request, module=self.folded.module), inputs, cache
                )
            except (UnfoldableError, TorchscanError) as error:
                if self._lacks_layers:
                    raise UnfoldableError from error
                self.folded = None
                if cache:  # it lacks layers, too
                    raise UnfoldableError from error
        return self._recorded(self._request, inputs, cache)

    def fold(self, length: Length) -> None:
        """Leave out layers that are equal to others, unless it makes a difference to so many tokens.

        One pass over all layers decides; in every other pass, those that run are compared.
        """
        self._run_all()
        whole = self.prompted(length)
        if self.leave_out():
            self._forget()
            if not self._agrees(whole, length):
                self._run_all()

    def _agrees(self, whole: Kept, length: Length) -> bool:
        """Return whether a pass is the same without the layers that are left out."""
        try:
            return _are_alike(whole, self.prompted(length)) and self.folded is not None
        except (UnfoldableError, TorchscanError):
            return False

    def _run_all(self) -> None:
        self.folded = None
        self._forget()

    def leave_out(self) -> bool:
        """Leave out layers that look equal to others, for a glance at what a pass is like. Whether there are any."""
        self.folded = Folded.of(self._request.module, self._like)
        return self.folded is not None

    def _forget(self) -> None:
        self.prompted.cache_clear()
        self.continued.cache_clear()

    def _no_cache(self) -> str:
        if isinstance(self._request.module, Stepping):
            return "step returned no cache: it should return the output and the new cache"
        advice = "give step=, a function of (model, cache, token) that returns the output and the new cache"
        return f"{self._name} returns no cache that it takes again: {advice}"

    def folded_like(self, other: Generating) -> Generating:
        """Leave out the layers that the other leaves out."""
        self.folded = other.folded
        return self

    def _recorded(
        self, request: PassRequest, inputs: Mapping[str, Tensor], cache: Mapping[str, Any]
    ) -> Kept:
        handover = Handover(self._cache_in)
        kwargs = {**inputs, **self._flags, **cache}
        request = replace(request, kwargs=kwargs, cached=tuple(cache), handover=handover)
        trace = self._trace_of(request)
        self.records += 1
        if not handover.kept:
            raise InputError(self._no_cache())
        folded = None if request.module is self._request.module else self.folded
        if folded is not None:
            trace = folded.completed(trace)
        return Kept(trace, {**cache, **handover.kept}, handover.storages, folded)

    def _trace_of(self, request: PassRequest) -> Trace:
        """Record a pass, with the model's own attention if it cannot run with an engine's."""
        own = replace(request, has_engine_attention=False)
        if not request.has_engine_attention or not self._has_engine_attention:
            return record_step(own)[0]
        try:
            return record_step(request)[0]
        except RecordError as error:
            trace, _ = record_step(own)
            self._has_engine_attention = False
            return trace.assuming(Note.of("own-attention", reason=error.problem))

    @once
    def _flags(self) -> Mapping[str, Any]:
        """To return a cache, and the scores after the last token alone, as ``generate()`` of transformers asks."""
        return {
            name: value
            for name, value in (("use_cache", True), ("logits_to_keep", 1))
            if name in self._takes
        }

    def _cache_in(self, output: Any) -> Mapping[str, Any]:
        """All that is returned under the name of an argument."""
        found = {
            name: output[name]
            for name in _names_of(output)
            if name in self._takes and any(held_tensors(output[name]))
        }
        if self.is_translated:
            found["encoder_outputs"] = (output["encoder_last_hidden_state"],)
        return found


def _are_alike(one: Kept, other: Kept) -> bool:
    return difference(one.trace, other.trace) is None and one.cached_bytes == other.cached_bytes


def _arguments_of(module: nn.Module) -> tuple[str, ...]:
    """The names that its forward pass takes, and those of what it wraps, to which it hands on what it does not know."""
    return tuple(dict.fromkeys(name for each in _wrapped(module) for name in _named_by(each)))


def _wrapped(module: nn.Module) -> Iterator[nn.Module]:
    """The module, and as long as its own pass takes any keyword, what it holds alone."""
    yield module
    children = list(module.children())
    if len(children) == 1 and any(each.kind is each.VAR_KEYWORD for each in _parameters_of(module)):
        yield from _wrapped(children[0])


def _named_by(module: nn.Module) -> list[str]:
    return [
        each.name
        for each in _parameters_of(module)
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def _parameters_of(module: nn.Module) -> list[inspect.Parameter]:
    return list(inspect.signature(module.forward).parameters.values())


def _names_of(output: Any) -> list[str]:
    return [each for each in output if isinstance(each, str)] if isinstance(output, Mapping) else []


class Stepping(nn.Module):
    """A model that is called by a function of its user's."""

    def __init__(self, module: nn.Module, step: Step) -> None:
        super().__init__()
        if not callable(step):
            raise InputError(
                Argument("step"),
                f" is a {type(step).__name__}: give a function of (model, cache, token)",
            )
        self.model = module
        self.step = step

    def forward(self, token: Tensor, cache: Any = None) -> dict[str, Any]:
        """The output and the cache by name."""
        output, cache = self.step(self.model, cache, token)
        return {"output": output, "cache": cache}
