"""What a repository of the loopback Hub holds: commits of files, and names of commits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

Files = dict[str, bytes]


def commit(name: str) -> str:
    """The hash of the commit that `name` points to in a repository made of folders."""
    return hashlib.sha1(name.encode()).hexdigest()


def git_hash(content: bytes) -> str:
    """The name that git gives to a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@cache
def _read(path: Path) -> bytes:
    """Many repositories of one folder share what it holds."""
    return path.read_bytes()


@dataclass
class Repository:
    """commits: hash -> all files. names: branch -> hash of its newest commit. messages: what commits said.

    large: files that are stored beside git, in LFS, as the real Hub does with weights.
    """

    commits: dict[str, Files] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    large: set[str] = field(default_factory=set)
    gated: bool = False
    private: bool = False
    sdk: str | None = None

    @classmethod
    def of(cls, folders: Mapping[str, Path], *, gated: bool = False) -> Repository:
        """A repository with the files of a folder under each name."""
        made = cls(gated=gated)
        for name, folder in folders.items():
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            made.commits[commit(name)] = {path.relative_to(folder).as_posix(): _read(path) for path in files}
            made.names[name] = commit(name)
        return made

    def find(self, revision: str) -> tuple[str, Files] | None:
        """Hash and files of a branch, a commit or a shortened commit."""
        for sha in (self.names.get(revision), *self.commits):
            if sha and (revision in self.names or (len(revision) >= 7 and sha.startswith(revision))):
                return sha, self.commits[sha]
        return None

    def add(self, branch: str, changes: Files, message: str) -> str:
        """A commit on a branch; its hash."""
        before = self.names.get(branch, "")
        text = "\n".join([before, message, *(name + git_hash(content) for name, content in changes.items())])
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha] = {**self.commits.get(before, {}), **changes}
        self.names[branch] = sha
        self.messages.append(message)
        return sha
