"""Results of a search for the way to serve a language model within limits of latency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchscan.analyses.generation.generation_result import Generation
from torchscan.analyses.generation.serving_margin import ServingMargin
from torchscan.notes import Note
from torchscan.plain import to_plain
from torchscan.results import Result


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The GPUs that share a copy of a model."""

    #: GPUs that share each layer
    tp: int
    #: groups of GPUs that have batches of their own and share the experts
    dp: int = 1
    #: True if the experts are divided among all GPUs
    expert_parallel: bool = False

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return self.tp * self.dp

    @property
    def mesh(self) -> dict[str, int] | None:
        """The mesh, or None for a single GPU."""
        sizes = {"dp": self.dp, "tp": self.tp}
        return {name: size for name, size in sizes.items() if size > 1} or None

    def __str__(self) -> str:
        """Return ``"tp 4"``, or ``"dp 2, tp 4, ep"``."""
        parts = [f"dp {self.dp}"] if self.dp > 1 else []
        if self.tp > 1 or not parts:
            parts.append(f"tp {self.tp}")
        if self.expert_parallel:
            parts.append("ep")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChoice:
    """A way to serve a model on all GPUs. Times are in seconds, those of requests under load."""

    #: GPUs that share each layer of a copy of the model
    tp: int
    #: groups of GPUs of a copy that have batches of their own and share the experts
    dp: int = 1
    #: True if the experts are divided among all GPUs of a copy
    expert_parallel: bool = False
    #: copies of the model
    num_copies: int
    #: format of products in fewer than 16 bits, or None
    compute: str | None
    #: sequences of one copy at once, or of each of its groups
    batch_size: int
    #: the same of a copy that processes prompts only; ``prefill_tp`` is None if each copy does both
    prefill_tp: int | None = None
    prefill_dp: int = 1
    prefill_expert_parallel: bool = False
    num_prefill_copies: int = 0
    #: seconds until keys and values of a prompt are on the GPUs that generate, part of
    #: ``first_token``; 0 if each copy does both
    cache_transfer: float = 0.0
    first_token: float
    per_token: float
    #: new tokens of all GPUs
    tokens_per_second: float
    #: new tokens of a GPU, averaged over all of them
    tokens_per_second_per_gpu: float
    #: price of a million new tokens, or None without a price
    price_per_million: float | None
    #: limits that it exceeds
    problems: tuple[Note, ...]
    #: the estimate of one copy
    generation: Generation

    @property
    def layout(self) -> ModelLayout:
        """The GPUs that share a copy of the model."""
        return ModelLayout(self.tp, self.dp, self.expert_parallel)

    @property
    def prefill_layout(self) -> ModelLayout | None:
        """The GPUs of a copy that processes prompts only, or None if each copy does both."""
        if self.prefill_tp is None:
            return None
        return ModelLayout(self.prefill_tp, self.prefill_dp, self.prefill_expert_parallel)

    @property
    def is_within_limits(self) -> bool:
        """True if it exceeds no limit."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data, without the estimate of the copy."""
        names = [each.name for each in fields(self) if each.name not in ("problems", "generation")]
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "problems": to_plain(self.problems)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSearch(Result):
    """Ways to serve a language model, those within the limits first, the most tokens first."""

    device: str
    num_gpus: int
    #: name of the engine
    engine: str
    prompt: int
    new: int
    #: limits in seconds, or None
    max_first_token: float | None
    max_per_token: float | None
    price: float | None
    choices: tuple[ServingChoice, ...]
    #: ways that were left out, with the reason
    refused: Mapping[str, Note]
    margin: ServingMargin | None
    assumptions: tuple[Note, ...]
    num_traces: int

    @property
    def best(self) -> ServingChoice | None:
        """The one with the most tokens per second within the limits, or None."""
        return next((each for each in self.choices if each.is_within_limits), None)

    @property
    def front(self) -> tuple[ServingChoice, ...]:
        """The choices that no other beats in both tokens per second and time per token.

        Those that exceed a limit count, too: they show what a looser limit would give.
        """
        front: list[ServingChoice] = []
        for each in sorted(self.choices, key=lambda each: (each.per_token, -_rate(each))):
            if not front or _rate(each) > _rate(front[-1]):
                front.append(each)
        return tuple(front)

    def __repr__(self) -> str:
        """Return a short description."""
        best = self.best
        found = "none within the limits" if best is None else f"best {describe_choice(best)}"
        return f"<ServingSearch on {self.num_gpus} {self.device}: {found}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data."""
        names = ("device", "num_gpus", "engine", "prompt", "new", "price", "num_traces")
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        margin = None
        if self.margin is not None:
            margin = [self.margin.low, self.margin.high]
        return {
            **plain,
            "max_first_token": self.max_first_token,
            "max_per_token": self.max_per_token,
            "margin": margin,
            "choices": [each.to_dict() for each in self.choices],
            "refused": to_plain(self.refused),
            "assumptions": to_plain(self.assumptions),
        }


def describe_choice(choice: ServingChoice) -> str:
    """Return ``"2 × tp 4, fp8, batch 64"``."""
    copies = f"{choice.num_copies} × {choice.layout}"
    if choice.prefill_layout is not None:
        prompts = f"{choice.num_prefill_copies} × {choice.prefill_layout}"
        copies = f"prompts {prompts}, tokens {copies}"
    form = f", {choice.compute}" if choice.compute else ""
    return f"{copies}{form}, batch {choice.batch_size}"


def _rate(choice: ServingChoice) -> float:
    return choice.tokens_per_second_per_gpu


def by_rate(choices: Iterable[ServingChoice]) -> tuple[ServingChoice, ...]:
    """Sort choices: those within the limits first, the most tokens per second first."""
    return tuple(sorted(choices, key=lambda each: (bool(each.problems), -_rate(each))))
