"""Sentences of notes about memory snapshots."""

from __future__ import annotations

from torchscan.report.sentence_formats import add_sentence

add_sentence(
    "snapshot-fragmented",
    "expandable segments, because {free:memory} are free in {num:,} blocks, but the largest has "
    "{largest:memory} of the {request:memory} requested: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
add_sentence(
    "snapshot-fragmented-finely",
    "perhaps expandable segments, because {free:memory} are free in {num:,} blocks, the largest of "
    "{largest:memory}, but they have too few complete pages for {request:memory}: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
add_sentence(
    "snapshot-free",
    "expandable segments if a later request fails, because {saves:memory} are free in {num:,} "
    "blocks, the largest of {largest:memory}: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
add_sentence(
    "snapshot-private-pools",
    "one memory pool for all CUDA graphs (give it to each torch.cuda.graph), because "
    "{saves:memory} are free in private pools, which nothing else can use",
)
add_sentence(
    "snapshot-other-streams",
    "allocating on fewer streams, because {saves:memory} are free in blocks of other streams, "
    "which stream {stream} cannot use",
)
add_sentence(
    "snapshot-process-limit",
    "a higher memory limit of the process (set_per_process_memory_fraction): {saves:memory} of the "
    "device were free when the request of {request:memory} failed",
)
add_sentence(
    "snapshot-not-torch",
    "less memory outside of torch's allocator: other processes, NCCL and the CUDA context hold "
    "{saves:memory} of the device",
)
add_sentence(
    "snapshot-leak",
    "freeing tensors after each step: {blocks:,} blocks ({saves:memory}) of {place:code} are kept "
    "from {steps} earlier steps, for example in a list of losses (loss.item() keeps no graph)",
)
add_sentence(
    "snapshot-activations",
    "checkpointing (torch.utils.checkpoint), or smaller batches with gradient accumulation: "
    "activations{logits:beside_logits} hold {size:memory} ({share:share})",
)
add_sentence(
    "snapshot-recomputed",
    "checkpoints around smaller parts of the model, or smaller batches: recomputed activations "
    "hold {size:memory} ({share:share})",
)
add_sentence(
    "snapshot-logits",
    "a fused or chunked cross entropy (Liger): logits and the loss hold {size:memory} "
    "({share:share}){by_kind:counted_as}",
)
add_sentence(
    "snapshot-optimizer",
    "an optimizer with 8-bit states, which saves about {saves:memory}, or sharding over ranks "
    "(ZeRO, FSDP): optimizer states hold {size:memory} ({share:share})",
)
add_sentence(
    "snapshot-parameters",
    "fewer bits for weights, adapters (LoRA), or sharding over ranks (FSDP): parameters hold "
    "{size:memory} ({share:share})",
)
add_sentence(
    "snapshot-held-gradients",
    "zero_grad() with set_to_none=True before the forward pass: gradients of the step before hold "
    "{size:memory} ({share:share})",
)
add_sentence(
    "snapshot-gathered",
    "sharding smaller groups of layers, or resharding after the forward pass: all-gathered "
    "parameters hold {size:memory} ({share:share})",
)
add_sentence(
    "snapshot-no-stacks",
    "no stacks were recorded, so blocks have no places: call "
    "torch.cuda.memory._record_memory_history() before the run",
)
add_sentence(
    "snapshot-no-owner",
    "{size:memory} belong to no known tensor: call torch.cuda.memory._record_memory_history() "
    "before the run to see the code that allocated them",
)
add_sentence(
    "snapshot-unknown", "{size:memory} were allocated before the recording, so they have no stacks"
)
add_sentence(
    "snapshot-backward",
    "{size:memory} of the backward pass may be gradients or temporaries, because its thread has no "
    "Python stack",
)
add_sentence(
    "snapshot-pending", "{size:memory} are freed, but not reusable until another stream is done"
)
add_sentence(
    "snapshot-other-device",
    "another GPU, cuda:{device}, has {size:memory} reserved: give it as the device to see it",
)
add_sentence(
    "snapshot-other-model",
    "no stack has a frame in the code of {model}, so no block is assigned to a layer: give the "
    "model that ran during the recording",
)
add_sentence(
    "snapshot-larger-than-device",
    "torch reserved {size:memory}, more than the {capacity:memory} usable on {device}: give the "
    "device on which the snapshot was recorded",
)
