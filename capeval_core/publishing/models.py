"""Models on the Hub: the repository of a folder of weights, and its card."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from capeval_core._version import __version__
from capeval_core.errors import did_you_mean
from capeval_core.publishing.publication import (
    CARD,
    Publication,
    PublishError,
    checked,
    in_namespace,
    others,
    own_file,
)
from capeval_core.registry import METRICS, network_of, shipped
from capeval_core.values import expanded_path
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

_SENT = (CONFIG, OPEN_CLIP_CONFIG, TENSORS, OPEN_CLIP_TENSORS, VOCABULARY, TOKENIZER)
"""Files of a weights folder that may go out, beside the card: those that encoders read."""


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
    own = {file_name: file for file_name in _SENT if (file := own_file(path, file_name, hard_links=False))}
    opened = open_weights(path, metric="METRIC", tiny="")
    network = network_of(opened).open(opened, device="cpu")
    name = checked(name or opened.name)
    entry = entry_known_as(name, opened.original)
    if not permission and not private and (refusal := _refusal(name, entry, opened)):
        raise PublishError(refusal)
    if entry is not None and (difference := entry.is_another(network.describe(network.config))):
        raise PublishError(f"{path}: {difference}: convert the file that the authors released")
    listed = _listed_card(name)
    card = listed or own_file(path, CARD, hard_links=False)
    if card is None:
        raise PublishError(f"there is no card for {name!r}: put a {CARD} into {path}, or name listed weights")
    message = f"Weights {opened.checksum[:12]}, capeval {__version__}"
    if permission:
        message += f"\n\nPublished with permission: {permission}"
    words = opened.config.get("vocabulary")
    read = [opened.config_file.name, opened.tensor_file.name, VOCABULARY]
    read += [TOKENIZER] if isinstance(words, dict) and words.get("file") == TOKENIZER else []
    sent = [file for file in own if file in read]
    return Publication(
        f"{checked(namespace)}/{name}",
        "model",
        {CARD: _card_text(card, name, namespace, permission), **{file: own[file] for file in sent}},
        message,
        not_sent=others(path, sent if listed else [*sent, CARD]),
    )


def card(name: str, namespace: str) -> Publication:
    """The card alone of weights that are published already."""
    path = _listed_card(name)
    if path is None:
        names = cards()
        raise PublishError(f"no card {name!r}{did_you_mean(name, names)} (known: {', '.join(names)})")
    content = _card_text(path, name, namespace)
    repository = f"{checked(namespace)}/{name}"
    return Publication(repository, "model", {CARD: content}, f"Card, capeval {__version__}", create=False)


def cards() -> list[str]:
    """Names of the weights repositories that have a card."""
    return sorted(path.stem for path in shipped("hub_cards", "hub_cards").glob("*.md"))


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
    return own_file(shipped("hub_cards", "hub_cards"), f"{checked(name)}.md")
