"""Groups of processes among the arguments of an operator: as objects, or by their names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torchscan.torch_versions import OpOverload
from torchscan.trace.events import GroupSpec, names_of_arguments

#: of the operators by which processes talk to each other
NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
_NAMED = ("process_group", "group_name")


def with_groups(op: OpOverload, args: Sequence[Any], described: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the described arguments with the specs of groups in them."""
    results = []
    for name, given, each in zip(names_of_arguments(op), args, described, strict=False):
        results.append(_group(given) if name in _NAMED else each)
    return tuple(results)


def _group(given: Any) -> GroupSpec | Any:
    distributed = sys.modules["torch.distributed.distributed_c10d"]  # an operator of its is running
    try:
        if isinstance(given, str):
            group = distributed._resolve_process_group(given)
        else:
            group = distributed.ProcessGroup.unbox(given)
        ranks = tuple(distributed.get_process_group_ranks(group))
        return GroupSpec(group.group_name, group.group_desc, ranks)
    except (RuntimeError, KeyError, TypeError):
        return given if isinstance(given, str) else None
