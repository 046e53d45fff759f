"""Compares estimated with measured times of generated tokens: Llama-2-7B on one A100, and on up to eight."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from torchscan import analyze_generation
from torchscan.types import Engine

_TABLE = Path(__file__).parents[2] / "shared" / "truth" / "llm_serving_a100.csv"
#: lmdeploy and gpt-fast: a CUDA graph, one product for queries, keys and values
_ENGINE = Engine(name="joined", joins_projections=True, has_flash_3=False)
_WEIGHTS = {"int8-weight-only": "int8", "int4-weight-only-g32": "int4:32"}


def compare_generation() -> None:
    """Print each row of one card: the two times, measured and estimated."""
    model, of_token, of_first = _llama(), [], []
    print("weights  batch  prompt   new   first token     off     per token     off")
    with _TABLE.open() as file:
        rows = [row for row in csv.DictReader(file) if row["gpus"] == "1"]
    for row in rows:
        weights, batch = _WEIGHTS.get(row["precision"]), int(row["batch"])
        prompt, new = int(row["prompt_tokens"]), int(row["output_tokens"])
        found = analyze_generation(
            model,
            prompt,
            new,
            batch_size=batch,
            device="A100-SXM4-80GB",
            weights=weights,
            engine=_ENGINE,
        )
        token = float(row["token_s"] or batch / float(row["tokens_per_s"]))
        of_token.append(found.per_token / token - 1)
        said = f"{weights or '16 bits':8} {batch:5} {prompt:7} {new:5} "
        first = " " * 21
        if row["first_token_s"]:
            of_first.append(found.first_token_of_all / float(row["first_token_s"]) - 1)
            first = f"{1e3 * found.first_token_of_all:9.1f} ms  {of_first[-1]:+7.0%}"
        print(f"{said}{first}  {1e3 * found.per_token:9.2f} ms  {of_token[-1]:+6.0%}", flush=True)
    for what, errors in (("time per token", of_token), ("time to the first token", of_first)):
        print(
            f"{what}: median error {100 * statistics.median(map(abs, errors)):.1f} % of {len(errors)} rows"
        )


def compare_joined() -> None:
    """Print each row of several cards, spread as gpt-fast does: layers only, not the embedding and the last product."""
    model, errors = _llama(), []
    print("cards   per token     off")
    with _TABLE.open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["source"].startswith("gpt-fast") and row["precision"] == "bf16"
        ]
    for row in rows:
        cards = int(row["gpus"])
        mesh = {"mesh": {"tp": cards}, "apply": _in_layers} if cards > 1 else {}
        prompt, new = int(row["prompt_tokens"]), int(row["output_tokens"])
        found = analyze_generation(
            model, prompt, new, device="A100-SXM4-80GB", engine=_ENGINE, **mesh
        )
        errors.append(found.per_token * float(row["tokens_per_s"]) - 1)
        print(f"{cards:5}  {1e3 * found.per_token:7.2f} ms  {errors[-1]:+6.0%}", flush=True)
    print(
        f"time per token: largest error {100 * max(map(abs, errors)):.1f} % of {len(errors)} rows"
    )


def _in_layers(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    columns = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    )
    for layer in model.model.layers:
        ways = {name: ColwiseParallel() for name in columns}
        parallelize_module(
            layer,
            mesh["tp"],
            {**ways, "self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()},
        )


def _llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        )
    return model.eval()
