"""Every published language model of the tests: parameters and MACs beside those derived by hand, and the operators it takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import nn

from tests.models.language_models import LANGUAGE_MODELS, LanguageModel
from torchscan import crawl_module, record
from torchscan.ops import compute_cost
from torchscan.types import Trace


def compare_transformers(only: str = "") -> int:
    """Print a line for each model, then how many operators are known. Returns the number of models that are not exact."""
    print(f"{'model':38}{'parameters':>16}{'MACs':>23}{'MACs by hand':>23}  exact{'seconds':>9}")
    wrong = 0
    states: dict[str, set[str]] = {}
    for model in LANGUAGE_MODELS:
        if only.lower() in model.name.lower():
            wrong += not _compare(model, states)
    tally = Counter(_overall(each) for each in states.values())
    print(
        f"{len(states)} distinct operators: "
        + ", ".join(f"{tally[state]} {state}" for state in _STATES)
    )
    print(
        "unpriced operators:",
        ", ".join(sorted(name for name, each in states.items() if "unknown" in each)) or "none",
    )
    return wrong


def _compare(model: LanguageModel, states: dict[str, set[str]]) -> bool:
    module = model.case.on_meta()
    start = time.perf_counter()
    overall = counted(model, module)
    seconds = time.perf_counter() - start
    right = is_exact(model, overall)
    macs = f"{overall['macs']:23,}{model.macs:23,}"
    print(
        f"{model.name:38}{_parameters(overall):16,}{macs}  {'yes' if right else 'NO':5}{seconds:9.2f}"
    )
    _note_operators(record(module, **model.case.inputs, execute="abstract"), states)
    return right


def counted(model: LanguageModel, module: nn.Module) -> dict[str, Any]:
    """What a pass of the model comes to."""
    overall: dict[str, Any] = crawl_module(module, **model.case.inputs, execute="abstract")[
        "overall"
    ]
    return overall


def is_exact(model: LanguageModel, overall: dict[str, Any]) -> bool:
    """To the last parameter, as published, and to the last product, as by hand."""
    return bool(
        _parameters(overall) == model.published
        and overall["macs"] == model.macs
        and overall["complete"]
    )


def _parameters(overall: dict[str, Any]) -> int:
    return int(overall["grad_params"] + overall["nograd_params"])


def _note_operators(trace: Trace, states: dict[str, set[str]]) -> None:
    for call in trace.ops:
        states.setdefault(str(call.signature.op), set()).add(compute_cost(call.signature).state)


#: an operator that is priced on floating-point numbers and free on integers counts as priced
_STATES = ("unknown", "formula", "costless")


def _overall(states: Iterable[str]) -> str:
    return min(states, key=_STATES.index)
