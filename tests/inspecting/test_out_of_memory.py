"""Out-of-memory errors of inspected steps."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.versions import needs
from torchscan import inspect, open_run
from torchscan.inspecting import out_of_memory
from torchscan.types import MemorySnapshot, RunFacts

ROWS, WIDTH = 256, 32
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.00 GiB is free."
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Failing(nn.Module):
    """Raises torch's error from the given call on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.after -= 1
        if self.after < 0:
            raise torch.OutOfMemoryError(MESSAGE)
        return x * self.scale


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has the tensors of this process: there is none whose allocator could be asked."""
    monkeypatch.setattr(out_of_memory, "allocator_snapshot", _snapshot_of_process)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")


def _snapshot_of_process() -> dict[str, Any]:
    sizes: dict[int, int] = {}
    # other tests may have left tensors without data
    plain = (Tensor, nn.Parameter)
    seen: list[Any] = [each for each in gc.get_objects() if type(each) in plain and each.is_cpu]
    nodes = [each.grad_fn for each in seen if each.grad_fn is not None]
    while nodes:
        node: Any = nodes.pop()
        with contextlib.suppress(RuntimeError):  # it has run, and freed them
            names = [name for name in dir(node) if name.startswith("_saved_")]
            seen += [getattr(node, name) for name in names]
        nodes += [each for each, _ in node.next_functions if each is not None]
    for each in seen:
        if type(each) in plain:
            with contextlib.suppress(RuntimeError):  # its storage has no data
                storage = each.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    segments = [
        {
            "device": 0,
            "address": address,
            "total_size": size,
            "stream": 0,
            "segment_type": "large",
            "blocks": [{"size": size, "state": "active_allocated", "frames": []}],
        }
        for address, size in sizes.items()
        if address
    ]
    return {"segments": segments, "device_traces": [[]]}


def failing_model(after: int) -> nn.Module:
    return nn.Sequential(Block(), Block(), Failing(after))


def take_steps(model: nn.Module, number: int = 5) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(number):
        loss = model(torch.randn(ROWS, WIDTH)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def sizes(found: MemorySnapshot) -> dict[tuple[str, str], int]:
    return {(each.kind, each.path): each.size for each in found.held}


@needs("_C._autograd.SavedTensor.unpack_hook")
@pytest.mark.usefixtures("gpu")
def test_what_held_the_memory_is_known_by_module() -> None:
    model = failing_model(after=2)
    with pytest.raises(torch.OutOfMemoryError) as caught, inspect(model) as run:
        take_steps(model)
    assert run.out_of_memory is not None
    found = sizes(run.out_of_memory)
    weights = 2 * WIDTH * WIDTH + 2 * WIDTH
    assert found["parameters", "*.up"] == 2 * weights * 4
    assert found["optimizer", "*.up"] == 2 * 2 * weights * 4 + 2 * 2 * 4  # and counters of steps
    assert found["buffers", "*"] == WIDTH * 4
    # results of two relus, which the products after them need, and the sum that the next block takes
    assert (
        found["activations", "*.down"] + found.get(("activations", "*"), 0)
        >= 2 * ROWS * 2 * WIDTH * 4
    )
    assert run.out_of_memory.failed_bytes == 2 * 2**30
    assert run.out_of_memory.other_bytes == 79 * 2**30 - run.out_of_memory.reserved_bytes
    assert {note.code for note in run.out_of_memory.notes} <= {"snapshot-no-owner"}
    assert run.verdict is not None
    assert run.verdict.code == "verdict-out-of-memory"
    (note,) = caught.value.__notes__
    assert note.startswith("torchscan: a request of 2.00 GiB failed with ")


@pytest.mark.usefixtures("gpu")
def test_gradients_have_the_modules_of_their_parameters() -> None:
    model = failing_model(after=1)

    def accumulate() -> None:
        for _ in range(2):
            model(torch.randn(ROWS, WIDTH)).sum().backward()

    with pytest.raises(torch.OutOfMemoryError), inspect(model) as run:
        accumulate()
    assert run.out_of_memory is not None
    assert sizes(run.out_of_memory)["gradients", "*.up"] == 2 * (2 * WIDTH * WIDTH + 2 * WIDTH) * 4


@pytest.mark.usefixtures("gpu")
def test_the_exception_is_the_users_own(tmp_path: Any) -> None:
    model = failing_model(after=0)
    error = torch.OutOfMemoryError(MESSAGE)
    arguments = error.args

    def fail(*_: object) -> None:
        raise error

    model.register_forward_pre_hook(fail)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(torch.OutOfMemoryError) as caught, inspect(model) as run:
        take_steps(model, 1)
    assert caught.value is error
    assert error.args is arguments
    assert error.__cause__ is None
    assert error.__context__ is None
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    run.save(tmp_path / "run.json")
    saved = open_run(tmp_path / "run.json")
    assert isinstance(saved, RunFacts)
    assert saved.verdict == run.verdict


@pytest.mark.usefixtures("gpu")
def test_a_program_that_goes_on_can_free_its_tensors() -> None:
    """Explaining an error must not keep what the program drops to try again."""
    model = failing_model(after=0)
    batch = torch.randn(ROWS, WIDTH)
    reference = weakref.ref(batch)
    try:
        with inspect(model):
            model(batch)
    except torch.OutOfMemoryError:
        pass
    sys.exception()
    del batch
    gc.collect()
    assert reference() is None


@pytest.mark.usefixtures("gpu")
def test_variables_name_what_no_module_has() -> None:
    model = failing_model(after=0)
    table = torch.zeros(1000, 100)
    with pytest.raises(torch.OutOfMemoryError), inspect(model) as run:
        model(torch.randn(ROWS, WIDTH))
    assert run.out_of_memory is not None
    places = {each.place: each.size for each in run.out_of_memory.held if each.kind == "other"}
    (place,) = [each for each in places if each.endswith(", table")]
    assert place.startswith("test_out_of_memory.py:")
    assert places[place] == table.numel() * 4


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("make", [lambda: RuntimeError("out of memory"), KeyboardInterrupt])
def test_other_errors_are_left_alone(make: Callable[[], BaseException]) -> None:
    model = nn.Linear(2, 2)
    error = make()
    run = inspect(model).start()
    run.explain(error)
    run.finish()
    assert not hasattr(error, "__notes__")
    assert run.out_of_memory is None


def test_without_a_gpu_nothing_is_explained() -> None:
    model = failing_model(after=0)
    with pytest.raises(torch.OutOfMemoryError) as caught, inspect(model) as run:
        model(torch.randn(ROWS, WIDTH))
    if not torch.cuda.is_initialized():
        assert run.out_of_memory is None
        assert not hasattr(caught.value, "__notes__")


class FailingBackward(torch.autograd.Function):
    """Raises torch's error when its gradient is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise torch.OutOfMemoryError(MESSAGE)


@needs("_C._autograd.SavedTensor.unpack_hook")
@pytest.mark.usefixtures("gpu")
def test_a_backward_pass_that_fails_shows_what_the_graph_still_holds() -> None:
    """The graph of the last block has run; those before it hold what they saved."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Block(), Block()

        def forward(self, x: Tensor) -> Tensor:
            middle: Tensor = FailingBackward.apply(self.first(x))
            return self.last(middle)

    model = Model()

    def step() -> None:
        loss = model(torch.randn(ROWS, WIDTH)).sum()
        loss.backward()

    with pytest.raises(torch.OutOfMemoryError), inspect(model) as run:
        step()
    assert run.out_of_memory is not None
    found = sizes(run.out_of_memory)
    # the result of the relu, which the product and the relu itself need; of the last block none
    of_first = {path: size for (kind, path), size in found.items() if kind == "activations"}
    assert sum(of_first.values()) >= ROWS * 2 * WIDTH * 4
    assert all(path.startswith("first") for path in of_first)
