"""Generated captions and images that are additional positives of a training: a folder of Parquet shards.

Source: Sarto et al., "Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation",
CVPR 2023, https://arxiv.org/abs/2303.12112, sections 3 and 4.1.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, file_problem, warn
from capeval_core.inputs.images import InputImage
from capeval_core.writing import try_writing, write_whole

CAPTION: Literal["caption"] = "caption"
IMAGE: Literal["image"] = "image"
"""Kinds of positive."""
SETTINGS = "settings.json"
"""The file of a folder of positives with what made them: models, revisions, seeds."""
SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("source_caption", pa.string()),
        pa.field("caption", pa.string()),
        pa.field("image", pa.binary()),
    ]
)
"""Columns of a shard, those of `Positive`."""
PLURAL = {CAPTION: "captions", IMAGE: "images"}
"""Kinds of positive, as file names and settings call them."""
_SHARD = re.compile(rf"positives-({'|'.join(PLURAL.values())})-([0-9]{{5,}})\.parquet")
_FORM: dict[str, Any] = {
    "compression": {"image": "none"},  # a PNG is compressed already
    "use_dictionary": False,  # pages without dictionaries have checksums
    "write_statistics": False,  # they would hold images twice
    "write_page_checksum": True,
}
NOTE = b"capeval_positives"
"""Of a shard's metadata: its settings, what was dropped, and a digest of it all."""
MOST_ROWS = 2**18
"""Rows of a shard at most: some hundred MB of texts. Equal rows take next to nothing in a file."""
_TEXTS = ["kind", "id", "source_caption", "caption"]
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_AT_ONCE = 64
"""Generated images in memory at once."""


class Positive(NamedTuple):
    """A generated caption of an image, or a generated image of a caption.

    kind: "caption" or "image". id: of the image that it belongs to, in the captions that were augmented.
    source_caption: the caption that an image was generated from; None for a caption.
    caption: the generated caption; None for an image. image: the generated image, the bytes of a PNG; None
    for a caption.
    """

    kind: Literal["caption", "image"]
    id: str
    source_caption: str | None = None
    caption: str | None = None
    image: bytes | None = None

    @property
    def source(self) -> Source:
        """The image or caption that it was generated from."""
        return Source(self.kind, self.id, self.source_caption)


class Source(NamedTuple):
    """What a positive is generated from: an image for a caption, a caption of an image for an image."""

    kind: str
    id: str
    source_caption: str | None = None


class Positives:
    """A folder of positives, whose images are read when they are asked for.

    folder, settings: as they were written. captions: generated captions by image id.
    sources: image id and caption of each generated image, in the order of `images`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.settings = folder, _settings(folder)
        self.captions: dict[str, list[str]] = {}
        self.sources: list[tuple[str, str]] = []
        self._digest = hashlib.blake2b(json.dumps(self.settings, sort_keys=True).encode(), digest_size=16)
        for path in _shards(folder):
            for positive in _rows(path):
                self._digest.update(json.dumps(positive[:4]).encode())
                if positive.kind == CAPTION:
                    self.captions.setdefault(positive.id, []).append(str(positive.caption))
                else:
                    self.sources.append((positive.id, str(positive.source_caption)))
            self._digest.update(_content_digest(path).encode())

    @property
    def fingerprint(self) -> str:
        """Digest of the settings, the captions, and the images with their sources."""
        return self._digest.hexdigest()

    def images(self) -> Iterator[InputImage]:
        """The generated images, one at a time.

        Raises:
            FileError: a shard is damaged.
        """
        for path in _shards(self.folder):
            for image_id, image in _images(path):
                yield InputImage.of(image, f"generated image of {image_id!r}")


def read_positives(folder: Path) -> Positives:
    """The positives in a folder that `capeval augment` made.

    Raises:
        FileError: it is none, or a shard is damaged.
    """
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise FileError(file_problem(folder, found, "pass a folder that `capeval augment` made"))
    if not _shards(folder):
        found = "holds no positives (positives-captions-00000.parquet ...)"
        raise FileError(file_problem(folder, found, "pass a folder that `capeval augment` made"))
    return Positives(folder)


def shard_bytes(positives: Sequence[Positive], metadata: Mapping[str, str] | None = None) -> memoryview:
    """The content of a shard of positives; `metadata` are texts that its schema carries."""
    table = pa.Table.from_pylist([positive._asdict() for positive in positives], SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, row_group_size=_AT_ONCE, **_FORM)
    return memoryview(sink.getvalue())


def _shards(folder: Path) -> list[Path]:
    """The shards of a folder, those of captions first, in the order of their numbers."""
    found = [(_SHARD.fullmatch(path.name), path) for path in folder.iterdir()]
    named = [(named[1], int(named[2]), path) for named, path in found if named]
    return [path for _, _, path in sorted(named)]


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        fix = "make the positives again, or write the file again"
        raise FileError(file_problem(path, f"cannot be read ({error})", fix)) from error


def open_shard(file: Path | pa.NativeFile) -> pq.ParquetFile:
    """A shard whose columns and number of rows are checked; no row is read.

    Raises:
        pa.ArrowException, OSError: it is no Parquet file. ValueError: columns are missing or of other types,
            or there are too many rows.
    """
    shard = pq.ParquetFile(file, page_checksum_verification=True)
    found = shard.schema_arrow
    if missing := [name for name in SCHEMA.names if name not in found.names]:
        raise ValueError(f"no columns {', '.join(sorted(missing))}")
    for one in SCHEMA:
        form = found.field(one.name).type
        if form not in (one.type, _LARGE[one.type]):
            raise ValueError(f"its column {one.name} is of type {form}, not {one.type}")
    groups = (shard.metadata.row_group(i).num_rows for i in range(shard.num_row_groups))
    if (rows := max(shard.metadata.num_rows, sum(groups))) > MOST_ROWS:
        raise ValueError(f"it has {rows:,} rows, and a shard at most {MOST_ROWS:,}")
    return shard


def _content_digest(path: Path) -> str:
    """Digest of the content of a shard: the one that it carries, else that of its images."""
    with _as_file_error(path):
        note = (open_shard(path).schema_arrow.metadata or {}).get(NOTE)
        if note is not None:
            return str(json.loads(note)["digest"])
    digest = hashlib.blake2b(digest_size=16)
    for _, image in _images(path):
        digest.update(hashlib.blake2b(image, digest_size=16).digest())
    return digest.hexdigest()


def _images(path: Path) -> Iterator[tuple[str, bytes]]:
    """Image id and content of each generated image of a shard."""
    number = 0
    with _as_file_error(path):
        file = open_shard(path)
        for batch in file.iter_batches(_AT_ONCE, columns=["kind", "id", "image"]):
            for row in batch.to_pylist():
                if row["kind"] == IMAGE and not row["image"]:
                    raise ValueError(f"row {number} has no image")
                if row["kind"] == IMAGE:
                    yield row["id"], row["image"]
                number += 1


def _rows(path: Path) -> list[Positive]:
    """The positives of a shard without their images."""
    with _as_file_error(path):
        rows = [Positive(**row) for row in open_shard(path).read(_TEXTS).to_pylist()]
    for number, row in enumerate(rows):
        needed = {CAPTION: row.caption, IMAGE: row.source_caption}
        if row.kind not in needed or not str(needed[row.kind] or "").strip() or row.id is None:
            found = f"{row.kind!r} without its caption" if row.kind in needed else f"of kind {row.kind!r}"
            fix = "a positive is a generated caption, or an image with its source caption"
            raise FileError(file_problem(path, found, fix, index=f"row {number}", verb="is"))
    return rows


@contextmanager
def _as_file_error(path: Path) -> Iterator[None]:
    """Turn what reading Parquet raises into FileError; what is no regular file is not opened."""
    try:
        if not path.is_file():
            raise ValueError("it is no regular file")
        yield
    except FileError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        found = f"is damaged or no shard of positives ({' '.join(str(error).split())})"
        fix = "delete it and run `capeval augment` again"
        raise FileError(file_problem(path, found, fix)) from error


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
