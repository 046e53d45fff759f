"""Estimated beside published times of inference engines, by engine, model and load."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from truth_section import Section, percent

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from tests.marked import table
from torchscan import analyze_generation
from torchscan.analyses.generation.request_queue import RequestQueue
from torchscan.errors import TorchscanError
from torchscan.hardware.device_specs import device_named
from torchscan.types import Generation

TRUTH = Path(__file__).parents[2] / "shared" / "truth"
ENGINES, QWEN = "serve_inferencemax_silicon.csv.gz", "serve_qwen2_qwen25_a100.csv.gz"
_DEVICES = {"h100_sxm": "H100 SXM", "b200_sxm": "B200", "A100 80GB": "A100-SXM4-80GB"}
_ENGINES = {"trtllm": "tensorrt-llm", "sglang": "sglang"}
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
#: of the text model
_KIMI = {
    **_layers(7168, 18432, 61, 64, 64, vocab_size=163840, max_position_embeddings=262144),
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
    },
}
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
    "moonshotai/Kimi-K2.5": ("DeepseekV3", _KIMI),
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
    """A published row, and what was estimated. Times are in seconds."""

    model: str
    #: names in the table
    device: str
    engine: str
    precision: str
    cards: int
    prompt: int
    new: int
    batch_size: int
    #: measured
    first_token: float | None
    per_token: float
    #: estimated, as the benchmark measures it: with its queue, and with prompts of others
    estimated_first_token: float
    estimated_per_token: float
    #: margin of the estimated time per token, and True if it comes from such rows
    low: float
    high: float
    is_compared: bool
    #: name of the engine, architecture of the GPU, and True for mixtures of experts
    engine_name: str
    family: str
    is_mixture: bool
    #: the estimate, or None in rows that were stored
    estimate: Generation | None = None

    @property
    def token_ratio(self) -> float:
        """Time per token under load, estimated ÷ measured."""
        return self.estimated_per_token / self.per_token

    @property
    def is_inside_margin(self) -> bool:
        """True if the measured time lies inside the margin of the estimate."""
        return self.low <= 1 / self.token_ratio - 1 <= self.high

    @property
    def first_ratio(self) -> float | None:
        """Time to the first token, estimated ÷ measured."""
        return None if self.first_token is None else self.estimated_first_token / self.first_token


def store_rows(rows: Sequence[ServingRow], path: Path) -> None:
    """Write rows without their estimates, one JSON object in a line."""
    plain = [asdict(replace(row, estimate=None)) for row in rows]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in plain))


def stored_rows(path: Path) -> list[ServingRow]:
    """Return the rows of a file."""
    return [ServingRow(**json.loads(line)) for line in path.read_text().splitlines()]


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
    expert_parallel: bool = False


@lru_cache(2)
def _model(name: str, *, repeats_heads: bool) -> nn.Module:
    import transformers

    kind, values = _MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**values)
    options = {}
    if repeats_heads:
        transformers.AttentionInterface.register("repeated", _attend_to_repeated_heads)
        options["attn_implementation"] = "repeated"
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, **options
        )
    return model.eval()


def _attend_to_repeated_heads(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    scaling: float,
    **_others: Any,
) -> tuple[Tensor, None]:
    """Attend as Qwen2 with FlashAttention 2 did in transformers 4.46: to a copy of each key head."""
    groups = module.num_key_value_groups
    repeated = [
        each[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for each in (key, value)
    ]
    found = nn.functional.scaled_dot_product_attention(
        query, *repeated, is_causal=query.shape[2] > 1, scale=scaling
    )
    return found.transpose(1, 2).contiguous(), None


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
    try:
        return analyze_generation(
            _model(asked.name, repeats_heads=asked.engine == "transformers"),
            asked.prompt,
            asked.new,
            batch_size=batches,
            device=asked.device,
            cache=asked.cache,
            engine=asked.engine,
            compute=asked.compute,
            weights=asked.weights,
            mesh={"tp": asked.cards} if asked.cards > 1 else None,
            expert_parallel=asked.expert_parallel,
            progress=False,
        ).generations
    except (TorchscanError, RuntimeError) as error:
        print(f"{asked}: {str(error)[:160]}", file=sys.stderr)
        return ()


#: models of InferenceMAX's own runs: lengths vary from 0.8 to 1 of what is named, and B200 GPUs store
#: caches in 8 bits (its launch scripts). Other models were measured by aiconfigurator, with equal
#: lengths. As their first tokens show, vLLM and TensorRT-LLM process two prompts in a pass, of 1,024
#: as of 4,096 tokens; aiconfigurator's later rule, prompt + 1500 + batch tokens, is further off.
_PUBLISHED = (
    "meta-llama/Llama-3.1-70B",
    "openai/gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5",
    "moonshotai/Kimi-K2.5",
)


def _engine_of(row: Mapping[str, str]) -> str:
    """Return the engine. vLLM schedules ahead from 0.14 on, and in InferenceMAX's runs on B200."""
    if row["backend"] != "vllm":
        return _ENGINES[row["backend"]]
    is_older = row["model_path"].startswith(("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B"))
    return "vllm-0.12" if is_older and row["system"] == "h100_sxm" else "vllm"


#: Models that aiconfigurator's own runs measured with an engine for as many sequences as clients. As
#: published, one request always waits until another ends; why it has no place was not found. In runs
#: of other models, the engine had room for 512.
_ONE_SLOT_LESS = ("meta-llama/Llama-3.1-8B-Instruct",)


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


def _has_unknown_batch(row: Mapping[str, str]) -> bool:
    """Return whether it is not published how many sequences an engine has at once.

    If requests wait for longer than an answer takes, there is room for fewer sequences than there
    are requests. In five rows of gpt-oss with TensorRT-LLM, the two numbers differ without data
    parallelism.
    """
    answer = float(row["silicon_tpot_ms"]) * int(row["osl"])
    requests = row["src_silicon_concurrency"] or row["batch_size"]
    is_single = row["attention_dp_size"] in ("", "1")
    is_unclear = is_single and int(requests) != int(row["batch_size"])
    return is_unclear or float(row["silicon_ttft_ms"]) > answer


def _batch_size_of(row: Mapping[str, str]) -> int:
    """Return the sequences that share attention.

    Rows with attention_dp_size N have N times as many clients as ``batch_size`` says. They are
    taken for runs with tensor parallel attention. Those of Kimi-K2.5 repeat, to the last digit,
    measurements of rows without data parallelism; those of MiniMax-M2.5 are within 3 % of such
    rows, and 16 sequences of 8,192 tokens on each of four H100 would not fit.
    """
    groups = int(row["attention_dp_size"] or 1)
    return int(row["src_silicon_concurrency"] if groups > 1 else row["batch_size"])


def _has_experts_apart(row: Mapping[str, str]) -> bool:
    """Return whether each GPU has some experts completely.

    Four rows divide experts both ways (moe tp 2, ep 2), and count as divided by their dimension.
    """
    return int(row["moe_ep_size"] or 1) > 1 and row["moe_tp_size"] in ("", "0", "1")


def _length_share(row: Mapping[str, str]) -> float:
    return 0.9 if row["model_path"] in _PUBLISHED else 1.0


def engine_rows(truth: Path = TRUTH, every: int = 1, only: str = "") -> Iterator[ServingRow]:
    """Estimate the rows of InferenceMAX: several requests at once, one after another."""
    with gzip.open(truth / ENGINES, "rt") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["model_path"] in _MODELS
            and only in f"{row['model_path']} {row['backend']} {row['system']} tp{row['tp_size']}"
            and not _has_unknown_batch(row)
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
            engine=_engine_of(row),
            compute=_compute_of(row),
            weights=_weights_of(row),
            cards=int(row["tp_size"]),
            batch_size=_batch_size_of(row),
            expert_parallel=_has_experts_apart(row),
        )
        for row in rows
    ]
    for row, each, estimate in zip(rows, asked, _estimates(asked), strict=True):
        if estimate is not None:
            yield _row(
                estimate,
                model=each.name.partition("/")[2],
                device=row["system"],
                engine=row["backend"],
                precision=each.weights or row["gemm_quant_mode"] or "bf16",
                cards=each.cards,
                first_token=float(row["silicon_ttft_ms"]) / 1e3,
                per_token=float(row["silicon_tpot_ms"]) / 1e3,
                estimated_first_token=_queue_of(each, estimate).serve().first_token,
                estimated_per_token=estimate.per_token_under_load,
            )


def _queue_of(asked: _Asked, estimate: Generation) -> RequestQueue:
    """Return the requests of the benchmark: all clients begin at once, and send ten each."""
    most = estimate.max_batch_size
    room = asked.batch_size if most is None else min(asked.batch_size, max(most, 1))
    queue = replace(estimate.queue, max_sequences=room, num_skipped_rounds=0, length_spread=0.0)
    if asked.name in _PUBLISHED:
        return replace(queue, length_spread=0.1 / 0.9)
    if asked.name in _ONE_SLOT_LESS:
        queue = replace(queue, max_sequences=max(1, room - 1))
    if asked.engine == "sglang":
        return queue
    return replace(queue, prompt_chunk=2 * asked.prompt)


def _row(estimate: Generation, **fields: Any) -> ServingRow:
    """Return a row with what its estimate says."""
    margin = estimate.margin
    return ServingRow(
        prompt=estimate.prompt,
        new=estimate.new,
        batch_size=estimate.batch_size,
        low=margin.low,
        high=margin.high,
        is_compared=margin.reason.code == "serving-validated",
        engine_name=estimate.engine.name,
        family=device_named(estimate.device).arch,
        is_mixture=estimate.active_params < estimate.params,
        estimate=estimate,
        **fields,
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
            # the published time is that of all tokens, the first included
            per_token = estimate.per_token_under_load + estimate.first_token / estimate.new
            yield _row(
                estimate,
                model=each.name,
                device=row["gpu"],
                engine=_ENGINES_OF_QWEN[row["engine"]],
                precision=row["quantization"],
                cards=int(row["gpus"]),
                first_token=None,
                per_token=1 / float(row["speed_tokens_per_s"]),
                estimated_first_token=estimate.first_token,
                estimated_per_token=per_token,
            )


# -- the page ------------------------------------------------------------------------------------

#: names as people know them
_NAMES = {
    "tensorrt-llm": "TensorRT-LLM",
    "vllm": "vLLM",
    "vllm-0.12": "vLLM 0.12",
    "vllm-0.6": "vLLM 0.6",
    "sglang": "SGLang",
}
_CARDS = {"h100_sxm": "H100", "b200_sxm": "B200", "A100 80GB": "A100"}
#: models, and GPUs, that the times of hosts were chosen with; all others are held out
FITTED = (
    ("Llama-3.1-8B-Instruct", "h100_sxm"),
    ("Qwen3-32B", "h100_sxm"),
    ("gpt-oss-120b", "h100_sxm"),
)
_BENCHMARKED = "Qwen2.5"
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
    "inside the margin of other models",
    "Spearman",
    "first token, median error",
)


def serving(truth: Path) -> Section:
    """Return the comparison of all rows of engines, and of Qwen's tables."""
    rows = [*engine_rows(truth), *qwen_rows(truth)]
    return Section(serving_summary(rows), {"serving": f"\n{serving_table(rows)}\n"})


def serving_summary(rows: Sequence[ServingRow]) -> list[tuple[str, str, str, str]]:
    """Return the lines of dense models and of mixtures of experts in the summary of the page."""
    found = []
    for is_mixture, name in ((False, "dense models"), (True, "mixtures of experts")):
        kind = [row for row in rows if row.is_mixture == is_mixture]
        apart = [row for row in kind if not _is_fitted(row.model, row.device)]
        result = f"median error {percent(_error_of(kind))} (held out {percent(_error_of(apart))})"
        source = "InferenceMAX" if is_mixture else "InferenceMAX, Qwen"
        found.append((f"time per token in engines, {name}", source, f"{len(kind)}", result))
    return found


def _is_fitted(model: str, device: str) -> bool:
    return (model, device) in FITTED or model.startswith(_BENCHMARKED)


def serving_table(rows: Sequence[ServingRow]) -> str:
    """Return the table of errors by engine, GPU, model and products, in Markdown."""
    from truth_margins import held_out

    held = {(each.model, each.engine, each.family): each for each in held_out(rows)}
    groups: dict[tuple[str, ...], list[ServingRow]] = {}
    for row in rows:
        name = _name_of(row.model, row.device)
        key = row.engine_name, _CARDS[row.device], name, row.precision
        groups.setdefault(key, []).append(row)
    written = []
    for key, group in sorted(groups.items()):
        if len(group) < _MIN_ROWS:
            continue
        places = {(row.model, row.engine_name, row.family) for row in group}
        inside = sum(held[place].inside for place in places)
        compared = sum(held[place].compared for place in places)
        written.append(_row_of(key, group, percent_of(inside, compared)))
    return table(HEADINGS, written)


def _name_of(model: str, device: str) -> str:
    """Return the name of a model's line, which models of one benchmark share."""
    if model.startswith(_BENCHMARKED):
        return f"{_BENCHMARKED}, 0.5B to 72B"
    return model if _is_fitted(model, device) else f"{model} (held out)"


def percent_of(part: int, whole: int) -> str:
    """Return a share, or a dash of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "–"


def _row_of(key: tuple[str, ...], group: Sequence[ServingRow], inside: str) -> tuple[str, ...]:
    engine, card, model, precision = key
    low, high = four_of_five(group)
    firsts = [abs(ratio - 1) for row in group if (ratio := row.first_ratio) is not None]
    return (
        _NAMES.get(engine, engine),
        card,
        model,
        precision,
        str(len(group)),
        percent(_error_of(group)),
        f"{100 * low:+.0f} … {100 * high:+.0f} %",
        inside,
        f"{_spearman(group):.3f}",
        percent(statistics.median(firsts)) if firsts else "–",
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
    estimated = _ranks([row.estimated_per_token for row in rows])
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
        print_errors(list(source(every=every)))


def print_errors(rows: Sequence[ServingRow]) -> None:
    """Print errors of rows, all together and by group."""
    _print("all", rows)
    _print("  batch up to 8", [row for row in rows if row.batch_size <= 8])
    _by(rows, lambda row: f"  {row.engine}")
    _by(rows, lambda row: f"  {row.engine}, {row.device}, {row.model}, {row.precision}")
    _by(rows, lambda row: f"  {row.engine}, {row.precision}, batch {_region(row.batch_size)}")
    _by(rows, lambda row: f"  {row.engine}, {row.precision}, {row.cards} cards")
    _by(rows, lambda row: f"  {row.engine}, prompt {row.prompt}")


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


# -- as a program ----------------------------------------------------------------------------------


def _main() -> None:
    """Estimate rows and store them, or print errors and margins of stored ones."""
    parser = argparse.ArgumentParser(description=_main.__doc__)
    parser.add_argument("rows", nargs="+", type=Path, help="files with rows")
    parser.add_argument("--only", help="Estimate the rows with this text, and write them to a file")
    parser.add_argument("--every", type=int, default=1, help="Leave out all others")
    parser.add_argument("--margins", action="store_true", help="Print margins instead of errors")
    parser.add_argument("--table", action="store_true", help="Print the table of docs/accuracy.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.only is not None:
        sources = (engine_rows, qwen_rows)
        found = [row for each in sources for row in each(every=options.every, only=options.only)]
        store_rows(found, options.rows[0])
    rows = [row for path in options.rows for row in stored_rows(path)]
    if options.margins:
        from truth_margins import print_margins

        print_margins(rows)
    elif options.table:
        print(*serving_summary(rows), serving_table(rows), sep="\n")
    else:
        print_errors(rows)


if __name__ == "__main__":
    _main()
