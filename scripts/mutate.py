"""Tries small changes of the package on its tests.

Each change is tried in a process of its own, forked from one that has imported torch. There the changed text is imported; the
file stays as it is. First come the quickest tests that run the changed lines, then, for what survives, all others that run
them, but the slow ones. Tests that start Python anew do not see the change.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from difflib import unified_diff
from functools import cached_property
from pathlib import Path
from typing import Any

from mutations import ROOT, Place, changed, places_of
from tabulate import tabulate

BUILD = ROOT / "build" / "mutate"
RESULTS = BUILD / "results.jsonl"
AT_ONCE = 2
#: seconds of tests to try before all of them: more than this many that run the same line would rarely notice more
ENOUGH = 8.0
#: imported before the forks; what only some tests need, they import, and pytest its plugins
HEAVY = ("numpy", "pandas", "torch", "torch._dynamo", "torch.utils.flop_counter")
SURVIVED = "survived"
#: no test that was chosen runs the changed lines, or all that do were skipped
NOT_RUN = "not run"
#: exit status of a process in which every test was skipped
ALL_SKIPPED = 98
UNNOTICED = (SURVIVED, NOT_RUN)
#: plain: pytest would load the package itself, to rewrite its assertions
FAST = "not slow and not sweep"
SAME_RUN = ["-q", "--assert=plain", "--randomly-seed=0", "-p", "same_examples"]


@dataclass(frozen=True)
class Change:
    """One text in one place."""

    place: Place
    text: str

    @cached_property
    def source(self) -> bytes | None:
        """The changed file; None where nothing changes, or nothing could be imported."""
        return changed(self.place, self.text)

    @property
    def name(self) -> str:
        """What tells it from other changes, as long as its file stays as it is."""
        digest = hashlib.sha256(self.source or b"").hexdigest()[:12]
        return f"{self.place.file}:{self.place.lines[0]} {self.place.kind} {digest}"

    def diff(self) -> str:
        """What a person reads."""
        before = (ROOT / self.place.file).read_text().splitlines()
        after = (self.source or b"").decode().splitlines()
        return "\n".join(list(unified_diff(before, after, n=3, lineterm=""))[2:])


class Runners:
    """Which tests run which lines, from one run of all quick tests; it is made again when a file changes."""

    def __init__(self, marker: str = FAST) -> None:
        self.marker = marker
        texts = [marker.encode(), *(path.read_bytes() for path in _sources())]
        wanted = hashlib.sha256(b"".join(texts)).hexdigest()
        noted = BUILD / "sources"
        if not noted.exists() or noted.read_text() != wanted:
            self._run()
            noted.write_text(wanted)
        self.seconds: dict[str, float] = {}
        self._by_line: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        #: lines of functions, too, that run when files are imported
        self._before_tests: dict[str, set[int]] = defaultdict(set)
        for path in BUILD.glob("lines-*.json"):
            self._read(json.loads(path.read_text()))

    def _run(self) -> None:
        for path in BUILD.glob("lines-*.json"):
            path.unlink()
        command = [
            sys.executable,
            "-m",
            "pytest",
            *SAME_RUN,
            "-p",
            "lines_run",
            "-m",
            self.marker,
            "-n",
            str(AT_ONCE),
            "--dist",
            "worksteal",
        ]
        print(
            f"Which tests run which lines: a run of all tests that are {self.marker} …", flush=True
        )
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"LINES_RUN": str(BUILD / "lines-")},
            stdout=subprocess.PIPE,
        )
        print(*done.stdout.decode().splitlines()[-1:], flush=True)

    def _read(self, noted: dict[str, Any]) -> None:
        self.seconds |= noted["passed"]
        for file, lines in noted["runners"].items():
            for line, tests in lines.items():
                self._by_line[file][int(line)] += [noted["tests"][test] for test in tests]
        for file, lines in noted["before_tests"].items():
            self._before_tests[file].update(lines)

    def of(self, place: Place) -> list[str]:
        """Return the tests that run its lines.

        If they run on import, add all tests that run other lines of the file, those of its
        subpackage and those of the package: what reads a table may stand in another file.
        """
        lines = self._by_line[place.file]
        own_lines = range(place.lines[0], place.lines[1] + 1)
        on_import = place.on_import or not self._before_tests[place.file].isdisjoint(own_lines)
        wanted = lines if on_import else own_lines
        tests = {test for line in wanted for test in lines.get(line, ()) if test in self.seconds}
        direct = {test for line in own_lines for test in lines.get(line, ())}
        own = Path(place.file).stem.strip("_")
        if on_import:
            starts = ("tests/test_", f"tests/{Path(place.file).parts[1]}/")
            tests.update(test for test in self.seconds if test.startswith(starts))
        return sorted(
            tests,
            key=lambda test: (test not in direct and own not in test, self.seconds[test], test),
        )

    def enough_of(self, place: Place) -> list[str]:
        """As many of these as take a while."""
        chosen, total = [], 0.0
        for test in self.of(place):
            total += self.seconds[test]
            if total > ENOUGH and chosen:
                break
            chosen.append(test)
        return chosen


def _sources() -> Iterator[Path]:
    for folder in ("torchscan", "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


class Chosen:
    """A plugin of pytest: only these tests, in this order; it notes which fail, and whether any passes."""

    def __init__(self, tests: Iterable[str], verdict: Path) -> None:
        self.order = {test: index for index, test in enumerate(tests)}
        self.verdict = verdict
        self.any_passed = False

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leaves out the others."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order),
            key=lambda item: self.order[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Whatever fails, also while it is set up."""
        if report.failed:
            with self.verdict.open("a") as file:
                file.write(report.nodeid + "\n")
        elif report.passed and report.when == "call":
            self.any_passed = True


class ChangedFile(importlib.machinery.SourceFileLoader):
    """Loads a text in place of what is in the file; nothing is read from, or written to, a cache."""

    text = b""

    def get_data(self, path: str) -> bytes:  # noqa: ARG002
        """The changed text."""
        return self.text

    def path_stats(self, path: str) -> Any:
        """There is no cache where there is no time of a change."""
        raise OSError(path)


class Finder:
    """Finds one module of the package in its changed form, the others where they are."""

    def __init__(self, change: Change) -> None:
        self.path = ROOT / change.place.file
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.text = change.source or self.path.read_bytes()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        """What the machinery of imports asks."""
        if name != self.module:
            return None
        loader = ChangedFile(name, str(self.path))
        loader.text = self.text
        return importlib.util.spec_from_file_location(name, self.path, loader=loader)


@dataclass
class Trial:
    """A change on its way: the process that tries it now, and the tests that have run."""

    change: Change
    runners: Runners
    tests: list[str] = field(default_factory=list)
    all_tests: bool = False
    #: False as long as no test has run the changed lines to its end
    is_run: bool = False
    #: at the first failure; else all that fail are noted
    stops: bool = True
    process: int = 0
    deadline: float = 0.0

    @property
    def verdict(self) -> Path:
        """Where the process leaves the names of tests that fail."""
        return BUILD / f"verdict-{self.process or os.getpid()}"

    def start(self) -> None:
        """Run the quickest tests that run the line; the next time, the others that do."""
        likely = self.runners.of(self.change.place)
        done = set(self.tests)
        self.tests = [test for test in likely if test not in done]
        if not done:
            self.tests = self.runners.enough_of(self.change.place)
        self.all_tests = len(done) + len(self.tests) == len(likely)
        if self.tests:
            self.run()

    def run(self) -> None:
        """Run the chosen tests, in a process of their own."""
        known = self.runners.seconds
        self.deadline = time.monotonic() + 90 + 10 * sum(map(known.__getitem__, self.tests))
        self.process = os.fork()
        if not self.process:
            self._run()

    def _run(self) -> None:
        """In the process of its own; it never returns."""
        os.setsid()
        log = os.open(BUILD / f"log-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.meta_path.insert(0, Finder(self.change))
        import pytest

        files = sorted({test.split("::")[0] for test in self.tests})
        options = [
            *SAME_RUN,
            *["-x"] * self.stops,
            "-p",
            "no:cacheprovider",
            "--randomly-dont-reorganize",
            "-m",
            self.runners.marker,
        ]
        chosen = Chosen(self.tests, BUILD / f"verdict-{os.getpid()}")
        try:
            status = int(pytest.main([*options, *files], plugins=[chosen]))
        except (
            BaseException
        ) as problem:  # whatever it is, this process must not go on where its parent was
            status = 99
            print(problem)
        sys.stdout.flush()
        os._exit(ALL_SKIPPED if status == 0 and not chosen.any_passed else status)

    def outcome(self) -> str | None:
        """None while it runs; "survived", "not run", or what noticed."""
        if not self.tests:
            return NOT_RUN
        done, status = os.waitpid(self.process, os.WNOHANG)
        if not done and time.monotonic() < self.deadline:
            return None
        if not done:
            os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            return self._cleared("takes for ever")
        code = os.waitstatus_to_exitcode(status)
        if code in (0, ALL_SKIPPED):
            self.is_run |= code == 0
            return self._cleared(SURVIVED if self.is_run else NOT_RUN)
        failed = (
            self.verdict.read_text().strip() if self.verdict.exists() else "the tests cannot run"
        )
        return self._cleared(failed)

    def _cleared(self, outcome: str) -> str:
        self.verdict.unlink(missing_ok=True)
        (BUILD / f"log-{self.process}").unlink(missing_ok=True)
        return outcome


def leave_out_what_fails_anyway(runners: Runners) -> None:
    """Tries no change at all: what fails then says nothing about any other."""
    nothing = Change(
        Place("torchscan/units.py", "nothing", 0, 0, ("",), (1, 1), on_import=False), ""
    )
    trial = Trial(nothing, runners, sorted(runners.seconds), stops=False)
    trial.run()
    while (outcome := trial.outcome()) is None:
        time.sleep(0.1)
    if outcome in (NOT_RUN, "the tests cannot run", "takes for ever"):
        raise SystemExit(f"The tests cannot run here: the package, as it is: {outcome}.")
    failing = [] if outcome == SURVIVED else outcome.splitlines()
    for test in failing:
        runners.seconds.pop(test, None)
    print(
        "Left out, as they fail without any change:"
        if failing
        else "Every test passes without a change.",
        *failing,
        flush=True,
    )


def tried(changes: Iterable[Change], runners: Runners) -> Iterator[tuple[Change, str]]:
    """Each with what noticed it, or "survived"; a few at a time. All tests run last, on what the likeliest did not notice."""
    waiting = deque(Trial(change, runners) for change in changes)
    running: list[Trial] = []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(waiting.popleft())
            running[-1].start()
        time.sleep(0.05)
        for trial, outcome in [
            (trial, outcome) for trial in running if (outcome := trial.outcome())
        ]:
            running.remove(trial)
            if outcome in UNNOTICED and not trial.all_tests:
                print(f"so far unnoticed  {trial.change.name}", flush=True)
                waiting.append(trial)
            else:
                yield trial.change, outcome


def draw_changes(count: int, seed: int, files: list[Path]) -> Iterator[Change]:
    """So many changes, each place as likely as any other."""
    places = [place for file in files for place in places_of(file)]
    chance = random.Random(seed)  # noqa: S311
    chance.shuffle(places)
    for place in places:
        change = Change(place, chance.choice(place.texts))
        if count and change.source is not None:
            count -= 1
            yield change


def _recorded() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


def _survivors() -> Iterator[Change]:
    """What survived before and can still be made: its file may have changed since."""
    for result in _recorded().values():
        place = Place(
            **result["place"]
            | {"texts": tuple(result["place"]["texts"]), "lines": tuple(result["place"]["lines"])}
        )
        change = Change(place, result["text"])
        if result["outcome"] in UNNOTICED and change.source and change.name == result["name"]:
            yield change


def _note(change: Change, outcome: str) -> None:
    result = {
        "name": change.name,
        "outcome": outcome,
        "place": asdict(change.place),
        "text": change.text,
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(
        f"{'SURVIVED' if outcome in UNNOTICED else 'killed  '}  {change.name}  {outcome}",
        flush=True,
    )


def _write_survivors(survivors: list[Change]) -> None:
    pages = [f"## {change.name}\n\n```diff\n{change.diff()}\n```\n" for change in survivors]
    (BUILD / "survivors.md").write_text(
        "# Changes that no quick test notices\n\n" + "\n".join(pages)
    )


def _print_table(outcomes: dict[Change, str]) -> None:
    columns = ("killed", SURVIVED, NOT_RUN)
    counts = Counter(
        (change.place.kind, outcome if outcome in columns else "killed")
        for change, outcome in outcomes.items()
    )
    kinds = sorted({kind for kind, _ in counts})
    rows = [(kind, *(counts[kind, column] for column in columns)) for kind in kinds]
    rows.append(("all", *(sum(row[at] for row in rows) for at in (1, 2, 3))))
    print(tabulate(rows, headers=["change", *columns]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=100)
    parser.add_argument("files", nargs="*", type=lambda name: (ROOT / name).resolve())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", action="store_true", help="try again what survived")
    parser.add_argument(
        "-m", dest="marker", default=FAST, help="tests to try them on, as pytest's -m takes them"
    )
    return parser.parse_intermixed_args()


def main() -> None:
    """Draws, tries, and tells."""
    wanted = _arguments()
    BUILD.mkdir(parents=True, exist_ok=True)
    runners = Runners(wanted.marker)
    for name in HEAVY:
        importlib.import_module(name)
    leave_out_what_fails_anyway(runners)
    files = wanted.files or sorted((ROOT / "torchscan").rglob("*.py"))
    changes = list(
        _survivors() if wanted.survivors else draw_changes(wanted.count, wanted.seed, files)
    )
    known = {} if wanted.survivors else _recorded()
    outcomes = {change: known[change.name]["outcome"] for change in changes if change.name in known}
    for change, outcome in tried((change for change in changes if change not in outcomes), runners):
        outcomes[change] = outcome
        _note(change, outcome)
    _write_survivors([change for change, outcome in outcomes.items() if outcome in UNNOTICED])
    _print_table(outcomes)


if __name__ == "__main__":
    main()
