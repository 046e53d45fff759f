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
    #: True for products in 8 or 4 bits, or weights that are unpacked
    is_quantized: bool
    #: largest batch
    max_batch: int
    rows: int
    #: four of five measured times lay within these shares of the estimate
    low: float
    high: float


#: as docs/accuracy.md has them, which ``scripts/benchmark --truth`` writes
_TABLE = """\
engine       | family          | products | largest batch | rows | low   | high
sglang       | Hopper          | own      |            32 |   33 | -0.15 | +0.03
sglang       | Hopper          | own      |           256 |   51 | -0.04 | +0.10
tensorrt-llm | Hopper          | own      |             8 |   36 | -0.07 | +0.05
tensorrt-llm | Hopper          | own      |            32 |   72 | -0.03 | +0.16
tensorrt-llm | Hopper          | own      |           256 |   69 | -0.16 | +0.08
tensorrt-llm | Hopper          | narrow   |             8 |   36 | -0.08 | +0.13
tensorrt-llm | Hopper          | narrow   |            32 |   72 | -0.04 | +0.19
tensorrt-llm | Hopper          | narrow   |           256 |   72 | -0.08 | +0.21
vllm         | Blackwell GB100 | narrow   |             8 |   29 | -0.14 | +0.04
vllm         | Blackwell GB100 | narrow   |            32 |   25 | -0.20 | -0.03
vllm         | Blackwell GB100 | narrow   |           256 |   12 | -0.21 | +0.01
vllm         | Hopper          | own      |             8 |   18 | -0.07 | +0.05
vllm         | Hopper          | own      |            32 |   36 | -0.03 | +0.06
vllm         | Hopper          | own      |           256 |   36 | -0.03 | +0.05
"""


def _compared() -> tuple[ComparedServing, ...]:
    compared = []
    for line in _TABLE.splitlines()[1:]:
        engine, family, products, *figures = map(str.strip, line.split("|"))
        max_batch, rows, low, high = map(float, figures)
        is_quantized = products == "narrow"
        row = ComparedServing(engine, family, is_quantized, int(max_batch), int(rows), low, high)
        compared.append(row)
    return tuple(compared)


COMPARED_SERVING = _compared()


def serving_margin_of(
    device: Device, engine: Engine, batch_size: int, of_pass: ErrorMargin, *, is_quantized: bool
) -> ServingMargin:
    """Return the margin of a time per token.

    It is that of the pass over one token if no such engine, GPU and precision was compared.
    """
    for each in sorted(COMPARED_SERVING, key=lambda each: each.max_batch):
        is_alike = each.engine == engine.name and each.is_quantized == is_quantized
        if not is_alike or not device.arch.startswith(each.family) or batch_size > each.max_batch:
            continue
        name = engine.version or engine.name
        note = Note.of("serving-validated", rows=each.rows, engine=name, family=each.family)
        return ServingMargin(each.low, each.high, note)
    return ServingMargin(-of_pass.share, of_pass.share, of_pass.reason)
