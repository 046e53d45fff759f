"""Costs of a pass as exact polynomials in batch size and length, checked at other points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

from torchscan.analyses.totals import total_cost
from torchscan.recording.generation_passes import Generating, Length
from torchscan.recording.kept_passes import Kept
from torchscan.results import Result

#: suffixes of a factor by its power, for people and for programs
_POWERS = ("⁰", "", "²", "³")
_EXPONENTS = ("**0", "", "**2", "**3")
#: batch size and length
_Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Polynomial:
    """``Σ c · B^i · T^j``: a coefficient for each pair of powers, of batch and length."""

    coefficients: Mapping[tuple[int, int], Fraction]

    def __call__(self, batch_size: int, length: int) -> Fraction:
        """Return the value at a batch size and length."""
        value = Fraction(0)
        for (i, j), coefficient in self.coefficients.items():
            value += coefficient * batch_size**i * length**j
        return value

    def __str__(self) -> str:
        """Return ``6.74e+09·B·T + 2.62e+05·B·T²``: the highest powers last, and no zeros."""
        return self._format(lambda coefficient: f"{float(coefficient):.4g}", "·", _POWERS)

    @property
    def exact(self) -> str:
        """Text such as ``6738411520*B*T + 262144*B*T**2``, for Python and algebra systems.

        No digit is rounded.
        """
        return self._format(str, "*", _EXPONENTS)

    def _format(
        self, number: Callable[[Fraction], str], times: str, exponents: Sequence[str]
    ) -> str:
        terms = []
        for (of_batch, of_length), coefficient in sorted(self.coefficients.items()):
            if not coefficient:
                continue
            factors = [number(coefficient)]
            if of_batch:
                factors.append(f"B{exponents[of_batch]}")
            if of_length:
                factors.append(f"T{exponents[of_length]}")
            terms.append(times.join(factors))
        return " + ".join(terms).replace("+ -", "- ") or "0"


def through(points: Mapping[_Point, int]) -> Polynomial:
    """Return the polynomial of lowest degree through a grid of batches and lengths.

    In each variable ``Σ_k y_k · Π_{m≠k} (x − x_m) / (x_k − x_m)``.
    """
    batches = sorted({batch for batch, _ in points})
    lengths = sorted({length for _, length in points})
    powers = list(product(range(len(batches)), range(len(lengths))))
    coefficients = dict.fromkeys(powers, Fraction(0))
    for (batch, length), value in points.items():
        of_batch = _basis(batches, batch)
        of_length = _basis(lengths, length)
        for i, j in powers:
            coefficients[i, j] += value * of_batch[i] * of_length[j]
    return Polynomial(coefficients)


def _basis(places: Sequence[int], place: int) -> list[Fraction]:
    """Return the polynomial of lowest degree that is 1 at this place and 0 at the others.

    Its coefficients begin with the constant.
    """
    zero = Fraction(0)
    coefficients = [Fraction(1)]
    for other in places:
        if other == place:
            continue
        scale = Fraction(1, place - other)
        pairs = zip([zero, *coefficients], [*coefficients, zero], strict=True)
        coefficients = [scale * (lower - other * same) for lower, same in pairs]
    return coefficients


#: of a pass
COSTS = ("macs", "flops", "bytes_read", "bytes_written")


def figures_of(kept: Kept) -> dict[str, int]:
    """Return the costs of a pass by name, with the bytes of the cache that it returns."""
    cost = total_cost(kept.trace)
    figures = {name: int(getattr(cost, name)) for name in COSTS}
    figures["cache_bytes"] = kept.cached_bytes
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolicCosts(Result):
    """Costs as polynomials in the batch ``B`` and the length ``T``, or None if there is none.

    There is none if costs at other points do not lie on it: for bytes of experts, of which more are
    hit the more tokens there are, and for passes whose flow depends on the length, because they go
    through chunks or fill a window.
    """

    #: costs of a pass over ``T`` tokens of ``B`` sequences, by name
    prompt: Mapping[str, Polynomial | None]
    #: costs of a pass over one more token of each sequence, after ``T`` tokens
    token: Mapping[str, Polynomial | None]
    #: batch sizes and lengths to which they were fitted
    fitted: tuple[tuple[int, int], ...]
    #: other batch sizes and lengths at which they were checked
    checked: tuple[tuple[int, int], ...]

    def __repr__(self) -> str:
        """Return a short description."""
        of_prompt = self.prompt["macs"] or "?"
        of_token = self.token["macs"] or "?"
        return f"<SymbolicCosts: {of_prompt} MACs for a prompt, {of_token} for a token>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-serializable data.

        Coefficients are exact fractions, by the powers of ``B`` and ``T``, such as ``"1,2"``.
        """
        return {
            "prompt": _to_plain(self.prompt),
            "token": _to_plain(self.token),
            "fitted": list(map(list, self.fitted)),
            "checked": list(map(list, self.checked)),
        }


def _to_plain(
    polynomials: Mapping[str, Polynomial | None],
) -> dict[str, dict[str, str] | None]:
    plain: dict[str, dict[str, str] | None] = {}
    for name, polynomial in polynomials.items():
        plain[name] = None
        if polynomial is not None:
            terms = polynomial.coefficients.items()
            plain[name] = {f"{i},{j}": str(value) for (i, j), value in terms if value}
    return plain


class Fitted:
    """The polynomials of a model, near a length."""

    def __init__(self, passes_of: Callable[[int], Generating], near: int) -> None:
        self._passes_of = lru_cache(maxsize=None)(passes_of)
        self._lengths = (near, near + 1, near + 2)
        self._checked = ((2, near + 4), (3, 8 * near + 5))

    def costs(self) -> SymbolicCosts:
        """Return all of them.

        The cost of a prompt is of second degree in its length, that of one more token of first.
        """

        def prompted(batch: int, length: int) -> Kept:
            return self._passes_of(batch).prompted(Length(length))

        def continued(batch: int, length: int) -> Kept:
            return self._passes_of(batch).continued(Length(length))

        return SymbolicCosts(
            prompt=self._fit(prompted, self._lengths),
            token=self._fit(continued, self._lengths[:2]),
            fitted=_grid(self._lengths),
            checked=self._checked,
        )

    def _fit(
        self, run: Callable[[int, int], Kept], lengths: Sequence[int]
    ) -> Mapping[str, Polynomial | None]:
        grid = _grid(lengths)
        figures: dict[_Point, dict[str, int]] = {}
        for batch, length in (*grid, *self._checked):
            figures[batch, length] = figures_of(run(batch, length))

        polynomials: dict[str, Polynomial | None] = {}
        for name in (*COSTS, "cache_bytes"):
            polynomial = through({point: figures[point][name] for point in grid})
            is_exact = all(polynomial(*each) == figures[each][name] for each in self._checked)
            polynomials[name] = polynomial if is_exact else None
        return polynomials


def _grid(lengths: Sequence[int]) -> tuple[_Point, ...]:
    return tuple(product((1, 2), lengths))
