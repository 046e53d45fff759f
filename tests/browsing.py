"""A real browser, for tests of what people click."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

#: what is visible of each row of the first table of layers, cell by cell
_ROWS = """table => Array.from(table.tBodies[0].rows).filter(row => row.offsetParent !== null)
    .map(row => Array.from(row.cells).map(cell => cell.innerText.trim()))"""

#: of each text that is seen: its color, how opaque it is, and where it stands
_TEXTS = """roots => roots.flatMap(root => Array.from(root.querySelectorAll("*"))).filter(
    each => each.offsetParent !== null
).flatMap(each => {
    const texts = Array.from(each.childNodes).filter(node => node.nodeType === 3 && node.data.trim());
    if (!texts.length) return [];
    let opacity = 1;
    for (let at = each; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const style = getComputedStyle(each);
    const color = (each instanceof SVGElement ? style.fill : style.color).match(/[\\d.]+/g).map(Number);
    const seen = opacity * (color[3] ?? 1);
    return texts.map(node => {
        const range = document.createRange();
        range.selectNodeContents(node);
        const box = range.getBoundingClientRect();
        const edges = [box.x, box.y, box.right, box.bottom];
        return {text: node.data, color: color.slice(0, 3), opacity: seen, box: edges};
    });
})"""


#: What a page does on its own happens late, as on a busy machine: a test that does not wait for it always fails.
_LATE = """(() => {
    const late = (call) => (...given) => setTimeout(() => call(...given), 20);
    const add = window.addEventListener.bind(window), kinds = ["hashchange", "resize"];
    window.addEventListener = (kind, call, ...rest) => add(kind, kinds.includes(kind) ? late(call) : call, ...rest);
    const frame = window.requestAnimationFrame.bind(window), Observer = window.ResizeObserver;
    window.requestAnimationFrame = (call) => setTimeout(() => frame(call), 20);
    window.ResizeObserver = class extends Observer { constructor(call) { super(late(call)); } };
})()"""


@contextmanager
def opened(
    browser: Browser,
    file: Path | str,
    is_expected: Callable[[str], bool] = lambda url: False,
    **options: Any,
) -> Iterator[Page]:
    """The page of a file, or of a server. In the end nothing must have gone wrong in it, and nothing been asked of others.

    What ``is_expected`` is refused and forgiven; a page around ours may ask for it.
    """
    address = file if isinstance(file, str) else file.as_uri()
    context = browser.new_context(viewport={"width": 1000, "height": 800}, **options)
    context.set_default_timeout(10_000)
    context.add_init_script(_LATE)
    page = context.new_page()
    wrong: list[str] = []

    def refuse(route: Any) -> None:
        if not is_expected(route.request.url):
            wrong.append(f"asks for {route.request.url}")
        route.abort()

    def notice(message: Any) -> None:
        if message.type in ("error", "warning") and not is_expected(message.location["url"]):
            wrong.append(f"says {message.text}")

    def dismiss(dialog: Any) -> None:
        wrong.append(f"opens {dialog.message}")
        dialog.dismiss()

    def look(request: Any) -> None:
        url = request.url.partition("#")[0]
        if url.startswith("file:") and url != address.partition("#")[0]:
            wrong.append(f"asks for {url}")

    page.route(
        lambda url: not url.startswith(("file:", "data:", "blob:", address)) or is_expected(url),
        refuse,
    )
    page.on("request", look)
    page.on("console", notice)
    page.on("pageerror", lambda error: wrong.append(f"raises {error}"))
    page.on("dialog", dismiss)
    page.goto(address)
    settle(page)
    yield page
    page.wait_for_timeout(20)
    assert page.evaluate("window.pwned") is None
    context.close()
    assert wrong == [], wrong


def expect(locator: Locator) -> Any:
    """Return playwright's assertions, which wait: for what follows a click or a new address."""
    from playwright.sync_api import expect as assertions

    return assertions(locator)


def settle(page: Page) -> None:
    """Wait until the page has stayed as it is for a while: it is drawn anew while it finds its place."""
    now, before = page.content(), ""
    while now != before:
        page.wait_for_timeout(100)
        now, before = page.content(), now


def visible_rows(page: Page, number: int = 0) -> list[list[str]]:
    """The texts of the rows that are seen of a table of layers."""
    rows: list[list[str]] = page.locator("table.layers").nth(number).evaluate(_ROWS)
    return rows


def least_contrast(page: Page, selector: str) -> tuple[float, str]:
    """Of text to what is behind it, as WCAG defines it, where it is the least; and which text that is."""
    settle(page)
    texts = page.locator(selector).evaluate_all(_TEXTS)
    page.add_style_tag(
        content="* { color: transparent !important; } *::before, *::after { visibility: hidden; }"
        "svg text, svg tspan { fill: transparent !important; stroke: transparent !important; }"
    )
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    found = []
    for text in texts:
        left, top, right, bottom = text["box"]
        box = (
            max(left + 2, 0),
            max(top + 2, 0),
            min(right - 2, picture.width),
            min(bottom - 2, picture.height),
        )  # no borders
        if box[0] >= box[2] or box[1] >= box[3]:
            continue
        colors: Any = picture.crop(box).getcolors(10_000) or []
        for _, behind in colors:
            contrast, mixed = _mixed_contrast(tuple(text["color"]), text["opacity"], behind)
            found.append((contrast, f"{text['text']!r}: {mixed} on {behind}"))
    assert len(texts) > 5
    return min(found)


#: of each drawn mark its color, how opaque it is, and the color of the panel behind it
_MARKS = """all => all.map(each => {
    const style = getComputedStyle(each);
    const paint = style.stroke === "none" || each.matches("text") ? style.fill : style.stroke;
    let opacity = 1;
    for (let at = each; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const panel = getComputedStyle(each.closest(".panel, .fact, .card")).backgroundColor;
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number).slice(0, 3);
    return [numbers(paint), opacity, numbers(panel)];
})"""


def least_contrast_of_marks(page: Page, selector: str) -> float:
    """Return the least contrast of lines and points of a chart to their panel, as WCAG defines it."""
    marks = page.locator(selector).evaluate_all(_MARKS)
    assert marks, selector
    found = []
    for color, opacity, behind in marks:
        pairs = zip(color, behind, strict=True)
        mixed = [opacity * each + (1 - opacity) * ground for each, ground in pairs]
        found.append(_contrast(mixed, behind))
    return min(found)


@functools.lru_cache(maxsize=100_000)
def _mixed_contrast(
    color: tuple[float, ...], opacity: float, behind: tuple[int, ...]
) -> tuple[float, list[float]]:
    """Return the contrast of a translucent color to what is behind it, and the color that is seen."""
    pairs = zip(color, behind, strict=True)
    mixed = [opacity * each + (1 - opacity) * ground for each, ground in pairs]
    return _contrast(mixed, behind), mixed


def _contrast(one: Any, other: Any) -> float:
    dark, light = sorted(_luminance(each) for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: Any) -> float:
    linear = [
        each / 255 / 12.92 if each <= 10.3 else ((each / 255 + 0.055) / 1.055) ** 2.4
        for each in color
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
