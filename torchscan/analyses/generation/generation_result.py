"""Results of an analysis of text generation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchscan.analyses.generation.engines import Engine
from torchscan.analyses.generation.request_queue import RequestQueue
from torchscan.analyses.generation.serving_margin import ServingMargin
from torchscan.analyses.roofline import Roofline
from torchscan.analyses.roofline.roofline_result import Limiter
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result

#: lengths of requests under load are spread evenly over this share of the mean, to each side
_LENGTH_SPREAD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Result):
    """Memory and speed of a language model that generates text on a device.

    Times are in seconds.
    """

    device: str
    precision: str | None
    #: format in which weights are stored, or None for the model's own
    weights: str | None
    #: format in which keys and values are stored, or None for the model's own
    cache: str | None
    #: format of products with packed weights, or None if these are unpacked
    compute: str | None
    #: the program that serves the model
    engine: Engine
    #: tokens of the prompt
    prompt: int
    #: generated tokens
    new: int
    #: sequences at once
    batch_size: int
    #: number of devices by mesh dimension, or None for one device. Bytes and times are those of one
    #: device
    mesh: Mapping[str, int] | None
    #: parameters of the complete model
    params: int
    #: parameters that one token uses: of experts, only those that it is routed to
    active_params: int
    #: bytes of parameters, buffers and other tensors that the model keeps, as stored
    weights_bytes: int
    #: bytes of one sequence's cache at its end
    cache_bytes: int
    #: bytes that a token at the end adds to a sequence's cache
    cache_bytes_per_token: int
    #: bytes that a token needs besides weights and caches, for all sequences
    work_bytes: int
    #: the same for the pass over prompts: those of all sequences, or a chunk of the engine
    prompt_work_bytes: int
    #: largest number of tokens per sequence, prompt included; 0 if none fits, None if there is no
    #: limit
    max_context: int | None
    #: largest number of sequences at once, or None if there is no limit
    max_batch_size: int | None
    #: seconds until the first new token of a request that arrives alone
    first_token: float
    #: seconds until each sequence has its first token, if all arrive together
    first_token_of_all: float
    #: mean seconds from one new token to the next, without other requests' prompts
    per_token: float
    #: margin of the time per token under load
    margin: ServingMargin
    #: roofline of the pass over one prompt
    prefill: Roofline
    #: roofline of a token in the middle of the generated ones
    decode: Roofline
    #: number of recorded passes
    num_traces: int
    #: operators without a cost formula, and modules that were not recorded; if there are any, times
    #: are lower bounds
    without_formula: tuple[str, ...]
    #: weights that cannot be read; if there are any, parameters and their memory are lower bounds
    unreadable_weights: tuple[Note, ...]
    assumptions: tuple[Note, ...]
    warnings: tuple[Note, ...]

    @property
    def per_token_under_load(self) -> float:
        """Mean seconds from one new token to the next, if a request arrives whenever one ends.

        While a sequence generates its tokens, the prompts of all others are processed once. If an
        engine processes prompts first, requests stay together, and each waits for half of them.
        """
        share = (self.batch_size - 1) / self.batch_size
        if self.engine.prompts_first:
            share /= 2
        return self.per_token + share * self.first_token_of_all / self.new

    @property
    def first_token_under_load(self) -> float:
        """Mean seconds until the first new token of a request, if one arrives whenever one ends."""
        return self.queue.serve().first_token

    @property
    def first_token_under_load_median(self) -> float:
        """Median of the seconds of which :attr:`first_token_under_load` is the mean."""
        return self.queue.serve().first_token_median

    @property
    def first_token_under_load_p99(self) -> float:
        """99th percentile of the seconds of which :attr:`first_token_under_load` is the mean."""
        return self.queue.serve().first_token_p99

    @property
    def queue(self) -> RequestQueue:
        """The requests of a steady load, which wait for the engine.

        Their lengths vary by 10 % around those of the question, as in benchmarks of engines:
        requests of equal length that begin together would end together, and wait for each other.
        """
        engine = self.engine
        return RequestQueue(
            num_clients=self.batch_size,
            max_sequences=self.batch_size,
            prompt=self.prompt,
            new=self.new,
            token_pass=self.per_token,
            prompt_alone=self.first_token,
            prompt_among=self.first_token_of_all / self.batch_size,
            prompt_chunk=engine.prompt_chunk,
            splits_prompts=engine.splits_prompts,
            prompts_first=engine.prompts_first,
            length_spread=_LENGTH_SPREAD if self.batch_size > 1 else 0.0,
        )

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all sequences on all devices, over their time, that of prompts included."""
        num_tokens = self.replicas * self.batch_size * self.new
        return num_tokens / (self.first_token_of_all + (self.new - 1) * self.per_token)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return 1 if self.mesh is None else math.prod(self.mesh.values())

    @property
    def replicas(self) -> int:
        """Number of groups of devices with a separate batch: the size of the dimension ``dp``."""
        return 1 if self.mesh is None else self.mesh.get("dp", 1)

    @property
    def fits(self) -> bool:
        """True if weights and caches fit into memory."""
        return self.max_batch_size is None or self.batch_size <= self.max_batch_size

    @property
    def limiter(self) -> Limiter:
        """The resource that limits most of the time of a token."""
        return self.decode.total.limiter

    def __repr__(self) -> str:
        """Return a short description."""
        first, later = 1000 * self.first_token, 1000 * self.per_token
        times = f"first token after {first:.3g} ms, then {later:.3g} ms each"
        return f"<Generation on {self.device}: {times}, {self.tokens_per_second:.3g} tokens/s>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        apart = ("prefill", "decode", "mesh", "engine", "margin")
        names = [each.name for each in fields(self) if each.name not in apart]
        plain = {name: getattr(self, name) for name in names}
        for name in ("without_formula", "unreadable_weights", "assumptions", "warnings"):
            plain[name] = to_plain(plain[name])
        return {
            **plain,
            "engine": self.engine.to_dict(),
            **self._figures(),
            "mesh": None if self.mesh is None else dict(self.mesh),
            "prefill": self.prefill.to_dict(),
            "decode": self.decode.to_dict(),
        }

    def _figures(self) -> dict[str, Any]:
        return {
            "first_token_under_load": self.first_token_under_load,
            "first_token_under_load_median": self.first_token_under_load_median,
            "first_token_under_load_p99": self.first_token_under_load_p99,
            "per_token_under_load": self.per_token_under_load,
            "margin": [self.margin.low, self.margin.high],
            "margin_reason": to_plain(self.margin.reason),
            "tokens_per_second": self.tokens_per_second,
            "limiter": self.limiter,
            "fits": self.fits,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSweep(Result):
    """Generation at several batch sizes."""

    generations: tuple[Generation, ...]
    #: price of a device per hour, or None if it was not given
    price: float | None

    def price_per_million(self, generation: Generation) -> float | None:
        """Return the price of a million new tokens, in the currency of ``price``, or None."""
        if self.price is None:
            return None
        return generation.devices * self.price / 3600 / generation.tokens_per_second * 1e6

    @property
    def num_traces(self) -> int:
        """Number of passes that were recorded."""
        return sum(each.num_traces for each in self.generations)

    def __repr__(self) -> str:
        """Return a short description."""
        device = self.generations[0].device
        sizes = ", ".join(str(each.batch_size) for each in self.generations)
        return f"<GenerationSweep on {device}: batch sizes {sizes}, {self.num_traces} passes>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        generations = []
        for each in self.generations:
            price = self.price_per_million(each)
            generations.append({**each.to_dict(), "price_per_million": price})
        return {"price": self.price, "num_traces": self.num_traces, "generations": generations}
