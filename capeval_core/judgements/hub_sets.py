"""Judged sets from Hub repositories that hold them with their pictures, written in this package's form."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from capeval_core.errors import file_error
from capeval_core.fetching import Item, Wishes, tell
from capeval_core.judgements.sets import REFERENCES, SetEntry
from capeval_core.kept import cache_home, whole_folder
from capeval_core.weights.catalogue import ReleaseFile
from capeval_core.weights.download import DownloadError
from capeval_core.weights.folder import file_checksum
from capeval_core.weights.hub import download
from capeval_core.weights.lock import HUB, LOCK, LockedFile, compare_and_note, write_lock

IMAGES = "images"
"""Folder of a fetched set's pictures."""
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
    files = [ReleaseFile(repository, [f"{HUB}datasets/{repository}"], entry.hub.get("size"))]
    home = cache_home() / "sets" / entry.name

    def get(wishes: Wishes) -> Path:
        return _fetch_set(entry, wishes)

    return Item(
        entry.title, entry.hub.get("licence"), files[0].addresses[0], files, fetched_set(entry), home, get
    )


def fetched_set(entry: SetEntry) -> Path | None:
    """The folder of a set that was fetched, the newest; None where it was not."""
    folders = [path.parent for path in (cache_home() / "sets" / entry.name).glob(f"*/{LOCK}")]
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def _fetch_set(entry: SetEntry, wishes: Wishes) -> Path:
    hub = entry.hub
    repository = hub["repository"]

    def unavailable(name: str, why: str) -> Exception:
        return DownloadError(f"{entry.title}: {HUB}datasets/{name} could not be loaded ({why})")

    def patterns(folder: Path) -> list[str]:
        return [pattern for split in hub["files"].values() for pattern in _patterns(folder, hub, split)]

    what = f"the data set {repository!r}"
    folder = download(repository, what, ["README.md"], patterns, error=unavailable, kind="dataset")
    target = cache_home() / "sets" / entry.name / folder.name[:16]
    shards = sorted({path for pattern in patterns(folder) for path in folder.glob(pattern)})
    address = f"{HUB}datasets/{repository}/tree/{folder.name}"
    files = [
        LockedFile(f"{repository}/{path.relative_to(folder).as_posix()}", address, file_checksum(path))
        for path in shards
    ]
    compare_and_note(files, wishes)
    if (target / LOCK).is_file() and not wishes.update:
        return target
    with whole_folder(target) as partial:
        (partial / IMAGES).mkdir()
        digests = dict[str, str]()
        for name, split in hub["files"].items():
            paths = sorted(
                {path for pattern in _patterns(folder, hub, split) for path in folder.glob(pattern)}
            )
            if not paths:
                raise file_error(folder, f"has no rows of the split {split!r}", f"look at {address}")
            _WRITERS[entry.name](partial / name, list(_rows(paths, partial / IMAGES, digests)))
        write_lock(partial / LOCK, files)
    tell(f"fetched {entry.title} from {address} (licence: {entry.hub.get('licence', 'not stated')})")
    return target


def _patterns(folder: Path, hub: Mapping[str, Any], split: str) -> list[str]:
    """Where the shards of a split lie, as the card of the repository says, else as `push_to_hub` writes."""
    from huggingface_hub import metadata_load

    config = hub.get("config", "default")
    card = folder / "README.md"
    content = (metadata_load(card) if card.is_file() else None) or {}
    found = []
    for one in content.get("configs") or []:
        if one.get("config_name") == config:
            for files in one.get("data_files") or []:
                # LongCap-Arena's splits are called `dci_test.desc`.
                if isinstance(files, dict) and str(files.get("split", "")).endswith(split):
                    paths = files["path"]
                    found += [paths] if isinstance(paths, str) else list(paths)
    usual = "data" if config == "default" else config
    return [str(path) for path in found] or [f"{usual}/*{split}-*.parquet"]


def _rows(paths: Sequence[Path], images: Path, digests: dict[str, str]) -> Iterator[Row]:
    """The rows of shards, their pictures written into a folder; digests: of pictures by their names."""
    for path in paths:
        try:
            shard = pq.ParquetFile(path)
            names = {
                what: _column(path, shard.schema_arrow.names, what) for what in _COLUMNS if what != "name"
            }
            named = next((name for name in _COLUMNS["name"] if name in shard.schema_arrow.names), None)
            columns = [*names.values(), *([named] if named else [])]
            for batch in shard.iter_batches(_BATCH, columns=columns):
                for row in batch.to_pylist():
                    picture = row[names["image"]] or {}
                    name = row[named] if named else picture.get("path")
                    yield {
                        "image": _write_picture(path, images, str(name or ""), picture.get("bytes"), digests),
                        "candidate": row[names["candidate"]],
                        "references": _texts(row[names["references"]]),
                        "rating": row[names["rating"]],
                    }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise file_error(path, f"cannot be read ({error})", "fetch it with --update") from error


def _column(path: Path, names: Sequence[str], what: str) -> str:
    found = next((name for name in _COLUMNS[what] if name in names), None)
    if found is None:
        raise file_error(
            path, f"has no column of the {what} ({', '.join(_COLUMNS[what])})", f"it has {names}"
        )
    return found


def _write_picture(path: Path, images: Path, name: str, content: Any, digests: dict[str, str]) -> str:
    """The name of a picture, which is written once; others of the same name are named by their content."""
    if not isinstance(content, bytes):
        raise file_error(path, "holds a row without a picture", "the repository changed: report it")
    suffix = ".png" if content.startswith(b"\x89PNG") else ".jpg"
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    stated = Path(name).name  # never a path that leads elsewhere
    if not stated:
        stated = digest
    if Path(stated).suffix.lower() not in (".jpg", ".jpeg", ".png"):
        stated += suffix
    if digests.setdefault(stated, digest) != digest:
        stated = f"{digest}{suffix}"
    if not (images / stated).exists():
        (images / stated).write_bytes(content)
    return stated


def _texts(references: Any) -> list[str]:
    """References as a list, which some repositories write as Python does."""
    if isinstance(references, str):
        references = ast.literal_eval(references) if references.startswith("[") else [references]
    return [str(text) for text in references]


# writers, of this package's forms


def _write_lines(path: Path, rows: Sequence[Row]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _write_expert(path: Path, rows: Sequence[Row]) -> None:
    """Rows of one rating each, together by image and candidate."""
    ratings: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        ratings.setdefault((row["image"], row["candidate"]), []).append(row["rating"])
    keys = ("image", "candidate", "ratings")
    _write_lines(path, [dict(zip(keys, (*pair, own), strict=True)) for pair, own in ratings.items()])
    _write_json(path.with_name(REFERENCES), {row["image"]: row["references"] for row in rows})


def _write_cf(path: Path, rows: Sequence[Row]) -> None:
    """Shares of yes votes, in place of their counts, which the repository does not have."""
    captions = {f"{number}": row["candidate"] for number, row in enumerate(rows)}
    lines = ["image,caption_id,n_yes,n_no"]
    for number, row in enumerate(rows):
        lines.append(f"{row['image']},{number},{row['rating']!r},{1 - row['rating']!r}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_json(path.with_name("captions.json"), captions)
    _write_json(path.with_name(REFERENCES), {row["image"]: row["references"] for row in rows})


def _write_composite(path: Path, rows: Sequence[Row]) -> None:
    """The candidate that is one of its image's references is named, so that it counts as none."""
    name = "composite"
    references: dict[str, Row] = {}
    for row in rows:
        own = references.setdefault(
            f"{name}/{row['image']}", {"references": row["references"], "human_candidate_index": None}
        )
        if row["candidate"] in own["references"]:
            own["human_candidate_index"] = own["references"].index(row["candidate"])
    keys = ("image", "candidate", "rating")
    _write_lines(path, [{"subset": name} | {key: row[key] for key in keys} for row in rows])
    _write_json(path.with_name(REFERENCES), references)


def _write_captions(path: Path, rows: Sequence[Row]) -> None:
    keys = ("image", "candidate", "references")
    _write_lines(path, [{key: row[key] for key in keys} | {"human_score": row["rating"]} for row in rows])


def _write_longcap(path: Path, rows: Sequence[Row]) -> None:
    named = {"image": "file_name", "candidate": "cand", "references": "refs", "rating": "score"}
    _write_lines(path, [{new: row[old] for old, new in named.items()} for row in rows])


_WRITERS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    "flickr8k_expert": _write_expert,
    "flickr8k_cf": _write_cf,
    "composite": _write_composite,
    "nebula": _write_captions,
    "polaris": _write_captions,
    "longcap_arena": _write_longcap,
}
