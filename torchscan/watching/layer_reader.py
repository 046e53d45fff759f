"""Reader of the quantities of modules from the distributions of steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchscan.watching.distribution_columns import Distributions, group_alike, side_by_side
from torchscan.watching.layer_columns import QUANTITIES, ColumnOfLayers
from torchscan.watching.schema import SampledStep, Series

#: where values are not finite: a sum of these
IN_OUTPUTS, IN_GRADIENTS, IN_WEIGHTS = 1, 2, 4
_PLACE_OF_KIND: Mapping[str, int] = {
    "output": IN_OUTPUTS,
    "output_grad": IN_GRADIENTS,
    "param_grad": IN_GRADIENTS,
    "param": IN_WEIGHTS,
}
_FIGURES = ("norm", "numel", "mean", "std", "update", "dead", "nan", "inf", "sampled")
#: other plans that are kept: passes of several models and phases take turns
_NUM_PLANS = 15


class LayerReader:
    """A reader of the quantities of modules from distributions.

    Most steps have the same series, so where each quantity comes from is worked out once.
    """

    def __init__(self) -> None:
        #: newest last
        self._plans: list[_SeriesPlan] = []

    def read(
        self, steps: Sequence[SampledStep], series: Mapping[int, Series]
    ) -> list[ColumnOfLayers]:
        """Return the column of each step. Steps with the same series are read together."""
        found = [side_by_side(each.distributions) for each in steps]
        columns: dict[int, ColumnOfLayers] = {}
        for indices in group_alike(found):
            alike = [found[index] for index in indices]
            known = [plan for plan in self._plans if plan.fits(alike[0])]
            plan = known[0] if known else _SeriesPlan(alike[0], series)
            others = [each for each in self._plans if each is not plan]
            self._plans = [*others[-_NUM_PLANS:], plan]
            for index, values in zip(indices, plan.quantities(alike), strict=True):
                step = steps[index]
                columns[index] = ColumnOfLayers(
                    first=step.place,
                    last=step.place,
                    step=step.step,
                    num_steps=1,
                    modules=plan.modules,
                    values=values,
                )
        return [columns[index] for index in range(len(steps))]


class _SeriesPlan:
    """Indices of modules and rows for one set of series."""

    def __init__(self, found: Distributions, series: Mapping[int, Series]) -> None:
        self._layout = found.numbers, found.rows, found.can_die
        known = [each for each in zip(found.numbers, found.rows, strict=True) if each[0] in series]
        can_die = dict(zip(found.numbers, found.can_die, strict=True))
        smallest: dict[str, int] = {}
        for number, _ in sorted(known):
            smallest.setdefault(series[number].path, number)
        indices = {path: index for index, path in enumerate(smallest)}
        pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, row in known:
            each = series[number]
            pair = indices[each.path], row
            pairs["all"].append(pair)
            pairs[each.kind].append(pair)
            if can_die[number]:  # rows are shared with series that cannot
                pairs["can die"].append(pair)
            if (each.kind, each.name, each.invocation) == ("output", "0", 0):
                pairs["first output"].append(pair)
        self.modules = torch.tensor(list(smallest.values()), dtype=torch.int64)
        self._pairs = {
            name: torch.tensor(found, dtype=torch.int64).T for name, found in pairs.items()
        }

    def fits(self, found: Distributions) -> bool:
        """Return whether a step has the series and rows of the plan."""
        return self._layout == (found.numbers, found.rows, found.can_die)

    def _modules_and_rows(self, name: str) -> tuple[Tensor, Tensor]:
        nothing = torch.empty(2, 0, dtype=torch.int64)
        modules, rows = self._pairs.get(name, nothing)
        return modules, rows

    def quantities(self, steps: Sequence[Distributions]) -> Tensor:
        """Return the values of the column of each step."""
        figures = {}
        for name in _FIGURES:
            figures[name] = torch.stack([each.columns.figures[name] for each in steps])
        shape = len(steps), len(QUANTITIES), len(self.modules)
        values = torch.full(shape, torch.nan, dtype=torch.float64)
        columns = dict(zip(QUANTITIES, values.unbind(1), strict=True))
        self._fill_gradients(columns, figures)
        self._fill_weights(columns, figures)
        self._fill_outputs(columns, figures)
        self._fill_dead(columns, figures)
        self._fill_nonfinite(columns, figures)
        return values.float()

    def _fill_gradients(self, columns: Mapping[str, Tensor], figures: Mapping[str, Tensor]) -> None:
        modules, rows = self._modules_and_rows("param_grad")
        gradients = columns["gradient"]
        squares = _norms_of(figures, rows).square()
        gradients[:, modules] = 0.0
        gradients.index_add_(1, modules, squares).sqrt_()

    def _fill_weights(self, columns: Mapping[str, Tensor], figures: Mapping[str, Tensor]) -> None:
        """Write the norms of parameters whose update is known, and the updates."""
        modules, rows = self._modules_and_rows("param")
        norms, changes = _norms_of(figures, rows), figures["update"][:, rows].double()
        is_known = ~changes.isnan()
        norms = norms.where(is_known, 0.0)
        weights, updates = columns["weight"], columns["update"]
        sums = torch.zeros(3, *updates.shape, dtype=torch.float64)
        of_weights, of_changes, num_known = sums
        of_weights.index_add_(1, modules, norms.square())
        of_changes.index_add_(1, modules, (changes * norms).square().where(is_known, 0.0))
        num_known.index_add_(1, modules, is_known.double())
        weights[:] = of_weights.sqrt().where(num_known > 0, torch.nan)
        updates[:] = of_changes.sqrt() / weights

    def _fill_outputs(self, columns: Mapping[str, Tensor], figures: Mapping[str, Tensor]) -> None:
        modules, rows = self._modules_and_rows("first output")
        stds, num_stds = columns["std"], columns["num_stds"]
        outputs = figures["std"][:, rows].double()
        is_known = ~outputs.isnan()
        stds[:] = num_stds[:] = 0.0
        stds[:, modules] = outputs.where(is_known, 0.0)
        num_stds[:, modules] = is_known.double()

    def _fill_dead(self, columns: Mapping[str, Tensor], figures: Mapping[str, Tensor]) -> None:
        modules, rows = self._modules_and_rows("can die")
        if not len(modules):
            return
        dead, units = columns["dead"], columns["units"]
        shares = figures["dead"][:, rows].double().nan_to_num(-1.0)
        places_of_units = modules.expand(len(shares), -1)
        dead[:, modules] = -1.0
        dead.scatter_reduce_(1, places_of_units, shares, "amax")
        dead.masked_fill_(dead < 0, torch.nan)
        units[:, modules] = 0.0
        numels = figures["numel"][:, rows].double()
        units.scatter_reduce_(1, places_of_units, numels, "amax")

    def _fill_nonfinite(self, columns: Mapping[str, Tensor], figures: Mapping[str, Tensor]) -> None:
        nonfinite, places = columns["nonfinite"], columns["places"]
        nonfinite[:] = places[:] = 0.0
        counts = figures["nan"] + figures["inf"]
        if not counts.any():
            return
        modules, rows = self._modules_and_rows("all")
        shares = counts.double() / figures["sampled"].clamp(min=1)
        nonfinite.index_add_(1, modules, (shares * figures["numel"]).round()[:, rows])
        for own, is_wrong in zip(places, counts > 0, strict=True):
            found = torch.zeros(len(self.modules), dtype=torch.int64)
            for kind, place in _PLACE_OF_KIND.items():
                of_kind, rows_of_kind = self._modules_and_rows(kind)
                found[of_kind[is_wrong[rows_of_kind]]] |= place
            own[:] = found


def _norms_of(figures: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Return the L2 norms of rows, or estimates from their sampled values.

    Squares of values below 1e-23 are 0 with 32 bits, and so is the norm that the device computed.
    """
    norms = figures["norm"][:, rows].double()
    numel, mean, std = (figures[name][:, rows].double() for name in ("numel", "mean", "std"))
    estimates = numel.sqrt() * mean.hypot(std)
    return norms.where(norms != 0, estimates.nan_to_num(0))
