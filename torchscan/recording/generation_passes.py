"""The passes of a generation: over the prompt, and over one more token with the prompt's cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from torchscan.errors import Argument, InputError, RecordError, TorchscanError
from torchscan.notes import Note
from torchscan.precisions import Precision
from torchscan.recording.bookkeeping.containers import held_tensors
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.folding import Folded, UnfoldableError
from torchscan.recording.folding.alike import difference
from torchscan.recording.generation_inputs import (
    GenerationInputs,
    arguments_of,
    require_known,
)
from torchscan.recording.handover import Handover
from torchscan.recording.kept_passes import Kept
from torchscan.recording.passes import record_pass
from torchscan.recording.precision import in_precision
from torchscan.recording.request import PassRequest
from torchscan.trace.trace import Trace

#: ``step(model, cache, token)``: the output and the cache, which is None before the prompt
Step = Callable[[nn.Module, Any, Tensor], tuple[Any, Any]]

_FLAGS: Mapping[str, Any] = {"use_cache": True, "logits_to_keep": 1}


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
        """Prepare the requests for a model.

        Args:
            module: the model.
            batch_size: the number of sequences.
            precision: the precision that the model and its inputs are converted to.
            kernels: the arguments of a request that say for which kind of device it is.
            inputs: other arguments of the pass over the prompt, for one sequence.
            like: the model before it was sharded, in which equal layers look equal.
            lacks_layers: True if the model cannot run with all layers, because some are empty.
        """
        self._lacks_layers = lacks_layers
        self._takes = arguments_of(module)
        #: ask for a cache, and for the scores after the last token alone, as ``generate()`` of
        #: transformers does
        self._flags = {name: value for name, value in _FLAGS.items() if name in self._takes}
        self._name = type_name_of(module)
        self._like = like
        given = inputs or {}
        require_known(given, self._takes, module)
        request = PassRequest(
            module=module,
            args=(),
            kwargs=given,
            execute="auto",
            is_decomposed=True,
            **kernels,
        )
        self._request = in_precision(request, precision)
        #: the model without layers that are equal to others, once these are known to represent them
        self.folded: Folded | None = None
        converted = self._request.kwargs or {}
        self._inputs = GenerationInputs(module, self._takes, converted, batch_size)
        #: True if there is an encoder for the prompt
        self.is_translated = self._inputs.is_translated
        self.batch_size = batch_size
        #: False from the first pass on that fails with the attention of an engine
        self._has_engine_attention = True
        #: number of passes that were recorded
        self.records = 0
        self.prompted = lru_cache(8)(self._prompted)
        self.continued = lru_cache(8)(self._continued)

    def _prompted(self, length: Length) -> Kept:
        """Record the pass over the prompt and the tokens generated after it."""
        return self._record(self._inputs.of_prompt(length.prompt, length.generated), {})

    def _continued(self, length: Length) -> Kept:
        """Record the pass over one more token."""
        token = self._inputs.of_token(length.prompt, length.generated)
        try:
            return self._record(token, self.prompted(length).cache)
        except UnfoldableError:  # the recorded pass over the prompt lacks layers, too
            self.prompted.cache_clear()
            return self._record(token, self.prompted(length).cache)

    def require_room(self, prompt: int) -> None:
        """Refuse a prompt that is shorter than the tokens that it begins with."""
        self._inputs.require_room(prompt)

    def _record(self, inputs: Mapping[str, Tensor], cache: Mapping[str, Any]) -> Kept:
        """Record a pass without layers that are equal to others, while that is possible."""
        if self.folded is not None:
            try:
                request = replace(self._request, module=self.folded.module)
                return self._recorded(request, inputs, cache)
            except (UnfoldableError, TorchscanError) as error:
                if self._lacks_layers:
                    raise UnfoldableError from error
                self.folded = None
                if cache:  # it lacks layers, too
                    raise UnfoldableError from error
        return self._recorded(self._request, inputs, cache)

    def fold(self, length: Length) -> None:
        """Leave out layers that are equal to others, unless that changes a pass of this length.

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
            short = self.prompted(length)
            if difference(whole.trace, short.trace) is not None:
                return False
            return whole.cached_bytes == short.cached_bytes and self.folded is not None
        except (UnfoldableError, TorchscanError):
            return False

    def _run_all(self) -> None:
        self.folded = None
        self._forget()

    def leave_out(self) -> bool:
        """Leave out layers that look equal to others, to preview a pass.

        Return whether there are any.
        """
        self.folded = Folded.of(self._request.module, self._like)
        return self.folded is not None

    def _forget(self) -> None:
        self.prompted.cache_clear()
        self.continued.cache_clear()

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
            if isinstance(self._request.module, Stepping):
                raise InputError(
                    "step returned no cache: it should return the output and the new cache"
                )
            raise InputError(
                f"{self._name} returns no cache that it takes again: give step=, a function of "
                "(model, cache, token) that returns the output and the new cache"
            )
        folded = None
        if request.module is not self._request.module:
            folded = self.folded
        if folded is not None:
            trace = folded.completed(trace)
        return Kept(trace, {**cache, **handover.kept}, handover.storages, folded)

    def _trace_of(self, request: PassRequest) -> Trace:
        """Record a pass, with the model's own attention if it cannot run with an engine's."""
        own = replace(request, has_engine_attention=False)
        if not request.has_engine_attention or not self._has_engine_attention:
            return record_pass(own)
        try:
            return record_pass(request)
        except RecordError as error:
            trace = record_pass(own)
            self._has_engine_attention = False
            return trace.assuming(Note.of("own-attention", reason=error.problem))

    def _cache_in(self, output: Any) -> Mapping[str, Any]:
        """Return the parts of an output that have the name of an argument."""
        found = {}
        if isinstance(output, Mapping):
            for name in list(output):
                is_argument = isinstance(name, str) and name in self._takes
                if is_argument and any(held_tensors(output[name])):
                    found[name] = output[name]
        if self.is_translated:
            found["encoder_outputs"] = (output["encoder_last_hidden_state"],)
        return found


class Stepping(nn.Module):
    """A model that its user calls by a function."""

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
        """Return the output and the cache by name."""
        output, cache = self.step(self.model, cache, token)
        return {"output": output, "cache": cache}
