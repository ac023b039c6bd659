"""Plans of runs: which shards, with which targets and settings, before anything is scored."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from capeval_core.errors import Problem, Problems, file_error, noting, warn, wrong_option
from capeval_core.integrations.shards.outputs import NOTE, DamagedError, read_note
from capeval_core.integrations.shards.places import Place, files_in
from capeval_core.integrations.shards.readers import FORMATS, is_format, stem_of
from capeval_core.integrations.shards.scorer import BatchScorer

PlannedShard = tuple[str, tuple[str, ...]]
"""Addresses of a shard, and of the file for its scores by each metric."""


def plan_shards(inputs: Sequence[str], output: str, metrics: Sequence[str] = ("",)) -> list[PlannedShard]:
    """The shards that paths, folders and patterns mean, by name, each with its targets.

    metrics: the folders in `output` of several metrics.
    """
    plans = []
    for metric in metrics:
        folder = f"{output.rstrip('/')}/{metric}" if metric else output
        plans.append(_planned(inputs, folder))
    shards: list[PlannedShard] = []
    for pairs in zip(*plans, strict=True):
        source = pairs[0][0]  # of the same shard in each plan: all are sorted by the same names
        shards.append((source, tuple(target for _, target in pairs)))
    return shards


def _planned(inputs: Sequence[str], output: str) -> list[tuple[str, str]]:
    """Sources and targets in one folder, by the target's name."""
    folder = Place.of("output", output)
    problems = Problems()
    if folder.is_local and Path(folder.path).is_file():
        problems.add(wrong_option("output", output, "is a file", "pass a folder"))
    source_of: dict[str, str] = {}  # by target
    for pattern in inputs:
        with noting(problems):
            sources = _sources(pattern)
            for source in sources:
                # `00000.parquet` would be its own target, and scores would be shards of the next run.
                if source.parent.identity == folder.identity:
                    fix = "choose another folder for the scores"
                    raise wrong_option("output", output, "is the folder of the input", fix)
            for source in sources:
                target = folder.child(stem_of(source.name) + ".parquet")
                first = source_of.setdefault(target.address, source.address)
                # One shard may be named twice, by a pattern and by its path; two must not share a target.
                if first != source.address:
                    problem = f"{first} and {source.address} would both go to {target.name}"
                    problems.add(
                        Problem("input", problem, "give them other names, or run twice", sentence=True)
                    )
    problems.raise_if_any()
    return [(source_of[target], target) for target in sorted(source_of)]


def _sources(pattern: str) -> list[Place]:
    """The files that a path, a folder or a pattern with `*`, `?`, `[...]`, `**` or `{...}` means, by name.

    Raises a problem for a file of a range `{00000..00041}.tar` that is not there: its rows would be lost.
    """
    place = Place.of("input", pattern)
    if place.is_folder():
        # By their format: img2dataset writes `00000_stats.json` beside each tar. `._00000.tar` is of macOS.
        sources = [file for file in files_in(place) if is_format(file.name) and file.name[0] != "."]
        if not sources:
            ends = ", ".join(FORMATS)
            raise wrong_option("input", pattern, "is a folder without shards", f"one ends in {ends}")
        return sources
    # As it is written before braces are read, since a file's own name may have some.
    sources = _matching(place)
    if sources:
        return sources
    problems = Problems()
    folders: dict[str, dict[str, Place]] = {}  # files by path, listed once: a range may name thousands
    for address in expanded_braces(pattern):
        place = Place.of("input", address)
        matching: list[Place] = []
        if glob.has_magic(place.path):
            matching = _matching(place)
        else:
            folder = place.parent
            if folder.address not in folders:
                folders[folder.address] = {file.path: file for file in files_in(folder)}
            files = folders[folder.address]
            if place.path in files:
                matching = [files[place.path]]
        if not matching:
            named = "" if address == pattern else f" {address}"
            problems.add(
                wrong_option("input", pattern, f"no file matches{named}", "check the path", sentence=True)
            )
        sources += matching
    problems.raise_if_any()
    return sources


def _matching(place: Place) -> list[Place]:
    # Names that begin with a dot: unfinished files of another run, and what macOS puts beside files.
    return [file for file in place.matching() if file.name[0] != "."]


_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")


def expanded_braces(pattern: str) -> list[str]:
    """The names that braces stand for, as in a shell and in webdataset.

    >>> expanded_braces("{a,b}-{00008..00010}.tar")[1:4]
    ['a-00009.tar', 'a-00010.tar', 'b-00008.tar']
    """
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    first, last, listed = braces.groups()
    if listed is not None:
        values = listed.split(",")
    else:
        step = 1 if int(first) <= int(last) else -1
        values = []
        for number in range(int(first), int(last) + step, step):
            values.append(str(number).zfill(len(first)))  # `{00008..00010}` keeps its zeros, as in a shell
    before = pattern[: braces.start()]
    after = pattern[braces.end() :]
    names = []
    for value in values:
        names += expanded_braces(f"{before}{value}{after}")
    return names


def images_folder(images: str | PathLike[str]) -> Place:
    """The folder of images that a user names; FileError where this machine has no such folder."""
    place = Place.of("images", images)
    if place.is_local and not Path(place.path).is_dir():
        raise file_error(place.address, "there is no such folder", "check the path", sentence=True)
    return place


def settings_of(scorer: BatchScorer, columns: Mapping[str, str] | None) -> dict[str, Any]:
    """Everything that scores depend on besides the shard and its images; it opens the weights."""
    # `empty` by itself: it changes which captions get a score, and a signature does not hold it.
    return {"columns": dict(columns or {}), "empty": str(scorer.options.empty), "signature": scorer.signature}


def is_same(target: Place, note: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """True for a target of these settings; FileError if it has scores of others."""
    differences = []
    for name, value in settings.items():
        # The folder of images counts only where a row has a path in it.
        counts = name != "images" or note["looked_up"]
        if counts and note.get(name) != value:
            differences.append(f"{name}: {note.get(name)!r} there, {value!r} now")
    # Without any score nothing is lost: a wrong `--images`, once corrected, must not need a new output.
    if differences and note["failed"] < note["rows"]:
        problem = f"holds other scores ({'; '.join(differences)})"
        raise file_error(target.address, problem, "choose another output, or delete it")
    return not differences


def note_of_target(target: Place, key: bytes = NOTE) -> dict[str, Any] | None:
    """The note of a target that is there and whole; a damaged one is warned of."""
    with target.reading():
        exists = target.filesystem.exists(target.path)
    if not exists:
        return None
    # All pages, whose checksums are compared: a finished shard is skipped for good, so a flipped bit in its
    # scores would stay.
    try:
        return read_note(target, key, verify_rows=True)
    except DamagedError as error:
        warn(f"{target.address} {error.problems[0].text}: it is made again")
        return None


def refuse_other_scores(
    shards: Sequence[PlannedShard], settings: Sequence[Mapping[str, Any]], images: str | None
) -> int:
    """The number of shards with all targets; FileError for those of other settings, or of something else.

    settings: of each metric.
    """
    problems = Problems()
    finished = len(shards)
    for number, settings_of_metric in enumerate(settings):
        pairs = [(source, targets[number]) for source, targets in shards]
        # Noted and not raised, so that the targets of all metrics are named at once.
        with noting(problems):
            # The least of all metrics: a shard that lacks one of its targets is not finished.
            finished = min(finished, _refuse_other_scores(pairs, settings_of_metric, images))
    problems.raise_if_any()
    return finished


def _refuse_other_scores(
    pairs: Sequence[tuple[str, str]], settings: Mapping[str, Any], images: str | None
) -> int:
    """The number of existing targets of one metric."""
    if not pairs:
        return 0
    # One listing instead of a request for each of thousands of targets: object stores answer slowly.
    names = {file.name for file in files_in(Place.of("output", pairs[0][1]).parent)}
    written = [pair for pair in pairs if pair[1].rpartition("/")[2] in names]

    def problems_of(pair: tuple[str, str]) -> Problems:
        problems = Problems()
        target = Place.of("output", pair[1])
        folder = Place.of("input", pair[0]).parent if images is None else Place.of("images", images)
        with noting(problems), suppress(DamagedError):  # which is scored again
            is_same(target, read_note(target), {**settings, "images": folder.identity})
        return problems

    with ThreadPoolExecutor(16) as threads:  # object stores answer slowly
        all_problems = Problems()
        for problems in threads.map(problems_of, written):
            all_problems += problems
    all_problems.raise_if_any()
    return len(written)
