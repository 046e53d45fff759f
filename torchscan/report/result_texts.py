"""The sentences of notes in results: recordings, estimates, plans, generation, budgets, tables.

Each is one main clause without its capital and period, and begins with an ordinary word, so that it
can also stand by itself below a table. ``sentence_formats`` has the formats after colons.
"""

from __future__ import annotations

from functools import partial

from torchscan.notes import register_texts
from torchscan.report.sentence_formats import SentenceFormatter

#: code -> the sentence, with the names of values in braces
TEXTS: dict[str, str] = {}
_FORMATTER = SentenceFormatter()


def add(code: str, text: str) -> None:
    """Register the sentence of a code."""
    TEXTS[code] = text
    register_texts({code: partial(_FORMATTER.format, text)})


# -- why a pass ran on shapes alone, or on data ----------------------------------------------------

add("shapes-suffice", "shapes are enough")
add("requested", "as requested")
add("model-sharded", "the model is sharded")
add("model-on-cuda", "the model is on CUDA")
add("autocast-active", "autocast is active")
add("abstract-pass-failed", "the pass on shapes alone failed: {error}")
add("gradients-in-forward", "the model computes gradients in its forward pass")

# -- the pass --------------------------------------------------------------------------------------

add(
    "runs-on-data",
    "the pass ran on data, so results hold for this data only: on shapes alone, {error}",
)
add(
    "autocast-ignored",
    "autocast is active on {device} and was ignored: it has no effect on meta tensors",
)
add(
    "branch-on-pick",
    "a branch at {places:places} reads an index that {operator} picks, "
    "so another index may take another path",
)
add(
    "balanced-routing",
    "balanced routing is assumed: the picks of {operator} are spread evenly "
    "over the expected number of indices",
)
add(
    "typical-inputs",
    "generated inputs are assumed to be typical: "
    "the counts depend on values that are read by {reads:reads}",
)
add(
    "typical-random-numbers",
    "random numbers are assumed to be typical: "
    "the counts depend on values that are read by {reads:reads}",
)
add(
    "distribution-arguments-valid",
    "parameters and values of distributions are assumed to be in range",
)
add(
    "rebuilt-buffers",
    "integer buffers are assumed to hold the values of a second model, built from the same config",
)
add(
    "gradients-not-reduced",
    "gradients are not reduced between ranks: the model inside DDP was recorded, without DDP",
)
add(
    "gradients-redistributed",
    "gradients whose placement differs from that of their parameters are redistributed once, "
    "before the step",
)
add(
    "sparse-gradient",
    "the sparse gradient of {parameter} counts as 0 bytes, because its memory is not tracked",
)
add("adapters-as-in-peft", "adapters run in fp32, with dropout, as in peft")

# -- weights that cannot be read, which other sentences name ---------------------------------------

add("unreadable-weights", "the weights in {path}, which cannot be read")
add("lazy-module", "the weights of {path:module}, which is lazy and not reached by the pass")
add("frozen-weights", "the weights of {path:module}, which became constants when it was frozen")
add("hidden-weights", "the packed weights of {path:module}, which no module exposes")
add("packed-numbers", "the numbers packed in {path}")

# -- weights ---------------------------------------------------------------------------------------

add("weights-not-counted", "parameters and memory are not counted for {weights:note}")
add(
    "packing-unknown",
    "each element of {path} counts as one parameter ({elements:,} in total), "
    "because how many are packed in it is unknown",
)
add(
    "rank-share",
    "bytes and costs are those of one rank, which holds {held:,} of {params:,} parameters",
)

# -- memory and time -------------------------------------------------------------------------------

add(
    "output-dropped",
    "the model's output is freed when the loss is computed",
)
add("no-largest-batch", "the largest batch is unknown: at another batch size {error}")
add("no-longest-sequence", "the longest sequence is unknown: at another length {error}")
add(
    "costs-unknown",
    "values are lower bounds, because these operators have no cost formula: {operators:list}",
)
add(
    "kernels-not-modeled",
    "the time of {operators:list} is a guess, because these kernels are not modeled",
)
add("unverified-values", "these values of {device} are unverified: {values:list}")
add("rate-substituted", "no {format} rate is known for {device}, so that of {source} is used")
add(
    "double-rate-substituted",
    "no fp64 rate is known for {device}, so 1/{divisor} of the fp32 rate is used",
)
add(
    "device-too-small",
    "the pass does not fit on {device}: it needs {needed:memory} of {available:memory}; "
    "times assume that it fits",
)
add(
    "routing-of-this-pass",
    "the routing of this pass is assumed: the bound includes reading every expert that gets rows, "
    "and another routing may read fewer",
)
add(
    "fabric",
    "each machine has {per_machine} devices, joined by {joined_by}, and {network_gbs:g} GB/s "
    "of network per device; collectives reach {link_share:share} of the link bandwidth and "
    "{network_share:share} of the network bandwidth",
)
add("collectives-hidden", "collectives overlap with computation for {share:share} of their time")

# -- what error margins rest on, after "± 40 %, " --------------------------------------------------

add(
    "validated",
    "validated: four of five measured times of {models:,} image models in mixed precision, "
    "mostly {kind}, lie within this margin ({mode:kind of pass}, this GPU)",
)
add(
    "training-validated",
    "validated: four of five of {steps:,} published training steps of language models in {bits} "
    "bits lie within this margin ({sources} sources, GPUs of this architecture)",
)
add(
    "not-validated",
    "not validated: no measured {mode:kind of pass} {missing:uncompared} to compare with",
)
add(
    "device-kind-not-validated",
    "not validated: no measured time on a device of this kind to compare with",
)
add(
    "launches-not-validated",
    "not validated: launches take {launched:percent} of the time (± {launch_margin:percent}), "
    "kernels are ± {kernel_margin:percent} ({kernels:kernels})",
)

# -- suggestions: what to write, and what does not help --------------------------------------------

add("compile", "torch.compile(model)")
add("tf32", 'torch.set_float32_matmul_precision("high")')
add("channels-last", "model and images .to(memory_format=torch.channels_last)")
add("larger-batch", "batch_size={batch_size}; times are for {time_of} samples")
add("smaller-batch", "batch_size={batch_size}")
add("smaller-batch-accumulated", "batch_size={batch_size}, with gradient accumulation")
add("checkpoint", "torch.utils.checkpoint for {modules:range}")
add("autocast", "torch.autocast(x.device.type, torch.{dtype})")
add("convert", "model and inputs .to(torch.{dtype})")
add("fused-optimizer", "fused=True")
add("combine", "{changes:list}")
add("saves-nothing", "{change}: {saves:difference}")
add("no-estimate", "{changes:changes}: {error}")

# -- GPU memory of processes -----------------------------------------------------------------------

add("nvml-withholds-size", "NVML does not report how much the process holds")
add("nvml-no-gpu", "NVML finds no GPU")
add("nvml-unlisted", "no GPU lists this process, which is common in containers")
add(
    "nvml-foreign-numbers", "the GPUs list processes by the IDs of another container or of the host"
)
add(
    "nvml-reports-too-little",
    "NVML attributes less to this process than torch's allocator has reserved",
)
add("nvml-failed", "{part} does not answer ({error})")
add("mps-client", "this process is a client of MPS, whose memory NVML attributes to the MPS server")
add(
    "process-outside-container",
    "process {pid} is assumed to be this one, because it is the only process on a GPU from "
    "outside this container",
)

# -- plans -----------------------------------------------------------------------------------------

add("mesh-refused", "{error}")
add("mesh-slow", "takes at least {factor:g} times as long as the best")
add(
    "sequences-not-divided",
    "sequence parallelism is not used, because the tensor-parallel plan of {model} does not "
    "support it",
)
add(
    "optimizer-on-host",
    "the optimizer's state of {size:memory} and its update are on the host, and the time of the "
    "update is left out",
)
add(
    "transfers-hidden",
    "copies of {size:memory} between host and device overlap with the forward and backward pass, "
    "and take extra time only if they last longer",
)
add(
    "transfers-not-timed",
    "times of a search leave out copies between host and device; those of a plan have them",
)
add(
    "transfers-unknown",
    "copies of {size:memory} between host and device count without time, because the PCIe "
    "bandwidth of {device} is not known",
)
add(
    "state-in-pages",
    "{size:memory} of optimizer state are paged memory outside of torch's allocator, which the "
    "driver moves to the host if the device is full",
)
add(
    "no-collective",
    "no collective runs along {dimension} in a training step, so gradients are not reduced there",
)
add(
    "ddp-not-counted",
    "the gradient reduction of DDP is not counted: it sends {sent:memory} per rank, "
    "and its buckets take as much memory as the gradients",
)
add("stage-sends-overlap", "sending to the next stage overlaps with computation")
add(
    "fsdp-per-microbatch",
    "FSDP in a stage all-gathers and reduces again for each microbatch",
)
add(
    "stage-inputs-not-counted",
    "the buffers in which torch's stages keep the inputs of all microbatches are not counted",
)

# -- generation ------------------------------------------------------------------------------------

add(
    "graphed-serving",
    "the model is compiled and runs in a CUDA graph, its cache is updated in place, "
    "and tokens are sampled on the device",
)
add(
    "host-serving",
    "kernels are called one by one, the cache is updated in place, "
    "and tokens are sampled on the device",
)
add("eager-serving", "kernels are launched one by one, and the cache is copied for each token")
add(
    "equal-sequences",
    "all sequences have the same length, and begin and end together; in the queue of a steady "
    "load, lengths vary by 10 %",
)
add(
    "engine-attention",
    "attention with sinks, soft caps, position biases, sliding windows, or keys wider than values, "
    "runs as one kernel, which skips keys outside the window",
)
add(
    "latent-attention",
    "generated tokens attend to the latent cache directly: "
    "queries are multiplied with the up-projection of keys, results with that of values",
)
add("prompt-in-chunks", "prompts are processed in passes of up to {tokens:,} tokens")
add(
    "engine-host-time",
    "in each pass, the device waits {seconds:duration} for the host, as set for {engine}",
)
add(
    "engine-sequence-time",
    "for each sequence of a pass, the device waits {seconds:duration} more for the host, "
    "as set for {engine}",
)
add(
    "experts-divided",
    "{devices} devices have different experts, and all wait for the one that gets the most tokens",
)
add(
    "own-attention",
    "attention runs as in the model's code, because an engine's attention fails: {reason}",
)
add("layers-not-divided", "each device has all of these matrices of its layers: {names}")
add(
    "experts-fused",
    "tokens pick experts at random, all equally likely; the router and the sorting of tokens by "
    "expert take one kernel each",
)
add(
    "checkpoint-format",
    "the checkpoint stores weights in {quantization}, which is not applied unless their format is "
    "given",
)
add(
    "prompts-apart",
    "separate GPUs for prompts are never idle, and no request waits for one; the first token "
    "contains the time to send keys and values over the {link}",
)
add("first-token-late", "the first token takes {seconds:duration}, limit {limit:duration}")
add("tokens-slow", "a token takes {seconds:duration}, limit {limit:duration}")
add("model-has-no-room", "the memory of {device} is too small")
add("way-refused", "{reason}")
add(
    "serving-validated",
    "validated: derived from {rows:,} measured times of {models:models} in {engine} "
    "on {family} GPUs",
)
add("reach-limited", "no more than {tokens:,} tokens are considered, because a longer pass failed")
add(
    "cache-grows", "beyond {tokens:,} tokens, the cache is assumed to keep growing at the same rate"
)
add("cache-ends", "beyond {tokens:,} tokens, the cache is assumed to stop growing")
add(
    "no-room", "the memory of {device} is too small for {batch_size:sequences} of {tokens:,} tokens"
)

# -- memory snapshots ------------------------------------------------------------------------------

add(
    "snapshot-fragmented",
    "expandable segments, because {free:memory} are free in {num:,} blocks, but the largest has "
    "{largest:memory} of the {request:memory} requested: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
add(
    "snapshot-fragmented-finely",
    "perhaps expandable segments, because {free:memory} are free in {num:,} blocks, the largest of "
    "{largest:memory}, but they have too few complete pages for {request:memory}: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
add(
    "snapshot-free",
    "expandable segments if a later request fails, because {saves:memory} are free in {num:,} "
    "blocks, the largest of {largest:memory}: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
add(
    "snapshot-private-pools",
    "one memory pool for all CUDA graphs (give it to each torch.cuda.graph), because "
    "{saves:memory} are free in private pools, which nothing else can use",
)
add(
    "snapshot-other-streams",
    "allocating on fewer streams, because {saves:memory} are free in blocks of other streams, "
    "which stream {stream} cannot use",
)
add(
    "snapshot-process-limit",
    "a higher memory limit of the process (set_per_process_memory_fraction): {saves:memory} of the "
    "device were free when the request of {request:memory} failed",
)
add(
    "snapshot-not-torch",
    "less memory outside of torch's allocator: other processes, NCCL and the CUDA context hold "
    "{saves:memory} of the device",
)
add(
    "snapshot-leak",
    "freeing tensors after each step: {blocks:,} blocks ({saves:memory}) of {place:code} are kept "
    "from {steps} earlier steps, for example in a list of losses (loss.item() keeps no graph)",
)
add(
    "snapshot-activations",
    "checkpointing (torch.utils.checkpoint), or smaller batches with gradient accumulation: "
    "activations{logits:beside_logits} hold {size:memory} ({share:share})",
)
add(
    "snapshot-recomputed",
    "checkpoints around smaller parts of the model, or smaller batches: recomputed activations "
    "hold {size:memory} ({share:share})",
)
add(
    "snapshot-logits",
    "a fused or chunked cross entropy (Liger): logits and the loss hold {size:memory} "
    "({share:share}){by_kind:counted_as}",
)
add(
    "snapshot-optimizer",
    "an optimizer with 8-bit states, which saves about {saves:memory}, or sharding over ranks "
    "(ZeRO, FSDP): optimizer states hold {size:memory} ({share:share})",
)
add(
    "snapshot-parameters",
    "fewer bits for weights, adapters (LoRA), or sharding over ranks (FSDP): parameters hold "
    "{size:memory} ({share:share})",
)
add(
    "snapshot-held-gradients",
    "zero_grad() with set_to_none=True before the forward pass: gradients of the step before hold "
    "{size:memory} ({share:share})",
)
add(
    "snapshot-gathered",
    "sharding smaller groups of layers, or resharding after the forward pass: all-gathered "
    "parameters hold {size:memory} ({share:share})",
)
add(
    "snapshot-no-stacks",
    "no stacks were recorded, so blocks have no places: call "
    "torch.cuda.memory._record_memory_history() before the run",
)
add(
    "snapshot-no-owner",
    "{size:memory} belong to no known tensor: call torch.cuda.memory._record_memory_history() "
    "before the run to see the code that allocated them",
)
add("snapshot-unknown", "{size:memory} were allocated before the recording, so they have no stacks")
add(
    "snapshot-backward",
    "{size:memory} of the backward pass may be gradients or temporaries, because its thread has no "
    "Python stack",
)
add("snapshot-pending", "{size:memory} are freed, but not reusable until another stream is done")
add(
    "snapshot-other-device",
    "another GPU, cuda:{device}, has {size:memory} reserved: give it as the device to see it",
)

# -- budgets ---------------------------------------------------------------------------------------

add(
    "step-needs-timings",
    "the time of a step (at most {limit:duration}{is_per_sample:per sample} on {device}) is "
    "only checked with --timings (in pytest, --torchscan-timings)",
)
add(
    "step-on-other-device",
    "the time of a step is not checked: its limit is for {limit_device}, and this is {device}",
)
add(
    "step-needs-target",
    "the time of a step is only checked with a target: model_budget(name={name!r})",
)
add("baseline-recorded", "baseline recorded in {path}")
add(
    "below-baseline",
    "below the baseline: {metrics:list}; `torchscan check --update` lowers it",
)

# -- tables of several models ----------------------------------------------------------------------

add("table-inputs", "inputs: {inputs}, {mode} mode")
add("table-inputs-differ", "inputs: as each model takes them, {mode} mode")
add(
    "table-costs",
    "counts are of the forward pass; a MAC is one multiply-add, and FLOPs include all arithmetic",
)
add("table-memory", "memory: the peak in {training:step}")
add(
    "table-fields",
    "RF: the largest receptive field from windows alone; global: the output sees the entire input",
)
add(
    "table-latency",
    "latency: of {training:step}, {precision:precision}, estimated from the data sheet of {device}",
)
add("table-versions", "counted by torchscan {torchscan} with torch {torch}")

# -- info dicts ------------------------------------------------------------------------------------

add("memory-estimate", "memory is estimated: {peak_bytes:memory} at the peak")
add(
    "time-estimate",
    "times are estimated for {device}{precision:optional}{compiled:compiled}: "
    "{seconds:duration} ± {margin:percent} in total",
)
