"""Limits of latency, and the best ways to share GPUs within them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.generation.serving_search import ModelLayout, ServingChoice
from torchscan.analyses.roofline import Fabric
from torchscan.notes import Note


class _Split(NamedTuple):
    """Copies for prompts and copies for tokens, and the requests that they serve together."""

    num_prompt_copies: int
    num_copies: int
    requests_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """The most that a request may wait, and the GPUs that share the work."""

    num_gpus: int
    max_first_token: float | None
    max_per_token: float | None
    price: float | None
    #: links between the GPUs
    fabric: Fabric

    def combined(self, generation: Generation, layout: ModelLayout) -> ServingChoice:
        """Return the choice in which each copy processes prompts and generates tokens."""
        copies = self.num_gpus // layout.num_gpus
        per_token = generation.per_token_under_load
        rate = copies * layout.dp * generation.batch_size / per_token
        return self._choice(
            generation,
            layout,
            rate,
            num_copies=copies,
            first_token=generation.first_token_under_load,
            per_token=per_token,
        )

    def separated(
        self,
        prompts: Generation,
        prompt_layout: ModelLayout,
        tokens: Generation,
        layout: ModelLayout,
    ) -> ServingChoice | None:
        """Return the best split of the GPUs into copies for prompts and copies for tokens.

        Each GPU of one copy sends its keys and values of the prompt to GPUs of the other, between
        machines if there are several.
        """
        sent = max(_prompt_cache_bytes(prompts), _prompt_cache_bytes(tokens))
        transfer = self.fabric.transfer_time(0, self.num_gpus - 1, sent)
        # a GPU sends one cache while it computes the next
        prompt_rate = prompt_layout.dp / max(prompts.first_token, transfer)
        request_rate = layout.dp * tokens.batch_size / (tokens.new * tokens.per_token)
        if transfer:
            request_rate = min(request_rate, layout.dp / transfer)
        split = self._split_gpus(prompt_layout, prompt_rate, layout, request_rate)
        if split is None:
            return None

        choice = self._choice(
            tokens,
            layout,
            split.requests_per_second * tokens.new,
            num_copies=split.num_copies,
            first_token=prompts.first_token + transfer + tokens.per_token,
            per_token=tokens.per_token,
        )
        return replace(
            choice,
            prefill_tp=prompt_layout.tp,
            prefill_dp=prompt_layout.dp,
            prefill_expert_parallel=prompt_layout.expert_parallel,
            num_prefill_copies=split.num_prompt_copies,
            cache_transfer=transfer,
        )

    def _split_gpus(
        self,
        prompt_layout: ModelLayout,
        prompt_rate: float,
        layout: ModelLayout,
        request_rate: float,
    ) -> _Split | None:
        """Return the split with the most requests, or None if there are too few GPUs for both.

        ``prompt_rate`` and ``request_rate`` are requests per second of one copy of each kind.
        """
        prompt_size = prompt_layout.num_gpus
        size = layout.num_gpus
        best: _Split | None = None
        for num_copies in range(1, (self.num_gpus - prompt_size) // size + 1):
            num_prompt_copies = (self.num_gpus - num_copies * size) // prompt_size
            rate = min(num_prompt_copies * prompt_rate, num_copies * request_rate)
            if best is None or rate > best.requests_per_second:
                best = _Split(num_prompt_copies, num_copies, rate)
        return best

    def _choice(
        self,
        generation: Generation,
        layout: ModelLayout,
        rate: float,
        *,
        num_copies: int,
        first_token: float,
        per_token: float,
    ) -> ServingChoice:
        """Return a choice without separate copies for prompts, by its tokens per second."""
        price_per_million = None
        if self.price is not None:
            price_per_million = self.num_gpus * self.price / 3600 / rate * 1e6
        return ServingChoice(
            tp=layout.tp,
            dp=layout.dp,
            expert_parallel=layout.expert_parallel,
            num_copies=num_copies,
            compute=generation.compute,
            batch_size=generation.batch_size,
            first_token=first_token,
            per_token=per_token,
            tokens_per_second=rate,
            tokens_per_second_per_gpu=rate / self.num_gpus,
            price_per_million=price_per_million,
            problems=tuple(self._problems(first_token, per_token)),
            generation=generation,
        )

    def _problems(self, first_token: float, per_token: float) -> Iterable[Note]:
        """Yield the limits that these seconds exceed."""
        limit = self.max_first_token
        if limit is not None and first_token > limit:
            yield Note.of("first-token-late", seconds=first_token, limit=limit)
        limit = self.max_per_token
        if limit is not None and per_token > limit:
            yield Note.of("tokens-slow", seconds=per_token, limit=limit)


def _prompt_cache_bytes(generation: Generation) -> int:
    """Return the bytes of a sequence's cache on one GPU, after the prompt."""
    return generation.cache_bytes - generation.new * generation.cache_bytes_per_token
