"""One file from the addresses at which its authors keep it: resumed, bounded, and never a page in its place.

Hub files come by huggingface_hub, with its cache, its mirrors and its tokens; all others by `requests`.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from tqdm import tqdm

from capeval_core.kept import PARTIAL, write_whole
from capeval_core.limits import LIMITS
from capeval_core.weights.catalogue import ReleaseFile
from capeval_core.weights.folder import WeightsError
from capeval_core.weights.hub import failures, offline, patiently, reason
from capeval_core.weights.lock import HUB

_HUB_FILE = re.compile(
    rf"{HUB}(?P<kind>spaces/|datasets/)?(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)
_KINDS = {"spaces/": "space", "datasets/": "dataset"}
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_CHUNK = 1 << 16  # small enough that a slow connection loses no second of work
_PAGE_BYTES = 1 << 17  # of a page, of which only the title and known sentences matter
_REDIRECTS = 10
_MEANINGS = {
    401: "it wants a login",
    403: "it is refused",
    404: "there is no such file",
    410: "the file was removed",
}


class DownloadError(WeightsError):
    """A file that could not be downloaded; the message says from where, why, and what to do."""


class _RefusedError(Exception):
    """Why an address does not give the file; another address may."""


class _InterruptedError(Exception):
    """Why an answer did not come whole; the same request may go on. seconds: to wait, as the server says."""

    def __init__(self, why: str, seconds: float | None = None) -> None:
        super().__init__(why)
        self.seconds = seconds


@dataclass(frozen=True)
class Download:
    """A whole file, and the address that it came from."""

    path: Path
    address: str


def download_file(
    file: ReleaseFile, folder: Path, *, addresses: Sequence[str] | None = None, fix: str = ""
) -> Download:
    """A file from the first of its addresses that gives it; a broken download goes on where it was.

    Args:
        file: name, addresses, and size, which bounds what is read.
        folder: where it lies, with its unfinished part.
        addresses: those to use instead of the file's own.
        fix: what to do where no address gives it, for the message.

    Raises:
        DownloadError: no address gives the file, or the disk cannot hold it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / file.name
    refusals = []
    for address in file.addresses if addresses is None else addresses:
        try:
            if parts := _HUB_FILE.fullmatch(address):
                return _from_hub(parts)
            if offline():
                raise _RefusedError("HF_HUB_OFFLINE is set")
            _from_web(address, file, whole)
            return Download(whole, address)
        except _RefusedError as refusal:
            refusals.append(f"  {address}\n    {refusal}")
    places = refusals or ["  no address is known that gives it to everyone"]
    lines = [f"{file.name} could not be downloaded:", *places, file.note, fix]
    raise DownloadError("\n".join(filter(None, lines)))


def _from_hub(parts: re.Match[str]) -> Download:
    from huggingface_hub import hf_hub_download

    kind, path = parts["kind"] or "", parts["path"]
    wanted: dict[str, Any] = {"revision": parts["revision"], "repo_type": _KINDS.get(kind)}
    try:
        file = Path(patiently(lambda: hf_hub_download(parts["repository"], path, **wanted)))
    except failures() as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise DownloadError(f"{path}: the disk of the cache of huggingface_hub is full") from error
        raise _RefusedError(reason(error)) from error
    commit = file.parts[-1 - len(Path(path).parts)]
    return Download(file, f"{HUB}{kind}{parts['repository']}/resolve/{commit}/{path}")


# other addresses


@dataclass
class _State:
    """Which version of a file an unfinished one is part of. validator: its ETag or date of change; size: of
    the whole file, where the server says it."""

    address: str
    validator: str | None = None
    size: int | None = None


def _from_web(address: str, file: ReleaseFile, whole: Path) -> None:
    """The file at an address, whole, in its place."""
    partial = whole.with_name(whole.name + PARTIAL)
    if (
        whole.is_file()
    ):  # of a run that ended before it was used: the server says whether it is still the file
        whole.replace(partial)
    waits = iter(LIMITS.hub_waits)
    with requests.Session() as session:
        while True:
            before = _size_of(partial)
            try:
                _continue(session, address, file, partial)
                break
            except _InterruptedError as interruption:
                if _size_of(partial) > before:
                    waits = iter(LIMITS.hub_waits)  # it goes on, however often it breaks
                seconds = next(waits, None)
                if seconds is None:
                    raise _RefusedError(str(interruption)) from interruption
                time.sleep(seconds if interruption.seconds is None else interruption.seconds)
    partial.replace(whole)


def _continue(session: requests.Session, address: str, file: ReleaseFile, partial: Path) -> None:
    """Read on where an unfinished file ends, or from the beginning where nothing else is safe."""
    state = _read_state(partial, address)
    start = _size_of(partial) if state.validator else 0
    # Bytes are wanted as they are, so that they can be counted and continued.
    headers = {"Accept-Encoding": "identity"}
    if start and state.validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": state.validator}
    with _answer(session, address, headers) as answer:
        if answer.status_code == 416:  # nothing follows: it is whole, or of another version
            if start != state.size:
                _restart(partial)
                raise _InterruptedError("the part that is here is not of this file")
            return
        _check_status(answer)
        if answer.status_code != 206:
            start = 0
        elif _range_of(answer)[0] != start:
            _restart(partial)
            raise _InterruptedError("it answers with another part of the file than the one that is needed")
        _check_content(answer)
        state = _state_of(answer, address, start)
        _check_size(file, state.size)
        _write(answer, file, partial, start, state)
    if state.size is not None and _size_of(partial) != state.size:
        raise _InterruptedError(f"it ended after {_size_of(partial):,} of {state.size:,} bytes")


@contextmanager
def _answer(session: requests.Session, address: str, headers: dict[str, str]) -> Iterator[requests.Response]:
    """The answer of a server at the end of its redirections."""
    try:
        for _ in range(_REDIRECTS):
            answer = session.get(
                address,
                headers=headers,
                stream=True,
                allow_redirects=False,
                timeout=(LIMITS.connect_seconds, LIMITS.download_seconds),
            )
            target = session.get_redirect_target(answer)
            if target is None:
                with closing(answer):
                    yield answer
                return
            answer.close()
            following = urljoin(address, target)
            allowed = {"https", urlsplit(address).scheme}
            if urlsplit(following).scheme not in allowed:
                raise _RefusedError(f"it redirects to {following}, which is not fetched")
            address = following
        raise _RefusedError(f"it redirects more than {_REDIRECTS} times")
    except requests.exceptions.SSLError as error:
        raise _RefusedError(f"its certificate is not trusted ({_deepest(error)})") from error
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        raise _RefusedError(f"it is not an address that can be fetched ({error})") from error
    except requests.exceptions.ConnectTimeout as error:
        raise _RefusedError("it does not answer") from error
    except requests.exceptions.Timeout as error:
        raise _InterruptedError(f"nothing came for {LIMITS.download_seconds:g} seconds") from error
    except requests.exceptions.ConnectionError as error:
        deepest = _deepest(error)
        if "timed out" in deepest.lower():
            raise _InterruptedError(f"nothing came for {LIMITS.download_seconds:g} seconds") from error
        if "resol" in deepest.lower() or "name or service" in deepest.lower():
            raise _RefusedError(f"its name is not found ({deepest})") from error
        raise _InterruptedError(f"it cannot be reached, or the connection broke: {deepest}") from error
    except requests.exceptions.RequestException as error:
        raise _InterruptedError(f"the connection broke: {_deepest(error)}") from error


def _check_status(answer: requests.Response) -> None:
    status = answer.status_code
    if status in (200, 206):
        return
    if status in _BUSY:
        seconds = _retry_after(answer.headers.get("Retry-After"))
        if seconds is not None and seconds > LIMITS.longest_wait:
            raise _RefusedError(f"HTTP status {status}: it asks to come back in {seconds:,.0f} seconds")
        raise _InterruptedError(f"HTTP status {status}: it is busy or out of order", seconds)
    page = _page_of(answer) if _is_page(answer) else ""
    meaning = _MEANINGS.get(status, "it does not give the file")
    raise _RefusedError(f"HTTP status {status}: {meaning}" + (f" ({page})" if page else ""))


def _check_content(answer: requests.Response) -> None:
    """Refuse a page of HTML, which servers send with status 200 in place of a file."""
    if _is_page(answer):
        raise _RefusedError(f"it answers with a page, not with the file ({_page_of(answer)})")


def _is_page(answer: requests.Response) -> bool:
    return answer.headers.get("Content-Type", "").lower().startswith(("text/html", "application/xhtml"))


def _page_of(answer: requests.Response) -> str:
    """What a page says: that of a quota, a login, or its title."""
    text = next(answer.iter_content(_PAGE_BYTES), b"").decode("utf-8", "replace")
    if re.search("quota exceeded|too many users have viewed or downloaded", text, re.IGNORECASE):
        return "the daily quota of this file is used up: try again tomorrow"
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    shown = " ".join(unescape(title[1]).split())[:80] if title else ""
    if re.search(r"sign.?in|log.?in\b|anmelden", f"{shown} {answer.url}", re.IGNORECASE):
        return f"it wants a login: {shown}"
    return shown or "without a title"


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After, which is a number or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _range_of(answer: requests.Response) -> tuple[int | None, int | None]:
    """First byte and size of the whole file of a partial answer."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if found is None:
        return None, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _state_of(answer: requests.Response, address: str, start: int) -> _State:
    """Which version an answer is of. One that is compressed cannot be counted or continued."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        return _State(address)
    length = answer.headers.get("Content-Length", "")
    size = _range_of(answer)[1] if start else int(length) if length.isdigit() else None
    etag = answer.headers.get("ETag", "")
    # A weak ETag names no bytes.
    exact = etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified")
    return _State(address, exact, size)


def _check_size(file: ReleaseFile, size: int | None) -> None:
    most = most_bytes(file)
    if size is not None and size > most:
        raise _RefusedError(f"it has {size:,} bytes, but {file.name} at most {most:,}: it is another file")
    if size is not None and file.sha256 and file.size is not None and size != file.size:
        raise _RefusedError(f"it has {size:,} bytes, but {file.name} {file.size:,}: it is another file")


def most_bytes(file: ReleaseFile) -> int:
    """The most bytes that are read of a file: sizes of releases are stated roughly."""
    return LIMITS.download_bytes if file.size is None else file.size + file.size // 4


def _write(answer: requests.Response, file: ReleaseFile, partial: Path, start: int, state: _State) -> None:
    """Append an answer to the unfinished file; every piece is written before the next one is read."""
    check_room(partial.parent, start, state.size)
    most, count = most_bytes(file), start
    try:
        write_whole(_state_file(partial), json.dumps(asdict(state)))
        with (
            partial.open("ab" if start else "wb", buffering=0) as target,
            tqdm(
                desc=file.name, total=state.size, initial=start, unit="B", unit_scale=True, disable=None
            ) as bar,
        ):
            for piece in answer.iter_content(_CHUNK):
                if not count and piece.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
                    raise _RefusedError("it answers with a page, not with the file")
                count += len(piece)
                if count > most:
                    target.truncate(0)
                    raise _RefusedError(f"it is longer than {most:,} bytes: it is not {file.name}")
                target.write(piece)
                bar.update(len(piece))
    except requests.exceptions.RequestException:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            check_room(partial.parent, _size_of(partial), state.size)
        what = f"{partial.parent} cannot be written ({error.strerror or error})"
        raise DownloadError(f"{what}: make room, or set CAPEVAL_CACHE to another folder") from error


def check_room(folder: Path, start: int, size: int | None) -> None:
    """Refuse a file of which `start` bytes are there and the others do not fit on the disk, by how much."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    missing = 0 if size is None else size - start - free
    if missing > 0:
        found = f"{missing:,} bytes are missing on the disk of {folder}, where {free:,} are free"
        fix = "make room, or set CAPEVAL_CACHE to another folder; what is there stays"
        raise DownloadError(f"{found}: {fix}")


def _state_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _read_state(partial: Path, address: str) -> _State:
    """The version that an unfinished file is part of; of another address it is not continued."""
    with suppress(OSError, ValueError, TypeError):
        state = _State(**json.loads(_state_file(partial).read_text(encoding="utf-8")))
        if state.address == address:
            return state
    return _State(address)


def _restart(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _state_file(partial).unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _deepest(error: BaseException) -> str:
    """The first cause of an error, in words."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        causes = [*error.args, getattr(error, "reason", None)]
        inner = next((cause for cause in causes if isinstance(cause, BaseException)), None)
    return " ".join(str(error).split())[:200] or type(error).__name__
