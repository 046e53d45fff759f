"""Statistics and counts of the rows of sampled steps, of which several are read together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchscan.watching.distribution_columns import REAL, WHOLE, Columns, estimate_norms
from torchscan.watching.distributions import BINS, SHIFT
from torchscan.watching.sampled import Sampled

#: values and rows that are read at once: caches have them then
_MAX_VALUES, _MAX_ROWS = 2**18, 2**12


def columns_of(sampled: Sampled) -> Columns:
    """Return the statistics of all sampled rows as columns."""
    rows = torch.arange(len(sampled.sizes))
    statistics = RowStatistics(sampled, rows)
    (columns,) = statistics.columns([sampled])
    return columns


class RowStatistics:
    """Statistics of chosen rows, for steps whose rows have the same sizes and pairs."""

    def __init__(self, sampled: Sampled, rows: Tensor) -> None:
        sizes = sampled.sizes.clone()  # the memory is overwritten
        starts = sizes.cumsum(0) - sizes
        self._num_rows = len(sizes)
        self._rows, self._sizes = rows, sizes[rows]
        # of as many values as caches hold; the first row of each block
        blocks_of_values = (self._sizes.cumsum(0) - 1) // _MAX_VALUES
        blocks_of_rows = torch.arange(len(rows)) // _MAX_ROWS
        blocks = torch.maximum(blocks_of_values, blocks_of_rows)
        _, lengths = blocks.unique_consecutive(return_counts=True)
        parts = rows.split(lengths.tolist())
        self._blocks = [_RaggedRows(starts[part], sizes[part]) for part in parts]
        before, self._after = sampled.pairs.clone().unbind(1)
        self._old = _RaggedRows(starts[before], sizes[before])
        self._new = _RaggedRows(starts[self._after], sizes[before])
        #: number of steps that are read together
        self.num_together = max(1, _MAX_VALUES // max(1, len(sampled.samples)))
        if len(parts) > 1:
            self.num_together = 1

    def columns(self, steps: Sequence[Sampled]) -> list[Columns]:
        """Return the statistics of each step; there may be several if they have one block."""
        samples = [each.samples for each in steps]
        exact = torch.stack([each.exact for each in steps])
        of_rows = exact[:, self._rows].double()
        least, most, dead, sample_norm, norm = of_rows.unbind(2)
        is_looked_for = ~(least > most)
        is_exact = is_looked_for & least.isfinite() & most.isfinite()
        figures, counts = self._of_samples(samples)
        numels = torch.stack([each.numels for each in steps])
        figures["numel"] = numels[:, self._rows]
        figures["sampled"] = self._sizes.expand(len(steps), -1)
        figures["update"] = self._updates(samples)
        figures["dead"] = dead
        figures["sample_norm"] = sample_norm
        # values that a sample has missed show in the extremes
        has_nan = is_looked_for & least.isnan()
        has_inf = is_looked_for & (least.isinf() | most.isinf())
        figures["nan"] = figures["nan"].clamp(min=has_nan.long())
        figures["inf"] = figures["inf"].clamp(min=has_inf.long())
        figures["min"] = least.where(is_exact, figures["min"].double())
        figures["max"] = most.where(is_exact, figures["max"].double())
        # as in the file, so that sinks are shown the same numbers
        real = {name: figures[name].float() for name in REAL if name != "norm"}
        whole = {name: figures[name].long() for name in WHOLE}
        # squares of values below 1e-23 are 0 with 32 bits, and so is the norm from the device
        estimates = estimate_norms(whole | real)
        real["norm"] = norm.float().where(norm > 0, estimates)
        names = (*whole, *real)
        values_of_steps = [each.unbind() for each in (whole | real).values()]
        by_step = zip(*values_of_steps, strict=True)
        columns = []
        for values, of_step, are_exact in zip(by_step, counts, is_exact, strict=True):
            sizes, bins, numbers = of_step
            named = dict(zip(names, values, strict=True))
            columns.append(
                Columns(figures=named, is_exact=are_exact, sizes=sizes, bins=bins, counts=numbers)
            )
        return columns

    def _of_samples(
        self, samples: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], list[tuple[Tensor, Tensor, Tensor]]]:
        """Return statistics of rows for each step; and per step the sizes, bins and counts."""
        figures, counts = [], []
        for block in self._blocks:
            values = block.values(samples)
            parts = [_figures(part) for part in block.split(values)]
            figures.append(block.join(parts))
            counts.append(_counts(values, block))
        joined = {}
        for name in figures[0]:
            joined[name] = torch.cat([each[name] for each in figures], 1)
        if len(counts) == 1:
            return joined, counts[0]
        of_blocks = [of_block for (of_block,) in counts]
        sizes, bins, numbers = map(torch.cat, zip(*of_blocks, strict=True))
        return joined, [(sizes, bins, numbers)]

    def _updates(self, samples: Sequence[Tensor]) -> Tensor:
        """Return the relative change of parameters, ``‖after − before‖ / ‖before‖``.

        It is NaN for other tensors, and for parameters that were zero.
        """
        shape = len(samples), self._num_rows
        found = torch.full(shape, math.nan, dtype=torch.float64)
        if len(self._after):
            old = self._old.values(samples).double()
            changes = self._new.values(samples).double().sub_(old)
            length, change = self._old.norms(old), self._old.norms(changes)
            shares = change / length
            found[:, self._after] = shares.where(length > 0, math.nan)
        return found[:, self._rows]


class _RaggedRows:
    """Rows of different sizes, those of the same size side by side."""

    def __init__(self, starts: Tensor, sizes: Tensor) -> None:
        self.num_rows = len(sizes)
        order = sizes.argsort(stable=True)
        ordered = sizes[order]
        widths, numbers = ordered.unique_consecutive(return_counts=True)
        self._shapes = list(zip(numbers.tolist(), widths.tolist(), strict=True))
        self._places = order.argsort()
        #: the row of each value
        self.owners = order.int().repeat_interleave(ordered)
        first = ordered.cumsum(0) - ordered
        steps = (starts[order] - first).repeat_interleave(ordered)
        self._indices = steps + torch.arange(len(steps))

    def values(self, samples: Sequence[Tensor]) -> Tensor:
        """Return the values of each step, those of rows of the same size side by side."""
        values = torch.empty(len(samples), len(self._indices))
        for row, each in zip(values, samples, strict=True):
            torch.index_select(each, 0, self._indices, out=row)
        return values

    def split(self, values: Tensor) -> list[Tensor]:
        """Return step × row × value for each size."""
        lengths = [number * width for number, width in self._shapes]
        parts = values.split(lengths, 1)
        pairs = zip(parts, self._shapes, strict=True)
        return [part.view(len(part), *shape) for part, shape in pairs]

    def join(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return step × row of statistics of each size, in the order of the rows."""
        joined = {}
        for name in parts[0]:
            column = torch.cat([part[name] for part in parts], 1)
            joined[name] = column.index_select(1, self._places)
        return joined

    def norms(self, values: Tensor) -> Tensor:
        """Return the L2 norms of step × row of values that are side by side."""
        parts = self.split(values)
        norms = self.join([{"norm": part.norm(dim=2)} for part in parts])
        return norms["norm"]


def _figures(samples: Tensor) -> dict[str, Tensor]:
    """Return statistics of step × row of values."""
    width = samples.shape[2]
    if not width:
        is_finite = torch.zeros_like(samples, dtype=torch.bool)
        return _figures_of_some(samples, is_finite)
    least, most = samples.amin(2), samples.amax(2)  # faster than both in one
    if not (most - least).sum().isfinite():  # a NaN or Inf in any value shows here
        return _figures_of_some(samples, samples.isfinite())
    mean = samples.sum(2, dtype=torch.float64) / width
    deviations = samples.double().sub_(mean[..., None])
    norms = deviations.norm(dim=2)
    nothing = torch.zeros(least.shape, dtype=torch.int64)
    num_others = samples.sign().abs_().sum(2)  # faster than sums of booleans
    return {
        "nan": nothing,
        "inf": nothing,
        "zero": width - num_others.long(),
        "mean": mean,
        "std": norms / math.sqrt(width),
        "min": least,
        "max": most,
    }


def _figures_of_some(samples: Tensor, is_finite: Tensor) -> dict[str, Tensor]:
    """Return statistics of the finite values only."""
    number = is_finite.sum(2)
    values = samples.where(is_finite, 0.0)
    mean = values.sum(2, dtype=torch.float64) / number
    deviations = values - mean[..., None]
    squares = deviations.square_().where(is_finite, 0.0)
    variance = squares.sum(2) / number
    # one more value: there may be none
    low = samples.where(is_finite, math.inf)
    low = pad(low, (0, 1), value=math.inf)
    high = samples.where(is_finite, -math.inf)
    high = pad(high, (0, 1), value=-math.inf)
    return {
        "nan": samples.isnan().sum(2),
        "inf": samples.isinf().sum(2),
        "zero": samples.eq(0).sum(2),
        "mean": mean,
        "std": variance.sqrt(),
        "min": low.amin(2),
        "max": high.amax(2),
    }


def _counts(values: Tensor, rows: _RaggedRows) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return for each step the number of filled bins per row, the bins, and their counts."""
    num_steps, num_rows = len(values), rows.num_rows
    upper_bits = values.view(torch.int32) >> SHIFT
    bins = upper_bits.bitwise_and_(BINS - 1).flatten()
    # few bins are used, so a table of these is small
    used = torch.bincount(bins, minlength=BINS).nonzero().flatten()
    width = len(used)
    columns = torch.zeros(BINS, dtype=torch.int32)
    columns[used] = torch.arange(width, dtype=torch.int32)
    table_size = num_rows * width
    steps = torch.arange(num_steps, dtype=torch.int32)
    first = steps[:, None] * table_size
    of_values = columns.index_select(0, bins).view(num_steps, -1)
    places = of_values + rows.owners * width + first
    counts = torch.bincount(places.flatten(), minlength=num_steps * table_size)
    filled = counts.nonzero().flatten()
    owners = filled // max(1, width)
    sizes = torch.bincount(owners, minlength=num_steps * num_rows).view(num_steps, num_rows)
    found = used.index_select(0, filled - owners * width)
    numbers = counts[filled]
    lengths = sizes.sum(1).tolist()
    return list(zip(sizes.unbind(), found.split(lengths), numbers.split(lengths), strict=True))
