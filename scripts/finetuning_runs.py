"""Published fine-tuning runs: fms-acceleration, LitGPT and peft, each as the options of its step.

Versions of that time are reproduced where they differ: the loss of transformers 4.45, and layers of
bitsandbytes 0.43.0 that keep their inputs and dequantize by way of fp16 (LitGPT).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from litgpt_models import LIT_MODELS, LitGpt, loss_of_chunks
from published_runs import Measured, PublishedRun, number_of, record_on_mesh, record_on_one
from torch import Tensor, nn

from tests.models.finetuned import CARD, FINETUNING, MODELS, llama_3
from torchscan.hardware.device_specs import device_named
from torchscan.recording.training.fused_losses import unsloth_losses
from torchscan.recording.training.quantized_linear import FrozenFormat, quantize_frozen
from torchscan.trace.trace import Trace

LITGPT = "finetune_litgpt.csv.gz"
PEFT = "finetune_peft_methods_l40s.csv.gz"
TABLES = (FINETUNING, LITGPT, PEFT)
_MIB = 2**20
_CARD_40 = "NVIDIA A100-SXM4-40GB"


# -- fms-acceleration: transformers 4.45, gradient checkpointing, FSDP1 --------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Framework:
    """What the plugins of a configuration change."""

    weights: FrozenFormat | None = None
    #: Unsloth's kernels for norms, rotary embeddings and the loss
    is_fused: bool = False
    has_liger: bool = False
    #: True if peft stores what is not packed in 32 bits
    is_prepared: bool = False


_FRAMEWORKS: Mapping[str, _Framework] = {
    "none": _Framework(),
    "foak-fast-kernels": _Framework(is_fused=True),
    "foak-fast-kernels-liger": _Framework(is_fused=True, has_liger=True),
    "baseline-peft-bnb": _Framework(weights="nf4-dq", is_prepared=True),
    "accelerated-peft-bnb": _Framework(weights="nf4-dq"),
    "accelerated-peft-bnb-foak": _Framework(weights="nf4-dq", is_fused=True),
    "accelerated-peft-bnb-foak-liger": _Framework(weights="nf4-dq", is_fused=True, has_liger=True),
    "accelerated-peft-autogptq-foak": _Framework(weights="gptq", is_fused=True),
    "accelerated-peft-autogptq-foak-liger": _Framework(
        weights="gptq", is_fused=True, has_liger=True
    ),
}


class Accelerated(nn.Module):
    """A model and its loss as accelerate runs them: under autocast, with outputs in 32 bits.

    The loss is that of transformers 4.45, or None for the model's own.
    """

    def __init__(self, model: Any, autocast: torch.dtype | None, loss: Any, upcasts: bool) -> None:
        super().__init__()
        self.model = model
        self.autocast = autocast
        self.loss = loss
        self.upcasts = upcasts

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the loss."""
        # The option of a step has autocast, too, which must stay on.
        context = nullcontext() if self.autocast is None else torch.autocast("cuda", self.autocast)
        with context:
            if self.loss is None:
                output = self.model(input_ids=input_ids, labels=input_ids, use_cache=False)
                return output.loss  # type: ignore[no-any-return]
            logits = self._logits_of(input_ids)
            loss: Tensor = self.loss(input_ids, logits)
        if self.autocast is not None:
            logits.float()  # a copy if they have 16 bits, until the trainer drops the outputs
        return loss

    def _logits_of(self, input_ids: Tensor) -> Tensor:
        """Return the logits, in 32 bits alone if the version converts them."""
        inner = getattr(self.model, self.model.base_model_prefix)
        hidden = inner(input_ids=input_ids, use_cache=False).last_hidden_state
        logits: Tensor = self.model.lm_head(hidden)
        scale = getattr(self.model.config, "logits_scaling", None)
        if scale is not None:
            logits = logits / scale
        return logits.float() if self.upcasts else logits


def loss_of_transformers(is_fused: bool, labels: Tensor, logits: Tensor) -> Tensor:
    """Return the loss as in transformers 4.45, which copies shifted logits, or with Unsloth's kernel."""
    shifted = logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous().view(-1)
    rows = shifted.view(-1, shifted.shape[-1])
    if not is_fused:
        return F.cross_entropy(rows, targets)
    losses: Tensor = unsloth_losses(rows, targets)
    return losses.sum() / targets.numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step of fms-acceleration."""

    name: str
    framework: _Framework
    cards: int
    batch: int
    tokens: int
    dtype: torch.dtype
    #: type of autocast, or None
    autocast: torch.dtype | None
    rank: int | None
    targets: list[str] = field(default_factory=list)

    def record(self) -> Trace:
        """Return the trace of the first rank."""
        known, framework = MODELS[self.name], self.framework
        loss = None
        if not framework.has_liger:
            loss = partial(loss_of_transformers, framework.is_fused)
        is_wide = self._is_wide
        with torch.device("meta"):
            inner = known.build().train()
            inner = inner if is_wide else inner.to(self.dtype)
            autocast = None if self._has_option else self.autocast
            model = Accelerated(inner, autocast, loss, known.upcasts)
        options: dict[str, Any] = {
            "kwargs": {"input_ids": torch.zeros(self.batch, self.tokens, dtype=torch.long)},
            "device": CARD,
            "checkpoint": True,
            "weights": framework.weights,
            "lora": self._adapters(),
            "cross_entropy": "liger" if framework.has_liger else None,
            "fused_kernels": self._kernels() or None,
        }
        if self._has_option:
            options["precision"] = "bf16-mixed"
        if self.cards == 1:
            return record_on_one(model, **options)
        return record_on_mesh(model, self.cards, partial(self._shard, known.layers), **options)

    @property
    def _is_wide(self) -> bool:
        """True if FSDP stores weights in 32 bits, as accelerate makes trained ones under autocast."""
        return self.cards > 1 and self.autocast is not None and self.rank is None

    @property
    def _has_option(self) -> bool:
        """True if autocast is the option of the step, which prepares the weights as peft does."""
        return self.framework.is_prepared and self.cards == 1

    def _adapters(self) -> Any:
        import peft

        if self.rank is None:
            return None
        return peft.LoraConfig(r=self.rank, lora_dropout=0.1, target_modules=self.targets)

    def _kernels(self) -> list[str]:
        if not self.framework.is_fused or "santacoder" in self.name:
            return []
        kernels = ["rms_norm", "rope"]
        return [*kernels, "lora"] if self.framework.weights else kernels

    def _shard(self, layers: str, model: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        half = MixedPrecisionPolicy(param_dtype=self.autocast, reduce_dtype=self.autocast)
        options = {"mp_policy": half} if self._is_wide else {}
        for part in (*model.model.get_submodule(layers).children(), model):
            fully_shard(part, mesh=mesh["dp"], **options)


def read_fms(row: Mapping[str, str]) -> Iterator[PublishedRun]:
    """Yield the run of a row, unless its experts are computed by kernels of their own."""
    name, framework = row["model_name_or_path"], row["framework_config"]
    if name not in MODELS or framework not in _FRAMEWORKS:
        return
    # the table has tokens per second ÷ samples per second, which rounding moves by some tokens
    tokens = 2048 if "santacoder" in name else 4096
    cards, batch = int(row["num_gpus"]), int(row["per_device_train_batch_size"])
    half = torch.bfloat16 if row["bf16"] else torch.float16
    step = _Step(
        name=name,
        framework=_FRAMEWORKS[framework],
        cards=cards,
        batch=batch,
        tokens=tokens,
        dtype=getattr(torch, row["torch_dtype"]),
        autocast=half if row["bf16"] or row["fp16"] else None,
        rank=number_of(row["r"]) if row["peft_method"] else None,
        targets=row["target_modules"].split(),
    )
    allocated = number_of(row["mem_peak_torch_mem_alloc_in_bytes"])
    in_use = number_of(row["mem_nvidia_mem_reserved"])
    speed = row["train_tokens_per_second"]
    yield PublishedRun(
        source="fms-acceleration",
        kind=f"{_kind_of(row)}, {'one GPU' if cards == 1 else 'FSDP'}",
        name=f"{name.rpartition('/')[2]} {framework} {cards} × {batch} × {tokens}",
        device=device_named(CARD),
        measured=Measured(
            allocated=allocated,
            in_use=None if in_use is None or allocated is None else in_use * _MIB,
            ran_out=allocated is None,
            tokens_per_second=float(speed) if speed else None,
        ),
        record=step.record,
        cards=cards,
        tokens=batch * tokens,
    )


def _kind_of(row: Mapping[str, str]) -> str:
    framework = row["framework_config"]
    if not row["peft_method"]:
        base = "full"
    elif "bnb" in framework:
        base = "QLoRA"
    else:
        base = "GPTQ" if "gptq" in framework else "LoRA"
    if "liger" in framework:
        return f"{base}, fused, Liger"
    return f"{base}, fused" if "foak" in framework else base


# -- LitGPT: LoRA, one A100 of 40 GB --------------------------------------------------------------


class _Keeping(torch.autograd.Function):
    """The identity, which keeps its input, as layers of bitsandbytes 0.43.0 do."""

    @staticmethod
    def forward(context: Any, given: Tensor) -> Tensor:
        context.save_for_backward(given)
        return given.view_as(given)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        assert context.saved_tensors  # noqa: S101 - they are kept until here
        return gradient


def _call_keeping(forward: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
    keep: Any = _Keeping.apply
    return forward(keep(given))


def _dequantize_half(layer: Any) -> Tensor:
    """Return the weight by way of fp16, in which that version quantized weights."""
    dtype = layer.compute_dtype
    layer.compute_dtype = torch.float16
    weight: Tensor = type(layer).dequantize(layer)
    layer.compute_dtype = dtype
    return weight.to(dtype)


def read_litgpt(row: Mapping[str, str]) -> Iterator[PublishedRun]:
    """Yield the run of a row with low-rank adapters on one GPU.

    On several, the peak is that of loading: each process puts the complete model on its GPU.
    """
    is_lora = row["method"] == "Finetuning with LoRA on 1 GPU"
    if row["model"] not in LIT_MODELS or not is_lora:
        return
    batch, tokens = int(row["micro_batch"]), int(row["seq_len_max"])
    weights: Any = {"None": None, "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq"}[row["quantization"]]
    text = row["memory_gb"]
    yield PublishedRun(
        source="litgpt",
        kind="LoRA" if weights is None else "QLoRA",
        name=f"{row['model']} {weights or 'bf16'} 1 × {batch} × {tokens}",
        device=device_named(_CARD_40),
        measured=Measured(
            allocated=None if text == "OOM" else round(float(text.split()[0]) * 1e9),
            ran_out=text == "OOM",
        ),
        record=partial(_record_litgpt, row["model"], weights, batch, tokens),
        tokens=batch * tokens,
    )


def _record_litgpt(name: str, weights: FrozenFormat | None, batch: int, tokens: int) -> Trace:
    with torch.device("meta"):
        model: Any = LitGpt(LIT_MODELS[name], tokens).bfloat16().train()
    if weights is not None:
        # all linear layers are packed there, the output projection too
        quantize_frozen(model, [model], weights)
        for module in model.modules():
            if hasattr(module, "dequantize"):
                module.forward = partial(_call_keeping, module.forward)
                module.dequantize = partial(_dequantize_half, module)
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    return record_on_one(
        model,
        kwargs={"tokens": ids},
        loss=partial(loss_of_chunks, ids),
        holds_output=True,  # the script's variable lives until the next forward pass
        device=_CARD_40,
    )


# -- peft: Llama-3.2-3B, one L40S, no checkpointing -----------------------------------------------


def read_peft(row: Mapping[str, str]) -> Iterator[PublishedRun]:
    """Yield the run of a row of the language model, at its longest sequences."""
    # the table lacks the options of "miss-mini", which has fewer parameters than by default
    is_known = row["suite"] == "MetaMathQA" and "miss--llama-3.2-3B-mini" not in row["experiment"]
    if not is_known or _adapter_config(row) is None:
        return
    yield PublishedRun(
        source="peft",
        kind="LoRA" if row["peft_type"] == "LORA" else "other adapters",
        name=row["experiment"],
        device=device_named("NVIDIA L40S"),
        measured=Measured(reserved=number_of(row["memory_max_bytes"])),
        record=partial(_record_peft, dict(row)),
        tokens=4 * 768,
    )


def _adapter_config(row: Mapping[str, str]) -> Any:
    import peft

    rank = int(row["r"]) if row["r"] else None
    targets = row["target_modules"].split(";")
    miss = "bat" if "bat" in row["experiment"] else True
    num_tokens = 50 if "tokens50" in row["experiment"] else 200
    prompt: dict[str, Any] = {"task_type": "CAUSAL_LM", "num_virtual_tokens": num_tokens}
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
        "LOKR": lambda: peft.LoKrConfig(r=rank, decompose_factor=4, target_modules=targets),
        "WAVEFT": lambda: peft.WaveFTConfig(n_frequency=5000, target_modules=targets),
        "SHIRA": lambda: peft.ShiraConfig(r=rank, random_seed=42, target_modules=targets),
        "PREFIX_TUNING": lambda: peft.PrefixTuningConfig(**prompt),
        "PROMPT_TUNING": lambda: peft.PromptTuningConfig(**prompt),
        "ADAPTION_PROMPT": lambda: peft.AdaptionPromptConfig(adapter_len=100, adapter_layers=28, task_type="CAUSAL_LM"),
    }  # fmt: skip
    kind = row["peft_type"]
    return made[kind]() if kind in made else None


def _record_peft(row: Mapping[str, str]) -> Trace:
    import peft

    sizes = {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_attention_heads": 24,
        "tie_word_embeddings": True,
    }
    with torch.device("meta"):
        model: Any = llama_3(28, **sizes).bfloat16()
        model = peft.get_peft_model(model, _adapter_config(row)).train()
    ids = torch.zeros(4, 768, dtype=torch.long)
    return record_on_one(
        model,
        kwargs={"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)},
        loss=_loss_of,
        device="NVIDIA L40S",
    )


def _loss_of(output: Any) -> Any:
    return output.loss


READERS: Mapping[str, Callable[[Mapping[str, str]], Iterator[PublishedRun]]] = {
    FINETUNING: read_fms,
    LITGPT: read_litgpt,
    PEFT: read_peft,
}
