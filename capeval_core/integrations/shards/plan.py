"""Which shards a run scores, and where the scores of each go."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capeval_core._version import __version__
from capeval_core.errors import FileError, Problem, Problems, file_problem
from capeval_core.integrations.shards.outputs import DamagedError, read_note
from capeval_core.integrations.shards.places import Place, is_partial
from capeval_core.integrations.shards.shard import ShardResult

MANIFEST = "manifest.json"
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
        output: path or address of a folder.

    Raises:
        ValueError: a pattern matches no file; two shards would have one target; the output folder is that of
            a shard, or a file.
    """
    folder = Place.of("output", output)
    problems = Problems()
    planned: dict[str, PlannedShard] = {}
    for pattern in inputs:
        place = Place.of("input", pattern)
        sources = _files(place)
        if not sources:
            problems.add(Problem("input", None, "no file matches", "check the path", "", pattern))
        for source in sources:
            name = source.name.partition(".")[0] + ".parquet"
            target = f"{output.rstrip('/') or '/'}/{name}"
            if _folder(source) == _folder(Place.of("output", target)):
                found, fix = "the folder of the input", "choose another folder for the scores"
                problems.add(Problem("output", None, found, fix, "is", output))
                break
            other = planned.setdefault(target, PlannedShard(source.address, target))
            if other.source != source.address:
                found = f"{other.source} and {source.address} would both go to {name}"
                problems.add(Problem("input", None, found, "give them other names, or run twice", ""))
    if folder.is_local and Path(folder.path).exists() and not Path(folder.path).is_dir():
        problems.add(Problem("output", None, "a file", "pass a folder", "is", output))
    problems.raise_if_any()
    return [planned[target] for target in sorted(planned)]


def refuse_other_scores(shards: Sequence[PlannedShard], signature: str) -> None:
    """Raise FileError for targets that hold scores of another signature, or something else; others pass."""

    def problem_of(shard: PlannedShard) -> Problem | None:
        place = Place.of("output", shard.target)
        try:
            found = read_note(place)["signature"]
        except DamagedError:
            return None  # it is scored again
        except FileError as error:
            return next(iter(error.problems))
        if found == signature:
            return None
        fix = f"this run's are {signature}: choose another --output"
        return file_problem(place.address, f"holds scores of {found}", fix)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        Problems(problem for problem in threads.map(problem_of, shards) if problem).raise_if_any()


def existing(shards: Sequence[PlannedShard], output: str) -> list[PlannedShard]:
    """The shards whose target is there, whatever it holds."""
    names = {place.name for place in _files(Place.of("output", f"{output.rstrip('/')}/*.parquet"))}
    return [shard for shard in shards if shard.target.rpartition("/")[2] in names]


def write_manifest(output: str, results: Sequence[ShardResult], failures: dict[str, str]) -> str:
    """Write `manifest.json` into the output folder, whole or not at all, and return its address.

    It lists every shard with counts and checksum, the shards without scores and why, totals and signature.
    """
    content: dict[str, Any] = {
        "capeval": __version__,
        "signature": results[0].signature if results else None,
        "rows": sum(result.rows for result in results),
        "failed": sum(result.failed for result in results),
        "truncated": sum(result.truncated for result in results),
        "shards": [
            {name: value for name, value in asdict(result).items() if name not in ("signature", "skipped")}
            for result in sorted(results, key=lambda result: result.target)
        ],
        "without_scores": failures,
    }
    place = Place.of("output", f"{output.rstrip('/')}/{MANIFEST}")
    with place.whole() as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return place.address


def _files(pattern: Place) -> list[Place]:
    """The files that a pattern matches, unfinished ones left out."""
    try:
        found = pattern.filesystem.glob(pattern.path, detail=True)
    except FileNotFoundError:
        return []
    except Exception as error:  # whatever the store's client raises
        raise pattern.unreadable(error) from error
    paths = sorted(path for path, info in found.items() if info["type"] == "file" and not is_partial(path))
    local = pattern.is_local
    return [
        Place(path if local else pattern.filesystem.unstrip_protocol(path), pattern.filesystem, path)
        for path in paths
    ]


def _folder(file: Place) -> tuple[type[Any], str]:
    """The folder of a file, such that equal ones compare equal."""
    folder = file.path.rpartition("/")[0]
    return type(file.filesystem), os.path.realpath(folder) if file.is_local else folder
