"""Files of a Hub repository, at a commit that is known: never an old version without a word.

What huggingface_hub does by itself (read in 2.4): when it cannot learn which commit a name means now (dead
server, 503, time-out), `snapshot_download` silently returns the commit that the name meant last time. Lists
and headers of files are asked for six times over 23 seconds, even where no server is, but the first question
and a file that is answered with 503 only once. So the first question is asked here, and files by commit.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

COMMIT = re.compile(r"[0-9a-f]{40}")
_BUSY = (408, 429, 500, 502, 503, 504)
_WAITS = (1.0, 2.0, 4.0)
"""Seconds between attempts at a server that answers but is busy."""


@dataclass(frozen=True)
class Snapshot:
    """Files of a repository, in the client's cache on this machine; the folder is named by their commit.

    unasked: why the Hub could not be asked whether this is still the newest commit; None where it was asked,
        where a commit is pinned, and where the user works offline on purpose.
    """

    path: Path
    unasked: str | None

    @property
    def commit(self) -> str:
        return self.path.name


def failures() -> tuple[type[Exception], ...]:
    """What huggingface_hub raises when the Hub does not give what was asked.

    Its HTTP client differs by version (requests, httpx, httpx2), but its errors derive from that client's. A
    portal that answers in the Hub's place sends pages instead of JSON.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *HfHubHTTPError.__bases__, json.JSONDecodeError, RuntimeError)


def fetch(repository: str, revision: str | None, small: list[str], large: Callable[[Path], str]) -> Snapshot:
    """Files of a repository, downloaded where they are not in the cache.

    Args:
        repository: id on the Hub.
        revision: branch, tag or commit; None for the newest commit.
        small: patterns of the files that come first.
        large: which other file is needed, told by the folder of the first ones.

    Raises:
        huggingface_hub.errors.*, OSError: see `failures`; repository, revision or files cannot be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    def cached(name: str | None) -> Path:
        path = Path(snapshot_download(repository, revision=name, allow_patterns=small, local_files_only=True))
        snapshot_download(repository, revision=path.name, allow_patterns=[large(path)], local_files_only=True)
        return path

    def whole(path: Path) -> bool:
        return (path / large(path)).is_file()

    if revision and COMMIT.fullmatch(revision):
        try:
            if whole(path := cached(revision)):
                return Snapshot(path, None)  # a commit does not change: there is nothing to ask
        except OSError:
            pass
    try:
        commit = patiently(lambda: newest_commit(repository, revision))
    except failures() as error:
        if is_final(error):
            raise
        try:
            path = cached(revision)
        except OSError:
            raise error from None
        on_purpose = isinstance(error, OfflineModeIsEnabled)
        return Snapshot(path, None if on_purpose or _pins(revision, path.name) else reason(error))

    def download() -> Path:
        # By its name, for the cache to remember what that means; but the answer may be an old commit.
        path = Path(snapshot_download(repository, revision=revision, allow_patterns=small))
        if path.name != commit:
            path = Path(snapshot_download(repository, revision=commit, allow_patterns=small))
        snapshot_download(repository, revision=commit, allow_patterns=[large(path)])
        return path

    return Snapshot(patiently(download), None)


def newest_commit(repository: str, revision: str | None) -> str:
    """The commit that a branch, a tag or a shortened commit means now; the newest one for None."""
    from huggingface_hub import HfApi, constants

    found = HfApi().model_info(
        repository, revision=revision or constants.DEFAULT_REVISION, timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    if not found.sha:
        raise OSError(f"{constants.ENDPOINT} gives no commit of {repository!r}: is it a Hub?")
    return str(found.sha)


def patiently(call: Callable[[], T]) -> T:
    """What `call` returns; it is repeated while the server answers that it is busy, four times in all.

    A server that cannot be reached is not asked again: it rarely helps, and delays starts without a network.
    """
    for seconds in _WAITS:
        try:
            return call()
        except failures() as error:
            if status_of(error) not in _BUSY:
                raise
        time.sleep(seconds)
    return call()


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, None where there was no answer."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return int(response.status_code)
        error = error.__cause__
    return None


def is_final(error: Exception) -> bool:
    """Whether asking again, or the cache, would be wrong: the Hub itself says that there is no such thing."""
    from huggingface_hub.errors import DisabledRepoError, RepositoryNotFoundError, RevisionNotFoundError

    return isinstance(error, (DisabledRepoError, RepositoryNotFoundError, RevisionNotFoundError))


def reason(error: BaseException) -> str:
    """Why the Hub did not give what was asked, in a few words."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    status = status_of(error)
    if status is not None:
        return f"{constants.ENDPOINT} answers with HTTP status {status}"
    while error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(error).split()) or type(error).__name__
    return f"{constants.ENDPOINT} cannot be reached or broke off: {said}"


def _pins(revision: str | None, commit: str) -> bool:
    """Whether a revision is a commit, whole or shortened as signatures show it, so that it cannot move."""
    return bool(revision and re.fullmatch(r"[0-9a-f]{7,40}", revision) and commit.startswith(revision))
