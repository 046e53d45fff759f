"""Steps of models that FSDP2 shards, sampled in a group of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.ranks.processes import in_processes
from tests.versions import before
from tests.watching.test_sampled_steps import Process, Step, watching

pytestmark = [
    pytest.mark.slow,  # a process
    before("2.7", "torch shards on devices alone"),
]
X = torch.ones(1, 1)


def train_after_evaluation(_: int, given: tuple[bool, str]) -> list[dict[str, list[float]]]:
    """Return the sampled values of two steps, each after a pass without gradients."""
    is_nested, log = given
    model: Any = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for index, weight in enumerate((2.0, 3.0)):
        nn.init.constant_(model[index].weight, weight)
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    for part in (model[0], model[1], model) if is_nested else (model,):
        fully_shard(part, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    with watching(model, log) as process:
        for _step in range(2):
            with torch.no_grad():
                model.eval()(X)
            optimizer.zero_grad()
            model.train()(X).sum().backward()
            optimizer.step()
    steps = []
    for each in process.samples:
        sampled = Process()
        sampled.samples = [each]
        steps.append(Step(sampled).values())
    return [step for step in steps if step]


@pytest.mark.parametrize("is_nested", [False, True])
def test_parameters_that_stay_gathered_are_sampled_as_shards(
    tmp_path: Path, *, is_nested: bool
) -> None:
    """The gradients of a · b are b and a. The memory of gathered parameters is freed before a step.

    2 and 3 become 2 - 3/2 and 3 - 2/2, then 0.5 - 2/2 and 2 - 0.5/2.
    """
    (gradients,) = in_processes(1, train_after_evaluation, (is_nested, "param_grads"), tmp_path)
    assert gradients == [
        {"0.weight gradient": [3.0], "1.weight gradient": [2.0]},
        {"0.weight gradient": [2.0], "1.weight gradient": [0.5]},
    ]


def test_values_of_parameters_that_stay_gathered_are_those_after_the_step(tmp_path: Path) -> None:
    (values,) = in_processes(1, train_after_evaluation, (True, "params"), tmp_path)
    assert values == [
        {"0.weight": [0.5], "1.weight": [2.0]},
        {"0.weight": [-0.5], "1.weight": [1.75]},
    ]
