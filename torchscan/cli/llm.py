"""``torchscan llm``: a language model that is served on devices, or trained on a mesh of them."""

from __future__ import annotations

import argparse
from functools import partial
from operator import itemgetter
from typing import Any

from torchscan.cli.answers import put_table, to_complete_json
from torchscan.cli.on_targets import on_generating
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.option_values import to_counts
from torchscan.cli.options import add_command, add_command_group, add_output
from torchscan.errors import InputError

_MESHES = ("ranks/meshes.py",)
#: options that change the model
_CHANGES = ("lora", "compiled", "float8", "float8_all_gather")
_SERVE_EXAMPLES = """\
examples
  torchscan llm serve hf:path/to/config.json -d H100 --prompt 2k --new 256 -b 1,8,32
  torchscan llm serve hf:meta-llama/Llama-3.1-8B -d L4 --weights int4 --cache fp8 --context 32k
  torchscan llm serve hf:meta-llama/Llama-3.1-405B -d H100 --num-gpus 8 --compute fp8
  torchscan llm serve hf:path/to/config.json --num-gpus 8 --first-token 500ms --per-token 30ms
k is 1,024 tokens. Formats of weights and caches: fp8, int8, int4, nf4, fp4, mxfp4, nvfp4; in
int4:32, 32 weights share a scale. torchscan devices lists the devices."""
_TRAIN_EXAMPLES = """\
examples
  torchscan llm train hf:meta-llama/Llama-3.1-70B -d H100 --num-gpus 64
  torchscan llm train hf:path/to/config.json -d H100 --num-gpus 64 --mesh dp=64 --mesh dp=8,tp=8
  torchscan llm train hf:path/to/config.json -d H100 --num-gpus 512 --mesh pp=8,dp=8,tp=8
  torchscan llm train hf:path/to/config.json -d RTX4090 --num-gpus 2 --lora 16 --checkpoint full
  torchscan llm train hf:Qwen/Qwen3-30B-A3B -d H100 --num-gpus 16 --sharding fsdp2 --sharding zero2

dimensions of a --mesh
  dp         FSDP shards parameters, gradients and optimizer states, layer by layer
  replicate  copies of the sharded model (HSDP)
  cp         parts of each sequence (context parallelism); FSDP shards along cp, too
  ep         parts of the experts; FSDP shards the rest along ep, too
  tp         parts of each layer (tensor parallelism)
  pp         stages of a pipeline

torchscan devices lists the devices."""


def add_to(commands: Any) -> None:
    """Register the commands."""
    help_ = "Estimate memory and time of serving or training a language model."
    group = add_command_group(commands, "llm", help_)
    _add_serve(group)
    _add_train(group)


def _add_model(parser: argparse.ArgumentParser) -> None:
    help_ = "Analyze this model: hf:path/to/config.json or package.module:callable."
    parser.add_argument("target", metavar="TARGET", help=help_)
    add_option(parser, "device")


def _add_serve(commands: Any) -> None:
    help_ = "Estimate memory, latency and price per token of a language model on a device."
    parser = add_command(commands, "serve", help_, _SERVE_EXAMPLES, run=_serve)
    _add_model(parser)
    length = parser.add_argument_group("tokens")
    given = length.add_mutually_exclusive_group()
    add_options(given, "prompt", "context")
    add_option(length, "new")
    add_option(
        length,
        "batch_size",
        help="Set the number of {}, one or several",
        default=(1, 8, 32),
        files=("generation.py",),
        metavar="N,…",
        type=to_counts,
    )
    serving = parser.add_argument_group("serving")
    add_options(serving, "engine", "precision", "weights", "cache", "compute", "price")
    devices = parser.add_argument_group("several devices")
    add_option(devices, "num_gpus", help="Set the number of devices (default: as --tp)")
    add_options(devices, "tp", "expert_parallel", "per_machine", "network_gbs")
    limits = parser.add_argument_group("search for the best way within limits")
    add_options(limits, "first_token", "per_token", "separate")
    add_output(parser)


def _add_train(commands: Any) -> None:
    help_ = "Compare device meshes for training a language model, by memory and speed."
    parser = add_command(commands, "train", help_, _TRAIN_EXAMPLES, run=_train)
    _add_model(parser)
    devices = parser.add_argument_group("devices")
    add_option(devices, "num_gpus", required=True)
    add_options(devices, "mesh", "per_machine", "link_gbs", "network_gbs")
    step = parser.add_argument_group("training step")
    add_option(step, "length")
    add_option(step, "batch_size", help="Set the number of {}", files=_MESHES)
    add_option(step, "global_batch_size")
    add_option(step, "precision", files=_MESHES)
    add_option(step, "optimizer", files=_MESHES)
    add_options(step, "checkpoint", "accumulation_steps", "lora", "flops")
    add_options(step, "sharding", "sequence_parallel", "async_tp")
    add_options(step, "compiled", "float8", "float8_all_gather")
    add_output(parser)


def _serve(options: argparse.Namespace) -> None:
    from torchscan.generation import analyze_generation
    from torchscan.report.generation_table import generation_table

    prompt = options.prompt
    if options.context is not None:
        prompt = options.context - options.new
    if prompt < 1:
        raise InputError(
            f"--context is {options.context} and --new is {options.new}, which leaves no prompt: "
            "give a larger --context"
        )
    if options.first_token or options.per_token or options.separate:
        _search(options, prompt)
        return
    mesh = _mesh(options)
    if options.expert_parallel and mesh is None:
        raise InputError(
            "--expert-parallel is given for one device: give the number of devices with --num-gpus"
        )
    names = ("price", "device", "precision", "weights", "cache", "compute", "engine")
    asked = {name: getattr(options, name) for name in (*names, "per_machine", "network_gbs")}
    sweep = on_generating(
        options.target,
        lambda built: analyze_generation(
            built.module.eval(),
            prompt,
            options.new,
            batch_size=options.batch_size,
            mesh=mesh,
            expert_parallel=options.expert_parallel,
            progress=False,
            **asked,
        ),
    )
    put_table(
        generation_table(sweep), options, sweep.to_html, json=partial(to_complete_json, sweep)
    )


def _search(options: argparse.Namespace, prompt: int) -> None:
    from torchscan import parallel
    from torchscan.report.serving_table import serving_table

    if options.tp is not None:
        raise InputError("--tp is given, and a search compares all: leave out --tp")
    if options.expert_parallel:
        raise InputError("--expert-parallel is given, and a search compares it: leave it out")
    names = ["price", "device", "precision", "weights", "cache", "engine", "separate"]
    names += ["per_machine", "network_gbs"]
    asked = {name: getattr(options, name) for name in names}
    asked["num_gpus"] = options.num_gpus or 1
    asked["max_first_token"], asked["max_per_token"] = options.first_token, options.per_token
    asked["formats"] = [options.compute] if options.compute else None

    def searched(built: Any) -> Any:
        model = built.module.eval()
        return parallel.search_serving(model, prompt, options.new, progress=False, **asked)

    search = on_generating(options.target, searched)
    put_table(
        serving_table(search), options, search.to_html, json=partial(to_complete_json, search)
    )


def _mesh(options: argparse.Namespace) -> dict[str, int] | None:
    """Return the mesh, in which groups of devices have a separate batch each, or None."""
    num_gpus = options.num_gpus or options.tp or 1
    tp = options.tp or num_gpus
    if num_gpus % tp:
        raise InputError(
            f"--num-gpus is {num_gpus}, not a multiple of --tp {tp}: give a multiple, since each "
            "copy of the model is sharded over --tp devices"
        )
    if num_gpus == 1:
        return None
    return {"dp": num_gpus // tp, "tp": tp} if num_gpus > tp else {"tp": tp}


def _train(options: argparse.Namespace) -> None:
    from torchscan.ranks.mesh_options import MeshOptions
    from torchscan.ranks.meshes import search_with
    from torchscan.report.mesh_table import mesh_table

    names = ["num_gpus", "device", "length", "batch_size", "global_batch_size", "precision"]
    names += ["optimizer", "checkpoint", "accumulation_steps", "flops"]
    names += ["sequence_parallel", "async_tp", "per_machine", "link_gbs", "network_gbs"]
    # wrong options are refused before a large model is built
    given = vars(options)
    asked = MeshOptions(
        **{name: given[name] for name in names},
        meshes=options.mesh,
        sharding=options.sharding or "fsdp2",
        changes=dict(zip(_CHANGES, itemgetter(*_CHANGES)(given), strict=True)),
    )
    search = on_generating(
        options.target, lambda built: search_with(built.module, asked, progress=False)
    )
    put_table(mesh_table(search), options, search.to_html, json=partial(to_complete_json, search))
