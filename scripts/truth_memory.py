"""Memory of full fine-tuning, compared with what was measured on A100 cards."""

from __future__ import annotations

from pathlib import Path

from tests.models.finetuned import FINETUNING, allocated_by, full_finetuning
from torchscan.units import memory

_HEADINGS = ("model", "cards", "batch", "tokens", "measured", "output held", "output dropped")


def compare_finetuning(truth: Path) -> int:
    """Print estimated ÷ measured of ``max_memory_allocated``; return 1 if the table is missing."""
    table = truth / FINETUNING
    if not table.exists():
        print(f"nothing compared: {FINETUNING} not found in {truth}")
        return 1
    print("| " + " | ".join(_HEADINGS) + " |")
    print("|---" * len(_HEADINGS) + "|")
    for run in full_finetuning(table):
        held, dropped = (allocated_by(run, holds_output=holds) for holds in (True, False))
        run_of = f"{run.name} | {run.cards} | {run.batch} | {run.tokens}"
        measured = run.allocated_bytes
        ratios = f"{held / measured:.4f} | {dropped / measured:.4f}"
        print(f"| {run_of} | {memory(measured)} | {ratios} |", flush=True)
    return 0
