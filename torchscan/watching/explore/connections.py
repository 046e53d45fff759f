"""Limits of the server's connections: their number, and their time without a request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: seconds in which a client has to send a whole request, or to read a part of its answer
_PATIENCE = 10.0
#: bytes that a client has to read in that time
_MIN_READ = 16_384
#: closes a connection without a word more
_RESET = struct.pack("ii", 1, 0)
#: seconds from one look at a connection to the next
_LOOKS = 0.5
#: the share of all connections that those of one address may take while no request is being answered over them
_MAX_SHARE = 0.5


class PatientProtocol(H11Protocol):
    """A protocol that drops clients that neither ask nor read.

    The time of a request starts when the connection is made, and again after each answer. It does not start anew with
    each byte: a client that sends one byte now and then would hold its connection forever.
    """

    #: connections in all, at most: of more, those without a request go first, the oldest before the others
    max_connections = 512

    def connection_made(self, transport: Any) -> None:
        """Watch the connection, and drop another if there are too many."""
        super().connection_made(transport)
        self._address = _network_of(self.client)
        #: when the client last finished something: a request that was answered, or a part of an answer that it has read
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
        """Answer to bytes that are not a request; where one is being answered, drop the connection instead."""
        if self.is_idle:
            with contextlib.suppress(h11.LocalProtocolError):
                super().send_400_response(msg)
                return
        else:
            self.cycle.disconnected = True  # so that nothing more is sent
            self.cycle.message_event.set()
        self.drop()

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or bool(cycle.response_complete)

    def drop(self) -> None:
        """End the connection at once, whatever has not been read."""
        self.connections.discard(self)
        if self.transport.get_write_buffer_size():
            # else the kernel keeps what it was given until the client reads it, and the client hears nothing
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
    """Return the address of a client; of IPv6 the network, since each machine has one for itself."""
    address = "" if client is None else client[0].partition("%")[0]
    try:
        is_short = ipaddress.ip_address(address).version == 4
    except ValueError:
        return address
    return address if is_short else str(ipaddress.ip_network((address, 64), strict=False))
