"""Everything that the page of a comparison of two models shows, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from torchscan import units
from torchscan.escapes import printable
from torchscan.report.compared_estimates import compare_estimates
from torchscan.report.comparison import ComparedSide, Comparison, settings_of_both
from torchscan.report.comparison_table import format_value, growth
from torchscan.report.info_data import COST_SUMS, SUMS, InfoDict, Layer, data_of
from torchscan.report.paging.compared_rows import PageSide, PairedRows, rows_of_layers, starts_of
from torchscan.report.paging.layer_rows import Paging
from torchscan.report.paging.page_data import PageContent, describe_inputs, three_digits, verdict_of
from torchscan.report.paging.row_values import key_of, parse_settings
from torchscan.report.remarks import lower_bound_texts
from torchscan.report.run_comparison import describe_differences
from torchscan.trace.trace import Trace

#: values at the top of the page: what is added up, and the label
_TOTALS = {
    "Parameters": ("grad_params", "nograd_params"),
    "MACs": ("macs",),
    "FLOPs": ("flops",),
}
#: what stands before costs, by whether they are complete
_BOUNDS = {True: "", False: "≥ "}
_format_size = partial(units.memory, digits=1)
_SIZE = ("param_size", "buffer_size")
#: what differs between two calls, if neither their classes, settings nor shapes do
_FIGURES = {"macs": "MACs", "flops": "FLOPs", "dmas": "DMAs"}


def comparison_data(comparison: Comparison, names: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return the data of the page, with the graphs of models that were recorded."""
    assert comparison._sides is not None  # noqa: S101 - compare() sets it
    sides = [_ShownSide(side) for side in comparison._sides]
    return _ComparedModels(comparison, *sides).data(names)


class _ShownSide:
    """One side with what its page shows."""

    def __init__(self, side: ComparedSide) -> None:
        self.side = side
        self.content: PageContent | None = side.content
        info: InfoDict = side.info if self.content is None else self.content.info
        self.info = data_of(info)
        self.layers: Sequence[Layer] = self.info["layers"]

    @property
    def name(self) -> str:
        if self.content is None:
            return printable(self.layers[0]["type"])
        return printable(self.content.title)

    @property
    def trace(self) -> Trace | None:
        return None if self.content is None else self.content.trace

    @property
    def question(self) -> list[str]:
        """Description of the pass: of a stored report, as far as it says so."""
        if self.content is not None:
            return list(map(printable, self.content.question))
        provenance = self.info["provenance"]
        named = [(each["name"], each["shape"]) for each in provenance["inputs"]]
        purpose = "training step" if provenance["backward"] else "inference"
        return [purpose, *map(printable, describe_inputs(provenance["batch_size"], named))]

    def rows(self, starts: Collection[int]) -> PageSide:
        """Return the rows. Those of a recorded model show equal calls together."""
        if self.content is None:
            rows = rows_of_layers(self.layers)
            return PageSide(rows=rows, layers=range(len(rows)))
        paging = Paging(
            self.content.trace,
            self.info,
            roofline=self.content.roofline,
            settings=self.content.settings,
            failed=None,
            fields=None,
            starts=starts,
        )
        paged = paging.rows()
        keys = [key_of(layer["path"], layer["call"]) for layer in self.layers]
        index_by_key = {key: index for index, key in enumerate(keys)}
        layers = [index_by_key[row["key"]] for row in paged.rows]
        return PageSide(rows=paged.rows, levels=paged.levels, layers=layers)


class _ComparedModels:
    """Two models that are shown side by side."""

    def __init__(self, comparison: Comparison, before: _ShownSide, after: _ShownSide) -> None:
        self._comparison = comparison
        self._before, self._after = before, after
        self._settings = settings_of_both(before.side, after.side)
        self._aligned = comparison._aligned

    def data(self, names: tuple[str, str] | None) -> dict[str, Any]:
        before, after = self._before, self._after
        starts = starts_of(before.trace, after.trace, self._aligned)
        self._old, self._new = before.rows(starts[0]), after.rows(starts[1])
        rows = PairedRows(self._old, self._new, self._aligned, self._describe).rows()
        shown = list(map(printable, names or (before.name, after.name)))
        old = {"title": shown[0], "question": before.question, **self._old.content}
        new = {"title": shown[1], "question": after.question, **self._new.content}
        question = before.question if before.question == after.question else []
        return {
            "title": title_of(shown),
            "question": question,
            "verdicts": self._verdicts(),
            "rows": rows,
            "sides": [old, new],
            "remarks": self._remarks(),
            "error": "",
            "version": after.info["provenance"]["torchscan_version"],
        }

    def _describe(self, row: int, other: int) -> list[str]:
        """Return what changed from one row to another, in its own operators and settings."""
        one, two = self._old.layers[row], self._new.layers[other]
        old, new = self._before.layers[one], self._after.layers[two]
        texts = []
        if old["type"] != new["type"]:
            texts.append(f"{old['type']} → {new['type']}")
        else:
            before, after = self._settings
            settings = before.get(old["path"], ""), after.get(new["path"], "")
            texts += _describe_named(*(dict(parse_settings(each)) for each in settings))
        rows = self._old.rows[row], self._new.rows[other]
        if old["output_shape"] != new["output_shape"]:
            texts.append(_describe_tensors("output", *rows))
        elif old["input_shape"] != new["input_shape"]:
            texts.append(_describe_tensors("input", *rows))
        repeats = [each["repeats"] for each in rows]
        if repeats[0] != repeats[1]:
            texts.append(f"×{repeats[0]} → ×{repeats[1]}")
        return texts or _describe_figures(old, new)

    def _verdicts(self) -> list[dict[str, Any]]:
        """Return the totals before and after at the top of the page."""
        verdicts = []
        bounds = [_BOUNDS[complete] for complete in self._comparison.complete]
        for label, keys in _TOTALS.items():
            is_cost = not set(keys).isdisjoint(COST_SUMS)
            marks = bounds if is_cost else ["", ""]
            verdicts.append(_verdict(label, *self._sum_up(keys), three_digits, marks))
        verdicts.append(_verdict("Model size", *self._sum_up(_SIZE), _format_size))
        estimates = compare_estimates(self._before.info, self._after.info)
        if "peak_bytes" in estimates:
            peaks = estimates["peak_bytes"]
            verdicts.append(_verdict("Peak memory", *peaks, _format_size, facts=self._fits()))
        if "time_estimate" in estimates:
            label = "One step" if self._after.info["provenance"]["backward"] else "One pass"
            times = estimates["time_estimate"]
            verdicts.append(_verdict(label, *times, units.duration, facts=self._margins()))
        return verdicts

    def _sum_up(self, keys: Sequence[str]) -> tuple[int, int]:
        """Return the sum of these totals before and after."""
        before = after = 0
        for key in keys:
            old, new = self._comparison.totals[key]
            before += old
            after += new
        return before, after

    def _fits(self) -> list[str]:
        """Return whether each side fits on the device, if there is one."""
        texts = []
        for side in (self._before, self._after):
            memory = None if side.content is None else side.content.memory
            if memory is None or memory.verdict is None:
                return []
            texts.append("fits" if memory.verdict.fits else "does not fit")
        different = dict.fromkeys(texts)
        return [" → ".join(different)]

    def _margins(self) -> list[str]:
        """Return the error margin of the times, if both sides have the same one."""
        margins = []
        for side in (self._before, self._after):
            if side.content is None or side.content.roofline is None:
                return []
            margins.append(side.content.roofline.error_margin.share)
        return [f"each ± {100 * margins[0]:.0f} %"] if margins[0] == margins[1] else []

    def _remarks(self) -> list[str]:
        remarks = describe_differences("sides", self._comparison.passes, format_value)
        if self._before.content is None or self._after.content is None:
            remarks.append("A report has no graph: give two models to see their graphs.")
        remarks += _remarks_of(self._before, "before")
        remarks += _remarks_of(self._after, "after")
        return list(map(printable, remarks))


def _remarks_of(side: _ShownSide, when: str) -> Iterator[str]:
    """Yield what is missing on one side, and why."""
    if side.content is not None:
        for name, reason in side.content.reasons.items():
            yield f"{name} {when}: {reason}"
    yield from lower_bound_texts(side.info, when)


def title_of(names: Sequence[str]) -> str:
    """Return the title of a page with two sides."""
    before, after = names
    return f"{before}, before and after" if before == after else f"{before} → {after}"


def _describe_figures(old: Layer, new: Layer) -> list[str]:
    """Return the first value of its own that differs between two calls."""
    before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
    params = [each["grad_params"] + each["nograd_params"] for each in (old, new)]
    if params[0] != params[1]:
        return [f"parameters {params[0]:,} → {params[1]:,}"]
    for key in (*_FIGURES, *SUMS):
        if before[key] != after[key]:
            label = _FIGURES.get(key, key.replace("_", " "))
            values = three_digits(before[key]), three_digits(after[key])
            return [f"{label} {' → '.join(values)}"]
    return []


def _describe_named(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the values that differ, by their names."""
    texts = []
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name, "none"), new.get(name, "none")
        if before != after:
            texts.append(f"{name} {before} → {after}".strip())
    return texts


def _describe_tensors(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the shapes of inputs or outputs that differ, by their names if they have any."""
    named = {"input": "takes", "output": "gives"}[what]
    if named in old and named in new:
        texts = _describe_named(dict(old[named]), dict(new[named]))
        if texts:
            return f"{what} {', '.join(texts)}"
    shapes = [", ".join(row[what]) or "–" for row in (old, new)]
    return f"{what} {' → '.join(shapes)}"


def _verdict(
    label: str,
    before: float,
    after: float,
    text: Any,
    bounds: Sequence[str] = ("", ""),
    facts: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a value before and after, with the difference and its share below it."""
    if before == after and not any(bounds):
        return verdict_of(label, text(after), "no difference", *facts)
    old = bounds[0] + _unbroken(text(before))
    new = bounds[1] + _unbroken(text(after))
    value = f"{old} → {new}"
    if any(bounds):
        return verdict_of(label, value, "the difference is unknown", *facts)
    sign = "+" if after > before else "−"
    share = growth(before, after)
    difference = text(abs(after - before))
    return verdict_of(label, value, f"{sign}{difference}", share, *facts)


def _unbroken(text: str) -> str:
    """Return a number that stays on one line with its unit."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")
