"""Published training steps of language models, as they can be asked."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

FOUNDRY = "train_llmfoundry_mpt.csv.gz"
TITAN = "train_torchtitan_torchao.csv.gz"
FINETUNING = "finetune_fms_acceleration_a100.csv.gz"
LITGPT = "finetune_litgpt.csv.gz"

Source = Literal["llm-foundry", "torchtitan", "torchao", "transformers"]
#: recomputed layers: none, all, every second one, or torchtitan's selection of operators
Checkpoint = Literal["none", "full", "every 2nd", "selective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A published training step."""

    source: Source
    #: name of the model
    model: str
    #: the GPU: "H100", "H100 96GB" (torchtitan's) or "A100"
    device: str
    #: sizes of the mesh
    dp: int
    tp: int = 1
    cp: int = 1
    #: tokens of a sequence, sequences of a copy of the model at once, and passes of a step
    length: int
    batch: int
    accumulation: int = 1
    checkpoint: Checkpoint = "none"
    compiled: bool = False
    #: "bf16", or "bf16-mixed": weights in 32 bits
    precision: str = "bf16-mixed"
    #: name of the recipe of float8, or empty
    float8: str = ""
    #: True if FSDP gathers weights in 8 bits
    gathers_float8: bool = False
    async_tp: bool = False
    #: rank of adapters, or 0
    lora: int = 0
    #: layers
    layers: int
    #: False if weights stay whole between the passes of a step
    reshard: bool = True
    #: tokens of one GPU in a second
    tokens_per_second: float

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.dp * self.tp * self.cp

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        tokens = self.length * self.batch * self.accumulation
        return tokens / (self.tokens_per_second * self.tp * self.cp)

    @property
    def name(self) -> str:
        """A short description."""
        parts = [self.source, self.model, f"{self.dp}"]
        parts += [f"tp{self.tp}"] if self.tp > 1 else []
        parts += [f"cp{self.cp}"] if self.cp > 1 else []
        parts += [f"{self.length}x{self.batch}x{self.accumulation}", self.checkpoint]
        parts += ["compiled"] if self.compiled else []
        parts += [self.float8] if self.float8 else []
        parts += ["async"] if self.async_tp else []
        parts += [f"lora{self.lora}"] if self.lora else []
        return " ".join(parts)


def rows_of(truth: Path) -> Iterator[TrainingRow]:
    """Yield all rows that can be asked."""
    yield from foundry_rows(truth)
    yield from titan_rows(truth)
    yield from finetuning_rows(truth)


def _read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def foundry_rows(truth: Path) -> Iterator[TrainingRow]:
    """Yield the rows of llm-foundry: FSDP1, eager, FlashAttention 1 by Triton."""
    for row in _read(truth / FOUNDRY):
        yield TrainingRow(
            source="llm-foundry",
            model=f"mpt-{row['model']}",
            device="H100",
            dp=int(row["gpus"]),
            length=int(row["seq_len"]),
            batch=int(row["micro_batch_per_gpu"]),
            accumulation=int(row["grad_accum"]),
            checkpoint="full" if row["activation_checkpointing"] == "True" else "none",
            layers=int(row["n_layers"]),
            reshard=row["fsdp_sharding"] == "FULL_SHARD",
            tokens_per_second=float(row["tokens_per_s_per_gpu"]),
        )


_CHECKPOINTS: Mapping[str, Checkpoint] = {
    "selective op": "selective",
    "full": "full",
    "none": "none",
    "selective layer (every 2nd)": "every 2nd",
}
#: the GPU of torchtitan, HBM2e with 2.4 TB/s and 500 W, and of torchao: its roofline has that bandwidth,
#: "custom to Meta's H100 variant", and logs in its pull requests show 47.79 GiB as 50.30 % of the memory,
#: which is that of this card (95 GiB), not of NVIDIA's (79 GiB)
TITAN_CARD = "H100 96GB"
_FLOAT8 = {
    "float8 linears": "tensorwise",
    "float8 tensorwise": "tensorwise",
    "float8 rowwise": "rowwise",
    "float8 rowwise, bf16 all-gather": "rowwise",
    "float8 tensorwise, float8 all-gather": "tensorwise",
    "float8": "tensorwise",
}


def _is_plain(path: str) -> bool:
    """Return whether float8 was run without options, so that FSDP gathers in 16 bits.

    The commands beside asynchronous tensor parallelism have none; beside float8nocompile, nothing
    is said about them.
    """
    return "nocompile" in path or "asyncTP" in path


def titan_rows(truth: Path) -> Iterator[TrainingRow]:
    """Yield the rows of torchtitan and torchao: FSDP2, SDPA."""
    for row in _read(truth / TITAN):
        _, _, float8 = row["precision"].partition(" + ")
        if float8 == "float8nocompile":
            continue
        float8_name = _FLOAT8[float8] if float8 else ""
        size = "70B" if "70B" in row["model"] else "8B"
        yield TrainingRow(
            source="torchao" if row["repo"] == "pytorch/ao" else "torchtitan",
            model=f"llama-{size}",
            device=TITAN_CARD,
            dp=int(row["dp_shard"]),
            tp=int(row["tp"]),
            cp=int(row["cp"]),
            length=int(row["seq_len"]),
            batch=int(row["local_batch"].rstrip("?")),
            checkpoint=_CHECKPOINTS[row["ac"]],
            compiled=row["compile"] == "True",
            float8=float8_name,
            gathers_float8=float8_name == "tensorwise" and not _is_plain(row["path"]),
            async_tp=row["async_tp"] == "True",
            layers=80 if size == "70B" else 32,
            tokens_per_second=float(row["tokens_per_s_per_gpu"]),
        )


def unseen_rows() -> Iterator[TrainingRow]:
    """Yield steps published apart from the tables, first estimated after all constants were set.

    In pull requests and issues: pytorch/torchtitan 778, 1207 and 1361, pytorch/ao 2595. All of
    Llama-3-8B with torch.compile; FSDP gathers in 8 bits on the H200.
    """
    row = TrainingRow(
        source="torchtitan",
        model="llama-8B",
        device=TITAN_CARD,
        dp=8,
        length=8192,
        batch=1,
        checkpoint="selective",
        compiled=True,
        layers=32,
        tokens_per_second=math.nan,
    )
    yield replace(row, length=4096, checkpoint="full", tokens_per_second=5033.8)
    yield replace(row, dp=2, tp=2, tokens_per_second=5378)
    yield replace(row, dp=2, tp=2, float8="rowwise", tokens_per_second=5189)
    yield replace(row, float8="rowwise", tokens_per_second=6984.5, source="torchao")
    with_gw_hp = "rowwise_with_gw_hp"
    yield replace(row, float8=with_gw_hp, tokens_per_second=7319.5, source="torchao")
    in_8_bits = replace(row, device="H200", batch=2, float8="tensorwise", gathers_float8=True)
    yield replace(in_8_bits, dp=32, tokens_per_second=10938)
    yield replace(in_8_bits, dp=64, tokens_per_second=10753)


#: layers by the name of a model
_FINETUNED = {
    "bigcode/gpt_bigcode-santacoder": ("santacoder", 24),
    "ibm/PowerLM-3b": ("powerlm-3b", 40),
    "meta-llama/Meta-Llama-3-8B": ("llama-3-8b", 32),
}


def finetuning_rows(truth: Path) -> Iterator[TrainingRow]:
    """Yield the rows of fms-acceleration whose layers are those of transformers."""
    for row in _read(truth / FINETUNING):
        if row["model_name_or_path"] not in _FINETUNED or not row["train_tokens_per_second"]:
            continue
        if row["framework_config"] != "none":
            continue
        model, layers = _FINETUNED[row["model_name_or_path"]]
        yield TrainingRow(
            source="transformers",
            model=model,
            device="A100",
            dp=int(row["num_gpus"]),
            length=2048 if model == "santacoder" else 4096,
            batch=int(row["per_device_train_batch_size"]),
            checkpoint="full",
            precision="bf16",
            lora=round(float(row["r"])) if row["peft_method"] == "lora" else 0,
            layers=layers,
            tokens_per_second=float(row["train_tokens_per_second"]),
        )
