"""Recorded steps of models that others trained, and their estimated times.

Recording takes seconds for each step and pricing takes a fraction, so passes of few layers are
stored in a folder. Each further layer adds as much as the last one.
"""

from __future__ import annotations

import gzip
import hashlib
import pickle
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as checkpointed
from training_models import (
    LLAMA,
    Mpt,
    MptSizes,
    TitanLlama,
    inputs_of,
)
from training_rows import TrainingRow

import torchscan
from tests.models.finetuned import llama_3, powerlm, santacoder
from torchscan.analyses.roofline import Fabric, Rates
from torchscan.analyses.roofline.analysis import roofline_of
from torchscan.hardware.device_specs import Device, device_named, register_device
from torchscan.recording.adapters import inject_adapters
from torchscan.recording.training.float8 import convert_to_float8
from torchscan.recording.training.float8_all_gather import gather_in_8_bits
from torchscan.recording.training.float8_tensor_parallel import (
    gather_input_in_8_bits,
    scatter_output_in_parts,
)
from torchscan.trace.trace import Trace

STORED = Path(tempfile.gettempdir()) / "torchscan-training-steps"
#: times of FlashAttention 1 in Triton, which llm-foundry ran (``attn_impl: triton``), relative to those
#: of FlashAttention 2: by the paper on the latter, 1.3 to 1.5 forward, and around 2 backward
_TRITON = {"forward": 1.4, "backward": 2.0}
#: clipping of gradients, which all sources do and passes lack, relative to the optimizer's two scalings of
#: lists as long: the norm reads gradients, and scaling them reads and writes
_SCALING, _CLIPPING = "optimizer aten._foreach_mul_", 3 / 4
#: layers of the two passes
SHORT, LONG = 3, 4
_MPT = {
    "mpt-760m": MptSizes(dim=1536, heads=12),
    "mpt-1b": MptSizes(dim=2048, heads=16),
    "mpt-3b": MptSizes(dim=2560, heads=20),
    "mpt-7b": MptSizes(dim=4096, heads=32),
    "mpt-13b": MptSizes(dim=5120, heads=40),
    "mpt-30b": MptSizes(dim=7168, heads=56),
    "mpt-70b": MptSizes(dim=8192, heads=64),
}


@lru_cache
def device_of(row_device: str) -> Device:
    """Return the GPU of a row; torchtitan's is another H100."""
    if row_device == "A100":
        return device_named("NVIDIA A100-SXM4-80GB")
    if row_device == "H100":
        return device_named("NVIDIA H100 80GB HBM3")
    if row_device == "H200":
        return device_named("NVIDIA H200")
    return register_device(
        "NVIDIA H100 96GB HBM2e",
        memory_gb=96,
        bandwidth_gbs=2400,
        dense_tflops={"fp64": 34, "fp32": 67, "tf32": 494.5, "fp16": 989, "bf16": 989, "fp8": 1979},
        capability=9.0,
        multiprocessors=132,
        boost_mhz=1830,
        l2_mb=50,
        link_gbs=900,
        power_w=500,
        arch="Hopper",
    )


def build(row: TrainingRow, layers: int) -> nn.Module:
    """Return the model of a row with so many layers, without data."""
    dtype = torch.bfloat16 if row.precision == "bf16" else torch.float32
    with torch.device("meta"):
        if row.model.startswith("mpt"):
            made: nn.Module = Mpt(_MPT[row.model], layers, row.length)
        elif row.model == "santacoder":
            made = santacoder(layers)
        elif row.model == "powerlm-3b":
            made = powerlm(layers)
        elif row.model == "llama-3-8b":
            made = llama_3(layers)
        else:
            made = TitanLlama(LLAMA[row.model.removeprefix("llama-")], layers, row.length)
    turns = getattr(made, "freqs_cis", None)
    made = made.to(dtype).train()
    if turns is not None:
        made.freqs_cis = turns
    return made


def _layers_of(model: nn.Module) -> Any:
    for path in ("layers", "model.layers", "transformer.h"):
        try:
            return model.get_submodule(path)
        except AttributeError:
            continue
    raise ValueError(f"{type(model).__name__} has no layers")


_SAVED = {
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "_c10d_functional.reduce_scatter_tensor.default",
    "aten.max.default",
}


def _selective() -> Any:
    """Save every second product, attention and collectives, as torchtitan does."""
    met = {False: 0, True: 0}

    def policy(context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        name = str(op)
        if name == "aten.mm.default":
            met[context.is_recompute] += 1
            is_saved = met[context.is_recompute] % 2 == 1
        else:
            is_saved = name in _SAVED
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _shard(row: TrainingRow, model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    layers = list(_layers_of(model))
    if row.float8:
        convert_to_float8(model, row.float8, all_gather=row.gathers_float8)
    if row.tp > 1:
        _tensor_parallel(model, mesh["tp"], in_8_bits=row.float8 == "tensorwise")
    if row.lora:
        inject_adapters(model, _lora_of(row))
    for index, layer in enumerate(layers):
        if row.checkpoint == "none" or (row.checkpoint == "every 2nd" and index % 2):
            continue
        options = {"context_fn": _selective} if row.checkpoint == "selective" else {}
        layer.forward = partial(checkpointed, layer.forward, use_reentrant=False, **options)
    if row.gpus == 1:
        return model
    policy: dict[str, Any] = {}
    if row.precision == "bf16-mixed":
        kept = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        policy = {"mp_policy": kept}
    for index, layer in enumerate(layers):
        is_fsdp_1 = row.source in ("llm-foundry", "transformers")
        again = row.reshard and (index < len(layers) - 1 or is_fsdp_1)
        fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=again, **policy)
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=row.reshard, **policy)
    if row.gathers_float8:
        gather_in_8_bits(model)
    return model


def _tensor_parallel(model: Any, mesh: Any, *, in_8_bits: bool) -> None:
    """Shard as torchtitan does: sequences are sharded between layers.

    ``in_8_bits``: inputs of layers, and gradients, are gathered in 8 bits, as for float8 with one
    scale for a tensor.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    for layer in model.layers:
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        }
        if in_8_bits:
            del plan["attention"], plan["feed_forward"]
            plan |= dict.fromkeys(
                ("attention.wo", "feed_forward.w2"),
                RowwiseParallel(output_layouts=Partial(), use_local_output=False),
            )
        parallelize_module(layer, mesh, plan)
        if in_8_bits:
            for block in (layer.attention, layer.feed_forward):
                gather_input_in_8_bits(block, mesh)
            scatter_output_in_parts(layer.attention.wo, is_local=True)
            scatter_output_in_parts(layer.feed_forward.w2, is_local=True)


def _loss_of(output: Any) -> Any:
    return output if isinstance(output, torch.Tensor) else output["loss"]


def _lora_of(row: TrainingRow) -> Any:
    import peft

    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return peft.LoraConfig(r=row.lora, lora_alpha=16, lora_dropout=0.1, target_modules=names)


def record_lora(row: TrainingRow, layers: int) -> Trace:
    """Return the trace of a step on one GPU that trains adapters under autocast."""
    scan = torchscan.Scan(
        build(row, layers),
        kwargs={**inputs_of(row.batch, row.length, ("input_ids", "labels")), "use_cache": False},
        training=True,
        loss=_loss_of,
        optimizer="AdamW",
        precision="bf16-mixed",
        device=device_of(row.device).name,
        lora=_lora_of(row),
        checkpoint=True,
        progress=False,
    )
    return scan.steps


def record(row: TrainingRow, layers: int) -> Trace:
    """Return the trace of a step of the first rank with so many layers."""
    if row.lora and row.dp == 1:
        return record_lora(row, layers)
    names = ("tokens", "labels")
    if row.source == "transformers":
        names = ("input_ids", "labels")
    tokens: dict[str, Any] = inputs_of(row.batch, row.length, names)
    if row.source == "transformers":
        tokens["use_cache"] = False
    mesh = {"dp": row.dp}
    if row.tp > 1:
        mesh["tp"] = row.tp
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel() if row.tp > 1 else nullcontext():
        plan = torchscan.parallel.plan(
            build(row, layers),
            mesh=mesh,
            apply=partial(_shard, row),
            device=device_of(row.device).name,
            kwargs=tokens,
            training=True,
            loss=_loss_of,
            optimizer="AdamW",
            progress=False,
        )
    return plan.ranks[0].trace


def long_of(row: TrainingRow) -> int:
    """Return the layers of the longer pass: one more, or two if every second one is recomputed."""
    return LONG + (row.checkpoint == "every 2nd")


class Recorded(NamedTuple):
    """Two passes of a row."""

    short: Trace
    long: Trace


def recorded(row: TrainingRow, folder: Path, *, makes: bool = False) -> Recorded | None:
    """Return the passes of a row from the folder, recorded first if they are missing."""
    asked = replace(
        row,
        tokens_per_second=0.0,
        accumulation=1,
        compiled=False,
        async_tp=False,
        layers=0,
    )
    key = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]
    path = folder / f"{key}.pickle.gz"
    if path.exists():
        with gzip.open(path, "rb") as file:
            return Recorded(*pickle.load(file))  # noqa: S301 - written below
    if not makes:
        return None
    found = Recorded(record(row, SHORT), record(row, long_of(row)))
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=1) as file:
        pickle.dump(tuple(found), file)
    return found


class Priced(NamedTuple):
    """Seconds of a step."""

    seconds: float
    #: of that, seconds that computation waits for links
    waits: float
    #: error margin as a share
    margin: float
    #: seconds by phase and operator
    by_kind: Mapping[str, float]


def price(row: TrainingRow, traces: Recorded) -> Priced:
    """Return the seconds of a step of all layers."""
    device = device_of(row.device)
    fabric = Fabric(device=device, overlaps_products=row.async_tp)
    rooflines = [
        roofline_of(trace, Rates(device, "cuda-12"), compiled=row.compiled, fabric=fabric)
        for trace in traces
    ]
    more = (row.layers - SHORT) / (long_of(row) - SHORT)
    kinds: dict[str, float] = {}
    for roofline, factor in zip(rooflines, (1 - more, more), strict=True):
        for each in roofline.operators:
            times = 1 if each.phase == "optimizer" else row.accumulation
            name = "links" if each.limiter == "links" else f"{each.phase} {each.operator}"
            seconds = times * factor * each.time_estimate
            if row.source == "llm-foundry" and "flash_attention" in each.operator:
                seconds *= _TRITON["backward" if each.operator.endswith("backward") else "forward"]
            kinds[name] = kinds.get(name, 0.0) + seconds
    waits = kinds.pop("links", 0.0)
    kinds["optimizer clipping"] = _CLIPPING * kinds.get(_SCALING, 0.0)
    return Priced(sum(kinds.values()) + waits, waits, rooflines[0].error_margin.share, kinds)
