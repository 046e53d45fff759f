"""What all tests share."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch.torch_version import TorchVersion

from tests.observables import flags
from torchscan.errors import InputError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: runs of pytest of their own, for the tests of the plugin
pytest_plugins = ["pytester"]

# How long an example takes depends on what else the machine runs. Other profiles stay as they are.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

#: a file whose tests are all slow
_ALL_SLOW = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``scripts/check``."""
    parser.addoption(
        "--two-cases",
        action="store_true",
        help="run the first and the last case of each parametrized test; all in changed files",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files that have only slow tests, where slow tests are not asked for."""
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if not (is_test and config.getoption("--two-cases")):
        return None
    return _ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) is not None or None


@pytest.hookimpl(tryfirst=True)  # before the order is drawn by chance
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that open a browser as slow, and leave out the cases that were not asked for."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    for cases in _cases_by_test(items).values():
        few = cases[0].get_closest_marker("few")
        if few is not None:
            for item in cases[few.args[0] :]:
                item.add_marker(pytest.mark.sweep)
    if config.getoption("--two-cases"):
        kept = _two_cases_of_each(items, _changed_files(config.rootpath))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what all tests import out of garbage collections, which would read a million objects each time."""
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


def _two_cases_of_each(items: list[pytest.Item], changed: set[Path]) -> set[pytest.Item]:
    """Return the first and the last case of each test, and all cases of changed files."""
    kept = {item for item in items if item.path in changed}
    for cases in _cases_by_test(items).values():
        kept |= {cases[0], cases[-1]}
    return kept


def _cases_by_test(items: list[pytest.Item]) -> dict[tuple[str, str], list[pytest.Item]]:
    """Return the cases of each test in the order of its parameters, whatever order they run in."""
    found: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        name = getattr(item, "originalname", item.name)
        parent = "" if item.parent is None else item.parent.nodeid
        found.setdefault((parent, name), []).append(item)
    return {key: sorted(cases, key=_parameter_indices) for key, cases in found.items()}


def _parameter_indices(item: pytest.Item) -> tuple[int, ...]:
    callspec = getattr(item, "callspec", None)
    return () if callspec is None else tuple(callspec.indices.values())


def _changed_files(root: Path) -> set[Path]:
    """Return the files that differ from the last commit, or none where there is no git."""
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return set()
    return {root / line[3:].split(" -> ")[-1] for line in done.stdout.splitlines()}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Skip what this version of torch has no meshes for: they are refused, and say so."""
    outcome: Any = yield
    error = None if call.excinfo is None else call.excinfo.value
    is_old = TorchVersion(torch.__version__) < "2.9"
    if is_old and isinstance(error, InputError) and "meshes need" in str(error):
        report = outcome.get_result()
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], f"Skipped: {error}")


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Weights drawn by chance would else depend on the tests that ran before, which two workers deal out anew each time."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # the same for CUDA, which is not there, is kept for later with the traceback of each call
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_flag_stays_switched() -> Iterator[None]:
    """What a test leaves behind would fail in a later one, which had no part in it."""
    before, hook = flags(), sys.excepthook
    yield
    sys.excepthook = hook  # torch puts its own there for a group of processes, and leaves it
    assert flags() == before


TRUTH = Path(__file__).parent.parent.parent / "shared" / "truth"


@pytest.fixture
def truth() -> Callable[[str], Path]:
    """The path of a file of published figures; the test is skipped where there is none."""

    def path(name: str) -> Path:
        if not (TRUTH / name).exists():
            pytest.skip(f"no published figures here ({name})")
        return TRUTH / name

    return path


@pytest.fixture
def as_json() -> Callable[[Any], Any]:
    """What survives a trip through JSON."""
    return lambda value: json.loads(json.dumps(value))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; the test is skipped where there is none. It ends with the module: it has an event loop running.

    The headless shell draws no window, and takes a quarter of the time of the complete browser.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright here")
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"there is no browser here ({', '.join(names)})")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=options)
        yield chromium
        chromium.close()
