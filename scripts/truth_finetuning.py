"""Published fine-tuning runs that options of a step describe: estimated ÷ measured memory and speed.

``python scripts/truth_finetuning.py FOLDER [PART]`` reads the tables of a folder, and compares rows
whose description contains the part. Nothing is fitted to these tables.
"""

from __future__ import annotations

import csv
import gzip
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from tests.models.finetuned import CARD, FINETUNING, MODELS, loss_in_half
from torchscan import InputError, Scan
from torchscan.units import memory

_LITGPT = "finetune_litgpt.csv.gz"
_PEFT = "finetune_peft_methods_l40s.csv.gz"
_BASES = {"none": None, "baseline-peft-bnb": "nf4", "accelerated-peft-bnb": "nf4"}
_WITH_LIGER = {
    "foak-fast-kernels-liger": None,
    "accelerated-peft-bnb-foak-liger": "nf4",
    "accelerated-peft-autogptq-foak-liger": "gptq",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A published run with the options that describe it."""

    name: str
    build: Callable[[], nn.Module]
    cards: int
    batch: int
    tokens: int
    card: str
    #: allocated or reserved bytes
    measured: int
    is_reserved: bool = False
    tokens_per_second: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def main(folder: Path, part: str) -> int:
    """Print a row for each run, and the errors of all; return 1 if a table is missing."""
    tables = {FINETUNING: read_fms, _LITGPT: read_litgpt, _PEFT: read_peft}
    missing = [name for name in tables if not (folder / name).exists()]
    if missing:
        print(f"nothing compared: {missing[0]} not found in {folder}")
        return 1
    print("| run | measured | memory | speed |\n|---|---|---|---|")
    for name, read in tables.items():
        rows = list(_rows(folder / name))
        runs = [run for row in rows for run in read(row)]
        ratios = [
            ratio for run in runs if part in run.name and (ratio := _compare(run)) is not None
        ]
        text = f"{len(runs)} of {len(rows)} rows can be asked"
        if ratios:
            errors = [abs(each - 1) for each in ratios]
            text += (
                f"; {len(ratios)} compared: bias {statistics.median(ratios):.3f}, "
                f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}"
            )
        print(f"{name}: {text}", flush=True)
    return 0


def _rows(table: Path) -> Iterator[dict[str, str]]:
    with gzip.open(table, "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _compare(run: Run) -> float | None:
    with torch.device("meta"):
        model = run.build().train()
    tokens = torch.zeros(run.batch, run.tokens, dtype=torch.long)
    step: dict[str, Any] = {
        "kwargs": {"input_ids": tokens, "labels": tokens, "use_cache": False},
        "training": True,
        "loss": _loss_of,
        "optimizer": "AdamW",
        "device": run.card,
        "progress": False,
        **run.options,
    }
    try:
        estimate, seconds = _estimate(run, model, step)
    except InputError as error:
        print(f"| {run.name} | refused: {error} | | |", flush=True)
        return None
    verdict = estimate.verdict
    assert verdict is not None  # noqa: S101 - there is a device
    found = verdict.reserved_bytes if run.is_reserved else verdict.allocated_bytes
    speed = ""
    if run.tokens_per_second is not None:
        per_second = run.batch * run.tokens / seconds
        speed = f"{per_second / run.tokens_per_second:.2f}"
    ratio = found / run.measured
    print(f"| {run.name} | {memory(run.measured)} | {ratio:.3f} | {speed} |", flush=True)
    return ratio


def _estimate(run: Run, model: nn.Module, step: dict[str, Any]) -> tuple[Any, float]:
    if run.cards == 1:
        scan = Scan(model, **step)
        return scan.memory, scan.roofline.time_estimate
    if step.pop("precision", None) is not None:
        raise InputError("autocast is not an option of plan()")
    plan = torchscan.parallel.plan(model, mesh={"dp": run.cards}, apply=_shard, **step)
    assert plan.ranks[0].roofline is not None  # noqa: S101 - there is a device
    return plan.memory, plan.ranks[0].roofline.time_estimate


def _loss_of(output: Any) -> Any:
    return output.loss


def _shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    from torchscan.recording.training.recipe import layers_of

    for part in (*layers_of(model), model):
        fully_shard(part, mesh=mesh["dp"])


# -- fms-acceleration ----------------------------------------------------------------------------


def read_fms(row: Mapping[str, str]) -> Iterator[Run]:
    """Yield the run of a row, unless its kernels or its parallelism are none of the options."""
    framework = row["framework_config"]
    has_liger = framework in _WITH_LIGER
    if not (has_liger or framework in _BASES) or not row["mem_peak_torch_mem_alloc_in_bytes"]:
        return
    weights = _WITH_LIGER[framework] if has_liger else _BASES[framework]
    dtype = getattr(torch, row["torch_dtype"])
    options: dict[str, Any] = {"checkpoint": True, "weights": weights}
    if has_liger:
        options["cross_entropy"] = "liger"
    if row["peft_method"]:
        options["lora"] = _lora(row["r"], row["target_modules"].split())
    # Stock peft casts what is not packed to 32 bits; the plugin for QLoRA leaves it as it is.
    is_mixed = bool(row["bf16"] or row["fp16"]) and not framework.startswith("accelerated-peft-bnb")
    if is_mixed:
        options["precision"] = "bf16-mixed" if row["bf16"] else "fp16-mixed"
    name, kind = row["model_name_or_path"].rpartition("/")[2], row["peft_method"] or "full"
    batch, tokens = int(row["per_device_train_batch_size"]), round(float(row["seq_len"]))
    known = MODELS.get(row["model_name_or_path"])
    if known is not None and not known.upcasts and not row["bf16"]:
        labels = torch.zeros(batch, tokens, dtype=torch.long)
        options["loss"] = partial(loss_in_half, labels)
        options["kwargs"] = {"input_ids": labels, "use_cache": False}
    yield Run(
        name=f"{name} {framework} {kind} {row['num_gpus']} × {batch}",
        build=partial(_build_fms, row["model_name_or_path"], dtype),
        cards=int(row["num_gpus"]),
        batch=batch,
        tokens=tokens,
        card=CARD,
        measured=round(float(row["mem_peak_torch_mem_alloc_in_bytes"])),
        tokens_per_second=float(row["train_tokens_per_second"]),
        options=options,
    )


def _lora(rank: str, targets: list[str]) -> Any:
    import peft

    return peft.LoraConfig(r=round(float(rank)), lora_dropout=0.1, target_modules=targets)


def _build_fms(name: str, dtype: torch.dtype) -> nn.Module:
    if name in MODELS:
        return MODELS[name].build().to(dtype)
    return _llama(4096, 14336, 32, heads=32, keys=8, vocabulary=128256).to(dtype)


def _llama(
    width: int,
    inner: int,
    layers: int,
    *,
    heads: int,
    keys: int,
    vocabulary: int,
    tied: bool = False,
) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        max_position_embeddings=8192,
        tie_word_embeddings=tied,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


# -- litgpt and peft -----------------------------------------------------------------------------


def read_litgpt(row: Mapping[str, str]) -> Iterator[Run]:
    """Yield the run of a row with low-rank adapters on one card."""
    sizes = {"7B Llama 2": (4096, 11008, 32, 32), "13B Llama 2": (5120, 13824, 40, 40)}
    is_lora = row["method"] == "Finetuning with LoRA on 1 GPU" and row["model"] in sizes
    if not is_lora or not row["memory_gb"].endswith("GB"):
        return
    width, inner, layers, heads = sizes[row["model"]]
    weights = {"None": None, "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq"}[row["quantization"]]

    def build() -> nn.Module:
        model = _llama(width, inner, layers, heads=heads, keys=heads, vocabulary=32000)
        return model.bfloat16()

    yield Run(
        name=f"litgpt {row['model']} {row['quantization']} 1 × {row['micro_batch']}",
        build=build,
        cards=1,
        batch=int(row["micro_batch"]),
        tokens=int(row["seq_len_max"]),
        card="NVIDIA A100-SXM4-40GB",
        measured=round(1e9 * float(row["memory_gb"].removesuffix(" GB"))),
        options={
            "lora": _lora("8", ["q_proj", "v_proj"]),
            "weights": weights,
            "cross_entropy": "chunked",
        },
    )


def read_peft(row: Mapping[str, str]) -> Iterator[Run]:
    """Yield the run of a row with low-rank adapters, at its longest sequences."""
    import peft

    if row["peft_type"] != "LORA" or row["suite"] != "MetaMathQA":
        return
    config = peft.LoraConfig(
        r=int(row["r"]),
        target_modules=row["target_modules"].split(";"),
        use_dora=row["use_dora"] == "True",
    )

    def build() -> nn.Module:
        model = _llama(3072, 8192, 28, heads=24, keys=8, vocabulary=128256, tied=True)
        return model.bfloat16()

    yield Run(
        name=f"peft {row['experiment']}",
        build=build,
        cards=1,
        batch=int(row["batch"]),
        tokens=int(row["max_seq_length"]),
        card="NVIDIA L40S",
        measured=int(row["memory_max_bytes"]),
        is_reserved=True,
        options={"lora": config},
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
