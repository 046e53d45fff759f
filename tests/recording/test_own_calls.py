"""Classes that compute in a ``__call__`` of their own, before, after or in place of that of ``nn.Module``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchscan
from torchscan import RecordError, crawl_module, record


class Before(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x @ self.weight.mT)


class After(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) @ self.weight


class Inherited(After):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x)


class Without(nn.Linear):
    """Never calls ``nn.Module.__call__``."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x) @ self.weight


class Alias(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.weight

    __call__ = forward


class InCallImpl(nn.Linear):
    def _call_impl(self, x: Tensor) -> Tensor:
        return super()._call_impl(x) @ self.weight


class OnInstance(nn.Linear):
    """Its instances replace ``_call_impl``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        inner = self._call_impl
        vars(self)["_call_impl"] = lambda x: inner(x) @ self.weight


class Static(nn.Linear):
    @staticmethod
    def __call__(x: Tensor) -> Tensor:
        return (x @ STATIC.weight.mT + STATIC.bias) @ STATIC.weight


class Checkpointing(nn.Linear):
    """Hands what ``nn.Module`` does to a checkpoint, as layers of transformers do."""

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(super().__call__, x, use_reentrant=False)
        return y @ self.weight


STATIC = Static(4, 4)
KINDS = [Before, After, Inherited, Without, Alias, InCallImpl, OnInstance, Checkpointing]
X = torch.rand(3, 4)


def modules_of(trace: torchscan.types.Trace) -> list[tuple[str, int]]:
    """The path of each module call, and how many operators are its own."""
    return [(call.path, len(call.ops)) for call in trace.modules]


@pytest.mark.parametrize("execute", ["abstract", "real"])
@pytest.mark.parametrize("make", [*KINDS, lambda *_: STATIC])
def test_costs_of_its_own_call_are_the_modules(make: Any, execute: Any) -> None:
    layer = make(4, 4)
    own_call = type(layer).__dict__.get("__call__")
    alone = crawl_module(layer, args=(X,), execute=execute)
    model = nn.Sequential(nn.Linear(4, 4), layer)
    within = crawl_module(model, args=(X,), execute=execute)
    assert alone["overall"]["macs"] == 2 * 3 * 4 * 4
    assert [layer["macs"] for layer in within["layers"]] == [0, 3 * 4 * 4, 2 * 3 * 4 * 4]
    assert type(layer).__dict__.get("__call__") is own_call


@pytest.mark.parametrize("make", KINDS)
def test_gradients_are_those_of_the_module(make: Any) -> None:
    trace = record(
        nn.Sequential(nn.Linear(4, 4), make(4, 4)), args=(X,), training=True, mode="eval"
    )
    products = [op for op in trace.ops if "mm" in str(op.signature.op) and op.phase == "backward"]
    owners = [trace.modules[op.module_call].path for op in products if op.origin != "checkpoint"]
    assert owners == ["1"] * 4 + ["0"]


def test_a_module_that_calls_others_there_is_their_parent() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = After(4, 4)

        def __call__(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x)) + 1

    trace = record(nn.Sequential(Twice()), args=(X,))
    calls = [("", 0), ("0", 1), ("0.layer", 2), ("0.layer", 2)]
    assert modules_of(trace) == calls
    assert [call.parent for call in trace.modules] == [None, 0, 1, 1]
    assert [call.call for call in trace.modules] == [0, 0, 0, 1]


def test_a_module_that_calls_itself_has_a_call_for_each_time() -> None:
    class Recursive(nn.Linear):
        def __call__(self, x: Tensor, times: int = 2) -> Tensor:
            return super().__call__(x * 2, times)

        def forward(self, x: Tensor, times: int) -> Tensor:  # type: ignore[override]
            y = super().forward(x)
            return y if times == 1 else self(y, times - 1)

    assert modules_of(record(Recursive(4, 4), args=(X,))) == [("", 2), ("", 2)]


def test_what_fails_there_is_named() -> None:
    class Failing(nn.Linear):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x @ torch.ones(5, 5))

    model = nn.Sequential(nn.Linear(4, 4), Failing(4, 4))
    with pytest.raises(RecordError, match=r"^1 \(Failing\) failed in aten\.matmul"):
        crawl_module(model, args=(X,))
    assert "torchscan" not in Failing.__call__.__module__


def test_hooks_of_the_user_that_compute_before_the_model_are_counted() -> None:
    def double(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0] @ torch.eye(4),)

    layer = nn.Linear(4, 4)
    hook: Any = double
    handle = nn.modules.module.register_module_forward_pre_hook(hook)
    try:
        info = crawl_module(layer, args=(X,))
    finally:
        handle.remove()
    assert info["overall"]["macs"] == 2 * 3 * 4 * 4
