"""``torchscan summary``: layers and costs of a model."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from torchscan.cli.answers import put_table, to_complete_json
from torchscan.cli.on_targets import on_generating, on_scan
from torchscan.cli.option_table import add_option, add_options
from torchscan.cli.options import add_output, first_given, model_command
from torchscan.cli.output import print_error
from torchscan.errors import InputError, RecordError

_COLUMNS = """\
Columns: type path input_shape output_shape params own_params grad_params nograd_params trainable
param_size buffers buffer_size macs own_macs flops own_flops dmas bytes_read bytes_written
activations peak latency params_share macs_share flops_share latency_share rf s p. Numbers
include everything that a layer calls; own_… are of the layer itself. In csv and json, all numbers
are of the layer itself, and nothing is folded.

--by and --symbolic show costs instead of layers, largest first; --symbolic is for language
models."""
_EXAMPLES = """\
examples
  torchscan summary torchvision:resnet50 --max-depth 2
  torchscan summary timm:convnext_tiny --sort macs --top 10
  torchscan summary torchvision:vit_b_16 --match Linear --sort params --top 5
  torchscan summary torchvision:resnet50 --by operator --training
  torchscan summary hf:path/to/config.json --symbolic
  torchscan summary hf:config.json --input input_ids=2048:long --format json -o model.json
  torchscan summary models.py:net --input 3,32,32 --format github >> $GITHUB_STEP_SUMMARY"""
#: arguments that choose layers, their columns and how these are counted
_OF_LAYERS = (
    *("max_depth", "columns", "receptive_field", "match", "sort", "fold_repeats", "wrap_mode"),
    *("convention", "strict", "device", "optimizer", "precision"),
)
#: arguments of a pass, which formulas do not have
_OF_PASS = ("by", "top", "training", "mode", "input", "batch_size", "loop_iterations")


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Show the layers of a model and what they cost, or the costs by operator or module."
    parser = model_command(commands, "summary", help_, _COLUMNS, _EXAMPLES, run=_run, step=True)
    add_option(parser, "device", help="Show the time of each layer on this device: 'RTX 4090'")
    layers = parser.add_argument_group("layers")
    add_options(layers, "max_depth", "columns", "receptive_field", "match", "sort", "top")
    add_options(layers, "fold_repeats", "wrap_mode")
    costs = parser.add_argument_group("costs")
    help_ = "Show the costs of operators or modules instead of layers"
    add_option(costs, "by", help=help_, choices="report/cost_table.py:By")
    add_options(costs, "symbolic", "near", "convention", "strict")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    if options.symbolic:
        _put_formulas(options)
        return
    if first_given(options, "near"):
        raise InputError("--near is for the formulas of --symbolic: give both, or leave out --near")
    if options.by is not None:
        _put_costs(options)
        return
    _put_layers(options)


def _put_formulas(options: argparse.Namespace) -> None:
    from torchscan.generation import symbolic_costs
    from torchscan.report.formula_table import formula_table

    useless = first_given(options, *_OF_LAYERS, *_OF_PASS)
    if useless:
        raise InputError(
            f"{useless} does not go with --symbolic, which shows all formulas of the forward "
            "pass: leave it out"
        )
    costs = on_generating(
        options.target,
        lambda built: symbolic_costs(
            built.converted(options.dtype).module.eval(), progress=False, near=options.near
        ),
    )
    put_table(formula_table(costs), options, json=partial(to_complete_json, costs))


def _put_costs(options: argparse.Namespace) -> None:
    from torchscan.report.cost_table import cost_table

    useless = first_given(options, *_OF_LAYERS)
    if useless:
        raise InputError(f"{useless} is for the table of layers: leave it out, or leave out --by")
    trace = on_scan(options, lambda scan: scan.trace)
    put_table(cost_table(trace, options.by, options.top), options)


def _put_layers(options: argparse.Namespace) -> None:
    from torchscan.hardware.device_specs import can_estimate_for
    from torchscan.report.layer_table import (
        check_columns,
        check_layout,
        needed_for,
        usual_columns,
    )
    from torchscan.report.select import folded_to, select_layers

    has_device = can_estimate_for(options.device)
    columns = options.columns
    if columns is None:
        columns = usual_columns(options.receptive_field, options.receptive_field, has_device)
    check_layout(columns, options.wrap_mode, options.width)
    read = [*columns, *([] if options.sort is None else [options.sort])]
    check_columns(read)
    needed = needed_for(read, has_device=has_device)
    counting = {"strict": options.strict, "convention": options.convention, **needed}
    try:
        info = on_scan(options, lambda scan: scan.describe(**counting))
    except RecordError as error:
        _show_unfinished(error, options.width)
        raise
    info = folded_to(info, options.max_depth)
    info = select_layers(info, match=options.match, sort=options.sort, top=options.top)
    put_table(
        info.table(columns, options.wrap_mode, fold_repeats=options.fold_repeats),
        options,
        partial(info.to_html, columns=options.columns),
        csv=lambda: info.to_csv(columns=options.columns, escape_formulas=True).removesuffix("\n"),
        json=info.to_json,
    )


def _show_unfinished(error: RecordError, width: int) -> None:
    """Print the layers that ran, before the error says why the pass failed."""
    from torchscan.report.unfinished import unfinished_table
    from torchscan.terminal import has_colours

    table = unfinished_table(error)
    if table is not None:
        print_error(table.write("text", width=width, colours=has_colours(sys.stderr)))
