"""Options of a training step that a kind of sharding does not take: refused before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchscan.errors import Argument, Give, InputError
from torchscan.recording.training.optimizers import OptimizerChoice, class_of
from torchscan.recording.training.recipe import Recipe


def require_divisible(mesh: Mapping[str, int], recipe: Recipe) -> None:
    """Raise an InputError if the plans of transformers cannot divide a step with these options."""
    if mesh.get("tp", 1) == 1:
        return
    if mesh.get("ep", 1) > 1:
        raise InputError(
            Argument("mesh"),
            " has ep and tp, which are not divided together: leave out one of them, or give ",
            Give("apply"),
        )
    require_whole_adapters(recipe)
    if recipe.fused:
        raise InputError(
            Argument("fused_kernels"),
            " have no plan for tensor parallelism: leave them out, or give ",
            Give("apply"),
        )
    if recipe.cross_entropy is not None:
        raise InputError(
            Argument("cross_entropy"),
            f" is {recipe.cross_entropy!r}, which tensor parallelism does not divide: leave it out",
        )
    if "activations" in recipe.offloaded:
        raise InputError(
            Argument("offload"),
            " has 'activations', which cannot be copied if tensor parallelism divides them: leave "
            "it out",
        )


def require_whole_adapters(recipe: Recipe) -> None:
    """Raise an InputError if tensor parallelism would have to divide adapters."""
    if recipe.lora is not None:
        raise InputError(
            "adapters have no plan for tensor parallelism: shard them with ", Give("apply")
        )


def require_divided_states(optimizer: OptimizerChoice | None, recipe: Recipe) -> None:
    """Raise an InputError if ZeRO-1 cannot divide the states of this optimizer."""
    given: dict[str, Any] = {
        "optimizer_in_backward": recipe.optimizer_in_backward,
        "offload": "optimizer" in recipe.offloaded,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise InputError(
            Argument("sharding"),
            " is 'zero1', whose optimizer updates the parameters of a rank at once on its GPU: "
            "leave out ",
            Argument(name),
        )
    if optimizer is not None:
        class_of(optimizer)
