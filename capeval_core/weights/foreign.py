"""Networks that stay in another library's format, from the Hub."""

from __future__ import annotations

import warnings

from capeval_core.weights.folder import TENSORS, WeightsError
from capeval_core.weights.hub import Snapshot, failures, fetch, reason


def download(
    name: str,
    what: str,
    files: list[str],
    *,
    default: str,
    without: str,
    error: type[WeightsError] = WeightsError,
) -> Snapshot:
    """The files of a repository, with its safetensors, at a commit that is known.

    Args:
        name: Hub id (`org/name` or `org/name@revision`).
        what: what it is for, in messages.
        files: patterns of what is needed beside the tensors.
        default: a repository that would do.
        without: how to do without it.
        error: what is raised.

    Raises:
        error: it cannot be had.
    """
    repository, _, revision = name.partition("@")
    unknown = error(f"{what} {name!r} is neither a folder nor a Hub id (org/name[@revision]). {without}")
    if repository.count("/") != 1 or name.startswith((".", "~", "/")):
        raise unknown
    try:
        found = fetch(repository, revision or None, files, lambda _: TENSORS)
    except ValueError as refused:  # characters that no id has
        raise unknown from refused
    except failures() as failed:
        other = "" if repository == default else f" The default is {default}."
        raise error(
            f"{what} {name!r} cannot be had ({reason(failed)}).{other} Check the id and the connection, or "
            f"download it elsewhere (`hf download {repository} --local-dir FOLDER`) and pass the folder. "
            f"{without}"
        ) from failed
    if found.unasked:
        warnings.warn(
            f"{what} {name!r}: the Hub could not be asked for the newest version ({found.unasked}); commit "
            f"{found.commit} of the local cache is used",
            stacklevel=2,
        )
    return found
