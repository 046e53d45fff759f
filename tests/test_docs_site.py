"""The site of docs/: all public names have entries, all pages places; other hosts are not asked."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import torchscan
from tests.browsing import least_contrast
from torchscan import parallel, sinks, types

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if find_spec(name) is None]
#: what a browser fetches by itself: tag -> the attributes that name it
FETCHED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "use": ("href", "xlink:href"),
}
ELSEWHERE = re.compile(r"(?:https?:)?//", re.IGNORECASE)


def _public_names() -> list[str]:
    """Return the names of ``torchscan``, and of its modules as ``types.Info``."""
    names = [name for name in torchscan.__all__ if name != "__version__"]
    hidden = ["inspect", "types"]  # not in __all__: a star import would hide the standard library's
    modules = {"parallel": parallel, "sinks": sinks, "types": types}
    parts = [f"{name}.{part}" for name, module in modules.items() for part in module.__all__]
    return sorted([*names, *hidden, *parts])


def _documented() -> list[str]:
    """Return the public names that pages of the reference document, as often as they do."""
    entry = re.compile(
        r"^\.\. auto\w+:: torchscan\.((?:(?:parallel|sinks|types)\.)?\w+)$", re.MULTILINE
    )
    pages = sorted((DOCS / "reference").glob("*.rst"))
    return [name for page in pages for name in entry.findall(page.read_text(encoding="utf-8"))]


def test_the_reference_has_every_public_name_once() -> None:
    assert sorted(_documented()) == _public_names()


def test_every_page_has_one_place_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", index, re.DOTALL | re.MULTILINE)
    entries = [
        line for block in blocks for line in block.splitlines() if line and not line.startswith(":")
    ]
    listed = [
        re.sub(r"^.* <(.*)>$", r"\1", entry) for entry in entries
    ]  # with a title of its own, or without
    pages = [
        page.relative_to(DOCS).with_suffix("").as_posix()
        for kind in ("md", "rst")
        for page in DOCS.rglob(f"*.{kind}")
    ]
    assert sorted(listed) == sorted(page for page in pages if page != "index")
    captions = [
        caption
        for block in blocks
        for caption in re.findall(r"^:caption: (.*)$", block, re.MULTILINE)
    ]
    assert captions == ["Start", "How to", "Reference", "Background"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built as scripts/docs builds them; there, too, a warning is an error.

    The first of several test processes builds them, and the others wait for it.
    """
    if MISSING:
        pytest.skip(
            f"the site is not built: {', '.join(MISSING)} not installed (pip install '.[docs]')"
        )
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return _build_site(tmp_path_factory.mktemp("site"))
    shared = tmp_path_factory.getbasetemp().parent
    with open(shared / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        html = shared / "site" / "html"
        return html if (html / "index.html").exists() else _build_site(shared / "site")


def _build_site(built: Path) -> Path:
    sphinx = [
        sys.executable,
        "-m",
        "sphinx",
        *_options(),
        "--quiet",
        "--doctree-dir",
        str(built / "doctrees"),
    ]
    done = subprocess.run([*sphinx, DOCS, built / "html"], capture_output=True, text=True, cwd=ROOT)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return built / "html"


def _options() -> list[str]:
    """Those that scripts/docs gives to Sphinx."""
    script = (ROOT / "scripts" / "docs").read_text(encoding="utf-8")
    command = re.search(r'-m sphinx (.*) "\$@" docs build/docs$', script, re.MULTILINE)
    assert command is not None
    return command[1].split()


@pytest.mark.sweep
def test_the_site_is_built_without_warnings(site: Path) -> None:
    assert (site / "index.html").exists()


@pytest.mark.sweep
def test_every_public_name_has_an_anchor(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")]
    anchors = {anchor for page in pages for anchor in re.findall(r'id="([^"]+)"', page)}
    named = {
        anchor.removeprefix("module-torchscan.").removeprefix("torchscan.") for anchor in anchors
    }
    assert sorted(set(_public_names()) - named) == []


@pytest.mark.sweep
def test_docstrings_are_set_and_not_shown_as_they_are_written(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "Args:" not in text, page.name
        assert "\ue000" not in text, page.name
        assert "TypeAliasForwardRef" not in text, page.name


class _Fetched(HTMLParser):
    """Collects what a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if value and name in FETCHED.get(tag, ())]


def _fetched(site: Path) -> Iterator[tuple[str, str]]:
    for page in site.rglob("*.html"):
        parser = _Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        yield from ((page.name, address) for address in parser.addresses)
    for sheet in site.rglob("*.css"):
        rules = re.sub(r"/\*.*?\*/", "", sheet.read_text(encoding="utf-8"), flags=re.DOTALL)
        yield from (
            (sheet.name, address)
            for address in re.findall(r"""(?:url\(\s*|@import\s+)["']?([^"')\s]+)""", rules)
        )


@pytest.mark.sweep
def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    fetched = list(_fetched(site))
    assert any(
        address.endswith(".css") or ".css?" in address for _, address in fetched
    )  # it does look
    assert [(page, address) for page, address in fetched if ELSEWHERE.match(address)] == []


# -- in a browser --------------------------------------------------------------------------------------------------------

PAGES = ("index", "tutorial", "paper", "shell", "accuracy", "reference/memory")
#: what is cut off: of a block of code that the page does not let scroll, or of the page itself
_CUT = """() => [document.scrollingElement, ...document.querySelectorAll("article pre, .cards li, article img")].filter(
    each => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).whiteSpace !== "pre"
).map(each => each.tagName + " " + each.innerText.slice(0, 60))"""


def opened_page(browser: Browser, site: Path, name: str, width: int, **options: Any) -> Page:
    """A page of the site from its file."""
    page = browser.new_context(viewport={"width": width, "height": 900}, **options).new_page()
    page.goto((site / f"{name}.html").as_uri())
    return page


@pytest.mark.sweep
@pytest.mark.parametrize("width", [1280, 380])
def test_no_page_is_wider_than_the_screen_and_no_code_is_cut_off(
    browser: Browser, site: Path, width: int
) -> None:
    """Tables that terminals print scroll on a phone; everything else wraps."""
    for name in PAGES:
        page = opened_page(browser, site, name, width)
        assert page.evaluate(_CUT) == [], name
        page.context.close()


@pytest.mark.sweep
def test_nothing_is_cut_off_in_print(browser: Browser, site: Path) -> None:
    for name in PAGES:
        page = opened_page(browser, site, name, 800)
        page.emulate_media(media="print")
        assert page.evaluate(_CUT) == [], name
        page.context.close()


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_colour_schemes(browser: Browser, site: Path, scheme: str) -> None:
    for name in PAGES:
        page = opened_page(browser, site, name, 1280, color_scheme=scheme)
        contrast, text = least_contrast(page, "article")
        assert contrast >= 4.5, f"{name}: {text}"
        page.context.close()


@pytest.mark.sweep
@pytest.mark.parametrize("system", ["light", "dark"])
def test_pictures_follow_the_system_and_the_switch_of_the_site(
    browser: Browser, site: Path, system: str
) -> None:
    page = opened_page(browser, site, "index", 1280, color_scheme=system)
    for scheme in ("auto", "light", "dark"):
        page.evaluate("scheme => { document.body.dataset.theme = scheme; }", scheme)
        shown = page.locator("img[src*=memory]:not([src$=svg]):visible")
        assert shown.count() == 1
        is_dark = (system if scheme == "auto" else scheme) == "dark"
        assert str(shown.get_attribute("src")).endswith(
            "memory-dark.png" if is_dark else "memory.png"
        )
        assert shown.evaluate("image => image.naturalWidth") > 0
    page.context.close()


@pytest.mark.sweep
def test_cards_are_reached_and_opened_by_keyboard(browser: Browser, site: Path) -> None:
    page = opened_page(browser, site, "index", 1280)
    link = page.locator(".cards").get_by_role("link", name="Will my model fit?")
    for _ in range(200):
        page.keyboard.press("Tab")
        if link.evaluate("link => link === document.activeElement"):
            break
    assert link.evaluate("link => getComputedStyle(link).outlineStyle") != "none", (
        "one sees where one is"
    )
    page.keyboard.press("Enter")
    page.wait_for_url("**/will-it-fit.html")
    page.context.close()
