"""Seconds of a call by kind of work, at the data sheet's rates and at those that kernels reach."""

from __future__ import annotations

from dataclasses import dataclass

from torchscan.analyses.roofline.constants import OVERLAP
from torchscan.analyses.roofline.roofline_result import Limiter

#: seconds of arithmetic, of bytes of memory, and of bytes of the cache
Times = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds that a call needs for each kind of work; calls in one kernel add up."""

    #: at the rates of the data sheet
    min_times: Times
    #: the same with the fewest products that any algorithm takes, and the fewest bytes that any
    #: routing reads
    fewest: Times
    #: of the fewest products alone, at their peak rate
    products: float
    #: at the rates that kernels of their class reach: arithmetic, traffic
    arithmetic: float
    traffic: float
    #: before and after, without overlap
    around: float

    def __add__(self, other: Seconds) -> Seconds:
        min_times = _add(self.min_times, other.min_times)
        fewest = _add(self.fewest, other.fewest)
        return Seconds(
            min_times=min_times,
            fewest=fewest,
            products=self.products + other.products,
            arithmetic=self.arithmetic + other.arithmetic,
            traffic=self.traffic + other.traffic,
            around=self.around + other.around,
        )

    @property
    def bound(self) -> float:
        """The bound: at best, all of them overlap."""
        return max(self.fewest)

    @property
    def busy(self) -> float:
        """``(arithmetic^p + traffic^p)^(1/p)``, and what comes before and after."""
        powers = self.arithmetic**OVERLAP + self.traffic**OVERLAP
        overlapped = float(powers ** (1 / OVERLAP))
        return max(overlapped + self.around, *self.min_times)

    @property
    def limiter(self) -> Limiter:
        """The resource that takes longest at the data sheet's rates."""
        compute, memory, cache = self.min_times
        if memory >= max(compute, cache):
            return "memory"
        return "compute" if compute >= cache else "cache"


def _add(one: Times, other: Times) -> Times:
    compute, memory, cache = one
    more_compute, more_memory, more_cache = other
    return compute + more_compute, memory + more_memory, cache + more_cache
