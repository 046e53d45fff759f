"""Requests and connections that the server of a run accepts, without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from torchscan.watching.explore.access import App, Hosts, PatientProtocol
from torchscan.watching.explore.app import app_of


class Run:
    """A run whose distributions are numbers: how often they were asked for."""

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole
        self._num_questions = 0

    def heat(self, _: str) -> dict[str, Any]:
        """Return the distributions of a call."""
        self._num_questions += 1
        return {"histories": [self._num_questions], "isWhole": self._is_whole}


def app_of_run(*, is_whole: bool = True) -> App:
    run: Any = Run(is_whole=is_whole)
    return app_of([run], "token", Hosts("localhost", is_anywhere=False))


async def ask(app: App, path: str, query: str = "") -> tuple[int, str]:
    """Return the status and the text of an answer."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
    }
    await app(scope, receive, send)
    start, *parts = sent
    text = b"".join(each.get("body", b"") for each in parts)
    return start["status"], text.decode()


@pytest.mark.parametrize(("length", "status"), [(4096, 200), (4097, 414)])
def test_an_address_has_4096_characters_at_most(length: int, status: int) -> None:
    """The path has 11 of them, and ``call=`` 5."""
    query = "call=" + "x" * (length - 11 - 5)
    answer, _ = asyncio.run(ask(app_of_run(), "/token/heat", query))
    assert answer == status


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_question_that_is_repeated_without_a_listener_is_answered_anew(*, is_whole: bool) -> None:
    """Without a listener the run is not polled, so an earlier answer may be out of date."""

    async def ask_twice() -> list[object]:
        app = app_of_run(is_whole=is_whole)
        answers = [await ask(app, "/token/heat", "call=0") for _ in range(2)]
        return [json.loads(text)["histories"] for _, text in answers]

    assert asyncio.run(ask_twice()) == [[1], [2]]


class Transport:
    """A connection with a client at an address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.is_aborted = False

    def get_extra_info(self, name: str) -> object:
        """Return the address of the client."""
        return (self._address, 40_000) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        """Return 0: everything was read."""
        return 0

    def abort(self) -> None:
        """End the connection."""
        self.is_aborted = True


class _SmallProtocol(PatientProtocol):
    """A protocol with room for four connections, of which one address may hold two."""

    max_connections = 4


async def connect(*addresses: str) -> list[str]:
    """Connect clients one after the other, and return those that are still connected."""
    config = uvicorn.Config(app_of_run(), ws="none", lifespan="off", log_config=None)
    state = ServerState()
    transports = []
    for address in addresses:
        transport: Any = Transport(address)
        _SmallProtocol(config, state, {}).connection_made(transport)
        transports.append(transport)
    connected = zip(addresses, transports, strict=True)
    return [address for address, transport in connected if not transport.is_aborted]


@pytest.mark.parametrize(
    ("addresses", "connected"),
    [
        (("192.0.2.1", "192.0.2.2", "192.0.2.3"), (0, 1, 2)),
        (("192.0.2.1", "192.0.2.1", "192.0.2.1"), (1, 2)),
        # they differ in their bit 65, which each machine chooses
        (("2001:db8::1", "2001:db8:0:0:8000::1", "2001:db8::2"), (1, 2)),
        # they differ in their bit 64, which belongs to the network
        (("2001:db8::1", "2001:db8:0:1::1", "2001:db8::2"), (0, 1, 2)),
    ],
    ids=["addresses", "address", "network", "networks"],
)
def test_an_address_or_ipv6_network_holds_half_of_the_idle_connections(
    addresses: tuple[str, ...], connected: tuple[int, ...]
) -> None:
    assert asyncio.run(connect(*addresses)) == [addresses[index] for index in connected]
