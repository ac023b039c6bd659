"""What this project puts on the Hub: modules (Spaces), weights (models) and their cards.

Nothing here ever makes a tag, or a branch named like a version: `evaluate.load("org/name")` asks a Space for
`v<version of evaluate>` before `main`, so a tag would hold users of that version at what it points to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, PackageLoader

from capeval_core.description import MetricDescription
from capeval_core.errors import did_you_mean, expanded_path
from capeval_core.project import __version__
from capeval_core.registry import METRICS, metric_class, module_path, network_of, shipped
from capeval_core.weights import catalogue
from capeval_core.weights import folder as saved
from capeval_core.weights.catalogue import WeightsEntry
from capeval_core.weights.hub import failures, patiently, reason, status_of

CARD, PYPI = "README.md", "pypi"
_CARDS = Environment(
    loader=PackageLoader("capeval_core.reports"), trim_blocks=True, keep_trailing_newline=True
)
_PUBLIC = re.compile(r"(?a)((git\+)?https://|git\+ssh://[\w.-]+@)[\w.-]+(:\d+)?/[\w./~+%-]*(@[\w./-]+)?")
"""Addresses that pip installs from: nothing in them can be a password, a token or a query."""
_SENT = [saved.CONFIG, saved.OPEN_CLIP_CONFIG, saved.TENSORS, saved.OPEN_CLIP_TENSORS]
_SENT += [saved.VOCABULARY, saved.TOKENIZER]
"""Files of a weights folder that may go out, beside the card: those that encoders read."""
_NAME, _VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"), re.compile(r"v?\d+\.\d+(\.\d+)?")


class PublishError(ValueError):
    """Something that is not published; the message says what, why, and what to do."""


@dataclass(frozen=True)
class Publication:
    """The files of one repository: paths in it, and their content or the file that has it."""

    repository: str
    kind: Literal["space", "model"]  # a Space is a module, a model is weights
    files: Mapping[str, bytes | Path]
    message: str
    create: bool = True  # whether the repository is made where it does not exist
    not_sent: list[str] = field(default_factory=list)  # other files in the folder
    refusals: list[str] = field(default_factory=list)  # why it is not published as it is

    @property
    def address(self) -> str:
        return f"spaces/{self.repository}" if self.kind == "space" else self.repository


def module(name: str, namespace: str, install_from: str) -> Publication:
    """The Space of a metric: the folder that `evaluate.load` reads, with its page and card."""
    folder = Path(module_path(name))
    files: dict[str, bytes | Path] = {}
    for file in ("app.py", f"{name}.py", "requirements.txt"):
        if path := _own_file(folder, file):
            files[file] = _installing(path.read_text(encoding="utf-8"), install_from).encode()
    card_text = metric_card(name, package="capeval" if install_from == PYPI else install_from)
    files[CARD] = _in_namespace(card_text, namespace, METRICS).encode()
    message, others = f"{metric_class(name).title}, capeval {__version__}", _others(folder, files)
    return Publication(f"{_checked(namespace)}/{name}", "space", files, message, not_sent=others)


def weights(
    folder: Any, namespace: str, name: str | None, permission: str | None, private: bool
) -> Publication:
    """The repository of a weights folder, opened as users open it; a private one needs no permission."""
    path = expanded_path(folder)
    if not path.is_dir():
        raise PublishError(f"{path} is not a folder: pass one that `capeval convert` has made")
    # Before anything is read: what is opened is what will be sent.
    own = {file: found for file in _SENT if (found := _own_file(path, file))}
    opened = saved.open_weights(path, metric="METRIC", tiny="")
    network = network_of(opened).open(opened, device="cpu")
    name = _checked(name or opened.name)
    entry = catalogue.entry_known_as(name, opened.original)
    refusals = []
    if not permission and not private and (refusal := _refusal(name, entry, opened)):
        refusals.append(refusal)
    if entry is not None and (difference := entry.is_another(network.describe(network.config))):
        refusals.append(f"{path}: {difference}: convert the file that the authors released")
    own_card = None if name in cards() else _own_file(path, CARD)
    shown = ""
    if own_card is not None:
        shown = own_card.read_text(encoding="utf-8")
    elif name in cards():
        shown = weights_card(name)
    else:
        refusals.append(f"there is no card for {name!r}: put a {CARD} into {path}, or name listed weights")
    quoted = f"\n\nPublished with permission: {permission}" if permission else ""
    message = f"Weights {opened.checksum[:12]}, capeval {__version__}{quoted}"
    words = opened.config.get("vocabulary")
    theirs = opened.tensor_file.name == saved.OPEN_CLIP_TENSORS
    config = saved.OPEN_CLIP_CONFIG if theirs else saved.CONFIG
    read = [config, opened.tensor_file.name, saved.VOCABULARY]
    read += [saved.TOKENIZER] if isinstance(words, dict) and words.get("file") == saved.TOKENIZER else []
    shown += f"\n## Permission\n\n{permission}\n" if permission else ""
    files: dict[str, bytes | Path] = {}
    if shown:
        files[CARD] = _in_namespace(shown, namespace, [name, *METRICS]).encode()
    files |= {file: own[file] for file in own if file in read}
    others = _others(path, [file for file in files if file != CARD or own_card])
    repository = f"{_checked(namespace)}/{name}"
    return Publication(repository, "model", files, message, not_sent=others, refusals=refusals)


def card(name: str, namespace: str) -> Publication:
    """The card alone of weights that are published already."""
    if name not in (names := cards()):
        raise PublishError(f"no card {name!r}{did_you_mean(name, names)} (known: {', '.join(names)})")
    text = _in_namespace(weights_card(name), namespace, [name, *METRICS])
    files, message = {CARD: text.encode()}, f"Card, capeval {__version__}"
    return Publication(f"{_checked(namespace)}/{name}", "model", files, message, create=False)


def metric_card(name: str, package: str | None = None) -> str:
    """The card of a metric, which pip installs as `package`; in a checkout as `.`."""
    _, short, own = (Path(module_path(name)) / CARD).read_text(encoding="utf-8").split("\n\n", 2)
    own, _, licence = own.partition("\n## Licence\n")
    metric = metric_class(name)
    values = {"metric": metric, "about": MetricDescription(metric), "short": short, "package": package}
    return _CARDS.get_template("metric_card.md.j2").render(values, own=own.strip(), licence=licence.strip())


def weights_card(name: str) -> str:
    """The card of weights: its own lines, and what the catalogue and all cards have."""
    text = (shipped("hub_cards", "hub_cards") / f"{name}.md").read_text(encoding="utf-8")
    _, matter, text = text.split("---\n", 2)
    title, first, own = text.strip().split("\n\n", 2)
    entry = next((entry for entry in catalogue.WEIGHTS if entry.folder == name and entry.checkpoint), None)
    values = {"name": name, "entry": entry, "matter": matter.strip(), "title": title, "first": first}
    return _CARDS.get_template("weights_card.md.j2").render(values, own=own)


def cards() -> list[str]:
    """Names of the weights repositories that have a card."""
    return sorted(path.stem for path in shipped("hub_cards", "hub_cards").glob("*.md"))


def _in_namespace(text: str, namespace: str, names: Iterable[str]) -> str:
    """The text with `capeval/name` and paths of modules moved to a namespace, but for default weights."""
    ids = "|".join(map(re.escape, names))
    text = re.sub(rf'capeval_core\.module_path\("({ids})"\)', rf'"{namespace}/\1"', text)
    return re.sub(rf"(?<![\w.-])capeval/({ids})(?![\w-]|\.\w)", rf"{namespace}/\1", text)


def _installing(text: str, source: str) -> str:
    """A requirement or a module's import comment that installs the package from `source`."""
    if source != PYPI and not _PUBLIC.fullmatch(source):
        raise PublishError(
            f"install from: expected {PYPI!r}, or a public address for pip (git+https://..., or "
            "https://... of a wheel) without a password, a token or a query, which everyone would read"
        )
    version = f"=={__version__}" if source == PYPI else f" @ {source}"
    text = re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1{version}", text, flags=re.MULTILINE)
    return text if source == PYPI else re.sub(r"# From: capeval\b", f"# From: {source}", text)


def _checked(name: str) -> str:
    """A namespace or a name that the Hub can have."""
    if not _NAME.fullmatch(name):
        raise PublishError(f"{name!r} is no name on the Hub: letters, digits, '-', '_' and '.'")
    return name


def _refusal(name: str, entry: WeightsEntry | None, folder: saved.WeightsFolder) -> str | None:
    """Why weights are not hosted again for everyone, by the catalogue before what their config states."""
    source = folder.config.get("source")
    stated = source.get("licence") if isinstance(source, dict) else None
    licence = entry.licence if entry else stated
    why = f"the authors of the original{f' ({entry.original})' if entry else ''}"
    if not isinstance(licence, str) or licence in ("", catalogue.LICENCE_NOT_STATED):
        if entry is None:
            found = f"{name}: its config states no licence"
            fix = "convert it again with --licence, e.g. mit, if it is yours to licence"
            return f'{found}: {fix}, or pass --private, or --permission "who allows it, and where"'
        why += " state no licence, so it may not be hosted again"
    elif restriction := catalogue.restriction_of(licence):
        why += f' restrict its use ({licence}: "{restriction}")'
    else:
        return None
    return (
        f"{name}: {why}: link to it, and let everyone get it from them. Pass --private for a repository of "
        'your own that nobody else sees, or --permission "who allows it, and where" if you have it in writing'
    )


def _own_file(folder: Path, name: str) -> Path | None:
    """A regular file of a folder, no link, which may go out; None: there is none."""
    path = folder / name
    if (path.is_symlink() or path.exists()) and (path.is_symlink() or not path.is_file()):
        raise PublishError(f"{path} is no regular file of the folder, but a link or a pipe: copy it there")
    return path if path.exists() else None


def _others(folder: Path, sent: Iterable[str]) -> list[str]:
    """Names in a folder that are not sent, without Python's bytecode; folders end with a slash."""
    paths = [path for path in sorted(folder.iterdir()) if path.name not in {*sent, "__pycache__"}]
    return [path.name + "/" * (path.is_dir() and not path.is_symlink()) for path in paths]


def publish(
    publications: Iterable[Publication],
    *,
    branch: str = "main",
    private: bool = False,
    message: str | None = None,
) -> Iterator[tuple[Publication, str, bool]]:
    """Send publications; yields each when it is sent, with its commit, and whether that is a new one."""
    from huggingface_hub import HfApi

    if _VERSION.fullmatch(branch):
        raise PublishError(f"branch {branch!r} reads like a version, which evaluate would take for its own")
    publications = list(publications)
    if refusals := [refusal for publication in publications for refusal in publication.refusals]:
        raise PublishError("\n".join(refusals))
    api = HfApi()
    expected: tuple[type[Exception], ...] = (*failures(), ValueError)
    sent: list[str] = []
    for publication in publications:
        try:
            commit, changed = patiently(partial(_push, api, publication, branch, private, message))
        except expected as error:
            before = f"\nsent before that: {', '.join(sent)}; a second run sends only the rest" * bool(sent)
            raise PublishError(f"{publication.address}: {_fix(error, publication)}{before}") from None
        sent.append(publication.address)
        yield publication, commit, changed


def _push(
    api: Any, publication: Publication, branch: str, private: bool, message: str | None
) -> tuple[str, bool]:
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
    files = [CommitOperationAdd(path, content) for path, content in publication.files.items()]
    texts = {"commit_message": title, "commit_description": description}
    commit = api.create_commit(repository, files, **texts, repo_type=kind, revision=branch)
    return commit.oid, commit.oid != before.sha


def _fix(error: Exception, publication: Publication) -> str:
    """What went wrong, and what to do."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it to publish"
    status = status_of(error)
    login = "log in with `hf auth login` and a token that may write, or set HF_TOKEN"
    if status == 401:
        return f"the Hub knows no token, or not this one: {login}"
    if status == 403:
        return f"the token may not write to {publication.repository}: {login}, or pass another --namespace"
    if status == 404 and not publication.create:
        return "there is no such repository: publish the weights first (`capeval publish weights`)"
    if isinstance(error, ValueError) and status in (None, 400):
        return str(error)
    return f"{reason(error)}: try again later"
