"""A model is as it was before: after success, after failure, and with several threads."""

from __future__ import annotations

import copy
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.observables import observables, process_state

BOTH_WAYS = pytest.mark.parametrize("execute", ["abstract", "real"])
ALL_MODES = pytest.mark.parametrize("mode", ["eval", "train", "same"])


class Messy(nn.Module):
    """Does in its forward pass whatever models do to themselves."""

    seen: Tensor
    ids: Tensor

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("ids", torch.arange(4))
        self.mask: Tensor | None = None
        self.history: list[Tensor] = [torch.ones(1)]
        self.by_name: dict[str, Any] = {"kept": 1, "lost": 2}
        self.fails = fails
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.mask = torch.ones(4)
        self.history.append(x)
        self.by_name.pop("lost")
        self.by_name["new"] = x
        self.calls = 1
        self.seen.add_(1)
        self.seen[0] = 7
        self.ids.add_(1)
        self.ids[1:].mul_(3)
        self.linear.weight.data.clamp_(-0.1, 0.1)
        with torch.no_grad():
            self.linear.bias.mul_(3)
            self.frozen.copy_(x.mean(0))
        self.frozen.requires_grad_(True)
        self.linear.bias = nn.Parameter(torch.zeros(4))
        self.register_buffer("late", torch.zeros(1))
        x.add_(torch.rand(4) + random.random() + float(np.random.rand()))  # noqa: S311
        x = self.drop(self.norm(x)) * self.ids.sum() + self.seen
        if self.fails:
            raise RuntimeError("as told")
        return self.linear(x) * self.mask


@BOTH_WAYS
@ALL_MODES
@pytest.mark.parametrize("fails", [False, True])
def test_a_messy_model_is_as_before(execute: Any, mode: Any, fails: bool) -> None:
    model = Messy(fails)
    before = observables(model)
    if fails:
        with pytest.raises(torchscan.RecordError, match="as told"):
            torchscan.crawl_module(model, (4,), batch_size=2, mode=mode, execute=execute)
    else:
        torchscan.crawl_module(model, (4,), batch_size=2, mode=mode, execute=execute)
    assert observables(model) == before


def test_assigned_data_is_taken_back() -> None:
    class Normalises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.linear.weight.data = self.linear.weight.data / self.linear.weight.data.norm()
            return self.linear(x)

    model = Normalises()
    before = observables(model)
    assert torchscan.record(model, (4,)).provenance.execution == "real"
    assert observables(model) == before


def test_the_comparison_sees_what_a_bare_forward_pass_changes() -> None:
    model = Messy()
    before = observables(model)
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert observables(model) != before


@BOTH_WAYS
def test_arguments_are_not_written_to(execute: Any) -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, ids: Tensor, extra: dict[str, Tensor]) -> Tensor:
            extra["new"] = x.mul_(2)
            view = ids.view(2, 2)
            view[0].add_(1)
            assert int(ids[0]) == 1, "later reads see the write"
            return x + ids

    x, ids, extra = torch.ones(4), torch.zeros(4, dtype=torch.long), {"old": torch.ones(1)}
    torchscan.record(Writes(), args=(x, ids, extra), execute=execute)
    assert x.tolist() == [1] * 4
    assert ids.tolist() == [0] * 4
    assert list(extra) == ["old"]
    assert (x._version, ids._version) == (0, 0)


@BOTH_WAYS
def test_training_goes_on_as_if_nothing_had_happened(execute: Any) -> None:
    """A pass between forward and backward leaves the graph's saved tensors valid, and the results the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    twin = copy.deepcopy(model)

    def step(module: nn.Module, interrupt: bool) -> list[Tensor]:
        torch.manual_seed(1)
        loss = module(torch.randn(8, 4)).square().sum()
        if interrupt:
            torchscan.crawl_module(module, (4,), batch_size=2, mode="train", execute=execute)
        loss.backward()
        return [parameter.grad for parameter in module.parameters() if parameter.grad is not None] + [torch.rand(1)]

    for one, other in zip(step(model, True), step(twin, False), strict=True):
        assert torch.equal(one, other)


@BOTH_WAYS
def test_the_users_own_hooks_run_and_stay(execute: Any) -> None:
    calls: list[str] = []
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].register_forward_hook(lambda *_: calls.append("hook"))
    torchscan.record(model, (4,), execute=execute)
    assert calls == ["hook"]
    assert len(model[0]._forward_hooks) == 1


def test_an_exception_the_model_catches_is_no_failure() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = nn.Linear(3, 3)
            self.good = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except RuntimeError:
                return self.good(x)

    trace = torchscan.record(Careful(), (4,), execute="abstract")
    assert [call.path for call in trace.modules] == ["", "bad", "good"]
    assert [call.parent for call in trace.modules] == [None, 0, 0]


def test_two_threads_record_two_models_at_once() -> None:
    """Each thread sees its own model's calls only; what is process-wide is as before when the last is done."""
    sizes = (3, 5)
    models = [nn.Sequential(*(nn.Linear(size, size) for _ in range(30))) for size in sizes]
    before = process_state()
    barrier = threading.Barrier(2, timeout=30)
    results: dict[int, list[Any]] = {0: [], 1: []}

    def work(index: int) -> None:
        for _ in range(10):
            barrier.wait()
            results[index].append(torchscan.crawl_module(models[index], (sizes[index],)))

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for index, size in ((0, 3), (1, 5)):
        assert [info["overall"]["macs"] for info in results[index]] == [30 * size * size] * 10
        assert [len(info["layers"]) for info in results[index]] == [31] * 10
    assert process_state() == before


def test_a_model_used_in_another_thread_meanwhile_is_not_recorded() -> None:
    bystander = nn.Linear(7, 7)
    outputs: list[Tensor] = []

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: outputs.append(bystander(torch.ones(1, 7))))
            thread.start()
            thread.join(30)
            return self.linear(x)

    trace = torchscan.record(Waits(), (4,))
    assert [call.path for call in trace.modules] == ["", "linear"]
    assert len(trace.ops) == 1
    assert outputs[0].device.type == "cpu"
    assert outputs[0].requires_grad
