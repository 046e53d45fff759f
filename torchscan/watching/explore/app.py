"""The web application: a run's page, distributions of calls, and a stream that reports new data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from torchscan.escapes import printable
from torchscan.report.paging.model_page import document, live_policy
from torchscan.watching.explore.access import App, Guard, Hosts, Receive, Scope, Send
from torchscan.watching.explore.followed_run import Followed

#: seconds from one look at the run to the next, and to the next sign of life
_LOOKS, _BREATHES = 0.25, 15.0
#: pages that are told of what is new, at most
_LISTENERS = 64
_EVENTS = "text/event-stream"
#: that are kept
_ANSWERS = 128


def app_of(runs: Sequence[Followed], token: str, hosts: Hosts) -> App:
    """For the first run, beside which the distributions of the others are shown."""
    server = _Server(runs)
    routes = [
        Route(f"/{token}/", server.page),
        Route(f"/{token}/heat", server.heat),
        Route(f"/{token}/figures", server.figures),
        Route(f"/{token}/training", server.training),
        Route(f"/{token}/events", server.events),
    ]
    return Guard(Starlette(routes=routes, lifespan=server.lifespan), token, hosts)


class _Server:
    def __init__(self, runs: Sequence[Followed]) -> None:
        self._runs = runs
        self._listeners = 0
        #: grows with what is written
        self._version = 0
        #: what was answered, and of which version
        self._answers: dict[str, tuple[int, str]] = {}
        #: one for questions of a name, so that all who ask at once get the same answer
        self._locks = [asyncio.Lock() for _ in range(_ANSWERS)]

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._look())
        yield
        looking.cancel()

    async def _look(self) -> None:
        """Poll the run for all listeners, and not at all without one."""
        before: object = None
        while True:
            await asyncio.sleep(_LOOKS)
            if self._listeners:
                with contextlib.suppress(
                    Exception
                ):  # of a file that is being replaced, say: one look is not the last
                    newest = await run_in_threadpool(lambda: [each.newest() for each in self._runs])
                    self._version += newest != before
                    before = newest

    async def page(self, _: Request) -> Response:
        first, *others = self._runs
        data = await run_in_threadpool(first.page, *others)
        text = await run_in_threadpool(
            document, {**data, "live": [printable(str(each.path)) for each in self._runs]}
        )
        return HTMLResponse(text, headers={"content-security-policy": live_policy()})

    async def heat(self, request: Request) -> Response:
        key = request.query_params.get("call", "")

        def read() -> dict[str, Any]:
            answers = [each.heat(key) for each in self._runs]
            histories = [history for answer in answers for history in answer["histories"]]
            return {"histories": histories, "isWhole": all(each["isWhole"] for each in answers)}

        return await self._answer(f"heat {key}", read)

    async def figures(self, _: Request) -> Response:
        first, *others = self._runs
        return await self._answer("figures", lambda: first.figures(*others))

    async def training(self, _: Request) -> Response:
        first, *others = self._runs
        return await self._answer("training", lambda: {"training": first.training(*others)})

    async def _answer(self, name: str, work_out: Callable[[], dict[str, Any]]) -> Response:
        """Return an answer that is computed once for all listeners, until there are new data.

        An incomplete answer is not cached.
        """
        async with self._locks[zlib.crc32(name.encode()) % _ANSWERS]:
            version, text = self._answers.get(name, (-1, ""))
            if version != self._version or not self._listeners:
                text = await self._worked_out(name, work_out)
        return Response(text, media_type="application/json")

    async def _worked_out(self, name: str, work_out: Callable[[], dict[str, Any]]) -> str:
        version, data = self._version, await run_in_threadpool(work_out)
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        if data.get("isWhole", True):
            self._answers[name] = version, text
            while len(self._answers) > _ANSWERS:
                self._answers.pop(next(iter(self._answers)))
        return text

    async def events(self, request: Request) -> Response:
        if request.method == "HEAD":  # an answer without a body would never end
            return Response(media_type=_EVENTS)
        if self._listeners >= _LISTENERS:
            return PlainTextResponse(
                "too many pages of this run are open: close one\n", 503
            )  # which asks again later
        self._listeners += 1  # here, not when the first event is sent: many may have asked by then
        return _Events(self._versions(), self._note_end)

    def _note_end(self) -> None:
        self._listeners -= 1

    async def _versions(self) -> AsyncIterator[str]:
        """Yield the newest version only: a slow client misses those between."""
        told, quiet = -1, 0.0
        while True:
            if told != self._version:
                told, quiet = self._version, 0.0
                yield f"data: {told}\n\n"
            elif quiet >= _BREATHES:
                quiet = 0.0
                yield ":\n\n"
            await asyncio.sleep(_LOOKS)
            quiet += _LOOKS


class _Events(StreamingResponse):
    """Events, and a call when they have ended, also if none was sent."""

    def __init__(self, events: AsyncIterator[str], note_end: Callable[[], None]) -> None:
        super().__init__(events, media_type=_EVENTS)
        self._note_end = note_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._note_end()
