"""Files of a Hub repository at one commit: never an old version without a warning.

Where huggingface_hub (read in 2.4) cannot learn which commit a name means now, `snapshot_download` silently
returns the one that it meant last time. So the commit is requested here, and files by commit; patiently,
since the client requests it, and a file that is answered with 503, only once.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from capeval_core.errors import warn
from capeval_core.limits import LIMITS

T = TypeVar("T")
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A namespace or a name that the Hub can have."""
_BUSY = (408, 429, 500, 502, 503, 504)


def failures() -> tuple[type[Exception], ...]:
    """Errors that huggingface_hub raises when a request fails, with any HTTP client or behind a portal."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its bases are the errors of requests, or of httpx since 1.0. A portal answers a page where JSON is
    # expected; httpx raises RuntimeError for a client that was closed.
    return (OSError, *HfHubHTTPError.__bases__, json.JSONDecodeError, RuntimeError)


_WARNED: set[tuple[str, str]] = set()
"""Repositories and commits that a warning has been given for: several networks may open one."""


def download(
    name: str,
    what: str,
    small: list[str],
    large: Callable[[Path], Sequence[str]],
    *,
    error: Callable[[str, str], Exception],
    kind: str = "model",
) -> Path:
    """The folder, named by its commit, of `org/name` or `org/name@revision`; it warns where it may be old.

    Args:
        name: the repository, maybe with a revision.
        what: the files, in the warning.
        small: patterns of the files that come first.
        large: patterns of the files that come then, by the folder of the first.
        error: the error for a repository and the reason.
        kind: of the repository, `model` or `dataset`.
    """
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    repository, _, revision = name.partition("@")

    # With a timeout: the client would wait for a silent server for ever.
    def newest() -> str:
        about = HfApi().repo_info(
            repository,
            revision=revision or constants.DEFAULT_REVISION,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
            repo_type=kind,
        )
        commit = about.sha
        if not commit:
            raise OSError(f"{constants.ENDPOINT} gives no commit of {repository!r}: is it a Hub?")
        return str(commit)

    def snapshot(commit: str | None) -> Path:
        """Of the cache alone where there is no commit."""
        get = partial(snapshot_download, repository, repo_type=kind, local_files_only=commit is None)
        # By its name, for the cache to remember what that means.
        path = Path(get(revision=revision or None, allow_patterns=small))
        if commit and path.name != commit:  # the answer was an old one
            path = Path(get(revision=commit, allow_patterns=small))
        get(revision=path.name, allow_patterns=list(large(path)))
        return path

    try:
        if re.fullmatch(r"[0-9a-f]{40}", revision):
            with suppress(OSError):
                path = snapshot(None)
                if all((path / file).is_file() for file in large(path)):
                    return path  # a commit does not change
        try:
            commit = patiently(newest)
        # An answer, unlike silence: an old copy in the cache would hide that the repository is gone.
        except (errors.DisabledRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except failures() as failed:
            try:
                path = snapshot(None)
            except OSError:
                raise failed from None
            # A commit may be shortened, as signatures show it.
            pinned = re.fullmatch(r"[0-9a-f]{7,40}", revision) and path.name.startswith(revision)
            # Whoever names a commit, or works offline on purpose, need not be told that it may be old.
            expected = pinned or isinstance(failed, errors.OfflineModeIsEnabled)
            version = (repository, path.name)
            if not expected and version not in _WARNED:
                _WARNED.add(version)
                warn(
                    f"{what}: the Hub did not say which version is the newest ({reason(failed)}). Commit "
                    f"{path.name} of the local cache is used. To stay at it, pass "
                    f"'{repository}@{path.name}'; to work offline on purpose, set HF_HUB_OFFLINE=1"
                )
            return path
        return patiently(lambda: snapshot(commit))
    except errors.HFValidationError:
        raise error(repository, "it is not a Hub id") from None
    except failures() as failed:
        why = f"not in the local cache; {reason(failed)}"
        if isinstance(failed, errors.GatedRepoError):
            why = "it is gated: accept its terms at its page on the Hub and log in with `hf auth login`"
        elif isinstance(failed, errors.RevisionNotFoundError):
            why = f"no revision {revision!r} on the Hub"
        elif isinstance(failed, errors.RepositoryNotFoundError):
            why = "no such repository on the Hub, or it is private"
        raise error(repository, why) from None


def offline() -> bool:
    """True if the user wishes to work without a network."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def patiently(call: Callable[[], T]) -> T:
    """The value of `call`, which is repeated while the server answers that it is busy, four times in all."""
    for seconds in LIMITS.hub_waits:
        try:
            return call()
        except failures() as error:
            if status_of(error) not in _BUSY:
                raise
        time.sleep(seconds)
    return call()  # the last time, whose error is the user's


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, None where there was no answer."""
    # The client wraps errors of requests in errors of its own, some of which have no response.
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return int(response.status_code)
        error = error.__cause__
    return None


def reason(error: BaseException) -> str:
    """The reason for which a request to the Hub failed, in a few words."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, HFValidationError):
        return str(error)
    status = status_of(error)
    if status is not None:
        return f"{constants.ENDPOINT} answers with HTTP status {status}"
    while error.__cause__ is not None:
        error = error.__cause__
    message = " ".join(str(error).split()) or type(error).__name__
    return f"{constants.ENDPOINT} cannot be reached, or the connection dropped: {message}"
