"""Factorizations of n × n matrices, and solving with them.

Not contractions in the sense of papers: FLOPs only.

Counts are the leading terms of the textbook algorithms (Golub & Van Loan); algorithms that iterate
until they converge are counted with their customary number of iterations.
"""

from __future__ import annotations

import math

from torchscan.ops.op_costs import Work
from torchscan.ops.per_element import Output, first_output
from torchscan.ops.registry import Formula, cost_of, declare_costless
from torchscan.torch_versions import aten
from torchscan.trace.events import TensorSpec


def _cubic(thirds: int) -> Formula:
    def factorization(self: TensorSpec, *_: object, out: Output, **_kwargs: object) -> Work:
        """FLOPs = thirds · n³ / 3 for each matrix."""
        matrices, _rows, size = _sizes(self)
        cubes = matrices * size**3
        flops = thirds * cubes // 3
        return Work(other_flops=flops)

    return factorization


cost_of(aten.linalg_cholesky_ex, aten.linalg_cholesky, aten.cholesky)(_cubic(1))
cost_of(aten.cholesky_inverse)(_cubic(2))
cost_of(aten._linalg_det, aten._linalg_slogdet)(_cubic(2))  # an LU factorization
cost_of(aten.linalg_inv_ex, aten.inverse)(_cubic(6))  # LU and n solutions
cost_of(aten.linalg_ldl_factor_ex)(_cubic(1))


@cost_of(aten.linalg_lu_factor_ex, aten.linalg_lu, aten._lu_with_info)
def lu_factorization(A: TensorSpec, *_: object, out: Output, **_kwargs: object) -> Work:
    """FLOPs = m·n² − n³/3 for an m × n matrix, m ≥ n: 2n³/3 for a square one."""
    matrices, tall, narrow = _sorted_sizes(A)
    square, cube = tall * narrow**2, narrow**3
    thirds = matrices * (3 * square - cube)
    return Work(other_flops=thirds // 3)


@cost_of(aten._linalg_solve_ex)
def solve(A: TensorSpec, B: TensorSpec, *_: object, out: Output, **_kwargs: object) -> Work:
    """Return the FLOPs of an LU factorization, 2n³/3, and of two triangular systems.

    These take 2n² per right-hand side.
    """
    matrices, _rows, size = _sizes(A)
    cubes = matrices * size**3
    factors = 2 * cubes // 3
    systems = 2 * size * first_output(out).numel
    return Work(other_flops=factors + systems)


@cost_of(aten.linalg_solve_triangular, aten.triangular_solve)
def solve_triangular(*_: object, out: Output, **_kwargs: object) -> Work:
    """FLOPs = n² per right-hand side: n per element of the result."""
    return Work(other_flops=_solve_triangle(first_output(out)))


@cost_of(
    aten.cholesky_solve, aten._cholesky_solve_helper, aten.linalg_lu_solve, aten.linalg_ldl_solve
)
def solve_factorized(*_: object, out: Output, **_kwargs: object) -> Work:
    """Return the FLOPs of two triangular systems: 2n² per right-hand side."""
    return Work(other_flops=2 * _solve_triangle(first_output(out)))


@cost_of(aten.linalg_qr)
def qr(A: TensorSpec, mode: str = "reduced", *, out: Output) -> Work:
    """FLOPs = 2n²(m − n/3) for R, and as many for Q, unless only R is wanted (m ≥ n)."""
    flops = _householder(A) * (1 if mode == "r" else 2)
    return Work(other_flops=flops)


@cost_of(aten.geqrf, aten.linalg_householder_product, aten.ormqr)
def householder(A: TensorSpec, *_: object, out: Output, **_kwargs: object) -> Work:
    """FLOPs = 2n²(m − n/3)."""
    return Work(other_flops=_householder(A))


@cost_of(aten._linalg_svd)
def singular_values(
    A: TensorSpec, full_matrices: bool = False, compute_uv: bool = True, *_: object, out: Output
) -> Work:
    """FLOPs = 14·m·n² + 8n³ with vectors, 4·m·n² − 4n³/3 without (m ≥ n)."""
    matrices, tall, narrow = _sorted_sizes(A)
    square, cube = tall * narrow**2, narrow**3
    if compute_uv:
        return Work(other_flops=matrices * (14 * square + 8 * cube))
    each = 4 * square - 4 * cube // 3
    return Work(other_flops=matrices * each)


@cost_of(aten.linalg_pinv)
def pseudo_inverse(A: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object) -> Work:
    """FLOPs of singular values and vectors, and 2·m·n² for their product in reverse order."""
    decomposition = singular_values(A, out=out).other_flops
    matrices, tall, narrow = _sorted_sizes(A)
    product = 2 * matrices * tall * narrow**2
    return Work(other_flops=decomposition + product)


@cost_of(aten.linalg_lstsq)
def least_squares(
    self: TensorSpec, B: TensorSpec, *_: object, out: Output, **_kwargs: object
) -> Work:
    """FLOPs = 2n²(m − n/3) for QR (m ≥ n), then for each right-hand side 4·m·n − n².

    A right-hand side takes 4·m·n − 2n² to apply Q and n² to solve.
    """
    matrices, tall, narrow = _sorted_sizes(self)
    num_sides = B.shape[-1] if len(B.shape) > 1 else 1
    per_side = 4 * tall * narrow - narrow**2
    solutions = matrices * num_sides * per_side
    return Work(other_flops=_householder(self) + solutions)


@cost_of(aten._linalg_eigh)
def symmetric_eigenvalues(
    A: TensorSpec, UPLO: str = "L", compute_v: bool = True, *, out: Output
) -> Work:
    """FLOPs = 9n³ with vectors, 4n³/3 without."""
    matrices, _rows, size = _sizes(A)
    cube = size**3
    if compute_v:
        return Work(other_flops=9 * matrices * cube)
    return Work(other_flops=matrices * (4 * cube // 3))


@cost_of(aten.linalg_eig)
def eigenvalues(self: TensorSpec, *, out: Output) -> Work:
    """FLOPs = 25n³ with vectors."""
    matrices, _rows, size = _sizes(self)
    return Work(other_flops=25 * matrices * size**3)


@cost_of(aten._linalg_eigvals, aten.linalg_eigvals)
def eigenvalues_only(self: TensorSpec, *, out: Output) -> Work:
    """FLOPs = 10n³."""
    matrices, _rows, size = _sizes(self)
    return Work(other_flops=10 * matrices * size**3)


@cost_of(aten.linalg_matrix_exp)
def matrix_exponential(self: TensorSpec, *, out: TensorSpec) -> Work:
    """FLOPs = 10n³: five products for the Taylor polynomial of degree 18.

    See Bader, Blanes & Casas.

    Torch chooses the degree by the norm of the matrix: 18 is assumed, which is for norms between
    1.5 and 3. Smaller ones take fewer products; each doubling beyond takes one more.
    """
    matrices, _rows, size = _sizes(self)
    return Work(other_flops=matrices * 10 * size**3)


@cost_of(aten.linalg_cross)
def cross_product(
    self: TensorSpec, other: TensorSpec, *_: object, out: TensorSpec, **_kwargs: object
) -> Work:
    """Return the FLOPs of two products and a difference per element."""
    return Work(other_flops=3 * out.numel)


declare_costless(aten.lu_unpack, aten._linalg_check_errors)


def _sizes(matrix: TensorSpec) -> tuple[int, int, int]:
    """Return the number of matrices, their rows and columns. A complex one counts as four."""
    parts = 4 if matrix.dtype.is_complex else 1
    *batch, rows, columns = matrix.shape
    return parts * math.prod(batch), rows, columns


def _householder(matrix: TensorSpec) -> int:
    matrices, tall, narrow = _sorted_sizes(matrix)
    square, cube = tall * narrow**2, narrow**3
    each = 2 * square - 2 * cube // 3
    return matrices * each


def _sorted_sizes(matrix: TensorSpec) -> tuple[int, int, int]:
    """Return the number of matrices, their longer side and their shorter one."""
    matrices, rows, columns = _sizes(matrix)
    return matrices, max(rows, columns), min(rows, columns)


def _solve_triangle(solution: TensorSpec) -> int:
    """Return n per element of the solution, which may be a vector."""
    size = solution.shape[-2:][0]
    return size * solution.numel
