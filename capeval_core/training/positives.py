"""Generated captions and images that are additional positives of a training: a folder of Parquet shards.

Source: Sarto et al., "Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation",
CVPR 2023, https://arxiv.org/abs/2303.12112, sections 3 and 4.1.

A shard's metadata hold the settings that it was made with, what was dropped, and a digest of it all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, file_problem, warn
from capeval_core.inputs.images import InputImage
from capeval_core.kept import try_writing, write_whole

CAPTION, IMAGE = "caption", "image"
"""Kinds of positive."""
MADE_WITH = "made_with"
"""Of the settings: what is recorded, and may differ between the runs that fill a folder."""
_FORM: dict[str, Any] = {
    "compression": {"image": "none"},  # a PNG is compressed already
    "use_dictionary": False,  # pages without dictionaries have checksums
    "write_statistics": False,  # they would hold images twice
    "write_page_checksum": True,
}
_NOTE = b"capeval_positives"
_AT_ONCE = 64
"""Generated images in memory at once."""


class Positive(NamedTuple):
    """A generated caption of an image, or image (a PNG) of a caption; without either, the source of one."""

    kind: str
    id: str
    source_caption: str | None = None
    caption: str | None = None
    image: bytes | None = None


_SCHEMA = pa.schema(
    [
        pa.field(name, pa.binary() if name == "image" else pa.string(), nullable=name not in ("kind", "id"))
        for name in Positive._fields
    ]
)
Outcomes = dict[int, Positive | str]
"""What became of the sources of a shard, by their positions in it: a positive, or why it was dropped."""


class Positives:
    """The positives in a folder that `capeval augment` made; images are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._shards = sorted(folder.glob("positives-*.parquet"))
        if not self._shards:
            found = "is a file" if folder.exists() else "does not exist"
            if folder.is_dir():
                found = "holds no positives (positives-captions-00000.parquet ...)"
            raise FileError(file_problem(folder, found, "pass a folder that `capeval augment` made"))
        self.settings: dict[str, Any] = {}
        self.captions: list[tuple[str, str]] = []
        self.sources: list[tuple[str, str]] = []
        digest = hashlib.blake2b(digest_size=16)
        for path in self._shards:
            with _opened(path) as (file, note):
                rows = file.read(_SCHEMA.names[:-1]).to_pylist()
            digest.update(note["digest"].encode())
            for row in rows:
                self.settings.setdefault(f"{row['kind']}s", note["settings"])
                if row["kind"] == CAPTION:
                    self.captions.append((row["id"], row["caption"]))
                else:
                    self.sources.append((row["id"], row["source_caption"]))
        self.fingerprint = digest.hexdigest()

    def images(self) -> Iterator[InputImage]:
        """The generated images, one at a time. Raises FileError where a shard is damaged."""
        for path in self._shards:
            with _opened(path) as (file, _):
                for batch in file.iter_batches(_AT_ONCE, columns=["id", "image"]):
                    for row in batch.to_pylist():
                        if row["image"] is not None:
                            yield InputImage.of(row["image"], f"generated image of {row['id']!r}")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """A shard and its note. Raises FileError, of the block as well, where it is damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if file.schema_arrow.names != _SCHEMA.names:
                raise ValueError(f"its columns are {', '.join(file.schema_arrow.names)}")
            note = json.loads(file.schema_arrow.metadata[_NOTE])
            yield file, {name: note[name] for name in ("settings", "dropped", "digest")}
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        found = f"is damaged or no shard of positives ({' '.join(str(error).split())[:200]})"
        fix = "delete it and run `capeval augment` again"
        raise FileError(file_problem(path, found, fix)) from error


class PositiveShards:
    """The shards of one kind of positive in a folder, which may hold those of the other kind too."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind, self.settings = folder, kind, dict[str, Any]()
        if folder.exists() and not folder.is_dir():
            raise FileError(file_problem(folder, "is a file: choose a folder for the positives"))
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        visible = [name for name in names if not name.startswith(".")]
        if visible and not any(name.startswith("positives-") for name in visible):
            found = f"holds something else ({visible[0]})"
            raise FileError(file_problem(folder, found, "choose another folder for the positives"))
        try:
            try_writing(folder)
        except OSError as error:
            found = f"cannot be written ({error.strerror})"
            raise FileError(file_problem(folder, found, "choose another folder")) from error

    def begin(self, settings: Mapping[str, Any]) -> PositiveShards:
        """Make positives by these settings, which must be those of the shards that are there."""
        self.settings = json.loads(json.dumps(settings))
        for path in self.folder.glob(f"positives-{self.kind}s-*.parquet"):
            try:
                with _opened(path) as (_, note):
                    stored = note["settings"]
            except FileError:
                continue  # it is made again
            names = [name for name in {**stored, **self.settings} if name != MADE_WITH]
            pairs = [(name, stored.get(name), self.settings.get(name)) for name in names]
            if differing := [f"{name} {old!r}, now {new!r}" for name, old, new in pairs if old != new]:
                found = f"holds {self.kind}s by other settings ({'; '.join(differing)})"
                fix = "pass the same settings, or choose another folder"
                raise FileError(file_problem(self.folder, found, fix))
        return self

    def _path(self, number: int) -> Path:
        return self.folder / f"positives-{self.kind}s-{number:05d}.parquet"

    def read(self, number: int, sources: Sequence[Positive]) -> Outcomes:
        """What there is of a shard of these sources; one that is damaged is missing, with a warning."""
        path = self._path(number)
        if not path.exists():
            return {}
        try:
            with _opened(path) as (file, note):
                positives = [Positive(**row) for row in file.read().to_pylist()]
                if note.pop("digest") != _digest(note, positives):
                    raise ValueError("its digest is another one")
        except FileError as error:
            warn(f"{error}: what it held is generated again")
            return {}
        position = {source[:3]: i for i, source in enumerate(sources)}
        made = {position.get(positive[:3], -1): positive for positive in positives}
        if -1 in made:
            warn(f"{path} holds positives of other sources: what it held is generated again")
            return {}
        return {**made, **{int(i): reason for i, reason in note["dropped"].items()}}

    def write(self, number: int, outcomes: Outcomes) -> None:
        """Write a shard as a whole, which need not be complete. Raises OSError."""
        ordered = [(i, outcomes[i]) for i in sorted(outcomes)]
        positives = [made for _, made in ordered if isinstance(made, Positive)]
        dropped = {str(i): reason for i, reason in ordered if isinstance(reason, str)}
        note: dict[str, Any] = {"settings": self.settings, "dropped": dropped}
        note["digest"] = _digest(note, positives)
        table = pa.Table.from_pylist([positive._asdict() for positive in positives], _SCHEMA)
        sink = pa.BufferOutputStream()
        table = table.replace_schema_metadata({_NOTE: json.dumps(note, sort_keys=True)})
        pq.write_table(table, sink, row_group_size=_AT_ONCE, **_FORM)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(number), memoryview(sink.getvalue()))
        except OSError as error:
            found = f"{self.folder} cannot be written ({error.strerror or error}): what is there stays"
            raise OSError(f"{found}, and the same command goes on where there is room") from error


def _digest(note: Mapping[str, Any], positives: Sequence[Positive]) -> str:
    digest = hashlib.blake2b(json.dumps(note, sort_keys=True).encode(), digest_size=16)
    for positive in positives:
        image = positive.image or b""
        digest.update(json.dumps([*positive[:4], len(image)]).encode() + image)
    return digest.hexdigest()
