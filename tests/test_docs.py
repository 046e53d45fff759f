"""README and docs are true: every snippet runs, and the README shows what the demo prints."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
from tests.console import with_real_output
from tests.marked import rows_of
from tests.versions import skip_before
from torchscan.analyses.roofline import attention_constants, collective_constants, constants

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TIME_MODEL = (ROOT / "docs" / "reference" / "time-model.md").read_text()
README = ROOT / "README.md"
#: name -> value
CONSTANTS = vars(constants) | vars(attention_constants) | vars(collective_constants)
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
AS_SHOWN = ("2.10", "optimizers and layers call other operators than on the pages")
#: a snippet, and the text directly below it, which is what it prints
SNIPPET = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
SNIPPETS = [
    pytest.param(*match.groups(), id=f"{page.stem}-{index}")
    for page in PAGES
    if page != README
    for index, match in enumerate(SNIPPET.finditer(page.read_text()))
]


@pytest.mark.filterwarnings("ignore:measuring the GPU memory of this process failed")
@pytest.mark.parametrize(("code", "printed"), SNIPPETS)
def test_a_snippet_runs_and_prints_what_is_shown(
    code: str,
    printed: str | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})  # noqa: S102
    if printed is not None:
        skip_before(*AS_SHOWN)
        assert printed == capsys.readouterr().out


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```console" in page.read_text()], ids=lambda page: page.stem
)
def test_commands_print_what_is_shown(page: Path) -> None:
    """Where an answer is to change, ``python scripts/console.py`` writes the pages anew."""
    skip_before(*AS_SHOWN)
    assert _of_any_torch(page.read_text()) == _of_any_torch(with_real_output(page.read_text()))


def _of_any_torch(text: str) -> str:
    """The page names the version that it was written on."""
    return re.sub(r"torch \d+\.\d+\.\d+", "torch", text)


def test_the_budget_file_of_the_docs_is_the_one_of_the_examples() -> None:
    shown = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == (ROOT / "docs" / "examples" / "torchscan.toml").read_text()


def test_the_readme_shows_what_the_demo_prints() -> None:
    demo = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", ROOT / "scripts" / "demo.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = re.search(r"<!-- scripts/demo -->\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == demo.stdout


def test_the_readme_shows_lines_that_its_snippets_print(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snippets continue each other, and its outputs are shortened and wrapped."""
    skip_before(*AS_SHOWN)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "train"}
    for match in SNIPPET.finditer(README.read_text()):
        code, shown = match.groups()
        exec(compile(code, "train.py", "exec"), names)  # noqa: S102
        printed = " ".join(capsys.readouterr().out.split())
        for line in (shown or "").splitlines():
            _, found, printed = printed.partition(" ".join(line.split()))
            assert found, f"not printed, or not in this order: {line}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_pictures_exist_and_each_is_in_a_page() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r'(?:src(?:set)?="|!\[[^\]]*\]\()([^")#:]+)', page.read_text())
    }
    pictures = {
        path
        for path in (ROOT / "docs" / "_static").resolve().iterdir()
        if path.suffix in {".png", ".svg"}
    }
    assert linked == pictures


def test_every_constant_of_the_estimate_is_documented_with_its_value() -> None:
    documented = {name: float(value) for name, value, _ in _documented_constants()}
    numbers = {
        name: value
        for name, value in CONSTANTS.items()
        if name.isupper() and isinstance(value, int | float)
    }
    assert documented == numbers
    in_mappings = sum(
        len(value)
        for name, value in CONSTANTS.items()
        if name.isupper() and isinstance(value, Mapping)
    )
    assert (
        f"There are {len(numbers)} of them, and {in_mappings} more numbers in the\nmappings"
        in TIME_MODEL
    )


def test_it_is_said_where_every_constant_comes_from() -> None:
    legend = {
        row[0].strip("`"): int(row[1])
        for row in rows_of(TIME_MODEL[TIME_MODEL.index("| from | how many |") :])
    }
    assert legend == Counter(source for _, _, source in _documented_constants())


def _documented_constants() -> Iterator[tuple[str, str, str]]:
    """Name, value and where it comes from; a row may have one word for all of its constants."""
    for names, values, _, sources in rows_of(
        TIME_MODEL[TIME_MODEL.index("| constant | value |") :]
    ):
        several = [name.strip(" `") for name in names.split(",")]
        each = [source.strip() for source in sources.split(",")]
        yield from zip(
            several, values.split(","), each * len(several) if len(each) == 1 else each, strict=True
        )
