"""``torchscan summary``: the layers of a model and what they cost."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torchscan.cli.options import add_output, model_command, names, on_scan, positive, put_table
from torchscan.cli.saying import explain
from torchscan.errors import RecordError

_COLUMNS = """\
Columns: type path input_shape output_shape params own_params grad_params nograd_params trainable
param_size buffers buffer_size macs own_macs flops own_flops dmas bytes_read bytes_written
activations peak latency params_share macs_share flops_share latency_share rf s p. Numbers are
those of a layer with all that it calls; own_… are its own. Data (csv, json) have each layer's own
numbers, and are never folded."""
_EXAMPLES = """\
examples
  torchscan summary torchvision:resnet50 --depth 2
  torchscan summary timm:convnext_tiny --sort macs --top 10
  torchscan summary torchvision:vit_b_16 --filter Linear --sort params --top 5
  torchscan summary hf:config.json --input input_ids=2048:long --format json --output model.json
  torchscan summary models.py:net --input 3,32,32 --format github >> $GITHUB_STEP_SUMMARY"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "the layers of a model as a table, and the totals"
    parser = model_command(commands, "summary", help_, _COLUMNS, _EXAMPLES, run=_run, step=True)
    parser.add_argument(
        "--device", metavar="NAME", help="show what each layer takes there: 'RTX 4090', 'cuda'"
    )
    layers = parser.add_argument_group("layers")
    layers.add_argument(
        "--depth", metavar="N", type=int, help="fold deeper layers into their parents"
    )
    layers.add_argument(
        "--columns", metavar="A,B", type=names, help="what to show for each layer; see below"
    )
    layers.add_argument(
        "--rf", action="store_true", help="receptive field, stride and padding of each layer"
    )
    layers.add_argument(
        "--filter",
        metavar="GLOB",
        help="only layers whose path or type matches: 'layer4.*', Conv2d",
    )
    layers.add_argument("--sort", metavar="COLUMN", help="sort by a column, largest first")
    layers.add_argument("--top", metavar="N", type=positive, help="only the first N layers")
    layers.add_argument(
        "--fold-repeats",
        action=argparse.BooleanOptionalAction,
        help="equal blocks in one row, and none for what does nothing (default: where that saves half of the rows)",
    )
    layers.add_argument(
        "--wrap", choices=("head", "mid", "tail"), default="mid", help="where long names are cut"
    )
    counting = parser.add_argument_group("counting")
    counting.add_argument("--backward", action="store_true", help="count the backward pass, too")
    counting.add_argument(
        "--convention",
        choices=("torchscan", "fvcore", "flop_counter", "thop", "ptflops", "torchinfo"),
        default="torchscan",
        help="MACs as another tool would report them",
    )
    counting.add_argument("--strict", action="store_true", help="fail if an operator is unpriced")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.hardware.device_specs import can_estimate_for
    from torchscan.report.aggregate import folded_to
    from torchscan.report.columns import check_columns, needed_for, require_device, usual_columns
    from torchscan.report.export import check_layout
    from torchscan.report.select import select_layers

    has_device = can_estimate_for(options.device)
    columns = (
        usual_columns(options.rf, options.rf, has_device)
        if options.columns is None
        else options.columns
    )
    check_layout(columns, options.wrap, options.width)
    read = [*columns, *([] if options.sort is None else [options.sort])]
    check_columns(read)
    require_device(read, has_device=has_device)
    counting = {"strict": options.strict, "convention": options.convention, **needed_for(read)}
    try:
        info = on_scan(options, lambda scan: scan.describe(**counting))
    except RecordError as error:
        _show_what_ran(error, options.width)
        raise
    info = select_layers(
        folded_to(info, options.depth), match=options.filter, sort=options.sort, top=options.top
    )
    put_table(
        info.table(columns, options.wrap, fold_repeats=options.fold_repeats),
        options,
        csv=lambda: info.to_csv(columns=options.columns, escape_formulas=True).removesuffix("\n"),
        json=info.to_json,
        html=lambda: info.to_html(columns=options.columns, standalone=True),
    )


def _show_what_ran(error: RecordError, width: int) -> None:
    """Before the error says why it failed."""
    from torchscan.report.colours import has_colours
    from torchscan.report.unfinished import unfinished_table

    table = unfinished_table(error)
    if table is not None:
        explain(table.write("text", width=width, colours=has_colours(sys.stderr)))
