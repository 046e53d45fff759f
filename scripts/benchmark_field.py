"""The default call on models that people have: architectures of transformers, models of other libraries, steps of decoding."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_KINDS = ("transformers", "other", "decoding")
_OUTCOMES = ("shapes", "real", "refused", "crashed", "too slow", "no input", "not built")
#: seconds for one model, and for the libraries to be imported
_LIMIT, _LIMIT_TO_START = 90.0, 180.0

Answer = dict[str, Any]


class Child:
    """A process that measures one model after another, so that a crash or a hang ends one model only."""

    def __init__(self) -> None:
        self._rest = b""
        command = [sys.executable, str(_HERE / "field_child.py")]
        self._answers, written = os.pipe()
        read, questions = os.pipe()
        self._process = subprocess.Popen(
            command, stdin=read, stdout=written, stderr=subprocess.DEVNULL
        )
        self._questions = os.fdopen(questions, "wb", buffering=0)
        os.close(written)
        os.close(read)
        first = self._line(_LIMIT_TO_START)
        if not first:
            sys.exit(f"{command[-1]} does not start")
        self.names: list[str] = json.loads(first)

    def measure(self, name: str) -> Answer | None:
        """What it says about a model; nothing if it has died or takes too long."""
        with contextlib.suppress(BrokenPipeError):  # it is dead, which reading tells
            self._questions.write(f"{name}\n".encode())
        line = self._line(_LIMIT)
        answer: Answer | None = json.loads(line) if line else None
        return answer

    def end(self) -> int | None:
        """End it. Returns its exit status if it had ended by itself."""
        self._questions.close()
        os.close(self._answers)
        try:
            return self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None

    def _line(self, limit: float) -> bytes:
        end = time.monotonic() + limit
        while b"\n" not in self._rest:
            data = self._more(end - time.monotonic())
            if not data:
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _more(self, limit: float) -> bytes:
        ready, _, _ = select.select([self._answers], [], [], max(limit, 0))
        return os.read(self._answers, 1 << 20) if ready else b""


def measure_field(only: str, answers: Path) -> int:
    """Print what is not as it should be, model by model, then the totals. Returns the number of crashes and wrong parameters.

    Everything that was found is written to ``answers``, one line of JSON for each model.
    """
    start = time.perf_counter()
    answers.parent.mkdir(parents=True, exist_ok=True)
    found = []
    with answers.open("w", encoding="utf-8") as file:
        for answer in _answers(only):
            file.write(json.dumps(answer) + "\n")
            file.flush()
            for remark in _remarks(answer):
                print(remark, flush=True)
            found.append(answer)
    _print_totals(found)
    print(f"{time.perf_counter() - start:.0f} s; all answers are in {answers}")
    return sum(_is_wrong(answer) for answer in found)


def _answers(only: str) -> Iterator[Answer]:
    child = Child()
    for name in [each for each in child.names if only.lower() in each.lower()]:
        answer = child.measure(name)
        if answer is None:
            status = child.end()
            outcome, detail = (
                ("too slow", f"{_LIMIT:.0f} s")
                if status is None
                else ("crashed", f"exit status {status}")
            )
            answer, child = (
                {"name": name, "outcome": outcome, "detail": detail, "seconds": _LIMIT},
                Child(),
            )
        yield answer
    child.end()


def _remarks(answer: Answer) -> Iterator[str]:
    """A line for each thing about a model that a reader should know."""
    name, outcome = f"{answer['name']} ({answer.get('class', '')})", answer["outcome"]
    if outcome == "real":
        yield f"{name}: for real: {answer['reason']}"
    elif outcome != "shapes":
        yield f"{name}: {outcome}: {answer['detail']}{_on_data(answer)}"
    if _parameters_differ(answer):
        yield f"{name}: PARAMETERS {answer['parameters']:,}, should be {answer['expected']:,}"
    if answer.get("changed"):
        yield f"{name}: CACHE of the arguments is not as before"
    if answer.get("unexplained"):
        yield f"{name}: MACs {answer['compared']:,}, counted {answer['counter']:,}, UNEXPLAINED {answer['unexplained']:,}"
    if answer.get("without_formula"):
        yield f"{name}: unpriced: {', '.join(answer['without_formula'])}"


def _on_data(answer: Answer) -> str:
    return f" (small, with data: {answer['with_data']})" if "with_data" in answer else ""


def _parameters_differ(answer: Answer) -> bool:
    return bool(answer.get("parameters") != answer.get("expected"))


def _is_wrong(answer: Answer) -> bool:
    return answer["outcome"] == "crashed" or _parameters_differ(answer)


def _print_totals(found: list[Answer]) -> None:
    print(f"\n{'models':14}" + "".join(f"{outcome:>11}" for outcome in _OUTCOMES) + f"{'all':>8}")
    for kind in _KINDS:
        tally = Counter(
            answer["outcome"] for answer in found if answer["name"].startswith(f"{kind}:")
        )
        print(
            f"{kind:14}"
            + "".join(f"{tally[outcome]:11}" for outcome in _OUTCOMES)
            + f"{tally.total():8}"
        )
    recorded = [answer for answer in found if "parameters" in answer]
    print(
        f"parameters equal: {sum(not _parameters_differ(each) for each in recorded)} of {len(recorded)}"
    )
    _print_macs([answer for answer in found if "unexplained" in answer])
    print(f"recorded, but not counted: {sum('unexplained' not in each for each in recorded)}")
    for answer in recorded:
        if "unexplained" not in answer:
            print(f"  {answer['name']}: {answer['not_counted'][:150]}")


def _print_macs(compared: list[Answer]) -> None:
    """How many counts agree by themselves, how many by the rules, and by which."""
    equal = sum(not answer["unexplained"] and not answer["rules"] for answer in compared)
    explained = sum(not answer["unexplained"] and bool(answer["rules"]) for answer in compared)
    print(
        f"MACs equal to the counter's: {equal} of {len(compared)}; {explained} more with what the counter leaves out:"
    )
    for rule in sorted({rule for answer in compared for rule in answer["rules"]}):
        print(
            f"  {_of_rule(rule, [answer['rules'][rule] for answer in compared if rule in answer['rules']])}"
        )
    print(
        f"unexplained: {', '.join(answer['name'] for answer in compared if answer['unexplained']) or 'none'}"
    )
    print(
        f"how they were counted: {_tally(answer['counted'] for answer in compared) or 'not at all'}"
    )


def _of_rule(rule: str, calls: list[list[int]]) -> str:
    return f"{rule}: {sum(each for each, _ in calls):,} calls in {len(calls)} models, {sum(macs for _, macs in calls):,} MACs"


def _tally(words: Iterable[str]) -> str:
    return ", ".join(f"{word}: {count}" for word, count in Counter(words).most_common())
