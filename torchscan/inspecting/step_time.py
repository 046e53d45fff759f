"""Checks of step times against a limit, on the limit's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torchscan import units
from torchscan.errors import BudgetError, InputError
from torchscan.hardware.device_names import is_part
from torchscan.user_warnings import warn_user

#: a call by its name, and what it took
Named = tuple[str, float]


class StepExcess(NamedTuple):
    """A step that took longer than its limit, both in seconds, and its slowest modules."""

    taken: float
    limit: float
    device: str
    slowest: Sequence[Named]
    #: what the time of one sample is beside that of its batch
    per_sample: str = ""

    def __str__(self) -> str:
        """Return a line for the step and one for each module."""
        more = ""
        if self.limit:
            percent = 100 * (self.taken - self.limit) / self.limit
            more = f" (+{percent:.1f} %)"
        most = f"at most {units.duration(self.limit)}{more}{self.per_sample}"
        head = f"a step took {units.duration(self.taken)} on {self.device}, {most}"
        layers = [f"  {name}: {units.duration(time)}" for name, time in self.slowest]
        return "\n".join([head, *layers])


def require_step_time(
    taken: float,
    slowest: Sequence[Named],
    ran_on: str,
    *,
    max_step_time: float | str,
    device: str | None,
    tolerance: float | str,
) -> None:
    """Raise if ``taken`` exceeds ``max_step_time`` and the tolerance; warn if it ran elsewhere."""
    limit = _number("max_step_time", max_step_time, units.parse_duration)
    limit *= 1 + _number("tolerance", tolerance, units.parse_share)
    if device is not None and not is_part(device, ran_on):
        warn_user(
            f"max_step_time is not checked: it is for {device}, and the steps ran on {ran_on}"
        )
    elif taken > limit:
        raise BudgetError(str(StepExcess(taken, limit, ran_on, slowest)))


def _number(name: str, value: float | str, parse: Callable[[str], float]) -> float:
    if isinstance(value, str):
        return units.parse_argument(name, value, parse)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        example = "120 ms" if name == "max_step_time" else "10%"
        raise InputError(f"{name} is {value!r}: give a number, or a text such as {example!r}")
    return float(value)
