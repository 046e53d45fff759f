"""Counts of NaN and Inf, on their own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchscan.inspecting.finiteness import (
    FINE,
    KnownTensors,
    NonFiniteCount,
    check_values,
    max_magnitudes_of,
    range_of,
    version_of,
)

NAN, INF = math.nan, math.inf
ONE_NAN, ONE_INF, BOTH = NonFiniteCount(1, 0), NonFiniteCount(0, 1), NonFiniteCount(1, 1)


def test_counts_are_added_by_kind() -> None:
    assert NonFiniteCount(1, 2) + NonFiniteCount(10, 20) == (11, 22)
    assert FINE.is_fine
    assert not any(each.is_fine for each in (ONE_NAN, ONE_INF, BOTH))


@pytest.mark.parametrize(
    ("after", "before", "is_worse"),
    [
        (FINE, FINE, False),
        (ONE_NAN, FINE, True),
        (ONE_NAN, ONE_INF, True),
        (BOTH, ONE_NAN, False),
        (ONE_INF, FINE, True),
        (ONE_INF, ONE_NAN, False),
        (ONE_INF, ONE_INF, False),
        (FINE, ONE_NAN, False),
    ],
)
def test_a_nan_is_worse_than_an_infinity(
    after: NonFiniteCount, before: NonFiniteCount, is_worse: bool
) -> None:
    assert after.is_worse_than(before) is is_worse


@pytest.mark.parametrize(
    ("counts", "others", "can_come"),
    [
        (ONE_NAN, [FINE, ONE_NAN], True),
        (ONE_NAN, [FINE, ONE_INF], False),
        (ONE_INF, [FINE, ONE_INF], True),
        (ONE_INF, [ONE_NAN, FINE], True),
        (ONE_INF, [FINE, FINE], False),
        (ONE_NAN, [], False),
        (ONE_INF, [], False),
    ],
)
def test_an_infinity_explains_no_nan(
    counts: NonFiniteCount, others: list[NonFiniteCount], can_come: bool
) -> None:
    assert counts.can_come_from(others) is can_come


TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_of_each_type_are_counted(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, NAN, INF, -INF, NAN, INF], dtype=dtype)
    assert check_values(values) == (2, 3)
    assert check_values(values[:1]) is FINE


@pytest.mark.parametrize("dtype", TYPES)
def test_a_sum_that_overflows_is_not_a_value(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    assert check_values(torch.full((4,), largest, dtype=dtype)) is FINE


def test_values_in_8_bits_are_counted() -> None:
    """Without infinities, 448 is the largest value."""
    values = torch.tensor([448.0, NAN, 1.0]).to(torch.float8_e4m3fn)
    assert check_values(values) == (1, 0)
    assert check_values(torch.tensor([448.0] * 4).to(torch.float8_e4m3fn)) is FINE


@pytest.mark.parametrize(
    "convert",
    [
        lambda matrix: matrix.to_sparse(),
        lambda matrix: matrix.to_sparse_csr(),
        lambda matrix: matrix.to_sparse_csc(),
        lambda matrix: matrix.to_sparse_bsr((1, 1)),
        lambda matrix: matrix.to_sparse_bsc((1, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_values_of_sparse_tensors_are_counted(convert: Callable[[Tensor], Tensor]) -> None:
    matrix = torch.tensor([[0.0, NAN], [INF, 1.0]])
    assert check_values(convert(matrix)) == (1, 1)


def test_parameters_are_counted_without_their_graph() -> None:
    values = torch.tensor([1.0, NAN], requires_grad=True)
    assert check_values(values) == (1, 0)
    assert check_values(torch.ones(2, requires_grad=True)) is FINE


def test_the_range_is_that_of_finite_values() -> None:
    assert range_of(torch.tensor([NAN, -3.0, INF, 2.0, -INF])) == (-3, 2)
    assert range_of(torch.tensor([NAN, INF])) is None
    assert range_of(torch.empty(0)) is None
    assert range_of(torch.tensor([3 + 4j, 0 + 1j])) == (1, 5)


def test_versions_count_writes_but_not_in_inference_mode() -> None:
    tensor = torch.zeros(2)
    assert version_of(tensor) == 0
    tensor.add_(1)
    assert version_of(tensor) == 1
    with torch.inference_mode():
        assert version_of(torch.zeros(2).add_(1)) == -1


# -- tensors that were checked -------------------------------------------------------------------


def test_a_tensor_is_known_until_it_is_written_to() -> None:
    known, tensor = KnownTensors(), torch.tensor([1.0, NAN])
    assert known.get(tensor) is None
    assert known.check_values(tensor) == (1, 0)
    assert known.get(tensor) == (1, 0)
    tensor[0] = INF
    assert known.get(tensor) is None
    assert known.check_values(tensor) == (1, 1)


def test_known_counts_are_not_counted_again() -> None:
    known, tensor = KnownTensors(), torch.ones(2)
    known.note(tensor, NonFiniteCount(7, 7))
    assert known.check_values(tensor) == (7, 7)


def test_a_view_of_a_finite_tensor_is_finite() -> None:
    known, finite, broken = KnownTensors(), torch.ones(4), torch.tensor([1.0, NAN])
    known.check_values(finite)
    known.check_values(broken)
    view = finite[1:]
    assert known.get(view) is FINE
    assert known.get(broken[:1]) is None, "it may be finite"
    assert known.get(torch.ones(4)[1:]) is None, "its base was not checked"
    finite[0] = NAN
    assert known.get(view) is None


def test_tensors_of_inference_mode_are_never_known() -> None:
    known = KnownTensors()
    with torch.inference_mode():
        tensor = torch.tensor([NAN])
    assert known.check_values(tensor) == (1, 0)
    assert known.get(tensor) is None


def test_all_tensors_are_counted_together() -> None:
    known = KnownTensors()
    tensors = [torch.tensor([NAN]), torch.ones(2), torch.tensor([INF, NAN])]
    assert known.check_all_values(tensors) == (2, 1)
    assert known.check_all_values([torch.ones(1), torch.ones(1)]) is FINE
    assert known.check_all_values([]) is FINE


def test_largest_magnitudes_leave_out_what_has_none() -> None:
    tensors: list[Tensor] = [torch.tensor([1.0, -3.0]), torch.empty(0), torch.tensor([INF, 1.0])]
    assert [float(each) for each in max_magnitudes_of(tensors)] == [3, INF]
    assert math.isnan(float(max_magnitudes_of([torch.tensor([1.0, NAN])])[0]))
    assert max_magnitudes_of([torch.empty(0)]) == []
    assert max_magnitudes_of([]) == []
    narrow = torch.tensor([2.0, -4.0], dtype=torch.float8_e5m2)
    assert [float(each) for each in max_magnitudes_of([narrow, torch.ones(1, device="meta")])] == [
        4
    ]
