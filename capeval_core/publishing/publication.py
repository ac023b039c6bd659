"""What one repository on the Hub is to hold."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

CARD = "README.md"
_WRITTEN = "capeval|metrics"
"""Where texts in the source have modules: our namespace, whatever CAPEVAL_NAMESPACE says, or the checkout."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


_COPY = "only files that lie in the folder itself are sent, so that no other one is by mistake: copy it there"


class PublishError(ValueError):
    """Something that is not published; the message says what, why, and what to do."""


@dataclass(frozen=True)
class Publication:
    """What one repository is to hold.

    repository: id on the Hub. kind: a Space is a module, a model is weights. files: path in the repository ->
    content, or the file that has it. create: whether the repository is made where it does not exist.
    not_sent: what else lies in the folder, by name.
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


def in_namespace(text: str, namespace: str, names: Iterable[str]) -> str:
    """The text with `capeval/name` and `metrics/name` moved to a namespace, for what is published there.

    Default weights stay: which ones those are is up to the package, wherever a module is published.

    >>> in_namespace('evaluate.load("metrics/pacs"), weights of capeval/pacs-clip-vit-b-32', "me", ["pacs"])
    'evaluate.load("me/pacs"), weights of capeval/pacs-clip-vit-b-32'
    """
    ids = "|".join(map(re.escape, names))
    return re.sub(rf"(?<![\w.-])(?:{_WRITTEN})/({ids})(?![\w-]|\.\w)", rf"{namespace}/\1", text)


def own_file(folder: Path, name: str, *, hard_links: bool = True) -> Path | None:
    """A file of a folder that may go out: a regular one, in the folder itself; None: there is none.

    Args:
        folder: where it lies.
        name: of the file.
        hard_links: whether it may have other names elsewhere, as files of installed packages often have.

    Raises:
        PublishError: it is a link or no regular file, so that something else would be sent.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    if (target := path.resolve()) != folder.resolve() / name:
        raise PublishError(f"{path} is a link to {target}: {_COPY}")
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise PublishError(f"{path} is no regular file: {_COPY}")
    if about.st_nlink > 1 and not hard_links:
        raise PublishError(f"{path} is a hard link, a file with {about.st_nlink} names: {_COPY}")
    return path


def others(folder: Path, sent: Iterable[str]) -> list[str]:
    """Names of what lies in a folder and is not sent, without Python's bytecode; folders end with a slash."""
    names = {path.name: path for path in folder.iterdir() if path.name != "__pycache__"}
    return [
        name + ("/" if path.is_dir() and not path.is_symlink() else "")
        for name, path in sorted(names.items())
        if name not in sent
    ]


def checked(name: str) -> str:
    """A namespace or a name that the Hub can have."""
    if not _NAME.fullmatch(name):
        raise PublishError(f"{name!r} is no name on the Hub: letters, digits, '-', '_' and '.'")
    return name


def shipped(package: str, folder: str) -> Path:
    """A folder of the repository, which a wheel installs inside the package."""
    root = Path(__file__).parents[1]
    return root / package if (root / package).is_dir() else root.parent / folder
