"""Every model with published figures: whether it is recorded, its parameters and its MACs beside the published ones."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.models.zoo import Row, rows
from torchscan import TorchscanError, record
from torchscan.analyses.conventions import Convention, convention_macs
from torchscan.ops import compute_cost
from torchscan.trace.trace import Trace

#: what the figures of a table count: torchvision publishes contractions only, timm what fvcore reports
CONVENTIONS: dict[str, Convention] = {"torchvision": "torchscan", "timm": "fvcore"}

#: rows that are known to be wrong where they were published
WRONG_AT_THE_SOURCE = {"ecaresnext50t_32x4d": "stale: from before the model was changed"}


class Findings:
    """What is counted over all models."""

    def __init__(self) -> None:
        self.models: Counter[str] = Counter()
        #: operator -> how its calls are priced -> their number
        self.operators: dict[str, Counter[str]] = {}

    def note_operators(self, trace: Trace) -> None:
        """Take note of the operators of a pass and of how they are priced."""
        states = {id(op.signature): compute_cost(op.signature).state for op in trace.ops}
        for op in trace.ops:
            self.operators.setdefault(str(op.signature.op), Counter())[
                states[id(op.signature)]
            ] += 1

    def print(self) -> None:
        """Print the totals."""
        for name, models in sorted(self.models.items()):
            print(f"{models:5}  {name}")
        unpriced = {
            name: states["unknown"] for name, states in self.operators.items() if states["unknown"]
        }
        priced = [
            name
            for name, states in self.operators.items()
            if name not in unpriced and states["formula"]
        ]
        free = len(self.operators) - len(priced) - len(unpriced)
        print(
            f"{len(self.operators)} distinct operators: {len(priced)} priced, {free} free, {len(unpriced)} unpriced"
        )
        print(
            "unpriced operators:",
            ", ".join(f"{name} ({calls}×)" for name, calls in unpriced.items()) or "none",
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """A model with published figures, and what was counted."""

    row: Row
    problem: str = ""
    parameters: int = 0
    macs: float = 0.0

    @property
    def has_parameters(self) -> bool:
        """As many as published, within the rounding there."""
        return abs(self.parameters - self.row.parameters) <= self.row.parameters_tolerance

    @property
    def has_macs(self) -> bool:
        """As many as published, within the rounding there."""
        return abs(self.macs - self.row.macs) <= self.row.macs_tolerance

    @property
    def off(self) -> float:
        """The distance of MACs from the published ones, as a share of these."""
        return abs(self.macs / self.row.macs - 1)

    @property
    def reason(self) -> str:
        """Why MACs are not those published."""
        if self.has_macs:
            return "as published, which is rounded"
        if self.row.kind == "ObjectDetection":
            return "depends on how many boxes random weights propose"
        return WRONG_AT_THE_SOURCE.get(self.row.model, "for no known reason")


def compare_zoo(path: Path, only: str) -> int:
    """Print a line for each row that differs and the totals. Returns the number of models that were not recorded."""
    if not path.exists():
        print(f"no published figures at {path}")
        return 0
    findings = Findings()
    start = time.perf_counter()
    for row in rows(path):
        if only.lower() in row.model.lower():
            _note(compared(row, findings), findings.models)
    print(f"\n{time.perf_counter() - start:.0f} s")
    findings.print()
    return findings.models["not recorded"]


def compared(row: Row, findings: Findings) -> Compared:
    """One model, recorded; its operators are noted. Detection models follow their weights: random ones, the same each time."""
    torch.manual_seed(0)
    try:
        trace = record(row.build(), **row.inputs)
    except TorchscanError as error:
        return Compared(row, problem=str(error))
    findings.models[f"recorded, {trace.provenance.execution} pass"] += 1
    findings.note_operators(trace)
    distinct = {each.identity: each.numel for each in trace.parameters if not each.is_buffer}
    return Compared(
        row, "", sum(distinct.values()), sum(convention_macs(trace, CONVENTIONS[row.source]))
    )


def _note(each: Compared, models: Counter[str]) -> None:
    models["models"] += 1
    if each.problem:
        models["not recorded"] += 1
        print(f"{each.row.model}: {each.problem}")
        return
    _note_parameters(each, models)
    _note_macs(each, models)


def _note_parameters(each: Compared, models: Counter[str]) -> None:
    if each.has_parameters:
        models["parameters within published rounding"] += 1
    else:
        models["parameters differ"] += 1
        print(
            f"{each.row.model}: {each.parameters:,} parameters, published {each.row.parameters:,}"
        )


def _note_macs(each: Compared, models: Counter[str]) -> None:
    """Torchvision's figures have three decimals, timm's two: the smaller of these are not known to 1 %."""
    table = f"{each.row.source}, as {CONVENTIONS[each.row.source]} counts: MACs"
    models[f"{table} within published rounding"] += each.has_macs
    models[f"{table} within 1 %"] += each.off <= 0.01
    if each.off > 0.01:
        print(
            f"{each.row.model}: {each.macs / 1e9:.3f} GMACs, published {each.row.macs / 1e9:.3f}: {each.reason}"
        )
