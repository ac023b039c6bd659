"""Models on the Hub: the repository of a folder of weights, and its card."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from capeval_core._version import __version__
from capeval_core.publishing.publication import (
    CARD,
    Publication,
    PublishError,
    checked,
    in_namespace,
    shipped,
)
from capeval_core.registry import METRICS, metric_class
from capeval_core.suggestion import did_you_mean
from capeval_core.weights.catalogue import WeightsEntry, entry_known_as
from capeval_core.weights.constants import LICENCE_NOT_STATED
from capeval_core.weights.folder import CONFIG, TENSORS, WeightsFolder, open_weights


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
        permission: who allows to publish weights without a stated licence, and where; told in the commit and
            on the card.
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
    described = _open_encoder(opened)
    name = checked(name or opened.name)
    entry = entry_known_as(name, opened.original)
    if not _licence(entry, opened) and not permission and not private:
        raise PublishError(_no_licence(name, entry))
    if entry is not None and (wrong := entry.is_another(described)):
        raise PublishError(f"{path}: {wrong}: convert the file that the authors released")
    card = _card_path(name)
    card = card if card.is_file() else path / CARD
    if not card.is_file():
        raise PublishError(f"there is no card for {name!r}: put a {CARD} into {path}, or name listed weights")
    message = f"Weights {opened.checksum[:12]}, capeval {__version__}"
    if permission:
        message += f"\n\nPublished with permission: {permission}"
    return Publication(
        f"{checked(namespace)}/{name}",
        "model",
        {
            CARD: _card_text(card, name, namespace, permission),
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
    repository = f"{checked(namespace)}/{name}"
    return Publication(repository, "model", {CARD: content}, f"Card, capeval {__version__}", create=False)


def cards() -> list[str]:
    """Names of the weights repositories that have a card."""
    return sorted(path.stem for path in shipped("hub_cards", "hub_cards").glob("*.md"))


def _open_encoder(folder: WeightsFolder) -> str:
    """The architecture in one line, once the weights have been opened."""
    kind = folder.config.get("encoder")
    for name in METRICS:
        encoder = metric_class(name).encoder_class()
        if encoder.kind == kind:
            return encoder.describe(encoder.open(folder, device="cpu").config)
    raise PublishError(f"{folder.path}: {CONFIG} says encoder {kind!r}, which no metric here has")


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


def _card_text(path: Path, name: str, namespace: str, permission: str | None = None) -> bytes:
    text = in_namespace(path.read_text(encoding="utf-8"), namespace, [name, *METRICS])
    return (f"{text.rstrip()}\n\n## Permission\n\n{permission}\n" if permission else text).encode()


def _card_path(name: str) -> Path:
    return shipped("hub_cards", "hub_cards") / f"{checked(name)}.md"
