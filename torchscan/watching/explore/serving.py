"""``serve(run)``: the page of a run in the browser, by a server that is a process of its own."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from torchscan.errors import InputError
from torchscan.files import path_of
from torchscan.user_warnings import warn_or_print
from torchscan.wrong_arguments import explain_wrong_types

if TYPE_CHECKING:
    from torchscan.watching.explore.followed_run import Followed

#: where it listens unless another port is asked for
PORT = 6116
_MAX_PORT = 65_535
#: connections, at most, and those that wait to be accepted
_CONNECTIONS, _BACKLOG = 512, 128
#: seconds to wait for the first word of a run that has just begun
_START = 30.0
#: how much less important than training it is to the machine
_NICE = 10
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from torchscan.watching.explore.serving import main; main(sys.argv[1:])"
)
RunPath = str | os.PathLike[str]


class Server:
    """Shows a run until it is closed, or this process ends. In a notebook it is the page."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        #: with the secret that lets one in
        self.url = url

    def close(self) -> None:
        """Show it no longer."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.url}>"

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 900px; border: 0"
        return f'<iframe src="{self.url}" title="a run" style="{style}"></iframe>'


@explain_wrong_types
def serve(run: RunPath, *others: RunPath, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Show watched runs in the browser, for example ``print(serve("runs/first").url)``.

    Args:
        run: folder of the run. New data appear within a second.
        others: runs whose losses and distributions are shown beside it.
        host: address to listen on. The default is reachable from this machine only.
        port: port to listen on; if it is taken, another free port, which is reported.
    """
    runs = _checked([run, *others], port)
    call = [
        sys.executable,
        "-c",
        _PROGRAM.format(path=[each for each in sys.path if type(each) is str]),
    ]
    process = subprocess.Popen(  # noqa: S603
        [*call, str(os.getpid()), host, str(port), *map(str, runs)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt of the training is none of the server's
    )
    url = process.stdout.readline().strip() if process.stdout is not None else ""
    if not url:
        process.communicate()
        raise InputError(f"the run cannot be served at {host}: see the error of the server above")
    return Server(process, url)


def explore(runs: Sequence[RunPath], host: str, port: int, say: Callable[[str], object]) -> None:
    """Show watched runs in this process, until it is interrupted."""
    _serve(_checked(runs, port), host, port, say)


def require_server() -> None:
    """Refuse to serve without the packages that it takes."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(
            "the server needs starlette and uvicorn: pip install starlette uvicorn"
        ) from error


def _checked(runs: Sequence[RunPath], port: int) -> list[Path]:
    found = [_begun(path_of(each)).resolve() for each in runs]
    require_server()
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MAX_PORT:
        raise InputError(f"port is {port!r}: give a number from 0 (any free port) to {_MAX_PORT}")
    return found


def _begun(run: Path) -> Path:
    """Return the path of a run that can be read, or that is about to be written."""
    from torchscan.watching.history import WatchedRun

    if any(run.glob("rank*.lock")):
        return run
    watched = WatchedRun(run)
    watched.steps()  # raises if its files are not those of a run
    return watched.path


def _followed(run: Path, name: str) -> Followed:
    """Open a run as soon as it has data."""
    from torchscan.watching.explore.followed_run import Followed

    until = time.monotonic() + _START
    while True:
        try:
            followed = Followed(run, name)
            followed.newest()  # a file may be there before its tables
            return followed
        except InputError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def main(arguments: Sequence[str]) -> None:
    """Run the server as a process that ends with the one that started it."""
    from torchscan.watching.processes import Parent

    parent, host, port, *runs = arguments
    Parent(int(parent)).end_with_it()
    os.nice(_NICE)
    paths = [Path(each) for each in runs]
    _serve(paths, host, int(port), lambda url: print(url, flush=True))  # noqa: T201


def _serve(runs: Sequence[Path], host: str, port: int, say: Callable[[str], object]) -> None:
    import uvicorn

    from torchscan.watching.explore.access import ANYWHERE, Hosts, PatientProtocol
    from torchscan.watching.explore.app import app_of
    from torchscan.watching.explore.run_page import names_of

    token = secrets.token_urlsafe(24)
    listening = _listening(host, port)
    port = listening.getsockname()[1]
    is_anywhere = host in ANYWHERE
    name = _own_address(listening.family) if is_anywhere else host
    shown = f"[{ipaddress.ip_address(name)}]" if ":" in name else name
    say(f"http://{shown}:{port}/{token}/")
    followed = [_followed(run, name) for run, name in zip(runs, names_of(runs), strict=True)]
    PatientProtocol.max_connections = _CONNECTIONS
    config = uvicorn.Config(
        app_of(followed, token, Hosts(shown, is_anywhere=is_anywhere)),
        http=PatientProtocol,
        backlog=_BACKLOG,  # more are not accepted at once: a process has few file descriptors
        ws="none",
        log_level="error",
        limit_concurrency=_CONNECTIONS,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def _own_address(family: int) -> str:
    """Return the address by which others probably reach this machine; nothing is sent."""
    target = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((target, 9))
        return str(probe.getsockname()[0])
    return socket.gethostname()


def _listening(host: str, port: int) -> socket.socket:
    """At the port, or if it is taken at another."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        try:
            return socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError:
            listening = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
            warn_or_print(
                f"port {port} is in use, so torchscan listens on port {listening.getsockname()[1]}"
            )
            return listening
    except OSError as error:
        raise InputError(
            f"listening on host {host!r} failed: {error}; give another host"
        ) from error
