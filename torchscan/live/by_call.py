"""What a run that was watched has measured in its last step, call by call, as a page shows it."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torchscan.live.schema import Distribution, Series, Watched
from torchscan.live.uniting import together
from torchscan.measured import Figure, Key, Measured

#: how figures of several tensors of a call are one: norms as norms are, of changes the greatest, counts added up
_JOINED: Mapping[Figure, Callable[[float, float], float]] = {
    "gradient": math.hypot,
    "update": max,
    "nonfinite": operator.add,
}
#: what one rank has written last: its series by number, and the step
Written = tuple[Mapping[int, Series], Watched | None]


def measured_in(path: Path, ranks: Sequence[Written]) -> Measured:
    """Of all ranks that have written the last step, together."""
    last = max((watched.step for _, watched in ranks if watched is not None), default=None)
    found: dict[Series, list[Distribution]] = defaultdict(list)
    for series, watched in ranks:
        if watched is not None and watched.step == last:
            for number, distribution in watched.distributions.items():
                if number in series:
                    found[series[number]].append(distribution)
    figures: dict[Key, dict[Figure, float]] = defaultdict(dict)
    for each, distributions in found.items():
        of_call = figures[each.path, each.invocation]
        for name, value in _figures(each, together(distributions)):
            of_call[name] = _JOINED[name](of_call.get(name, 0.0), value)
    return Measured(
        source=f"{path.name}: {'no step' if last is None else f'step {last}'}",
        figures=figures,
        types={each.path: each.type_name for each in found},
    )


def _figures(series: Series, found: Distribution) -> Iterator[tuple[Figure, float]]:
    norm = math.sqrt(found.numel * (found.mean**2 + found.std**2))
    if series.kind == "output_grad" and math.isfinite(norm):
        yield "gradient", norm
    if series.kind == "param" and math.isfinite(found.update):
        yield "update", found.update
    if found.nan + found.inf:
        yield "nonfinite", round((found.nan + found.inf) * found.numel / max(1, found.sampled))
