"""Sentences of notes about recorded passes: how they ran, and what was assumed in them."""

from __future__ import annotations

from torchscan.report.sentence_formats import add_sentence

# -- why a pass ran on shapes alone, or on data ----------------------------------------------------

add_sentence("shapes-suffice", "shapes are enough")
add_sentence("requested", "as requested")
add_sentence("model-sharded", "the model is sharded")
add_sentence("model-on-cuda", "the model is on CUDA")
add_sentence("autocast-active", "autocast is active")
add_sentence("abstract-pass-failed", "the pass on shapes alone failed: {error}")
add_sentence("gradients-in-forward", "the model computes gradients in its forward pass")

# -- the pass --------------------------------------------------------------------------------------

add_sentence(
    "runs-on-data",
    "the pass ran on data, so results hold for this data only: on shapes alone, {error}",
)
add_sentence(
    "gradient-compared",
    "a comparison of a gradient with a number is assumed to be {equal}, because only the gradient "
    "of the loss itself is 1",
)
add_sentence(
    "kernels-for-gpu",
    "there is no GPU here: code that queries GPU properties gets those of {gpu}",
)
add_sentence(
    "costliest-branch",
    "a condition of torch.cond depends on data: its {branch} branch, which has more FLOPs, counts",
)
add_sentence(
    "both-branches",
    "a condition of torch.cond depends on data, and both branches count: one changes a tensor that "
    "the model reads later",
)
add_sentence(
    "given-iterations",
    "the end of a while_loop depends on data: {iterations:,} iterations (given) count",
)
add_sentence(
    "fewest-combinations",
    "a pointwise associative_scan of n rows counts n - 1 combinations, the fewest possible, and in "
    "training their gradients",
)
add_sentence(
    "autocast-ignored",
    "autocast is active on {device} and was ignored: it has no effect on meta tensors",
)
add_sentence(
    "branch-on-pick",
    "a branch at {places:places} reads an index that {operator} picks, "
    "so another index may take another path",
)
add_sentence(
    "balanced-routing",
    "balanced routing is assumed: the picks of {operator} are spread evenly "
    "over the expected number of indices",
)
add_sentence(
    "typical-inputs",
    "generated inputs are assumed to be typical: "
    "the counts depend on values that are read by {reads:reads}",
)
add_sentence(
    "typical-random-numbers",
    "random numbers are assumed to be typical: "
    "the counts depend on values that are read by {reads:reads}",
)
add_sentence(
    "distribution-arguments-valid",
    "parameters and values of distributions are assumed to be in range",
)
add_sentence(
    "rebuilt-buffers",
    "integer buffers are assumed to hold the values of a second model, built from the same config",
)
add_sentence(
    "gradients-not-reduced",
    "gradients are not reduced between ranks: the model inside DDP was recorded, without DDP",
)
add_sentence(
    "gradients-redistributed",
    "gradients whose placement differs from that of their parameters are redistributed once, "
    "before the step",
)
add_sentence(
    "sparse-gradient",
    "the sparse gradient of {parameter} counts as 0 bytes, because its memory is not tracked",
)
add_sentence("adapters-as-in-peft", "adapters run in fp32, with dropout, as in peft")
