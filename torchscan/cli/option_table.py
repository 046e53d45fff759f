"""The options of all commands."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from torchscan.cli.option_definition import Option
from torchscan.cli.option_values import (
    to_bytes,
    to_checkpoint,
    to_choices,
    to_columns,
    to_count,
    to_depth,
    to_loss,
    to_mesh,
    to_names,
    to_position,
    to_seconds,
    to_tokens,
)
from torchscan.report.table import FORMATS

_GENERATION = ("generation.py",)
_INSPECT = ("inspection.py",)
_MESHES = ("ranks/meshes.py",)
_PASS = ("recording/arguments.py", "recording/request.py")
_RECIPE = ("recording/arguments.py", "recording/training/recipe.py")
_SUMMARY = ("crawler.py",)


def add_options(parser: Any, *names: str) -> None:
    """Add the options with these names to a parser, or to a group of its options."""
    for name in names:
        add_option(parser, name)


def add_option(parser: Any, name: str, **changes: Any) -> None:
    """Add an option; ``changes`` replace what is defined for all commands."""
    option = getattr(_Options, name)._replace(**changes)
    argument = option.python or name
    flags = [flag for flag in (to_flag(name), option.short) if flag is not None]
    default = option.default_of(argument)
    given = {key: getattr(option, key) for key in ("action", "metavar", "type", "required")}
    values = option.values()
    given |= {"choices": values, "default": default}
    if option.action == "extend" and values is not None:  # several values at once are no choice
        given |= {"choices": None, "metavar": f"{{{','.join(values)}}}"}
        given["type"] = functools.partial(to_choices, choices=values)
    given = {key: value for key, value in given.items() if value is not None}
    help_ = option.sentence(argument, default, _name_option)
    action = parser.add_argument(*flags, dest=name, help=help_, **given)
    action.parameter, action.words = argument, values


def _name_option(argument: str) -> str:
    """Return the option of an argument, or the name itself if there is none."""
    name = _OPTION_BY_ARGUMENT.get(argument, argument)
    return to_flag(name) if hasattr(_Options, name) else name


def to_flag(name: str) -> str:
    """Return how the option of an argument is spelled."""
    return f"--{name.replace('_', '-')}"


_flag = functools.partial(Option, action="store_true")


# fmt: off
class _Options:
    """The options by name."""

    # the model's inputs
    input = Option("Give the shape of one input; repeat the option for several; see below",
                   "SHAPE", action="append", default=[], python="input_shape")
    dtype = Option("Set the type of inputs; a floating-point type also converts the model", "TYPE")
    batch_size = Option("Set {}", "N", to_count, _PASS, "-b")
    mode = Option("Set the mode of the modules (default: train with --training, else eval)",
                  choices="recording/request.py:Mode")
    loop_iterations = Option("Set {}", "N", to_count, _PASS)
    # the pass
    training = _flag("Take {}", files=_PASS)
    optimizer = Option("Take the step with this optimizer of torch.optim or bitsandbytes, such as "
                       "AdamW", "NAME")
    precision = Option("Convert the model to this precision; …-mixed is autocast",
                       choices="precisions.py:Precision")
    compiled = _flag("{}", files=_PASS)
    # the training step
    loss = Option("Differentiate only this output of the model in the backward pass, such as loss "
                  "(default: all outputs)", "NAME", to_loss)
    checkpoint = Option("Recompute layers in the backward pass (activation checkpointing): none, "
                        "selective, full, or a number for every n-th layer "
                        "(default: compare none, selective and full)", "WHICH", to_checkpoint)
    max_memory = Option("Set the most memory that torch may reserve, for --checkpoint compare",
                        "SIZE", to_bytes)
    lora = Option("{}", "RANK", to_count, _RECIPE)
    cross_entropy = Option("{}", files=_RECIPE,
                           choices="recording/training/fused_losses.py:CrossEntropy")
    optimizer_in_backward = _flag("{}", files=_RECIPE)
    clip_gradients = _flag("{}", files=_RECIPE)
    accumulation_steps = Option("Set the number of micro batches in a step (gradient accumulation; "
                                "default: compare several)", "N", to_count)
    float8 = Option("{}", files=_RECIPE, choices="recording/training/float8.py:Float8")
    float8_all_gather = _flag("Shard weights so that FSDP2 gathers them in 8 bits; needs "
                              "--float8 tensorwise")
    float8_skip = Option("Set the {}", "A,B", to_names, _RECIPE)
    # FSDP2 offloads parameters, and these commands have one device
    offload = Option("Keep this on the host: optimizer (state and update) or activations (saved "
                     "tensors); repeat the option for both", files=_RECIPE,
                     choices=("optimizer", "activations"), action="extend")
    fused_kernels = Option("{}", files=_RECIPE, action="extend",
                           choices="recording/training/fused_kernels.py:FusedKernel")
    device = Option("Estimate for this device: 'RTX 4090', or cuda for this machine's", "NAME",
                    short="-d")
    run_on = Option("Run a TARGET on this device (default: cuda, or else cpu)", "cpu|cuda")
    steps = Option("Measure N training steps after one to warm up; evaluations do not count", "N",
                   to_count, default=5)
    on_nonfinite = Option("Record NaN and Inf of all steps, also warn at once, or raise",
                          files=_INSPECT, choices="inspecting/reactions.py:Reaction")
    # layers and rows
    by = Option("Choose the rows")
    max_depth = Option("{}", "N", to_depth, _SUMMARY)
    columns = Option("Choose the columns; see below", "A,B", to_columns, _SUMMARY)
    metrics = Option("Choose the columns; see below", "A,B", to_names)
    receptive_field = _flag("Show receptive field, stride and padding of each layer")
    match = Option("Show only layers whose path or type matches: 'layer4.*', Conv2d", "GLOB")
    sort = Option("Sort by a column, largest first", "COLUMN")
    top = Option("Show only the first N rows", "N", to_count)
    fold_repeats = Option("Collapse identical blocks into one row and hide layers without "
                          "operators (default: when that saves half of the rows)",
                          action=argparse.BooleanOptionalAction)
    wrap_mode = Option("Truncate names that do not fit --width at this place", files=_SUMMARY,
                       choices="report/table.py:Cut")
    layer = Option("Show only this layer, with a row for each axis", "PATH")
    projective = _flag("Show the projective field: which units of each layer a position of the "
                       "input reaches")
    position = Option("Show the units that this position of the first input reaches", "ROW,COLUMN",
                      to_position)
    call = Option("Choose the call of the module, counted from 1", "N", to_count, default=1)
    operators = _flag("Show operators and identical modules in separate boxes")
    # counting
    convention = Option("Count MACs by the rules of this tool", files=_SUMMARY,
                        choices="analyses/conventions/__init__.py:Convention")
    strict = _flag("Fail if an operator has no cost formula, instead of giving lower bounds")
    strict_norm = _flag("Include the elements that normalization computes its statistics from")
    symbolic = _flag("Show costs as formulas of batch B and length T, for a prompt and a token")
    near = Option("Fit the formulas of --symbolic from this length on", "N", to_tokens, _GENERATION)
    # memory and time
    cuda_context = Option("Set the memory that the CUDA context, kernels and libraries take "
                          "(default: as measured, or 512 MiB)", "SIZE", to_bytes)
    suggestions = _flag("Suggest changes that help, with an estimate for each")
    largest_batch = _flag("Find the largest batch that fits on the device, too")
    longest_sequence = _flag("Find the longest sequence that fits on the device, too")
    snapshot = Option("Show which code held the memory, from this file that "
                      "torch.cuda.memory._dump_snapshot() wrote, or its dict as JSON", "FILE", Path,
                      python="path")
    moment = Option("Show the memory when the last request failed (oom), at the peak, or at the "
                    "end of the recording (default: the first of these that the snapshot has)",
                    choices="analyses/memory_snapshot/allocator_history.py:SnapshotMoment")
    # language models
    prompt = Option("Set the number of {}", "N", to_tokens, _GENERATION)
    context = Option("Set the number of tokens of prompt and answer, instead of --prompt", "N",
                     to_tokens, python="prompt")
    new = Option("Set the number of {}", "N", to_tokens, _GENERATION)
    weights = Option("Set the format in which weights are stored", "FORMAT")
    cache = Option("Set {}", "FORMAT", files=_GENERATION)
    compute = Option("Set {}", "FORMAT", files=_GENERATION,
                     choices="analyses/generation/serving_costs.py:Compute")
    engine = Option("Set {}", "NAME", files=_GENERATION,
                    choices="analyses/generation/engines.py:EngineName")
    first_token = Option("Compare ways to serve whose first token comes within this time",
                         "TIME", to_seconds, python="max_first_token")
    per_token = Option("Compare ways to serve whose further tokens take at most this time each",
                       "TIME", to_seconds, python="max_per_token")
    separate = _flag("Compare separate GPUs for prompts and for new tokens, too")
    price = Option("Show the price of a million tokens; P is the price of the device per hour",
                   "P", float)
    num_gpus = Option("Set {}", "N", to_count, _MESHES)
    tp = Option("Shard each layer over N devices (default: all)", "N", to_count)
    expert_parallel = _flag("Shard experts over all devices, each of which has some completely")
    mesh = Option("Compare this mesh; repeat the option for several (default: all useful ones)",
                  "dp=8,tp=8", to_mesh, action="append", python="meshes")
    per_machine = Option("Set the number of devices in each machine", "N", to_count, _MESHES)
    network_gbs = Option("Set the network bandwidth of each device, in one direction, in 10^9 "
                         "bytes per second", "GB/s", float, _MESHES)
    length = Option("Set the number of {}", "N", to_tokens, _MESHES)
    global_batch_size = Option("Set the number of sequences in a step for all devices together "
                               "(default: --batch-size for each)", "N", to_count)
    flops = Option("Choose which scores of attention MFU counts: all for dense, only those that a "
                   "causal mask leaves for computed", files=_MESHES,
                   choices="analyses/model_products.py:FlopsConvention")
    link_gbs = Option("Set the bandwidth of each device's links (NVLink, for example) in a "
                      "machine, in one direction, in 10^9 bytes per second "
                      "(default: as in the data sheet)", "GB/s", float)
    sharding = Option("Shard parameters by this kind of FSDP; repeat the option to compare several "
                      "(default: fsdp2)", type=to_names, action="extend",
                      choices="analyses/fsdp_times.py:DerivedSharding")
    sequence_parallel = Option("Divide activations along tp by sequence, which is sequence "
                               "parallelism (default: on)", default=True,
                               action=argparse.BooleanOptionalAction)
    async_tp = _flag("Overlap collectives of --sequence-parallel with matrix products "
                     "(asynchronous tensor parallelism); needs --compiled")
    # files and the browser
    format = Option("Choose the format (default: by the name of the --output file, else text)",
                    choices=FORMATS)
    output = Option("Write to this file instead of standard output, and create its folder if it is "
                    "missing", "FILE", Path, short="-o")
    width = Option("Set the width in characters (default: the terminal's)", "N", to_count)
    run = Option("Show the measurements of a watched run or a file of inspect --save", "RUN", Path)
    overlay = Option("Show your own values by path as colors of the graph and a column: a CSV file "
                     "with a header (path,sensitivity) or a JSON file ({\"layer1.0\": 0.3}, or "
                     "several by name); repeat the option for several files", "FILE", Path,
                     action="append")
    save = Option("Write the complete result as JSON, for open_run and compare", "FILE", Path)
    trace = Option("Write the last step as a timeline for ui.perfetto.dev", "FILE", Path)
    host = Option("Listen on this address", "HOST", default="127.0.0.1")
    port = Option("Listen on this port; if it is taken, on another free one (default: 6116)",
                  "N", int)
    config = Option("Read this budget file", "FILE", Path)
    update = _flag("Record new baselines")
    timings = _flag("Take real steps, and check max_step_time")
    measure = _flag("Measure this machine's GPU or CPU, and save the result")
# fmt: on

#: argument in Python -> the option with another name
_OPTION_BY_ARGUMENT = {
    option.python: name
    for name, option in vars(_Options).items()
    if isinstance(option, Option) and option.python and not hasattr(_Options, option.python)
}
