"""`capeval.lock`: digests of files as they were first fetched, with which they are compared from then on.

A `capeval.lock` in the current folder belongs to a project and is used there; otherwise the one in the cache.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from capeval_core.errors import file_error
from capeval_core.kept import cache_home, write_whole
from capeval_core.weights.catalogue import entry_of, part_of
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

    @property
    def noted(self) -> str:
        """The first digits of the digest, and the day on which it was noted."""
        return f"sha256 {self.sha256[:12]}..." + (f" of {self.date}" if self.date else "")


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


def write_lock(path: Path, files: Iterable[LockedFile]) -> None:
    """Write a lock, whole or not at all."""
    tables = []
    for file in sorted(files, key=lambda file: file.name):
        # A text of JSON is one of TOML, too.
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in asdict(file).items()]
        tables.append("\n".join(["[[file]]", *lines]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join([_HEAD, "\n\n".join(tables), ""]))


def note_files(path: Path, files: Iterable[LockedFile], forget: Iterable[str] = ()) -> None:
    """Add files to a lock that does not have them yet, without losing what other processes add."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.guard")):
        before = read_lock(path)
        kept = {name: file for name, file in before.items() if name not in set(forget)}
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        for file in files:
            kept.setdefault(file.name, LockedFile(file.name, file.address, file.sha256, file.date or today))
        if kept != before:
            write_lock(path, kept.values())


def agrees(files: Mapping[str, LockedFile], known: Mapping[str, str]) -> bool:
    """Whether files have the digests that are known of them."""
    return all(known.get(name, file.sha256) == file.sha256 for name, file in files.items())


def compare_and_note(files: Sequence[LockedFile], checks: Checks) -> None:
    """Compare files with a lock, and note there what it does not have."""
    noted = read_lock(checks.lock_file)
    compare(files, {name: file.sha256 for name, file in noted.items()}, checks)
    if checks.update or any(file.name not in noted for file in files):
        names = [file.name for file in files]
        note_files(checks.lock_file, files, forget=names if checks.update else ())


def compare(files: Sequence[LockedFile], known: Mapping[str, str], checks: Checks) -> None:
    """Refuse files whose digest is not the one that is known of them.

    Raises:
        WeightsError: another digest; or none is known, and only known ones are wanted.
    """
    refuse_unknown([file.name for file in files], known, checks)
    for file in files:
        expected = known.get(file.name, file.sha256)
        if expected != file.sha256 and not checks.update:
            found = f"{file.name} from {file.address} has sha256 {file.sha256}"
            held = f"but {expected} is known of it (the catalogue, or {checks.lock_file})"
            fix = "it changed, or is not its authors'; `capeval fetch NAME --update` takes it as it is now"
            raise WeightsError(f"{found}, {held}: {fix}")


def refuse_unknown(names: Sequence[str], known: Mapping[str, str], checks: Checks) -> None:
    """Refuse files of which no digest is known, where only known ones are wanted."""
    missing = [name for name in names if name not in known]
    if checks.locked and missing:
        found = f"{checks.lock_file} has no digest of {', '.join(missing)}"
        raise WeightsError(f"{found}: fetch once without --locked, and check what is noted")


def locked_repository(repository: str, commit: str | None, tensors: Path) -> LockedFile:
    """The file of tensors of a Hub repository at a commit."""
    address = f"{HUB}{repository}/tree/{commit}"
    return LockedFile(f"{repository}/{tensors.name}", address, file_checksum(tensors))


def hold(repository: str, commit: str | None, tensors: Path) -> None:
    """Compare a listed model of the Hub with the lock as it is opened, or note it there the first time.

    A cache that cannot be written costs the note, nothing else.
    """
    if commit is None or not (entry_of(repository) or part_of(repository)):
        return
    with suppress(OSError):
        compare_and_note([locked_repository(repository, commit, tensors)], Checks())
