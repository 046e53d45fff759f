"""Error margins of times per token, from published times."""

from __future__ import annotations

from typing import NamedTuple

from torchscan.analyses.generation.engines import Engine
from torchscan.analyses.roofline.error_margin import ErrorMargin
from torchscan.hardware.device_specs import Device
from torchscan.notes import Note


class ServingMargin(NamedTuple):
    """Margin of a time per token. Four of five measured times are expected inside."""

    #: shares of the estimate, the first of which is negative where times can be shorter
    low: float
    high: float
    #: evidence for the margin
    reason: Note

    @property
    def label(self) -> str:
        """The margin and its reason as text."""
        if -self.low == self.high:
            return f"± {100 * self.high:.0f} %, {self.reason}"
        return f"{100 * self.low:+.0f} … {100 * self.high:+.0f} %, {self.reason}"


class ComparedServing(NamedTuple):
    """Published times per token under load that estimates were compared with."""

    engine: str
    #: architecture of the GPUs, as devices have it
    family: str
    #: True for models whose tokens are routed to experts
    is_mixture: bool
    #: largest batch
    max_batch: int
    models: int
    rows: int
    #: for each of the models, four of five measured times lay within these shares of the estimate;
    #: with few models, wider
    low: float
    high: float


#: ``python scripts/truth_serving.py --margins`` derives it, and says how many times of models that
#: were left out lie inside
_TABLE = """\
engine       | family          | kind    | largest batch | models | rows | low   | high
sglang       | Hopper          | dense   | 32            | 1      | 27   | -0.20 | +0.20
sglang       | Hopper          | dense   | 256           | 1      | 51   | -0.20 | +0.20
tensorrt-llm | Hopper          | dense   | 8             | 2      | 72   | -0.15 | +0.15
tensorrt-llm | Hopper          | dense   | 32            | 2      | 144  | -0.15 | +0.19
tensorrt-llm | Hopper          | dense   | 256           | 2      | 141  | -0.16 | +0.21
tensorrt-llm | Hopper          | mixture | 8             | 1      | 30   | -0.20 | +0.20
tensorrt-llm | Hopper          | mixture | 32            | 1      | 48   | -0.20 | +0.20
tensorrt-llm | Hopper          | mixture | 256           | 1      | 48   | -0.20 | +0.35
transformers | Ampere GA100    | dense   | 8             | 7      | 112  | -0.23 | +0.20
vllm         | Blackwell GB100 | dense   | 8             | 1      | 48   | -0.20 | +0.20
vllm         | Blackwell GB100 | dense   | 32            | 1      | 48   | -0.20 | +0.20
vllm         | Blackwell GB100 | dense   | 256           | 1      | 24   | -0.20 | +0.23
vllm         | Blackwell GB100 | mixture | 8             | 3      | 169  | -0.19 | +0.31
vllm         | Blackwell GB100 | mixture | 32            | 3      | 168  | -0.26 | +0.31
vllm         | Blackwell GB100 | mixture | 256           | 3      | 152  | -0.22 | +0.35
vllm         | Hopper          | mixture | 8             | 2      | 36   | -0.15 | +0.15
vllm         | Hopper          | mixture | 32            | 2      | 36   | -0.16 | +0.39
vllm         | Hopper          | mixture | 256           | 1      | 12   | -0.20 | +0.41
vllm-0.12    | Hopper          | dense   | 8             | 2      | 36   | -0.15 | +0.15
vllm-0.12    | Hopper          | dense   | 32            | 2      | 55   | -0.15 | +0.15
vllm-0.12    | Hopper          | dense   | 256           | 2      | 44   | -0.15 | +0.15
vllm-0.6     | Ampere GA100    | dense   | 8             | 7      | 147  | -0.12 | +0.30
"""


def _compared() -> tuple[ComparedServing, ...]:
    compared = []
    for line in _TABLE.splitlines()[1:]:
        engine, family, kind, *figures = map(str.strip, line.split("|"))
        max_batch, models, rows = map(int, figures[:3])
        low, high = map(float, figures[3:])
        is_mixture = kind == "mixture"
        row = ComparedServing(engine, family, is_mixture, max_batch, models, rows, low, high)
        compared.append(row)
    return tuple(compared)


COMPARED_SERVING = _compared()


def serving_margin_of(
    device: Device, engine: Engine, batch_size: int, of_pass: ErrorMargin, *, is_mixture: bool
) -> ServingMargin:
    """Return the margin of a time per token, for a dense model or a mixture of experts.

    It is that of the pass over one token if no such engine, GPU and kind of model was compared.
    """
    for each in sorted(COMPARED_SERVING, key=lambda each: each.max_batch):
        is_alike = each.engine == engine.name and each.is_mixture == is_mixture
        if not is_alike or not device.arch.startswith(each.family) or batch_size > each.max_batch:
            continue
        name = engine.version or engine.name
        note = Note.of(
            "serving-validated",
            rows=each.rows,
            models=each.models,
            engine=name,
            family=each.family,
        )
        return ServingMargin(each.low, each.high, note)
    return ServingMargin(-of_pass.share, of_pass.share, of_pass.reason)
