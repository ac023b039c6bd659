"""Which shards a run scores, and where the scores of each go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capeval_core._version import __version__
from capeval_core.errors import FileError, Problem, Problems
from capeval_core.integrations.shards.outputs import DamagedError, read_note
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.readers import stem_of
from capeval_core.integrations.shards.shard import ShardResult, other_scores

MANIFEST = "manifest.json"
_OF_ONE_RUN = ("signature", "skipped", "scored")
_AT_ONCE = 16  # files whose notes are read together: object stores answer slowly, but many at a time


@dataclass(frozen=True)
class PlannedShard:
    """Addresses of a shard and of the file for its scores."""

    source: str
    target: str


def plan_shards(inputs: Sequence[str], output: str) -> list[PlannedShard]:
    """The shards that patterns match, by name, each with its target in the folder `output`.

    Args:
        inputs: paths or addresses of fsspec, with `*`, `?`, `[...]` and `**`.
        output: path or address of a folder, which need not be there.

    Raises:
        ValueError: a pattern matches no file; two shards would have one target; the output folder is that of
            a shard, or a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.tar", "a.parquet"):
    ...         _ = Path(folder, name).write_bytes(b"")
    ...     [shard.target for shard in plan_shards([f"{folder}/*"], "memory://bucket/out")]
    ['memory://bucket/out/a.parquet', 'memory://bucket/out/b.parquet']
    """
    folder, problems = _output_folder(output), Problems()
    if folder.is_local and Path(folder.path).exists() and not Path(folder.path).is_dir():
        problems.add(Problem("output", None, "a file", "pass a folder", "is", output))
    planned: dict[str, PlannedShard] = {}
    for pattern in inputs:
        sources = _files(Place.of("input", pattern))
        if not sources:
            problems.add(Problem("input", None, "no file matches", "check the path", "", pattern))
        for source in sources:
            target = folder.child(stem_of(source.name) + ".parquet")
            if source.parent.is_same(folder):
                found, fix = "the folder of the input", "choose another folder for the scores"
                problems.add(Problem("output", None, found, fix, "is", output))
                break
            other = planned.setdefault(target.address, PlannedShard(source.address, target.address))
            if other.source != source.address:
                found = f"{other.source} and {source.address} would both go to {target.name}"
                problems.add(Problem("input", None, found, "give them other names, or run twice", ""))
    problems.raise_if_any()
    return [planned[target] for target in sorted(planned)]


def refuse_other_scores(
    shards: Sequence[PlannedShard], settings: Mapping[str, Any], images: str | None
) -> None:
    """Raise FileError for targets that hold scores of other settings, or something else; others pass.

    images: folder of images; None: that of each shard.
    """

    def problem_of(shard: PlannedShard) -> Problem | None:
        place = Place.of("output", shard.target)
        folder = Place.of("input", shard.source).parent if images is None else Place.of("images", images)
        try:
            stored, now = read_note(place), {**settings, "images": folder.identity}
            return other_scores(place, stored, now, "choose another --output")
        except DamagedError:
            return None  # it is scored again
        except FileError as error:
            return next(iter(error.problems))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        Problems(problem for problem in threads.map(problem_of, shards) if problem).raise_if_any()


def existing(shards: Sequence[PlannedShard], output: str) -> list[PlannedShard]:
    """The shards whose target is there, whatever it holds."""
    folder = _output_folder(output)
    if not folder.filesystem.isdir(folder.path):
        return []
    names = set(folder.names())
    return [shard for shard in shards if shard.target.rpartition("/")[2] in names]


def write_manifest(
    output: str, results: Sequence[ShardResult], failures: dict[str, str], name: str = MANIFEST
) -> str:
    """Write a file about a run into the output folder, whole or not at all, and return its address.

    It lists every shard with counts, columns and checksum, the shards without scores and why, totals and
    signature.
    """
    content: dict[str, Any] = {
        "capeval": __version__,
        "signature": results[0].signature if results else None,
        "rows": sum(result.rows for result in results),
        "failed": sum(result.failed for result in results),
        "truncated": sum(result.truncated for result in results),
        "shards": [
            {name: value for name, value in asdict(result).items() if name not in _OF_ONE_RUN}
            for result in sorted(results, key=lambda result: result.target)
        ],
        "without_scores": failures,
    }
    place = _output_folder(output).child(name)
    with place.whole() as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return place.address


def _output_folder(output: str) -> Place:
    """The output folder; a local one by its whole path, since workers may have other current folders."""
    place = Place.of("output", output)
    return Place(place.path, place.filesystem, place.path) if place.is_local else place


def _files(pattern: Place) -> list[Place]:
    """The files that a pattern matches, by path; hidden ones, such as unfinished outputs, are none."""
    filesystem = pattern.filesystem
    try:
        if filesystem.isfile(pattern.path):  # whose name may have brackets
            found = {pattern.path: {"type": "file"}}
        else:
            found = filesystem.glob(pattern.path, detail=True)
    except FileNotFoundError:
        return []
    except Exception as error:  # whatever the store's client raises
        raise pattern.unreadable(error) from error
    paths = [
        path
        for path, one in found.items()
        if (one["type"] == "file" or (one.get("islink") and filesystem.isfile(path)))
        and not path.rpartition("/")[2].startswith(".")
    ]
    whole = str if pattern.is_local else filesystem.unstrip_protocol
    return [Place(whole(path), filesystem, path) for path in sorted(paths)]
