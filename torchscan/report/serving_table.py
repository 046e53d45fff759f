"""Ways to serve a language model, as a table."""

from __future__ import annotations

from torchscan import units
from torchscan.analyses.generation.serving_search import ServingChoice, ServingSearch
from torchscan.notes import Note
from torchscan.report.make_table import ColumnOf, make_table, mark_best, number, words
from torchscan.report.table import Table
from torchscan.report.table_rows import Cell
from torchscan.wrong_arguments import explain_wrong_types


@explain_wrong_types
def serving_table(search: ServingSearch) -> Table:
    """Return the best way and the Pareto front, one way per row, the fastest tokens first.

    Args:
        search: of ``parallel.search_serving``.
    """
    shown, best = list(search.front), search.best
    if best is not None and best not in shown:
        shown.append(best)
    shown.sort(key=lambda each: each.per_token)
    return make_table(
        "Serving",
        _columns(search),
        shown,
        mark_best(shown, best),
        summary=_summary(search),
        remarks=_remarks(search),
        noun="ways",
    )


# -- columns -------------------------------------------------------------------------------------


def _columns(search: ServingSearch) -> list[ColumnOf[ServingChoice]]:
    has_formats = len({each.compute for each in search.choices}) > 1

    def ways(choice: ServingChoice) -> Cell:
        shown = f"{choice.num_copies} × {choice.layout}"
        if has_formats:
            shown = f"{shown}, {choice.compute or 'own'}"
        return Cell([choice.num_copies, str(choice.layout), choice.compute], shown)

    def prompt_ways(choice: ServingChoice) -> Cell:
        if choice.prefill_layout is None:
            return Cell(None, "the same")
        shown = f"{choice.num_prefill_copies} × {choice.prefill_layout}"
        return Cell([choice.num_prefill_copies, str(choice.prefill_layout)], shown)

    def verdict(choice: ServingChoice) -> Cell:
        shown = "kept" if choice.is_within_limits else "missed"
        return Cell(choice.is_within_limits, shown)

    columns = [words("copies", "GPUs", ways)]
    if any(each.prefill_tp is not None for each in search.choices):
        columns.append(words("prefill_copies", "For prompts", prompt_ways))
    columns.append(number("batch_size", "Batch", text="{:,}".format))
    columns.append(number("first_token", "First token", text=units.duration))
    columns.append(number("per_token", "Per token", text=units.duration))
    columns.append(number("tokens_per_second_per_gpu", "Tokens/s/GPU", text="{:,.0f}".format))
    if search.price is not None:
        price = number("price_per_million", "Price of 1M", text="{:,.2f}".format, priority=1)
        columns.append(price)
    columns.append(words("within_limits", "Limits", verdict))
    return columns


# -- text ----------------------------------------------------------------------------------------


def _summary(search: ServingSearch) -> list[str]:
    parts = [
        f"{search.num_gpus:,} {search.device}, {search.engine}",
        f"prompts of {search.prompt:,} tokens, {search.new:,} new",
    ]
    if search.max_first_token is not None:
        parts.append(f"first token within {units.duration(search.max_first_token)}")
    if search.max_per_token is not None:
        parts.append(f"each further token within {units.duration(search.max_per_token)}")
    question = "; ".join(parts)
    best = search.best
    if best is None:
        return [question, "No way is within the limits."]
    rate, per_gpu = best.tokens_per_second, best.tokens_per_second_per_gpu
    answer = f"Best: {rate:,.0f} tokens/s, {per_gpu:,.0f} per GPU"
    if best.price_per_million is not None:
        answer += f", {best.price_per_million:,.2f} for a million tokens"
    return [question, answer]


def _remarks(search: ServingSearch) -> list[str]:
    remarks = []
    if search.best is not None:
        remarks.append("* marks the most tokens per second within the limits.")
    remarks += [f"Left out: {name}: {reason}." for name, reason in search.refused.items()]
    remarks += _problems(search)
    if search.margin is not None:
        remarks.append(f"Times per token: {search.margin.label}.")
    remarks += [note.sentence for note in search.assumptions]
    count = len(search.choices)
    remarks.append(f"{count:,} ways were compared; these are the best of each latency.")
    return remarks


def _problems(search: ServingSearch) -> list[str]:
    """Return a sentence for each limit, with the number of ways that exceed it and the nearest."""
    of_code: dict[str, list[Note]] = {}
    for choice in search.choices:
        for note in choice.problems:
            of_code.setdefault(note.code, []).append(note)
    sentences = []
    for notes in of_code.values():
        nearest = min(notes, key=lambda note: float(note.values["seconds"]))
        ways = f"{len(notes):,} way{'' if len(notes) == 1 else 's'}"
        sentences.append(f"Outside the limits: {ways}; in the nearest, {nearest}.")
    return sentences
