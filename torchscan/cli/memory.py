"""``torchscan memory``: peak memory of a pass, or what held the memory of a run."""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import partial
from typing import Any

from torchscan.cli.answers import (
    colours_of,
    put_checkpoints,
    put_suggestions,
    put_table,
    to_complete_json,
)
from torchscan.cli.on_targets import on_scan
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_output, add_recipe, first_given, model_command
from torchscan.errors import Argument, Give, InputError
from torchscan.terminal import progress

#: what can be given with a snapshot
_OF_SNAPSHOTS = {"target", "snapshot", "moment", "device", "format", "output", "width"}
_EXAMPLES = """\
examples
  torchscan memory torchvision:resnet50 -b 32
  torchscan memory timm:vit_base_patch16_224 --training --optimizer AdamW -d "RTX 4090"
  torchscan memory torchvision:resnet50 --training -d "8 GiB" --largest-batch
  torchscan memory hf:config.json --input input_ids=4096:long --input labels=4096:long \\
    --training --loss loss --optimizer AdamW --precision bf16 --lora 16 --checkpoint full
  torchscan memory timm:vit_base_patch16_224 --training -b 64 -d "RTX 4090" --checkpoint compare
  torchscan memory hf:config.json --input input_ids=4096:long -d "24 GiB" --format json
  torchscan memory --snapshot oom.pickle
  torchscan memory "train.py:Net()" --snapshot oom.pickle --moment peak"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Estimate the peak memory of a pass, or explain a run that ran out of memory."
    parser = model_command(commands, "memory", help_, _EXAMPLES, run=_run, models="?", step=True)
    help_ = "Check whether it fits on this device: a name ('RTX 4090') or a size ('24 GiB')"
    add_option(parser, "device", help=help_)
    add_options(parser, "compiled", "cuda_context")
    exclusive = parser.add_mutually_exclusive_group()
    add_options(exclusive, "suggestions", "largest_batch", "longest_sequence")
    add_recipe(parser)
    group = parser.add_argument_group("a run that ran out of memory")
    add_options(group, "snapshot", "moment")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.estimator import memory_of
    from torchscan.report.memory_table import format_memory, memory_table

    if options.snapshot is not None:
        _explain_snapshot(options)
        return
    if options.target is None:
        raise InputError(
            "TARGET is missing: give a model, or ", Give("path"), " and a memory snapshot of a run"
        )
    if options.moment is not None:
        raise InputError(
            Argument("moment"), " chooses a moment of a snapshot: give ", Give("path"), ", too"
        )
    if put_checkpoints(options, "suggestions", "largest_batch", "longest_sequence"):
        return
    if options.suggestions:
        put_suggestions(options, lambda scan: scan.memory)
        return
    searched = {
        "largest_batch": options.largest_batch,
        "longest_sequence": options.longest_sequence,
    }
    estimate = on_scan(options, lambda scan: memory_of(scan, **searched))
    text = partial(format_memory, estimate, options.width, colours=colours_of(options))
    json = partial(to_complete_json, estimate)
    put_table(memory_table(estimate), options, estimate.to_html, text=text, json=json)


def _explain_snapshot(options: argparse.Namespace) -> None:
    from torchscan.report.snapshot_table import all_places_table, snapshot_table
    from torchscan.snapshots import read_snapshot
    from torchscan.targets import parse_target, with_model

    known = {action.dest for action in options.parser._actions}
    given = first_given(options, *known - _OF_SNAPSHOTS)
    if given is not None:
        raise InputError(f"{given} is for an estimate, not for a snapshot: leave it out")
    read = partial(read_snapshot, options.snapshot, moment=options.moment, device=options.device)
    if options.target is None:
        snapshot = read()
    else:
        target = parse_target(options.target)
        with progress(f"torchscan: {target}"), contextlib.redirect_stdout(sys.stderr):
            snapshot = with_model(target, lambda built: read(built.module))
    table = (all_places_table if options.format == "csv" else snapshot_table)(snapshot)
    put_table(table, options, json=partial(to_complete_json, snapshot))
