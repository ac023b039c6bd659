"""Publications on the Hub: modules (Spaces), weights (models) and their cards.

Nothing here ever makes a tag, or a branch named like a version: `evaluate.load("org/name")` asks a Space for
`v<version of evaluate>` before `main`, so a tag would hold users of that version at what it points to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jinja2 import Environment, PackageLoader

from capeval_core.errors import did_you_mean, expanded_path
from capeval_core.metric_text import MetricDescription
from capeval_core.project import __version__
from capeval_core.registry import METRICS, metric_class, module_path, network_of, shipped
from capeval_core.weights import catalogue
from capeval_core.weights import folder as saved
from capeval_core.weights.catalogue import WeightsEntry
from capeval_core.weights.hub import HUB_NAME, failures, patiently, reason, status_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
PYPI = "pypi"
_CARDS = Environment(
    loader=PackageLoader("capeval_core.reports"), trim_blocks=True, keep_trailing_newline=True
)
# One wrong publication stays in the history of a repository for everyone: hence lists of what may go, not of
# what may not.
_PUBLIC = re.compile(r"(?a)((git\+)?https://|git\+ssh://[\w.-]+@)[\w.-]+(:\d+)?/[\w./~+%-]*(@[\w./-]+)?")
"""Addresses that pip installs from: nothing in them can be a password, a token or a query."""
_PUBLISHABLE = [
    saved.CONFIG,
    saved.OPEN_CLIP_CONFIG,
    saved.TENSORS,
    saved.OPEN_CLIP_TENSORS,
    saved.VOCABULARY,
    saved.TOKENIZER,
]
"""Files of a weights folder that may be published with the card: those that encoders read."""
_VERSION = re.compile(r"v?\d+\.\d+(\.\d+)?")


class PublishError(ValueError):
    """A refusal to publish; the message says what, why, and what to do."""


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


def metric_space(name: str, namespace: str, install_from: str) -> Publication:
    """The Space of a metric: the folder that `evaluate.load` reads, with its page and card."""
    folder = Path(module_path(name))
    files: dict[str, bytes | Path] = {}
    # By name, so that a file that somebody left in the folder is not published.
    for file in ("app.py", f"{name}.py", "requirements.txt"):
        path = _regular_file(folder, file)
        if path is not None:
            files[file] = _installing(path.read_text(encoding="utf-8"), install_from).encode()
    card_text = metric_card(name, package="capeval" if install_from == PYPI else install_from)
    files[CARD] = _in_namespace(card_text, namespace, METRICS).encode()
    return Publication(
        repository=f"{_checked(namespace)}/{name}",
        kind="space",
        files=files,
        message=f"{metric_class(name).title}, capeval {__version__}",
        not_sent=_not_sent(folder, files),
    )


def weights(
    folder: str | os.PathLike[str],
    namespace: str,
    name: str | None,
    permission: str | None,
    private: bool,
    install_from: str | None = None,
) -> Publication:
    """The repository of a weights folder, opened as users open it; a private one needs no permission.

    install_from: where an Inference Endpoint installs capeval from; None: without the files of one.
    """
    path = expanded_path(folder)
    if not path.is_dir():
        raise PublishError(f"{path} is not a folder: pass one that `capeval convert` has made")
    # Before anything is read: what is opened is what will be sent.
    regular_files = {}
    for file in _PUBLISHABLE:
        regular_file = _regular_file(path, file)
        if regular_file is not None:
            regular_files[file] = regular_file
    opened = saved.open_weights(path, metric="METRIC", tiny="")
    # Opened on the way to its users: checksum, finite tensors and canary score are compared here.
    network = network_of(opened).open(opened, device="cpu")
    name = _checked(name or opened.name)
    entry = catalogue.entry_known_as(name, opened.original)

    # Reasons against publishing are collected: `--dry-run` shows all of them, `publish` refuses.
    refusals = []
    if not permission and not private:
        refusal = _refusal(name, entry, opened)
        if refusal:
            refusals.append(refusal)
    if entry is not None:
        # A folder may have the name of listed weights by mistake: everyone would get another model by it.
        difference = entry.is_another(network.describe(network.config))
        if difference:
            refusals.append(f"{path}: {difference}: convert the file that the authors released")

    # Listed weights have one card, which the project keeps true; other weights bring their own.
    card_file = None if name in cards() else _regular_file(path, CARD)
    text = ""
    if card_file is not None:
        text = card_file.read_text(encoding="utf-8")
    elif name in cards():
        text = weights_card(name)
    else:
        refusals.append(f"there is no card for {name!r}: put a {CARD} into {path}, or name listed weights")
    message = f"Weights {opened.checksum[:12]}, capeval {__version__}"
    if permission:
        text += f"\n## Permission\n\n{permission}\n"
        message += f"\n\nPublished with permission: {permission}"

    files: dict[str, bytes | Path] = {}
    if text:
        files[CARD] = _in_namespace(text, namespace, [name, *METRICS]).encode()
    for file in _files_read(opened):
        if file in regular_files:
            files[file] = regular_files[file]
    if install_from is not None:
        files |= _endpoint(network, entry, install_from)
    sent = set(files)
    if card_file is None:  # a card in the folder is then not the one that is sent
        sent.discard(CARD)
    return Publication(
        repository=f"{_checked(namespace)}/{name}",
        kind="model",
        files=files,
        message=message,
        not_sent=_not_sent(path, sent),
        refusals=refusals,
    )


def _endpoint(network: object, entry: WeightsEntry | None, install_from: str) -> dict[str, bytes]:
    """What an Inference Endpoint needs beside the weights: its handler, and what it installs."""
    # Here, since it imports PyTorch, which `capeval score` of texts alone does without.
    from capeval_core.encoders.dual import DualEncoder

    if not isinstance(network, DualEncoder):
        raise PublishError(
            "install from: a handler scores captions of images, which no metric does with these weights "
            "alone: publish them without it"
        )
    metrics = entry.metrics if entry is not None else ()
    handler = _CARDS.get_template("handler.py.j2").render(metric=metrics[0] if metrics else "pacs")
    requirements = _installing("capeval[serve]\n", install_from)
    return {"handler.py": handler.encode(), "requirements.txt": requirements.encode()}


def _files_read(folder: saved.WeightsFolder) -> list[str]:
    """The files of a weights folder that its encoder reads, in the order in which they are listed."""
    is_open_clip = folder.tensor_file.name == saved.OPEN_CLIP_TENSORS
    vocabulary = folder.config.get("vocabulary")
    has_tokenizer = isinstance(vocabulary, dict) and vocabulary.get("file") == saved.TOKENIZER
    # A folder may hold both forms; only the one that was opened and checked is sent.
    read = {
        saved.OPEN_CLIP_CONFIG if is_open_clip else saved.CONFIG,
        folder.tensor_file.name,
        saved.VOCABULARY,
    }
    if has_tokenizer:
        read.add(saved.TOKENIZER)
    return [file for file in _PUBLISHABLE if file in read]


def card(name: str, namespace: str) -> Publication:
    """The card alone of weights that are published already."""
    names = cards()
    if name not in names:
        raise PublishError(f"no card {name!r}{did_you_mean(name, names)} (known: {', '.join(names)})")
    text = _in_namespace(weights_card(name), namespace, [name, *METRICS])
    return Publication(
        repository=f"{_checked(namespace)}/{name}",
        kind="model",
        files={CARD: text.encode()},
        message=f"Card, capeval {__version__}",
        create=False,  # a repository of a card alone would promise weights that are not there
    )


def metric_card(name: str, package: str | None = None) -> str:
    """The card of a metric, which pip installs as `package`; in a checkout as `.`."""
    text = (Path(module_path(name)) / CARD).read_text(encoding="utf-8")
    _, short, text = text.split("\n\n", 2)  # after the title a paragraph for lists of metrics
    body, _, licence = text.partition("\n## Licence\n")
    metric = metric_class(name)
    values = {
        "metric": metric,
        "about": MetricDescription(metric),
        "short": short,
        "package": package,
        "own": body.strip(),
        "licence": licence.strip(),
    }
    return _CARDS.get_template("metric_card.md.j2").render(values)


def weights_card(name: str) -> str:
    """The card of weights: the lines of its file, with those of the catalogue and of all cards."""
    text = (shipped("hub_cards", "hub_cards") / f"{name}.md").read_text(encoding="utf-8")
    _, matter, text = text.split("---\n", 2)  # YAML for the Hub between lines of dashes
    title, first, body = text.strip().split("\n\n", 2)
    entries = [entry for entry in catalogue.WEIGHTS if entry.folder == name and entry.checkpoint]
    values = {
        "name": name,
        "entry": entries[0] if entries else None,
        "matter": matter.strip(),
        "title": title,
        "first": first,
        "own": body,
    }
    return _CARDS.get_template("weights_card.md.j2").render(values)


def cards() -> list[str]:
    """Names of the weights repositories that have a card."""
    return sorted(path.stem for path in shipped("hub_cards", "hub_cards").glob("*.md"))


def _in_namespace(text: str, namespace: str, names: Iterable[str]) -> str:
    """The text with `capeval/name` and paths of modules moved to a namespace, but for default weights."""
    # Not all of `capeval/...`: default weights of other metrics stay in the project's namespace.
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
    # Pinned: a Space is built anew at each restart, and would get another version's numbers some day.
    version = f"=={__version__}" if source == PYPI else f" @ {source}"
    text = re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1{version}", text, flags=re.MULTILINE)
    return text if source == PYPI else re.sub(r"# From: capeval\b", f"# From: {source}", text)


def _checked(name: str) -> str:
    """A namespace or a name that the Hub can have."""
    if not HUB_NAME.fullmatch(name):
        raise PublishError(f"{name!r} is no name on the Hub: letters, digits, '-', '_' and '.'")
    return name


def _refusal(name: str, entry: WeightsEntry | None, folder: saved.WeightsFolder) -> str | None:
    """The reason why weights are not hosted again for everyone; the catalogue decides before their config."""
    source = folder.config.get("source")
    config_licence = source.get("licence") if isinstance(source, dict) else None
    licence = entry.licence if entry else config_licence
    if not isinstance(licence, str):
        licence = ""
    is_stated = licence not in ("", catalogue.LICENCE_NOT_STATED)
    if not is_stated and entry is None:
        problem = f"{name}: its config states no licence"
        fix = "convert it again with --licence, e.g. mit, if it is yours to licence"
        return f'{problem}: {fix}, or pass --private, or --permission "who allows it, and where"'
    authors = "the authors of the original"
    if entry:
        authors += f" ({entry.original})"
    if not is_stated:
        why = f"{authors} state no licence, so it may not be hosted again"
    else:
        restriction = catalogue.restriction_of(licence)
        if not restriction:
            return None
        why = f'{authors} restrict its use ({licence}: "{restriction}")'
    return (
        f"{name}: {why}: link to it, and let everyone get it from them. Pass --private for a repository of "
        'your own that nobody else sees, or --permission "who allows it, and where" if you have it in writing'
    )


def _regular_file(folder: Path, name: str) -> Path | None:
    """A regular file of a folder, not a link, which may be published; None where there is none."""
    path = folder / name
    # A link could lead out of the folder: to a private key, under the name of a config.
    if (path.is_symlink() or path.exists()) and (path.is_symlink() or not path.is_file()):
        raise PublishError(f"{path} is no regular file of the folder, but a link or a pipe: copy it there")
    return path if path.exists() else None


def _not_sent(folder: Path, sent: Iterable[str]) -> list[str]:
    """Names in a folder that are not sent, without Python's bytecode; folders end with a slash."""
    names = []
    for path in sorted(folder.iterdir()):
        if path.name in {*sent, "__pycache__"}:
            continue
        is_folder = path.is_dir() and not path.is_symlink()
        names.append(f"{path.name}/" if is_folder else path.name)
    return names


def publish(
    publications: Iterable[Publication],
    *,
    branch: str = "main",
    private: bool = False,
    message: str | None = None,
) -> Iterator[tuple[Publication, str, bool]]:
    """Send publications; yields each when it is sent, with its commit, and whether that is a new one."""
    from huggingface_hub import HfApi

    # `evaluate.load` asks for the revision `v<its version>` first, whether that is a tag or a branch.
    if _VERSION.fullmatch(branch):
        raise PublishError(f"branch {branch!r} reads like a version, which evaluate would take for its own")
    publications = list(publications)
    refusals: list[str] = []
    for publication in publications:
        refusals += publication.refusals
    if refusals:  # before anything is sent: half a set of modules would not fit together
        raise PublishError("\n".join(refusals))
    api = HfApi()
    expected: tuple[type[Exception], ...] = (*failures(), ValueError)
    sent: list[str] = []
    for publication in publications:
        # The token is only known to be good when the first one is sent; a second run sends what is missing.
        try:
            commit, changed = patiently(partial(_push, api, publication, branch, private, message))
        except expected as error:
            message_lines = [f"{publication.address}: {_fix(error, publication)}"]
            # Commits of several repositories cannot be one: what went out stays, and has to be named.
            if sent:
                message_lines.append(f"sent before that: {', '.join(sent)}; a second run sends only the rest")
            raise PublishError("\n".join(message_lines)) from None
        sent.append(publication.address)
        yield publication, commit, changed


def _push(
    api: HfApi, publication: Publication, branch: str, private: bool, message: str | None
) -> tuple[str, bool]:
    from huggingface_hub import CommitOperationAdd

    repository = publication.repository
    kind = publication.kind
    if publication.create:
        sdk = "gradio" if kind == "space" else None
        api.create_repo(repository, repo_type=kind, space_sdk=sdk, private=private or None, exist_ok=True)
    before = api.repo_info(repository, repo_type=kind)
    # `exist_ok` leaves the visibility of an existing repository as it is.
    if private and not before.private:
        raise PublishError("the repository exists and is public: make it private at its page on the Hub")
    if branch != "main":  # the Hub makes `main` with the repository
        api.create_branch(repository, branch=branch, repo_type=kind, exist_ok=True)
        before = api.repo_info(repository, repo_type=kind, revision=branch)
    title, _, description = (message or publication.message).partition("\n\n")
    files = [CommitOperationAdd(path, content) for path, content in publication.files.items()]
    commit = api.create_commit(
        repository,
        files,
        commit_message=title,
        commit_description=description,
        repo_type=kind,
        revision=branch,
    )
    return commit.oid, commit.oid != before.sha  # the Hub makes no commit where no file differs


def _fix(error: Exception, publication: Publication) -> str:
    """A problem in words, and what to do."""
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
