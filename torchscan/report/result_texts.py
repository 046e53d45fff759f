"""Sentences of notes in results: counts, estimates, budgets and tables.

Each is one main clause without its capital and period, and begins with an ordinary word, so that it
can also stand by itself below a table. ``sentence_formats`` has the formats after colons.
"""

from __future__ import annotations

from torchscan.report.sentence_formats import add_sentence

# -- weights that cannot be read, which other sentences name ---------------------------------------

add_sentence("unreadable-weights", "the weights in {path}, which cannot be read")
add_sentence(
    "lazy-module", "the weights of {path:module}, which is lazy and not reached by the pass"
)
add_sentence(
    "frozen-weights", "the weights of {path:module}, which became constants when it was frozen"
)
add_sentence("hidden-weights", "the packed weights of {path:module}, which no module exposes")
add_sentence("packed-numbers", "the numbers packed in {path}")

# -- weights ---------------------------------------------------------------------------------------

add_sentence("weights-not-counted", "parameters and memory are not counted for {weights:note}")
add_sentence(
    "packing-unknown",
    "each element of {path} counts as one parameter ({elements:,} in total), "
    "because how many are packed in it is unknown",
)
add_sentence(
    "rank-share",
    "bytes and costs are those of one rank, which holds {held:,} of {params:,} parameters",
)

# -- memory and time -------------------------------------------------------------------------------

add_sentence(
    "output-dropped",
    "the model's output is freed when the loss is computed",
)
add_sentence("no-largest-batch", "the largest batch is unknown: at another batch size {error}")
add_sentence("no-longest-sequence", "the longest sequence is unknown: at another length {error}")
add_sentence(
    "costs-unknown",
    "values are lower bounds, because these operators have no cost formula: {operators:list}",
)
add_sentence(
    "formula-failed",
    "values are lower bounds, because the cost formula of {operator} failed: {error}",
)
add_sentence(
    "formula-bounds",
    "values are lower bounds, because the cost of {operator} depends on values of tensors",
)
add_sentence(
    "formula-unused",
    "the cost formula of {formula} is not used: it may be meant for {meant}",
)
add_sentence(
    "kernels-not-modeled",
    "the time of {operators:list} is a guess, because these kernels are not modeled",
)
add_sentence("unverified-values", "these values of {device} are unverified: {values:list}")
add_sentence(
    "rate-substituted", "no {format} rate is known for {device}, so that of {source} is used"
)
add_sentence(
    "double-rate-substituted",
    "no fp64 rate is known for {device}, so 1/{divisor} of the fp32 rate is used",
)
add_sentence(
    "device-too-small",
    "the pass does not fit on {device}: it needs {needed:memory} of {available:memory}; "
    "times assume that it fits",
)
add_sentence(
    "routing-of-this-pass",
    "the routing of this pass is assumed: the bound includes reading every expert that gets rows, "
    "and another routing may read fewer",
)
add_sentence(
    "fabric",
    "each machine has {per_machine} devices, joined by {joined_by}, and {network_gbs:g} GB/s "
    "of network per device; collectives reach {link_share:share} of the link bandwidth and "
    "{network_share:share} of the network bandwidth",
)
add_sentence(
    "collectives-hidden", "collectives overlap with computation for {share:share} of their time"
)

# -- what error margins rest on, after "± 40 %, " --------------------------------------------------

add_sentence(
    "validated",
    "validated: four of five measured times of {models:,} image models in mixed precision, "
    "mostly {kind}, lie within this margin ({mode:kind of pass}, this GPU)",
)
add_sentence(
    "training-validated",
    "validated: four of five of {steps:,} published training steps of language models in {bits} "
    "bits lie within this margin ({sources} sources, GPUs of this architecture)",
)
add_sentence(
    "not-validated",
    "not validated: no measured {mode:kind of pass} {missing:uncompared} to compare with",
)
add_sentence(
    "device-kind-not-validated",
    "not validated: no measured time on a device of this kind to compare with",
)
add_sentence(
    "launches-not-validated",
    "not validated: launches take {launched:percent} of the time (± {launch_margin:percent}), "
    "kernels are ± {kernel_margin:percent} ({kernels:kernels})",
)

# -- suggestions: what to write, and what does not help --------------------------------------------

add_sentence("compile", "torch.compile(model)")
add_sentence("tf32", 'torch.set_float32_matmul_precision("high")')
add_sentence("channels-last", "model and images .to(memory_format=torch.channels_last)")
add_sentence("larger-batch", "batch_size={batch_size}; times are for {time_of} samples")
add_sentence("smaller-batch", "batch_size={batch_size}")
add_sentence("smaller-batch-accumulated", "batch_size={batch_size}, with gradient accumulation")
add_sentence("checkpoint", "torch.utils.checkpoint for {modules:range}")
add_sentence("autocast", "torch.autocast(x.device.type, torch.{dtype})")
add_sentence("convert", "model and inputs .to(torch.{dtype})")
add_sentence("fused-optimizer", "fused=True")
add_sentence("combine", "{changes:list}")
add_sentence("saves-nothing", "{change}: {saves:difference}")
add_sentence("no-estimate", "{changes:changes}: {error}")

# -- GPU memory of processes -----------------------------------------------------------------------

add_sentence("nvml-withholds-size", "NVML does not report how much the process holds")
add_sentence("nvml-no-gpu", "NVML finds no GPU")
add_sentence("nvml-unlisted", "no GPU lists this process, which is common in containers")
add_sentence(
    "nvml-foreign-numbers", "the GPUs list processes by the IDs of another container or of the host"
)
add_sentence(
    "nvml-reports-too-little",
    "NVML attributes less to this process than torch's allocator has reserved",
)
add_sentence("nvml-failed", "{part} does not answer ({error})")
add_sentence(
    "mps-client", "this process is a client of MPS, whose memory NVML attributes to the MPS server"
)
add_sentence(
    "process-outside-container",
    "process {pid} is assumed to be this one, because it is the only process on a GPU from "
    "outside this container",
)

# -- budgets ---------------------------------------------------------------------------------------

add_sentence(
    "step-needs-timings",
    "the time of a step (at most {limit:duration}{is_per_sample:per sample} on {device}) is "
    "only checked with --timings (in pytest, --torchscan-timings)",
)
add_sentence(
    "step-on-other-device",
    "the time of a step is not checked: its limit is for {limit_device}, and this is {device}",
)
add_sentence(
    "step-needs-target",
    "the time of a step is only checked with a target: model_budget(name={name!r})",
)
add_sentence("baseline-recorded", "wrote {path}")
add_sentence(
    "below-baseline",
    "below the baseline: {metrics:list}; `torchscan check --update` lowers it",
)

# -- tables of several models ----------------------------------------------------------------------

add_sentence("table-inputs", "inputs: {inputs}, {mode} mode")
add_sentence("table-inputs-differ", "inputs: as each model takes them, {mode} mode")
add_sentence(
    "table-costs",
    "counts are of the forward pass; a MAC is one multiply-add, and FLOPs include all arithmetic",
)
add_sentence("table-memory", "memory: the peak in {training:step}")
add_sentence(
    "table-fields",
    "RF: the largest receptive field from windows alone; global: the output sees the entire input",
)
add_sentence(
    "table-latency",
    "latency: of {training:step}, {precision:precision}, estimated from the data sheet of {device}",
)
add_sentence("table-versions", "counted by torchscan {torchscan} with torch {torch}")

# -- info dicts ------------------------------------------------------------------------------------

add_sentence("memory-estimate", "memory is estimated: {peak_bytes:memory} at the peak")
add_sentence(
    "time-estimate",
    "times are estimated for {device}{precision:optional}{compiled:compiled}: "
    "{seconds:duration} ± {margin:percent} in total",
)
