"""``torchscan train``: on which meshes of several devices a language model trains, and how fast."""

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

_EXAMPLES = """\
examples
  torchscan train hf:meta-llama/Llama-3.1-70B --gpus 64 --device H100 --checkpoint
  torchscan train hf:path/to/config.json --gpus 64 --device H100 --mesh dp=64 --mesh dp=8,tp=8
  torchscan train hf:path/to/config.json --gpus 2 --device RTX4090 --lora 16 --checkpoint
FSDP shards along dp, by layers, with copies along replicate; tensor parallelism is along tp.
torchscan devices lists the devices."""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "on which meshes of several devices a language model trains, and how fast"
    parser = add_command(commands, "train", help_, _EXAMPLES, run=_run)
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="which model: hf:path/to/config.json, package.module:callable, …",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="which device (default: this machine's)"
    )
    joined = parser.add_argument_group("devices")
    joined.add_argument("--gpus", metavar="N", type=positive, required=True, help="how many")
    joined.add_argument(
        "--mesh",
        metavar="dp=8,tp=8",
        type=_mesh,
        action="append",
        help="one to compare (default: all)",
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
    step = parser.add_argument_group("a step")
    step.add_argument(
        "--length",
        metavar="N",
        type=positive,
        default=4096,
        help="tokens of a sequence (default 4096)",
    )
    step.add_argument(
        "--batch",
        metavar="N",
        type=positive,
        default=1,
        help="sequences for each device (default 1)",
    )
    step.add_argument(
        "--global-batch",
        metavar="N",
        type=positive,
        help="sequences of all devices (default: --batch × --gpus)",
    )
    step.add_argument(
        "--precision", choices=("bf16", "bf16-mixed", "fp32"), default="bf16", help="default bf16"
    )
    step.add_argument("--optimizer", metavar="NAME", default="AdamW", help="default AdamW")
    step.add_argument(
        "--checkpoint", action="store_true", help="compute each layer again in the backward pass"
    )
    step.add_argument(
        "--lora",
        metavar="RANK",
        type=positive,
        help="train adapters of this rank, and freeze the model",
    )
    add_output(parser)


def _mesh(text: str) -> dict[str, int]:
    """``dp=8,tp=8``."""
    try:
        return {
            name: positive(size) for name, size in (each.split("=") for each in text.split(","))
        }
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is no mesh: give the size of each dimension, dp=8,tp=8, say"
        ) from error


def _run(options: argparse.Namespace) -> None:
    from torchscan.ranks.meshes import search_meshes
    from torchscan.report.mesh_table import mesh_table

    search = on_generating(
        options.target,
        lambda built: search_meshes(
            built.module,
            num_gpus=options.gpus,
            device=options.device,
            length=options.length,
            batch_size=options.batch,
            global_batch_size=options.global_batch,
            meshes=options.mesh,
            precision=options.precision,
            optimizer=options.optimizer,
            checkpoint=options.checkpoint,
            lora=options.lora,
            per_machine=options.per_machine,
            network_gbs=options.network,
            progress=False,
        ),
    )
    put_table(mesh_table(search), options, json=partial(to_complete_json, search))
