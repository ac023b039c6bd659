"""`capeval.lock`: digests of files as they were first fetched, with which they are compared from then on.

A `capeval.lock` in the current folder belongs to a project and is used there; otherwise the one in the cache.
Digests that the catalogue states come before those of a lock, and nothing replaces them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from capeval_core.errors import file_error
from capeval_core.store import cache_home, write_whole
from capeval_core.weights.catalogue import WeightsEntry, entry_of, part_of
from capeval_core.weights.folder import WeightsError, file_checksum

LOCK = "capeval.lock"
HUB = "https://huggingface.co/"
_HEAD = "# Digests of fetched files, as `capeval fetch` noted them first.\n"


@dataclass(frozen=True)
class LockedFile:
    """A file that was fetched. name: weights or repository, and the file. date: when it was first fetched."""

    name: str
    address: str
    sha256: str
    date: str = ""

    def __post_init__(self) -> None:
        # Files of a lock are edited by hand and merged; a cut digest would be compared as if it were whole.
        if set(map(type, asdict(self).values())) != {str}:
            raise TypeError(f"{self.name!r} has a value that is not a text")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"{self.sha256!r} of {self.name!r} is not a sha256 of 64 digits")

    @property
    def noted(self) -> str:
        """The first digits of the digest, and the day on which it was noted."""
        day = f" of {self.date}" if self.date else ""
        return f"sha256 {self.sha256[:12]}...{day}"


@dataclass(frozen=True, kw_only=True)
class Checks:
    """How files are compared. locked: only those whose digest is known are taken. update: they are taken as
    they are now, and noted anew. lock: the file of digests; None: the one in use."""

    locked: bool = False
    update: bool = False
    lock: Path | None = None

    @property
    def lock_file(self) -> Path:
        """The lock that files are compared with."""
        return self.lock or lock_path()


def lock_path() -> Path:
    """The lock that is in use: that of the current folder if it has one, else that of the cache."""
    project = Path(LOCK)
    return project if project.is_file() else cache_home() / LOCK


# reading and writing


def read_lock(path: Path) -> dict[str, LockedFile]:
    """The files of a lock by name; none where there is no lock.

    Raises:
        FileError: the file is not a lock.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        files = [LockedFile(**table) for table in content.get("file", ())]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        fix = "mend it, or delete it: digests are then noted anew"
        raise file_error(path, f"is not a {LOCK} ({error})", fix) from error
    return {file.name: file for file in files}


def noted_digests(path: Path) -> dict[str, str]:
    """The digests of a lock by the names of files."""
    return {file.name: file.sha256 for file in read_lock(path).values()}


def write_lock(path: Path, files: Iterable[LockedFile]) -> None:
    """Write a lock, whole or not at all."""
    tables = []
    # Sorted, so that a lock under version control differs by the lines that changed.
    for file in sorted(files, key=lambda file: file.name):
        lines = [f"{key} = {_quoted(value)}" for key, value in asdict(file).items()]
        tables.append("\n".join(["[[file]]", *lines]))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole: a lock that was cut off by a kill would know fewer files, and trust the others as new.
    write_whole(path, "\n".join([_HEAD, "\n\n".join(tables), ""]))


def _quoted(text: str) -> str:
    """A text in TOML: as in JSON, which lets only the character of the delete key through."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# comparing


def refuse_unknown(names: Iterable[str], digests: Mapping[str, str], checks: Checks) -> None:
    """Refuse files of which no digest is known, where only known ones are wanted.

    Raises:
        WeightsError: a digest is not known.
    """
    missing = [name for name in names if name not in digests]
    if checks.locked and missing:
        problem = f"{checks.lock_file} has no digest of {', '.join(missing)}"
        raise WeightsError(f"{problem}: fetch once without --locked, and check what is noted")


def compare(files: Sequence[LockedFile], stated: Mapping[str, str], checks: Checks) -> None:
    """Refuse files whose digest is not the one that is known of them.

    Args:
        files: as they were fetched.
        stated: digests that the catalogue has, by the names of files.
        checks: the lock, and how strict it is.

    Raises:
        WeightsError: another digest; or none is known, and only known ones are wanted.
    """
    noted = noted_digests(checks.lock_file)
    # All of them first: with --locked nothing is said of one file while another one is unknown.
    refuse_unknown([file.name for file in files], noted | dict(stated), checks)
    for file in files:
        problem = f"{file.name} from {file.address} has sha256 {file.sha256}"
        if file.name in stated:
            if file.sha256 != stated[file.name]:
                fix = "fetch it again, or pass a copy of that very file by --from"
                raise WeightsError(f"{problem}, but the catalogue lists {stated[file.name]}: {fix}")
        elif file.sha256 != noted.get(file.name, file.sha256) and not checks.update:
            fix = "it changed, or is not its authors'; `capeval fetch NAME --update` takes it as it is now"
            raise WeightsError(f"{problem}, but {checks.lock_file} has {noted[file.name]}: {fix}")


def note_files(files: Sequence[LockedFile], checks: Checks) -> None:
    """Note files in a lock that does not have them yet, or anew, without losing what other processes add."""
    path = checks.lock_file
    noted = noted_digests(path)
    # Nothing is written where nothing is new: the folder of a project may be read-only.
    if not checks.update and noted.keys() >= {file.name for file in files}:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Read again behind the guard: another process may have noted files meanwhile.
    with FileLock(path.with_name(f".{path.name}.guard")):
        content = read_lock(path)
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        for file in files:
            if checks.update or file.name not in content:
                content[file.name] = LockedFile(file.name, file.address, file.sha256, file.date or today)
        write_lock(path, content.values())


# repositories of the Hub


def check_repository(entry: WeightsEntry, commit: str | None, tensors: Path, checks: Checks) -> LockedFile:
    """The file of tensors of a listed repository at a commit, compared with its known digest and noted."""
    name = f"{entry.repository}/{tensors.name}"
    file = LockedFile(name, f"{HUB}{entry.repository}/tree/{commit}", file_checksum(tensors))
    # A commit does not vouch for its files: whoever owns the repository can make another one.
    stated = {} if entry.sha256 is None else {name: entry.sha256}
    compare([file], stated, checks)
    note_files([file], checks)
    return file


def hold(repository: str, commit: str | None, tensors: Path) -> None:
    """Compare a listed model of the Hub with what is known of it as it is opened, or note it the first time.

    A cache that cannot be written costs the note, nothing else.
    """
    entry = entry_of(repository) or part_of(repository)
    if commit is not None and entry is not None:
        with suppress(OSError):
            check_repository(entry, commit, tensors, Checks())
