"""``torchscan flops``: what a pass costs in total, by operator or by module."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from torchscan.cli.options import (
    add_output,
    model_command,
    on_generating,
    on_scan,
    positive,
    put_table,
    to_complete_json,
)
from torchscan.errors import InputError

_EXAMPLES = """\
examples
  torchscan flops torchvision:resnet50
  torchscan flops torchvision:resnet50 --by module --top 10
  torchscan flops timm:vit_base_patch16_224 --backward --format csv
  torchscan flops hf:path/to/config.json --symbolic"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "what a pass costs in total, by operator or by module"
    parser = model_command(commands, "flops", help_, _EXAMPLES, run=_run)
    counting = parser.add_argument_group("counting")
    counting.add_argument(
        "--by", choices=("operator", "module"), default="operator", help="default operator"
    )
    counting.add_argument("--backward", action="store_true", help="count the backward pass, too")
    symbolic = (
        "of a language model: as formulas of batch B and length T, for a prompt and for a token"
    )
    counting.add_argument("--symbolic", action="store_true", help=symbolic)
    near = "with --symbolic: the length from which on formulas are fitted (default 64)"
    counting.add_argument("--near", metavar="N", type=positive, help=near)
    counting.add_argument("--top", metavar="N", type=positive, help="only the N largest")
    add_output(parser)


def _run(options: argparse.Namespace) -> None:
    from torchscan.report.costs import cost_table

    if options.symbolic:
        _put_formulas(options)
        return
    if options.near is not None:
        raise InputError("--near is where formulas are fitted: add --symbolic")
    put_table(
        cost_table(on_scan(options, lambda scan: scan.trace), options.by, options.top), options
    )


def _put_formulas(options: argparse.Namespace) -> None:
    from torchscan.generation import symbolic_costs
    from torchscan.report.formula_table import formula_table

    if options.backward or options.top is not None:
        raise InputError(
            f"--symbolic has all formulas of the forward pass: leave out {'--backward' if options.backward else '--top'}"
        )
    near = {} if options.near is None else {"near": options.near}
    costs = on_generating(
        options.target,
        lambda built: symbolic_costs(
            built.converted(options.dtype).module.eval(), progress=False, **near
        ),
    )
    put_table(formula_table(costs), options, json=partial(to_complete_json, costs))
