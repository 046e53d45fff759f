"""Measurements of a watched run's last step by call, as the page shows them."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torchscan.measured import Figure, Key, Measured
from torchscan.watching.schema import Distribution, SampledStep, Series
from torchscan.watching.uniting import merge_distributions

#: how figures of several tensors of a call are one: norms as norms are, of changes the greatest, counts added up
_JOINED: Mapping[Figure, Callable[[float, float], float]] = {
    "gradient": math.hypot,
    "update": max,
    "std": max,
    "dead": max,
    "nonfinite": operator.add,
}
#: what one rank has written last: its series by number, and the step
Written = tuple[Mapping[int, Series], SampledStep | None]


def measured_in(path: Path, ranks: Sequence[Written]) -> Measured:
    """Return what all ranks that have written the last step measured in it, together."""
    newest = [watched for _, watched in ranks if watched is not None]
    last = max((place_of(each) for each in newest), default=None)
    found: dict[Series, list[Distribution]] = defaultdict(list)
    for series, watched in ranks:
        if watched is not None and place_of(watched) == last:
            for number, distribution in watched.distributions.items():
                if number in series:
                    found[series[number]].append(distribution)
    figures: dict[Key, dict[Figure, float]] = defaultdict(dict)
    for each, distributions in found.items():
        of_call = figures[each.path, each.invocation]
        merged = merge_distributions(distributions)
        for name, value in _figures(each, merged):
            of_call[name] = _JOINED[name](of_call.get(name, 0.0), value)
    noun = "evaluation pass" if "eval" in {each.phase for each in newest} else "step"
    return Measured(
        source=f"{path.name}: {f'no {noun}' if last is None else f'{noun} {last}'}",
        figures=figures,
        types={each.path: each.type_name for each in found},
    )


def place_of(watched: SampledStep) -> int:
    """Return where a pass stands in time: the number of a training step, or of a pass among the evaluations."""
    return watched.step if watched.phase == "train" else watched.number


def _figures(series: Series, found: Distribution) -> Iterator[tuple[Figure, float]]:
    if series.kind == "output_grad" and math.isfinite(found.norm):
        yield "gradient", found.norm
    if series.kind == "param" and math.isfinite(found.update):
        yield "update", found.update
    if series.kind == "output" and math.isfinite(found.std):
        yield "std", found.std
    if series.kind == "output" and math.isfinite(found.dead):
        yield "dead", found.dead
    if found.sampled:
        share = (found.nan + found.inf) / found.sampled
        yield "nonfinite", round(share * found.numel)
