"""What a training loop reserves on a card, worked out by hand, block by block, in MiB.

All blocks here are large ones. One below 10 comes from a segment of 20, one above has a segment of its own. The smallest free
block that is large enough is taken, and what is left of it is free if it is more than 1. Released neighbours in a segment
become one. On an H200, cuBLAS has a workspace of 32 for either thread: 64.

The model has two weights of 16, without biases. Of 2,048 rows, the input takes 8 (x), what is between the layers 32 (h), the
output 8 (y), and so do their gradients (g of the output, dh). The backward pass goes: g; dW2, dh; h is released; dW1; dh is
released; the optimizer finds g released, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchscan import InputError, Scan, estimate_memory, register_device
from torchscan.analyses.memory_estimate import Verdict
from torchscan.analyses.memory_placement import Placement
from torchscan.analyses.memory_timeline import MemoryTimeline
from torchscan.hardware import device_catalog
from torchscan.hardware.device_specs import device_named

MIB = 2**20
WORKSPACES = 2 * 32


@pytest.fixture
def no_cards_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_catalog, "_registered", {})


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1024, 4096, bias=False), nn.Linear(4096, 1024, bias=False))


def reserved(module: nn.Module | None = None, **options: Any) -> list[float]:
    """MiB after each step of 2,048 rows."""
    steps = Scan(
        module or model(), (1024,), batch_size=2048, training=True, device="H200", **options
    ).steps
    placement = Placement(steps, MemoryTimeline(steps), device_named("H200"))
    return [allocator.peak_reserved / MIB for allocator in placement.replay.run()]


def test_a_step_without_an_optimizer() -> None:
    """64 + [x 8, y 8, 4] + W1 16 + W2 16 + h 32 + [g 8, 12] + dW2 16 + dh 32; dW1 goes where h was."""
    assert reserved() == [WORKSPACES + 20 + 16 + 16 + 32 + 20 + 16 + 32]


def test_sgd_without_momentum_has_no_first_step_of_its_own() -> None:
    """And it needs no more than the backward pass: its update is in place."""
    assert reserved(optimizer="SGD") == reserved()


def test_sgd_with_momentum() -> None:
    """Its state goes where activations were, so there is no room for the next dh.

    Step 1, as above: 216, of which free are 16 (left of h, beside dW1), 20 (g's segment), 32 (dh) and 4. State of 16 for W1:
    the 16; for W2: into the 20, of which 4 are left. Still 216.

    Step 2: x, y and gradients are released. Free: 16 (dW2), 16 (dW1), 20 (x and y), 32 (dh), 4, 4. x: a 16, of which 8 are
    left. h: the 32. y: the 8. g: the other 16, of which 8 are left. dW2: the 20. dh: nothing is large enough, 32 more. dW1:
    where h was, in 32.
    """
    assert reserved(optimizer=lambda weights: torch.optim.SGD(weights, momentum=0.9)) == [
        216,
        216 + 32,
    ]


def test_adam() -> None:
    """Two states for each weight, and for a moment as much as all weights.

    Step 1: 216, free are 16, 20, 32 and 4. State of W1: the 16, and into the 20. State of W2: the 32, both halves. The square
    roots of 2 · 16: two segments more.

    Step 2: free are 16, 16 (the roots), 16 (dW2), 16 (dW1), 20 (x and y), 4. x and y: a 16. g: another one, half of it.
    h: 32 more. dW2: the third 16. dh: 32 more. dW1: the last 16. Released are h, dh and g, so the roots find 16 and 20.
    """
    assert reserved(optimizer="AdamW") == [216 + 2 * 16, 248 + 2 * 32]
    assert reserved(optimizer="Adam") == [216 + 2 * 16, 248 + 2 * 32]


def in_two_groups(weights: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{"params": [each]} for each in weights])


def test_the_state_of_a_second_group_comes_after_the_update_of_the_first() -> None:
    """Step 1: 216, free are 16, 20, 32 and 4. State of W1: the 16, and into the 20. Its root: half the 32.

    The root is released. State of W2: both halves. Its root: 16 more, 232.

    Step 2: free are 16 (the root), 16 (dW2), 16 (dW1), 20 (x and y), 4. x and y: a 16. g: another one, half of it. h: 32
    more. dW2: the third 16. dh: 32 more. dW1: into the 20. Either root: where g was.
    """
    assert reserved(optimizer=in_two_groups) == [216 + 16, 232 + 2 * 32]


def test_one_tensor_at_a_time_all_state_comes_before_the_first_update() -> None:
    """Step 1: 216, free are 16, 20, 32 and 4. The states fill 16, 16 of the 20, and 32.

    The root of W1 and what it is divided by: 2 · 16 more; the root is released, the quotient is held until the next one is
    there. The root of W2: where that of W1 was. Its quotient: 16 more.

    Step 2: free are 16, 16, 16 (roots and quotients), 16 (dW2), 16 (dW1), 20 (x and y), 4. x and y: a 16. g: another one,
    half of it. h: 32 more. dW2: the third 16. dh: 32 more. dW1: the fourth. g is released: 16, 16 and 20 are enough for the
    update.
    """
    assert reserved(optimizer=lambda weights: torch.optim.AdamW(weights, foreach=False)) == [
        216 + 3 * 16,
        264 + 2 * 32,
    ]


def test_a_fused_optimizer_needs_no_more_than_its_state() -> None:
    """Step 1: 216, and the states fill what is free. Its step counts are on the card: a segment of 2 for small blocks.

    Step 2: free are 16 (dW2), 16 (dW1), 20 (x and y), 4. x and y: a 16. g: the other one, half of it. h: 32 more. dW2: into
    the 20. dh: 32 more. dW1: where h was.
    """
    assert reserved(optimizer=lambda weights: torch.optim.AdamW(weights, fused=True)) == [
        216 + 2,
        218 + 2 * 32,
    ]


def test_gradients_that_add_up() -> None:
    """Two batches before a step. Without an optimizer one step is told, in which both are.

    The first as above, 216. Its result and its gradients are held. Free are 16 (left of h, beside dW1), 20, 32, 4. h: the 32.
    y: the 16, half of it. g: the other half. dW2: into the 20, added to the one there is, and released. dh: 32 more. dW1: the
    20 again.
    """
    assert reserved(accumulate=True) == [216 + 32]


def frozen() -> nn.Sequential:
    made = model()
    made.requires_grad_(False)
    return made.append(nn.LayerNorm(1024))


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "SGD"}, {"module": frozen()}],
    ids=["no optimizer", "no state", "frozen"],
)
def test_where_nothing_comes_about_in_the_first_step_one_is_enough(options: dict[str, Any]) -> None:
    assert len(reserved(**options)) == 1


def test_frozen_weights_have_no_state() -> None:
    """A norm alone is trained. Its weights, their gradients and states, 4 KiB each, share a segment of 2 for small blocks."""
    assert reserved(frozen(), optimizer="AdamW") == 2 * reserved(frozen())


def test_numbers_that_an_optimizer_computes_on_the_host_take_no_memory_of_the_card() -> None:
    estimate = estimate_memory(model(), (1024,), training=True, optimizer="AdamW", device="H200")
    assert estimate.by_kind["buffers"] == 0
    assert estimate.by_kind["optimizer"] == 4 * 16 * MIB


def test_most_is_in_use_in_the_second_step() -> None:
    """When dh is made: W1, W2, dW2 and four states of 16; h and dh; x, y and g. None of it is cut from anything larger."""
    verdict = estimate_memory(
        model(), (1024,), batch_size=2048, training=True, optimizer="AdamW", device="H200"
    ).verdict
    assert verdict is not None
    assert verdict.allocated_bytes == (WORKSPACES + 7 * 16 + 2 * 32 + 3 * 8) * MIB
    assert verdict.reserved_bytes == 312 * MIB


def test_room_for_the_first_step_alone_is_not_enough() -> None:
    """After the first step, 248 MiB are reserved; in the second, 264 are in use at once, and 312 reserved if there is room."""
    steps = Scan(
        model(), (1024,), batch_size=2048, training=True, optimizer="AdamW", device="H200"
    ).steps
    card = device_named("H200")
    for room, fits in ((248, False), (312, True)):
        small = replace(card, memory_bytes=card.memory_bytes - card.room_bytes + room * MIB)
        assert Placement(steps, MemoryTimeline(steps), small).fits is fits


def verdict_on(memory: int, **options: Any) -> Verdict:
    """Of a step with AdamW, of which 264 MiB are in use at once, and 312 reserved where there is room."""
    card = f"a card of {memory} MiB"
    register_device(
        card,
        memory_gb=memory / 1024 / 0.975 + 1e-9,
        bandwidth_gbs=1,
        dense_tflops={"fp32": 1},
        capability=9.0,
    )
    steps: Any = {
        "batch_size": 2048,
        "training": True,
        "optimizer": "AdamW",
        "device": card,
        **options,
    }
    verdict = estimate_memory(model(), (1024,), **steps).verdict
    assert verdict is not None
    assert verdict.capacity_bytes // MIB == memory
    return verdict


@pytest.mark.usefixtures("no_cards_of_ones_own")
@pytest.mark.parametrize(
    ("memory", "fits", "is_close"),
    [
        (1680 + 312, True, False),
        (512 + 312, True, True),
        (274 + 312, False, True),
        (274 + 263, False, False),
    ],
)
def test_it_is_close_where_the_context_decides(memory: int, fits: bool, is_close: bool) -> None:
    """512 MiB are assumed, 274 and 1,680 have been seen."""
    verdict = verdict_on(memory)
    assert (verdict.cuda_context_bytes, verdict.cuda_context_range) == (
        512 * MIB,
        (274 * MIB, 1680 * MIB),
    )
    assert (verdict.fits, verdict.is_close) == (fits, is_close)


@pytest.mark.usefixtures("no_cards_of_ones_own")
@pytest.mark.parametrize(("context", "fits"), [(500, True), (600, False)])
def test_a_context_that_is_given_is_one_number(context: int, fits: bool) -> None:
    """Beside 600 MiB there are 224 left of 824, and 264 are needed at least."""
    verdict = verdict_on(824, cuda_context=context * MIB)
    assert (verdict.cuda_context_bytes, verdict.cuda_context_range) == (
        context * MIB,
        (context * MIB, context * MIB),
    )
    assert (verdict.fits, verdict.is_close) == (fits, False)
    assert verdict.left_bytes == verdict.capacity_bytes - context * MIB - verdict.reserved_bytes


@pytest.mark.usefixtures("no_cards_of_ones_own")
def test_a_card_may_have_a_context_of_its_own_and_what_is_given_wins() -> None:
    register_device(
        "mine", memory_gb=1, bandwidth_gbs=1, dense_tflops={"fp32": 1}, cuda_context_mb=300.5
    )
    for given, expected in ((None, 300.5), (200 * MIB, 200), ("200 MiB", 200)):
        verdict = estimate_memory(model(), (1024,), device="mine", cuda_context=given).verdict
        assert verdict is not None
        assert verdict.cuda_context_range == (expected * MIB, expected * MIB)


@pytest.mark.parametrize("amount", [-1, 1.5, True, "a lot"])
def test_what_is_no_number_of_bytes_is_said(amount: Any) -> None:
    with pytest.raises(InputError, match=f"cuda_context is {amount!r}: give a number of bytes"):
        estimate_memory(model(), (1024,), device="H200", cuda_context=amount)


def test_a_context_belongs_to_a_device() -> None:
    with pytest.raises(InputError, match="cuda_context needs a device: give device="):
        estimate_memory(model(), (1024,), cuda_context=2**30)


def test_where_there_is_no_room_for_a_workspace_torch_does_without() -> None:
    """Of 1.4 GiB programs get 1,397 MiB and tensors 885: two of 256 MiB fit, and copies of both would not."""
    model = nn.Conv2d(64, 64, 1, bias=False)
    verdict = estimate_memory(model, (64, 1024, 1024), device="1.4 GiB").verdict
    assert verdict is not None
    assert verdict.fits
    assert 512 * 2**20 < verdict.reserved_bytes < 600 * 2**20


def test_how_much_is_reserved_is_unsure_by_the_workspaces() -> None:
    """Input and output of 256 MiB, 32 of cuBLAS and a segment of 2; a workspace takes 512 or nothing or twice as much."""
    verdict = estimate_memory(
        nn.Conv2d(64, 64, 1, bias=False), (64, 1024, 1024), device="H200"
    ).verdict
    assert verdict is not None
    tensors = (512 + 32 + 2) * MIB
    assert verdict.reserved_bytes == pytest.approx(tensors + 512 * MIB, abs=2 * MIB)
    assert 512 * MIB < verdict.reserved_range[0] <= tensors
    assert tensors + 1024 * MIB < verdict.reserved_range[1] < 1.03 * (tensors + 1024 * MIB)


def test_the_range_is_between_the_tensors_and_the_card() -> None:
    model = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)))
    for device in ("H200", "24 GiB", "17.5 GiB", "12 GiB"):
        estimate = estimate_memory(
            model, (64, 512, 512), batch_size=32, training=True, device=device
        )
        verdict = estimate.verdict
        assert verdict is not None
        least, most = verdict.reserved_range
        assert estimate.peak_bytes <= least <= verdict.reserved_bytes <= most
        assert not verdict.fits or most + verdict.cuda_context_bytes <= verdict.capacity_bytes


def test_without_convolutions_no_less_than_the_blocks_in_use() -> None:
    verdict = estimate_memory(model(), (1024,), batch_size=2048, device="H200").verdict
    assert verdict is not None
    least, most = verdict.reserved_range
    assert (
        verdict.allocated_bytes
        <= least
        <= verdict.reserved_bytes
        <= most
        < 1.03 * verdict.reserved_bytes
    )
