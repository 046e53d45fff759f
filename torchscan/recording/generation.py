"""The passes of a generation: one over the prompt, one over a token, to which goes the cache that the first returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.errors import InputError
from torchscan.once import once
from torchscan.recording.bookkeeping.containers import held_tensors
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.handover import Handover
from torchscan.recording.passes import record_step
from torchscan.recording.precision import Precision, in_precision
from torchscan.recording.request import PassRequest
from torchscan.trace.trace import Trace

#: ``step(model, cache, token)``: the output and the cache, which is None before the prompt
Step = Callable[[nn.Module, Any, Tensor], tuple[Any, Any]]


class Kept(NamedTuple):
    """A record of a pass, and the cache that it has returned."""

    trace: Trace
    #: by the arguments of the model that take it
    cache: Mapping[str, Any]

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the cache by their names. Counters, of a single element, are none of it."""
        return {name: tensor for name, tensor in held_tensors(self.cache) if tensor.numel() > 1}


@dataclass(frozen=True, slots=True)
class Length:
    """How far a generation has come: tokens of the prompt, and tokens after it."""

    prompt: int
    generated: int = 0


class Generating:
    """A model that generates, on shapes alone. Each pass is recorded once."""

    def __init__(self, module: nn.Module, *, batch_size: int, precision: Precision | None, kernels: Mapping[str, Any]) -> None:
        """``kernels``: the arguments of a request that say for which kind of device it is."""
        forward = inspect.signature(type(module).forward).parameters
        self._takes = frozenset(forward)
        self._token = getattr(module, "main_input_name", None) or next(name for name in forward if name != "self")
        #: whether there is an encoder for the prompt
        self.is_translated = "decoder_input_ids" in forward and "encoder_outputs" in forward
        self._name = type_name_of(module)
        request = PassRequest(module=module, args=(), kwargs={}, execute="auto", in_pieces=True, **kernels)
        self._request = in_precision(request, precision)
        self.batch_size = batch_size
        #: how many passes have been recorded
        self.records = 0
        self.prompted = lru_cache(8)(self._prompted)
        self.continued = lru_cache(8)(self._continued)

    def _prompted(self, length: Length) -> Kept:
        """The pass over the prompt, and what was generated after it."""
        if self.is_translated:
            inputs = {self._token: self._tokens(length.prompt), "decoder_input_ids": self._tokens(1 + length.generated)}
        else:
            inputs = {self._token: self._tokens(length.prompt + length.generated)}
        return self._record(inputs, {})

    def _continued(self, length: Length) -> Kept:
        """The pass over one more token."""
        name = "decoder_input_ids" if self.is_translated else self._token
        return self._record({name: self._tokens(1)}, self.prompted(length).cache)

    def _tokens(self, number: int) -> Tensor:
        return torch.zeros(self.batch_size, number, dtype=torch.long)

    def _record(self, inputs: Mapping[str, Tensor], cache: Mapping[str, Any]) -> Kept:
        handover = Handover(self._cache_in)
        kwargs = {**inputs, **self._flags, **cache}
        request = replace(self._request, kwargs=kwargs, cached=tuple(cache), handover=handover)
        trace, _ = record_step(request)
        self.records += 1
        if not handover.kept:
            raise InputError(
                f"{self._name} returns no cache that it takes again: give step=, a function of (model, cache, token) "
                "that returns the output and the new cache"
            )
        return Kept(trace, {**cache, **handover.kept})

    @once
    def _flags(self) -> Mapping[str, Any]:
        """To return a cache, and the scores after the last token alone, as ``generate()`` of transformers asks."""
        return {name: value for name, value in (("use_cache", True), ("logits_to_keep", 1)) if name in self._takes}

    def _cache_in(self, output: Any) -> Mapping[str, Any]:
        """All that is returned under the name of an argument."""
        found = {name: output[name] for name in _names_of(output) if name in self._takes and any(held_tensors(output[name]))}
        if self.is_translated:
            found["encoder_outputs"] = (output["encoder_last_hidden_state"],)
        return found


def _names_of(output: Any) -> list[str]:
    return [each for each in output if isinstance(each, str)] if isinstance(output, Mapping) else []


class Stepping(nn.Module):
    """A model that is called by a function of its user's."""

    def __init__(self, module: nn.Module, step: Step) -> None:
        super().__init__()
        self.model = module
        self.step = step

    def forward(self, token: Tensor, cache: Any = None) -> dict[str, Any]:
        """The output and the cache by name."""
        output, cache = self.step(self.model, cache, token)
        return {"output": output, "cache": cache}
