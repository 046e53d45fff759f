"""A model as one process of a mesh has it: without data, and sharded by its user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchscan.errors import Argument, Give, InputError, RecordError, Text, TorchscanError
from torchscan.recording.attention_heads import heads_of, repeat_heads
from torchscan.recording.models_without_data import (
    ASKING_FOR_DATA,
    ON_NO_DEVICE,
    build_without_data,
    copy_without_data,
    first_line,
)
from torchscan.recording.training.float8_all_gather import gather_in_8_bits
from torchscan.torch_versions import (
    is_divided_unevenly,
    is_sharded_by_fsdp,
    is_sharded_type,
    is_wrapped_by_ddp,
    sum_up_in_python,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: shards a model on torch's DeviceMesh; its name is missing where signatures are shown
Apply = Callable[[nn.Module, Any], object]

#: parameters that are named in a message
_NAMED = 3


def sharded(
    build: Callable[[], nn.Module] | nn.Module,
    apply: Apply,
    mesh: DeviceMesh,
    *,
    training: bool,
    dtype: torch.dtype | None = None,
    change: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Return the model of this rank; one that exists is copied, in another type if one is given.

    A ``change`` of the copy comes before ``apply``: layers are changed, then sharded.
    """
    if isinstance(build, nn.Module):
        _refuse_lazy(build)
        model = copy_without_data(build, dtype)
    else:
        model = build_without_data(build)
        _refuse_lazy(model)
    if change is not None:
        change(model)
    before = _shapes(model)
    returned = _apply_to(model, apply, mesh)
    if returned is not None and not isinstance(returned, nn.Module):
        raise InputError(
            f"apply(model, mesh) returned a {type(returned).__name__}: return a model, or nothing"
        )
    # fully_shard(part) returns a part of the model.
    is_part = any(returned is each for each in model.modules())
    if isinstance(returned, nn.Module) and not is_part:
        model = returned
    gather_in_8_bits(model)
    if training:
        _require_summed(model, mesh, is_as_before=_shapes(model) == before)
        _let_ddp_talk(model)
    return model


def _apply_to(model: nn.Module, apply: Apply, mesh: DeviceMesh) -> object:
    """Return what a user's function returns, or raise an error that says that it failed."""
    try:
        return apply(model, mesh)
    except TorchscanError:
        raise
    except Exception as error:
        line = first_line(error)
        is_about_devices = "CUDA" in line.upper() or "device_ids" in line
        advice = ON_NO_DEVICE if is_about_devices else ""
        raise InputError(f"apply(model, mesh) failed: {line}{advice}") from error


def by_its_own_plan(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the model in tensor parallelism along ``tp``, by its own plan for transformers."""
    brought: Any = model
    if "tp" not in (mesh.mesh_dim_names or ()):
        return model
    heads = heads_of(model, mesh["tp"].size())
    plan, expand = getattr(model, "tp_plan", None), getattr(model, "_expand_parallel_plan", None)
    if not plan or expand is None:
        raise InputError(
            f"{type(model).__name__} has no plan for tensor parallelism that this version of "
            "transformers follows: give ",
            Give("apply"),
            ", a function of the model and the mesh that shards it",
        )
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    styles = expand(dict(plan))
    repeat_heads(model, heads, styles)
    tied = _tied_parameters(model)
    # a parameter that two modules share is divided once, and shared again afterwards
    styles = {name: style for name, style in styles.items() if name not in tied}
    made: nn.Module = apply_tensor_parallelism(brought, mesh["tp"], styles)
    for alias, name in tied.items():
        path, _, attribute = alias.rpartition(".")
        made.get_submodule(path)._parameters[attribute] = made.get_parameter(name)
    return made


def _tied_parameters(model: nn.Module) -> dict[str, str]:
    """Return the further names of parameters that several modules share, with their first names."""
    names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if first != name:
            tied[name] = first
    return tied


def _let_ddp_talk(model: nn.Module) -> None:
    if not is_wrapped_by_ddp(model):
        return
    try:
        sum_up_in_python(model)
    except RuntimeError as error:
        raise InputError(
            "apply registered a communication hook of DDP, which cannot be followed: leave it out"
        ) from error


def _refuse_lazy(model: nn.Module) -> None:
    """Raise if a parameter gets its shape from a first pass, for which sharding is too early."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, tensor in tensors if nn.parameter.is_lazy(tensor)]
    if lazy:
        raise InputError(
            f"{lazy[0]} is lazy, and a model is sharded before its first pass: "
            "give a model that was called once, or layers with their sizes"
        )


def _shapes(model: nn.Module) -> list[torch.Size]:
    return [each.shape for each in model.parameters()]


def _require_summed(model: nn.Module, mesh: DeviceMesh, *, is_as_before: bool) -> None:
    """Raise an InputError if gradients are not reduced in a training step on the mesh."""
    parameters = dict(model.named_parameters())
    whole = {name: each for name, each in parameters.items() if not is_sharded_type(type(each))}
    left = [name for name, each in whole.items() if each.requires_grad]
    is_alone = len(whole) == len(parameters)
    if is_as_before and is_alone and mesh.size() > 1 and not is_wrapped_by_ddp(model):
        raise InputError(
            "apply did not shard the model, so each rank trains alone: call fully_shard(model) in "
            "it, for example"
        )
    if left and is_sharded_by_fsdp(model):
        raise InputError(
            f"{len(left):,} of {len(parameters):,} parameters ({', '.join(left[:_NAMED])}, …) are "
            "not sharded, so their gradients are not reduced: call fully_shard on the model too, "
            "after its layers"
        )


#: what torch says of attention whose sequences are in parts
_CONTEXT_PARALLEL = ("_scaled_dot_product", "does not have a sharding strategy")
_NEEDS_CUDA: Text = (
    "attention over sharded heads or sequences (context parallelism) needs a GPU, because torch "
    "has it for CUDA kernels only: give ",
    Give("device", "NVIDIA H200"),
    ", for example",
)


def failed_in_parts(error: RecordError, model: nn.Module, rank: int) -> InputError:
    """Return the error for a sharded model that cannot run."""
    line = error.problem
    if isinstance(error.__cause__, InputError):  # it says already what to give
        return InputError(*error.__cause__.parts)
    cause = f"{type(error.__cause__).__name__}: {error.__cause__}"
    if any(name in cause for name in ASKING_FOR_DATA):
        return InputError(
            f"forward() reads a value (by .item(), for example), and a plan has none: {line}"
        )
    if all(name in cause for name in _CONTEXT_PARALLEL):
        return InputError(_NEEDS_CUDA, f": {line}")
    uneven = [
        f"{name} {list(each.shape)}"
        for name, each in model.named_parameters()
        if is_divided_unevenly(each)
    ]
    odd = ""
    if uneven:
        odd = f"not evenly divided: {', '.join(uneven[:_NAMED])}; "
    return InputError(
        f"rank {rank} cannot run its part of the model: {line}",
        advice=(
            f"{odd}the model without ",
            Argument("apply"),
            "; if that runs, have forward() use the sizes of one rank (heads, for example), and "
            "shard into numbers that divide them",
        ),
    )
