"""Ways to serve a language model, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torchscan import units
from torchscan.analyses.generation.serving_search import ServingChoice, ServingSearch
from torchscan.notes import Note
from torchscan.report.make_table import ColumnOf, make_table, number, words, yes_or_no
from torchscan.report.table import Cell, Table
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def serving_table(search: ServingSearch) -> Table:
    """Return the best way and the Pareto front, one way per row, the fastest tokens first.

    Args:
        search: of ``parallel.search_serving``.
    """
    shown = _shown(search)
    return make_table(
        "Serving",
        _columns(search),
        shown,
        summary=[_question(search), *_answer(search)],
        remarks=[
            *_left_out(search),
            *_problems(search),
            *([] if search.error_margin is None else [f"Times: {search.error_margin.label}."]),
            *(note.sentence for note in search.assumptions),
            f"{len(search.choices):,} ways were compared; these are the best of each latency.",
        ],
        noun="ways",
    )


def _shown(search: ServingSearch) -> Sequence[ServingChoice]:
    best, front = search.best, list(search.front)
    if best is not None and best not in front:
        front.append(best)
    return sorted(front, key=lambda each: each.per_token)


def _columns(search: ServingSearch) -> list[ColumnOf[ServingChoice]]:
    separate = any(each.prefill_tp is not None for each in search.choices)
    has_formats = len({each.compute for each in search.choices}) > 1
    best = search.best
    return [
        words("copies", "GPUs", partial(_copies, has_formats=has_formats)),
        *([words("prefill_copies", "For prompts", _prefill_copies)] if separate else []),
        number("batch_size", "Batch", text="{:,}".format),
        number("first_token", "First token", text=units.duration),
        number("per_token", "Per token", text=units.duration),
        number("tokens_per_second_per_gpu", "Tokens/s/GPU", text="{:,.0f}".format),
        *(
            []
            if search.price is None
            else [number("price_per_million", "Price of 1M", text="{:,.2f}".format)]
        ),
        words(
            "within_limits",
            "In limits",
            lambda each: Cell(
                each.is_within_limits,
                "best" if each is best else yes_or_no(each.is_within_limits),
            ),
        ),
    ]


def _copies(choice: ServingChoice, *, has_formats: bool) -> Cell:
    form = f", {choice.compute or 'own'}" if has_formats else ""
    shown = f"{choice.num_copies} × tp {choice.tp}{form}"
    return Cell([choice.num_copies, choice.tp, choice.compute], shown)


def _prefill_copies(choice: ServingChoice) -> Cell:
    if choice.prefill_tp is None:
        return Cell(None, "the same")
    shown = f"{choice.num_prefill_copies} × tp {choice.prefill_tp}"
    return Cell([choice.num_prefill_copies, choice.prefill_tp], shown)


def _question(search: ServingSearch) -> str:
    limits = [
        f"{name} within {units.duration(limit)}"
        for name, limit in (
            ("first token", search.max_first_token),
            ("each further token", search.max_per_token),
        )
        if limit is not None
    ]
    asked = f"{search.num_gpus:,} {search.device}, {search.engine}; prompts of {search.prompt:,}"
    return "; ".join([f"{asked} tokens, {search.new:,} new", *limits])


def _answer(search: ServingSearch) -> list[str]:
    best = search.best
    if best is None:
        return ["No way is within the limits."]
    return [
        f"Best: {best.tokens_per_second:,.0f} tokens/s, "
        f"{best.tokens_per_second_per_gpu:,.0f} per GPU"
    ]


def _problems(search: ServingSearch) -> list[str]:
    """Return a sentence for each limit, with the number of ways that exceed it and the nearest."""
    of_code: dict[str, list[Note]] = {}
    for choice in search.choices:
        for note in choice.problems:
            of_code.setdefault(note.code, []).append(note)
    found = []
    for notes in of_code.values():
        nearest = min(notes, key=lambda note: float(note.values["seconds"]))
        ways = f"{len(notes):,} way{'' if len(notes) == 1 else 's'}"
        found.append(f"Outside the limits: {ways}; in the nearest, {nearest}.")
    return found


def _left_out(search: ServingSearch) -> list[str]:
    """Return a sentence for each reason, with the ways that it refuses."""
    names: dict[Note, list[str]] = {}
    for name, reason in search.refused.items():
        names.setdefault(reason, []).append(name)
    return [f"Left out: {'; '.join(each)}: {reason}." for reason, each in names.items()]
