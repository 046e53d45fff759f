"""Training in two ranks is the same under observers, and each rank counts its own steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import torchscan
from tests.observing.loops import batch, mlp, validate
from tests.opening import watched_run
from tests.ranks.processes import in_processes
from tests.watching.watching import watch

pytestmark = pytest.mark.slow  # processes of their own, which import torch

_NUM_STEPS = 4


#: what observes a training; the first is compared with the others
_OBSERVERS: tuple[tuple[str, ...], ...] = ((), ("inspect",), ("watch",), ("inspect", "watch"))


class RankOutcome(NamedTuple):
    """What a rank has computed, and what ``inspect`` counts in it."""

    losses: list[float]
    tensors: Mapping[str, Tensor]
    num_inspected: int
    num_hooks: int


def train_with_each(rank: int, folder: Path) -> list[RankOutcome]:
    """Train anew with each of the observers, in one group: its start takes longer than all steps."""
    return [train(rank, folder / "-".join(each), each) for each in _OBSERVERS]


def train(rank: int, run_folder: Path, observers: tuple[str, ...]) -> RankOutcome:
    """Train a model of which each rank has a copy, with a validation after every second step."""
    torch.manual_seed(0)
    model = mlp(dropout=0.1)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses, num_inspected = [], 0
    with ExitStack() as stack:
        run = None
        if "inspect" in observers:
            run = stack.enter_context(torchscan.inspect(model))
        if "watch" in observers:
            stack.enter_context(watch(model, run_folder, every=1))
        for index in range(_NUM_STEPS):
            x, target = batch()
            optimizer.zero_grad()
            loss = F.cross_entropy(parallel(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if index % 2:
                validate(model, 1)
    if run is not None:
        num_inspected = run.facts.steps + run.facts.warm_up
    tensors = {name: each.clone() for name, each in model.state_dict().items()}
    return RankOutcome(losses, tensors, num_inspected, _count_hooks(parallel))


def _count_hooks(model: nn.Module) -> int:
    tables = [table for each in model.modules() for table in _tables_of(each)]
    return sum(map(len, tables))


def _tables_of(module: nn.Module) -> list[Mapping[int, object]]:
    return [value for name, value in vars(module).items() if name.endswith("_hooks")]


def test_ranks_compute_the_same_and_count_their_steps(tmp_path: Path) -> None:
    for plain, *observed in in_processes(2, train_with_each, tmp_path, tmp_path):
        for observers, found in zip(_OBSERVERS[1:], observed, strict=True):
            assert found.losses == plain.losses, observers
            assert found.num_hooks == plain.num_hooks, observers
            for name, tensor in plain.tensors.items():
                assert torch.equal(found.tensors[name], tensor), (observers, name)
            if "inspect" in observers:
                assert found.num_inspected == _NUM_STEPS, observers
    for folder in ("watch", "inspect-watch"):
        run = watched_run(tmp_path / folder)
        assert (run.steps(), run.steps("eval"), run.ranks) == ([0, 1, 2, 3], [2, 4], 2)
        assert (run.events, run.missing) == ((), ())
