"""Custom operators on known integers, in a pass on shapes alone, without a kernel for the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recording.test_record import Calls, op_names
from torchscan import NeedsValuesError, RecordError, record

IDS = torch.arange(8).reshape(2, 4)


@pytest.fixture(scope="module")
def mine() -> Iterator[Any]:
    """Operators of a package: for GPUs alone, or registered for all devices but not made for them."""
    with torch.library._scoped_library("torchscan_gpu_only", "DEF") as library:
        library.define("shifted(Tensor x) -> Tensor")
        library.define("shift_(Tensor(a!) x) -> Tensor(a!)")
        library.define("launched(Tensor x) -> Tensor")
        library.define("launch_(Tensor(a!) x) -> Tensor(a!)")
        library.define("checked(Tensor x) -> Tensor")
        for name in ("shifted", "launched", "checked"):
            torch.library.register_fake(
                f"torchscan_gpu_only::{name}", torch.empty_like, lib=library
            )
        for name in ("shift_", "launch_"):
            torch.library.register_fake(f"torchscan_gpu_only::{name}", lambda x: x, lib=library)
        library.impl("shifted", lambda x: x + 1, "CUDA")
        library.impl("shift_", lambda x: x.add_(1), "CUDA")
        for name in ("launched", "launch_"):
            library.impl(name, _require_gpu, "CompositeExplicitAutograd")
        library.impl("checked", lambda x: x + 1, "CPU")
        yield torch.ops.torchscan_gpu_only


def _require_gpu(x: Tensor) -> Tensor:
    assert x.is_cuda
    return x


@pytest.mark.parametrize("name", ["shifted", "shift_", "launched", "launch_"])
def test_known_integers_are_looked_up_after_an_operator_for_gpus(mine: Any, name: str) -> None:
    model = Calls(lambda self, ids: self.table(getattr(mine, name)(ids)), table=nn.Embedding(10, 4))
    trace = record(model, args=(IDS,), execute="abstract")
    assert op_names(trace) == [f"torchscan_gpu_only.{name}", "embedding"]
    assert trace.ops[-1].signature.outputs[0].shape == (2, 4, 4)
    assert IDS.equal(torch.arange(8).reshape(2, 4))


@pytest.mark.parametrize("name", ["shifted", "shift_", "launched", "launch_"])
def test_what_an_operator_for_gpus_returns_has_no_values(mine: Any, name: str) -> None:
    """Values from before a write that did not happen would decide a branch wrongly."""
    model = Calls(lambda _, ids: ids if getattr(mine, name)(ids.clone()).sum() > 3 else -ids)
    with pytest.raises(NeedsValuesError, match="depend on the data"):
        record(model, args=(IDS,), execute="abstract")


def test_values_are_unknown_after_each_in_place_call_of_a_gpu_operator(mine: Any) -> None:
    """What is known of one call must not stand for another, whose operand has values."""

    def forward(_: Any, ids: Tensor) -> Tensor:
        mine.launch_(ids.clone())
        written = mine.launch_(ids.clone())
        return ids if written.sum() > 3 else -ids

    with pytest.raises(NeedsValuesError, match="depend on the data"):
        record(Calls(forward), args=(IDS,), execute="abstract")


def test_an_operator_with_a_kernel_for_the_cpu_keeps_values(mine: Any) -> None:
    """1 + 0 … 1 + 7 sum up to 36."""
    model = Calls(lambda _, ids: ids if mine.checked(ids).sum() == 36 else -ids)
    trace = record(model, args=(IDS,), execute="abstract")
    assert "neg" not in op_names(trace)


def test_an_error_of_torchs_own_operators_on_known_integers_is_raised() -> None:
    model = Calls(lambda _, ids: torch.gather(ids, 1, ids + 4))
    with pytest.raises(RecordError, match="out of bounds"):
        record(model, args=(IDS,), execute="abstract")
