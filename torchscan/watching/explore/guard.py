"""Access control: only requests with the link's token, from the page itself, and only to read."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

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


class Hosts:
    """The names under which the server may be asked.

    Any port: a tunnel has one of its own. Where it listens at all addresses, any of them: it takes a *name* to rebind.
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
    """Stands before the application. The token is a part of the path, so that no cookie has to be kept, and none is sent along.

    A name that is made to point to this machine (DNS rebinding) shows in ``Host``; a page from elsewhere that asks shows in
    ``Origin`` and ``Sec-Fetch-Site``, and cannot know the token either.
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
            await _refuse(status, said, send)
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
                "this link is incomplete or no longer valid: copy the complete link that torchscan printed",
            )
        return 0, ""


async def _refuse(status: int, said: str, send: Send) -> None:
    """Answer with the reason and end the connection, which a refused client does not need any more."""
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close"), *_ENCODED]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{said}\n".encode()})


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_ENCODED]
        await send(message)

    return sent
