"""What FlopCounterMode leaves out, worked out from the operators while it counts: the rules that explain differences.

Nothing here asks torchscan: each rule is a formula over the tensors of one operator call.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


def _matrix_by_vector(out: Any, matrix: Tensor, *_: Any, **__: Any) -> int:
    del out
    return matrix.numel()


def _add_matrix_by_vector(out: Any, bias: Tensor, matrix: Tensor, *_: Any, **__: Any) -> int:
    del out, bias
    return matrix.numel()


def _attention(out: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    del out
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return pairs * (query.shape[-1] + value.shape[-1])


def _grouped(out: Tensor, left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    del right
    return out.numel() * left.shape[-1]


def _distances(out: Tensor, left: Tensor, *_: Any, **__: Any) -> int:
    return out.numel() * left.shape[-1]


def _affine_grid(out: Tensor, theta: Tensor, *_: Any, **__: Any) -> int:
    """Each position of the grid times the matrix of its image, in one operator."""
    return out.numel() * theta.shape[-1]


def _recurrent_layer(out: Any, inputs: Tensor, *weights: Tensor, **_: Any) -> int:
    """The products of one layer in one direction: each step multiplies by both matrices."""
    del out
    rows = inputs.shape[0] * inputs.shape[1]
    return rows * (weights[0].numel() + weights[1].numel())


#: operators that the counter meets and does not know -> the multiply-accumulates of one call
LEFT_OUT: Mapping[str, Callable[..., int]] = {
    "aten.mv": _matrix_by_vector,
    "aten.dot": _matrix_by_vector,
    "aten.vdot": _matrix_by_vector,
    "aten.addmv": _add_matrix_by_vector,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_fused_attention_overrideable": _attention,
    "aten._grouped_mm": _grouped,
    "aten._cdist_forward": _distances,
    "aten._euclidean_dist": _distances,
    "aten.affine_grid_generator": _affine_grid,
    "aten.mkldnn_rnn_layer": _recurrent_layer,
}


_COMPLEX = "products of complex matrices, of which it counts a quarter"
_SPARSE = "products with zeros of sparse matrices, which it counts"
#: products of matrices that the counter knows -> the position of the left matrix
_MATRICES = {"aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1}


class _Operators(TorchDispatchMode):
    """Entered before the counter, it sees every operator that the counter has come down to."""

    def __init__(self, found: Counter[str], calls: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found, self.calls = found, calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, then note what the counter would have to add."""
        out = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket)
        if name in LEFT_OUT:
            self.calls[name] += 1
            self.found[name] += LEFT_OUT[name](out, *args, **(kwargs or {}))
        if name in _MATRICES and out.is_complex():
            self.calls[_COMPLEX] += 1
            self.found[_COMPLEX] += 3 * out.numel() * args[_MATRICES[name]].shape[-1]
        if name == "aten.mm" and any(_is_sparse(each) for each in args):
            self.calls[_SPARSE] += 1
            self.found[_SPARSE] -= _products_with_zeros(out, *args)
        return out


def _is_sparse(matrix: Tensor) -> bool:
    return matrix.layout != torch.strided


def _products_with_zeros(out: Tensor, left: Tensor, right: Tensor) -> int:
    """Return the products that the counter has more than a product of stored elements needs."""
    if _is_sparse(left) and _is_sparse(right):
        needed = out._nnz()  # type: ignore[no-untyped-call]
    elif _is_sparse(left):
        needed = left._nnz() * right.shape[-1]  # type: ignore[no-untyped-call]
    else:
        needed = right._nnz() * left.shape[-2]  # type: ignore[no-untyped-call]
    return int(out.numel() * left.shape[-1] - needed)


_OUTER = "outer, by element-wise multiplication"
_EINSUM = "einsum, by element-wise multiplication"
_OUTERS = (torch.outer, torch.ger, Tensor.outer, Tensor.ger)


class _Functions(TorchFunctionMode):
    """Sees products that come apart into element-wise multiplications, which the counter does not know for products."""

    def __init__(self, found: Counter[str], calls: Counter[str]) -> None:
        super().__init__()
        self.found, self.calls = found, calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it, then run it."""
        if func in _OUTERS:
            products = args[0].numel() * args[1].numel()
            is_of_floats = torch.result_type(*args[:2]).is_floating_point  # of a position, too
            self._note(_OUTER, products if is_of_floats else 0)
        elif func is torch.einsum and isinstance(args[0], str):
            operands = args[1:] if isinstance(args[1], Tensor) else args[1]
            products = _products_without_sum(args[0].replace(" ", ""), operands)
            is_complex = any(each.is_complex() for each in operands)
            self._note(_EINSUM, products * (4 if is_complex else 1))
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, macs: int) -> None:
        self.calls[name] += macs > 0
        self.found[name] += macs


def _products_without_sum(equation: str, operands: Sequence[Tensor]) -> int:
    """Return the products of pairs of operands without a sum; einsum multiplies matrices for others.

    An index of size one in one operand is summed in the other before they are multiplied.
    """
    names, result = _without_ellipses(equation, operands)
    terms = [_sizes_of(name, each) for name, each in zip(names, operands, strict=True)]
    total = 0
    for first, second in _path_of(",".join(names) + f"->{result}", operands):
        right, left = terms.pop(max(first, second)), terms.pop(min(first, second))
        needed = set(result).union(*terms)
        sizes = {i: max(left.get(i, 1), right.get(i, 1)) for i in (*left, *right)}
        kept = {index: size for index, size in sizes.items() if index in needed}
        summed = set(left) & set(right) - needed
        if all(min(left[index], right[index]) == 1 for index in summed):
            total += math.prod(kept.values())
        terms.append(kept)
    return total


def _sizes_of(name: str, operand: Tensor) -> dict[str, int]:
    return dict(zip(name, operand.shape, strict=True))


def _path_of(equation: str, operands: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the pairs that einsum multiplies, by position; a result goes to the end."""
    if len(operands) < 3:
        return [(0, 1)] * (len(operands) - 1)
    if not (torch.backends.opt_einsum.is_available() and torch.backends.opt_einsum.enabled):
        return [(0, 1), *((0, last) for last in range(len(operands) - 2, 0, -1))]
    optimize = torch.backends.opt_einsum.strategy or "auto"
    path = torch.backends.opt_einsum.get_opt_einsum().contract_path(
        equation, *operands, optimize=optimize
    )[0]
    return [tuple(pair) for pair in path if len(pair) == 2]


def _without_ellipses(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the operands' indices and the result's, with digits for the axes that "..." stands for."""
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    longest = ""
    for position, (term, each) in enumerate(zip(terms, operands, strict=True)):
        missing = each.ndim - len(term.replace("...", ""))
        digits = "".join(str(axis) for axis in reversed(range(missing)))  # from the last axis on
        longest = max(longest, digits, key=len)
        terms[position] = term.replace("...", digits)
    if not arrow:  # indices that occur once, in the order of the alphabet
        letters = inputs.replace("...", "").replace(",", "")
        result = "..." + "".join(i for i in sorted(set(letters)) if letters.count(i) == 1)
    return terms, result.replace("...", longest)


class Counted:
    """What the counter reports for one call, in multiply-accumulates, and what the rules add."""

    def __init__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self.left_out, self.calls = Counter[str](), Counter[str]()
        operators, functions = (
            _Operators(self.left_out, self.calls),
            _Functions(self.left_out, self.calls),
        )
        with (
            _without_gradients(model),
            torch.no_grad(),
            functions,
            operators,
            FlopCounterMode(display=False) as counter,
        ):
            model(*args, **kwargs)
        self.macs = counter.get_total_flops() // 2


@contextlib.contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """The counter hooks into gradients, which some models give it no chance to; and it does not know torch's fast path."""
    fast = torch.backends.mha.get_fastpath_enabled()
    learned = [each for each in model.parameters() if each.requires_grad]
    torch.backends.mha.set_fastpath_enabled(False)
    for each in learned:
        each.requires_grad_(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for each in learned:
            each.requires_grad_(True)
