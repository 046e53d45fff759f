"""``plan``: what one process of a mesh holds, computes and sends, worked out in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from torchscan.analyses.collectives import Collective, collectives_of
from torchscan.analyses.module_costs import call_costs
from torchscan.errors import InputError, TorchscanError
from torchscan.ranks.pretending import pretended
from torchscan.recording.example_inputs import DTypes, Shapes
from torchscan.results import Result
from torchscan.scan import Scan
from torchscan.torch_versions import making_fakes
from torchscan.trace.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Result):
    """What one process of a mesh holds, computes and sends."""

    #: the size of each dimension by its name
    mesh: Mapping[str, int]
    rank: int
    #: of the whole model, and those of them that this process holds
    params: int
    local_params: int
    #: of this process alone
    macs: int
    flops: int
    collectives: tuple[Collective, ...]
    trace: Trace

    @property
    def sent_bytes(self) -> int:
        """What this process sends at least."""
        return sum(each.sent_bytes for each in self.collectives)


def plan(
    build: Callable[[], nn.Module],
    input_shape: Shapes | None = None,
    dtype: DTypes | None = None,
    *,
    mesh: Mapping[str, int],
    apply: Callable[[nn.Module, DeviceMesh], object],
    rank: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    training: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
) -> Plan:
    """What one process of many holds, computes and sends, without the others and without data.

    A group of processes is pretended, the model is built without data, and ``apply`` shards it as it would be in training: with
    ``fully_shard``, ``parallelize_module``, ``distribute_tensor``. Afterwards there is no group, as before.

    Args:
        build: makes the model: ``lambda: Net()``. It is called where tensors have no data.
        input_shape: of one sample, as for :func:`summary`; of what this process gets.
        dtype: of the inputs that are made from it.
        mesh: the size of each dimension by its name: ``{"dp": 128, "tp": 8}``.
        apply: shards the model, in place or by returning another: ``apply(model, mesh)``, with torch's ``DeviceMesh``.
        rank: which of the processes.
        kwargs: the model's arguments, in place of ``input_shape``.
        batch_size: samples of this process.
        training: a training step instead of inference.
        loss: of the model's output; by default the sum of all of it.
    """
    with pretended(mesh, rank) as devices:
        model = _sharded(build, apply, devices)
        scan = Scan(
            model,
            input_shape,
            dtype,
            kwargs=kwargs,
            batch_size=batch_size,
            training=training,
            loss=loss,
        )
        return _plan(scan, mesh, rank)


def _sharded(build: Callable[[], nn.Module], apply: Callable[[nn.Module, DeviceMesh], object], mesh: DeviceMesh) -> nn.Module:
    with making_fakes():
        model = build()
    if not isinstance(model, nn.Module):
        raise InputError(f"build() returned a {type(model).__name__}: it should return the model")
    try:
        made = apply(model, mesh)
    except TorchscanError:
        raise
    except Exception as error:
        said = str(error).partition("\n")[0]
        raise InputError(f"apply(model, mesh) failed: {type(error).__name__}: {said}") from error
    return made if isinstance(made, nn.Module) else model


def _plan(scan: Scan, mesh: Mapping[str, int], rank: int) -> Plan:
    trace = scan.steps
    costs = call_costs(trace)
    held = [each for at, each in enumerate(trace.parameters) if each.identity == at and not each.is_buffer]
    return Plan(
        mesh=dict(mesh),
        rank=rank,
        params=sum(each.numel for each in held),
        local_params=sum(each.local_numel for each in held),
        macs=sum(each.macs for each in costs),
        flops=sum(each.flops for each in costs),
        collectives=collectives_of(trace),
        trace=trace,
    )
