"""What this project puts on the Hub: modules (Spaces), weights (models) and their cards.

First what goes where, as plain values (`module`, `weights`, `card`); then sending it (`publish`).

Nothing here ever makes a tag, or a branch named like a version: `evaluate.load("org/name")` asks a Space for
the revision `v<version of evaluate>` before `main`, so a tag `v0.4.6` would hold every user of evaluate 0.4.6
at what it points to, for ever. Versions are those of the Python package, and commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from capeval_core._version import __version__
from capeval_core.registry import METRICS, metric_class
from capeval_core.suggestion import did_you_mean
from capeval_core.weights.catalogue import WEIGHTS, WeightsEntry
from capeval_core.weights.constants import LICENCE_NOT_STATED
from capeval_core.weights.folder import CONFIG, TENSORS, WeightsFolder, open_weights
from capeval_core.weights.hub import failures, patiently, reason, status_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
PYPI = "pypi"
_WRITTEN = "capeval|metrics"
"""Where texts in the source have modules: our namespace, whatever CAPEVAL_NAMESPACE says, or the checkout."""
_IN_A_CHECKOUT = re.compile(r"(?<=<!-- part loading -->\n).*?(?=\n\n|\n<!-- /part loading -->)", re.DOTALL)
"""The paragraph of a module's card that says how to load it from a checkout."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"v?\d+\.\d+(\.\d+)?")


class PublishError(ValueError):
    """Something that is not published; the message says what, why, and what to do."""


@dataclass(frozen=True)
class Publication:
    """What one repository is to hold.

    repository: id on the Hub. kind: a Space is a module, a model is weights. files: path in the repository ->
    content, or the file that has it. create: whether the repository is made where it does not exist.
    """

    repository: str
    kind: Literal["space", "model"]
    files: Mapping[str, bytes | Path]
    message: str
    create: bool = True

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


@dataclass(frozen=True)
class Pushed:
    """A repository that now holds its publication. changed: whether that took a commit."""

    publication: Publication
    commit: str
    changed: bool


def module(name: str, namespace: str, install_from: str) -> Publication:
    """The Space of a metric: the folder that `evaluate.load` reads the module from, with its page and card.

    Args:
        name: of the metric.
        namespace: user or organisation on the Hub.
        install_from: where the Space, and users who lack the package, install it from: `"pypi"` (the Space
            takes this very version, which must be there), or an address that pip takes, e.g.
            `git+https://host/org/capeval@<commit>`.
    """
    metric_class(name)
    folder = _shipped("hub_metrics", "metrics") / name
    if not folder.is_dir():
        raise PublishError(f"metric {name!r} has no module folder: {folder} does not exist")
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".pyc":
            content = path.read_bytes()
            if path.suffix in (".md", ".py", ".txt"):
                text = installing(content.decode(), install_from)
                if path.name == CARD:
                    text = _IN_A_CHECKOUT.sub(lambda _: _from_the_hub(install_from), text)
                content = in_namespace(text, namespace, METRICS).encode()
            found[path.name] = content
    title = metric_class(name).title
    return Publication(f"{_checked(namespace)}/{name}", "space", found, f"{title}, capeval {__version__}")


def weights(
    folder: str | PathLike[str],
    namespace: str,
    *,
    name: str | None = None,
    permission: str | None = None,
    private: bool = False,
) -> Publication:
    """The repository of a weights folder, opened as users open it: checksum, strict tensors, canary.

    Args:
        folder: made by `capeval convert`.
        namespace: user or organisation on the Hub.
        name: of the repository; None: the folder's.
        permission: who allows to publish weights without a stated licence, and where; told in the commit.
        private: the repository will be private, which needs no permission.

    Raises:
        WeightsError: the weights cannot be read or trusted.
        PublishError: their authors state no licence, or there is no card for them.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise PublishError(f"{path} is not a folder: pass one that `capeval convert` has made")
    opened = open_weights(path, metric="METRIC", tiny="")
    if opened.tensor_file.name != TENSORS:
        raise PublishError(f"{path} is in open_clip's format: convert it with `capeval convert` first")
    _open_encoder(opened)
    name = _checked(name or opened.name)
    entry = _entry(name, opened)
    if not _licence(entry, opened) and not permission and not private:
        raise PublishError(_no_licence(name, entry))
    card = _card_path(name)
    card = card if card.is_file() else path / CARD
    if not card.is_file():
        raise PublishError(f"there is no card for {name!r}: put a {CARD} into {path}, or name listed weights")
    message = f"Weights {opened.checksum[:12]}, capeval {__version__}"
    if permission:
        message += f"\n\nPublished with permission: {permission}"
    return Publication(
        f"{_checked(namespace)}/{name}",
        "model",
        {
            CARD: _card_text(card, name, namespace),
            # config, and a tokenizer's files where there are some
            **{file.name: file for file in sorted(path.iterdir()) if file.suffix in (".json", ".txt")},
            TENSORS: opened.tensor_file,
        },
        message,
    )


def card(name: str, namespace: str) -> Publication:
    """The card alone of weights that are published already."""
    path = _card_path(name)
    if not path.is_file():
        known = cards()
        raise PublishError(f"no card {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    content = _card_text(path, name, namespace)
    repository = f"{_checked(namespace)}/{name}"
    return Publication(repository, "model", {CARD: content}, f"Card, capeval {__version__}", create=False)


def cards() -> list[str]:
    """Names of the weights repositories that have a card."""
    return sorted(path.stem for path in _shipped("hub_cards", "hub_cards").glob("*.md"))


def in_namespace(text: str, namespace: str, names: Iterable[str]) -> str:
    """The text with `capeval/name` and `metrics/name` moved to a namespace, for what is published there.

    Default weights stay: which ones those are is up to the package, wherever a module is published.

    >>> in_namespace('evaluate.load("metrics/pacs"), weights of capeval/pacs-clip-vit-b-32', "me", ["pacs"])
    'evaluate.load("me/pacs"), weights of capeval/pacs-clip-vit-b-32'
    """
    ids = "|".join(map(re.escape, names))
    return re.sub(rf"(?<![\w.-])(?:{_WRITTEN})/({ids})(?![\w-]|\.\w)", rf"{namespace}/\1", text)


def installing(text: str, source: str) -> str:
    """A requirement or a module's import comment that installs the package from `source`.

    >>> installing("capeval[page]", "git+https://host/org/capeval@1f3c9a2b")
    'capeval[page] @ git+https://host/org/capeval@1f3c9a2b'
    >>> installing("from capeval_core import x  # From: capeval", "git+https://host/org/capeval")
    'from capeval_core import x  # From: git+https://host/org/capeval'
    """
    if source == PYPI:
        return re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1=={__version__}", text, flags=re.MULTILINE)
    if not re.fullmatch(r"(git\+)?https://[^\s#]+", source):
        raise PublishError(
            f"install from {source!r}: expected {PYPI!r}, or an address that pip installs from "
            "(git+https://..., or https://... of a wheel)"
        )
    text = re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1 @ {source}", text, flags=re.MULTILINE)
    return re.sub(r"# From: capeval\b", f"# From: {source}", text)


def _from_the_hub(install_from: str) -> str:
    package = "capeval" if install_from == PYPI else install_from
    return (
        f"The package must be installed: `pip install {package}`. "
        '`weights="tiny"` is a small packaged model that\n'
        "knows drawn shapes only: leave it out for photographs."
    )


def publish(
    publications: Iterable[Publication],
    *,
    branch: str = "main",
    private: bool = False,
    message: str | None = None,
) -> Iterator[Pushed]:
    """Send publications, one commit for each that changes its repository; yields each when it is there.

    Files that are only on the Hub stay. What is there already is not sent again, so a run that was
    interrupted can be repeated.

    Args:
        publications: all of one namespace.
        branch: of the repositories, made where it does not exist.
        private: make repositories private; public ones that exist are refused.
        message: of the commits, instead of the publications' own.

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
            pushed = patiently(_pushing(api, publication, branch, private, message))
        except expected as error:
            before = (
                f"\nsent before that: {', '.join(sent)}; a second run sends only what is not there"
                if sent
                else ""
            )
            raise PublishError(f"{publication.address}: {_mend(error, publication)}{before}") from error
        sent.append(publication.address)
        yield pushed


def _pushing(
    api: HfApi, publication: Publication, branch: str, private: bool, message: str | None
) -> Callable[[], Pushed]:
    from huggingface_hub import CommitOperationAdd

    repository, kind = publication.repository, publication.kind
    title, _, description = (message or publication.message).partition("\n\n")

    def push() -> Pushed:
        if publication.create:
            sdk = "gradio" if kind == "space" else None
            api.create_repo(repository, repo_type=kind, space_sdk=sdk, private=private or None, exist_ok=True)
        before = api.repo_info(repository, repo_type=kind)
        if private and not before.private:
            raise PublishError("the repository exists and is public: make it private at its page on the Hub")
        if branch != "main":
            api.create_branch(repository, branch=branch, repo_type=kind, exist_ok=True)
            before = api.repo_info(repository, repo_type=kind, revision=branch)
        done = api.create_commit(
            repository,
            [CommitOperationAdd(path, content) for path, content in publication.files.items()],
            commit_message=title,
            commit_description=description,
            repo_type=kind,
            revision=branch,
        )
        return Pushed(publication, done.oid, done.oid != before.sha)

    return push


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


def _mend(error: Exception, publication: Publication) -> str:
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


def _open_encoder(folder: WeightsFolder) -> None:
    kind = folder.config.get("encoder")
    for name in METRICS:
        encoder = metric_class(name).encoder_class()
        if encoder.kind == kind:
            encoder.open(folder, device="cpu")
            return
    raise PublishError(f"{folder.path}: {CONFIG} says encoder {kind!r}, which no metric here has")


def _entry(name: str, folder: WeightsFolder) -> WeightsEntry | None:
    """The catalogue's entry by the repository's name, else by the original file."""
    original = (folder.config.get("source") or {}).get("file")
    named = (entry for entry in WEIGHTS if entry.repository.rsplit("/", 1)[-1].lower() == name.lower())
    converted = (entry for entry in WEIGHTS if entry.checkpoint and entry.checkpoint == original)
    return next(named, None) or next(converted, None)


def _licence(entry: WeightsEntry | None, folder: WeightsFolder) -> str | None:
    """The licence that the authors state; the catalogue knows better than what `convert` was told."""
    if entry is not None:
        return entry.licence
    stated = (folder.config.get("source") or {}).get("licence")
    return None if stated == LICENCE_NOT_STATED else stated


def _no_licence(name: str, entry: WeightsEntry | None) -> str:
    original = f" ({entry.original})" if entry else ""
    return (
        f"{name}: the authors of the original{original} state no licence, so it may not be hosted again: "
        "link to it, and let everyone convert it. Pass --private for a repository of your own that nobody "
        'else sees, or --permission "who allows it, and where" if you have it in writing'
    )


def _card_text(path: Path, name: str, namespace: str) -> bytes:
    return in_namespace(path.read_text(encoding="utf-8"), namespace, [name, *METRICS]).encode()


def _card_path(name: str) -> Path:
    return _shipped("hub_cards", "hub_cards") / f"{_checked(name)}.md"


def _shipped(package: str, folder: str) -> Path:
    """A folder of the repository, which a wheel installs inside the package."""
    installed = Path(str(files("capeval_core"))) / package
    return installed if installed.is_dir() else Path(str(files("capeval_core"))).parent / folder


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise PublishError(f"{name!r} is no name on the Hub: letters, digits, '-', '_' and '.'")
    return name
