"""The page of a run in the browser, and the server that shows it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import torch
from torch import Tensor, nn

import torchscan
from tests.browsing import expect, opened
from tests.opening import watched_run
from tests.watching.watching import watch
from torchscan import InputError
from torchscan.types import Server
from torchscan.watching.explore.access import Hosts
from torchscan.watching.explore.followed_run import Followed
from torchscan.watching.explore.run_page import page_of_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow  # each has processes of its own
Answer = tuple[int, dict[str, str], str]
Ask = Callable[..., Answer]


def train(run: Path, steps: int = 4, model: nn.Module | None = None, **options: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) if model is None else model
    with watch(net, run, every=1, **options):
        for _ in range(steps):
            net(torch.randn(8, 3)).sum().backward()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with torchscan.serve(run, port=0) as server:
        yield server


@pytest.fixture
def ask(server: Server) -> Ask:
    """Over a socket, with any path and headers."""
    url = urlsplit(server.url)

    def asked(
        path: str = "", method: str = "GET", *, whole: str | None = None, **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=20)
        connection.putrequest(method, whole or url.path + path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        found = (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read().decode(),
        )
        connection.close()
        return found

    return asked


# -- what it answers -------------------------------------------------------------------------------------------------------


def test_it_has_the_page_and_what_was_recorded_of_a_call(ask: Ask) -> None:
    status, headers, page = ask()
    assert status == 200
    assert page.startswith("<!doctype html>")
    assert "'unsafe-inline'" not in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'")
    found = json.loads(ask("heat?call=0")[2])
    assert found["isWhole"]
    assert {each["name"] for each in found["histories"]} == {
        "input",
        "output",
        "output gradient",
        "weight",
        "bias",
    } | {
        "weight gradient",
        "bias gradient",
    }
    assert all(each["last"][-1] == 3 for each in found["histories"])
    assert json.loads(ask("figures")[2])["source"] == "first: step 3"


def test_steps_that_are_written_later_are_there(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)

    followed = Followed(tmp_path / "run")
    before, newest = followed.heat("0")["histories"][0]["last"], followed.newest()
    train(tmp_path / "run", 3)
    assert (before[-1], followed.heat("0")["histories"][0]["last"][-1]) == (1, 4)
    assert followed.newest() != newest
    train(
        tmp_path / "run", 1, step=2
    )  # back to a checkpoint: what came after it is not there any more
    assert followed.heat("0")["histories"][0]["last"] == [0, 1, 2]


# -- who is let in ---------------------------------------------------------------------------------------------------------


def test_it_listens_on_this_machine_alone_and_its_link_is_secret(server: Server) -> None:
    url = urlsplit(server.url)
    assert url.hostname == "127.0.0.1"
    assert len(url.path.strip("/")) >= 32


@pytest.mark.parametrize(
    "whole", ["/", "/figures", "/wrong/figures", "/../etc/passwd", "/%2e%2e/x", "//", "/%C3%A9"]
)
def test_without_the_token_there_is_nothing(ask: Ask, whole: str) -> None:
    assert ask(whole=whole)[0] == 403


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "rank0.sqlite", "heat/../../x", "%00"]
)
def test_no_file_can_be_reached(ask: Ask, path: str) -> None:
    status, _, text = ask(path)
    assert status in (403, 404)
    assert "root:" not in text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),  # a name that was made to point here
        ({"Host": "192.168.1.5"}, 421),  # where it does not listen
        ({"Host": "localhost@evil.example"}, 421),
        ({"Host": "localhost:8000"}, 200),  # through a tunnel
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}, 403),
        (
            {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
            200,
        ),  # a link that is clicked
    ],
)
def test_pages_from_elsewhere_may_not_ask(ask: Ask, headers: dict[str, str], status: int) -> None:
    assert ask("figures", **headers)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_reads(ask: Ask, method: str) -> None:
    assert ask("figures", method)[0] == 405


def test_questions_have_a_limit(ask: Ask) -> None:
    assert ask("heat?call=" + "x" * 5000)[0] == 414
    assert ask("heat?call=" + "x" * 20_000)[0] == 414
    assert json.loads(ask("heat?call=nowhere")[2])["histories"] == []


def test_two_hundred_slow_clients_keep_nobody_out(server: Server, ask: Ask) -> None:
    url = urlsplit(server.url)
    slow = [socket.create_connection((url.hostname, url.port)) for _ in range(200)]
    try:
        for number, each in enumerate(slow):
            each.sendall(
                b"GET "
                if number % 2
                else f"GET {url.path}events HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode()
            )
        assert ask("figures")[0] == 200
        time.sleep(0.5)
        assert ask("events")[0] == 503  # so many pages are told of what is new, and no more
        assert ask("figures")[0] == 200
    finally:
        for each in slow:
            each.close()


def test_of_two_hundred_who_listen_at_once_as_many_are_let_in_as_may_be(server: Server) -> None:
    """All of them ask before the first is answered."""
    url = urlsplit(server.url)
    asked = f"GET {url.path}events HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode()
    listeners = [socket.create_connection((url.hostname, url.port), timeout=20) for _ in range(100)]
    try:
        for each in listeners:
            each.sendall(asked)
        status = [each.recv(12) for each in listeners]
    finally:
        for each in listeners:
            each.close()
    assert status.count(b"HTTP/1.1 200") <= 64
    assert status.count(b"HTTP/1.1 503") >= 36


REFUSED = "GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (f"{REFUSED}\r\n", "G"),
        (f"{REFUSED}Content-Length: 1000\r\n\r\n", "a"),
        (f"{REFUSED}Transfer-Encoding: chunked\r\n\r\n", "zz\r\n"),
        (f"{REFUSED}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n", ""),
        (f"{REFUSED}\r\n" * 20, "G"),
        ("GET / HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n", "G"),
        ("\x00\r\n\r\n", ""),
    ],
    ids=["byte", "body", "chunks", "continue", "pipelined", "1.0", "garbage"],
)
def test_a_client_without_the_token_holds_no_connection(
    server: Server, first: str, then: str
) -> None:
    """It sends a byte of its next request, or of a body, and nothing more."""
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port), timeout=20) as held:
        held.sendall(first.encode())
        held.settimeout(0.2)
        with contextlib.suppress(OSError):
            held.recv(65536)
        held.settimeout(20)
        with contextlib.suppress(OSError):
            held.sendall(then.encode())
        assert is_ended(held)


def is_ended(client: socket.socket) -> bool:
    """Read to the end of a connection; a timeout is none."""
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.sweep
def test_clients_that_keep_it_waiting_are_dropped(server: Server) -> None:
    """All at once, since each is waited for as long."""
    clients = (_sends_bytes_after_an_answer, _does_not_read, _asks_for_nothing, _says_nothing)
    with ThreadPoolExecutor(len(clients)) as threads:
        dropped = [threads.submit(each, server) for each in clients]
        assert [each.result() for each in dropped] == [True] * len(clients)


def _sends_bytes_after_an_answer(server: Server) -> bool:
    """Send a byte now and then after an answer; return whether the connection is ended."""
    url = urlsplit(server.url)
    asked = f"GET {url.path}figures HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode()
    with socket.create_connection((url.hostname, url.port), timeout=20) as slow:
        slow.sendall(asked)
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")
        slow.settimeout(1)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                slow.sendall(b"G")
                if not slow.recv(65536):
                    return True
            except TimeoutError:
                continue
            except OSError:
                return True
    return False


def _does_not_read(server: Server) -> bool:
    """Ask for more than the kernel keeps of answers, and read none."""
    url = urlsplit(server.url)
    asked = f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect((url.hostname, url.port))
        slow.sendall(asked * 60)
        slow.settimeout(30)
        gone = select.poll()
        gone.register(slow, 0)  # errors and hang-ups only
        return bool(gone.poll(120_000))


def _asks_for_nothing(server: Server) -> bool:
    """Send the beginning of a request."""
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port), timeout=20) as silent:
        silent.sendall(b"GET / HT")
        return silent.recv(100) == b""


def _says_nothing(server: Server) -> bool:
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port), timeout=20) as silent:
        return is_ended(silent)


def test_idle_connections_of_one_address_are_few(server: Server, ask: Ask) -> None:
    url = urlsplit(server.url)
    idle = [socket.create_connection((url.hostname, url.port), timeout=5) for _ in range(600)]
    try:
        assert ask("figures")[0] == 200
        idle[0].settimeout(5)
        assert is_ended(idle[0])  # the oldest goes first
    finally:
        for each in idle:
            each.close()


# -- how it begins and ends ------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_a_port_that_is_taken_is_not_insisted_on(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with torchscan.serve(run, port=port) as server:
            assert urlsplit(server.url).port != port


@pytest.mark.sweep
def test_where_it_listens_at_all_addresses_it_answers_to_any_but_to_no_other_name(
    run: Path,
) -> None:
    hosts = {"192.168.1.5:8000": 200, "[2001:db8::1]:80": 200, "evil.example:80": 421}
    with torchscan.serve(run, host="0.0.0.0", port=0) as server:  # noqa: S104
        url = urlsplit(server.url)
        assert url.hostname != "0.0.0.0"  # noqa: S104
        for host, status in hosts.items():
            connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
            connection.request("GET", url.path, headers={"Host": host})
            assert connection.getresponse().status == status, host
            connection.close()


def test_it_answers_under_a_name_however_it_is_written(run: Path) -> None:
    assert "mybox:6116" in Hosts("MyBox", is_anywhere=False)
    assert "evil:6116" not in Hosts("MyBox", is_anywhere=False)


def test_a_file_without_tables_yet_ends_nothing(run: Path, tmp_path: Path) -> None:
    """A second process has just begun, and its file is not ready."""
    shutil.copy(run / "rank0.sqlite", tmp_path)
    followed = Followed(tmp_path)
    (tmp_path / "rank1.sqlite").touch()
    for ask in (followed.newest, followed.figures, lambda: watched_run(tmp_path).series):
        with pytest.raises(InputError, match="rank1"):
            ask()


def test_an_interrupt_of_the_training_is_none_of_the_servers(server: Server) -> None:
    assert os.getsid(server._process.pid) != os.getsid(0)


def test_a_server_that_cannot_start_leaves_nothing_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for _ in range(2):  # and the folder is free
        with pytest.raises(InputError, match=r"pip install starlette uvicorn"):
            torchscan.watch(nn.Linear(2, 2), tmp_path / "run", serve=True)


def test_a_nan_of_a_process_that_begins_later_is_the_first_verdict(
    run: Path, tmp_path: Path
) -> None:
    shutil.copy(run / "rank0.sqlite", tmp_path)
    followed = Followed(tmp_path)
    assert not followed.figures()["wrong"]

    class Wrong(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * torch.nan)

    train(tmp_path / "other", model=Wrong(3, 2))
    shutil.copy(tmp_path / "other" / "rank0.sqlite", tmp_path / "rank1.sqlite")
    assert followed.figures()["wrong"]


@pytest.mark.sweep
def test_a_folder_may_have_any_name(tmp_path: Path, run: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(run, odd)
    with torchscan.serve(odd, port=0) as server, urlopen(server.url) as answer:  # noqa: S310
        assert answer.status == 200


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no watched run: "):
        torchscan.serve(tmp_path)


def test_it_ends_with_the_program_that_has_started_it(run: Path) -> None:
    program = f"import os, torchscan; s = torchscan.serve({str(run)!r}, port=0); print(s.url, flush=True); os._exit(1)"
    url = urlsplit(
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            socket.create_connection((url.hostname, url.port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.2)
    pytest.fail("it goes on")


# -- in a browser ----------------------------------------------------------------------------------------------------------


def pictures(page: Any) -> list[str]:
    return [
        str(each) for each in page.locator(".card").nth(1).locator("figure b").all_inner_texts()
    ]


@contextlib.contextmanager
def training_of(tmp_path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """A run that has made a pass and no step: the address of its page, and what makes a step."""
    program = textwrap.dedent(
        f"""
        import sys, torch, torchscan
        from torch import nn
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        watcher = torchscan.watch(net, {str(tmp_path / "run")!r}, every=1, serve=True)
        net(torch.randn(8, 3)).sum().backward()
        sys.stdout.flush()
        for line in sys.stdin:
            net(torch.randn(8, 3)).sum().backward()
            watcher.step()
        """
    )
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as training:
        assert training.stdin is not None
        assert training.stdout is not None
        write = training.stdin.write
        try:
            url = training.stdout.readline().removeprefix("torchscan: ").strip()
            yield url, lambda: write("\n")
        finally:
            training.stdin.close()
        assert training.wait(30) == 0


def test_a_page_that_was_opened_before_the_first_step_shows_the_training_with_it(
    browser: Browser, tmp_path: Path
) -> None:
    with training_of(tmp_path) as (url, make_step), opened(browser, url) as page:
        page.locator(".node[data-name='0']").wait_for(timeout=60_000)
        assert "no step" in page.locator(".question").inner_text()
        start = time.monotonic()
        while not page.locator(".training").is_visible() and time.monotonic() < start + 60:
            make_step()
            page.wait_for_timeout(500)
        assert page.locator(".training").is_visible()


def test_a_page_is_live_while_training_goes_on(browser: Browser, tmp_path: Path) -> None:
    with training_of(tmp_path) as (url, make_step), opened(browser, url) as page:
        make_step()
        make_step()
        page.locator(".state", has_text="live").wait_for()
        for _ in range(3):
            before = page.locator(".question").inner_text()
            make_step()
            make_step()
            start = time.monotonic()
            while (
                page.locator(".question").inner_text() == before and time.monotonic() < start + 60
            ):
                time.sleep(0.02)
            assert page.locator(".question").inner_text() != before


def drag_to_distributions(page: Page, dragged: Locator) -> None:
    """Drag a box of the graph or a row of the table to the place that opens for it."""
    dragged.scroll_into_view_if_needed()
    box = dragged.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 8, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 40, box["y"] + 60, steps=4)
    target = page.locator(".target").bounding_box()
    assert target is not None
    page.mouse.move(target["x"] + 60, target["y"] + 20, steps=4)
    page.mouse.up()


def test_layers_are_kept_in_view_by_enter_and_by_dragging(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    page_of_run(run).save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        page.locator(".node[data-name='0']").focus()
        page.keyboard.press("Enter")
        page.locator(".card").nth(1).locator("figure").first.wait_for()
        assert pictures(page) == ["output", "output gradient", "update ÷ weight"]
        page.locator(".card").nth(1).get_by_text("5 more").click()
        assert {"input", "weight gradient"} <= set(pictures(page))
        page.locator(".node[data-name='2']").scroll_into_view_if_needed()
        drag_to_distributions(page, page.locator(".node[data-name='2']"))
        page.locator(".card").nth(2).locator("figure").first.wait_for()
        drag_to_distributions(page, page.locator("tr", has_text="ReLU"))
        names = page.locator(".card.pinned .which b")
        names.nth(2).wait_for()
        assert names.all_inner_texts() == ["0", "2", "1"]
        assert page.locator(".card.pinned .tag").all_inner_texts() == ["A", "B", "C"]
        page.locator(".card").nth(1).get_by_label("close").click()
        assert names.all_inner_texts() == ["2", "1"]
        page.locator(".node[data-name='0']").focus()
        page.keyboard.press("Enter")
        names.nth(2).wait_for()
        assert page.locator(".card.pinned .tag").all_inner_texts() == ["B", "C", "A"]


def test_one_cursor_shows_the_same_step_everywhere(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    page_of_run(run).save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        page.locator(".node[data-name='0']").focus()
        page.keyboard.press("Enter")
        page.locator(".node[data-name='2']").click()
        page.locator(".card").nth(1).locator(".over-steps").first.hover(position={"x": 44, "y": 20})
        charts = page.locator(".card .over-steps")
        assert charts.count() == 6
        texts = charts.evaluate_all("all => all.map(each => each.ariaValueText)")
        assert all(each.startswith("step 0:") for each in texts)
        assert page.locator(".distributions h2").inner_text().count("values of step 0") == 1


@pytest.mark.sweep
def test_two_runs_are_shown_beside_each_other(browser: Browser, run: Path, tmp_path: Path) -> None:
    train(tmp_path / "second")
    with (
        torchscan.serve(run, tmp_path / "second", port=0) as server,
        opened(browser, server.url) as page,
    ):
        page.locator(".distribution").nth(1).wait_for()
        names = page.locator(".distribution .run").all_inner_texts()
        assert names == 3 * ["first", "second"]


def test_runs_in_folders_of_the_same_name_are_told_apart(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        shutil.copytree(run, tmp_path / name / "run")
    page_of_run(tmp_path / "one" / "run", tmp_path / "other" / "run").save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        page.locator(".distribution").nth(1).wait_for()
        names = page.locator(".distribution .run").all_inner_texts()
        assert {"one/run", "other/run"} == set(names)
        pairs = page.locator(".beside").evaluate_all(
            "all => all.map(each => [...each.querySelectorAll('b')].map(name => name.innerText))"
        )
        assert pairs
        assert all(len(pair) == 2 and pair[0] == pair[1] for pair in pairs)


@pytest.mark.sweep
def test_what_one_looks_at_stays_while_figures_change(browser: Browser, tmp_path: Path) -> None:
    """The table's figures are those of the last step, and neither its place nor the chosen call is lost for it."""
    last = nn.Linear(4, 2)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(24)), last)
    net.double()
    train(tmp_path / "run", 2, Doubled(net))
    with torchscan.serve(tmp_path / "run", port=0) as server, opened(browser, server.url) as page:
        page.get_by_label("color by").select_option("gradient")
        row = page.locator("tbody tr", has=page.locator(".type", has_text="Sequential ×24"))
        row.click()
        calls = page.locator(".card select").first
        calls.select_option(index=3)
        chosen, before = calls.input_value(), row.inner_text()
        page.locator(".layers .scroll").evaluate(
            "host => { host.style.maxHeight = '60px'; host.scrollTop = 0; }"
        )
        last.weight.data *= 2  # and with it all gradients before it
        train(tmp_path / "run", 3, Doubled(net))
        page.locator(".question", has_text="step 4").wait_for()
        until = time.monotonic() + 10
        while row.inner_text() == before and time.monotonic() < until:
            time.sleep(0.05)
        assert row.inner_text() != before
        assert calls.input_value() == chosen
        assert page.locator(".layers .scroll").evaluate("host => host.scrollTop") == 0


class Doubled(nn.Module):
    """In double precision, whose gradients are no zeros after many layers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x.repeat(1, 2)[:, :4].double())


@pytest.mark.sweep
def test_when_the_server_has_ended_nothing_stands_under_another_name(
    browser: Browser, run: Path
) -> None:
    ended: list[bool] = []
    with (
        torchscan.serve(run, port=0) as server,
        opened(browser, server.url, lambda url: bool(ended)) as page,
    ):
        page.locator(".distribution").first.wait_for()
        ended.append(True)
        server.close()
        page.locator(".state", has_text="torchscan runs open").wait_for()
        page.locator(".node[data-name='2']").click()
        page.locator(".tensors .said", has_text="Not connected").wait_for()
        assert page.locator(".card .distribution").count() == 0


def test_a_run_without_a_graph_has_its_modules(browser: Browser, tmp_path: Path) -> None:
    train(tmp_path / "run", graph=False)
    page_of_run(tmp_path / "run").save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        assert page.locator(".node").count() == 3
        assert "without edges" in page.locator(".remark").last.inner_text()


class Late(nn.Module):
    """Takes another way from its third step on, and one layer twice. Only in this process: nobody can know it before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.steps = nn.Linear(3, 3), nn.Linear(3, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.other(self.first(self.first(x))) if self.steps > 2 else self.first(x)


def test_what_is_called_later_and_again_is_there(browser: Browser, tmp_path: Path) -> None:
    train(tmp_path / "run", 4, Late())
    page_of_run(tmp_path / "run").save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        assert sorted(
            page.locator(".node[data-row]").evaluate_all(
                "all => all.map(each => each.dataset.name)"
            )
        ) == [
            "first",
            "first (2)",
            "other",
        ]


def test_names_with_markup_are_text(browser: Browser, tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    net = nn.Sequential()
    net.add_module(bad, nn.Linear(3, 2))
    train(tmp_path / "<script>alert(1)", 2, net)
    with (
        torchscan.serve(tmp_path / "<script>alert(1)", port=0) as server,
        opened(browser, server.url) as page,
    ):
        page.locator(".node").first.wait_for()
        assert page.locator("img").count() == 0
        assert bad in page.locator(".layers").inner_text()
        assert "<script>alert(1)" in page.locator(".question").inner_text()


def test_the_first_nan_is_the_first_verdict(browser: Browser, tmp_path: Path) -> None:
    class Broken(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * torch.nan)

    train(tmp_path / "run", 2, Broken(nn.Linear(3, 4), nn.Linear(4, 2)))
    page_of_run(tmp_path / "run").save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        page.locator(".fact.bad").first.wait_for()
        assert "First NaN or Inf" in page.locator(".facts .fact.bad").last.inner_text()
        assert "First seen in" in page.locator(".broken .fact.bad").inner_text()
        assert (
            page.locator(".findings li")
            .first.inner_text()
            .startswith("Step 0 has the first NaN or Inf, in")
        )
        assert page.locator(".node.producer, .node.holds").count()
        assert (
            page.locator(".colour, select[aria-label='color by']").first.input_value()
            == "nonfinite"
        )


class Skipping(nn.Module):
    """Leaves one layer out in its steps 2 and 3."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.steps = nn.Linear(3, 3), nn.Linear(3, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.first(x) if self.steps in (3, 4) else self.other(self.first(x))


def test_steps_in_which_a_layer_was_left_out_are_empty(browser: Browser, tmp_path: Path) -> None:
    train(tmp_path / "run", 6, Skipping())
    page_of_run(tmp_path / "run").save(tmp_path / "run.html")
    with opened(browser, f"{(tmp_path / 'run.html').as_uri()}#other") as page:
        chart = page.locator(".card .over-steps").first
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        left, wide = box["x"] + 42, box["width"] - 46  # without its margins
        said = []
        for step in range(6):
            page.mouse.move(left + (step + 0.5) * wide / 6, box["y"] + 20)
            expect(chart).to_have_attribute("aria-valuetext", re.compile(rf"^steps? .*{step}"))
            said.append(str(chart.get_attribute("aria-valuetext")))
    assert [each.endswith("nothing was recorded") for each in said] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert said[4].startswith("step 4:")


def test_a_run_is_coloured_by_what_was_measured_until_another_figure_is_chosen(
    browser: Browser, server: Server
) -> None:
    with opened(browser, server.url) as page:
        assert page.get_by_label("color by").input_value() == "gradient"


def test_the_page_says_how_to_read_a_picture(browser: Browser, run: Path, tmp_path: Path) -> None:
    page_of_run(run).save(tmp_path / "run.html")
    with opened(browser, tmp_path / "run.html") as page:
        chart = page.locator(".help .over-steps")
        assert not chart.is_visible()
        page.get_by_text("How to read these charts").click()
        box = chart.bounding_box()
        assert box is not None
        chart.hover(position={"x": 42 + 9.5 / 32 * (box["width"] - 46), "y": 40})
        assert page.locator(".help figcaption").inner_text() == "nothing was recorded"
        assert page.locator(".help li").count() == page.locator(".help .marked i").count()
