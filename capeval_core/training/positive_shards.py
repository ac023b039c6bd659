"""The folder of positives that several runs fill, which is the same whichever of them made what.

Each kind of positive has shards of its own, `positives-captions-00000.parquet` and
`positives-images-00000.parquet`. Shard k holds what is made of sources k * n to (k + 1) * n - 1, in their
order. So a run that was killed, and one that other processes share, leave the same files as one run would.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from capeval_core.errors import FileError, file_problem, warn
from capeval_core.training.positives import NOTE, PLURAL, SETTINGS, Positive, Source, open_shard, shard_bytes
from capeval_core.writing import try_writing, write_whole

_LOCK = ".lock"
MADE_WITH = "made_with"
"""Of the settings: what is recorded, and may differ between the runs that fill a folder."""


@dataclass
class Shard:
    """What was made of a stretch of sources, by their positions in it, and why others are dropped."""

    made: dict[int, Positive] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)

    def missing(self, count: int) -> list[int]:
        """The positions, of so many, of which nothing is known."""
        return [i for i in range(count) if i not in self.made and i not in self.dropped]


class PositiveShards:
    """The shards of one kind of positive in a folder, which may hold those of the other kind too.

    Args:
        folder: need not exist.
        kind: of the positives.
        settings: what they depend on, in JSON's types; those under `made_with` are recorded only.

    Raises:
        FileError: a file; a folder of something else, or with positives of this kind by other settings.
    """

    def __init__(self, folder: Path, kind: Literal["caption", "image"], settings: Mapping[str, Any]) -> None:
        self.folder, self.kind = folder, kind
        self._claimed = False
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.check_folder(folder)
        if (stored := self._stored().get(PLURAL[kind])) is not None:
            self._refuse_other(stored, folder)

    @staticmethod
    def check_folder(folder: Path) -> None:
        """Raise FileError for a file, for a folder of something else, and for one that cannot be written."""
        if folder.exists() and not folder.is_dir():
            raise FileError(file_problem(folder, "is a file: choose a folder for the positives"))
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        visible = [name for name in names if not name.startswith(".")]
        if visible and not any(name == SETTINGS or name.startswith("positives-") for name in visible):
            found = f"holds something else ({visible[0]})"
            raise FileError(file_problem(folder, found, "choose another folder for the positives"))
        try:
            try_writing(folder)
        except OSError as error:
            found = f"cannot be written ({error.strerror})"
            raise FileError(file_problem(folder, found, "choose another folder")) from error

    def _claim(self) -> None:
        """Make the folder, and note the settings in it beside those of the other kind.

        Not before there is a shard, so that a run which comes to nothing claims nothing.
        """
        if self._claimed:
            return
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._writing(), _locked(self.folder):
            stored = self._stored()
            if (own := stored.get(PLURAL[self.kind])) is not None:
                self._refuse_other(own, self.folder)
            if own is None or not (self.folder / SETTINGS).is_file():
                content = {**stored, PLURAL[self.kind]: own or self.settings}
                write_whole(self.folder / SETTINGS, json.dumps(content, indent=1, sort_keys=True) + "\n")
        self._claimed = True

    def _stored(self) -> dict[str, Any]:
        """The settings of each kind in the folder; where their file is lost, those that shards carry."""
        path = self.folder / SETTINGS
        if path.is_file():
            try:
                stored = dict(json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError, RecursionError) as error:
                fix = "delete it: the shards know their settings"
                raise FileError(file_problem(path, f"cannot be read ({error})", fix)) from error
            if not all(name in PLURAL.values() and isinstance(value, dict) for name, value in stored.items()):
                found = "is not of positives that `capeval augment` made"
                raise FileError(file_problem(path, found, "choose another folder"))
            return stored
        stored = {}
        for name in PLURAL.values():
            for shard in sorted(self.folder.glob(f"positives-{name}-*.parquet")):
                try:
                    stored[name] = _read(shard)[0]["settings"]
                    break
                except _DamagedError:
                    continue
        return stored

    def _refuse_other(self, stored: Mapping[str, Any], path: Path) -> None:
        differing = [
            f"{name} {stored.get(name)!r}, now {self.settings.get(name)!r}"
            for name in {**stored, **self.settings}
            if name != MADE_WITH and stored.get(name) != self.settings.get(name)
        ]
        if differing:
            found = f"holds {PLURAL[self.kind]} by other settings ({'; '.join(differing)})"
            fix = "pass the same settings, or choose another folder"
            raise FileError(file_problem(path, found, fix))

    def path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / f"positives-{PLURAL[self.kind]}-{number:05d}.parquet"

    def read(self, number: int, sources: Sequence[Source]) -> Shard:
        """What there is of a shard; one that is damaged counts as missing, with a warning.

        sources: of the shard, each once.

        Raises:
            FileError: it was made with other settings. OSError: the folder cannot be written.
        """
        path = self.path(number)
        if not path.exists():
            return Shard()
        self._claim()
        try:
            note, positives = _read(path)
            self._refuse_other(note["settings"], path)
            position = {source: i for i, source in enumerate(sources)}
            made = {position[positive.source]: positive for positive in positives}
            return Shard(made, {int(i): reason for i, reason in note["dropped"].items()})
        except _DamagedError as error:
            reason = str(error)
        except KeyError:
            reason = "holds positives of other sources"
        warn(f"{path} {reason}: what it held is generated again")
        return Shard()

    def write(self, number: int, shard: Shard) -> None:
        """Write a shard as a whole, which need not be complete.

        Raises:
            FileError: the folder has got other settings meanwhile. OSError: it cannot be written.
        """
        self._claim()
        positives = [shard.made[i] for i in sorted(shard.made)]
        dropped = {str(i): shard.dropped[i] for i in sorted(shard.dropped)}
        note: dict[str, Any] = {"settings": self.settings, "dropped": dropped}
        note["digest"] = _digest(note, positives)
        content = shard_bytes(positives, {NOTE.decode(): json.dumps(note, sort_keys=True)})
        with self._writing():
            write_whole(self.path(number), content)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let an error say which folder it is about, and that nothing is lost."""
        try:
            yield
        except OSError as error:
            found = f"{self.folder} cannot be written ({error.strerror or error}): what is there stays"
            raise OSError(f"{found}, and the same command goes on where there is room") from error


class _DamagedError(ValueError):
    """A shard is not as it was written; the message continues after its path."""


def _read(path: Path) -> tuple[dict[str, Any], list[Positive]]:
    """The note and the positives of a shard."""
    if not path.is_file():  # it could block for ever
        raise _DamagedError("is no regular file")
    try:
        content = path.read_bytes()
        file = open_shard(pa.BufferReader(content))
        note = dict(json.loads(file.schema_arrow.metadata[NOTE]))
        positives = [Positive(**row) for row in file.read().to_pylist()]
        if note.pop("digest") == _digest(note, positives):
            return note, positives
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"is damaged ({' '.join(str(error).split())[:200]})") from error
    raise _DamagedError("is damaged (its digest is another one)")


def _digest(note: Mapping[str, Any], positives: Sequence[Positive]) -> str:
    digest = hashlib.blake2b(json.dumps(note, sort_keys=True).encode(), digest_size=16)
    for positive in positives:
        image = positive.image or b""
        digest.update(json.dumps([*positive[:4], len(image)]).encode() + image)
    return digest.hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change the settings of a folder."""
    from filelock import FileLock

    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire()
    except NotImplementedError:  # a file system without locks: two first runs at once would race
        yield
        return
    try:
        yield
    finally:
        lock.release()
