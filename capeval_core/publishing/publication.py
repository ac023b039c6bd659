"""What one repository on the Hub is to hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CARD = "README.md"
_WRITTEN = "capeval|metrics"
"""Where texts in the source have modules: our namespace, whatever CAPEVAL_NAMESPACE says, or the checkout."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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


def in_namespace(text: str, namespace: str, names: Iterable[str]) -> str:
    """The text with `capeval/name` and `metrics/name` moved to a namespace, for what is published there.

    Default weights stay: which ones those are is up to the package, wherever a module is published.

    >>> in_namespace('evaluate.load("metrics/pacs"), weights of capeval/pacs-clip-vit-b-32', "me", ["pacs"])
    'evaluate.load("me/pacs"), weights of capeval/pacs-clip-vit-b-32'
    """
    ids = "|".join(map(re.escape, names))
    return re.sub(rf"(?<![\w.-])(?:{_WRITTEN})/({ids})(?![\w-]|\.\w)", rf"{namespace}/\1", text)


def checked(name: str) -> str:
    """A namespace or a name that the Hub can have."""
    if not _NAME.fullmatch(name):
        raise PublishError(f"{name!r} is no name on the Hub: letters, digits, '-', '_' and '.'")
    return name


def shipped(package: str, folder: str) -> Path:
    """A folder of the repository, which a wheel installs inside the package."""
    root = Path(__file__).parents[1]
    return root / package if (root / package).is_dir() else root.parent / folder
