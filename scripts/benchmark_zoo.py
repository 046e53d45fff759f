"""Every model with published figures: whether it is recorded, its parameters and its MACs beside the published ones."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tests.models.zoo import Row, rows
from torchscan import TorchscanError, record
from torchscan.analyses.conventions import Convention, convention_macs
from torchscan.ops import price
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
        states = {id(op.signature): price(op.signature).state for op in trace.ops}
        for op in trace.ops:
            self.operators.setdefault(str(op.signature.op), Counter())[states[id(op.signature)]] += 1

    def print(self) -> None:
        """Print the totals."""
        for name, models in sorted(self.models.items()):
            print(f"{models:5}  {name}")
        unpriced = {name: states["unpriced"] for name, states in self.operators.items() if states["unpriced"]}
        priced = [name for name, states in self.operators.items() if name not in unpriced and states["priced"]]
        free = len(self.operators) - len(priced) - len(unpriced)
        print(f"{len(self.operators)} distinct operators: {len(priced)} priced, {free} free, {len(unpriced)} unpriced")
        print("unpriced operators:", ", ".join(f"{name} ({calls}×)" for name, calls in unpriced.items()) or "none")


def compare_zoo(path: Path, only: str) -> int:
    """Print a line for each row that differs and the totals. Returns the number of models that were not recorded."""
    if not path.exists():
        print(f"no published figures at {path}")
        return 0
    findings = Findings()
    start = time.perf_counter()
    for row in rows(path):
        if only.lower() in row.model.lower():
            _compare(row, findings)
    print(f"\n{time.perf_counter() - start:.0f} s")
    findings.print()
    return findings.models["not recorded"]


def _compare(row: Row, findings: Findings) -> None:
    findings.models["models"] += 1
    try:
        trace = record(row.build(), **row.inputs)
    except TorchscanError as error:
        findings.models["not recorded"] += 1
        print(f"{row.model}: {error}")
        return
    findings.models[f"recorded, {trace.provenance.execution} pass"] += 1
    findings.note_operators(trace)
    _compare_parameters(row, trace, findings.models)
    _compare_macs(row, trace, findings.models)


def _compare_parameters(row: Row, trace: Trace, models: Counter[str]) -> None:
    distinct = {each.identity: each.numel for each in trace.parameters if not each.is_buffer}
    parameters = sum(distinct.values())
    if abs(parameters - row.parameters) <= row.parameters_tolerance:
        models["parameters within published rounding"] += 1
    else:
        models["parameters differ"] += 1
        print(f"{row.model}: {parameters:,} parameters, published {row.parameters:,}")


def _compare_macs(row: Row, trace: Trace, models: Counter[str]) -> None:
    """Torchvision's figures have three decimals, timm's two: the smaller of these are not known to 1 %."""
    convention = CONVENTIONS[row.source]
    macs = sum(convention_macs(trace, convention))
    table = f"{row.source}, as {convention} counts: MACs"
    off, is_rounding = abs(macs / row.macs - 1), abs(macs - row.macs) <= row.macs_tolerance
    models[f"{table} within published rounding"] += is_rounding
    models[f"{table} within 1 %"] += off <= 0.01
    if off > 0.01:
        print(f"{row.model}: {macs / 1e9:.3f} GMACs, published {row.macs / 1e9:.3f}: {_reason(row, is_rounding)}")


def _reason(row: Row, is_rounding: bool) -> str:
    if is_rounding:
        return "as published, which is rounded"
    if row.kind == "ObjectDetection":
        return "depends on how many boxes random weights propose"
    return WRONG_AT_THE_SOURCE.get(row.model, "for no known reason")
