"""Every model with published figures: whether it is recorded, its parameters and its MACs beside the published ones."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tests.models.zoo import Row, rows
from torchscan import TorchscanError, crawl_module


def compare_zoo(path: Path, only: str) -> int:
    """Print a line for each row that differs and the totals. Returns the number of models that were not recorded."""
    if not path.exists():
        print(f"no published figures at {path}")
        return 0
    tally: Counter[str] = Counter()
    unpriced: Counter[str] = Counter()
    start = time.perf_counter()
    for row in rows(path):
        if only.lower() in row.model.lower():
            _compare(row, tally, unpriced)
    print(f"\n{time.perf_counter() - start:.0f} s")
    for name, models in sorted(tally.items()):
        print(f"{models:5}  {name}")
    print("unpriced operators:", ", ".join(f"{name} ({calls}×)" for name, calls in unpriced.most_common()) or "none")
    return tally["not recorded"]


def _compare(row: Row, tally: Counter[str], unpriced: Counter[str]) -> None:
    tally["models"] += 1
    try:
        info = crawl_module(row.build(), **row.inputs)
    except TorchscanError as error:
        tally["not recorded"] += 1
        print(f"{row.model}: {error}")
        return
    tally[f"recorded, {info['provenance']['execution']} pass"] += 1
    unpriced.update(info["unpriced"])
    parameters = info["overall"]["grad_params"] + info["overall"]["nograd_params"]
    if abs(parameters - row.parameters) <= row.parameters_tolerance:
        tally["parameters within published rounding"] += 1
    else:
        tally["parameters differ"] += 1
        print(f"{row.model}: {parameters:,} parameters, published {row.parameters:,}")
    _compare_macs(row, info["overall"]["macs"], tally)


def _compare_macs(row: Row, macs: int, tally: Counter[str]) -> None:
    """Torchvision publishes contractions only, as ``macs`` counts them; timm publishes fvcore's figure, another convention."""
    if row.source != "torchvision":
        return
    if abs(macs - row.macs) <= row.macs_tolerance:
        tally["torchvision: MACs within published rounding"] += 1
    else:
        tally["torchvision: MACs differ"] += 1
        print(f"{row.model}: {macs / 1e9:.3f} GMACs, published {row.macs / 1e9:.3f}")
