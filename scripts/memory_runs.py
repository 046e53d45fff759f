"""Published memory of training steps: torchtitan's, beside those of fine-tuning."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from finetuning_runs import READERS
from published_runs import Measured, PublishedRun, record_on_mesh
from training_models import LLAMA, TitanLlama

from torchscan.hardware.device_specs import device_named
from torchscan.recording.training.recipe import Checkpoint
from torchscan.trace.trace import Trace

TITAN = "train_torchtitan_torchao.csv.gz"
TABLES = (*READERS, TITAN)
_GIB = 2**30
_CARD = "NVIDIA H100 80GB HBM3"
#: checkpointed layers by what the table says
_CHECKPOINTS: Mapping[str, Checkpoint] = {"full": True, "selective op": "selective"}


def runs(truth: Path) -> Iterator[PublishedRun]:
    """Yield the runs of all tables."""
    for table, read in {**READERS, TITAN: read_titan}.items():
        with gzip.open(truth / table, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield from read(row)


def read_titan(row: Mapping[str, str]) -> Iterator[PublishedRun]:
    """Yield the run of a row with FSDP2 alone, in bf16-mixed."""
    is_plain = row["precision"].startswith("bf16-mixed") and "float8" not in row["precision"]
    if not is_plain or row["tp"] != "1" or row["cp"] != "1" or not row["memory_gib"]:
        return
    cards, batch = int(row["gpus"]), int(row["local_batch"].rstrip("?"))
    tokens, is_compiled = int(row["seq_len"]), row["compile"] == "True"
    device = device_named(_CARD)
    if "96GB" in row["device"]:
        device = replace(device, name="NVIDIA H100 96GB HBM2e", memory_bytes=round(95.0 * _GIB))
    yield PublishedRun(
        source=row["source"] if row["repo"] == "pytorch/ao" else "torchtitan",
        kind="FSDP, compiled" if is_compiled else "FSDP",
        name=f"Llama 8B {row['ac']}{' compiled' if is_compiled else ''} {cards} × {batch} × {tokens}",
        device=device,
        measured=Measured(reserved=round(float(row["memory_gib"]) * _GIB)),
        record=partial(_record_titan, row["ac"], cards, batch, tokens),
        compiled=is_compiled,
        cards=cards,
        tokens=batch * tokens,
    )


def _record_titan(checkpointing: str, cards: int, batch: int, tokens: int) -> Trace:
    with torch.device("meta"):
        model: Any = TitanLlama(LLAMA["8B"], 32, tokens).train()
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    checkpoint = _CHECKPOINTS.get(checkpointing, False)
    if checkpointing.startswith("selective layer"):
        checkpoint = 2

    def apply(sharded: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for index, part in enumerate(sharded.layers):
            is_last = index == len(sharded.layers) - 1
            fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=not is_last)
        fully_shard(sharded, mesh=mesh["dp"], mp_policy=policy)

    return record_on_mesh(
        model,
        cards,
        apply,
        kwargs={"tokens": ids, "labels": ids},
        checkpoint=checkpoint,
        device=_CARD,
    )
