"""What this project puts on the Hub: modules (Spaces), weights (models) and their cards.

`module`, `weights` and `card` collect the files of a repository as plain values; `publish` sends them.

Nothing here ever makes a tag, or a branch named like a version: `evaluate.load("org/name")` asks a Space for
the revision `v<version of evaluate>` before `main`, so a tag `v0.4.6` would hold every user of evaluate 0.4.6
at what it points to, for ever. Versions are those of the Python package, and commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from capeval_core._version import __version__
from capeval_core.errors import did_you_mean, expanded_path
from capeval_core.publishing.sending import Publication, PublishError, Pushed, checked, publish
from capeval_core.registry import METRICS, metric_class, module_path, network_of, shipped
from capeval_core.weights.catalogue import LICENCE_NOT_STATED, WeightsEntry, entry_known_as, restriction_of
from capeval_core.weights.folder import (
    CONFIG,
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_TENSORS,
    TENSORS,
    TOKENIZER,
    VOCABULARY,
    WeightsFolder,
    open_weights,
)

__all__ = ["PYPI", "Publication", "PublishError", "Pushed", "card", "cards", "module", "publish", "weights"]

CARD, PYPI = "README.md", "pypi"
_IN_A_CHECKOUT = re.compile(r"`metrics/\.\.\.` is [^`]*`capeval`[^`]*`pip install \.` in a checkout\.")
"""What a module's card says about loading it from a checkout."""
_PUBLIC = re.compile(
    r"((git\+)?https://|git\+ssh://[\w.-]+@)[\w.-]+(:\d+)?/[\w./~+%-]*(@[\w./-]+)?", re.ASCII
)
"""Addresses that pip installs from: nothing in them can be a password, a token or a query."""
_SENT = (CONFIG, OPEN_CLIP_CONFIG, TENSORS, OPEN_CLIP_TENSORS, VOCABULARY, TOKENIZER)
"""Files of a weights folder that may go out, beside the card: those that encoders read."""


def module(name: str, namespace: str, install_from: str) -> Publication:
    """The Space of a metric: the folder that `evaluate.load` reads the module from, with its page and card.

    Args:
        name: of the metric.
        namespace: user or organisation on the Hub.
        install_from: where the Space, and users who lack the package, install it from: `"pypi"` (the Space
            takes this very version, which must be there), or an address that pip takes, e.g.
            `git+https://host/org/capeval@<commit>`. One with a password, a token or a query is refused.
    """
    folder = Path(module_path(name))
    loading = (
        f"The package must be installed: `pip install {'capeval' if install_from == PYPI else install_from}`."
    )
    files: dict[str, bytes | Path] = {}
    for file in (CARD, "app.py", f"{name}.py", "requirements.txt"):
        if path := _own_file(folder, file):
            text = installing(path.read_text(encoding="utf-8"), install_from)
            if file == CARD:
                text = _IN_A_CHECKOUT.sub(lambda _: loading, text)
            files[file] = in_namespace(text, namespace, METRICS).encode()
    message = f"{metric_class(name).title}, capeval {__version__}"
    repository = f"{checked(namespace)}/{name}"
    return Publication(repository, "space", files, message, not_sent=_others(folder, files))


def weights(
    folder: str | PathLike[str],
    namespace: str,
    *,
    name: str | None = None,
    permission: str | None = None,
    private: bool = False,
) -> Publication:
    """The repository of a weights folder, opened as users open it: checksum, strict tensors, canary.

    Of the folder go config, tensors, a tokenizer's words and, where the weights have no listed card,
    README.md; nothing else.

    Args:
        folder: made by `capeval convert`, or in open_clip's format; its config names the network.
        namespace: user or organisation on the Hub.
        name: of the repository; None: the folder's.
        permission: who allows to publish weights whose authors state no licence or restrict their use, and
            where; quoted in the commit and on the card.
        private: the repository will be private, which needs no permission.

    Raises:
        WeightsError: the weights cannot be read or trusted.
        PublishError: their authors state no licence or restrict their use, they are another model than their
            name says, there is no card for them, or one of their files is a link.
    """
    path = expanded_path(folder)
    if not path.is_dir():
        raise PublishError(f"{path} is not a folder: pass one that `capeval convert` has made")
    # Before anything is read: what is opened is what will be sent.
    own = {file: found for file in _SENT if (found := _own_file(path, file))}
    opened = open_weights(path, metric="METRIC", tiny="")
    network = network_of(opened).open(opened, device="cpu")
    name = checked(name or opened.name)
    entry = entry_known_as(name, opened.original)
    if not permission and not private and (refusal := _refusal(name, entry, opened)):
        raise PublishError(refusal)
    if entry is not None and (difference := entry.is_another(network.describe(network.config))):
        raise PublishError(f"{path}: {difference}: convert the file that the authors released")
    listed = _listed_card(name)
    shown = listed or _own_file(path, CARD)
    if shown is None:
        raise PublishError(f"there is no card for {name!r}: put a {CARD} into {path}, or name listed weights")
    message = f"Weights {opened.checksum[:12]}, capeval {__version__}"
    if permission:
        message += f"\n\nPublished with permission: {permission}"
    words = opened.config.get("vocabulary")
    read = [opened.config_file.name, opened.tensor_file.name, VOCABULARY]
    read += [TOKENIZER] if isinstance(words, dict) and words.get("file") == TOKENIZER else []
    files: dict[str, bytes | Path] = {CARD: _card_text(shown, name, namespace, permission)}
    files |= {file: own[file] for file in own if file in read}
    sent = [file for file in files if file != CARD or not listed]
    return Publication(f"{checked(namespace)}/{name}", "model", files, message, not_sent=_others(path, sent))


def card(name: str, namespace: str) -> Publication:
    """The card alone of weights that are published already."""
    path = _listed_card(name)
    if path is None:
        names = cards()
        raise PublishError(f"no card {name!r}{did_you_mean(name, names)} (known: {', '.join(names)})")
    files = {CARD: _card_text(path, name, namespace)}
    return Publication(
        f"{checked(namespace)}/{name}", "model", files, f"Card, capeval {__version__}", create=False
    )


def cards() -> list[str]:
    """Names of the weights repositories that have a card."""
    return sorted(path.stem for path in shipped("hub_cards", "hub_cards").glob("*.md"))


def in_namespace(text: str, namespace: str, names: Iterable[str]) -> str:
    """The text with `capeval/name` and `metrics/name` moved to a namespace, for what is published there.

    Default weights stay: which ones those are is up to the package, wherever a module is published.

    >>> in_namespace('evaluate.load("metrics/pacs"), weights of capeval/pacs-clip-vit-b-32', "me", ["pacs"])
    'evaluate.load("me/pacs"), weights of capeval/pacs-clip-vit-b-32'
    """
    ids = "|".join(map(re.escape, names))
    return re.sub(rf"(?<![\w.-])(?:capeval|metrics)/({ids})(?![\w-]|\.\w)", rf"{namespace}/\1", text)


def installing(text: str, source: str) -> str:
    """A requirement or a module's import comment that installs the package from `source`.

    >>> installing("capeval[page]", "git+https://host/org/capeval@1f3c9a2b")
    'capeval[page] @ git+https://host/org/capeval@1f3c9a2b'
    >>> installing("from capeval_core import x  # From: capeval", "git+https://host/org/capeval")
    'from capeval_core import x  # From: git+https://host/org/capeval'
    """
    if source != PYPI and not _PUBLIC.fullmatch(source):
        raise PublishError(
            f"install from: expected {PYPI!r}, or a public address that pip installs from (git+https://..., "
            "git+ssh://git@..., or https://... of a wheel) without a password, a token or a query, since "
            "everyone would read it on the Space (so it is not repeated here)"
        )
    version = f"=={__version__}" if source == PYPI else f" @ {source}"
    text = re.sub(r"^(capeval(\[.*?\])?)[ \t]*$", rf"\1{version}", text, flags=re.MULTILINE)
    return text if source == PYPI else re.sub(r"# From: capeval\b", f"# From: {source}", text)


def _refusal(name: str, entry: WeightsEntry | None, folder: WeightsFolder) -> str | None:
    """Why weights are not hosted again for everyone; None: they may be.

    What the catalogue states of their licence comes before the option of `convert`.
    """
    source = folder.config.get("source")
    stated = source.get("licence") if isinstance(source, dict) else None
    licence = entry.licence if entry else stated
    original = f"the original ({entry.original})" if entry else "the original"
    if not isinstance(licence, str) or licence in ("", LICENCE_NOT_STATED):
        why = f"the authors of {original} state no licence, so it may not be hosted again"
    elif restriction := restriction_of(licence):
        why = f'the authors of {original} restrict its use ({licence}: "{restriction}")'
    else:
        return None
    return (
        f"{name}: {why}: link to it, and let everyone get it from them. Pass --private for a repository of "
        'your own that nobody else sees, or --permission "who allows it, and where" if you have it in writing'
    )


def _card_text(path: Path, name: str, namespace: str, permission: str | None = None) -> bytes:
    text = in_namespace(path.read_text(encoding="utf-8"), namespace, [name, *METRICS])
    return (f"{text.rstrip()}\n\n## Permission\n\n{permission}\n" if permission else text).encode()


def _listed_card(name: str) -> Path | None:
    return _own_file(shipped("hub_cards", "hub_cards"), f"{checked(name)}.md")


def _own_file(folder: Path, name: str) -> Path | None:
    """A regular file of a folder, no link, which may go out; None: there is none."""
    path = folder / name
    if not path.is_symlink() and not path.exists():
        return None
    if path.is_symlink() or not path.is_file():
        raise PublishError(
            f"{path} is {'a link' if path.is_symlink() else 'no regular file'}: only files that lie in the "
            "folder itself are sent, so that no other one is by mistake: copy it there"
        )
    return path


def _others(folder: Path, sent: Iterable[str]) -> list[str]:
    """Names in a folder that are not sent, without Python's bytecode; folders end with a slash."""
    names = {path.name: path for path in folder.iterdir() if path.name != "__pycache__"}
    return [
        name + ("/" if path.is_dir() and not path.is_symlink() else "")
        for name, path in sorted(names.items())
        if name not in sent
    ]
