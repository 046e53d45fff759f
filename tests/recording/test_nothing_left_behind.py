"""A model is as it was before: after success, after failure, and with several threads."""

from __future__ import annotations

import copy
import functools
import queue
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.observables import observables, process_state
from tests.versions import needs
from torchscan import MissingFormulaError, RecordError, crawl_module, format_info, record

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
        with pytest.raises(RecordError, match="as told"):
            crawl_module(model, (4,), batch_size=2, mode=mode, execute=execute)
    else:
        crawl_module(model, (4,), batch_size=2, mode=mode, execute=execute)
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
    assert record(model, (4,)).provenance.execution == "real"
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
    record(Writes(), args=(x, ids, extra), execute=execute)
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
            crawl_module(module, (4,), batch_size=2, mode="train", execute=execute)
        loss.backward()
        return [
            parameter.grad for parameter in module.parameters() if parameter.grad is not None
        ] + [torch.rand(1)]

    for one, other in zip(step(model, True), step(twin, False), strict=True):
        assert torch.equal(one, other)


@BOTH_WAYS
def test_the_users_own_hooks_run_and_stay(execute: Any) -> None:
    calls: list[str] = []
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].register_forward_hook(lambda *_: calls.append("hook"))
    record(model, (4,), execute=execute)
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

    trace = record(Careful(), (4,), execute="abstract")
    assert [call.path for call in trace.modules] == ["", "bad", "good"]
    assert [call.parent for call in trace.modules] == [None, 0, 0]


class Holder:
    late: Any

    def __init__(self) -> None:
        self.state: Any = 1
        self.inner: Any = {"list": [1]}


class Hoarder(nn.Module):
    """Keeps things where they are less easily found."""

    table: Any = None
    late: Any

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.nested: Any = {"a": [[1]], "b": ({"c": 1}, [2])}
        self.default: Any = defaultdict(list, {"k": [1]})
        self.counts: Any = Counter("ab")
        self.order: Any = OrderedDict(a=[1])
        self.queue: Any = deque([1], maxlen=3)
        self.holder = Holder()
        self.plain = torch.ones(3)
        self.generator = torch.Generator()
        self.linear.weight.grad = torch.ones(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.nested["a"][0].append(x)
        self.nested["b"][0]["c"] = x
        self.nested["b"][1].append(x)
        self.default["new"].append(x)
        self.default["k"].append(x)
        self.counts.update("a")
        self.order["a"].append(x)
        self.queue.append(x)
        self.holder.state = x
        self.holder.inner["list"].append(x)
        self.holder.late = x
        type(self).table = x
        type(self).late = x
        self.plain.add_(1)
        self.plain.requires_grad_(True)
        vars(self.linear.weight)["seen"] = True
        self.generator.manual_seed(5)
        self.zero_grad()
        torch.set_default_dtype(torch.float64)
        torch.backends.cudnn.benchmark = True
        return self.linear(x)


@BOTH_WAYS
def test_a_hoarder_is_as_before(execute: Any) -> None:
    model = Hoarder()
    before = (
        observables(model),
        dict(vars(Hoarder)),
        repr(vars(model.holder)),
        repr(model.nested),
        repr(model.default),
    )
    record(model, (4,), execute=execute)
    assert torch.get_default_dtype() == torch.float32
    assert not torch.backends.cudnn.benchmark
    after = (
        observables(model),
        dict(vars(Hoarder)),
        repr(vars(model.holder)),
        repr(model.nested),
        repr(model.default),
    )
    assert after == before


@functools.lru_cache
def remembered(size: int) -> Tensor:
    return torch.linspace(0, 1, size).sin()


class Remembers(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * remembered(x.shape[-1])


@BOTH_WAYS
def test_small_tensors_that_a_cache_remembers_can_be_trained_with(execute: Any) -> None:
    remembered.cache_clear()
    model = Remembers(4)
    record(model, (4,), execute=execute)
    model(torch.ones(1, 4)).sum().backward()
    assert remembered.cache_info().hits >= 1


@pytest.mark.slow
def test_large_ones_without_data_are_warned_of() -> None:
    remembered.cache_clear()
    with torch.device("meta"):
        model = Remembers(2**19)
    with pytest.warns(
        UserWarning, match=r"keeps 1 meta tensor\(s\) .* \(\[524288\]; in a functools.lru_cache"
    ):
        record(model, (2**19,))
    remembered.cache_clear()


@BOTH_WAYS
def test_lists_of_an_argument_that_was_written_to_are_right(execute: Any) -> None:
    class Cuts(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
            lengths[lengths > 2] = 2
            x.unsqueeze_(0)
            return [x[0, :length] * 1 for length in lengths.tolist()] + [torch.zeros(x.shape)]

    lengths = torch.tensor([3, 1, 4])
    trace = record(Cuts(), args=(torch.ones(5, 4), lengths), execute=execute)
    shapes = [trace.tensors[index].spec.shape for index in trace.root.outputs]
    assert shapes == [(2, 4), (1, 4), (2, 4), (1, 5, 4)]
    assert lengths.tolist() == [3, 1, 4]


@BOTH_WAYS
def test_layers_and_functions_inside_arguments_are_the_users_own(execute: Any) -> None:
    layer = nn.Linear(3, 2)
    given = Given(torch.ones(1, 3), layer, layer.forward)

    class Asks(nn.Module):
        def forward(self, given: Given) -> Tensor:
            assert given.layer is layer
            assert given.function.__self__ is layer
            return given.layer(given.x)

    assert record(Asks(), args=(given,), execute=execute).provenance.execution == execute


@BOTH_WAYS
def test_arguments_that_cannot_be_copied_are_passed_on(execute: Any) -> None:
    class Locked(nn.Module):
        def forward(self, x: Tensor, lock: Any, more: Any) -> Tensor:
            with lock["lock"]:
                return x * sum(more)

    args = (torch.ones(1, 3), {"lock": threading.Lock()}, iter([1, 2]))
    assert len(record(Locked(), args=args, execute=execute).ops) == 1


@dataclass
class Given:
    x: Tensor
    layer: nn.Module
    function: Any


@dataclass
class Bundle:
    x: Tensor
    lock: Any


@BOTH_WAYS
def test_tensors_in_an_argument_that_cannot_be_copied_are_not_written_to(execute: Any) -> None:
    class Writes(nn.Module):
        def forward(self, bundle: Bundle) -> Tensor:
            bundle.x.add_(1)
            bundle.x = bundle.x * 2
            return bundle.x

    tensor = torch.zeros(2, 4)
    bundle = Bundle(tensor, threading.Lock())
    record(Writes(), args=(bundle,), execute=execute)
    assert bundle.x is tensor
    assert tensor.sum() == 0


@BOTH_WAYS
def test_hooks_registered_on_the_way_are_removed_and_the_others_stay(execute: Any) -> None:
    class Hooks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.linear.register_forward_hook(lambda *_: None)
            self.recent: OrderedDict[str, int] = OrderedDict(a=1, b=2)

        def forward(self, x: Tensor) -> Tensor:
            self.left = self.linear.register_forward_hook(lambda *_: None)
            self.recent.move_to_end("a")
            self.recent["c"] = 3
            return self.linear(x)

    model = Hooks()
    record(model, (4,), execute=execute)
    assert len(model.linear._forward_hooks) == 1
    assert list(model.recent.items()) == [("a", 1), ("b", 2)]
    assert model.recent.popitem() == ("b", 2)
    model(torch.ones(1, 4))


class HooksOnTensors(nn.Module):
    """Registers and removes hooks of its parameters on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.bare = nn.Parameter(torch.ones(2))
        self.hooked = nn.Parameter(torch.ones(2))
        self.handle = self.hooked.register_hook(lambda _: self.calls.append("before"))
        self.registers = False

    def forward(self, x: Tensor) -> Tensor:
        if self.registers:
            self.bare.register_hook(lambda gradient: gradient * 7)
            self.bare.register_post_accumulate_grad_hook(lambda _: self.calls.append("left"))
            self.hooked.register_hook(lambda gradient: gradient * 7)
            self.handle.remove()
        return (self.bare * self.hooked * x).sum()


@BOTH_WAYS
@pytest.mark.parametrize("training", [False, True])
def test_hooks_of_parameters_are_as_before(execute: Any, training: bool) -> None:
    model = HooksOnTensors()
    model.registers = True
    record(model, (2,), execute=execute, training=training)
    model.registers = False
    model.calls.clear()
    model(torch.ones(2)).backward()
    assert model.bare.grad is not None
    assert model.hooked.grad is not None
    assert (model.bare.grad.tolist(), model.hooked.grad.tolist()) == ([1.0, 1.0], [1.0, 1.0])
    assert model.calls == ["before"]
    model.handle.remove()
    model(torch.ones(2)).backward()
    assert model.calls == ["before"]


@BOTH_WAYS
@needs("_C._autograd._top_saved_tensors_default_hooks")
def test_hooks_on_what_is_kept_for_gradients_are_left(execute: Any) -> None:
    packed: list[str] = []

    def noted(name: str) -> torch.autograd.graph.saved_tensors_hooks:
        def pack(tensor: Tensor) -> Tensor:
            packed.append(name)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each)

    class Enters(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            noted("first").__enter__()
            noted("second").__enter__()
            return x

    def kept() -> list[str]:
        packed.clear()
        torch.ones((), requires_grad=True).exp()
        return packed

    record(Enters(), (2,), execute=execute)
    assert kept() == []
    with noted("the user's"):
        record(Enters(), (2,), execute=execute)
        assert kept() == ["the user's"]
    assert kept() == []


def test_live_objects_are_left_alone() -> None:
    class Talks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queue: queue.Queue[int] = queue.Queue()

        def forward(self, x: Tensor) -> Tensor:
            self.queue.put(1)
            return x

    model = Talks()
    consumer = threading.Thread(target=lambda: [model.queue.get(timeout=30) for _ in range(2)])
    consumer.start()
    record(model, (4,))
    model(torch.ones(1, 4))
    consumer.join(10)
    assert not consumer.is_alive()
    assert model.queue.qsize() == 0


def test_attributes_with_a_mind_of_their_own_do_not_disturb() -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("working outside of context")

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no dict")

    class Stubborn(list[int]):
        def __bool__(self) -> bool:
            raise RuntimeError("no truth")

        def clear(self) -> None:
            raise RuntimeError("no clear")

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            object.__setattr__(self, "proxy", Proxy())
            self.stubborn = Stubborn([1])

        def forward(self, x: Tensor) -> Tensor:
            self.stubborn.append(2)
            self.linear.weight.grad = None
            return self.linear(x)

    model = Odd()
    model.linear.weight.grad = grad = torch.ones(4, 4)
    record(model, (4,))
    assert list(model.stubborn) == [1]
    assert model.linear.weight.grad is grad


class Clears(nn.Module):
    """Its forward pass does to gradients what training does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.weight.grad = torch.ones(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.zero_grad()
        with torch.enable_grad():
            torch.autograd.backward(self.linear(x).sum())
        del self.linear.weight.grad
        return self.linear(x)


@pytest.mark.parametrize(
    "options",
    [{"execute": "abstract", "training": True, "mode": "eval"}, {"execute": "real"}],
    ids=["backward", "real"],
)
def test_gradients_are_put_back_also_where_threads_run(options: Any) -> None:
    model = Clears()
    before = observables(model)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        record(model, (4,), **options)
    finally:
        over.set()
        thread.join()
    assert observables(model) == before
    assert "grad" not in vars(Tensor)


class Special(Tensor):
    """Its gradients are plain tensors."""


def test_what_torch_knows_of_gradients_is_as_before() -> None:
    """It remembers how they are read, for subclasses."""

    class Specialises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.as_subclass(Special)).as_subclass(Tensor)

    torch.overrides.get_default_nowrap_functions.cache_clear()
    record(Specialises(), (4,), execute="real")
    x = torch.ones(3).as_subclass(Special).requires_grad_()
    torch.sum(x).as_subclass(Tensor).backward()
    assert type(x.grad) is Tensor
    assert x.grad is x.grad


def test_torch_can_be_imported_further_while_a_model_runs() -> None:
    """Its compiler asks of each attribute of tensors whose it is."""

    def owner_and_name() -> tuple[Any, Any]:
        attribute: Any = Tensor.grad
        return attribute.__objclass__, attribute.__name__

    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(owner_and_name())
            return x + 1

    seen: list[Any] = []
    record(Asks(), (4,))
    assert seen == [owner_and_name()]


def test_what_somebody_has_made_of_gradients_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Tensor] = []
    theirs: Any = property(lambda tensor: read.append(tensor))
    monkeypatch.setattr(Tensor, "grad", theirs, raising=False)

    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.grad is None
            return x + 1

    record(Reads(), (4,))
    assert vars(Tensor)["grad"] is theirs
    assert read
    monkeypatch.undo()
    assert "grad" not in vars(Tensor)


@BOTH_WAYS
def test_the_graph_of_a_state_that_the_model_detaches_stays(execute: Any) -> None:
    class Truncated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.state: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.state is not None:
                self.state.detach_()
            self.state = self.linear(x)
            return self.state

    model = Truncated()
    state = model(torch.ones(1, 4))
    record(model, (4,), execute=execute)
    assert model.state is state
    assert state is not None
    state.sum().backward()
    assert model.linear.weight.grad is not None


class Base(nn.Module):
    shared: Any = None
    table: dict[str, Any] = {}  # noqa: RUF012 - as people write it


class Derived(Base):
    def forward(self, x: Tensor) -> Tensor:
        Base.shared = x
        self.table["x"] = x
        return x


def test_attributes_of_base_classes_and_their_containers_are_as_before() -> None:
    record(Derived(), (4,))
    assert Base.shared is None
    assert Base.table == {}


@BOTH_WAYS
def test_arguments_keep_their_identity_among_themselves(execute: Any) -> None:
    mark = object()

    class Same(nn.Module):
        def forward(self, a: Any, b: Any, c: Any, *, again: Tensor) -> Tensor:
            assert a is b
            assert a[0] is again
            assert c is mark
            assert again.label == "mine"
            return again + 1

    tensor = torch.ones(2)
    vars(tensor)["label"] = "mine"
    both = [tensor]
    assert (
        len(record(Same(), args=(both, both, mark), kwargs={"again": tensor}, execute=execute).ops)
        == 1
    )


def test_expanded_arguments_are_counted_as_they_are_stored() -> None:
    class Masks(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x.masked_fill(mask, 0)

    mask = torch.ones(1, 1, 1, 64, dtype=torch.bool).expand(8, 8, 64, 64)
    for execute in ("abstract", "real"):
        info = crawl_module(Masks(), args=(torch.zeros(8, 8, 64, 64), mask), execute=execute)
        assert info["overall"]["bytes_read"] == 8 * 8 * 64 * 64 * 4 + 64


def test_a_pass_inside_a_recorded_pass_is_refused() -> None:
    class Curious(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            record(nn.Linear(4, 2), (4,))
            return x

    with pytest.raises(RecordError, match="inside the forward pass"):
        record(Curious(), (4,))
    assert len(record(nn.Linear(4, 2), (4,)).ops) == 1


@pytest.mark.slow
def test_the_same_model_in_several_threads() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40)))
    before = observables(model)
    with ThreadPoolExecutor(3) as pool:
        infos = list(pool.map(lambda _: crawl_module(model, (4,)), range(15)))
    assert {info["overall"]["macs"] for info in infos} == {40 * 16}
    assert observables(model) == before


def test_work_in_other_threads_is_not_passed_over_in_silence() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(2) as pool:
                return sum(pool.map(lambda part: part(torch.ones(1, 4)), self.parts))

    info = crawl_module(Parallel(), (4,))
    assert info["provenance"]["unrecorded_modules"] == ["parts.0", "parts.1"]
    assert not info["overall"]["complete"]
    assert "ran in other threads" in format_info(info)
    with pytest.raises(MissingFormulaError, match=r"parts\.0"):
        crawl_module(Parallel(), (4,), strict=True)


@pytest.mark.slow
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
            results[index].append(crawl_module(models[index], (sizes[index],)))

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

    trace = record(Waits(), (4,))
    assert [call.path for call in trace.modules] == ["", "linear"]
    assert len(trace.ops) == 1
    assert outputs[0].device.type == "cpu"
    assert outputs[0].requires_grad


@needs("backends.cudnn.conv")
def test_whoever_uses_the_new_switches_of_precision_can_record_and_has_them_afterwards() -> None:
    switch: Any = torch.backends.cuda.matmul
    before = switch.fp32_precision

    class Switches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            switch.fp32_precision = "ieee"
            return x + 1

    try:
        switch.fp32_precision = "tf32"
        record(Switches(), (4,))
        assert switch.fp32_precision == "tf32"
    finally:
        switch.fp32_precision = before


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("before", [True, False])
def test_training_flags_of_scripted_modules_are_as_before(mode: Any, before: bool) -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Dropout(), nn.Linear(4, 4)))
    ).train(before)
    record(model, (4,), mode=mode)
    assert [each.training for each in model.modules()] == [before] * 5


@pytest.mark.filterwarnings("ignore")
def test_of_a_model_wrapped_for_many_processes_the_model_itself_is_recorded() -> None:
    """Its wrapper would talk to the others, in the forward pass too."""
    distributed = torch.distributed
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("no group of processes can be made here")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
        trace = record(wrapped, (4,))
        assert [(call.path, call.type_name) for call in trace.modules] == [
            ("", "Sequential"),
            ("0", "Linear"),
        ]
    finally:
        distributed.destroy_process_group()
