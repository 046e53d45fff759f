"""The page of a model: every answer of a scan in one file that can be walked through."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.roofline import Roofline
from torchscan.errors import InputError, RecordError, TorchscanError
from torchscan.files import write_text
from torchscan.measured import Measured, Measuring
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.state import original_of
from torchscan.recording.training.optimizers import require_known
from torchscan.report.info_content import info_of
from torchscan.report.paging.model_page import model_page
from torchscan.report.paging.page_data import PageContent, page_data, question_of
from torchscan.scan import Scan
from torchscan.trace.trace import Trace
from torchscan.wrong_arguments import explain_wrong_types

Answer = TypeVar("Answer")
#: what to say where there is no answer; it may raise the error instead
Excuse = Callable[[TorchscanError], str]
#: pixels, in a notebook
_TALL = 900


class Page(str):
    """The text of an HTML file; a notebook shows it, and :meth:`save` writes it."""

    __slots__ = ()

    def save(self, path: str | Path) -> None:
        """Write the file; one that is there is replaced when the new one is complete."""
        write_text(Path(path), self)

    def _repr_html_(self) -> str:
        """In a frame of its own, which can run its script and save panels, and reach nothing of the notebook's."""
        sandbox = "allow-scripts allow-downloads"
        return (
            f'<iframe srcdoc="{html.escape(self)}" sandbox="{sandbox}" title="HTML report of a model" '
            f'style="width: 100%; height: {_TALL}px; border: 0"></iframe>'
        )


@explain_wrong_types
def html_report(
    scan: Scan, title: str | None = None, *, run: Measuring | None = None, excuse: Excuse = str
) -> Page:
    """One HTML file that shows a model: its graph and its layers in step, memory over the pass, and what limits it.

    A notebook shows it, and ``page.save("model.html")`` writes it. Nothing is fetched, neither to make it nor to read it.

    Args:
        scan: of the model; with a ``device``, times and whether it fits are there, too.
        title: of the page; by default the class of the model.
        run: what has measured the model in real steps: an inspection (``inspect``, ``open_run``) or a run that was watched.
        excuse: what to say where a part of it has no answer, from the error.
    """
    return Page(model_page(_collect(scan, title, run, excuse)))


def data_of_page(model: nn.Module, args: Any, kwargs: Any, *, training: bool) -> dict[str, Any]:
    """Return the data of a model's page, from a pass on shapes alone."""
    scan = Scan(model, args=args, kwargs=kwargs, mode="same", execute="abstract", training=training)
    scan.trace  # noqa: B018 - a pass that fails has no page here
    return page_data(_collect(scan, None, None, str))


def _collect(scan: Scan, title: str | None, run: Measuring | None, excuse: Excuse) -> PageContent:
    """Return the contents of a page."""
    require_known(scan.question.optimizer)
    name = type(scan.question.module).__name__ if title is None else title
    reasons: dict[str, str] = {}

    def known(part: str, ask: Callable[[], Answer]) -> Answer | None:
        try:
            return ask()
        except TorchscanError as error:
            reasons[part] = excuse(error)
            return None

    try:
        scan.trace  # noqa: B018 - whether there is one
    except RecordError as error:
        said = excuse(error)
        if error.so_far is None or not error.so_far.modules:
            raise
        return _unfinished(scan, name, error, said)
    measured = (
        None if run is None else _of_this_model(run.measured(), original_of(scan.question.module))
    )
    memory = known("Memory", lambda: scan.memory)
    roofline = None if not scan.has_device else known("Time", lambda: scan.roofline)
    return _finished(scan, name, memory, roofline, measured, reasons)


def _of_this_model(measured: Measured, model: nn.Module) -> Measured:
    """Its calls by the paths of this model, which may be a part of what has run."""
    if not measured.types:
        raise InputError("the run has no measured step: run the model for a few steps first")
    types = {
        path: type_name_of(module) for path, module in model.named_modules(remove_duplicate=False)
    }
    places = [path for path, name in measured.types.items() if name == types[""]]
    if "" not in measured.types:  # only some modules were looked at
        places.append("")
    for place in places:
        inner = measured.inside(place)
        if inner.types and inner.types.items() <= types.items():
            return inner
    found = measured.inside(places[0]) if places else measured
    path = next((path for path, name in found.types.items() if types.get(path) != name), "")
    here = f"a {types[path]}" if path in types else "missing"
    where = path or "the model itself"
    raise InputError(
        f"the run is of another model: {where} is a {found.types[path]} there, and {here} in this "
        "model"
    )


def _finished(
    scan: Scan,
    title: str,
    memory: MemoryEstimate | None,
    roofline: Roofline | None,
    measured: Measured | None,
    reasons: Mapping[str, str],
) -> PageContent:
    return PageContent(
        title=title,
        question=[*_question(scan, scan.trace), *([] if measured is None else [measured.source])],
        measured=measured,
        trace=scan.trace,
        info=info_of(scan.trace, "torchscan", scan.fields, memory=memory, roofline=roofline),
        memory=memory,
        roofline=roofline,
        fields=scan.fields,
        settings=settings_of(scan.question.module),
        reasons=reasons,
    )


def _unfinished(scan: Scan, title: str, error: RecordError, said: str) -> PageContent:
    """Up to the module that failed."""
    trace = error.so_far
    return PageContent(
        title=title,
        question=_question(scan, trace),
        trace=trace,
        info=info_of(trace),
        settings=settings_of(scan.question.module),
        failed=error.failed,
        error=said,
    )


def _question(scan: Scan, trace: Trace) -> list[str]:
    asked = scan.question
    return question_of(
        trace,
        has_backward=asked.training,
        precision=asked.precision,
        optimizer=None
        if asked.optimizer is None
        else asked.optimizer
        if isinstance(asked.optimizer, str)
        else "an optimizer",
        device=asked.device,
    )


def settings_of(module: nn.Module) -> dict[str, str]:
    """Return the ``extra_repr()`` of each module. A module whose method raises is left out."""
    found = {}
    for path, each in module.named_modules():
        try:
            said = each.extra_repr()
        except Exception:  # noqa: S112 - a model's own code, for a tooltip
            continue
        if isinstance(said, str) and said:
            found[path] = said
    return found
