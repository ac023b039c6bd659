"""Sending the files of repositories to the Hub: one commit for each repository that changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from capeval_core.weights.hub import failures, patiently, reason, status_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"v?\d+\.\d+(\.\d+)?")


class PublishError(ValueError):
    """Something that is not published; the message says what, why, and what to do."""


@dataclass(frozen=True)
class Publication:
    """The files of one repository: paths in it, and their content or the file that has it.

    kind: a Space is a module, a model is weights. create: whether the repository is made where it does not
    exist. not_sent: names of other files in the folder.
    """

    repository: str
    kind: Literal["space", "model"]
    files: Mapping[str, bytes | Path]
    message: str
    create: bool = True
    not_sent: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where it is on the Hub, after the endpoint."""
        return f"spaces/{self.repository}" if self.kind == "space" else self.repository

    def sizes(self) -> dict[str, int]:
        """Bytes of every file."""
        return {
            path: content.stat().st_size if isinstance(content, Path) else len(content)
            for path, content in self.files.items()
        }


def checked(name: str) -> str:
    """A namespace or a name that the Hub can have."""
    if not _NAME.fullmatch(name):
        raise PublishError(f"{name!r} is no name on the Hub: letters, digits, '-', '_' and '.'")
    return name


@dataclass(frozen=True)
class Pushed:
    """A repository that holds its publication. changed: whether that took a commit."""

    publication: Publication
    commit: str
    changed: bool


def publish(
    publications: Iterable[Publication],
    *,
    branch: str = "main",
    private: bool = False,
    message: str | None = None,
) -> Iterator[Pushed]:
    """Send publications, one commit for each that changes its repository; yields each when it is sent.

    Files that are only on the Hub stay. What the Hub has already is not sent again, so a run that was
    interrupted can be repeated. Public repositories that exist are refused where they shall be private.

    Raises:
        PublishError: no login, no right, no network; the message says which, and what was sent before.
    """
    from huggingface_hub import HfApi

    if _VERSION.fullmatch(branch):
        raise PublishError(
            f"branch {branch!r} reads like a version: evaluate would take it for its own, choose another name"
        )
    api = HfApi()
    expected: tuple[type[Exception], ...] = (*failures(), ValueError)
    sent: list[str] = []
    for publication in publications:
        try:
            if not sent:
                _check_rights(api, publication.repository.split("/")[0])
            pushed = patiently(partial(_push, api, publication, branch, private, message))
        except expected as error:
            problem = f"{publication.address}: {_fix(error, publication)}"
            if sent:
                problem += f"\nsent before that: {', '.join(sent)}; a second run sends only the rest"
            raise PublishError(problem) from None
        sent.append(publication.address)
        yield pushed


def _push(api: HfApi, publication: Publication, branch: str, private: bool, message: str | None) -> Pushed:
    from huggingface_hub import CommitOperationAdd

    repository, kind = publication.repository, publication.kind
    if publication.create:
        sdk = "gradio" if kind == "space" else None
        api.create_repo(repository, repo_type=kind, space_sdk=sdk, private=private or None, exist_ok=True)
    before = api.repo_info(repository, repo_type=kind)
    if private and not before.private:
        raise PublishError("the repository exists and is public: make it private at its page on the Hub")
    if branch != "main":
        api.create_branch(repository, branch=branch, repo_type=kind, exist_ok=True)
        before = api.repo_info(repository, repo_type=kind, revision=branch)
    title, _, description = (message or publication.message).partition("\n\n")
    commit = api.create_commit(
        repository,
        [CommitOperationAdd(path, content) for path, content in publication.files.items()],
        commit_message=title,
        commit_description=description,
        repo_type=kind,
        revision=branch,
    )
    return Pushed(publication, commit.oid, commit.oid != before.sha)


def _check_rights(api: HfApi, namespace: str) -> None:
    account = api.whoami()
    names = [account["name"], *(org["name"] for org in account.get("orgs", []))]
    if namespace.lower() not in [name.lower() for name in names]:
        raise PublishError(
            f"you are logged in as {account['name']!r}, who may not write to {namespace!r}: pass "
            f"--namespace or set CAPEVAL_NAMESPACE ({', '.join(names)})"
        )
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise PublishError(
            "the token may only read: make one that may write at https://huggingface.co/settings/tokens and "
            "log in with `hf auth login`"
        )


def _fix(error: Exception, publication: Publication) -> str:
    """What went wrong, and what to do."""
    from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it to publish"
    if isinstance(error, LocalTokenNotFoundError):
        return "not logged in to the Hub: run `hf auth login` with a token that may write, or set HF_TOKEN"
    status = status_of(error)
    if status == 401:
        return "the Hub refuses the token: log in with `hf auth login` (HF_TOKEN, where set, comes first)"
    if status == 403:
        return f"the token may not write to {publication.repository}: give it that right, or use another one"
    if status == 404 and not publication.create:
        return "there is no such repository: publish the weights first (`capeval publish weights`)"
    if isinstance(error, ValueError) and status in (None, 400):
        return str(error)
    return f"{reason(error)}: try again later"
