"""Steps that are really taken: what they compute, and on what."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from tests.recording.test_record import Calls
from torchscan import InputError, RecordError
from torchscan.inspecting.script import program_of
from torchscan.inspecting.step_execution import RealSteps, local_device
from torchscan.recording.request import PassRequest

CPU = torch.device("cpu")


def steps_of(module: nn.Module, precision: Any = None, **asked: Any) -> RealSteps:
    return RealSteps(
        PassRequest(module=module, input_shape=(4,), batch_size=3, **asked), CPU, precision
    )


def test_a_training_step_starts_from_gradients_of_ones_each_time() -> None:
    module = nn.Linear(4, 2)
    given: list[torch.Tensor] = []
    module.register_forward_pre_hook(lambda _, arguments: given.append(arguments[0]))
    steps = steps_of(module, backward=True)
    for _ in range(2):
        steps.take()
    weight, bias = (each.grad for each in module.parameters())
    assert weight is not None
    assert bias is not None
    assert torch.equal(weight, given[0].sum(0).expand(2, 4))
    assert bias.tolist() == [3, 3]


def test_the_optimizer_steps() -> None:
    """By 1e-3, the rate of SGD where none is given, times the gradient of each bias: one of each sample."""
    module = nn.Linear(4, 2)
    before = module.bias.detach().clone()
    steps = steps_of(module, backward=True, optimizer="SGD")
    for _ in range(2):
        steps.take()
    assert torch.allclose(module.bias, before - 2 * 3e-3)


def test_an_optimizer_that_computes_no_values_takes_no_real_step() -> None:
    """By name, estimates have state and kernels of bitsandbytes alone."""
    if importlib.util.find_spec("bitsandbytes") is not None:
        pytest.skip("bitsandbytes is installed")
    with pytest.raises(InputError, match="AdamW8bit is an optimizer of bitsandbytes, which is not"):
        steps_of(nn.Linear(4, 2), backward=True, optimizer="AdamW8bit")


def test_a_long_error_of_a_step_is_truncated() -> None:
    """At 200 characters, of which "ValueError: " are 12; only the real step has numbers."""

    def fail(_: nn.Module, x: torch.Tensor) -> None:
        if isinstance(x.sum().item(), float):
            raise ValueError("a" * 300 + "\nmore")

    steps = steps_of(Calls(fail, fc=nn.Linear(4, 2)))
    with pytest.raises(RecordError) as caught:
        steps.take()
    assert str(caught.value) == f"Calls failed in a real step: ValueError: {'a' * 188}"


def test_an_inference_keeps_no_graph() -> None:
    results: list[torch.Tensor] = []
    steps = steps_of(Calls(lambda self, x: results.append(self.fc(x)), fc=nn.Linear(4, 2)))
    steps.take()
    assert not results[0].requires_grad


@pytest.mark.parametrize(("mode", "training"), [("train", True), ("eval", False), ("same", True)])
def test_modes(mode: Any, training: bool) -> None:
    assert steps_of(nn.Sequential(nn.Dropout()), mode=mode).module.training is training


@pytest.mark.parametrize(
    ("precision", "stored", "computed"),
    [
        (None, torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("fp16", torch.float16, torch.float16),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("fp16-mixed", torch.float32, torch.float16),
    ],
)
def test_precisions(precision: str | None, stored: torch.dtype, computed: torch.dtype) -> None:
    results: list[torch.Tensor] = []
    module = Calls(lambda self, x: results.append(self.fc(x)), fc=nn.Linear(4, 2)).to(
        torch.float32 if "mixed" in str(precision) else torch.float64
    )
    steps = steps_of(module, precision)
    steps.take()
    assert {each.dtype for each in steps.module.parameters()} == {stored}
    assert results[0].dtype is computed


def test_a_part_without_data_is_one_too_many() -> None:
    with pytest.raises(InputError, match="tensors without data"):
        steps_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta")))


def test_devices_of_a_machine_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert (local_device(None), local_device("cpu")) == (CPU, CPU)
    with pytest.raises(
        InputError, match=r"cuda is not a device that torch can use here: give cpu$"
    ):
        local_device("cuda")


def test_devices_of_a_machine_with_two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [str(local_device(name)) for name in (None, "cuda", "cuda:1")] == [
        "cuda",
        "cuda",
        "cuda:1",
    ]
    with pytest.raises(
        InputError, match=r"cuda:2 is not a device that torch can use here: give cpu or cuda$"
    ):
        local_device("cuda:2")


def test_a_program_is_unbuffered_where_it_says_so() -> None:
    asked = (
        ["python", "a.py", "-u"],
        ["-u", "a.py"],
        ["python", "-um", "a"],
        ["python", "-m", "a"],
    )
    assert [program_of(words).is_unbuffered for words in asked] == [False, True, True, False]
    assert program_of(["python3", "-u", "-m", "a", "b"]).arguments == ("b",)
