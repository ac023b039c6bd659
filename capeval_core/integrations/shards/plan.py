"""Plans of runs: which shards, with which targets and settings, before anything is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from capeval_core.errors import Problem, Problems, file_error, noting, warn, wrong_option
from capeval_core.integrations.shards.outputs import DamagedError, read_note
from capeval_core.integrations.shards.places import Place, files_in
from capeval_core.integrations.shards.readers import stem_of
from capeval_core.integrations.shards.scorer import BatchScorer

PlannedShard = tuple[str, str]
"""Addresses of a shard and of the file for its scores."""


def plan_shards(inputs: Sequence[str], output: str) -> list[PlannedShard]:
    """The shards that patterns (with `*`, `?`, `[...]`, `**`) match, by name, each with its target."""
    folder = Place.of("output", output)
    problems = Problems()
    if folder.is_local and Path(folder.path).is_file():
        problems.add(wrong_option("output", output, "is a file", "pass a folder"))
    source_of: dict[str, str] = {}  # by target
    for pattern in inputs:
        sources = [file for file in Place.of("input", pattern).matching() if file.name[0] != "."]
        if not sources:
            problems.add(wrong_option("input", pattern, "no file matches", "check the path"))
        if any(source.parent.identity == folder.identity for source in sources):
            fix = "choose another folder for the scores"
            problems.add(wrong_option("output", output, "is the folder of the input", fix))
        for source in sources:
            target = folder.child(stem_of(source.name) + ".parquet")
            first = source_of.setdefault(target.address, source.address)
            if first != source.address:
                found = f"{first} and {source.address} would both go to {target.name}"
                problems.add(Problem("input", found, "give them other names, or run twice"))
    problems.raise_if_any()
    return [(source_of[target], target) for target in sorted(source_of)]


def images_folder(images: str | PathLike[str]) -> Place:
    """The folder of images that a user names; FileError where this machine has no such folder."""
    place = Place.of("images", images)
    if place.is_local and not Path(place.path).is_dir():
        raise file_error(place.address, "there is no such folder", "check the path")
    return place


def settings_of(scorer: BatchScorer, columns: Mapping[str, str] | None) -> dict[str, Any]:
    """What scores depend on beside the shard and its images; it opens the weights."""
    return {"columns": dict(columns or {}), "empty": str(scorer.options.empty), "signature": scorer.signature}


def is_same(target: Place, note: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether a target is of these settings; FileError if it has scores of others."""
    differences = []
    for name, value in settings.items():
        # The folder of images counts only where a row has a path in it.
        counts = name != "images" or note["looked_up"]
        if counts and note.get(name) != value:
            differences.append(f"{name}: {note.get(name)!r} there, {value!r} now")
    if differences and note["failed"] < note["rows"]:
        found = f"holds other scores ({'; '.join(differences)})"
        raise file_error(target.address, found, "choose another output, or delete it")
    return not differences


def note_of_target(target: Place) -> dict[str, Any] | None:
    """The note of a target that is there and whole; a damaged one is warned of."""
    with target.reading():
        exists = target.filesystem.exists(target.path)
    if not exists:
        return None
    try:
        return read_note(target, whole=True)
    except DamagedError as error:
        warn(f"{target.address} {error.problems[0].found}: it is made again")
        return None


def refuse_other_scores(
    shards: Sequence[PlannedShard], output: str, settings: Mapping[str, Any], images: str | None
) -> int:
    """How many targets are there; FileError for those of other settings, or of something else."""
    names = {file.name for file in files_in(Place.of("output", output))}
    written = [shard for shard in shards if shard[1].rpartition("/")[2] in names]

    def problems_of(shard: PlannedShard) -> Problems:
        problems = Problems()
        target = Place.of("output", shard[1])
        folder = Place.of("input", shard[0]).parent if images is None else Place.of("images", images)
        with noting(problems), suppress(DamagedError):  # which is scored again
            is_same(target, read_note(target), {**settings, "images": folder.identity})
        return problems

    with ThreadPoolExecutor(16) as threads:  # object stores answer slowly
        problems_by_shard = threads.map(problems_of, written)
        Problems(problem for problems in problems_by_shard for problem in problems).raise_if_any()
    return len(written)
