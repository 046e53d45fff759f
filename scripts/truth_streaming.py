"""Estimated beside measured times of operators that stream through memory, forward and backward.

Liger's benchmark measured torch's own operators on an A100. Its loops ran ahead of the GPU, so only
kernels are compared, without the host.
"""

from __future__ import annotations

import csv
import gzip
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from truth_section import Section, percent

from tests.far_off import four_of_five
from tests.marked import table
from torchscan.analyses.roofline import Rates, roofline_of
from torchscan.hardware.device_specs import device_named
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest

LIGER = "kernels_liger_torch_providers.csv.gz"
CARD = "NVIDIA A100-SXM4-80GB"
HEADINGS = ("operator", "pass", "sizes", "median error", "four of five", "bias", "bias, held out")
#: milliseconds below which the host decides on the time
HOST_BOUND_MS = 0.27


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table."""

    operator: str
    mode: str
    #: the size that varies, and the others
    size: int
    sizes: Mapping[str, Any]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A measurement beside its estimate, in milliseconds."""

    row: Measured
    estimate: float

    @property
    def ratio(self) -> float:
        """Estimated by measured."""
        return self.estimate / self.row.milliseconds

    @property
    def is_held_out(self) -> bool:
        """True for every second size: powers of two with an odd exponent."""
        return self.row.size.bit_length() % 2 == 0


def streaming(truth: Path) -> Section:
    """Return the comparison of every row."""
    compared = list(compare(truth / LIGER))
    rows = [_row_of(*group) for group in _by_operator(compared)]
    apart = [abs(each.ratio - 1) for each in compared if each.is_held_out]
    result = f"median error {percent(statistics.median(_errors(compared)))} "
    result += f"(held out {percent(statistics.median(apart))})"
    summary = ("time of operators, A100", "Liger's table", f"{len(compared):,}", result)
    return Section([summary], {"streaming": f"\n{table(HEADINGS, rows)}\n"})


def compare(path: Path) -> Iterator[Compared]:
    """Yield every time of the table with its estimate."""
    rates = Rates(device_named(CARD))
    for row in rows_of(path):
        program = PROGRAMS[row.operator](row)
        estimate = program.seconds(rates, row.mode)
        yield Compared(row, 1e3 * estimate)


def rows_of(path: Path) -> Iterator[Measured]:
    """Yield the times of the table whose programs are known."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["metric_name"] != "speed" or row["kernel_name"] not in PROGRAMS:
                continue
            size = int(row["x_value"])
            sizes = json.loads(row["extra_benchmark_config_str"])
            yield Measured(
                operator=row["kernel_name"],
                mode=row["kernel_operation_mode"],
                size=size,
                sizes={**sizes, row["x_name"]: size},
                milliseconds=float(row["y_value_50"]),
            )


class Program:
    """What Liger's benchmark runs for a row: a forward pass, or one with its backward pass."""

    def __init__(
        self,
        forward: Callable[..., Any],
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor] = (),
        *,
        kept: Sequence[Tensor] = (),
        draws_gradient: bool = False,
    ) -> None:
        """Describe a benchmark.

        Args:
            forward: the function that is measured.
            inputs: its inputs, differentiated if they need it, and then its weights.
            weights: parameters, whose gradients are added up from pass to pass.
            kept: inputs whose gradients are added up, too.
            draws_gradient: True if the backward pass begins with ``randn_like``.
        """
        self._forward = forward
        self._inputs = (*inputs, *weights)
        self._kept = (*kept, *weights)
        self._draws_gradient = draws_gradient

    def seconds(self, rates: Rates, mode: str) -> float:
        """Return the seconds of the kernels of a mode: forward, backward or full."""
        forward = self._seconds_of(rates, self._forward)
        if mode == "forward":
            return forward
        full = self._seconds_of(rates, self._with_backward)
        return full - forward if mode == "backward" else full

    def _with_backward(self, *inputs: Tensor) -> Any:
        found = self._forward(*inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        like = torch.randn_like if self._draws_gradient else torch.empty_like
        given = None if outputs[0].dim() == 0 else [like(each) for each in outputs]
        wanted = [each for each in inputs if each.requires_grad]
        gradients = torch.autograd.grad(outputs, wanted, given)
        kept = {id(each) for each in self._kept}
        shared = dict(zip(map(id, inputs), self._inputs, strict=True))
        for source, gradient in zip(wanted, gradients, strict=True):
            if id(shared[id(source)]) in kept:
                torch.empty_like(gradient).add_(gradient)
        return gradients

    def _seconds_of(self, rates: Rates, body: Callable[..., Any]) -> float:
        request = PassRequest(
            module=_Module(body),
            args=self._inputs,
            execute="abstract",
            is_decomposed=True,
            device_type="cuda",
        )
        return roofline_of(record_pass(request), rates, graphed=True).time_estimate


class _Module(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self._body = body

    def forward(self, *inputs: Tensor) -> Any:
        with torch.enable_grad():
            return self._body(*inputs)


def _meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def _places(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.long, device="meta")


def _cross_entropy(row: Measured) -> Program:
    rows = row.sizes["B"] * row.sizes["T"]
    scores = _meta(rows, row.sizes["V"])
    return Program(F.cross_entropy, [scores, _places(rows)], kept=[scores])


def _layer_norm(row: Measured) -> Program:
    length = row.sizes["N"]
    norm = lambda x, weight, bias: F.layer_norm(x, (length,), weight, bias)  # noqa: E731
    return Program(norm, [_meta(row.sizes["M"], length)], [_meta(length), _meta(length)])


def _rms_norm(row: Measured) -> Program:
    """Llama's norm of transformers: bf16 operands, a weight in single precision."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        hidden = x.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + 1e-6)
        return weight * hidden.to(x.dtype)

    x = _meta(row.sizes["M"], row.sizes["H"], dtype=torch.bfloat16)
    return Program(norm, [x], [_meta(row.sizes["H"])])


def _rope(row: Measured) -> Program:
    """Llama's rotary embedding of transformers."""
    tokens = row.sizes.get("seq_len", row.sizes.get("T"))
    width = row.sizes.get("hidden_size", row.sizes.get("H")) // row.sizes["num_q_heads"]

    def rotate_half(x: Tensor) -> Tensor:
        return torch.cat((-x[..., width // 2 :], x[..., : width // 2]), dim=-1)

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    heads = [row.sizes["num_q_heads"], row.sizes["num_kv_heads"]]
    states = [
        _meta(1, tokens, each, width, dtype=torch.bfloat16)
        .detach()
        .transpose(1, 2)
        .requires_grad_()
        for each in heads
    ]
    angles = [_meta(1, tokens, width, dtype=torch.bfloat16, grad=False) for _ in "cs"]
    return Program(rotate, [*states, *angles])


def _embedding(row: Measured) -> Program:
    places = _places(row.sizes["B"], row.sizes["T"])
    weight = _meta(row.sizes["V"], row.sizes["D"])
    return Program(F.embedding, [places], [weight], draws_gradient=True)


def _swiglu(row: Measured) -> Program:
    return _gated(row, row.sizes.get("B", row.sizes.get("bsz")), F.silu)


def _geglu(row: Measured) -> Program:
    return _gated(row, row.sizes["bsz"], lambda x: F.gelu(x, approximate="tanh"))


def _gated(row: Measured, batch: int, activation: Callable[[Tensor], Tensor]) -> Program:
    """Llama's feed-forward layer."""
    half = torch.bfloat16
    width, inner = row.sizes["hidden_size"], row.sizes["intermediate_size"]

    def layer(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(activation(F.linear(x, gate)) * F.linear(x, up), down)

    x = _meta(batch, row.sizes["T"], width, dtype=half)
    weights = [_meta(inner, width, dtype=half), _meta(inner, width, dtype=half)]
    return Program(layer, [x], [*weights, _meta(width, inner, dtype=half)], draws_gradient=True)


def _linear_cross_entropy(row: Measured) -> Program:
    half = torch.bfloat16
    rows, width = row.sizes["BT"], row.sizes["H"]

    def loss(x: Tensor, places: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight), places)

    x = _meta(rows, width, dtype=half)
    return Program(loss, [x, _places(rows)], [_meta(row.sizes["V"], width, dtype=half)], kept=[x])


PROGRAMS: Mapping[str, Callable[[Measured], Program]] = {
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    "fused_linear_cross_entropy": _linear_cross_entropy,
    "geglu": _geglu,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "swiglu": _swiglu,
}


def _by_operator(compared: Sequence[Compared]) -> Iterator[tuple[str, str, list[Compared]]]:
    keys = dict.fromkeys((each.row.operator, each.row.mode) for each in compared)
    for operator, mode in keys:
        key = operator, mode
        yield (
            operator,
            mode,
            [each for each in compared if (each.row.operator, each.row.mode) == key],
        )


def _row_of(operator: str, mode: str, group: Sequence[Compared]) -> tuple[str, ...]:
    errors = _errors(group)
    apart = [each.ratio for each in group if each.is_held_out]
    return (
        operator,
        mode,
        str(len(group)),
        percent(statistics.median(errors)),
        f"± {percent(four_of_five(errors))}",
        f"{statistics.median(each.ratio for each in group):.2f}",
        f"{statistics.median(apart):.2f}" if apart else "–",
    )


def _errors(compared: Sequence[Compared]) -> list[float]:
    return [abs(each.ratio - 1) for each in compared]
