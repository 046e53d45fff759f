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
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from truth_section import Section, percent

from tests.far_off import four_of_five
from tests.marked import table
from torchscan import estimate_memory
from torchscan.analyses.roofline import Rates, kernels, roofline_of
from torchscan.hardware.device_specs import device_named
from torchscan.recording.passes import record_pass
from torchscan.recording.request import PassRequest

LIGER = "kernels_liger_torch_providers.csv.gz"
CARD = "NVIDIA A100-SXM4-80GB"
HEADINGS = ("operator", "pass", "sizes", "median error", "four of five", "bias", "held out: error")
MEMORY_HEADINGS = ("operator", "sizes", "smallest", "median", "largest")
#: bytes of cuBLAS's workspace
WORKSPACE = 8320 * 1024
MIB = 2**20
#: earlier benchmarks were on the card, too; what else the loss held is not known
WITHOUT_MEMORY = (
    "embedding",
    "fused_linear_cpo_loss",
    "fused_linear_orpo_loss",
    "fused_linear_simpo_loss",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table."""

    operator: str
    mode: str
    metric: str
    #: the size that varies, and the others
    size: int
    sizes: Mapping[str, Any]
    #: milliseconds, or MiB
    value: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A measurement beside its estimate."""

    row: Measured
    estimate: float

    @property
    def ratio(self) -> float:
        """Estimated by measured."""
        return self.estimate / self.row.value

    @property
    def is_held_out(self) -> bool:
        """True for every second size: odd powers of two, on which no constant was set."""
        return self.row.size.bit_length() % 2 == 0


def streaming(truth: Path) -> Section:
    """Return the comparison of every row."""
    compared = list(compare(truth / LIGER))
    times = [each for each in compared if each.row.metric == "speed"]
    peaks = [each for each in compared if each.row.metric == "memory"]
    rows = [_row_of(*group) for group in _by_operator(times)]
    apart = _errors([each for each in times if each.is_held_out])
    result = f"median error {percent(statistics.median(_errors(times)))} "
    result += f"(held out {percent(statistics.median(apart))})"
    memory = [_peaks_of(operator, group) for operator, _, group in _by_operator(peaks)]
    blocks = {
        "streaming": f"\n{table(HEADINGS, rows)}\n",
        "streaming-memory": f"\n{table(MEMORY_HEADINGS, memory)}\n",
    }
    return Section(
        [("operators that stream, A100", "Liger's table", f"{len(times)}", result)], blocks
    )


def compare(path: Path) -> Iterator[Compared]:
    """Yield every row of the table with its estimate, for the kernels of torch 2.4."""
    rates = Rates(device_named(CARD))
    with (
        patch.object(kernels.streaming, "GATHERS_VECTORS", False),
        patch.object(kernels.row_kernels, "threads_of_loss", lambda _: 32),
    ):
        for row in rows_of(path):
            program = PROGRAMS[row.operator](row)
            if row.metric == "speed":
                yield Compared(row, 1e3 * program.seconds(rates, row.mode))
            else:
                yield Compared(row, program.peak_bytes() / MIB)


def rows_of(path: Path) -> Iterator[Measured]:
    """Yield the rows of the table whose programs are known."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            operator, metric = row["kernel_name"], row["metric_name"]
            mode = row["kernel_operation_mode"]
            is_known_peak = mode == "full" and operator not in WITHOUT_MEMORY
            if operator not in PROGRAMS or (metric == "memory" and not is_known_peak):
                continue
            size = int(row["x_value"])
            sizes = json.loads(row["extra_benchmark_config_str"])
            yield Measured(
                operator=operator,
                mode=mode,
                metric=metric,
                size=size,
                sizes={**sizes, row["x_name"]: size},
                value=float(row["y_value_50"]),
            )


class Program:
    """What Liger's benchmark runs for a row: a forward pass, or one with its backward pass."""

    def __init__(
        self,
        forward: Callable[..., Any],
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor] = (),
        *,
        adds_up: bool = False,
        draws_gradient: bool = False,
        keeps_gradients: bool = True,
        retains_graph: bool = False,
        other_bytes: int = 0,
    ) -> None:
        """Describe a benchmark.

        Args:
            forward: the function that is measured.
            inputs: its inputs, differentiated if they need it, and then its weights.
            weights: parameters, whose gradients are added up from pass to pass.
            adds_up: True if those of inputs are added up, too, when time is measured.
            draws_gradient: True if the backward pass begins with ``randn_like``.
            keeps_gradients: True if gradients of the pass before are there at the peak.
            retains_graph: True if the backward pass frees no saved tensor.
            other_bytes: what else is on the card.
        """
        self._forward = forward
        self._inputs = (*inputs, *weights)
        self._added = (*(inputs if adds_up else ()), *weights)
        self._draws_gradient = draws_gradient
        self._keeps_gradients = keeps_gradients
        self._retains_graph = retains_graph
        self._other_bytes = other_bytes

    def seconds(self, rates: Rates, mode: str) -> float:
        """Return the seconds of the kernels of a mode: forward, backward or full."""
        forward = self._seconds_of(rates, self._forward)
        if mode == "forward":
            return forward
        full = self._seconds_of(rates, self._with_backward)
        return full - forward if mode == "backward" else full

    def peak_bytes(self) -> int:
        """Return the peak of allocated memory of both passes, after others."""
        module = _Module(self._with_backward)
        peak = estimate_memory(module, args=self._inputs, progress=False).peak_bytes
        if self._keeps_gradients:
            wanted = (each for each in self._inputs if each.requires_grad)
            peak += sum(each.numel() * each.element_size() for each in wanted)
        return peak + self._other_bytes

    def _with_backward(self, *inputs: Tensor) -> Any:
        found = self._forward(*inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        given = [self._gradient_of(each, inputs[0].dtype) for each in outputs]
        wanted = [each for each in inputs if each.requires_grad]
        retains = self._retains_graph
        gradients = torch.autograd.grad(outputs, wanted, given, retain_graph=retains)
        added = {id(each) for each in self._added}
        source_of = dict(zip(map(id, inputs), self._inputs, strict=True))
        for each, gradient in zip(wanted, gradients, strict=True):
            if id(source_of[id(each)]) in added:
                torch.empty_like(gradient).add_(gradient)
        return gradients

    def _gradient_of(self, output: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the gradient that a backward pass begins with, in the type of the input."""
        if output.dim() == 0:
            return None
        if self._draws_gradient:
            return torch.randn_like(output)
        return torch.empty_like(output, dtype=dtype).to(output.dtype)

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
    return Program(F.cross_entropy, [scores, _places(rows)], adds_up=True)


def _layer_norm(row: Measured) -> Program:
    length = row.sizes["N"]
    norm = lambda x, weight, bias: F.layer_norm(x, (length,), weight, bias)  # noqa: E731
    weights = [_meta(length), _meta(length)]
    return Program(norm, [_meta(row.sizes["M"], length)], weights, retains_graph=True)


def _rms_norm(row: Measured) -> Program:
    """Llama's norm of transformers: bf16 operands, a weight in single precision."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        hidden = x.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + 1e-6)
        return weight * hidden.to(x.dtype)

    x = _meta(row.sizes["M"], row.sizes["H"], dtype=torch.bfloat16)
    return Program(norm, [x], [_meta(row.sizes["H"])], retains_graph=True)


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
    return Program(
        rotate, [*states, *angles], keeps_gradients=False, retains_graph=True, other_bytes=WORKSPACE
    )


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
    weights.append(_meta(width, inner, dtype=half))
    options = {"draws_gradient": True, "retains_graph": True, "other_bytes": WORKSPACE}
    return Program(layer, [x], weights, **options)


def _linear_cross_entropy(row: Measured) -> Program:
    """The layer that torch's was compared with is on the card, too."""
    half = torch.bfloat16
    rows, width = row.sizes["BT"], row.sizes["H"]

    def loss(x: Tensor, places: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight), places)

    x = _meta(rows, width, dtype=half)
    weight = _meta(row.sizes["V"], width, dtype=half)
    other = weight.numel() * weight.element_size() + WORKSPACE
    return Program(loss, [x, _places(rows)], [weight], adds_up=True, other_bytes=other)


def _preference(row: Measured) -> Program:
    """A loss that prefers the first half of the answers.

    The first version of ORPO's benchmark, with 4,096 tokens, stayed in 16 bits.
    """
    half = torch.bfloat16
    batch, tokens, width = row.sizes["B"], row.sizes["T"], row.sizes["H"]
    is_first = row.operator == "fused_linear_orpo_loss" and tokens == 4096

    def loss(x: Tensor, places: Tensor, weight: Tensor) -> Tensor:
        scores = F.linear(x, weight)
        if not is_first:
            scores = scores.float()
        chosen = scores[: batch // 2].reshape(-1, scores.shape[-1])
        known = F.cross_entropy(chosen, places[: batch // 2].reshape(-1))
        logs = F.log_softmax(scores, -1)
        if is_first:
            return known - logs.mean(-1).mean()
        return known - logs.gather(2, places.unsqueeze(2)).squeeze(2).sum(-1).mean()

    weight = _meta(row.sizes["V"], width, dtype=half)
    inputs = [_meta(batch, tokens, width, dtype=half), _places(batch, tokens)]
    other = weight.numel() * weight.element_size() + WORKSPACE
    return Program(loss, inputs, [weight], adds_up=True, other_bytes=other)


PROGRAMS: Mapping[str, Callable[[Measured], Program]] = {
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
    "fused_linear_cpo_loss": _preference,
    "fused_linear_cross_entropy": _linear_cross_entropy,
    "fused_linear_orpo_loss": _preference,
    "fused_linear_simpo_loss": _preference,
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
    apart = _errors([each for each in group if each.is_held_out])
    return (
        operator,
        mode,
        str(len(group)),
        percent(statistics.median(errors)),
        f"± {percent(four_of_five(errors))}",
        f"{statistics.median(each.ratio for each in group):.2f}",
        percent(statistics.median(apart)),
    )


def _peaks_of(operator: str, group: Sequence[Compared]) -> tuple[str, ...]:
    ratios = [each.ratio for each in group]
    found = (min(ratios), statistics.median(ratios), max(ratios))
    return (operator, str(len(group)), *(f"{ratio:.3f}" for ratio in found))


def _errors(compared: Sequence[Compared]) -> list[float]:
    return [abs(each.ratio - 1) for each in compared]
