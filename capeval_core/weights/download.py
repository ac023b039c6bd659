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
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from tqdm import tqdm

from capeval_core.limits import LIMITS
from capeval_core.store import PARTIAL, write_whole
from capeval_core.weights.catalogue import ReleaseFile
from capeval_core.weights.folder import WeightsError
from capeval_core.weights.hub import failures, offline, patiently, reason
from capeval_core.weights.lock import HUB

_HUB_FILE = re.compile(
    rf"{HUB}(?P<kind>spaces/|datasets/)?(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)
_KINDS = {"spaces/": "space", "datasets/": "dataset"}
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # statuses for which a later request may succeed
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
    """The reason for which an address does not give the file; another address may."""


class _InterruptedError(Exception):
    """The reason for which an answer is not whole; the next request resumes. seconds: to wait, as the server
    says."""

    def __init__(self, why: str, seconds: float | None = None) -> None:
        super().__init__(why)
        self.seconds = seconds


@dataclass(frozen=True)
class Download:
    """A whole file, and the address that it came from."""

    path: Path
    address: str


def is_address(source: str) -> bool:
    """True for an address that can be downloaded, False for what can only be a path.

    >>> is_address("https://example.org/a.pth"), is_address("a.pth"), is_address("ftp://example.org/a.pth")
    (True, False, False)
    """
    return source.lower().startswith(("http://", "https://"))


def download_file(
    file: ReleaseFile, folder: Path, *, addresses: Sequence[str] | None = None, fix: str = ""
) -> Download:
    """A file from the first of its addresses that gives it; a broken download resumes where it was.

    Args:
        file: name, addresses, and size, which bounds what is read.
        folder: where it lies, with its unfinished part.
        addresses: those to use instead of the file's own.
        fix: what to do where no address gives it, for the message.

    Raises:
        DownloadError: no address gives the file, or the disk cannot hold it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file.name
    refusals = []
    for address in file.addresses if addresses is None else addresses:
        hub_file = _HUB_FILE.fullmatch(address)
        try:
            if hub_file is not None:
                return _download_from_hub(hub_file)
            # It is named for the Hub, and whoever sets it means the whole network.
            if offline():
                raise _RefusedError("HF_HUB_OFFLINE is set")
            _download_from_web(address, file, path)
            return Download(path, address)
        except _RefusedError as refusal:
            refusals.append(f"  {address}\n    {refusal}")
    places = refusals or ["  no address is known that gives it to everyone"]
    lines = [f"{file.name} could not be downloaded:", *places, file.note, fix]
    raise DownloadError("\n".join(filter(None, lines)))


def _download_from_hub(hub_file: re.Match[str]) -> Download:
    from huggingface_hub import hf_hub_download

    kind = hub_file["kind"] or ""
    repository = hub_file["repository"]
    name = hub_file["path"]

    def download() -> str:
        revision = hub_file["revision"]
        return hf_hub_download(repository, name, revision=revision, repo_type=_KINDS.get(kind))

    try:
        path = Path(patiently(download))
    except failures() as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise DownloadError(f"{name}: the disk of the cache of huggingface_hub is full") from error
        raise _RefusedError(reason(error)) from error
    # In its cache a file lies in a folder that is named by the commit, which a lock is to name.
    commit = path.parts[-1 - len(Path(name).parts)]
    return Download(path, f"{HUB}{kind}{repository}/resolve/{commit}/{name}")


# other addresses


@dataclass
class _Version:
    """A version of a file, to which an unfinished one belongs. validator: its ETag or date of change. size:
    of the whole file, where the server says it."""

    address: str
    validator: str | None = None
    size: int | None = None


def _download_from_web(address: str, file: ReleaseFile, path: Path) -> None:
    partial = path.with_name(path.name + PARTIAL)
    if path.is_file():
        # Of a run that ended before it was used: the server says whether it is still the file.
        path.replace(partial)
    waits = iter(LIMITS.hub_waits)
    with requests.Session() as session:
        while True:
            size_before = _size_of(partial)
            try:
                _resume(session, address, file, partial)
                break
            except _InterruptedError as interruption:
                if _size_of(partial) > size_before:
                    waits = iter(LIMITS.hub_waits)  # it advances, however often it breaks
                seconds = next(waits, None)
                if seconds is None:
                    raise _RefusedError(str(interruption)) from interruption
                time.sleep(seconds if interruption.seconds is None else interruption.seconds)
    # Under its name only when it is whole: whoever finds it need not ask.
    partial.replace(path)


def _resume(session: requests.Session, address: str, file: ReleaseFile, partial: Path) -> None:
    """Read on where an unfinished file ends, or from the beginning where nothing else is safe."""
    version = _read_version(partial, address)
    start = 0 if version.validator is None else _size_of(partial)
    # Bytes are wanted as they are, so that they can be counted and continued.
    headers = {"Accept-Encoding": "identity"}
    if start and version.validator is not None:
        # If-Range: where the file changed meanwhile, the whole new one comes instead of the wrong end.
        headers["Range"] = f"bytes={start}-"
        headers["If-Range"] = version.validator
    with _answer(session, address, headers) as answer:
        if answer.status_code == 416 and start and start == version.size:
            return  # nothing follows: it is whole
        if answer.status_code in (206, 416):
            continued = _continued(answer, start, version)
            if continued is None:
                _restart(partial)
                raise _InterruptedError(
                    "it answers with another part of the file than the one that is needed"
                )
            version = continued
        else:
            start = 0
            version = _version_of(answer, address)
        _check_status(answer)
        _check_content(answer)
        _check_size(file, version.size)
        _append(answer, file, partial, start, version)
    if version.size is not None and _size_of(partial) != version.size:
        raise _InterruptedError(f"it ended after {_size_of(partial):,} of {version.size:,} bytes")


@contextmanager
def _answer(session: requests.Session, address: str, headers: dict[str, str]) -> Iterator[requests.Response]:
    """The answer of a server at the end of its redirections."""
    try:
        # Followed by hand, since `requests` would follow from https to http.
        for _ in range(_REDIRECTS):
            with closing(_get(session, address, headers)) as answer:
                if not answer.is_redirect:
                    yield answer
                    return
                address = _redirected(session, answer, address)
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
        # urllib3's reasons are in words alone; those of the resolver differ by system.
        deepest = _deepest(error)
        if "timed out" in deepest.lower():
            raise _InterruptedError(f"nothing came for {LIMITS.download_seconds:g} seconds") from error
        if "resol" in deepest.lower() or "name or service" in deepest.lower():
            raise _RefusedError(f"its name is not found ({deepest})") from error
        raise _InterruptedError(f"it cannot be reached, or the connection broke: {deepest}") from error
    except requests.exceptions.RequestException as error:
        raise _InterruptedError(f"the connection broke: {_deepest(error)}") from error


def _get(session: requests.Session, address: str, headers: dict[str, str]) -> requests.Response:
    seconds = (LIMITS.connect_seconds, LIMITS.download_seconds)
    try:
        return session.get(address, headers=headers, stream=True, allow_redirects=False, timeout=seconds)
    except requests.exceptions.RequestException:
        raise
    except ValueError as error:  # of a redirection, whose address is read even if it is not followed
        raise _RefusedError(f"it redirects to what is not an address ({error})") from error


def _redirected(session: requests.Session, answer: requests.Response, address: str) -> str:
    """The address that a redirection leads to; from https nowhere but to https."""
    target = urljoin(address, session.get_redirect_target(answer))
    if urlsplit(target).scheme not in ("https", urlsplit(address).scheme):
        raise _RefusedError(f"it redirects to {_printable(target)}, which is not fetched")
    return target


# answers


def _check_status(answer: requests.Response) -> None:
    status = answer.status_code
    if status in (200, 206):
        return
    if status in _BUSY:
        seconds = _retry_after(answer.headers.get("Retry-After", ""))
        if seconds is not None and seconds > LIMITS.longest_wait:
            raise _RefusedError(f"HTTP status {status}: it asks to come back in {seconds:,.0f} seconds")
        raise _InterruptedError(f"HTTP status {status}: it is busy or out of order", seconds)
    meaning = _MEANINGS.get(status, "it does not give the file")
    page = f" ({_summary_of_page(answer)})" if _is_page(answer) else ""
    raise _RefusedError(f"HTTP status {status}: {meaning}{page}")


def _check_content(answer: requests.Response) -> None:
    """Refuse a page of HTML, which servers send with status 200 in place of a file."""
    if _is_page(answer):
        raise _RefusedError(f"it answers with a page, not with the file ({_summary_of_page(answer)})")


def _is_page(answer: requests.Response) -> bool:
    return answer.headers.get("Content-Type", "").lower().startswith(("text/html", "application/xhtml"))


def _summary_of_page(answer: requests.Response) -> str:
    """What a page says: that a quota is used up, that it wants a login, or its title."""
    text = next(answer.iter_content(_PAGE_BYTES), b"").decode("utf-8", "replace")
    # Google Drive gives a file so many times a day, and then this page with status 200.
    if re.search("quota exceeded|too many users have viewed or downloaded", text, re.IGNORECASE):
        return "the daily quota of this file is used up: try again tomorrow"
    element = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    title = _printable(unescape(element[1]))[:80] if element else ""
    if re.search(r"sign.?in|log.?in\b|anmelden", f"{title} {answer.url}", re.IGNORECASE):
        return f"it wants a login: {title}"
    return title or "without a title"


def _printable(text: str) -> str:
    """A text of a server in one line, without characters that would control a terminal."""
    in_one_line = " ".join(text.split())
    return "".join(filter(str.isprintable, in_one_line))


def _retry_after(value: str) -> float | None:
    """Seconds of a Retry-After, which is a number or a date."""
    if re.fullmatch("[0-9]+", value.strip()):
        return float(value)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _version_of(answer: requests.Response, address: str) -> _Version:
    """The version that a whole answer is of. A compressed one cannot be counted or continued."""
    if _is_compressed(answer):
        return _Version(address)
    length = answer.headers.get("Content-Length", "")
    size = int(length) if re.fullmatch("[0-9]{1,18}", length) else None
    validator = answer.headers.get("ETag", "")
    # Without either nothing shows that a later answer continues this file: it begins anew.
    if not validator or validator.startswith("W/"):  # a weak ETag names no bytes
        validator = answer.headers.get("Last-Modified", "")
    return _Version(address, validator or None, size)


def _is_compressed(answer: requests.Response) -> bool:
    return answer.headers.get("Content-Encoding", "identity") != "identity"


def _continued(answer: requests.Response, start: int, version: _Version) -> _Version | None:
    """The version that a partial answer continues at this byte, with its size; None: it continues another."""
    stated = answer.headers.get("Content-Range", "")
    content_range = re.fullmatch(f"bytes {start}-[0-9]+/([0-9]{{1,18}})", stated)
    if content_range is None or not start or _is_compressed(answer):
        return None
    size = int(content_range[1])
    return replace(version, size=size) if version.size in (None, size) else None


def _check_size(file: ReleaseFile, size: int | None) -> None:
    most = most_bytes(file)
    if size is not None and size > most:
        raise _RefusedError(f"it has {size:,} bytes, but {file.name} at most {most:,}: it is another file")


def most_bytes(file: ReleaseFile) -> int:
    """The most bytes that are read of a file: sizes of releases are stated roughly."""
    return LIMITS.download_bytes if file.size is None else file.size + file.size // 4


# disks


def _append(
    answer: requests.Response, file: ReleaseFile, partial: Path, start: int, version: _Version
) -> None:
    """Append an answer to the unfinished file; every piece is written before the next one is read."""
    check_room(partial.parent, start, version.size)
    most = most_bytes(file)
    count = start
    try:
        # The version before its bytes: after a kill these are never continued as those of another one.
        write_whole(_version_file(partial), json.dumps(asdict(version)))
        with (
            partial.open("ab" if start else "wb", buffering=0) as target,
            tqdm(
                desc=file.name, total=version.size, initial=start, unit="B", unit_scale=True, disable=None
            ) as bar,
        ):
            for piece in answer.iter_content(_CHUNK):
                if count == 0 and _begins_page(piece):
                    raise _RefusedError("it answers with a page, not with the file")
                count += len(piece)
                if count > most:
                    # An address may serve bytes without end; those of another file are not kept.
                    target.truncate(0)
                    raise _RefusedError(f"it is longer than {most:,} bytes: it is not {file.name}")
                target.write(piece)
                bar.update(len(piece))
    except requests.exceptions.RequestException:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            check_room(partial.parent, _size_of(partial), version.size)
        problem = f"{partial.parent} cannot be written ({error.strerror or error})"
        raise DownloadError(f"{problem}: make room, or set CAPEVAL_CACHE to another folder") from error


def _begins_page(piece: bytes) -> bool:
    return piece.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html"))


def check_room(folder: Path, start: int, size: int | None) -> None:
    """Refuse a file of which `start` bytes are there and the others do not fit on the disk, by how much."""
    folder.mkdir(parents=True, exist_ok=True)
    # Before the first byte: a disk that is full after an hour stops everything else on this machine, too.
    free = shutil.disk_usage(folder).free
    missing = 0 if size is None else size - start - free
    if missing > 0:
        problem = f"{missing:,} bytes are missing on the disk of {folder}, where {free:,} are free"
        fix = "make room, or set CAPEVAL_CACHE to another folder; what is there stays"
        raise DownloadError(f"{problem}: {fix}")


def _version_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _read_version(partial: Path, address: str) -> _Version:
    """The version that an unfinished file is part of; of another address it is not continued."""
    with suppress(OSError, ValueError, TypeError):
        version = _Version(**json.loads(_version_file(partial).read_text(encoding="utf-8")))
        if version.address == address and isinstance(version.validator, str):
            return version
    return _Version(address)


def _restart(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _version_file(partial).unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _deepest(error: BaseException) -> str:
    """The first cause of an error, in words."""
    cause: BaseException | None = error
    while cause is not None:
        error = cause
        arguments = [*error.args, getattr(error, "reason", None)]
        causes = [argument for argument in arguments if isinstance(argument, BaseException)]
        cause = causes[0] if causes else None
    return _printable(str(error))[:200] or type(error).__name__
