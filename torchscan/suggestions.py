"""Suggestions for a slow or large pass: each change separately, and all useful ones together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torchscan.analyses.suggestions_result import Suggestion, SuggestionMetric, Suggestions
from torchscan.errors import TorchscanError
from torchscan.notes import Note
from torchscan.pass_changes import Change
from torchscan.plain import to_plain

#: what saves less is not worth a line
_MIN_SAVED = 0.01


class Answer(NamedTuple):
    """The metric with a change."""

    value: float
    #: as :class:`Suggestion` has them
    error_share: float | None = None
    fits: bool | None = None


Ask = Callable[[Change], Answer]
AS_IT_IS = Change(name="as it is", how=None)


def suggestions_of(
    metric: SuggestionMetric, question: str, changes: Iterable[Change], ask: Ask
) -> Suggestions:
    """Return the estimates of each change and of all together that help.

    Changes whose estimate fails are listed with the reason.
    """
    baseline = _suggestion(AS_IT_IS, None, ask)
    tried, failed = _try_each(changes, baseline.after, ask)
    helping = []
    others = []
    for _, suggestion in tried.values():
        if suggestion.saves >= _MIN_SAVED:
            helping.append(suggestion)
        else:
            change, saves = suggestion.change, suggestion.saves
            others.append(Note.of("saves-nothing", change=change, saves=saves))
    for reason, failures in failed.items():
        if not all(each.variant is None and each.change in tried for each in failures):
            without = to_plain(list(dict.fromkeys(failures)))
            others.append(Note.of("no-estimate", changes=without, error=reason))

    changes_tried = [change for change, _ in tried.values()]
    names = [suggestion.change for suggestion in helping]
    together = _combine(changes_tried, names, baseline.after, ask)
    most_alone = max((suggestion.saves for suggestion in helping), default=_MIN_SAVED)
    if together is not None and together.saves > most_alone:
        helping.append(together)
    ordered = sorted(helping, key=lambda each: -each.saves)
    return Suggestions(
        metric=metric,
        question=question,
        baseline=baseline,
        suggestions=tuple(ordered),
        ineffective=tuple(others),
    )


_Tried = dict[str, tuple[Change, Suggestion]]
_Failed = dict[str, list["_Failure"]]


def _try_each(changes: Iterable[Change], before: float, ask: Ask) -> tuple[_Tried, _Failed]:
    """Return the best variant of each change by its name, and failures by their reason."""
    tried: _Tried = {}
    failed: _Failed = {}
    for each in changes:
        try:
            suggestion = _suggestion(each, before, ask)
        except TorchscanError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            # another variant of the change may have succeeded: then this one is named by its code
            variant = each.how if each.name in tried else None
            failed.setdefault(reason, []).append(_Failure(each.name, variant))
            continue
        _, best = tried.get(each.name, (None, None))
        if best is None or best.saves < suggestion.saves:
            tried[each.name] = each, suggestion
    return tried, failed


class _Failure(NamedTuple):
    """A change that has no estimate."""

    change: str
    #: what to write, if it is one of several variants of the change
    variant: Note | None


def _suggestion(change: Change, before: float | None, ask: Ask) -> Suggestion:
    answer = ask(change)
    after = answer.value if change.samples == 1 else answer.value / change.samples
    saves = 1 - after / before if before else 0.0
    return Suggestion(
        change=change.name,
        how=change.how,
        after=after,
        saves=saves,
        error_share=answer.error_share,
        fits=answer.fits,
    )


def _combine(
    tried: Sequence[Change], helping: Sequence[str], before: float, ask: Ask
) -> Suggestion | None:
    """Return the best combination of all changes that help with one of the precisions tried.

    A precision need not help by itself. Then another batch is added, if that helps.
    """
    common = []
    precisions = []
    batches = []
    for each in tried:
        if "precision" in each.arguments:
            precisions.append(each)
        elif each.name in helping and not each.is_of_batch:
            common.append(each)
        if each.name in helping and each.is_of_batch:
            batches.append(each)

    best = _best([common, *([*common, each] for each in precisions)], before, ask)
    chosen = common if best is None else best.changes
    larger = _best([[*chosen, each] for each in batches], before, ask)
    best = max(filter(None, (best, larger)), key=lambda each: each.saves, default=None)
    if best is None or len(best.changes) < 2:
        return None
    return best.suggestion


class _Combination(NamedTuple):
    """Several changes together."""

    changes: Sequence[Change]
    suggestion: Suggestion

    @property
    def saves(self) -> float:
        """The share that the changes save."""
        return self.suggestion.saves


def _best(choices: Iterable[Sequence[Change]], before: float, ask: Ask) -> _Combination | None:
    found: list[_Combination] = []
    for chosen in choices:
        if chosen:
            with suppress(TorchscanError):
                found.append(_Combination(chosen, _suggestion(_merged(chosen), before, ask)))
    return max(found, key=lambda each: each.saves, default=None)


def _merged(changes: Sequence[Change]) -> Change:
    arguments: dict[str, Any] = {}
    checkpointed: list[str] = []
    samples = 1
    for each in changes:
        arguments |= each.arguments
        checkpointed += each.checkpointed
        samples *= each.samples
    names = [each.name for each in changes]
    return Change(
        name="together",
        how=Note.of("combine", changes=names),
        arguments=arguments,
        channels_last=any(each.channels_last for each in changes),
        checkpointed=tuple(checkpointed),
        samples=samples,
    )
