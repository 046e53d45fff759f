"""The answers of ``scripts/benchmark --field`` as lines on the terminal and as a table in docs/accuracy.md."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
from field_child import Answer
from field_packages import Package
from truth_section import lines

from tests.marked import table, with_blocks
from torchscan.files import write_text

_RECORDED = ("shapes", "real")
#: models that fail by themselves, too: their arguments are wrong, or this machine lacks something
_NOT_RUN = ("no input", "not built")
_HEADINGS = (
    *(
        "package",
        "version",
        "architectures",
        "on shapes",
        "with data",
        "MACs equal",
        "explained",
        "different",
    ),
    *("not compared", "refused", "failed"),
)


def remarks(answer: Answer) -> Iterator[str]:
    """Yield a line for each thing about a model that a reader should know."""
    name, outcome = f"{answer['name']} ({answer.get('class', '')})", answer["outcome"]
    if outcome == "real":
        yield f"{name}: with data: {answer['reason']}"
    elif outcome != "shapes":
        yield f"{name}: {outcome}: {answer['detail']}{_on_data(answer)}"
    if _parameters_differ(answer):
        yield f"{name}: PARAMETERS {answer['parameters']:,}, should be {answer['expected']:,}"
    if answer.get("changed"):
        yield f"{name}: CACHE of the arguments is not as before"
    if answer.get("unexplained"):
        compared = f"MACs {answer['compared']:,}, counted {answer['counter']:,}"
        yield f"{name}: {compared}, UNEXPLAINED {answer['unexplained']:,}"
    if answer.get("without_formula"):
        yield f"{name}: no cost formula: {', '.join(answer['without_formula'])}"


def is_wrong(answer: Answer) -> bool:
    """Return whether torchscan crashed or returned a wrong number of parameters or MACs."""
    is_different = bool(answer.get("unexplained"))
    return answer["outcome"] == "crashed" or is_different or _parameters_differ(answer)


def _on_data(answer: Answer) -> str:
    return f" (small, with data: {answer['with_data']})" if "with_data" in answer else ""


def _parameters_differ(answer: Answer) -> bool:
    return bool(answer.get("parameters") != answer.get("expected"))


def print_totals(found: Sequence[Answer]) -> None:
    """Print the totals of all packages, and the rules that explain differences."""
    tally = Counter(answer["outcome"] for answer in found)
    print(", ".join(f"{outcome}: {count:,}" for outcome, count in tally.most_common()))
    print(" | ".join(_HEADINGS[2:]))
    print(" | ".join(_counts(found)))
    for rule in _rules(found):
        print(" | ".join(rule))


def write_page(
    page: Path,
    listings: Mapping[str, Answer],
    answers: Mapping[str, Answer],
    known: Mapping[str, Package],
) -> None:
    """Write the table, its rules and the reasons of refusals into the page."""
    found = {
        name: [answers[each] for each in listings[name]["names"] if each in answers]
        for name in sorted(listings, key=str.lower)
    }
    every = [answer for each in found.values() for answer in each]
    shown = {name: each for name, each in found.items() if _architectures(each)}
    rows = [
        (_title(known[name]), _version(listings[name]), *_counts(each))
        for name, each in shown.items()
    ]
    for title, is_held_out in (("† held out", True), ("the others", False)):
        part = [each for name, each in shown.items() if known[name].held_out == is_held_out]
        merged = [answer for each in part for answer in each]
        rows.append((f"{title}, {len(part)} packages", "", *_counts(merged)))
    rows.append((f"**all, {len(shown)} packages**", "", *_counts(every)))

    text = _made(every) + _left_out(listings, found, known)
    blocks = {
        "field": f"{text}\n{table(_HEADINGS, rows)}",
        "field-rules": table(
            ("the counter leaves out (-: has too many)", "models", "calls", "MACs"), _rules(every)
        ),
        "field-refused": table(("outcome", "reason", "architectures"), _reasons(every)),
    }
    blocks = {name: f"\n{block}\n" for name, block in blocks.items()}
    write_text(page, with_blocks(page.read_text(encoding="utf-8"), blocks))


def _title(package: Package) -> str:
    return f"{package.distribution} †" if package.held_out else package.distribution


def _left_out(
    listings: Mapping[str, Answer],
    found: Mapping[str, Sequence[Answer]],
    known: Mapping[str, Package],
) -> str:
    """Return sentences about models that are not counted, and packages without any."""
    not_run = [a for each in found.values() for a in each if a["outcome"] in _NOT_RUN]
    failed = {
        known[name].distribution: each["error"]
        for name, each in listings.items()
        if "error" in each
    }
    sentences = [not_counted(len(not_run), failed)]
    missing = {
        known[name].distribution: len(each["names"]) - len(found[name])
        for name, each in listings.items()
    }
    to_do = [f"{count} of {name}" for name, count in missing.items() if count]
    to_do += [package.distribution for name, package in known.items() if name not in listings]
    if to_do:
        sentences.append(f"The run is not complete: it lacks {', '.join(to_do)}.")
    return "".join("\n" + lines(each) for each in sentences)


def not_counted(num_models: int, failed: Mapping[str, str]) -> str:
    """Return a sentence about models that do not run, and packages with the errors of their imports."""
    names = sorted(failed, key=str.lower)
    named = "; ".join(f"{name}: {_first_words(failed[name])}" for name in names)
    return (
        f"Not counted are {num_models:,} models that could not be built or called without "
        f"torchscan either, and {len(failed)} packages that could not be imported here"
        + (f" ({named})." if failed else ".")
    )


def _first_words(error: str) -> str:
    """Return what an error says up to a comma, a path or a new line, without its type."""
    words = re.split(r" \| |, | \(", error)[0]
    text = words.partition(": ")[2].rstrip(".")
    return words if text in ("", "None") else text


def _architectures(found: Iterable[Answer]) -> list[Answer]:
    return [answer for answer in found if answer["outcome"] not in _NOT_RUN]


def _counts(found: Sequence[Answer]) -> list[str]:
    """Return the cells of a row, in the order of the headings."""
    models = _architectures(found)
    recorded = [answer for answer in models if answer["outcome"] in _RECORDED]
    compared = [answer for answer in recorded if "unexplained" in answer]
    same = [answer for answer in compared if not answer["unexplained"]]
    equal = [answer for answer in same if not answer["rules"]]
    tally = Counter(answer["outcome"] for answer in models)
    counts = (
        *(len(models), tally["shapes"], tally["real"], len(equal), len(same) - len(equal)),
        *(len(compared) - len(same), len(recorded) - len(compared), tally["refused"]),
        tally["crashed"] + tally["too slow"],
    )
    return [f"{count:,}" if count else "–" for count in counts]


def _rules(found: Sequence[Answer]) -> list[tuple[str, ...]]:
    compared = [answer for answer in found if answer.get("rules")]
    names = sorted({rule for answer in compared for rule in answer["rules"]})
    rows = []
    for name in names:
        calls = [answer["rules"][name] for answer in compared if name in answer["rules"]]
        total, macs = sum(each for each, _ in calls), sum(macs for _, macs in calls)
        rows.append((name, f"{len(calls):,}", f"{total:,}", f"{macs:,}"))
    return rows


def _reasons(found: Sequence[Answer]) -> list[tuple[str, ...]]:
    """Return the reasons why models are not recorded or not compared, the most frequent first."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for answer in _architectures(found):
        outcome = answer["outcome"]
        if outcome not in _RECORDED:
            detail = answer["detail"]
            reason = f"takes more than {detail}" if outcome == "too slow" else reason_of(detail)
            reasons.setdefault((outcome, reason), []).append(answer["name"])
        elif "unexplained" not in answer:
            reason = reason_of(answer.get("not_counted", ""))
            reasons.setdefault(("not compared", reason), []).append(answer["name"])
        elif answer["unexplained"]:
            share = answer["unexplained"] / max(answer["counter"], 1)
            reasons.setdefault(("different", f"by {share:+.2%}"), []).append(answer["name"])
    rows = []
    for (outcome, reason), names in sorted(reasons.items(), key=lambda each: -len(each[1])):
        named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        rows.append((outcome, reason.replace("|", "/"), named))
    return sorted(rows, key=lambda row: row[0])


def reason_of(detail: str) -> str:
    """Return the first words of an error without numbers and names, to group it with others."""
    text = re.sub(r"\bat 0x\w+|'[^']*'|`[^`]*`|\d+", "…", detail.split(" | ")[0])
    return text[:110].strip()


def _version(listing: Answer) -> str:
    return re.sub(r"[+].*", "", listing["version"])


def _made(found: Sequence[Answer]) -> str:
    torch_version = re.sub(r"[+].*", "", torch.__version__)
    seconds = sum(answer["seconds"] for answer in found)
    return lines(
        f"Made on {datetime.now(UTC):%Y-%m-%d} with torchscan {metadata.version('torchscan')}, "
        f"torch {torch_version} (CPU) and Python {platform.python_version()}, "
        f"in {seconds / 60:.0f} minutes on one core."
    )
