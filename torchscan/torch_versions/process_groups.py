"""Process groups: their ranks, collectives and records, and the reducer of DDP."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def has_process_group() -> bool:
    """Return whether this process is a rank of a group, which sharded tensors need."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return distributed is not None and bool(distributed.is_initialized())


def is_group_pretended() -> bool:
    """Return whether the process group is a fake one, with this process only."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return (
        distributed is not None
        and bool(distributed.is_initialized())
        and distributed.get_backend() == "fake"
    )


def fake_store() -> Any:
    """Return the store of a fake process group, of which only this process exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def place_in_group() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks, or None if it is alone."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or c10d.get_world_size() < 2:
        return None
    return c10d.get_rank(), c10d.get_world_size()


def ranks_by_group() -> dict[str, tuple[int, ...]]:
    """Return the ranks in each group of this process, by torch's names of the groups."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    names = {} if c10d is None else dict(c10d._world.pg_names)
    return {
        str(name): tuple(c10d.get_process_group_ranks(group))
        for group, name in names.items()
        if group is not None
    }


def flight_records() -> list[dict[str, Any]]:
    """Return torch's records of the latest collectives of this rank, with the host's times.

    There may be none.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    found: list[dict[str, Any]] = []
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            with contextlib.suppress(RuntimeError, ValueError):
                found += json.loads(dump()).get("entries", [])
    return found


def has_collectives_on_shapes() -> bool:
    """Return whether torch's collectives run on tensors without data.

    ``torch.distributed`` must be imported. In torch 2.9 a module for tools registers them.
    """
    if not _has_all_gather_on_shapes():
        with contextlib.suppress(ImportError):
            importlib.import_module("torch.distributed._tools.fake_collectives")
    return _has_all_gather_on_shapes()


def _has_all_gather_on_shapes() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::_allgather_base_", "Meta")


def waiting_verbs() -> list[tuple[Any, str]]:
    """Return the place of the function that waits for a collective, if there is one."""
    work = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "Work", None)
    return [] if work is None else [(work, "wait")]


def gather_rows(tensors: Sequence[Tensor], group: Any) -> list[Tensor]:
    """Return the rows of all ranks of several tensors, which travel in one collective."""
    ops: Any = torch.ops._c10d_functional
    given = [each.contiguous() for each in tensors]
    made = ops.all_gather_into_tensor_coalesced(given, group.size(), group.group_name)
    return [ops.wait_tensor(each) for each in made]


def gather_columns(tensor: Tensor, group: Any) -> Tensor:
    """Return a tensor whose last dimension is divided among ranks."""
    ops: Any = torch.ops._c10d_functional
    size = group.size()
    made = ops.all_gather_into_tensor(tensor.contiguous(), size, group.group_name)
    return torch.cat(ops.wait_tensor(made).chunk(size), -1)


def scatter_rows(tensor: Tensor, group: Any) -> Tensor:
    """Return this rank's rows of the sum over all ranks."""
    ops: Any = torch.ops._c10d_functional
    made = ops.reduce_scatter_tensor(tensor.contiguous(), "sum", group.size(), group.group_name)
    found: Tensor = ops.wait_tensor(made)
    return found


def sum_over(tensor: Tensor, group: Any) -> Tensor:
    """Return the sum of a tensor over all ranks."""
    ops: Any = torch.ops._c10d_functional
    found: Tensor = ops.wait_tensor(ops.all_reduce(tensor, "sum", group.group_name))
    return found


def exchange_rows(rows: Tensor, group: Any) -> Tensor:
    """Return rows of all ranks, of which each sends as many to each other one; differentiable."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    size = group.size()
    parts = [rows.shape[0] // size] * size
    parts[-1] += rows.shape[0] % size
    return all_to_all_single_autograd(rows, parts, parts, group)


def is_wrapped_by_ddp(module: nn.Module) -> bool:
    """Return whether DDP reduces the gradients of a module."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def reducing_verbs() -> list[tuple[Any, str]]:
    """Return the place where DDP gets its reducer."""
    return [(sys.modules["torch.distributed"], "Reducer")]


def with_buckets_without_data(kind: Any) -> Callable[..., Any]:
    """Return what makes DDP's reducer, whose buckets have no data where the parameters have none.

    Before its second pass, a reducer fits its buckets to the order of the gradients and broadcasts
    their sizes. Steps do not repeat that, so this one keeps its buckets.
    """

    class _Reducer(kind):  # type: ignore[misc]
        def _rebuild_buckets(self) -> bool:
            return False

    def made(parameters: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        mode = getattr(parameters[0], "fake_mode", None)
        with contextlib.nullcontext() if mode is None else mode:
            return _Reducer(parameters, *args, **kwargs)

    return made


def sum_up_in_python(module: nn.Module) -> None:
    """Have DDP call a function for each bucket.

    Its own code expects a result, which a simulated group does not have.
    """
    import torch.distributed as distributed

    def summed(group: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        distributed.all_reduce(buffer.div_(group.size()), group=group)
        done: Any = torch.futures.Future()
        done.set_result(buffer)
        return done

    summed.__annotations__.clear()  # DDP has them name its own types, or none
    wrapper: Any = module
    wrapper.register_comm_hook(wrapper.process_group, summed)
