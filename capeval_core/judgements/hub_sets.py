"""Judged sets from Hub repositories that hold them with their pictures, written in this package's form."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from yaml import YAMLError

from capeval_core.errors import FileError, file_error
from capeval_core.fetching import Item, Wishes, tell
from capeval_core.judgements.sets import REFERENCES, SetEntry
from capeval_core.store import cache_home, whole_folder
from capeval_core.weights.catalogue import ReleaseFile
from capeval_core.weights.download import DownloadError
from capeval_core.weights.folder import file_checksum
from capeval_core.weights.hub import download
from capeval_core.weights.lock import HUB, LOCK, LockedFile, compare, note_files, write_lock

IMAGES = "images"
"""Folder of a fetched set's pictures."""
CONVERTED = "refs/convert/parquet"
"""Branch on which the Hub keeps data sets of any form as Parquet files, `CONFIG/SPLIT/0000.parquet`."""
_COLUMNS = {
    "image": ("img", "image"),
    "name": ("file_name", "imgid", "id"),
    "candidate": ("cand", "mt", "caption"),
    "references": ("refs", "references"),
    "rating": ("human_score", "score"),
}
"""What a row holds, and what it is called in one repository or another."""
_BATCH = 256  # rows whose pictures are in memory
Row = dict[str, Any]


def set_item(entry: SetEntry) -> Item:
    """The row of a plan of a judged set."""
    repository = entry.hub["repository"]
    address = f"{HUB}datasets/{repository}"
    files = [ReleaseFile(repository, [address], entry.hub.get("size"))]
    home = cache_home() / "sets" / entry.name
    licence = entry.hub.get("licence")
    return Item(entry.title, licence, address, files, fetched_set(entry), home, partial(_fetch_set, entry))


def fetched_set(entry: SetEntry) -> Path | None:
    """The folder of a set that was fetched, the newest; None where it was not."""
    folders = [path.parent for path in (cache_home() / "sets" / entry.name).glob(f"*/{LOCK}")]
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def _fetch_set(entry: SetEntry, wishes: Wishes) -> Path:
    repository = entry.hub["repository"]
    splits: Mapping[str, str] = entry.hub["files"]

    def unavailable(name: str, why: str) -> Exception:
        problem = f"{entry.title}: {HUB}datasets/{name} could not be loaded ({why})"
        fix = (
            f"fetch it where there is a network and copy {cache_home() / 'sets'}, or name a folder by --data"
        )
        return DownloadError(f"{problem}: {fix}")

    def patterns(folder: Path) -> list[str]:
        names: list[str] = []
        for split in splits.values():
            names += _patterns(folder, entry, split)
        return names

    name = f"{repository}@{CONVERTED}" if entry.hub.get("converted") else repository
    what = f"the data set {repository!r}"
    folder = download(name, what, ["README.md"], patterns, error=unavailable, kind="dataset")
    address = f"{HUB}datasets/{repository}/tree/{folder.name}"
    shards: dict[str, list[Path]] = {}
    distinct: set[Path] = set()  # two files may be made of one split
    for file, split in splits.items():
        shards[file] = _shards(folder, entry, split)
        distinct.update(shards[file])
    files = []
    for path in sorted(distinct):
        name = f"{repository}/{path.relative_to(folder).as_posix()}"
        files.append(LockedFile(name, address, file_checksum(path)))
    # Before anything is written: other bytes than the ones known of this set would give other tables.
    compare(files, {}, wishes)
    note_files(files, wishes)
    # The folder in the Hub's cache is named after the commit: another one is another set.
    target = cache_home() / "sets" / entry.name / folder.name[:16]
    if (target / LOCK).is_file() and not wishes.update:
        return target
    with whole_folder(target) as unfinished:
        (unfinished / IMAGES).mkdir()
        digests = dict[str, str]()
        for file, paths in shards.items():
            rows = list(_rows(paths, unfinished / IMAGES, digests))
            _WRITERS[entry.name](unfinished / file, rows)
        write_lock(unfinished / LOCK, files)  # at last, since `fetched_set` takes it for a whole set
    tell(f"fetched {entry.title} from {address} (licence: {entry.hub.get('licence', 'not stated')})")
    return target


# shards


def _shards(folder: Path, entry: SetEntry, split: str) -> list[Path]:
    """The files of a split, of which there is one at least."""
    paths: set[Path] = set()
    for pattern in _patterns(folder, entry, split):
        paths.update(folder.glob(pattern))
    if not paths:
        repository = entry.hub["repository"]
        problem = f"has no rows of the split {split!r} of {repository}"
        raise file_error(folder, problem, "the repository changed: report it, or name a folder by --data")
    return sorted(paths)


def _patterns(folder: Path, entry: SetEntry, split: str) -> list[str]:
    """Where the shards of a split lie, as the card of the repository says, else as `push_to_hub` writes."""
    config = entry.hub.get("config", "default")
    if entry.hub.get("converted"):
        return [f"{config}/{split}/*.parquet"]
    card = folder / "README.md"
    try:
        patterns = _patterns_of_card(card, config, split) if card.is_file() else []
    except (ValueError, TypeError, AttributeError, KeyError, YAMLError) as error:
        raise file_error(card, f"does not say where its rows lie ({error})", "report it") from error
    for pattern in patterns:
        # The card is someone else's text: it must not have files of this machine read as rows.
        if pattern.startswith("/") or ".." in Path(pattern).parts:
            raise file_error(card, f"names files elsewhere ({pattern})", "do not use this repository")
    folder_name = "data" if config == "default" else config
    return patterns or [f"{folder_name}/*{split}-*.parquet"]


def _patterns_of_card(card: Path, config: str, split: str) -> list[str]:
    from huggingface_hub import metadata_load

    patterns: list[str] = []
    for described in (metadata_load(card) or {}).get("configs") or []:
        if described["config_name"] == config:
            for files in described["data_files"]:
                if files["split"] == split:
                    paths = files["path"]
                    patterns += [paths] if isinstance(paths, str) else paths
    return patterns


def _rows(paths: Sequence[Path], images: Path, digests: dict[str, str]) -> Iterator[Row]:
    """The rows of shards, their pictures written into a folder; digests: of pictures by their names."""
    for path in paths:
        try:
            shard = pq.ParquetFile(path)
            present = shard.schema_arrow.names
            image_column = _column(path, present, "image")
            candidate_column = _column(path, present, "candidate")
            references_column = _column(path, present, "references")
            rating_column = _column(path, present, "rating")
            columns = [image_column, candidate_column, references_column, rating_column]
            name_column = _present_column(present, "name")
            if name_column is not None:
                columns.append(name_column)
            # Only these columns: a batch of all others would be in memory as well.
            for batch in shard.iter_batches(_BATCH, columns=columns):
                for row in batch.to_pylist():
                    # `datasets` writes a picture as {"bytes": ..., "path": ...}.
                    picture = row[image_column] or {}
                    name = picture.get("path") if name_column is None else row[name_column]
                    yield {
                        "image": _write_picture(path, images, str(name or ""), picture.get("bytes"), digests),
                        "candidate": row[candidate_column],
                        "references": _texts(row[references_column]),
                        "rating": row[rating_column],
                    }
        except FileError:
            raise
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise file_error(path, f"cannot be read ({error})", "fetch it with --update") from error


def _column(path: Path, names: Sequence[str], what: str) -> str:
    column = _present_column(names, what)
    if column is None:
        problem = f"has no column of the {what} ({', '.join(_COLUMNS[what])})"
        raise file_error(path, problem, f"it has {names}")
    return column


def _present_column(names: Sequence[str], what: str) -> str | None:
    """The first name of `_COLUMNS` that a shard has."""
    for name in _COLUMNS[what]:
        if name in names:
            return name
    return None


def _write_picture(path: Path, images: Path, name: str, content: object, digests: dict[str, str]) -> str:
    """The name of a picture, which is written once; others of the same name are named by their content."""
    if not isinstance(content, bytes):
        raise file_error(path, "holds a row without a picture", "the repository changed: report it")
    suffix = ".png" if content.startswith(b"\x89PNG") else ".jpg"
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    file_name = Path(name).name or digest  # never a path that leads elsewhere
    if Path(file_name).suffix.lower() not in (".jpg", ".jpeg", ".png"):
        file_name += suffix
    if digests.setdefault(file_name, digest) != digest:
        file_name = f"{digest}{suffix}"
    if not (images / file_name).exists():
        (images / file_name).write_bytes(content)
    return file_name


def _texts(references: str | Sequence[object]) -> list[str]:
    """References as a list, which some repositories write as Python does; another text is one reference."""
    if isinstance(references, str):
        literal = None
        # These are what a caption raises that begins like Python, or nests brackets without end.
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            literal = ast.literal_eval(references)
        references = literal if isinstance(literal, list) else [references]
    return [str(text) for text in references]


# writers, of this package's forms


def _write_lines(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _write_expert(path: Path, rows: Sequence[Row]) -> None:
    """Rows of one rating each, together by image and candidate."""
    ratings: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        ratings.setdefault((row["image"], row["candidate"]), []).append(row["rating"])
    lines = []
    for (image, candidate), values in ratings.items():
        lines.append({"image": image, "candidate": candidate, "ratings": values})
    _write_lines(path, lines)
    _write_references(path, rows)


def _write_cf(path: Path, rows: Sequence[Row]) -> None:
    """Shares of yes votes, in place of their counts, which the repository does not have."""
    captions = {}
    lines = ["image,caption_id,n_yes,n_no"]
    for number, row in enumerate(rows):
        captions[f"{number}"] = row["candidate"]
        lines.append(f"{row['image']},{number},{row['rating']!r},{1 - row['rating']!r}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_json(path.with_name("captions.json"), captions)
    _write_references(path, rows)


def _write_references(path: Path, rows: Sequence[Row]) -> None:
    """The file of references next to the rows' own."""
    _write_json(path.with_name(REFERENCES), {row["image"]: row["references"] for row in rows})


def _write_composite(path: Path, rows: Sequence[Row]) -> None:
    """The candidate that is one of its image's references is named, so that it counts as none."""
    subset = "composite"  # the repository does not say which of the three
    references: dict[str, Row] = {}
    lines = []
    for row in rows:
        entry = {"references": row["references"], "human_candidate_index": None}
        entry = references.setdefault(f"{subset}/{row['image']}", entry)
        if row["candidate"] in entry["references"]:
            entry["human_candidate_index"] = entry["references"].index(row["candidate"])
        rating = row["rating"]
        lines.append(
            {"subset": subset, "image": row["image"], "candidate": row["candidate"], "rating": rating}
        )
    _write_lines(path, lines)
    _write_json(path.with_name(REFERENCES), references)


def _write_captions(path: Path, rows: Sequence[Row]) -> None:
    _write_renamed(path, rows, {"rating": "human_score"})


def _write_longcap(path: Path, rows: Sequence[Row]) -> None:
    names = {"image": "file_name", "candidate": "cand", "references": "refs", "rating": "score"}
    _write_renamed(path, rows, names)


def _write_renamed(path: Path, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    """Rows as they are, their fields called otherwise."""
    renamed_rows = []
    for row in rows:
        renamed_rows.append({names.get(key, key): value for key, value in row.items()})
    _write_lines(path, renamed_rows)


_WRITERS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    "flickr8k_expert": _write_expert,
    "flickr8k_cf": _write_cf,
    "composite": _write_composite,
    "nebula": _write_captions,
    "polaris": _write_captions,
    "longcap_arena": _write_longcap,
}
