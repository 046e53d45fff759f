"""Costs of a pass as exact polynomials in batch size and length, checked at other points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

from torchscan.analyses.totals import total_cost
from torchscan.recording.generation_passes import Generating, Kept, Length
from torchscan.results import Result

#: how a factor is raised to the powers that there are, for people and for programs
_POWERS = ("⁰", "", "²", "³")
_EXPONENTS = ("**0", "", "**2", "**3")


@dataclass(frozen=True, slots=True)
class Polynomial:
    """``Σ c · B^i · T^j``: a coefficient for each pair of powers, of the batch and of the length."""

    coefficients: Mapping[tuple[int, int], Fraction]

    def __call__(self, batch_size: int, length: int) -> Fraction:
        """Its value there."""
        return sum(
            (each * batch_size**i * length**j for (i, j), each in self.coefficients.items()),
            Fraction(0),
        )

    def __str__(self) -> str:
        """Such as ``6.74e+09·B·T + 2.62e+05·B·T²``: the highest powers last, and no zeros."""
        return _sum(
            "·".join([f"{float(each):.4g}", *_factors(powers, _POWERS)])
            for powers, each in self._terms
        )

    @property
    def exact(self) -> str:
        """Such as ``6738411520*B*T + 262144*B*T**2``, which Python and algebra systems read: no digit is rounded."""
        return _sum(
            "*".join([str(each), *_factors(powers, _EXPONENTS)]) for powers, each in self._terms
        )

    @property
    def _terms(self) -> list[tuple[tuple[int, int], Fraction]]:
        return [(powers, each) for powers, each in sorted(self.coefficients.items()) if each]


def _sum(terms: Iterable[str]) -> str:
    return " + ".join(terms).replace("+ -", "- ") or "0"


def _factors(powers: tuple[int, int], exponents: Sequence[str]) -> list[str]:
    return [f"{name}{exponents[power]}" for name, power in zip("BT", powers, strict=True) if power]


def through(points: Mapping[tuple[int, int], int]) -> Polynomial:
    """The polynomial of lowest degree through a grid of batches and lengths.

    In each variable ``Σ_k y_k · Π_{m≠k} (x − x_m) / (x_k − x_m)``.
    """
    batches, lengths = (sorted({each[axis] for each in points}) for axis in (0, 1))
    found = {powers: Fraction(0) for powers in product(range(len(batches)), range(len(lengths)))}
    for (batch, length), value in points.items():
        ones, others = _basis(batches, batch), _basis(lengths, length)
        for i, j in found:
            found[i, j] += value * ones[i] * others[j]
    return Polynomial(found)


def _basis(places: Sequence[int], place: int) -> list[Fraction]:
    """The coefficients, from the constant on, of what is 1 at this place and 0 at the others."""
    found = [Fraction(1)]
    for other in places:
        if other != place:
            scale = Fraction(1, place - other)
            found = [
                scale * (low - other * high)
                for low, high in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)
            ]
    return found


#: of a pass
COSTS = ("macs", "flops", "bytes_read", "bytes_written")


def figures_of(kept: Kept) -> dict[str, int]:
    """Return the costs of a pass by name, with the bytes of the cache that it returns."""
    cost = total_cost(kept.trace)
    return {**{name: int(getattr(cost, name)) for name in COSTS}, "cache_bytes": kept.cached_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolicCosts(Result):
    """Costs as polynomials in the batch ``B`` and the length ``T``; None: what was recorded elsewhere does not lie on one.

    So it is with the bytes of experts, of which more are hit the more tokens there are, and with passes whose flow depends on
    the length: that go through chunks, or fill a window.
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
        """A short one."""
        return f"<SymbolicCosts: {self.prompt['macs'] or '?'} MACs for a prompt, {self.token['macs'] or '?'} for a token>"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-serialisable data: coefficients by the powers of ``B`` and ``T``, ``"1,2"``, as exact fractions."""
        passes = {"prompt": self.prompt, "token": self.token}
        found = {
            name: {key: _plain(each) for key, each in of.items()} for name, of in passes.items()
        }
        return {
            **found,
            "fitted": [list(each) for each in self.fitted],
            "checked": [list(each) for each in self.checked],
        }


def _plain(polynomial: Polynomial | None) -> dict[str, str] | None:
    if polynomial is None:
        return None
    return {f"{i},{j}": str(each) for (i, j), each in polynomial.coefficients.items() if each}


class Fitted:
    """The polynomials of a model, near a length."""

    def __init__(self, passes_of: Callable[[int], Generating], near: int) -> None:
        self._passes_of = lru_cache(maxsize=None)(passes_of)
        self._lengths = (near, near + 1, near + 2)
        self._checked = ((2, near + 4), (3, 8 * near + 5))

    def costs(self) -> SymbolicCosts:
        """All of them. The cost of a prompt is of second degree in its length, that of one more token of first."""
        return SymbolicCosts(
            prompt=self._fit(
                lambda batch, length: self._passes_of(batch).prompted(Length(length)), self._lengths
            ),
            token=self._fit(
                lambda batch, length: self._passes_of(batch).continued(Length(length)),
                self._lengths[:2],
            ),
            fitted=self._grid(self._lengths),
            checked=self._checked,
        )

    @staticmethod
    def _grid(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
        return tuple(product((1, 2), lengths))

    def _fit(
        self, run: Callable[[int, int], Kept], lengths: Sequence[int]
    ) -> Mapping[str, Polynomial | None]:
        found = {place: figures_of(run(*place)) for place in (*self._grid(lengths), *self._checked)}
        return {name: self._of(name, found, lengths) for name in (*COSTS, "cache_bytes")}

    def _of(
        self, name: str, found: Mapping[tuple[int, int], Mapping[str, int]], lengths: Sequence[int]
    ) -> Polynomial | None:
        fitted = through({place: found[place][name] for place in self._grid(lengths)})
        return (
            fitted if all(fitted(*place) == found[place][name] for place in self._checked) else None
        )
