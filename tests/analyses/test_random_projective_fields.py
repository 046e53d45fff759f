"""Projective fields of random models against receptive fields and back-propagation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tests.analyses.test_random_receptive_fields as random_graphs
from tests.analyses import gradient_oracle as oracle
from torchscan import projective_field, receptive_field
from torchscan.analyses.projective_field import mask_sizes
from torchscan.types import AxisField, AxisReach


@st.composite
def local_layers(draw: st.DrawFn) -> nn.Conv1d:
    """Return a convolution that may skip places or leave gaps."""
    kernel = draw(st.integers(1, 5))
    stride = draw(st.integers(1, 3))
    padding = draw(st.integers(0, 3))
    dilation = draw(st.integers(1, 3))
    return nn.Conv1d(2, 2, kernel, stride, padding, dilation=dilation)


@settings(max_examples=30, deadline=None)
@given(st.lists(local_layers(), min_size=1, max_size=2))
def test_only_positions_that_a_unit_sees_reach_it(layers: list[nn.Conv1d]) -> None:
    """All of them do, if nothing is left out between them and no border is near."""
    model = nn.Sequential(*layers)
    (reach,) = projective_field(model, (2, 96)).output.axes
    (field,) = receptive_field(model, (2, 96)).output.axes
    assert (reach.dim, reach.units) == (field.dim, field.units)
    is_dense = all(layer.dilation == (1,) and layer.kernel_size >= layer.stride for layer in layers)
    for position in range(96):
        seeing = _units_that_see(field, position)
        reached = reach.interval(position)
        if isinstance(reached, tuple):
            first, last = reached
            assert seeing[0] <= first <= last <= seeing[-1]
        if is_dense and 40 <= position < 56:
            assert reached == ((seeing[0], seeing[-1]) if seeing else None)


def _units_that_see(field: AxisField, position: int) -> list[int]:
    seeing: list[int] = []
    for unit in range(field.units or 0):
        span = field.interval(unit)
        if span is not None and span[0] <= position <= span[1]:
            seeing.append(unit)
    return seeing


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(random_graphs.steps_of(random_graphs.SIGNAL_STEPS))
def test_random_graphs_of_signals_reach_what_gradients_say(
    steps: list[random_graphs.Step],
) -> None:
    model = random_graphs.Graph(steps, random_graphs.SIGNAL_STEPS, 4)
    _agrees(model, (random_graphs.CHANNELS, 24))


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(random_graphs.steps_of(random_graphs.IMAGE_STEPS))
def test_random_graphs_of_images_reach_what_gradients_say(steps: list[random_graphs.Step]) -> None:
    model = random_graphs.Graph(steps, random_graphs.IMAGE_STEPS, 4)
    _agrees(model, (random_graphs.CHANNELS, 10, 8))


def _agrees(model: random_graphs.Graph, shape: tuple[int, ...]) -> None:
    # a product with a zero of padding has no gradient
    assume(not any(step.name == "gated" for step in model.steps))
    (x,) = oracle.new_inputs([shape])
    output = model(x)
    dims = tuple(range(2, x.dim()))
    field = projective_field(model, args=(x,), axes={"args[0]": dims})
    gradients = [
        torch.autograd.grad(element, x, retain_graph=True, allow_unused=True)[0]
        for element in output.flatten()
    ]
    for axis in field.output.axes:
        others = [dim for dim in range(x.dim()) if dim != axis.axis]
        seen = [
            torch.zeros(axis.length, dtype=torch.bool) if each is None else each.ne(0).any(others)
            for each in gradients
        ]
        changes = torch.stack(seen, 1).view(axis.length, *output.shape)
        for position in range(axis.length):
            _compare(axis, position, changes[position])


def _compare(axis: AxisReach, position: int, changes: Tensor) -> None:
    if axis.dim is None:
        is_reached = axis.status != "none" and axis.counts[position] > 0
        assert is_reached == bool(changes.any())
        return
    units = changes.movedim(axis.dim, 0).flatten(1).any(1).nonzero().flatten().tolist()
    reached = axis.interval(position)
    if reached is None:
        assert not units
        return
    assert isinstance(reached, tuple)
    assert (reached, axis.counts[position]) == ((units[0], units[-1]), len(units))


def test_positions_are_followed_in_parts_if_masks_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, (3, 1)), nn.Flatten(2))
    complete = projective_field(model, (3, 200, 9)).to_dict()
    monkeypatch.setattr(mask_sizes, "MAX_WORDS", 100)
    assert projective_field(model, (3, 200, 9)).to_dict() == complete
