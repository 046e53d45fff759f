"""Sentences of notes about plans of sharded models, searches and generation."""

from __future__ import annotations

from torchscan.report.sentence_formats import add_sentence

# -- plans -----------------------------------------------------------------------------------------

add_sentence("mesh-refused", "{error}")
add_sentence("mesh-slow", "takes at least {factor:g} times as long as the best")
add_sentence(
    "sequences-not-divided",
    "sequence parallelism is not used, because the tensor-parallel plan of {model} does not "
    "support it",
)
add_sentence(
    "optimizer-on-host",
    "the optimizer's state of {size:memory} and its update are on the host, and the time of the "
    "update is left out",
)
add_sentence(
    "transfers-hidden",
    "copies of {size:memory} between host and device overlap with the forward and backward pass, "
    "and take extra time only if they last longer",
)
add_sentence(
    "transfers-not-timed",
    "times of a search leave out copies between host and device; those of a plan have them",
)
add_sentence(
    "transfers-unknown",
    "copies of {size:memory} between host and device count without time, because the PCIe "
    "bandwidth of {device} is not known",
)
add_sentence(
    "state-in-pages",
    "{size:memory} of optimizer state are paged memory outside of torch's allocator, which the "
    "driver moves to the host if the device is full",
)
add_sentence(
    "no-collective",
    "no collective runs along {dimension} in a training step, so gradients are not reduced there",
)
add_sentence(
    "ddp-not-counted",
    "the gradient reduction of DDP is not counted: it sends {sent:memory} per rank, "
    "and its buckets take as much memory as the gradients",
)
add_sentence("stage-sends-overlap", "sending to the next stage overlaps with computation")
add_sentence(
    "fsdp-per-microbatch",
    "FSDP in a stage all-gathers and reduces again for each microbatch",
)
add_sentence(
    "stage-inputs-not-counted",
    "the buffers in which torch's stages keep the inputs of all microbatches are not counted",
)

# -- generation ------------------------------------------------------------------------------------

add_sentence(
    "graphed-serving",
    "the model is compiled and runs in a CUDA graph, its cache is updated in place, "
    "and tokens are sampled on the device",
)
add_sentence(
    "host-serving",
    "kernels are called one by one, the cache is updated in place, "
    "and tokens are sampled on the device",
)
add_sentence(
    "eager-serving", "kernels are launched one by one, and the cache is copied for each token"
)
add_sentence(
    "equal-sequences",
    "all sequences have the same length, and begin and end together; in the queue of a steady "
    "load, lengths vary by 10 %",
)
add_sentence(
    "engine-attention",
    "attention with sinks, soft caps, position biases, sliding windows, or keys wider than values, "
    "runs as one kernel, which skips keys outside the window",
)
add_sentence(
    "latent-attention",
    "generated tokens attend to the latent cache directly: "
    "queries are multiplied with the up-projection of keys, results with that of values",
)
add_sentence("prompt-in-chunks", "prompts are processed in passes of up to {tokens:,} tokens")
add_sentence(
    "engine-host-time",
    "in each pass, the device waits {seconds:duration} for the host, as set for {engine}",
)
add_sentence(
    "engine-sequence-time",
    "for each sequence of a pass, the device waits {seconds:duration} more for the host, "
    "as set for {engine}",
)
add_sentence(
    "experts-divided",
    "{devices} devices have different experts, and all wait for the one that gets the most tokens",
)
add_sentence(
    "own-attention",
    "attention runs as in the model's code, because an engine's attention fails: {reason}",
)
add_sentence("layers-not-divided", "each device has all of these matrices of its layers: {names}")
add_sentence(
    "experts-fused",
    "tokens pick experts at random, all equally likely; the router and the sorting of tokens by "
    "expert take one kernel each",
)
add_sentence(
    "checkpoint-format",
    "the checkpoint stores weights in {quantization}, which is not applied unless their format is "
    "given",
)
add_sentence(
    "prompts-apart",
    "separate GPUs for prompts are never idle, and no request waits for one; the first token "
    "contains the time to send keys and values over the {link}",
)
add_sentence("first-token-late", "the first token takes {seconds:duration}, limit {limit:duration}")
add_sentence("tokens-slow", "a token takes {seconds:duration}, limit {limit:duration}")
add_sentence("model-has-no-room", "the memory of {device} is too small")
add_sentence("way-refused", "{reason}")
add_sentence(
    "serving-validated",
    "validated: derived from {rows:,} measured times of {models:models} in {engine} "
    "on {family} GPUs",
)
add_sentence(
    "reach-limited", "no more than {tokens:,} tokens are considered, because a longer pass failed"
)
add_sentence(
    "cache-grows", "beyond {tokens:,} tokens, the cache is assumed to keep growing at the same rate"
)
add_sentence("cache-ends", "beyond {tokens:,} tokens, the cache is assumed to stop growing")
add_sentence(
    "no-room", "the memory of {device} is too small for {batch_size:sequences} of {tokens:,} tokens"
)
