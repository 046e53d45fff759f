"""A notebook, as people run and share it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import torchscan
from tests.browsing import least_contrast, opened, visible_rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

nbformat = pytest.importorskip("nbformat", reason="there is no nbformat here")
nbclient = pytest.importorskip("nbclient", reason="there is no nbclient here")
nbconvert = pytest.importorskip("nbconvert", reason="there is no nbconvert here")

pytestmark = pytest.mark.slow

CELLS = (
    """\
from torch import nn
from torchscan import aggregate_info, crawl_module, from_json, select_layers, summary

model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))""",
    "info = crawl_module(model, (4,))\ninfo",
    "summary(model, (4,))",
    "aggregate_info(info, 1)",
    "select_layers(info, sort='params', top=2)",
    "from_json(info.to_json())",
    "from torchscan import format_info\nprint(format_info(info))",
    "from torchscan import estimate_memory\nestimate = estimate_memory(model, (4,))\nestimate",
    "print(estimate)",
)
#: 4 · 8 + 8 and 8 · 2 + 2 parameters, without the biases as many MACs
OPEN = [
    ["Sequential", "58", "48"],
    ["0", "40", "32"],
    ["0", "40", "32"],
    ["1", "–", "–"],
    ["1", "18", "16"],
]
CLOSED = [OPEN[0], ["0", "40", "32"], OPEN[4]]
SORTED = [
    ["0.0", "40", "32"],
    ["1", "18", "16"],
    *([name, "–", "–"] for name in ("Sequential", "0", "0.1")),
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that ran, in a thread of its own: it wants an event loop, and the browser has one."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    folder = str(tmp_path_factory.mktemp("notebook"))
    client = nbclient.NotebookClient(
        made, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setenv("PYTHONPATH", str(Path(torchscan.__file__).parent.parent))  # the same as here
        patch.setenv("IPYTHONDIR", folder)  # and nobody's own settings
        pool.submit(lambda: asyncio.run(client.async_execute())).result()  # which closes its loop
    return made


def test_what_is_crawled_shows_itself_as_a_table_and_as_text(notebook: Any) -> None:
    (output,) = notebook.cells[1].outputs
    assert output.output_type == "execute_result"
    assert set(output.data) == {"text/html", "text/plain"}
    assert output.data["text/html"].startswith('<div class="torchscan"')
    (printed,) = notebook.cells[6].outputs
    assert output.data["text/plain"] + "\n" == printed.text
    assert "├─0" in printed.text


def test_other_results_show_themselves_too(notebook: Any) -> None:
    (output,), (printed,) = notebook.cells[7].outputs, notebook.cells[8].outputs
    assert output.data["text/plain"] + "\n" == printed.text
    assert printed.text.startswith("Peak memory")
    assert output.data["text/html"].startswith('<div class="torchscan"')


def test_a_summary_is_printed_once(notebook: Any) -> None:
    (output,) = notebook.cells[2].outputs
    assert (output.output_type, output.name) == ("stream", "stdout")
    assert output.text.count("Total parameters") == 1


def test_what_is_made_of_it_shows_itself_too(notebook: Any) -> None:
    for number, rows in ((3, 3), (4, 2), (5, 5)):
        (output,) = notebook.cells[number].outputs
        assert output.data["text/html"].count("<tr data-depth") == rows
        assert "Total parameters                   58" in output.data["text/plain"]


# -- exported to HTML ----------------------------------------------------------------------------------------------------

WAYS = [("lab", "light"), ("lab", "dark"), ("classic", "light")]


def _is_of_nbconvert(url: str) -> bool:
    """What an exported notebook asks for by itself: formulas, diagrams and widgets."""
    return url.startswith(
        ("https://cdnjs.cloudflare.com/", "https://unpkg.com/", "https://cdn.jsdelivr.net/")
    )


@contextmanager
def exported(
    notebook: Any, browser: Browser, folder: Path, template: str, theme: str
) -> Iterator[Page]:
    exporter = nbconvert.HTMLExporter(template_name=template, theme=theme)
    body, _ = exporter.from_notebook_node(notebook)
    file = folder / "notebook.html"
    file.write_text(body, encoding="utf-8")
    with opened(browser, file, _is_of_nbconvert) as page:
        yield page


@pytest.mark.parametrize(("template", "theme"), WAYS)
def test_an_exported_notebook_opens_sorts_and_can_be_read(
    notebook: Any, browser: Browser, tmp_path: Path, template: str, theme: str
) -> None:
    with exported(notebook, browser, tmp_path, template, theme) as page:
        rows = page.locator("table.layers").first.locator("tbody tr")
        assert _shown(page) == OPEN
        rows.nth(1).locator(".fold").click()
        assert _shown(page) == CLOSED
        assert _shown(page, 3) == OPEN  # of another cell
        page.get_by_role("button", name="Params").first.click()
        assert _shown(page) == SORTED
        assert _shown(page, 2) == SORTED[:2]
        contrast, where = least_contrast(page, ".torchscan")
        assert contrast >= 4.5, where


@pytest.mark.few(1)
@pytest.mark.parametrize(("template", "theme"), WAYS)
def test_what_notebooks_do_to_tables_does_not_reach_ours(
    notebook: Any, browser: Browser, tmp_path: Path, template: str, theme: str
) -> None:
    with exported(notebook, browser, tmp_path, template, theme) as page:
        table = page.locator("table.layers").first
        places = table.locator(".name").evaluate_all(
            "names => names.map(name => name.getBoundingClientRect().x)"
        )
        assert places[0] < places[1] == places[4] < places[2] == places[3]  # a tree
        cells = table.locator("tr:not([hidden]) td:nth-child(2)")
        assert set(
            cells.evaluate_all("cells => cells.map(cell => getComputedStyle(cell).textAlign)")
        ) == {"left"}
        rows = table.locator("tbody tr")
        assert set(
            rows.evaluate_all("rows => rows.map(row => getComputedStyle(row).backgroundColor)")
        ) == {"rgba(0, 0, 0, 0)"}


def test_what_we_show_asks_nothing_of_the_network(notebook: Any) -> None:
    shown = [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.outputs
        if "data" in output
    ]
    assert len(shown) == 5
    assert not [
        text
        for text in shown
        if re.search(r"https?:|@import|url\((?!#)|\bsrc=|\bhref=\"(?!#)|\bimport\b|fetch", text)
    ]


def _shown(page: Page, number: int = 0) -> list[list[str]]:
    """Name, parameters and MACs of what is seen."""
    return [[row[0], *row[3:5]] for row in visible_rows(page, number)]
