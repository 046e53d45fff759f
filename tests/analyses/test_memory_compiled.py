"""Memory of compiled models: by hand, and against what torch's own partitioner saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchscan import estimate_memory, record
from torchscan.analyses.compiled_regions import OUTSIDE, compiled_regions
from torchscan.analyses.memory_estimate import MemoryEstimate

ROWS, WIDTH = 32, 64
#: bytes of a hidden state
HIDDEN = 4 * ROWS * WIDTH


def estimated(module: nn.Module, given: Tensor, **options: Any) -> MemoryEstimate:
    return estimate_memory(module, args=(given,), progress=False, **options)


def saved(module: nn.Module, given: Tensor, *, compiled: bool) -> int:
    """Return the bytes that the forward pass keeps, besides its result."""
    options = {"training": True, "compiled": compiled, "device": "NVIDIA H100 80GB HBM3"}
    kept = estimated(module, given, **options).layers[0].activation_bytes
    result = module(given)
    return kept - result.numel() * result.element_size()


def test_layers_that_are_compiled_apart_are_regions() -> None:
    """Calls are 0 (the model), 1 and 2 (a layer with one inside), 3 (another layer) and 4."""
    first = nn.Sequential(nn.Linear(4, 4))
    model = nn.Sequential(first, nn.Linear(4, 4), nn.ReLU())
    trace = record(model, (4,))
    assert [trace.path_of(op) for op in trace.ops] == ["0.0", "1", "2"]
    assert compiled_regions(trace, ["0", "1"]) == [1, 3, OUTSIDE]
    assert compiled_regions(trace, ["0"]) == [1, OUTSIDE, OUTSIDE]
    assert compiled_regions(trace) is None, "FSDP shards none of them"


class Chain(nn.Module):
    """Four pointwise operators."""

    def forward(self, given: Tensor) -> Tensor:
        """Return the chain's result."""
        return (given * 2 + 1).tanh().sigmoid()


def test_values_between_fused_operators_have_no_memory() -> None:
    given = torch.zeros(ROWS, WIDTH)
    eager, compiled = (estimated(Chain(), given, compiled=each) for each in (False, True))
    assert eager.peak_bytes == 3 * HIDDEN  # an operand and its result at once, and the input
    assert compiled.peak_bytes == 2 * HIDDEN


class Gated(nn.Module):
    """A product, a gate of pointwise operators and another product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        """Return the last product."""
        wide = self.first(given)
        return self.last(wide.sin() * wide.cos() + wide.exp())


def test_a_chain_between_two_products_is_computed_again_from_the_first() -> None:
    """Saved are the first product and what the second reads, which its backward pass needs in memory.

    Eager mode saves the sine, the cosine and the exponential, too.
    """
    given = torch.zeros(ROWS, WIDTH)
    eager, compiled = (saved(Gated(), given, compiled=each) for each in (False, True))
    assert compiled == 2 * HIDDEN
    assert eager == 5 * HIDDEN


class Picks(nn.Module):
    """A product, and pointwise operators on a softmax of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        """Return squares of the softmax."""
        return self.scores(given).tanh().softmax(-1).square()


def test_a_softmax_is_computed_again_from_a_product() -> None:
    """Eager mode saves the tangent and the softmax, which their derivatives need."""
    given = torch.zeros(ROWS, WIDTH)
    eager, compiled = (saved(Picks(), given, compiled=each) for each in (False, True))
    assert compiled == HIDDEN
    assert eager == 2 * HIDDEN


def saved_by_torch(module: nn.Module, given: Tensor) -> int:
    """Return the bytes that the partitioner saves, besides the graph's inputs."""
    from functorch.compile import nop  # type: ignore[import-untyped]
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    saved: dict[int, int] = {}

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
        *_, results = forward.graph.nodes
        kept = results.args[0][options["num_fwd_outputs"] :]
        values = [each.meta["val"] for each in kept]
        places = [each.meta["val"] for each in forward.graph.nodes if each.op == "placeholder"]
        inside = {_storage(each) for each in places if isinstance(each, Tensor)}
        tensors = [each for each in values if isinstance(each, Tensor)]
        saved.update(
            (_storage(each), each.untyped_storage().nbytes())
            for each in tensors
            if _storage(each) not in inside
        )
        return forward, backward

    backend = aot_autograd(
        fw_compiler=nop,
        bw_compiler=nop,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    torch.compile(module, backend=backend)(given).sum().backward()
    return sum(saved.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Perceptron(nn.Module):
    """A layer of a transformer without attention, with a residual connection."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.act = act
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, given: Tensor) -> Tensor:
        """Return the layer's result."""
        return given + self.down(self.act(self.up(self.norm(given))))


class SwiGlu(nn.Module):
    """A layer with a gate and an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        """Return the layer's result."""
        normed = self.norm(given)
        return given + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Loss(nn.Module):
    """A head in 16 bits whose loss is computed in 32: the scores of 16 bits are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 1000, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        """Return the cross entropy with the first class."""
        scores = self.head(given).bfloat16()
        targets = torch.zeros(len(given), dtype=torch.long, device=given.device)
        return F.cross_entropy(scores.float(), targets)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Chain(), nn.Linear(WIDTH, WIDTH)),
    "gated": Gated,
    "perceptron": lambda: Perceptron(F.gelu),
    "squared relu": lambda: Perceptron(lambda given: F.relu(given).square()),
    "three layers": lambda: nn.Sequential(*[Perceptron(F.gelu) for _ in range(3)]),
    "swiglu": lambda: nn.Sequential(*[SwiGlu() for _ in range(2)]),
    "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(), nn.Linear(WIDTH, 8)),
    "dropout in place": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Dropout(inplace=True), nn.Linear(WIDTH, 8)
    ),
    "loss": Loss,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_what_torchs_partitioner_saves(name: str) -> None:
    """But for statistics of rows, of which it saves others: at most 4 bytes for each in a layer."""
    model, given = MODELS[name]().train(), torch.zeros(ROWS, WIDTH)
    found = saved(model, given, compiled=True)
    assert found == pytest.approx(saved_by_torch(model, given), abs=3 * 4 * ROWS)
