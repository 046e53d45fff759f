"""Estimated beside published times of inference engines, by engine, model and load."""

from __future__ import annotations

import csv
import gzip
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from truth_section import Section, percent

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from tests.marked import table
from torchscan import analyze_generation
from torchscan.errors import TorchscanError
from torchscan.types import Generation

TRUTH = Path(__file__).parents[2] / "shared" / "truth"
ENGINES, QWEN = "serve_inferencemax_silicon.csv.gz", "serve_qwen2_qwen25_a100.csv.gz"
_DEVICES = {"h100_sxm": "H100 SXM", "b200_sxm": "B200", "A100 80GB": "A100-SXM4-80GB"}
_ENGINES = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}
_ENGINES_OF_QWEN = {"vllm": "vllm-0.6", "transformers": "transformers"}
#: precision of products by the name in the table of engines
_COMPUTE = {"": None, "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "int4_wo": None}
_WEIGHTS = {"int4_wo": "int4:32"}
#: formats of weights by the name in Qwen's tables
_STORED = {"BF16": None, "GPTQ-Int8": "int8", "GPTQ-Int4": "int4", "AWQ": "int4"}
_Config = tuple[str, Mapping[str, Any]]
_LLAMA = {"vocab_size": 128256, "max_position_embeddings": 131072}
_QWEN = {"vocab_size": 152064, "max_position_embeddings": 131072 + 4096, "head_dim": 128}


def _layers(
    hidden: int, inner: int, layers: int, heads: int, key_heads: int, **others: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        **others,
    }


#: modules that checkpoints keep in 16 bits
_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}
_QWEN3_MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536}
_MODELS: Mapping[str, _Config] = {
    "meta-llama/Llama-3.1-8B-Instruct": ("Llama", _layers(4096, 14336, 32, 32, 8, **_LLAMA)),
    "meta-llama/Llama-3.1-70B": ("Llama", _layers(8192, 28672, 80, 64, 8, **_LLAMA)),
    "Qwen/Qwen3-32B": ("Qwen3", _layers(5120, 25600, 64, 64, 8, **_QWEN)),
    "Qwen/Qwen3-235B-A22B-FP8": (
        "Qwen3Moe",
        _layers(4096, 12288, 94, 64, 4, **_QWEN, **_QWEN3_MOE),
    ),
    "openai/gpt-oss-120b": (
        "GptOss",
        {"num_hidden_layers": 36, "num_local_experts": 128, "quantization_config": _MXFP4},
    ),
    "MiniMaxAI/MiniMax-M2.5": ("MiniMaxM2", {}),
    "Qwen2.5-0.5B-Instruct": ("Qwen2", _layers(896, 4864, 24, 14, 2, **_QWEN)),
    "Qwen2.5-1.5B-Instruct": ("Qwen2", _layers(1536, 8960, 28, 12, 2, **_QWEN)),
    "Qwen2.5-3B-Instruct": ("Qwen2", _layers(2048, 11008, 36, 16, 2, **_QWEN)),
    "Qwen2.5-7B-Instruct": ("Qwen2", _layers(3584, 18944, 28, 28, 4, **_QWEN)),
    "Qwen2.5-14B-Instruct": ("Qwen2", _layers(5120, 13824, 48, 40, 8, **_QWEN)),
    "Qwen2.5-32B-Instruct": ("Qwen2", _layers(5120, 27648, 64, 40, 8, **_QWEN)),
    "Qwen2.5-72B-Instruct": ("Qwen2", _layers(8192, 29568, 80, 64, 8, **_QWEN)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """A published row, and the estimate. Times are in seconds."""

    model: str
    device: str
    engine: str
    precision: str
    cards: int
    #: measured
    first_token: float | None
    per_token: float
    estimate: Generation
    #: True if the measured time is that of all tokens, the first included
    is_mean: bool = False

    @property
    def token_ratio(self) -> float:
        """Time per token under load, estimated ÷ measured."""
        estimated = self.estimate.per_token_under_load
        if self.is_mean:
            estimated += self.estimate.first_token / self.estimate.new
        return estimated / self.per_token

    @property
    def is_inside_margin(self) -> bool:
        """True if the measured time lies inside the margin of the estimate."""
        margin, share = self.estimate.margin, 1 / self.token_ratio - 1
        return margin.low <= share <= margin.high

    @property
    def first_ratio(self) -> float | None:
        """Time to the first token, estimated ÷ measured."""
        if self.first_token is None:
            return None
        return self.estimate.first_token / self.first_token


class _Asked(NamedTuple):
    """The arguments of an estimate."""

    name: str
    prompt: int
    new: int
    device: str
    cache: str | None
    engine: Any
    compute: Any
    weights: str | None
    cards: int
    batch_size: int


@lru_cache(2)
def _model(name: str) -> nn.Module:
    import transformers

    kind, values = _MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**values)
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        )
    return model.eval()


def _estimates(asked: Sequence[_Asked]) -> Iterator[Generation | None]:
    """Estimate the rows, those that differ in the batch only together."""
    batches: dict[_Asked, set[int]] = {}
    for each in asked:
        batches.setdefault(each._replace(batch_size=0), set()).add(each.batch_size)
    known: dict[_Asked, Generation] = {}
    for each in sorted(batches, key=lambda each: each.name):
        for generation in _sweep(each, sorted(batches[each])):
            known[each._replace(batch_size=generation.batch_size)] = generation
    for each in asked:
        yield known.get(each)


def _sweep(asked: _Asked, batches: Sequence[int]) -> Sequence[Generation]:
    mesh = {} if asked.cards == 1 else {"mesh": {"tp": asked.cards}}
    try:
        return analyze_generation(
            _model(asked.name),
            asked.prompt,
            asked.new,
            batch_size=batches,
            device=asked.device,
            cache=asked.cache,
            engine=asked.engine,
            compute=asked.compute,
            weights=asked.weights,
            progress=False,
            **mesh,
        ).generations
    except (TorchscanError, RuntimeError) as error:
        print(f"{asked}: {str(error)[:160]}", file=sys.stderr)
        return ()


#: models of InferenceMAX's own runs: lengths vary from 0.8 to 1 of what is named, and B200 GPUs store
#: caches in 8 bits (its launch scripts)
_PUBLISHED = ("meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b", "MiniMaxAI/MiniMax-M2.5")


def _compute_of(row: Mapping[str, str]) -> str | None:
    """Return the format of products.

    The checkpoint of gpt-oss has experts in MXFP4, which Blackwell GPUs multiply by inputs of 8
    bits, and kernels on Hopper unpack.
    """
    if row["model_path"].startswith("openai/gpt-oss"):
        return "fp8" if row["system"].startswith("b200") else None
    return _COMPUTE[row["gemm_quant_mode"]]


def _weights_of(row: Mapping[str, str]) -> str | None:
    if row["model_path"].startswith("openai/gpt-oss"):
        return "mxfp4"
    return _WEIGHTS.get(row["gemm_quant_mode"])


def _length_share(row: Mapping[str, str]) -> float:
    return 0.9 if row["model_path"] in _PUBLISHED else 1.0


def engine_rows(truth: Path = TRUTH, every: int = 1, only: str = "") -> Iterator[ServingRow]:
    """Estimate the rows of InferenceMAX: several requests at once, one after another."""
    with gzip.open(truth / ENGINES, "rt") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["model_path"] in _MODELS
            and row["attention_dp_size"] in ("", "1")
            and only in f"{row['model_path']} {row['backend']} {row['system']} tp{row['tp_size']}"
        ][::every]
    asked = [
        _Asked(
            name=row["model_path"],
            prompt=round(_length_share(row) * int(row["isl"])),
            new=round(_length_share(row) * int(row["osl"])),
            device=_DEVICES[row["system"]],
            cache="fp8"
            if row["model_path"] in _PUBLISHED and row["system"] == "b200_sxm"
            else None,
            engine=_ENGINES[row["backend"]],
            compute=_compute_of(row),
            weights=_weights_of(row),
            cards=int(row["tp_size"]),
            batch_size=int(row["batch_size"]),
        )
        for row in rows
    ]
    for row, each, estimate in zip(rows, asked, _estimates(asked), strict=True):
        if estimate is not None:
            yield ServingRow(
                model=each.name.partition("/")[2],
                device=row["system"],
                engine=row["backend"],
                precision=row["gemm_quant_mode"] or "bf16",
                cards=each.cards,
                first_token=float(row["silicon_ttft_ms"]) / 1e3,
                per_token=float(row["silicon_tpot_ms"]) / 1e3,
                estimate=estimate,
            )


def qwen_rows(truth: Path = TRUTH, every: int = 1, only: str = "") -> Iterator[ServingRow]:
    """Estimate the rows of Qwen2.5's speed benchmark: one sequence."""
    with gzip.open(truth / QWEN, "rt") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["model"] in _MODELS
            and row["quantization"] in _STORED
            and row["speed_tokens_per_s"]
            and only in f"{row['model']} {row['engine']}"
        ][::every]
    asked = [
        _Asked(
            name=row["model"],
            prompt=int(row["input_tokens"]),
            new=int(row["output_tokens"]),
            device=_DEVICES[row["gpu"]],
            engine=_ENGINES_OF_QWEN[row["engine"]],
            cache=None,
            compute=None,
            weights=_STORED[row["quantization"]],
            cards=int(row["gpus"]) if row["engine"] == "vllm" else 1,
            batch_size=int(row["batch"]),
        )
        for row in rows
    ]
    for row, each, estimate in zip(rows, asked, _estimates(asked), strict=True):
        if estimate is not None:
            yield ServingRow(
                model=each.name,
                device=row["gpu"],
                engine=_ENGINES_OF_QWEN[row["engine"]],
                precision=row["quantization"],
                cards=int(row["gpus"]),
                first_token=None,
                per_token=1 / float(row["speed_tokens_per_s"]),
                is_mean=True,
                estimate=estimate,
            )


# -- the page ------------------------------------------------------------------------------------

#: names as people know them; all models but those of ``FITTED`` are held out
_NAMES = {"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang", "vllm-0.6": "vLLM 0.6"}
_CARDS = {"h100_sxm": "H100", "b200_sxm": "B200", "A100 80GB": "A100"}
#: models that the times of hosts were chosen with
FITTED = ("Llama-3.1-8B-Instruct", "Qwen3-32B")
#: rows of a group from which on it has a line
_MIN_ROWS = 5
HEADINGS = (
    "engine",
    "GPU",
    "model",
    "products",
    "rows",
    "median error",
    "four of five measured times",
    "inside the margin",
    "Spearman",
)


def serving(truth: Path) -> Section:
    """Return the comparison of all rows of engines, and of Qwen's tables."""
    rows = [*engine_rows(truth), *qwen_rows(truth)]
    groups: dict[tuple[str, ...], list[ServingRow]] = {}
    for row in rows:
        key = row.engine, _CARDS[row.device], row.model, row.precision
        groups.setdefault(key, []).append(row)
    written = [
        _row_of(key, group) for key, group in sorted(groups.items()) if len(group) >= _MIN_ROWS
    ]
    apart = [row for row in rows if row.model not in FITTED]
    result = f"median error {percent(_error_of(rows))} (held out {percent(_error_of(apart))})"
    blocks = {"serving": f"\n{table(HEADINGS, written)}\n"}
    return Section(
        [("time per token, engines", "InferenceMAX, Qwen", f"{len(rows)}", result)], blocks
    )


def _row_of(key: tuple[str, ...], group: Sequence[ServingRow]) -> tuple[str, ...]:
    engine, card, model, precision = key
    mark = "" if model in FITTED else " (held out)"
    low, high = four_of_five(group)
    inside = sum(row.is_inside_margin for row in group) / len(group)
    return (
        _NAMES.get(engine, engine),
        card,
        f"{model}{mark}",
        precision,
        str(len(group)),
        percent(_error_of(group)),
        f"{100 * low:+.0f} … {100 * high:+.0f} %",
        f"{100 * inside:.0f} %",
        f"{_spearman(group):.3f}",
    )


def _error_of(rows: Sequence[ServingRow]) -> float:
    return statistics.median(abs(row.token_ratio - 1) for row in rows)


def four_of_five(rows: Sequence[ServingRow]) -> tuple[float, float]:
    """Return the shares of the estimate between which four of five measured times lie."""
    shares = sorted(1 / row.token_ratio - 1 for row in rows)
    last = len(shares) - 1
    return shares[round(0.1 * last)], shares[round(0.9 * last)]


def _spearman(rows: Sequence[ServingRow]) -> float:
    """Return the correlation of ranks of estimated and measured times."""
    estimated = _ranks([row.estimate.per_token_under_load for row in rows])
    measured = _ranks([row.per_token for row in rows])
    return statistics.correlation(estimated, measured) if len(rows) > 2 else 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks


# -- printing ------------------------------------------------------------------------------------


def compare_serving(every: int = 1) -> None:
    """Print errors by engine, model, precision, number of cards and batch."""
    warnings.simplefilter("ignore")
    for source in (engine_rows, qwen_rows):
        rows = list(source(every=every))
        _print("all", rows)
        _print("  batch up to 8", [row for row in rows if row.estimate.batch_size <= 8])
        _by(rows, lambda row: f"  {row.engine}")
        _by(rows, lambda row: f"  {row.engine}, {row.device}, {row.model}, {row.precision}")
        _by(
            rows,
            lambda row: (
                f"  {row.engine}, {row.precision}, batch {_region(row.estimate.batch_size)}"
            ),
        )
        _by(rows, lambda row: f"  {row.engine}, {row.precision}, {row.cards} cards")
        _by(rows, lambda row: f"  {row.engine}, prompt {row.estimate.prompt}")


def _region(batch: int) -> str:
    return next((f"≤ {most}" for most in (8, 32, 128) if batch <= most), "> 128")


def _by(rows: Sequence[ServingRow], name_of: Callable[[ServingRow], str]) -> None:
    for name in dict.fromkeys(map(name_of, rows)):
        _print(name, [row for row in rows if name_of(row) == name])


def _print(name: str, rows: Sequence[ServingRow]) -> None:
    tokens = [row.token_ratio for row in rows]
    firsts = [ratio for row in rows if (ratio := row.first_ratio) is not None]
    if tokens:
        print(f"{name:62}{len(rows):5}  per token {_score(tokens)}  first {_score(firsts)}")


def _score(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    error = statistics.median(abs(each - 1) for each in ratios)
    bias = exp(statistics.fmean(map(log, ratios)))
    return f"{100 * error:5.1f} % × {bias:.2f}"
