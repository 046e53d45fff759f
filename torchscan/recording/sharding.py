"""A model as one process of a mesh has it: without data, and sharded by its user's function."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchscan.errors import Argument, Give, InputError, RecordError, Text, TorchscanError
from torchscan.recording.bookkeeping.inventory import tensors_of
from torchscan.recording.patches import overridden
from torchscan.recording.training.float8_all_gather import gather_in_8_bits
from torchscan.torch_versions import (
    WithoutData,
    is_divided_unevenly,
    is_sharded_by_fsdp,
    is_sharded_type,
    is_wrapped_by_ddp,
    making_fakes,
    sum_up_in_python,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: shards a model on torch's DeviceMesh; its name is missing where signatures are shown
Apply = Callable[[nn.Module, Any], object]

#: what torch raises where a tensor without data is asked for values
_ASKING_FOR_DATA = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "tolist() is not supported for tensor subclasses",
)


#: what training scripts do and a plan does not
_ON_NO_DEVICE = (
    "; a plan has no device and provides the mesh: leave out .cuda(), device_ids and other meshes"
)

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
        model = _without_data(build, dtype)
    else:
        model = _built(build)
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
        line = _line(error)
        is_about_devices = "CUDA" in line.upper() or "device_ids" in line
        advice = _ON_NO_DEVICE if is_about_devices else ""
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


def _line(error: Exception) -> str:
    said = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {said}"


class Heads(NamedTuple):
    """The heads of attention of all processes."""

    queries: int
    keys: int
    #: key-value heads after those that several processes need were repeated
    repeated: int


def heads_of(model: nn.Module, size: int) -> Heads | None:
    """Return the heads of which each process has some, or None if a config has none.

    If there are fewer key-value heads than processes, several of these have the same one.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    queries = getattr(text, "num_attention_heads", None)
    keys = getattr(text, "num_key_value_heads", None)
    if isinstance(queries, int) and queries % size:
        raise _indivisible(queries, "heads", size)
    if not isinstance(keys, int):
        return None
    repeated = size if size % keys == 0 else keys
    if repeated % size:
        raise _indivisible(keys, "key-value heads", size)
    return Heads(queries, keys, repeated) if isinstance(queries, int) else None


def _indivisible(heads: int, label: str, size: int) -> InputError:
    return InputError(
        f"{heads} {label} cannot be divided among tp {size}", ": choose a tp that divides them"
    )


def repeat_heads(model: nn.Module, heads: Heads | None, styles: Mapping[str, str]) -> None:
    """Repeat key-value heads as often as processes need them, as engines do.

    Attention stays as it is where the plan, ``styles`` by path, does not divide keys by heads.
    """
    if heads is None or heads.repeated <= heads.keys:
        return
    for path, each in model.named_modules():
        if isinstance(getattr(each, "kv_b_proj", None), nn.Linear):
            continue  # latent attention has one head for all, which each device computes
        projections: list[Any] = [getattr(each, name, None) for name in ("k_proj", "v_proj")]
        if not all(isinstance(found, nn.Linear) for found in projections):
            if hasattr(each, "num_key_value_groups"):
                raise InputError(
                    f"{path} has no k_proj and v_proj whose {heads.keys} heads can be repeated "
                    f"for tp {heads.repeated}",
                    ": choose a tp that divides them",
                )
            continue
        if styles.get(f"{path}.k_proj") == "colwise":
            _repeat_heads_of(each, projections, heads)


def _repeat_heads_of(attention: Any, projections: list[Any], heads: Heads) -> None:
    """Repeat the key-value heads of one module, whose projections are those of keys and values."""
    times = heads.repeated // heads.keys
    norm = getattr(attention, "k_norm", None)
    width = getattr(getattr(norm, "weight", None), "shape", None)
    if heads.keys > 1 and width == (projections[0].out_features,):
        _repeat_rows(norm, times)
    for projection in projections:
        _repeat_rows(projection, times)
        projection.out_features *= times
    attention.num_key_value_groups = heads.queries // heads.repeated
    if hasattr(attention, "num_key_value_heads"):
        attention.num_key_value_heads = heads.repeated


def _repeat_rows(module: Any, times: int) -> None:
    with torch.no_grad():
        for name, tensor in list(module._parameters.items()):
            if tensor is not None:
                repeated = tensor.repeat(times, *[1] * (tensor.dim() - 1))
                module._parameters[name] = nn.Parameter(repeated, tensor.requires_grad)


def _let_ddp_talk(model: nn.Module) -> None:
    if not is_wrapped_by_ddp(model):
        return
    try:
        sum_up_in_python(model)
    except RuntimeError as error:
        raise InputError(
            "apply registered a communication hook of DDP, which cannot be followed: leave it out"
        ) from error


def _built(build: Callable[[], nn.Module]) -> nn.Module:
    if not callable(build):
        raise InputError(
            Argument("module"),
            f" is a {type(build).__name__}: give the model, or a function that returns it",
        )
    try:
        with making_fakes(), overridden(nn.Module, "_apply", _converting):
            model = build()
    except Exception as error:
        if type(error).__name__ not in _ASKING_FOR_DATA:
            line = _line(error)
            advice = _ON_NO_DEVICE if "CUDA" in line.upper() else ""
            raise InputError(f"module() failed: {line}{advice}") from error
        raise InputError(
            f"module() reads values, and a plan has none ({error}): build the model before, and "
            "give that"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"module() returned a {type(model).__name__}: return the model")
    is_on_meta = any(each.device.type == "meta" for each in tensors_of(model))
    return _without_data(model, None) if is_on_meta else model


def _converting(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return ``nn.Module._apply`` for tensors without data, which torch cannot swap.

    ``model.bfloat16()`` for example replaces them by new ones.
    """
    thread = threading.get_ident()

    def convert(
        module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> nn.Module:
        if threading.get_ident() != thread:
            return apply(module, change, recurse)
        made: dict[int, Tensor] = {}
        for each in module.modules() if recurse else [module]:
            for tensors in (each._parameters, each._buffers):
                tensors |= {
                    name: _changed(tensor, change, made)
                    for name, tensor in tensors.items()
                    if tensor is not None
                }
        return module

    return convert


def _changed(tensor: Tensor, change: Callable[[Tensor], Tensor], made: dict[int, Tensor]) -> Tensor:
    """Return a changed tensor; one that is shared stays shared."""
    if id(tensor) not in made:
        with torch.no_grad():
            changed = change(tensor)
        if isinstance(tensor, nn.Parameter):
            changed = nn.Parameter(changed, tensor.requires_grad)
        made[id(tensor)] = changed
    return made[id(tensor)]


def _refuse_lazy(model: nn.Module) -> None:
    """Raise if a parameter gets its shape from a first pass, for which sharding is too early."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, tensor in tensors if nn.parameter.is_lazy(tensor)]
    if lazy:
        raise InputError(
            f"{lazy[0]} is lazy, and a model is sharded before its first pass: "
            "give a model that was called once, or layers with their sizes"
        )


def _without_data(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Return a copy whose tensors have no data and pretend to be on the CPU.

    Integers keep their values, because the control flow of a pass may depend on them.
    """
    made = WithoutData(making_fakes())
    kept: dict[int, Any] = {}
    for tensor in tensors_of(module):
        if tensor.is_meta or tensor.is_floating_point():
            kept[id(tensor)] = _pretender(tensor, made, dtype)
    try:
        return copy.deepcopy(module, kept)
    except Exception as error:
        raise InputError(
            f"{type(module).__name__} cannot be copied ({error}): give a function that builds it"
        ) from error


def _pretender(tensor: Tensor, made: WithoutData, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or not tensor.is_floating_point():
        dtype = tensor.dtype
    pretender = made.tensor(tensor.shape, tensor.stride(), dtype, torch.device("cpu"))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(pretender, requires_grad=tensor.requires_grad)
    return pretender


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
    if any(name in cause for name in _ASKING_FOR_DATA):
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
