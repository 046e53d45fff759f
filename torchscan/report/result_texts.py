"""The sentences of notes in results: recordings, estimates, plans, generation and budgets.

Each is one main clause without its capital and period, and begins with an ordinary word, so that it
can also stand by itself below a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchscan import units
from torchscan.notes import Note, register_texts
from torchscan.plain import from_plain

#: places that a sentence names; the others are counted
_MAX_PLACES = 3


def _list_places(places: Sequence[str]) -> str:
    """Return the first places, and how many there are beside them."""
    named = ", ".join(places[:_MAX_PLACES])
    more = len(places) - _MAX_PLACES
    if more <= 0:
        return named
    return f"{named} and {more} more {'place' if more == 1 else 'places'}"


def _list_reads(reads: Sequence[Mapping[str, str]]) -> str:
    """Return which functions read values, and where."""
    return _list_places([f"{each['function']} at {each['place']}" for each in reads])


def _name_module(path: str) -> str:
    return path or "the model"


# -- the pass ----------------------------------------------------------------------------------


def _branch_on_pick(operator: str, places: Sequence[str]) -> str:
    reads = f"a branch at {_list_places(places)} reads an index that {operator} picks"
    return f"{reads}, so another index may take another path"


def _typical_inputs(reads: Sequence[Mapping[str, str]]) -> str:
    decides = "their values decide what is counted"
    return f"generated inputs are assumed to be typical: {decides}, by {_list_reads(reads)}"


def _typical_random_numbers(reads: Sequence[Mapping[str, str]]) -> str:
    decides = "they decide what is counted"
    return f"random numbers are assumed to be typical: {decides}, by {_list_reads(reads)}"


#: why the pass ran on shapes alone, or on data
_REASONS: dict[str, Any] = {
    "shapes-suffice": "shapes are enough",
    "requested": "as requested",
    "model-sharded": "the model is sharded",
    "model-on-cuda": "the model is on CUDA",
    "autocast-active": "autocast is active",
    "abstract-pass-failed": "the pass on shapes alone failed: {error}",
    "gradients-in-forward": "the model computes gradients in its forward pass",
}
_PASS: dict[str, Any] = {
    "runs-on-data": (
        "the pass ran on data, and the result holds for these data: on shapes alone, {error}"
    ),
    "autocast-ignored": (
        "autocast is active on {device} and was ignored: it has no effect on meta tensors"
    ),
    "branch-on-pick": _branch_on_pick,
    "balanced-routing": (
        "balanced routing is assumed: {operator} spreads its picks evenly, "
        "over as many indices as can be expected"
    ),
    "typical-inputs": _typical_inputs,
    "typical-random-numbers": _typical_random_numbers,
    "distribution-arguments-valid": (
        "parameters and values of distributions are assumed to be in range"
    ),
    "rebuilt-buffers": (
        "integer buffers are assumed to hold the values of a second model, "
        "built from the same config"
    ),
    "gradients-not-reduced": (
        "gradients are not reduced between ranks: the model inside DDP was recorded, without DDP"
    ),
    "gradients-redistributed": (
        "gradients whose placement differs from that of their parameters are redistributed once, "
        "before the step"
    ),
    "sparse-gradient": (
        "the sparse gradient of {parameter} counts as 0 bytes, because its memory is not tracked"
    ),
    "adapters-as-in-peft": "adapters run in 32 bits, with dropout, as in peft",
}


# -- weights -----------------------------------------------------------------------------------


def _lazy_module(path: str) -> str:
    return f"the weights of {_name_module(path)}, which is lazy and not reached by the pass"


def _frozen_weights(path: str) -> str:
    return f"the weights of {_name_module(path)}, which became constants when it was frozen"


def _hidden_weights(path: str) -> str:
    return f"the packed weights that {_name_module(path)} uses and no module shows"


def _weights_not_counted(weights: Mapping[str, Any]) -> str:
    return f"parameters and memory are not counted for {from_plain(Note, weights)}"


_WEIGHTS: dict[str, Any] = {
    # noun phrases: the weights that cannot be read
    "unreadable-weights": "the weights in {path}, which cannot be read",
    "lazy-module": _lazy_module,
    "frozen-weights": _frozen_weights,
    "hidden-weights": _hidden_weights,
    "packed-numbers": "the numbers packed in {path}",
    # sentences
    "weights-not-counted": _weights_not_counted,
    "packing-unknown": (
        "each element of {path} counts as one, {elements:,} in total: "
        "how many numbers are packed in it is unknown"
    ),
    "rank-share": (
        "bytes and costs are those of one rank, which holds {held:,} of {params:,} parameters"
    ),
}


# -- memory and time ---------------------------------------------------------------------------


def _join(names: Sequence[str]) -> str:
    return ", ".join(names)


def _costs_unknown(operators: Sequence[str]) -> str:
    return (
        f"values are lower bounds, because these operators have no cost formula: {_join(operators)}"
    )


def _kernels_not_modeled(operators: Sequence[str]) -> str:
    return f"the time of {_join(operators)} is a guess, because these kernels are not modeled"


def _unverified_values(device: str, values: Sequence[str]) -> str:
    return f"these values of {device} are unverified: {_join(values)}"


def _rate_substituted(device: str, format: str, source: str, divisor: int) -> str:  # noqa: A002 - the name of a value
    rate = source if divisor == 1 else f"1/{divisor} of {source}"
    return f"no {format} rate is known for {device}, so that of {rate} is used"


def _device_too_small(device: str, needed: int, available: int) -> str:
    size = f"it needs {units.memory(needed)} of {units.memory(available)}"
    return f"the pass does not fit {device}: {size}, and times are as if it did"


def _fabric(
    per_machine: int, is_linked: bool, network: float, link_share: float, network_share: float
) -> str:
    links = "links" if is_linked else "PCIe"
    machine = f"each machine has {per_machine} devices, joined by {links}"
    network_rate = f"{network / 1e9:g} GB/s of network per device"
    reached = f"{units.share(link_share)} of links and {units.share(network_share)} of networks"
    return f"{machine}, and {network_rate}; collectives reach {reached}"


def _collectives_hidden(share: float) -> str:
    return f"collectives overlap with computation for {units.share(share)} of their time"


_ESTIMATES: dict[str, Any] = {
    "output-dropped": (
        "the model's output is freed when the loss is computed (holds_output=True keeps it)"
    ),
    "no-largest-batch": "the largest batch is unknown: at another batch size {error}",
    "no-longest-sequence": "the longest sequence is unknown: at another length {error}",
    "costs-unknown": _costs_unknown,
    "kernels-not-modeled": _kernels_not_modeled,
    "unverified-values": _unverified_values,
    "rate-substituted": _rate_substituted,
    "device-too-small": _device_too_small,
    "routing-of-this-pass": (
        "rows are assumed to reach the experts as in this pass: the bound reads all experts that "
        "get rows in it, and another routing may read fewer"
    ),
    "fabric": _fabric,
    "collectives-hidden": _collectives_hidden,
}


# -- error margins -----------------------------------------------------------------------------

_PASS_NOUNS = {
    "eager": "eager pass",
    "compiled": "compiled pass",
    "training": "training step",
    "compiled training": "compiled training step",
}
_UNCOMPARED = {
    "device": "on this card",
    "convolutions": "without convolutions",
    "format": "in this number format",
}


def _validated(models: int, kind: str, mode: str) -> str:
    which = f"{models:,} image models in mixed precision, mostly {kind}"
    return f"validated: four of five measured times of {which}, lie within it ({_PASS_NOUNS[mode]}, this card)"


def _not_validated(mode: str, missing: str) -> str:
    what = f"{_PASS_NOUNS[mode]} {_UNCOMPARED[missing]}"
    return f"not validated: no {what} was compared with a measured one"


def _launches(launched: float, launch_margin: float, kernel_margin: float, kernels: Any) -> str:
    launch = f"launches take {100 * launched:.0f} % of the time (± {100 * launch_margin:.0f} %)"
    note = from_plain(Note, kernels)
    why = str(note) if note.code != "validated" else "as measured"
    return f"not validated: {launch}, kernels are ± {100 * kernel_margin:.0f} % ({why})"


_MARGINS: dict[str, Any] = {
    "validated": _validated,
    "not-validated": _not_validated,
    "device-kind-not-validated": (
        "not validated: no time on a device of this kind was compared with a measured one"
    ),
    "launches-not-validated": _launches,
}


# -- suggestions -------------------------------------------------------------------------------


def _larger_batch(batch_size: int, time_of: int) -> str:
    return f"batch_size={batch_size}; the time is that of {time_of}"


def _smaller_batch(batch_size: int, accumulate: bool) -> str:
    return f"batch_size={batch_size}{', gradients accumulated' if accumulate else ''}"


def _checkpoint(modules: Sequence[str]) -> str:
    named = modules[0] if len(modules) == 1 else f"{modules[0]} … {modules[-1]}"
    return f"torch.utils.checkpoint for {named}"


def _join_changes(changes: Sequence[str]) -> str:
    return _join(changes)


def _saves_nothing(change: str, saves: float) -> str:
    percent = int(-100 * saves)
    if percent == 0:
        return f"{change}: no difference"
    return f"{change}: {abs(percent)} % {'more' if percent > 0 else 'less'}"


def _no_estimate(changes: Sequence[Mapping[str, Any]], error: str) -> str:
    names = []
    for each in changes:
        variant = from_plain(Note | None, each["variant"])
        names.append(each["change"] if variant is None else str(variant))
    return f"{_join(names)}: {error}"


_SUGGESTIONS: dict[str, Any] = {
    # what to write
    "compile": "torch.compile(model)",
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "channels-last": "model and images .to(memory_format=torch.channels_last)",
    "larger-batch": _larger_batch,
    "smaller-batch": _smaller_batch,
    "checkpoint": _checkpoint,
    "autocast": "torch.autocast(x.device.type, torch.{dtype})",
    "convert": "model and inputs .to(torch.{dtype})",
    "fused-optimizer": "fused=True",
    "combine": _join_changes,
    # what does not help
    "saves-nothing": _saves_nothing,
    "no-estimate": _no_estimate,
}


# -- memory of processes -----------------------------------------------------------------------

_PROCESSES: dict[str, Any] = {
    "nvml-withholds-size": "NVML does not report how much the process holds",
    "nvml-no-gpu": "NVML finds no GPU",
    "nvml-unlisted": "no GPU lists this process, as happens in containers",
    "nvml-foreign-numbers": (
        "the GPUs list processes by numbers of another container or of the host"
    ),
    "nvml-reports-too-little": (
        "NVML attributes less to this process than torch's allocator has reserved"
    ),
    "nvml-failed": "{part} does not answer ({error})",
    "mps-client": (
        "this process is a client of MPS, whose memory NVML attributes to the MPS server"
    ),
    "process-outside-container": (
        "process {pid} is assumed to be this one: it is the only process on a GPU that is not of "
        "this container"
    ),
}


# -- plans -------------------------------------------------------------------------------------


def _ddp_not_counted(sent: int) -> str:
    size = units.memory(sent)
    return f"what DDP sends is not counted: {size} per rank to reduce gradients, in buckets of as much memory"


_PLANS: dict[str, Any] = {
    "mesh-refused": "{error}",
    "offloaded-counted": (
        "parts that FSDP offloads to the host are counted as memory of the device all the same"
    ),
    "no-collective": (
        "no collective runs along {dimension} in a training step, "
        "so gradients are not reduced there"
    ),
    "ddp-not-counted": _ddp_not_counted,
    "stage-sends-overlap": "sending to the next stage overlaps with computation",
    "fsdp-per-microbatch": (
        "FSDP in a stage gathers and reduces for each microbatch as it does for a single one"
    ),
    "stage-inputs-not-counted": (
        "memory in which torch's stages keep all they receive, the inputs of all microbatches, "
        "is not counted"
    ),
}


# -- generation --------------------------------------------------------------------------------


def _no_room(device: str, batch_size: int, tokens: int) -> str:
    sequences = f"{batch_size:,} sequences" if batch_size > 1 else "a sequence"
    return f"the memory of {device} is too small for {sequences} of {tokens:,} tokens"


_GENERATION: dict[str, Any] = {
    "graphed-serving": (
        "the model is compiled and runs in a CUDA graph, its cache is appended to in place, "
        "and tokens are sampled on the device"
    ),
    "host-serving": (
        "kernels are called one by one, the cache is appended to in place, "
        "and tokens are sampled on the device"
    ),
    "eager-serving": ("kernels are launched one by one, and the cache is copied for each token"),
    "equal-sequences": "all sequences have the same length, and begin and end together",
    "prompt-in-chunks": "the prompt is processed in chunks, whose memory is not counted",
    "reach-limited": "no more than {tokens:,} tokens are considered, since a longer pass failed",
    "cache-grows": "beyond {tokens:,} tokens, the cache is assumed to keep growing as it does there",
    "cache-ends": "beyond {tokens:,} tokens, the cache is assumed to be no larger",
    "no-room": _no_room,
}


# -- budgets -----------------------------------------------------------------------------------


def _step_needs_timings(limit: float, basis: str, device: str) -> str:
    at_most = f"at most {units.duration(limit)}{basis and f' {basis}'} on {device}"
    how = "--timings (in pytest, --torchscan-timings)"
    return f"the time of a step, {at_most}, is not checked without {how}"


def _below_baseline(metrics: Sequence[str]) -> str:
    return f"less than the baseline: {_join(metrics)}; record it anew to keep it so (--update)"


_BUDGETS: dict[str, Any] = {
    "step-needs-timings": _step_needs_timings,
    "step-on-other-device": (
        "the time of a step is not checked: its limit is for {limit_device}, and this is {device}"
    ),
    "step-needs-target": (
        "the time of a step is only checked with a target: model_budget(name={name!r})"
    ),
    "baseline-recorded": "baseline recorded in {path}",
    "below-baseline": _below_baseline,
}


# -- tables ------------------------------------------------------------------------------------


def _table_inputs(inputs: str | None, mode: str) -> str:
    return f"inputs: {inputs or 'as each model takes them'}, {mode} mode"


def _table_memory(training: bool) -> str:
    return f"memory: the most bytes at one time in {_name_step(training)}"


def _table_latency(training: bool, device: str, precision: str | None) -> str:
    how = precision or "as the model is"
    return f"latency: of {_name_step(training)}, estimated for {device}, {how}, from its data sheet"


def _name_step(training: bool) -> str:
    return "a training step" if training else "inference"


_TABLES: dict[str, Any] = {
    "table-inputs": _table_inputs,
    "table-costs": (
        "counts are of the forward pass: one MAC is one multiply-add, and FLOPs are all arithmetic"
    ),
    "table-memory": _table_memory,
    "table-fields": (
        "RF: the most that a unit sees through windows alone; "
        "global: the output sees the whole input"
    ),
    "table-latency": _table_latency,
    "table-versions": "counted by torchscan {torchscan} with torch {torch}",
}


# -- info dicts --------------------------------------------------------------------------------


def _memory_estimate(peak_bytes: int) -> str:
    return f"memory is estimated: {units.memory(peak_bytes)} at most"


def _time_estimate(
    device: str, precision: str | None, compiled: bool, seconds: float, margin: float
) -> str:
    question = [device, *([precision] if precision else []), *(["compiled"] if compiled else [])]
    total = f"{units.duration(seconds)} ± {100 * margin:.0f} %"
    return f"times are estimated for {_join(question)}: {total} in total"


_INFO: dict[str, Any] = {
    "memory-estimate": _memory_estimate,
    "time-estimate": _time_estimate,
}

for _texts in (
    _REASONS,
    _PASS,
    _WEIGHTS,
    _ESTIMATES,
    _MARGINS,
    _SUGGESTIONS,
    _PROCESSES,
    _PLANS,
    _GENERATION,
    _BUDGETS,
    _TABLES,
    _INFO,
):
    register_texts(_texts)
