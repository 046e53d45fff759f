"""Models as people have them: odd attributes, frozen and exported ones, weights that are shared among processes."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchscan import InputError, RecordError, crawl_module, record
from torchscan.trace.trace import Trace


def parameters_of(info: Any) -> int:
    overall = info["overall"]
    return int(overall["grad_params"] + overall["nograd_params"])


# -- objects that answer with exceptions ---------------------------------------------------------------------------------


class NoLength(tuple):
    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError


class NoLengthEither(frozenset):
    def __len__(self) -> int:
        raise NotImplementedError


class NoItems(dict):
    def __len__(self) -> int:
        raise NotImplementedError

    def items(self) -> Any:
        raise NotImplementedError


class NoComparison:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


class NoClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise NotImplementedError


hostile = pytest.mark.parametrize(
    "make",
    [lambda: NoLength((1, 2)), lambda: NoLengthEither({1}), lambda: NoItems(a=1), NoComparison, NoClass],
    ids=["tuple", "set", "dict", "object", "class"],
)


class Holds(nn.Module):
    """Keeps an object in all kinds of places, and writes to one of them."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        vars(self)["value"] = value
        self.values = [value]
        self.named = {"value": value}
        self.queue = collections.deque([value])

    def forward(self, x: Tensor, given: Any = None) -> Any:
        self.values.append(1)
        return self.layer(x), given


@hostile
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_attributes_that_cannot_be_read_are_passed_over(make: Any, execute: Any) -> None:
    value = make()
    model = Holds(value)
    info = crawl_module(model, (4,), execute=execute)
    assert (parameters_of(info), info["overall"]["macs"]) == (20, 16)
    assert len(model.values) == 1
    assert model.values[0] is value


@hostile
def test_and_so_are_arguments_and_results(make: Any) -> None:
    info = crawl_module(Holds(1), args=(torch.ones(2, 4), make()))
    assert info["overall"]["macs"] == 32


def test_items_of_a_container_that_cannot_be_measured_are_put_back() -> None:
    class Forgets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = NoItems(mask=None)

        def forward(self, x: Tensor) -> Tensor:
            self.kept["mask"] = x
            return x

    model = Forgets()
    crawl_module(model, (4,))
    assert dict.__getitem__(model.kept, "mask") is None


class Unusual(nn.Module):
    """Says of its parameters what it likes, and raises when it is asked for anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def __getattr__(self, name: str) -> Any:
        if name in ("one", "other"):
            return super().__getattr__(name)
        raise NotImplementedError(name)

    def parameters(self, recurse: bool = True) -> Any:
        return self.one.parameters()

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        return self.other(self.one(x))


def test_what_a_module_says_of_itself_does_not_matter() -> None:
    info = crawl_module(nn.Sequential(Unusual()), (4,))
    assert (parameters_of(info), info["overall"]["macs"]) == (40, 32)


# -- scripts and programs ------------------------------------------------------------------------------------------------


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("mode", ["eval", "train", "same"])
def test_a_frozen_script_has_costs_and_says_that_its_weights_are_out_of_sight(mode: Any) -> None:
    frozen = torch.jit.freeze(torch.jit.script(convolutional()))
    info = crawl_module(nn.Sequential(frozen), (3, 8, 8), mode=mode)
    assert info["overall"]["macs"] == 8 * 27 * 36
    assert info["provenance"]["unread"] == ["the weights of 0, which was frozen: they are constants now"]
    assert not hasattr(frozen, "training")


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_what_was_optimised_out_of_sight_is_refused() -> None:
    optimised = torch.jit.optimize_for_inference(torch.jit.script(convolutional()))
    if not any("mkldnn" in node.kind() for node in optimised.graph.nodes()):
        pytest.skip("this build of torch has no kernels of oneDNN")
    with pytest.raises(InputError, match=r"optimize_for_inference.*pass the model as it was before"):
        crawl_module(optimised, (3, 8, 8))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_is_asked_for_its_module() -> None:
    program = torch.export.export(convolutional(), (torch.ones(1, 3, 8, 8),))
    with pytest.raises(InputError, match=r"program\.module\(\)"):
        crawl_module(program, (3, 8, 8))  # type: ignore[arg-type]
    assert crawl_module(program.module(), (3, 8, 8))["overall"]["macs"] == 8 * 27 * 36


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (convolutional().state_dict(), "a state dict, not a torch.nn.Module: pass the model that it belongs to"),
        (torch.relu, "a function, not a torch.nn.Module: call it in the forward of one"),
    ],
    ids=["a state dict", "a function"],
)
def test_what_is_no_module_is_told_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        crawl_module(given, (3, 8, 8))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_module_without_forward() -> None:
    with pytest.raises(RecordError, match="try: define forward in its class; a ModuleList or ModuleDict is not called"):
        crawl_module(nn.ModuleList([nn.Linear(4, 4)]), (4,))


# -- several processes ---------------------------------------------------------------------------------------------------

PROCESSES = 4


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Of the first of four processes, which the others never answer."""
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=PROCESSES)
    try:
        yield dist.device_mesh.init_device_mesh("cpu", (PROCESSES,))
    finally:
        dist.destroy_process_group()


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))


ELEMENTS = 16 * 64 + 64 + 64 * 16 + 16


def said_of_processes(trace: Trace) -> list[str]:
    return [text for text in trace.provenance.assumptions if "processes" in text]


@pytest.mark.filterwarnings("ignore")
def test_fully_sharded_parameters_are_counted_whole_and_by_process(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model = two_layers()
    for each in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(each, mesh=mesh)
    trace = record(model, (16,))
    assert sum(each.numel for each in trace.parameters) == ELEMENTS
    assert sum(each.local_numel for each in trace.parameters) == ELEMENTS // PROCESSES
    assert sum(each.stored_bytes for each in trace.parameters) == 4 * ELEMENTS // PROCESSES
    assert said_of_processes(trace) == [
        "one of several processes: it holds 532 of 2,128 parameters, and bytes and costs are its own"
    ]
    assert crawl_module(model, (16,))["overall"]["macs"] == 2 * 16 * 64
    assert all(type(each).__name__ == "DTensor" for each in model.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("execute", ["abstract", "real"])
def test_what_works_out_placements_is_no_part_of_the_pass(mesh: Any, execute: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = parallelize_module(two_layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    trace = record(model, (16,), execute=execute)
    products = [call.signature for call in trace.ops if "linear" in str(call.signature.op) or "mm" in str(call.signature.op)]
    assert [each.args[0].shape for each in products] == [(1, 16), (1, 64)]
    assert sum(each.local_numel for each in trace.parameters) == (16 * 64 + 64 + 64 * 16) // PROCESSES + 16


def test_one_process_says_nothing_of_others() -> None:
    trace = record(two_layers(), (16,))
    assert said_of_processes(trace) == []
    assert sum(each.local_numel for each in trace.parameters) == ELEMENTS
