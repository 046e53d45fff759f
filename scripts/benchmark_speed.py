"""What the calls that people make take by default, beside torch's and torchinfo's, in terms of one bare forward pass."""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchinfo
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.models.catalogue import DEEPSEEK_V3, LLAMA_3_1_405B, TIMED, TIMED_BESIDES, Case
from torchscan import analyze_roofline, crawl_module, estimate_memory, receptive_field, summary

Call = Callable[[], object]

_RUNS = 5
_OTHERS = ("FlopCounterMode", "torchinfo")
_BARE = ("bare", "bare, no_grad")


def compare_speed(only: str) -> None:
    """Print a line for each model: milliseconds of a bare forward pass on the meta device, and ratios to it."""
    heading = True
    for title, cases in (
        ("models that were measured from the start", TIMED),
        ("others", TIMED_BESIDES),
    ):
        rows = []
        for name, case in cases.items():
            if only.lower() in name.lower():
                rows.append(_row(name, _least(calls_of(case)), heading=heading))
                heading = False
        if len(rows) > 1:
            print(
                _line(
                    f"median of {title}",
                    "",
                    [statistics.median(each) for each in zip(*rows, strict=True)],
                )
            )
    for name, case in (("Llama-3.1-405B", LLAMA_3_1_405B), ("DeepSeek-V3", DEEPSEEK_V3)):
        if only.lower() in name.lower():
            _row(name, _least(calls_of(case, large=True), runs=3), heading=True)


def calls_of(case: Case, *, large: bool = False) -> Mapping[str, Call]:
    """What is timed of a model, by name; of a large one without the step of an optimizer."""
    model, inputs = case.on_meta(), case.inputs
    example = torch.zeros(
        1, *inputs["input_shape"], dtype=inputs.get("dtype", torch.float32), device="meta"
    )
    step: dict[str, Call] = {
        "estimate_memory": lambda: estimate_memory(
            model, **inputs, training=True, optimizer="AdamW"
        )
    }
    return {
        "bare": lambda: _bare(model, example, torch.inference_mode),
        "bare, no_grad": lambda: _bare(model, example, torch.no_grad),
        "crawl_module": lambda: crawl_module(model, **inputs),
        "summary": lambda: _quietly(summary, model, **inputs),
        "receptive_field": lambda: receptive_field(model, **inputs),
        **({} if large else step),
        "analyze_roofline": lambda: analyze_roofline(model, **inputs, device="NVIDIA H200"),
        "FlopCounterMode": lambda: _counted(model, example),
        "torchinfo": lambda: _summed_up(model, example),
    }


def _bare(model: nn.Module, example: Tensor, mode: Any) -> None:
    with mode():
        model(example)


def _quietly(function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        function(*args, **kwargs)


def _counted(model: nn.Module, example: Tensor) -> None:
    with FlopCounterMode(display=False), torch.no_grad():
        model(example)


def _summed_up(model: nn.Module, example: Tensor) -> None:
    torchinfo.torchinfo.clear_cached_forward_pass()
    torchinfo.summary(model, input_data=example, device="meta", verbose=0)


def _least(calls: Mapping[str, Call], runs: int = _RUNS) -> dict[str, float]:
    """Of several runs in turn the least CPU time of each call, after one that loads what torch loads lazily."""
    for call in calls.values():
        call()
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(runs):
        for name, call in calls.items():
            least[name] = min(least[name], seconds_of(call))
    return least


def seconds_of(call: Call) -> float:
    """CPU time, which other processes do not lengthen as much."""
    start = time.process_time()
    call()
    return time.process_time() - start


def _row(name: str, least: dict[str, float], *, heading: bool) -> list[float]:
    bare = min(least.pop(each) for each in _BARE)
    if heading:
        print(
            f"{'ratio to a bare pass':46}{'bare ms':>9}" + "".join(f"{each:>17}" for each in least)
        )
    ratios = [seconds / bare for seconds in least.values()]
    print(_line(name, f"{1000 * bare:.1f}", ratios))
    return ratios


def _line(name: str, bare: str, ratios: list[float]) -> str:
    return f"{name:46}{bare:>9}" + "".join(f"{each:17.2f}" for each in ratios)
