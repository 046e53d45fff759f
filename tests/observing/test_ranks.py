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

pytestmark = pytest.mark.slow  # processes of their own, which import torch

_NUM_STEPS = 4


class Request(NamedTuple):
    """What ranks are asked to run."""

    folder: str
    observers: tuple[str, ...]


class RankOutcome(NamedTuple):
    """What a rank has computed, and what ``inspect`` counts in it."""

    losses: list[float]
    tensors: Mapping[str, Tensor]
    num_inspected: int
    num_hooks: int


def train(rank: int, request: Request) -> RankOutcome:
    """Train a model of which each rank has a copy, with a validation after every second step."""
    torch.manual_seed(0)
    model = mlp(dropout=0.1)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses, num_inspected = [], 0
    with ExitStack() as stack:
        run = None
        if "inspect" in request.observers:
            run = stack.enter_context(torchscan.inspect(model))
        if "watch" in request.observers:
            stack.enter_context(torchscan.watch(model, f"{request.folder}/run", every=1))
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


@pytest.mark.parametrize("observers", [("inspect",), ("watch",), ("inspect", "watch")])
def test_ranks_compute_the_same_and_count_their_steps(
    observers: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "observed").mkdir()
    plain = in_processes(2, train, Request(str(tmp_path), ()), tmp_path / "plain")
    observed = in_processes(2, train, Request(str(tmp_path), observers), tmp_path / "observed")
    for before, after in zip(plain, observed, strict=True):
        assert after.losses == before.losses
        assert after.num_hooks == before.num_hooks
        assert all(torch.equal(after.tensors[name], each) for name, each in before.tensors.items())
    if "inspect" in observers:
        assert [each.num_inspected for each in observed] == [_NUM_STEPS, _NUM_STEPS]
    if "watch" in observers:
        run = watched_run(tmp_path / "run")
        assert (run.steps(), run.steps("eval"), run.ranks) == ([0, 1, 2, 3], [2, 4], 2)
        assert (run.events, run.missing) == ((), ())
