"""The default call on models that people have: the architectures of some hundred packages."""

from __future__ import annotations

import json
import time
from pathlib import Path

from field_child import LIMIT, Answer, Child
from field_packages import packages
from field_table import is_wrong, print_totals, remarks, write_page


class Field:
    """All answers so far, in a file to which each new one is appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listings: dict[str, Answer] = {}
        self.answers: dict[str, Answer] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._add(json.loads(line))

    def write(self, answer: Answer) -> None:
        """Append a listing of a package, or the answer for a model."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")
        self._add(answer)

    def _add(self, answer: Answer) -> None:
        if "package" in answer:
            self.listings[answer["package"]] = answer
        else:
            self.answers[answer["name"]] = answer

    def measured(self) -> list[Answer]:
        """Return the answers for the models that are listed at present."""
        names = [name for listing in self.listings.values() for name in listing["names"]]
        return [self.answers[name] for name in names if name in self.answers]


def measure_field(only: str, path: Path, page: Path, *, again: bool) -> int:
    """Measure models without an answer, then write the page's table unless `only` leaves some out.

    Returns the number of crashes and wrong counts. The answers so far are kept in ``path``, one
    line of JSON for each model, so that an interrupted run goes on where it was.
    """
    start = time.perf_counter()
    field = Field(path)
    chosen, _, part = only.partition(":")
    known = packages()
    for name in chosen.split(",") if chosen else known:
        if name not in known:
            raise SystemExit(
                f"{name} is not a package of the field: choose from {', '.join(known)}"
            )
        _measure_package(field, name, part, again=again)
    print_totals(field.measured())
    spent = sum(answer["seconds"] for answer in field.measured())
    print(
        f"{time.perf_counter() - start:.0f} s, {spent:.0f} s for all answers, which are in {path}"
    )
    if not only:
        write_page(page, field.listings, field.answers, known)
    return sum(is_wrong(answer) for answer in field.measured())


def _measure_package(field: Field, name: str, only: str, *, again: bool) -> None:
    listing = field.listings.get(name)
    is_listed = listing is not None and "error" not in listing and not again
    if is_listed and all(each in field.answers for each in listing["names"]):
        return
    child = Child(name)
    field.write(child.listing)
    if "error" in child.listing:
        print(f"{name}: {child.listing['error']}", flush=True)
    for each in child.listing["names"]:
        if only not in each or (each in field.answers and not again):
            continue
        answer = child.measure(each)
        if answer is None:
            answer, child = _lost(each, child), Child(name)
        field.write(answer)
        for remark in remarks(answer):
            print(remark, flush=True)
    child.end()


def _lost(name: str, child: Child) -> Answer:
    status = child.end()
    if status is None:
        outcome, detail = "too slow", f"{LIMIT:.0f} s"
    else:
        outcome, detail = "crashed", f"exit status {status}"
    return {"name": name, "outcome": outcome, "detail": detail, "seconds": LIMIT}
