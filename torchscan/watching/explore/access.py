"""Access to the server: which requests it answers, and how long a client may take."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: characters of a question, at most
_LONGEST = 4096
#: of every answer
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_ENCODED = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
#: addresses that mean: all of this machine's
ANYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104
#: seconds in which a client has to send a whole request, or to read a part of its answer
_PATIENCE = 10.0
#: bytes that a client has to read in that time
_MIN_READ = 16_384
#: closes a connection without a word more
_RESET = struct.pack("ii", 1, 0)
#: seconds from one look at a connection to the next
_LOOKS = 0.5
#: largest share of all connections that one address may hold without a request
_MAX_SHARE = 0.5


class Hosts:
    """The names under which the server may be asked.

    Any port is right, as a tunnel has another one. A server that listens at all addresses accepts
    each address, as only *names* can be made to point here.
    """

    def __init__(self, shown: str, *, is_anywhere: bool) -> None:
        self._names = {
            shown.lower(),
            "localhost",
            "127.0.0.1",
            "[::1]",
            *({socket.gethostname().lower()} if is_anywhere else ()),
        }
        self._is_anywhere = is_anywhere

    def __contains__(self, host: str) -> bool:
        found = _HOST.fullmatch(host.lower())
        return found is not None and (
            found[1] in self._names or (self._is_anywhere and _is_address(found[1]))
        )


_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@]+)(?::\d{1,5})?")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """A filter of requests. The token is a part of the path, so that no cookie is kept or sent.

    A name that is made to point to this machine (DNS rebinding) shows in ``Host``. A request from
    a page elsewhere shows in ``Origin`` and ``Sec-Fetch-Site``, and cannot know the token either.
    """

    def __init__(self, app: App, token: str, hosts: Hosts) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a question through, or say why not."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        status, said = self._refusal(scope)
        if status:
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close"), *_ENCODED]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": f"{said}\n".encode()})
        else:
            await self._app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if host not in self._hosts:
            return 421, "this server answers requests to its own address only"
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return 403, "requests from other pages are refused"
        if (
            headers.get("sec-fetch-site") == "cross-site"
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return 403, "requests from other pages are refused"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this server is read-only"
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "requests with a body are refused"
        if len(scope["raw_path"]) + len(scope["query_string"]) > _LONGEST:
            return 414, "the address is too long"
        token = scope["path"].removeprefix("/").partition("/")[0]
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return (
                403,
                "this link is incomplete or no longer valid: copy the complete link that torchscan "
                "printed",
            )
        return 0, ""


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_ENCODED]
        await send(message)

    return sent


class PatientProtocol(H11Protocol):
    """A protocol that drops clients that neither ask nor read.

    The time of a request starts when the connection is made, and again after each answer. It does
    not start again with each byte: a client that sends one now and then would stay forever.
    """

    #: largest number of connections; of more, the oldest without a request are closed first
    max_connections = 512

    def connection_made(self, transport: Any) -> None:
        """Watch the connection, and drop another if there are too many."""
        super().connection_made(transport)
        self._address = _network_of(self.client)
        #: when the client last finished a request, or reading a part of an answer
        self._since = self.loop.time()
        #: bytes of answers that the client had not read then
        self._unread = 0
        self._next_look: asyncio.TimerHandle = self.loop.call_later(_LOOKS, self._look)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching the connection."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the time of the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer to bytes that are not a request; during an answer, drop the connection."""
        if self.is_idle:
            with contextlib.suppress(h11.LocalProtocolError):
                super().send_400_response(msg)
                return
        self.drop()  # which ends the answer, too

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or bool(cycle.response_complete)

    def drop(self) -> None:
        """End the connection at once, whatever has not been read."""
        self.connections.discard(self)
        if self.transport.get_write_buffer_size():
            # else the kernel keeps the rest until the client reads it
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET
            )
        self.transport.abort()

    def _look(self) -> None:
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size()
        has_read = unread <= self._unread - _MIN_READ
        if has_read or not (unread or self.is_idle):
            self._since = now
        if has_read or unread > self._unread:
            self._unread = unread

        if now - self._since > _PATIENCE:
            self.drop()
        else:
            self._next_look = self.loop.call_later(_LOOKS, self._look)

    def _make_room(self) -> None:
        others = [
            each for each in self.connections if isinstance(each, PatientProtocol) and each.is_idle
        ]
        idle = sorted((each for each in others if each is not self), key=lambda each: each._since)
        of_address = [each for each in idle if each._address == self._address]
        room = int(_MAX_SHARE * self.max_connections)
        for each in of_address[: max(0, len(of_address) + 1 - room)]:
            each.drop()
        for each in idle:
            if len(self.connections) < self.max_connections:
                break
            each.drop()


def _network_of(client: tuple[str, int] | None) -> str:
    """Return the address of a client; of IPv6 its network, as each machine has its own."""
    address = "" if client is None else client[0].partition("%")[0]
    try:
        is_short = ipaddress.ip_address(address).version == 4
    except ValueError:
        return address
    return address if is_short else str(ipaddress.ip_network((address, 64), strict=False))
