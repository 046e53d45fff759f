"""The page of a model: every answer of a scan in one file that can be walked through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from torch import nn

from torchscan.analyses.memory_estimate import MemoryEstimate
from torchscan.analyses.receptive_field import ReceptiveField
from torchscan.analyses.roofline import Roofline
from torchscan.errors import InputError, RecordError, TorchscanError
from torchscan.measured import Measured, Measuring
from torchscan.model_state import settings_of
from torchscan.once import has_answer
from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.recording.state import original_of
from torchscan.recording.training.optimizers import require_known
from torchscan.report.info_content import info_of
from torchscan.report.paging.framed_page import Page
from torchscan.report.paging.model_page import model_page
from torchscan.report.paging.overlay_file import Overlay, read_overlays
from torchscan.report.paging.overlay_places import place_overlays
from torchscan.report.paging.page_data import PageContent, page_data, question_of
from torchscan.scan import Scan
from torchscan.trace.trace import Trace
from torchscan.wrong_arguments import explain_wrong_types

Answer = TypeVar("Answer")
#: returns the text in place of a missing answer, or raises the error
Excuse = Callable[[TorchscanError], str]


@explain_wrong_types
def html_report(
    scan: Scan,
    title: str | None = None,
    *,
    run: Measuring | None = None,
    overlay: Overlay | None = None,
    excuse: Excuse = str,
) -> Page:
    """Return one HTML file of a model: its graph beside its layers, memory over the pass, limits.

    A notebook shows it, and ``page.save("model.html")`` writes it. Nothing is fetched, neither to
    make it nor to read it.

    Args:
        scan: the scan of the model; with a ``device``, the page also has times, and tells if the
            model fits.
        title: the title of the page; by default the class of the model.
        run: a measurement of the model in real steps: an inspection (``inspect``, ``open_run``) or
            a watched run.
        overlay: your own values, which color the graph and get a column each: numbers by the
            paths of modules or parameters (a dict or a Series), several such mappings by name, the
            path of a CSV or JSON file with them, or a list of these.
        excuse: returns the text of a part that has no answer, from the error.
    """
    overlays = []
    if overlay is not None:
        overlays = place_overlays(read_overlays(overlay), original_of(scan.question.module))
    return Page(model_page(replace(collect_content(scan, title, run, excuse), overlays=overlays)))


def data_of_page(model: nn.Module, args: Any, kwargs: Any, *, training: bool) -> dict[str, Any]:
    """Return the data of a model's page, from a pass on shapes alone."""
    scan = Scan(model, args=args, kwargs=kwargs, mode="same", execute="abstract", training=training)
    scan.trace  # noqa: B018 - raises if the pass fails
    return page_data(collect_content(scan))


def collect_content(
    scan: Scan,
    title: str | None = None,
    run: Measuring | None = None,
    excuse: Excuse = str,
    *,
    receptive_field: bool = True,
) -> PageContent:
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
        scan.trace  # noqa: B018 - raises if the pass fails
    except RecordError as error:
        text = excuse(error)
        if error.so_far is None or not error.so_far.modules:
            raise
        return _unfinished(scan, name, error, text)
    measured = None
    if run is not None:
        measured = _of_this_model(run.measured(), original_of(scan.question.module))
    memory = known("Memory", lambda: answer_unchanged(scan, "memory"))
    roofline = None
    if scan.has_device:
        roofline = known("Time", lambda: answer_unchanged(scan, "roofline"))
    fields = scan.fields if receptive_field else None
    return _finished(scan, name, memory, roofline, fields, measured, reasons)


def answer_unchanged(scan: Scan, name: Literal["memory", "roofline"]) -> Any:
    """Return an answer, or raise an InputError if it would be of a model that was changed since.

    Answers that exist already are those of the model as it was.
    """
    if not has_answer(scan, name) and scan.is_changed:
        raise InputError(
            "the model was changed after its pass was recorded: make another scan, or ask before "
            "you change it"
        )
    return getattr(scan, name)


def _of_this_model(measured: Measured, model: nn.Module) -> Measured:
    """Return the measurements by the paths of this model, which may be a part of what has run."""
    if not measured.types:
        raise InputError("the run has no measured step: run the model for a few steps first")
    named = model.named_modules(remove_duplicate=False)
    types = {path: type_name_of(module) for path, module in named}
    places = [path for path, name in measured.types.items() if name == types[""]]
    if "" not in measured.types:  # only some modules were inspected
        places.append("")
    for place in places:
        inner = measured.inside(place)
        if inner.types and inner.types.items() <= types.items():
            return inner
    if places:
        measured = measured.inside(places[0])
    raise _other_model(measured.types, types)


def _other_model(measured: Mapping[str, str], types: Mapping[str, str]) -> InputError:
    """Return the error for a run of another model, from the classes of modules by path."""
    path = next((path for path, name in measured.items() if types.get(path) != name), "")
    here = f"a {types[path]}" if path in types else "missing"
    where = path or "the model itself"
    return InputError(
        f"the run is of another model: {where} is a {measured[path]} there, and {here} in this "
        "model"
    )


def _finished(
    scan: Scan,
    title: str,
    memory: MemoryEstimate | None,
    roofline: Roofline | None,
    fields: ReceptiveField | None,
    measured: Measured | None,
    reasons: Mapping[str, str],
) -> PageContent:
    question = _question(scan, scan.trace)
    if measured is not None:
        question.append(measured.source)
    return PageContent(
        title=title,
        question=question,
        measured=measured,
        trace=scan.trace,
        info=info_of(scan.trace, "torchscan", fields, memory=memory, roofline=roofline),
        memory=memory,
        roofline=roofline,
        fields=fields,
        settings=scan.settings,
        reasons=reasons,
    )


def _unfinished(scan: Scan, title: str, error: RecordError, text: str) -> PageContent:
    """Return the contents up to the module that failed."""
    trace = error.so_far
    return PageContent(
        title=title,
        question=_question(scan, trace),
        trace=trace,
        info=info_of(trace),
        settings=settings_of(scan.question.module),
        failed=error.failed,
        error=text,
    )


def _question(scan: Scan, trace: Trace) -> list[str]:
    asked = scan.question
    optimizer = None
    if isinstance(asked.optimizer, str):
        optimizer = asked.optimizer
    elif asked.optimizer is not None:
        optimizer = "an optimizer"
    return question_of(
        trace,
        has_backward=asked.training,
        precision=asked.precision,
        optimizer=optimizer,
        device=asked.device,
    )
