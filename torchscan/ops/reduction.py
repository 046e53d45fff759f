"""Sums, means, extremes and norms over dimensions; cumulative sums; sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchscan.ops.op_costs import Work
from torchscan.ops.operator_names import Operator
from torchscan.ops.per_element import Output, first_output, per_element, per_input, real_parts
from torchscan.ops.registry import Formula, cost_of, traffic_of, window_of
from torchscan.ops.windows import Looks, UpTo, elementwise, look, mixed, reduced, same_dims, wrapped
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


def _reduction(per_input: int, per_output: int, of_complex: int = 2) -> Formula:
    def reduce(self: TensorSpec, *_: Any, out: Output, **_kwargs: Any) -> Work:
        """FLOPs = per_input · numel(in) + per_output · numel(out)."""
        flops = per_input * self.accessed_numel
        flops += per_output * first_output(out).numel
        if self.dtype.is_complex:
            flops *= of_complex
        return Work(other_flops=max(flops, 0))

    return reduce


def _declare(per_input: int, per_output: int, *operators: Operator) -> None:
    cost_of(*operators)(_reduction(per_input, per_output))
    window_of(*operators)(reduction_window)


def reduction_window(
    self: TensorSpec, *_: object, dim: Sequence[int] | int | None = None, out: Output
) -> Looks:
    """Read all elements along the named dimensions, or along all if none are named."""
    return (reduced(self, dim, first_output(out)),)


# n inputs per output: n − 1 steps
_declare(
    1,
    -1,
    "aten::sum",
    "aten::amax",
    "aten::amin",
    "aten::argmax",
    "aten::argmin",
    "aten::all",
    "aten::any",
    "aten::_sparse_sum",
)
_declare(
    1,
    -1,
    "aten::count_nonzero",
    "aten::_is_all_true",
    "aten::_is_any_true",
    "aten::segment_reduce",
    "aten::hash_tensor",
)
# each is also compared with NaN
_declare(2, -1, "aten::nansum")
# both ends
_declare(2, -2, "aten::aminmax", "aten::_aminmax")
# a complex product costs 3 times as much as a complex sum
cost_of(aten.prod)(_reduction(1, -1, of_complex=6))
window_of(aten.prod, aten.median, aten.nanmedian, aten.kthvalue, aten.mode)(reduction_window)
# n − 1 additions and a division
_declare(1, 0, "aten::mean")
# mean and centering, square, sum
_declare(4, 0, "aten::var", "aten::var_mean")
_declare(4, 1, "aten::std", "aten::std_mean")
# square or absolute value, n − 1 additions, a root
_declare(
    2, 0, "aten::linalg_vector_norm", "aten::norm", "aten::frobenius_norm", "aten::native_norm"
)
# and the differences
cost_of(aten.dist)(_reduction(3, 0))
# the norm of each slice, and a product
cost_of(aten.renorm)(_reduction(3, 0))
# exponential, n − 1 additions, logarithm; shifted by the largest, which takes n − 1 comparisons, n
# subtractions, one addition
_declare(4, 0, "aten::logsumexp")
# the bin of each: subtract the lower end, divide by the width
_declare(2, 0, "aten::histc")


@cost_of(aten.max, aten.min)
def extreme(self: TensorSpec, *others: Any, out: Output) -> Work | None:
    """Return the cost of n − 1 comparisons per output, over a dimension or everything.

    Of two tensors: one per element.
    """
    if others and isinstance(others[0], TensorSpec):
        return Work(other_flops=first_output(out).numel)
    return _reduction(1, -1)(self, out=out)


@window_of(aten.max, aten.min)
def extreme_window(
    self: TensorSpec, *others: Any, inputs: tuple[TensorSpec, ...], out: Output
) -> Looks:
    """Read along a dimension or everything, or element by element."""
    if len(inputs) > 1:
        return elementwise(inputs=inputs, out=out)
    dims = [each for each in others if type(each) is int]
    return reduction_window(self, dim=dims[0] if dims else None, out=out)


@window_of(
    aten.cumsum, aten.cumprod, aten.cummax, aten.cummin, aten.logcumsumexp, aten._logcumsumexp
)
def running_window(self: TensorSpec, *_: object, dim: int = -1, out: Output) -> Looks:
    """Read the elements along the dimension up to the own place."""
    if not self.shape:
        return (None,)
    rank = len(self.shape)
    dims = same_dims(rank)
    dims[wrapped(dim, rank)] = UpTo(wrapped(dim, rank))
    return (look(first_output(out), *dims),)


@window_of(aten.sort, aten.argsort, aten.topk)
def along_dimension_window(self: TensorSpec, *_: object, dim: int = -1, out: Output) -> Looks:
    """Read all elements along the dimension."""
    return (mixed(self, dim, first_output(out)) if self.shape else None,)


@window_of(aten.renorm)
def renorm_window(self: TensorSpec, p: float, dim: int, *_: object, out: TensorSpec) -> Looks:
    """Read all of the slice at the same place along the dimension."""
    rank = len(self.shape)
    others = [each for each in range(rank) if each != wrapped(dim, rank)]
    return (mixed(self, others, out),)


@window_of(aten.msort)
def sort_window(self: TensorSpec, *, out: TensorSpec) -> Looks:
    """Read all elements along the first dimension."""
    return (mixed(self, 0, out) if self.shape else None,)


@cost_of(aten.cumprod)
def running_product(self: TensorSpec, dim: int, *_: Any, out: Output, **_kwargs: Any) -> Work:
    """N − 1 products in each row of n; a complex one is 6 operations."""
    per_step = 6 if self.dtype.is_complex else 1
    return Work(other_flops=per_step * _steps(self, dim))


@cost_of(aten.cumsum, aten.cummax, aten.cummin)
def scan(self: TensorSpec, dim: int, *_: Any, out: Output, **_kwargs: Any) -> Work:
    """N − 1 steps in each row of n."""
    return Work(other_flops=real_parts(self) * _steps(self, dim))


@cost_of(aten._cummax_helper, aten._cummin_helper)
def scan_into(
    self: TensorSpec, values: TensorSpec, indices: TensorSpec, dim: int, *, out: object
) -> Work:
    """N − 1 steps in each row of n, into existing tensors."""
    flops = _steps(self, dim)
    return Work(other_flops=flops, elements_read=self.numel, bytes_read=self.stored_bytes)


@cost_of(aten._logcumsumexp, aten.logcumsumexp)
def log_scan(self: TensorSpec, dim: int, *, out: TensorSpec) -> Work:
    """A logaddexp, 5, in each of n − 1 steps."""
    return Work(other_flops=5 * _steps(self, dim))


def _steps(self: TensorSpec, dim: int) -> int:
    rows = self.numel // max(self.shape[dim], 1) if self.shape else 1
    return max(self.numel - rows, 0)


@cost_of(aten.sort, aten.argsort, aten.msort)
def sort(self: TensorSpec, *args: Any, dim: int = -1, out: Output, **_kwargs: Any) -> Work:
    """⌈log2 n⌉ comparisons per element, in rows of n."""
    for each in args:
        if isinstance(each, int) and not isinstance(each, bool):
            dim = each
            break
    row = self.shape[dim] if self.shape else 1
    return Work(other_flops=self.numel * _halvings(max(row, 1)))


def _halvings(number: int) -> int:
    """Return ⌈log2 n⌉, the comparisons of a binary search among n places."""
    return math.ceil(math.log2(number))


@cost_of(aten.topk)
def topk(self: TensorSpec, k: int, *_: Any, out: Output) -> Work:
    """⌈log2(k + 1)⌉ comparisons per element: each may enter a heap of k."""
    return Work(other_flops=self.numel * _halvings(k + 1))


@cost_of(aten.mode, aten._unique2, aten._unique, aten.unique_dim)
def sorting(self: TensorSpec, *_: Any, out: Output, **_kwargs: Any) -> Work:
    """Everything is sorted: ⌈log2 n⌉ comparisons per element."""
    return Work(other_flops=self.numel * _halvings(max(self.numel, 1)))


# quickselect halves what is left each time: 2n comparisons
per_input(2, "aten::median", "aten::nanmedian", "aten::kthvalue")
per_input(6, "aten::allclose")  # |x − y| ≤ a + r·|y|
per_input(1, "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::trace")


@cost_of(aten.searchsorted)
def search(
    sorted_sequence: TensorSpec, self: TensorSpec | float, *_: Any, out: TensorSpec, **_kwargs: Any
) -> Work:
    """⌈log2(n + 1)⌉ comparisons per value, in a row of n."""
    row = sorted_sequence.shape[-1]
    return Work(other_flops=out.numel * _halvings(row + 1))


@cost_of(aten.bucketize)
def bucketize(
    self: TensorSpec | float, boundaries: TensorSpec, *_: Any, out: TensorSpec, **_kwargs: Any
) -> Work:
    """⌈log2(n + 1)⌉ comparisons per value, for n boundaries."""
    return Work(other_flops=out.numel * _halvings(boundaries.numel + 1))


@cost_of(aten.isin)
def membership(
    elements: TensorSpec | float,
    test_elements: TensorSpec | float,
    *_: Any,
    out: TensorSpec,
    **_kwargs: Any,
) -> Work:
    """A few are compared with all.

    More than 10·n^0.145, the kernel's threshold, are sorted: ⌈log2 n⌉ comparisons each.
    """
    sought = elements.numel if isinstance(elements, TensorSpec) else 1
    known = test_elements.numel if isinstance(test_elements, TensorSpec) else 1
    if known < 10 * sought**0.145:
        return Work(other_flops=sought * known)
    sorted_together = sought + known
    return Work(other_flops=sorted_together * _halvings(sorted_together))


@cost_of(aten.bincount)
def bincount(self: TensorSpec, weights: TensorSpec | None = None, *_: Any, out: TensorSpec) -> Work:
    """One sum per weight."""
    return Work(other_flops=0 if weights is None else weights.numel)


@cost_of(aten.multinomial)
def multinomial(
    self: TensorSpec, num_samples: int, *_: Any, out: TensorSpec, **_kwargs: Any
) -> Work:
    """Running sums of the weights, normalized (2 each), and a binary search per sample."""
    choices = self.shape[-1]
    searches = out.numel * _halvings(choices + 1)
    return Work(other_flops=2 * self.numel + searches)


per_element(1, "aten::cummaxmin_backward", "aten::value_selecting_reduction_backward")


@traffic_of(aten.nonzero, aten.argwhere, aten.nonzero_static, aten.equal)
def comparison_with_zero(self: TensorSpec, *_: Any, out: Output, **_kwargs: Any) -> Work:
    """Return the traffic of reading everything and writing the positions."""
    return Work()
