"""``parallel.plan``: memory, computation and communication of ranks, simulated in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

from torch import Tensor, nn

from torchscan.analyses.plan_result import Plan
from torchscan.analyses.roofline import Fabric, require_float8
from torchscan.errors import InputError
from torchscan.hardware.device_specs import can_estimate_for, device_named
from torchscan.precisions import Precision, supported_precision
from torchscan.question import asking
from torchscan.ranks.rank_recording import RankQuestion, plan_of, planned
from torchscan.ranks.sharded_options import require_divided_states, require_divisible
from torchscan.ranks.sharding_kinds import Sharding, optimizer_for, sharding_plan
from torchscan.recording.arguments import RecipeArguments
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.recording.pretended_group import size_of
from torchscan.recording.sharding import Apply
from torchscan.recording.training.optimizers import OptimizerChoice
from torchscan.recording.training.recipe import recipe_for
from torchscan.terminal import progress as told

#: formats of autocast
_AUTOCAST: tuple[Precision, ...] = ("bf16-mixed", "fp16-mixed")

#: one rank, several ranks, or the first, the middle and the last one
Ranks = int | Sequence[int] | Literal["ends"]


@asking
def plan(
    module: Callable[[], nn.Module] | nn.Module,
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    mesh: Mapping[str, int],
    apply: Apply | None = None,
    sharding: Sharding | None = None,
    sequence_parallel: bool = False,
    async_tp: bool = False,
    ranks: Ranks = 0,
    device: str | None = None,
    per_machine: int = 8,
    network_gbs: float = 50.0,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    training: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    loop_iterations: int | None = None,
    optimizer: OptimizerChoice | None = None,
    accumulate: bool = False,
    holds_output: bool = False,
    precision: Precision | None = None,
    progress: bool = True,
    **recipe: Unpack[RecipeArguments],
) -> Plan:
    """Plan a sharded model: memory, computation and communication of each rank.

    The process group is simulated in this process and removed afterwards. Tensors have no data.
    ``apply`` shards it with your training code: ``fully_shard``, ``parallelize_module`` or
    ``distribute_tensor``. Without ``apply``, a language model of transformers is sharded by the
    names of the mesh dimensions.

    Args:
        module: the model, usually on the meta device; it is left unchanged. Or a function that
            builds it, ``lambda: Net()``, which is called once for each rank, without data.
        input_shape: the shape of one sample of one rank, as for :func:`summary`.
        dtype: the type of inputs made from ``input_shape``.
        mesh: the size of each dimension by its name: ``{"dp": 128, "tp": 8}``. Neighbors in the
            last dimension are in one machine.
        apply: the function that shards the model, ``apply(model, mesh)`` with torch's
            ``DeviceMesh``, in place or by returning another model. By default, layers are sharded
            along the mesh dimensions "replicate", "dp", "cp", "ep" and "tp".
        sharding: the kind of sharding along "dp" and "cp" without ``apply``: "fsdp2", "fsdp1",
            "zero1" or "zero2".
        sequence_parallel: divide activations between matrix products along "tp" by sequence.
        async_tp: overlap collectives of ``sequence_parallel`` with matrix products, as torch's
            compiler does.
        ranks: the ranks to plan: a number, several numbers, or "ends" for the first, the middle and
            the last. Usually all ranks do the same. If parameters cannot be divided evenly, the
            first rank holds the most.
        device: the GPU of each rank, for times and for whether the rank fits; ``torchscan devices``
            lists all known GPUs.
        per_machine: the number of devices in a machine.
        network_gbs: the network bandwidth of each device, in one direction, in 10^9 bytes per
            second.
        args: the model's positional arguments on one rank, instead of ``input_shape``.
        kwargs: the model's keyword arguments.
        batch_size: samples of one rank.
        training: a training step instead of an inference.
        loss: a function of the model's output; by default, the sum of all outputs.
        loop_iterations: the number of iterations of each ``torch.while_loop`` whose end depends on
            data.
        optimizer: the name of a class in ``torch.optim``, the class, or a function that makes an
            optimizer from a list of parameters.
        accumulate: add this batch's gradients to those of an earlier batch.
        holds_output: keep the model's output until the end of the step, although a ``loss`` is
            computed from it.
        precision: autocast: "bf16-mixed" or "fp16-mixed". None: the model as it is; for mixed
            precision of FSDP, give a ``MixedPrecisionPolicy`` in ``apply``.
        progress: show what takes more than a second, in a terminal or a notebook.
    """
    chosen_optimizer = optimizer_for(sharding, optimizer)
    autocast = supported_precision(precision, _AUTOCAST, ", or convert the model")
    full_recipe = recipe_for(training, recipe)
    asked = RankQuestion(
        input_shape=input_shape,
        dtype=dtype,
        device=device,
        args=args,
        kwargs=kwargs,
        batch_size=batch_size,
        training=training,
        loss=loss,
        loop_iterations=loop_iterations,
        optimizer=chosen_optimizer,
        accumulate=accumulate,
        holds_output=holds_output,
        precision=autocast,
        recipe=full_recipe,
    )
    if apply is None:
        require_divisible(mesh, full_recipe)
        if sharding == "zero1":
            require_divided_states(optimizer, full_recipe)
    apply = sharding_plan(
        apply,
        sharding=sharding,
        sequence_parallel=sequence_parallel,
        async_tp=async_tp,
        compiled=full_recipe.compiled,
        offloads="parameters" in full_recipe.offloaded,
    )
    fabric = _fabric_of(device, per_machine, network_gbs, overlaps_products=async_tp)
    if fabric is not None:
        require_float8(fabric.device, full_recipe.float8)
    chosen = _check_ranks(ranks, size_of(mesh))
    with told(f"torchscan: one of {size_of(mesh):,} ranks", is_shown=progress):
        plans = [planned(module, mesh, apply, rank, asked, fabric) for rank in chosen]
    return plan_of(mesh, asked, plans)


def _fabric_of(
    device: str | None, per_machine: int, network_gbs: float, *, overlaps_products: bool
) -> Fabric | None:
    """Return the links between GPUs, or None if there is no GPU to estimate times for."""
    if not can_estimate_for(device):
        return None
    return Fabric(
        device=device_named(device),
        per_machine=per_machine,
        network=1e9 * network_gbs,
        overlaps_products=overlaps_products,
    )


def _check_ranks(ranks: object, size: int) -> list[int]:
    """Return the ranks to plan, each once, or raise an error if there are none or not these."""
    chosen: Any = [ranks]
    if ranks == "ends":
        chosen = [0, size // 2, size - 1]
    elif isinstance(ranks, list | tuple | range):
        chosen = ranks
    are_ranks = all(type(each) is int and 0 <= each < size for each in chosen)
    if not chosen or not are_ranks:
        raise InputError.of_value("ranks", ranks, f"give ranks from 0 to {size - 1}, or 'ends'")
    return list(dict.fromkeys(chosen))
