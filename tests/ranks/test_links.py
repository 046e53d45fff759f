"""How long collectives take, against times worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchscan
from torchscan.analyses.roofline.exposed_collectives import Waiting

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS, WIDTH, DEVICE = 4096, 1024, "NVIDIA H100 80GB HBM3"
#: of 4 bytes each
SIZE = 4 * ROWS * WIDTH
#: bytes per second of links in one direction that eight devices reach, with NVLink's switch, and of
#: the network
LINKS, SWITCH, NETWORK = 0.69 * 450e9, 0.92 * 450e9, 0.9 * 50e9
#: of all-gathers and reduce-scatters on Hopper
RINGS = 1.09 * LINKS


def pipeline(sent: float) -> float:
    """Return the seconds until pieces of so many bytes fill a pipeline: half of 18 µs at 1.8 MB."""
    return 18e-6 * sent / (sent + 1.8e6)


def added(sent: float, rate: float) -> float:
    """Return the seconds that twice as many bytes take longer inside a machine."""
    return sent / rate + pipeline(2 * sent) - pipeline(sent)


class Telling(nn.Module):
    """Tells all along a dimension of the mesh something."""

    def __init__(self, mesh: Any, along: str, kind: str) -> None:
        super().__init__()
        self.mesh, self.along, self.kind = mesh, along, kind

    def forward(self, x: Tensor) -> Tensor:
        import torch.distributed._functional_collectives as functional

        group = (self.mesh, list(self.mesh.mesh_dim_names).index(self.along))
        if self.kind == "all-reduce":
            return functional.all_reduce(x, "sum", group)
        if self.kind == "all-gather":
            return functional.all_gather_tensor(x, 0, group)
        return functional.all_to_all_single(x, None, None, group)


def seconds(mesh: dict[str, int], along: str, kind: str, device: str = DEVICE) -> float:
    """Without what the smallest takes."""

    def told(width: int) -> float:
        plan = torchscan.parallel.plan(
            lambda: nn.Identity(),
            mesh=mesh,
            apply=lambda _, devices: Telling(devices, along, kind),
            args=[torch.zeros(ROWS, width)],
            device=device,
        )
        (found,) = plan.collectives
        assert found.seconds is not None
        return found.seconds

    return told(2 * WIDTH) - told(WIDTH)


@pytest.mark.parametrize(
    ("mesh", "along", "kind", "expected"),
    [
        ({"tp": 8}, "tp", "all-reduce", added(2 * SIZE * 7 / 8, SWITCH)),
        ({"tp": 8}, "tp", "all-gather", added(8 * SIZE * 7 / 8, RINGS)),
        ({"tp": 8}, "tp", "all-to-all", added(SIZE * 7 / 8, LINKS)),
        # one device in each of two machines
        ({"dp": 2, "tp": 8}, "dp", "all-reduce", 2 * SIZE / 2 / NETWORK),
        # two machines of eight: what each needs is sent to it once, by all of its cards
        (
            {"dp": 16},
            "dp",
            "all-gather",
            max(added(16 * SIZE * 15 / 16, RINGS), 16 * SIZE / 2 / 8 / NETWORK),
        ),
        # half of what each device sends to others goes to another machine, and to nobody else
        ({"dp": 16}, "dp", "all-to-all", SIZE / 2 / NETWORK),
    ],
)
def test_bytes_over_the_slowest_link(
    mesh: dict[str, int], along: str, kind: str, expected: float
) -> None:
    assert seconds(mesh, along, kind) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "steps"), [("all-reduce", 2), ("all-gather", 1), ("all-to-all", 1)]
)
def test_a_ring_has_a_step_for_each_other_device(kind: str, steps: int) -> None:
    """A small tensor on 2, 4 and 8 devices: a microsecond for each step, after 9,500 cycles."""
    for devices in (2, 4, 8):
        plan = torchscan.parallel.plan(
            lambda: nn.Identity(),
            mesh={"tp": devices},
            apply=lambda _, mesh: Telling(mesh, "tp", kind),
            args=[torch.zeros(8, 1)],
            device=DEVICE,
        )
        (found,) = plan.collectives
        waited = 9500 / 1.83e9 + 1e-6 * steps * (devices - 1)
        assert found.seconds == pytest.approx(waited, rel=1e-2)


def test_a_ring_through_machines_has_a_step_for_each_device() -> None:
    """A small tensor on four machines of eight: 3.4 µs inside of each, 14 µs between two."""
    plan = torchscan.parallel.plan(
        lambda: nn.Identity(),
        mesh={"dp": 32},
        apply=lambda _, mesh: Telling(mesh, "dp", "all-gather"),
        args=[torch.zeros(8, 1)],
        device=DEVICE,
    )
    (found,) = plan.collectives
    assert found.seconds == pytest.approx(9500 / 1.83e9 + 28 * 3.4e-6 + 4 * 14e-6, rel=1e-2)


@pytest.mark.parametrize(
    ("computing", "behind", "left"),
    [(1.0, 0.4, 0.45 * 0.4), (1.0, 1.8, 0.45 * 1.8), (1.0, 3.0, 2.0), (0.0, 1.0, 1.0)],
)
def test_collectives_in_the_background_slow_the_computation_down(
    computing: float, behind: float, left: float
) -> None:
    """Computation loses 45 % of their time; what goes on after its end is waited for."""
    waiting = Waiting(computing=computing, waited_for=0.0, behind=behind)
    assert waiting.left == pytest.approx(left)


def test_bridges_join_neighbours() -> None:
    """Of two cards that are four places apart, what they tell each other goes over PCIe."""
    near, far = (
        seconds({"a": 2, "b": 4}, along, "all-reduce", "NVIDIA RTX A6000") for along in ("b", "a")
    )
    pcie = 16 * 16e9 * 128 / 130 / 8
    assert far == pytest.approx(added(2 * SIZE / 2, 0.62 * pcie))
    assert near == pytest.approx(added(2 * SIZE * 3 / 4, 0.16 * pcie))  # four are two pairs
    paired = seconds({"a": 4, "b": 2}, "b", "all-reduce", "NVIDIA RTX A6000")
    assert paired == pytest.approx(added(2 * SIZE / 2, 0.55 * 56.25e9))


class ReducedInput(torch.autograd.Function):
    """A linear function whose backward pass adds up the gradient of the input, which is read next."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        of_weight, of_x = x.T @ gradient, gradient @ weight.T
        torch.distributed.all_reduce(of_x)
        return of_x, of_weight


class ReducedWeight(ReducedInput):
    """The same, but it adds up the gradient of the weight, which no kernel reads."""

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        of_weight = x.T @ gradient
        torch.distributed.all_reduce(of_weight)
        return gradient @ weight.T, of_weight


class Reducing(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([torch.zeros(WIDTH, WIDTH) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = self.function.apply(x, weight)
        return x


@pytest.mark.parametrize(("function", "is_hidden"), [(ReducedInput, False), (ReducedWeight, True)])
def test_collectives_whose_result_is_read_next_are_waited_for(
    function: type[torch.autograd.Function], is_hidden: bool
) -> None:
    plan = torchscan.parallel.plan(
        lambda: nn.Identity(),
        mesh={"dp": 8},
        apply=lambda _model, _mesh: Reducing(function),
        args=[torch.zeros(ROWS, WIDTH)],
        device=DEVICE,
        training=True,
    )
    assert sum(each.calls for each in plan.collectives) == 6
    alone = sum(each.seconds or 0.0 for each in plan.collectives)
    assert plan.roofline is not None
    waited_for = sum(
        each.time_estimate for each in plan.roofline.operators if each.limiter == "links"
    )
    hidden = [note for note in plan.roofline.assumptions if note.code == "collectives-hidden"]
    assert bool(hidden) == is_hidden
    if is_hidden:
        assert waited_for < alone
    else:
        assert waited_for == pytest.approx(alone)
