"""Estimated against published step times: every model of a table, recorded on shapes and priced for the table's card."""

from __future__ import annotations

import csv
import hashlib
import logging
import os
import pickle
import re
import statistics
import time
import warnings
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchscan import TorchscanError
from torchscan.analyses.roofline import Rates, roofline_of
from torchscan.hardware.devices import Device, device_named
from torchscan.recording.passes import record_pass
from torchscan.recording.precision import in_precision
from torchscan.recording.request import PassRequest
from torchscan.trace.trace import Trace

RECORDS = Path(__file__).parents[1] / ".benchmarks" / "roofline"
PRECISION = "fp16-mixed"
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of the table."""

    model: str
    size: int
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A measurement with what is estimated, or why there is no estimate."""

    row: Row
    bound: float = 0.0
    estimate: float = 0.0
    problem: str = ""

    @property
    def ratio(self) -> float:
        """Estimated by measured."""
        return self.estimate / self.row.seconds


@dataclass(frozen=True, slots=True)
class Question:
    """What was measured, on which card."""

    card: Device
    compiled: bool
    training: bool


def compare_step_times(path: Path, device: str, only: str, *, compiled: bool, training: bool) -> int:
    """Print the errors over all rows, the families that are off, and the worst rows. Returns how many have no estimate."""
    if not path.exists():
        print(f"no measured step times at {path}")
        return 0
    question = Question(device_named(device), compiled, training)
    rows = [row for row in _rows(path) if only.lower() in row.model.lower()]
    start = time.perf_counter()
    with ProcessPoolExecutor(WORKERS) as pool:
        outcomes = list(pool.map(_outcome, rows, [question] * len(rows), chunksize=8))
    what = "training" if training else "compiled" if compiled else "eager"
    print(f"{len(rows)} measurements, {what}, {question.card.name}, {PRECISION}; {time.perf_counter() - start:.0f} s")
    done = [each for each in outcomes if not each.problem]
    for each in outcomes:
        if each.problem:
            print(f"{each.row.model} {each.row.size}: {each.problem}")
    if done:
        _print_errors(done)
    return len(outcomes) - len(done)


def _rows(path: Path) -> list[Row]:
    with path.open() as file:
        return [
            Row(each["model"], int(each["img_size"]), int(each["batch"]), float(each["step_ms"]) / 1000)
            for each in csv.DictReader(file)
        ]


def _outcome(row: Row, question: Question) -> Outcome:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        trace = _recorded(row, training=question.training)
        result = roofline_of(trace, Rates(question.card), precision=PRECISION, compiled=question.compiled)
    except (TorchscanError, RuntimeError) as error:
        return Outcome(row, problem=str(error).splitlines()[0])
    return Outcome(row, result.time_bound, result.time_estimate)


def _recorded(row: Row, *, training: bool) -> Trace:
    """The record, made once for each state of what makes records."""
    path = RECORDS / _state() / f"{row.model}_{row.size}_{row.batch}{'_training' * training}"
    if path.exists():
        found: Trace = pickle.loads(zlib.decompress(path.read_bytes()))  # noqa: S301 - our own
        return found
    request = PassRequest(
        module=_built(row.model, training=training),
        input_shape=(3, row.size, row.size),
        batch_size=row.batch,
        execute="abstract",
        in_pieces=True,
        device_type="cuda",
        **(_TRAINING if training else {}),
    )
    trace = record_pass(in_precision(request, PRECISION))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_bytes(zlib.compress(pickle.dumps(trace), 1))
    beside.replace(path)
    return trace


def _loss(output: torch.Tensor) -> torch.Tensor:
    targets = torch.zeros(output.shape[0], dtype=torch.long, device=output.device)
    return torch.nn.functional.cross_entropy(output, targets)


def _optimizer(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


#: as the table of training steps was made
_TRAINING: dict[str, Any] = {"mode": "train", "backward": _loss, "optimizer": _optimizer}


def _state() -> str:
    """Of all code that a record depends on."""
    package = Path(__file__).parents[1] / "torchscan"
    sources = sorted(
        [*package.glob("trace/*.py"), *package.glob("recording/**/*.py"), *package.glob("ops/*.py"), Path(__file__)]
    )
    versions = f"{torch.__version__} {metadata.version('timm')}".encode()
    return hashlib.sha256(versions + b"".join(each.read_bytes() for each in sources)).hexdigest()[:12]


def _built(name: str, *, training: bool) -> nn.Module:
    """As the tables were made: normalisations in half precision, as their figures show, and torch 2.4's attention with a mask.

    Training was measured with torch 1.12: normalisations in single precision, as autocast has them, and no fused attention.

    With group norms in single precision, as autocast has them by default, ResNet-50 with them is estimated to take 2.1 times as
    long as without, in half precision 1.09 times; measured are 1.16 times.
    """
    import tests.torchvision_cpu  # noqa: F401, I001 - before timm, which imports torchvision
    import timm
    from timm.layers import set_fast_norm, set_fused_attn

    logging.disable(logging.CRITICAL)
    set_fast_norm(not training)
    set_fused_attn(not training)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with torch.device("meta"):
            model: nn.Module = timm.create_model(name)
    except Exception:  # some ask for values while they are built
        model = timm.create_model(name)
    return model


def _is_apart(row: Row) -> bool:
    """A third of the models, drawn on 2026-11-23 and not looked at while constants were set since."""
    return zlib.crc32(f"held out: {row.model}".encode()) % 3 == 0


def _print_errors(done: list[Outcome]) -> None:
    for name, part in (("two thirds", False), ("the other third", True)):
        outcomes = [each for each in done if _is_apart(each.row) is part]
        if outcomes:
            print(f"{name}: {len(outcomes)} models")
            _print_error("estimate", [each.estimate for each in outcomes], outcomes)
            _print_error("bound", [each.bound for each in outcomes], outcomes)
    faster = [each for each in done if each.row.seconds < each.bound]
    names = ", ".join(f"{each.row.model} {each.row.size} ({each.bound / each.row.seconds:.2f})" for each in faster[:8])
    print(f"measured faster than the bound: {len(faster)} {names}")
    families: dict[str, list[float]] = {}
    for each in done:
        families.setdefault(re.split(r"[_\d]", each.row.model)[0], []).append(each.ratio)
    off = sorted(families.items(), key=lambda item: -len(item[1]) * abs(statistics.median(item[1]) - 1))
    print("\nfamilies, by how much they contribute:")
    for name, ratios in off[:15]:
        print(f"  {name:20}{len(ratios):4} models, median estimate ÷ measured {statistics.median(ratios):.2f}")
    print("\nworst:")
    for each in sorted(done, key=lambda each: -abs(each.ratio - 1))[:15]:
        print(f"  {each.row.model:40}{each.row.size:5}{1000 * each.row.seconds:10.1f} ms measured, × {each.ratio:.2f}")


def _print_error(name: str, times: list[float], done: list[Outcome]) -> None:
    errors = [abs(time / each.row.seconds - 1) for time, each in zip(times, done, strict=True)]
    order = _spearman(times, [each.row.seconds for each in done])
    median, mean = 100 * statistics.median(errors), 100 * statistics.mean(errors)
    bias = statistics.median(time / each.row.seconds for time, each in zip(times, done, strict=True))
    print(f"  {name:10} error: median {median:.2f} %, mean {mean:.2f} %; bias {bias:.3f}; Spearman {order:.4f}")


def _spearman(first: list[float], second: list[float]) -> float:
    return statistics.correlation(_ranks(first), _ranks(second)) if len(first) > 1 else 1.0


def _ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    places = {index: float(place) for place, index in enumerate(order)}
    return [places[index] for index in range(len(values))]
