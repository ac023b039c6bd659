"""Connections that send half of a request's headers and then nothing: they are closed after some seconds.

uvicorn limits how many connections are open and how long an idle one stays, and the application how long a
body may take. Between these, headers that never end would hold their connection for good, and enough of them
the server.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from capeval_core.limits import LIMITS


class HeaderDeadline(H11Protocol):
    """HTTP/1.1 of uvicorn, where the headers of each request have to come within `served_header_seconds`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # a request has come and is in work
            self._stop_deadline()
        elif self._deadline is None:  # a further request of a connection that is used again has begun
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(LIMITS.served_header_seconds, self.transport.close)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
