"""The authors' own addresses on the loopback: https hosts behind a proxy, and ways to go wrong.

`loopback.pem` is the key and certificate of all hosts, `trusted.pem` what signed it; nothing else trusts it.
"""

from __future__ import annotations

import gzip
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
TRUSTED = _HERE / "trusted.pem"


@dataclass
class Origin:
    """A running server. files: by address without query. answers: what the next requests get, in order, then
    the file as it is. requests: the addresses and ranges that were asked for. pace: seconds between pieces of
    a file, by which its transfer takes a while."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    answers: list[Callable[[Any, bytes], None]] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    pace: float = 0.0

    def environment(self) -> dict[str, str]:
        """Of a process to which all of https is this server, but for other servers of the loopback."""
        return {
            "HTTPS_PROXY": self.address,
            "https_proxy": self.address,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "REQUESTS_CA_BUNDLE": str(TRUSTED),
        }

    def serve(self, patch: pytest.MonkeyPatch) -> None:
        """Be all of https to this process."""
        for name, value in self.environment().items():
            patch.setenv(name, value)


@contextmanager
def origin() -> Iterator[Origin]:
    """Serve until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    made = Origin(f"http://127.0.0.1:{server.server_port}")
    server.origin = made  # type: ignore[attr-defined]
    server.context = context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # type: ignore[attr-defined]
    context.load_cert_chain(_HERE / "loopback.pem")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for an acknowledgement, 40 ms
    host = ""

    @property
    def origin(self) -> Origin:
        return self.server.origin  # type: ignore[attr-defined, no-any-return]

    def do_CONNECT(self) -> None:
        self.host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        context: ssl.SSLContext = self.server.context  # type: ignore[attr-defined]
        try:
            self.connection = context.wrap_socket(self.connection, server_side=True)
        except (ssl.SSLError, OSError):
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def do_GET(self) -> None:
        asked = f"https://{self.host}{self.path}" if self.host else self.path
        self.origin.requests.append((asked, self.headers.get("Range")))
        content = self.origin.files.get(asked.partition("?")[0])
        answer = self.origin.answers.pop(0) if self.origin.answers else plain
        try:
            if content is None:
                status(404)(self, b"")
            else:
                answer(self, content)
        except OSError:  # the client went away
            self.close_connection = True

    def send(self, code: int, body: bytes, **headers: str) -> None:
        """An answer with these headers; a length that is not given is not stated."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        for start in range(0, len(body), 1 << 16):
            self.wfile.write(body[start : start + (1 << 16)])
            if self.origin.pace:
                time.sleep(self.origin.pace)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def etag_of(content: bytes) -> str:
    return f'"{sha256(content).hexdigest()[:16]}"'


def plain(answer: Any, content: bytes) -> None:
    """The file, or the rest of it if it is the version that was asked for."""
    start = int((answer.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
    etag = etag_of(content)
    length = {"ETag": etag, "Content_Length": str(len(content))}
    if not start or answer.headers.get("If-Range") not in (None, etag):
        return answer.send(200, content, **length)
    if start >= len(content):
        return answer.send(416, b"", Content_Range=f"bytes */{len(content)}", Content_Length="0")
    length["Content_Length"] = str(len(content) - start)
    place = f"bytes {start}-{len(content) - 1}/{len(content)}"
    return answer.send(206, content[start:], Content_Range=place, **length)


def status(code: int, **headers: str) -> Callable[[Any, bytes], None]:
    return lambda answer, content: answer.send(code, b"", Content_Length="0", **headers)


def busy_for_a_second() -> Callable[[Any, bytes], None]:
    """429 until the second is over that it asks to wait."""
    asked: list[float] = []

    def answer(self: Any, content: bytes) -> None:
        asked.append(time.monotonic())
        if asked[-1] - asked[0] < 1:
            self.origin.answers.insert(0, answer)
            return self.send(429, b"", Content_Length="0", Retry_After="1")
        return plain(self, content)

    return answer


def page(text: str, code: int = 200) -> Callable[[Any, bytes], None]:
    body = text.encode()
    kind = {"Content_Type": "text/html; charset=utf-8", "Content_Length": str(len(body))}
    return lambda answer, content: answer.send(code, body, **kind)


LOGIN = page(
    "<!DOCTYPE html><html><head><title>Google Drive: Sign-in</title></head><body>Sign in</body></html>"
)
QUOTA = page(
    "<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head><body><p>Sorry, you can't "
    "view or download this file at this time. Too many users have viewed or downloaded this file recently."
    "</p></body></html>"
)
UNMARKED_PAGE = b"<html><body>Please wait</body></html>"


def cut(at: int) -> Callable[[Any, bytes], None]:
    """The connection breaks at this byte of what is sent."""

    def answer(self: Any, content: bytes) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        place = f"bytes {start}-{len(content) - 1}/{len(content)}"
        more = {"Content_Range": place} if start else {}
        length = str(len(content) - start)
        self.send(
            206 if start else 200,
            content[start : start + at],
            ETag=etag_of(content),
            Content_Length=length,
            **more,
        )
        self.close_connection = True

    return answer


def longer(answer: Any, content: bytes) -> None:
    """More bytes than the file has, without a length."""
    answer.send(200, content + content)


def without_length(answer: Any, content: bytes) -> None:
    answer.send(200, content)


def ranges_ignored(answer: Any, content: bytes) -> None:
    answer.send(200, content, ETag=etag_of(content), Content_Length=str(len(content)))


def wrong_offset(answer: Any, content: bytes) -> None:
    """A part of the right length from another place than the one that was asked for."""
    length = len(content) - int(answer.headers["Range"].removeprefix("bytes=").split("-")[0])
    place = f"bytes 5-{length + 4}/{len(content)}"
    part = content[5 : 5 + length]
    answer.send(206, part, Content_Range=place, ETag=etag_of(content), Content_Length=str(length))


def shorter_part(answer: Any, content: bytes) -> None:
    """A part from the right place that ends before the file does."""
    start = int(answer.headers["Range"].removeprefix("bytes=").split("-")[0])
    place = f"bytes {start}-{start + 999}/{len(content)}"
    part = content[start : start + 1000]
    answer.send(206, part, Content_Range=place, ETag=etag_of(content), Content_Length="1000")


def huge(answer: Any, content: bytes) -> None:
    """The length of a file of a terabyte."""
    answer.send(200, content[:1000], Content_Length=str(10**12))


def weakly_named(at: int) -> Callable[[Any, bytes], None]:
    """The beginning of a file whose ETag does not stand for its bytes."""

    def answer(self: Any, content: bytes) -> None:
        self.send(200, content[:at], ETag='W/"1"', Content_Length=str(len(content)))
        self.close_connection = True

    return answer


def unasked_part(answer: Any, content: bytes) -> None:
    """The beginning of the file as a part, which nobody asked for."""
    place = f"bytes 0-999/{len(content)}"
    answer.send(206, content[:1000], Content_Range=place, ETag=etag_of(content), Content_Length="1000")


def part_of_another_size(answer: Any, content: bytes) -> None:
    """A part from the right place, of a file that has another size by now."""
    start = int(answer.headers["Range"].removeprefix("bytes=").split("-")[0])
    place = f"bytes {start}-{start + 999}/{start + 1000}"
    answer.send(206, bytes(1000), Content_Range=place, ETag=etag_of(content), Content_Length="1000")


def odd_numbers(answer: Any, content: bytes) -> None:
    """A length that is a digit to Python, and no number."""
    answer.send(200, content, Content_Length="\xb2")


def compressed(answer: Any, content: bytes) -> None:
    body = gzip.compress(content, 0)  # in the format, without the time that compression takes
    answer.send(200, body, Content_Encoding="gzip", Content_Length=str(len(body)))


def stalled(answer: Any, content: bytes) -> None:
    """A piece, and then nothing for longer than anyone waits in the tests."""
    length = str(len(content))
    answer.send(200, content[:1000], ETag=etag_of(content), Content_Length=length)
    time.sleep(2)
    answer.close_connection = True


def unmarked_page(answer: Any, content: bytes) -> None:
    """A page that is called a file."""
    answer.send(
        200, UNMARKED_PAGE, Content_Type="application/octet-stream", Content_Length=str(len(UNMARKED_PAGE))
    )


def redirect(target: str) -> Callable[[Any, bytes], None]:
    return status(302, Location=target)
