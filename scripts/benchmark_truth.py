"""Everything that published figures are at hand for, compared, and the figures written into docs/accuracy.md."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from kernel_tables import table_names
from memory_runs import TABLES as STEPS
from steps_on_device import steps
from truth_counts import LANGUAGE, ZOO, language_models, zoo
from truth_fields import FIELDS, fields
from truth_finetuning import finetuning
from truth_kernels import kernels
from truth_left_out import left_out, left_out_before
from truth_memory import training_memory
from truth_projective import projective
from truth_section import Section, lines
from truth_serving import ENGINES, QWEN, serving
from truth_streaming import LIGER, streaming
from truth_times import MEASURED, differences, times
from truth_training import TABLES as TRAINING
from truth_training import training

from tests.marked import blocks_of, rows_of, table, with_blocks
from torchscan.files import write_text

ROOT = Path(__file__).parents[1]
TABLES = (
    *(ZOO, FIELDS, *(each.table for each in MEASURED), *table_names()),
    *(LIGER, ENGINES, QWEN, *dict.fromkeys([*STEPS, *TRAINING])),
)
HEADINGS = ("question", "compared with", "n", "result")


def write_truth(truth: Path, page: Path, *, leave_one_out: bool) -> int:
    """Write the page's figures, and print which numbers of the package they contradict. Returns how many tables are missing."""
    missing = [name for name in TABLES if not (truth / name).exists()]
    if missing:
        print(f"nothing written: {', '.join(missing)} not found in {truth}")
        return len(missing)
    sections = [*_sections(truth), *([left_out(truth, made())] if leave_one_out else [])]
    text = page.read_text(encoding="utf-8")  # not before: it may be edited meanwhile
    blocks = _blocks(sections if leave_one_out else [*sections, left_out_before(blocks_of(text))])
    write_text(page, with_blocks(text, blocks))
    for line in differences(rows_of(blocks["time"])):
        print(line)
    return 0


def _blocks(sections: Sequence[Section]) -> dict[str, str]:
    blocks = {name: text for each in sections for name, text in each.blocks.items()}
    summary = table(HEADINGS, [row for each in sections for row in each.summary])
    return {
        **blocks,
        "made": "\n" + lines(f"Made on {made()}.") + "\n",
        "summary": f"\n{summary}\n",
    }


def _sections(truth: Path) -> Iterator[Section]:
    comparisons = {ZOO: zoo, LANGUAGE: language_models, FIELDS: fields}
    comparisons |= {"projective fields": projective, "times": times}
    for name, ask in {
        **comparisons,
        "kernels": kernels,
        LIGER: streaming,
        ENGINES: serving,
        "steps": steps,
        "training": training,
        "memory": training_memory,
        "fine-tuning": finetuning,
    }.items():
        start = time.perf_counter()
        yield ask(truth)
        print(f"{name}: {time.perf_counter() - start:.0f} s")


def made() -> str:
    """The day, and the versions of what takes part."""
    packages = ("torchscan", "torch", "torchvision", "timm", "transformers")
    versions = ", ".join(
        f"{name} {re.sub(r'[+].*', '', metadata.version(name))}" for name in packages
    )
    return f"{datetime.now(UTC):%Y-%m-%d} with {versions}"
