"""``torchscan llm``: whether a language model fits on a device, how long its context is, and what a token costs there."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torchscan.cli.options import (
    add_command,
    add_output,
    on_generating,
    positive,
    put_table,
    to_complete_json,
)
from torchscan.errors import InputError

_EXAMPLES = """\
examples
  torchscan llm hf:path/to/config.json --device H100 --prompt 2k --new 256 --batch 1,8,32
  torchscan llm hf:meta-llama/Llama-3.1-8B --device L4 --weights int4 --cache fp8 --context 32k --price 0.8
  torchscan llm hf:meta-llama/Llama-3.1-405B --device H100 --gpus 8 --weights fp8
k is 1,024 tokens. Weights and caches take: fp8, int8, int4, nf4, fp4, mxfp4; int4:32: 32 weights share a scale.
torchscan devices lists the devices."""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "what a language model takes on a device, and what a token costs there"
    parser = add_command(commands, "llm", help_, _EXAMPLES, run=_run)
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="which model: hf:path/to/config.json, package.module:callable, …",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="which device (default: this machine's)"
    )
    length = parser.add_argument_group("tokens")
    given = length.add_mutually_exclusive_group()
    given.add_argument(
        "--prompt", metavar="N", type=_tokens, default=512, help="tokens given (default 512)"
    )
    given.add_argument(
        "--context",
        metavar="N",
        type=_tokens,
        help="tokens given and new together, in place of --prompt",
    )
    length.add_argument(
        "--new",
        metavar="N",
        type=_tokens,
        default=128,
        help="tokens that are generated (default 128)",
    )
    length.add_argument(
        "--batch",
        metavar="N,…",
        type=_sizes,
        default=[1, 8, 32],
        help="sequences at once (default 1,8,32)",
    )
    serving = parser.add_argument_group("how it is served")
    serving.add_argument(
        "--precision", choices=("fp32", "fp16", "bf16"), help="convert the model to it"
    )
    serving.add_argument(
        "--weights", metavar="FORMAT", help="the format in which weights are stored"
    )
    serving.add_argument(
        "--cache", metavar="FORMAT", help="the format in which keys and values are stored"
    )
    serving.add_argument(
        "--eager", action="store_true", help="as plain PyTorch runs it, kernel by kernel"
    )
    serving.add_argument(
        "--price",
        metavar="P",
        type=float,
        help="price of the device per hour; adds the price of a million tokens",
    )
    joined = parser.add_argument_group("several devices")
    joined.add_argument(
        "--gpus", metavar="N", type=positive, help="how many (default: as many as --tp says)"
    )
    joined.add_argument(
        "--tp",
        metavar="N",
        type=positive,
        help="over how many each layer is spread (default: over all --gpus)",
    )
    joined.add_argument(
        "--per-machine",
        metavar="N",
        type=positive,
        default=8,
        help="how many a machine has (default 8)",
    )
    joined.add_argument(
        "--network",
        metavar="GB/s",
        type=float,
        default=50.0,
        help="network for each device (default 50)",
    )
    add_output(parser)


def _mesh(options: argparse.Namespace) -> dict[str, int] | None:
    """Groups of devices that have a batch of their own, and the devices of a group."""
    spread = options.tp or options.gpus or 1
    devices = options.gpus or spread
    if devices % spread:
        raise InputError(
            f"--gpus {devices} is no multiple of --tp {spread}: each model is spread over --tp devices"
        )
    if devices == 1:
        return None
    return {"dp": devices // spread, "tp": spread} if devices > spread else {"tp": spread}


def _tokens(text: str) -> int:
    """``2k`` is 2,048."""
    is_many = text[-1:] in ("k", "K")
    return positive(text[:-1]) * 1024 if is_many else positive(text)


def _sizes(text: str) -> list[int]:
    return [positive(each.strip()) for each in text.split(",")]


def _run(options: argparse.Namespace) -> None:
    from torchscan.generation import analyze_generation
    from torchscan.report.generation_table import generation_table

    if options.context is not None and options.context <= options.new:
        raise InputError(
            f"--context {options.context} leaves nothing for the prompt: --new is {options.new}"
        )
    prompt = options.prompt if options.context is None else options.context - options.new
    names = ("price", "device", "precision", "weights", "cache", "eager")
    asked = {name: getattr(options, name) for name in names}
    asked |= {
        "mesh": _mesh(options),
        "per_machine": options.per_machine,
        "network_gbs": options.network,
    }
    sweep = on_generating(
        options.target,
        lambda built: analyze_generation(
            built.module.eval(),
            prompt,
            options.new,
            batch_size=options.batch,
            progress=False,
            **asked,
        ),
    )
    put_table(generation_table(sweep), options, json=partial(to_complete_json, sweep))
