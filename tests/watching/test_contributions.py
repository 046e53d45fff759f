"""Gradients that a call contributes to its inputs, and those that flow through what was attached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchscan
from tests.opening import watched_run
from tests.watching.watching import watch
from torchscan.types import WatchedRun

pytestmark = pytest.mark.slow  # each run has a process of its own, which imports torch

ALL = ("inputs", "outputs", "input_grads", "output_grads", "params", "param_grads")


def watched(model: nn.Module, run: Path, x: Tensor, loss: Callable[[Tensor], Tensor]) -> WatchedRun:
    with watch(model, run, every=1, log=("input_grads", "output_grads")):
        loss(model(x)).backward()
    found = watched_run(run)
    assert isinstance(found, WatchedRun)
    return found


def require_same(run: WatchedRun, said: str, expected: Tensor) -> None:
    (found,) = run.history(said).distributions
    assert (found.numel, found.sampled) == (expected.numel(), expected.numel())
    assert found.mean == pytest.approx(expected.mean().item(), rel=1e-5, abs=1e-7)
    assert found.std == pytest.approx(expected.std(correction=0).item(), rel=1e-5, abs=1e-7)


class Skips(nn.Module):
    """``0.01 W x + x``: nearly all of the gradient goes past the layer."""

    def __init__(self, *, attaches: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)
        self.attaches = attaches

    def forward(self, x: Tensor) -> Tensor:
        if not self.attaches:
            return 0.01 * self.fc(x) + x
        skip = torchscan.attach(x, self, "skip")
        main = torchscan.attach(x, self, "main")
        return 0.01 * self.fc(main) + skip


@pytest.mark.parametrize("attaches", [False, True])
def test_the_main_path_and_the_skip_are_told_apart(tmp_path: Path, *, attaches: bool) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 4), Skips(attaches=attaches))
    factor = torch.randn(3, 4)
    run = watched(model, tmp_path / "run", torch.randn(3, 4), lambda y: (factor * y).sum())

    main = 0.01 * factor @ model[1].fc.weight
    require_same(run, "1.fc input gradient", main)
    require_same(run, "1 input gradient", main + factor)
    require_same(run, "0 output gradient", main + factor)
    if attaches:
        require_same(run, "1.main gradient", main)
        require_same(run, "1.skip gradient", factor)


class Reads(nn.Module):
    """Gives one tensor to two modules, and one of them another, too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.aside = nn.Linear(4, 4), inner, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.hidden = hidden
        return self.inner(hidden) + self.aside(hidden) + hidden.sin()


class Sums(nn.Module):
    """``x² + 3 x``."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x + 3 * x


def test_a_call_that_reads_an_input_several_times_contributes_their_sum(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Reads(Sums())
    run = watched(model, tmp_path / "run", torch.randn(3, 4), torch.sum)
    require_same(run, "inner input gradient", 2 * model.hidden + 3)
    require_same(run, "aside input gradient", model.aside.weight.sum(0).expand(3, 4))


class Keeps(nn.Module):
    """Reads its input once more, for a term of the loss that is not in its result."""

    def forward(self, x: Tensor) -> Tensor:
        self.penalty = x.square().sum()
        return 3 * x


def test_what_a_call_contributes_by_another_way_is_unknown_rather_than_left_out(
    tmp_path: Path,
) -> None:
    model: Any = Reads(Keeps())
    run = watched(
        model, tmp_path / "run", torch.randn(3, 4), lambda y: y.sum() + model.inner.penalty
    )
    said = {each.label for each in run.series}
    assert "inner input gradient" not in said
    require_same(run, "aside input gradient", model.aside.weight.sum(0).expand(3, 4))


class Passes(nn.Module):
    """Returns its input beside what it computes from it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.pair = nn.Linear(4, 4), Pair()

    def forward(self, x: Tensor) -> Tensor:
        same, other = self.pair(self.fc(x))
        return same + other


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, 3 * x


def test_of_an_input_that_is_returned_as_it_is_nothing_is_known(tmp_path: Path) -> None:
    """3 by one path, and 1 by the other, which has no operator of the call's."""
    run = watched(Passes(), tmp_path / "run", torch.randn(3, 4), torch.sum)
    assert "pair input gradient" not in {each.label for each in run.series}
    require_same(run, "fc output gradient", torch.full((3, 4), 4.0))


class Names(nn.Module):
    """Names a tensor and does not use what it gets; or writes into what it gets."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.fc, self.writes = nn.Linear(4, 4), writes

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x)
        if self.writes:
            return torchscan.attach(hidden, self, "hidden").mul_(2)
        torchscan.attach(hidden, self, "hidden")
        return 2 * hidden


@pytest.mark.parametrize("writes", [False, True])
def test_what_was_attached_and_not_used_has_the_gradient_of_the_tensor(
    tmp_path: Path, *, writes: bool
) -> None:
    run = watched(Names(writes=writes), tmp_path / "run", torch.randn(3, 4), torch.sum)
    require_same(run, "Names.hidden gradient", torch.full((3, 4), 2.0))


def test_without_gradients_the_same_tensor_is_returned() -> None:
    x = torch.randn(3, requires_grad=True)
    model = nn.Linear(3, 3)
    assert torchscan.attach(x.detach(), model, "x").requires_grad is False
    with torch.no_grad():
        assert torchscan.attach(x, model, "x") is x
    alias = torchscan.attach(x, model, "x")
    assert alias.data_ptr() == x.data_ptr()


# -- nothing is changed --------------------------------------------------------------------------------------------------


class Many(nn.Module):
    """A tensor with three readers, two of them by an attached view, in whatever way it is run."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.one, self.two, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(inplace=True)

    def _inner(self, x: Tensor) -> Tensor:
        seen = torchscan.attach(x, self, "seen")
        if self.way == "written":
            seen.mul_(1.1)
        return self.act(self.one(seen)) * seen.sigmoid() + self.two(x) + x.tanh() * x

    def forward(self, x: Tensor) -> Tensor:
        if self.way in ("checkpointed", "reentrant"):
            return checkpoint(self._inner, x, use_reentrant=self.way == "reentrant")
        if self.way == "partly without gradients":
            with torch.no_grad():
                aside = self._inner(x)
            return self._inner(x) + aside
        return self._inner(x)


def train(way: str, run: Path | None) -> list[Tensor]:
    """The gradients and parameters of each step."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 8), Many(way), nn.Linear(8, 2))
    if way == "compiled":
        model[1] = torch.compile(model[1], backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [torch.randn(5, 8) for _ in range(4)]
    found: list[Tensor] = []

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=way == "twice")
        if way == "twice":
            loss.backward()
        found.extend(each.grad.clone() for each in model.parameters() if each.grad is not None)
        optimizer.step()

    if run is None:
        for x in batches:
            step(x)
    else:
        with watch(model, run, every=1, log=ALL):
            for x in batches:
                step(x)
    return [*found, *(each.detach().clone() for each in model.parameters())]


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which dynamo reads
@pytest.mark.parametrize(
    "way",
    [
        *("plain", "written", "checkpointed", "reentrant", "partly without gradients", "twice"),
        pytest.param("compiled", marks=pytest.mark.slow),
    ],
)
def test_training_is_the_same_to_the_last_bit(tmp_path: Path, way: str) -> None:
    plain, seen = train(way, None), train(way, tmp_path / "run")
    assert len(plain) == len(seen)
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))


class TwoResults(nn.Module):
    """Two tensors that one node of the graph produces."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.fc(x).unbind(dim=-1)[:2]


def test_each_result_of_a_node_has_its_own_gradient(tmp_path: Path) -> None:
    factors = torch.randn(2, 3)

    def loss(pair: Any) -> Tensor:
        return (factors[0] * pair[0]).sum() + (factors[1] * pair[1]).sum()

    run = watched(TwoResults(), tmp_path / "run", torch.randn(3, 4), loss)
    require_same(run, "TwoResults output gradient", factors[0])
    require_same(run, "TwoResults output gradient 1", factors[1])


def test_a_gradient_is_recorded_before_later_hooks_of_its_tensor(tmp_path: Path) -> None:
    factor = torch.randn(3, 4)

    def loss(y: Tensor) -> Tensor:
        y.register_hook(lambda gradient: 3 * gradient)
        return (factor * y).sum()

    run = watched(nn.Linear(4, 4), tmp_path / "run", torch.randn(3, 4), loss)
    require_same(run, "Linear output gradient", factor)


def test_gradients_of_a_graph_from_an_earlier_step_are_not_recorded(tmp_path: Path) -> None:
    """Its nodes have the numbers of an earlier step, which the hook no longer knows."""
    model = nn.Linear(4, 4)
    with watch(model, tmp_path / "run", every=1, log=("output_grads",)) as watcher:
        first = model(torch.randn(3, 4)).sum()
        first.backward(retain_graph=True)
        watcher.step()
        second = model(torch.randn(3, 4))
        (first + (2 * second).sum()).backward()
    run = watched_run(tmp_path / "run")
    assert isinstance(run, WatchedRun)
    found = run.history("Linear output gradient").distributions
    assert [each.mean for each in found] == [1.0, 2.0]


def test_norms_of_larger_gradients_are_those_of_all_values(tmp_path: Path) -> None:
    """Of 1,600 values 512 are sampled; small and large ones are joined with them."""
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 4), nn.Linear(4, 5000))
    with watch(model, tmp_path / "run", every=1, log=("param_grads",)):
        model(torch.randn(3, 40)).square().mean().backward()
    run = watched_run(tmp_path / "run")
    assert isinstance(run, WatchedRun)
    norms = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        norms[name] = parameter.grad.norm().item()
        (found,) = run.history(f"{name} gradient").distributions
        assert found.sampled == min(parameter.numel(), 512)
        assert found.norm == pytest.approx(norms[name], rel=1e-5)
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    assert list(run.curves().gradient_norms) == pytest.approx([total], rel=1e-5)


class Adds(nn.Module):
    """``x + 2 · memory``, or ``x + 1`` if there is no memory."""

    def forward(self, x: Tensor, *, memory: Tensor | None = None) -> Tensor:
        return x + 1 if memory is None else x + 2 * memory


class Remembers(nn.Module):
    """Gives its last two layers a memory in some of the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.alternates, self.begins = nn.Linear(4, 4), Adds(), Adds()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        hidden, step = self.first(x), self.step
        self.step += 1
        given = {"memory": hidden.sin()}
        result: Tensor = self.alternates(hidden, **(given if step % 2 else {}))
        return self.begins(result, **(given if step >= 2 else {}))


def test_keyword_inputs_of_some_steps_are_recorded_in_all_of_them(tmp_path: Path) -> None:
    """They are sampled when a call has them, whatever it had in the steps before."""
    model = Remembers()
    with watch(model, tmp_path / "run", every=1, log=("inputs", "input_grads")):
        for _ in range(6):
            model(torch.randn(3, 4)).sum().backward()
    run = watched_run(tmp_path / "run")
    for module, steps in (("alternates", (1, 3, 5)), ("begins", (2, 3, 4, 5))):
        assert run.history(f"{module} input").steps == (0, 1, 2, 3, 4, 5)
        assert run.history(f"{module} input 1").steps == steps
        gradients = run.history(f"{module} input gradient 1")
        assert gradients.steps == steps
        assert all(each.mean == 2 for each in gradients.distributions)
