"""The step of one of torch's optimizers is told by few parameters; that of a class derived from it is taken on all of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan.recording.bookkeeping.inventory import Inventory
from torchscan.recording.bookkeeping.tensor_layouts import NO_FLOATS
from torchscan.recording.execution.abstract import AbstractExecution
from torchscan.recording.recorder import Recorder
from torchscan.recording.training.repeated import repeated_step
from torchscan.scan import Scan
from torchscan.trace.trace import Trace

Make = Callable[[Any, list[Tensor]], torch.optim.Optimizer]


class _Uneven(nn.Module):
    """Parameters of several shapes in no regular order, one of another type, one that is not used and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.LayerNorm(4) if index % 3 == 1 else nn.Linear(4, 4) for index in range(10)]
        )
        self.narrow = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
        self.across = nn.Parameter(torch.zeros(4, 4).t())
        self.unused = nn.Parameter(torch.zeros(4))
        self.layers[3].requires_grad_(False)

    def forward(self, source: Tensor) -> Tensor:
        for layer in self.layers:
            source = layer(source)
        return source @ self.across + self.narrow.float()


def _in_groups(optimizer: Any, parameters: list[Tensor]) -> torch.optim.Optimizer:
    groups = [[each for each in parameters if (each.dim() > 1) is flag] for flag in (True, False)]
    made: torch.optim.Optimizer = optimizer(
        [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1]}], lr=0.1
    )
    return made


def _step(module: nn.Module, optimizer: Any, device: str | None = None) -> Trace:
    return Scan(
        module, (4,), torch.float32, training=True, optimizer=optimizer, device=device
    ).steps


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("Adam", {"amsgrad": True, "maximize": True}),
        ("AdamW", {}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adamax", {}),
        ("Adadelta", {}),
        ("RMSprop", {"centered": True, "momentum": 0.9}),
        ("Rprop", {}),
        ("ASGD", {}),
        ("Adagrad", {}),
    ],
)
@pytest.mark.parametrize("make", [lambda optimizer, parameters: optimizer(parameters), _in_groups])
def test_it_is_the_step_on_all_parameters(name: str, options: dict[str, Any], make: Make) -> None:
    own = getattr(torch.optim, name)
    derived: Any = type(name, (own,), {})
    records = [
        _step(
            _Uneven(),
            lambda parameters, kind=kind: make(
                lambda *args, **more: kind(*args, **{**options, **more}), parameters
            ),
        )
        for kind in (own, derived)
    ]
    assert [op.phase for op in records[0].ops].count("optimizer") >= 20
    assert records[0] == records[1]


def test_one_tensor_at_a_time_on_a_card() -> None:
    class Derived(torch.optim.AdamW):
        pass

    records = [
        _step(
            _Uneven(), lambda parameters, kind=kind: kind(parameters, foreach=False), "NVIDIA H200"
        )
        for kind in (torch.optim.AdamW, Derived)
    ]
    assert records[0] == records[1]
    states = [each for each in records[0].storages if each.name.endswith(".step")]
    assert states
    assert not any(each.size for each in states)  # they are on the host


def test_a_hook_sees_the_parameters_themselves() -> None:
    module, seen = _Uneven(), []

    def with_hook(parameters: list[Tensor]) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters)
        optimizer.register_step_pre_hook(
            lambda made, *_: seen.append(len(made.param_groups[0]["params"]))
        )
        return optimizer

    _step(module, with_hook)
    assert seen == [len([each for each in module.parameters() if each.requires_grad])] * 2


def test_equal_parameters_share_the_operators_of_few() -> None:
    """Of 20 parameters only the last one has no other behind it.

    One operator adds the decayed weight to the gradient, as a temporary tensor; another one adds
    the result to the weight.
    """
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False, device="meta") for _ in range(20)))
    for parameter in model.parameters():
        parameter.grad = torch.empty(4, 4, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), weight_decay=0.1, foreach=False)
    execution = AbstractExecution(NO_FLOATS, "cpu")
    recorder = Recorder(Inventory(model), execution, lambda _: True, lambda _: None, lambda: None)
    step = repeated_step(optimizer, recorder, "cpu")
    assert step is not None
    parts = [part for _, part in step.parameters]
    assert [len(part.ops) for part in parts] == [2] * 20
    assert len(set(map(id, parts))) == 2
