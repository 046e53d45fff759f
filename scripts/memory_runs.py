"""Published memory of training steps: how each row is asked, and its trace."""

from __future__ import annotations

import csv
import gzip
import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from memory_models import (
    LIT_MODELS,
    LLAMA_8B,
    LitGpt,
    TitanLlama,
    loss_in_32_bits,
    loss_of_chunks,
)
from torch import Tensor, nn

from tests.models.finetuned import FINETUNING, MODELS
from torchscan.hardware.device_specs import Device, device_named
from torchscan.parallel import plan
from torchscan.trace.trace import Trace

LITGPT = "finetune_litgpt.csv.gz"
PEFT = "finetune_peft_methods_l40s.csv.gz"
TITAN = "train_torchtitan_torchao.csv.gz"
TABLES = (FINETUNING, LITGPT, PEFT, TITAN)
_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The published memory of a run, in bytes; None if a value was not published."""

    #: ``max_memory_allocated``
    allocated: int | None = None
    #: ``max_memory_reserved``
    reserved: int | None = None
    #: growth of what nvidia-smi shows: reserved, with the context and NCCL's buffers
    in_use: int | None = None
    ran_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    """A published run, and its step."""

    source: str
    #: "one GPU", "FSDP", "compiled", "LoRA"
    kind: str
    name: str
    device: Device
    measured: Measured
    record: Callable[[], Trace]
    compiled: bool = False
    cards: int = 1

    def trace(self, folder: Path) -> Trace:
        """Return the trace of the step; it is stored in the folder, because recording is slow."""
        label = hashlib.sha256(f"{self.source} {self.name}".encode()).hexdigest()[:12]
        file = folder / f"{label}.pickle"
        if not file.exists():
            trace = self.record()
            file.write_bytes(pickle.dumps(trace))
            return trace
        found: Trace = pickle.loads(file.read_bytes())  # noqa: S301 - it was written above
        return found


def runs(truth: Path) -> Iterator[MemoryRun]:
    """Yield the runs of all tables."""
    for table, read in (
        (FINETUNING, _finetuning),
        (LITGPT, _litgpt),
        (PEFT, _peft),
        (TITAN, _titan),
    ):
        with gzip.open(truth / table, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield from read(row)


def record(
    model: Any, mesh: Mapping[str, int], apply: Callable[[Any, Any], object], **step: Any
) -> Trace:
    """Return the trace of one rank's training step."""
    made = plan(
        model, mesh=mesh, apply=apply, training=True, optimizer="AdamW", progress=False, **step
    )
    return made.ranks[0].trace


def _shard_nothing(model: Any, mesh: Any) -> None:
    """Leave the model on one GPU."""


def _number(text: str) -> int | None:
    return round(float(text)) if text else None


# -- fms-acceleration: transformers, FSDP1, gradient checkpointing ------------------------------


class _FastLoss(torch.autograd.Function):
    """Cross entropy whose gradient replaces its input (``foak``)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor) -> Tensor:
        maxima = scores.amax(-1)
        ctx.save_for_backward(scores, labels, maxima)
        return (maxima - scores.gather(-1, labels[:, None])[:, 0]).float().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        scores, _, _ = ctx.saved_tensors
        return scores.mul_(gradient), None


def _fast_loss(labels: Tensor, output: Any) -> Tensor:
    scores = output.logits
    shifted = scores[..., :-1, :].contiguous().view(-1, scores.shape[-1])
    loss = _FastLoss.apply(shifted, labels[..., 1:].reshape(-1))
    scores.float()  # accelerate returns the outputs of mixed precision in 32 bits
    return loss


def _loss_in_half(labels: Tensor, output: Any) -> Tensor:
    scores = output.logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous()
    return nn.functional.cross_entropy(scores.view(-1, scores.size(-1)), targets.view(-1))


def _llama_3_8b() -> nn.Module:
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=128256,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            rope_theta=500000.0,
        )
    )


def _granite_moe() -> nn.Module:
    import transformers

    return transformers.GraniteMoeForCausalLM(
        transformers.GraniteMoeConfig(
            vocab_size=49155,
            hidden_size=1536,
            intermediate_size=512,
            num_hidden_layers=32,
            num_attention_heads=24,
            num_key_value_heads=8,
            num_local_experts=40,
            num_experts_per_tok=8,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )


_FINETUNED: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    **{name: (known.build, known.layers) for name, known in MODELS.items()},
    "meta-llama/Meta-Llama-3-8B": (_llama_3_8b, "model.layers"),
}
_FRAMEWORKS = ("none", "foak-fast-kernels")


def _finetuning(row: Mapping[str, str]) -> Iterator[MemoryRun]:
    name, framework = row["model_name_or_path"], row["framework_config"]
    if name not in _FINETUNED or framework not in _FRAMEWORKS:
        return
    if row["peft_method"] or (framework != "none" and "8B" not in name):
        return
    cards, batch = int(row["num_gpus"]), int(row["per_device_train_batch_size"])
    # the table has tokens per second ÷ samples per second, which rounding moves by some tokens
    tokens = 2048 if "santacoder" in name else 4096
    allocated = _number(row["mem_peak_torch_mem_alloc_in_bytes"])
    in_use = _number(row["mem_nvidia_mem_reserved"])
    measured = Measured(
        allocated=allocated,
        in_use=None if in_use is None or allocated is None else in_use * _MIB,
        ran_out=allocated is None,
    )
    yield MemoryRun(
        source="fms-acceleration",
        kind="one GPU" if cards == 1 else "FSDP",
        name=f"{name.split('/')[-1]} {framework} {cards} × {batch} × {tokens}",
        device=device_named("NVIDIA A100-SXM4-80GB"),
        measured=measured,
        record=partial(
            _record_finetuning, name, cards, batch, tokens, row["bf16"].lower() == "true"
        ),
        cards=cards,
    )


def _record_finetuning(name: str, cards: int, batch: int, tokens: int, is_mixed: bool) -> Trace:
    build, path = _FINETUNED[name]
    with torch.device("meta"):
        model: Any = build().train()
    is_wide = is_mixed and cards > 1
    if not is_wide:
        model.bfloat16()
    model.gradient_checkpointing_enable()
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    upcasts = name not in MODELS or MODELS[name].upcasts
    loss: Any = (lambda output: output.loss) if upcasts else partial(_loss_in_half, ids)
    labels = {"labels": ids} if upcasts and not is_mixed else {}
    if is_mixed:
        loss = partial(_fast_loss, ids)

    def apply(sharded: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        options = {"mp_policy": half} if is_wide else {}
        for part in (*sharded.get_submodule(path).children(), sharded):
            fully_shard(part, mesh=mesh["dp"], **options)

    return record(
        model,
        {"dp": cards},
        apply if cards > 1 else _shard_nothing,
        kwargs={"input_ids": ids, "use_cache": False, **labels},
        loss=loss,
        device="NVIDIA A100-SXM4-80GB",
    )


# -- LitGPT: LoRA, one A100 of 40 GB; on several FSDP1 with checkpointing ----------------------


def _litgpt(row: Mapping[str, str]) -> Iterator[MemoryRun]:
    is_lora = row["method"].startswith("Finetuning with LoRA")
    if row["model"] not in LIT_MODELS or not is_lora or row["quantization"] != "None":
        return
    cards, batch = int(row["gpu"].split()[0]), int(row["micro_batch"])
    if cards > 1:
        return  # the peak is that of loading: each process puts the complete model on its GPU
    tokens = int(row["seq_len_max"])
    text = row["memory_gb"]
    measured = Measured(
        allocated=None if text == "OOM" else round(float(text.split()[0]) * 1e9),
        ran_out=text == "OOM",
    )
    yield MemoryRun(
        source="litgpt",
        kind="LoRA" if cards == 1 else "LoRA, FSDP",
        name=f"{row['model']} {cards} × {batch} × {tokens}",
        device=device_named("NVIDIA A100-SXM4-40GB"),
        measured=measured,
        record=partial(_record_litgpt, row["model"], cards, batch, tokens),
        cards=cards,
    )


def _record_litgpt(name: str, cards: int, batch: int, tokens: int) -> Trace:
    with torch.device("meta"):
        model: Any = LitGpt(LIT_MODELS[name], tokens).bfloat16().train()
    ids = torch.zeros(batch, tokens, dtype=torch.long)

    def apply(sharded: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        _checkpoint(sharded.h)
        for part in (*sharded.h, sharded):
            fully_shard(part, mesh=mesh["dp"])

    return record(
        model,
        {"dp": cards},
        apply if cards > 1 else _shard_nothing,
        kwargs={"tokens": ids},
        loss=partial(loss_of_chunks, ids),
        holds_output=True,  # the script's variable lives until the next forward pass
        device="NVIDIA A100-SXM4-40GB",
    )


def _checkpoint(layers: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


# -- peft: Llama-3.2-3B, one L40S, no checkpointing --------------------------------------------


def _peft(row: Mapping[str, str]) -> Iterator[MemoryRun]:
    # the table lacks the options of "miss-mini", which has fewer parameters than by default
    is_known = row["suite"] == "MetaMathQA" and not row["experiment"].startswith(
        "miss--llama-3.2-3B-mini"
    )
    if not is_known or _adapter_config(row) is None:
        return
    yield MemoryRun(
        source="peft",
        kind="LoRA",
        name=row["experiment"],
        device=device_named("NVIDIA L40S"),
        measured=Measured(reserved=_number(row["memory_max_bytes"])),
        record=partial(_record_peft, dict(row)),
    )


def _adapter_config(row: Mapping[str, str]) -> Any:
    import peft

    rank = int(row["r"]) if row["r"] else None
    targets = row["target_modules"].split(";")
    miss = "bat" if "bat" in row["experiment"] else True
    made: dict[str, Callable[[], Any]] = {
        "LORA": lambda: peft.LoraConfig(r=rank, target_modules=targets, use_dora=row["use_dora"] == "True"),
        "IA3": lambda: peft.IA3Config(target_modules=targets, feedforward_modules=["gate_proj", "up_proj", "down_proj"]),
        "DELORA": lambda: peft.DeloraConfig(r=rank, target_modules=targets),
        "MISS": lambda: peft.MissConfig(r=rank, target_modules=targets, init_weights=miss),
        "VERA": lambda: peft.VeraConfig(r=rank, target_modules=targets),
        "RANDLORA": lambda: peft.RandLoraConfig(r=rank, target_modules=targets),
        "TRAINABLE_TOKENS": lambda: peft.TrainableTokensConfig(token_indices=[128000, 128001], target_modules=targets),
        "BEFT": lambda: peft.BeftConfig(target_modules=targets),
        "DEFT": lambda: peft.DeftConfig(r=rank, target_modules=targets),
        "PEANUT": lambda: peft.PeanutConfig(r=rank, depth=0, target_modules=targets),
        "ROAD": lambda: peft.RoadConfig(target_modules=targets, variant="road_2"),
    }  # fmt: skip
    kind = row["peft_type"]
    return made[kind]() if kind in made else None


def _record_peft(row: Mapping[str, str]) -> Trace:
    import peft
    import transformers

    with torch.device("meta"):
        model: Any = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=128256,
                hidden_size=3072,
                intermediate_size=8192,
                num_hidden_layers=28,
                num_attention_heads=24,
                num_key_value_heads=8,
                max_position_embeddings=131072,
                rope_theta=500000.0,
                tie_word_embeddings=True,
            )
        ).bfloat16()
        model = peft.get_peft_model(model, _adapter_config(row)).train()
    ids = torch.zeros(4, 768, dtype=torch.long)
    return record(
        model,
        {"dp": 1},
        _shard_nothing,
        kwargs={"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)},
        loss=lambda output: output.loss,
        device="NVIDIA L40S",
    )


# -- torchtitan: FSDP2, bf16-mixed ---------------------------------------------------------------


def _titan(row: Mapping[str, str]) -> Iterator[MemoryRun]:
    is_plain = row["precision"].startswith("bf16-mixed") and "float8" not in row["precision"]
    if not is_plain or row["tp"] != "1" or row["cp"] != "1" or not row["memory_gib"]:
        return
    cards, batch = int(row["gpus"]), int(row["local_batch"].rstrip("?"))
    tokens, is_compiled = int(row["seq_len"]), row["compile"] == "True"
    device = device_named("NVIDIA H100 80GB HBM3")
    is_wide = "96GB" in row["device"]
    if is_wide:
        device = replace(device, name="NVIDIA H100 96GB HBM2e", memory_bytes=round(95.0 * _GIB))
    yield MemoryRun(
        source=row["source"] if row["repo"] == "pytorch/ao" else "torchtitan",
        kind="FSDP, compiled" if is_compiled else "FSDP",
        name=f"Llama 8B {row['ac']}{' compiled' if is_compiled else ''} {cards} × {batch} × {tokens}",
        device=device,
        measured=Measured(reserved=round(float(row["memory_gib"]) * _GIB)),
        record=partial(_record_titan, row["ac"], cards, batch, tokens),
        compiled=is_compiled,
        cards=cards,
    )


def _record_titan(checkpointing: str, cards: int, batch: int, tokens: int) -> Trace:
    with torch.device("meta"):
        model: Any = TitanLlama(LLAMA_8B, tokens).train()
    ids = torch.zeros(batch, tokens, dtype=torch.long)

    def apply(sharded: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        _checkpoint_as_titan(sharded.layers, checkpointing)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for index, part in enumerate(sharded.layers):
            is_last = index == len(sharded.layers) - 1
            fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=not is_last)
        fully_shard(sharded, mesh=mesh["dp"], mp_policy=policy)

    return record(
        model,
        {"dp": cards},
        apply,
        kwargs={"tokens": ids},
        loss=partial(loss_in_32_bits, ids),
        device="NVIDIA H100 80GB HBM3",
    )


def _checkpoint_as_titan(layers: Any, checkpointing: str) -> None:
    if checkpointing == "full":
        _checkpoint(layers)
    elif checkpointing == "selective op":
        _checkpoint_operators(layers)
    elif checkpointing.startswith("selective layer"):
        _checkpoint(layers[1::2])


def _checkpoint_operators(layers: Any) -> None:
    """Recompute all but attention, collectives and every other product."""
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    aten = torch.ops.aten
    saved = {
        aten.mm.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }

    def contexts() -> Any:
        counts = {True: 0, False: 0}

        def choose(ctx: Any, func: Any, *_: Any, **__: Any) -> Any:
            if func is aten.mm.default:
                counts[ctx.is_recompute] += 1
            is_second = func is aten.mm.default and counts[ctx.is_recompute] % 2 == 0
            is_saved = func in saved and not is_second
            return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(choose)

    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)
