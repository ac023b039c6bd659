"""A folder of outputs: merged into one table, and checked for what is there twice, differs or is damaged."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import FileError, Problems, file_problem, wrong_option
from capeval_core.integrations.shards.outputs import (
    DamagedError,
    check_whole,
    metadata_of,
    read_batches,
    read_note,
    read_schema,
    whole_table,
)
from capeval_core.integrations.shards.places import Place
from capeval_core.limits import LIMITS
from capeval_core.writing import PARTIAL

MERGED = b"capeval_merged"
"""Key of a merged table's metadata: signature and number of shards."""
NAMED = 1000
"""Uids that are named at most where many come twice."""
_PARTS = 512  # most parts that hashes are sorted in
_ENTRY = np.dtype([("hash", "<i8"), ("shard", "<u4")])


def outputs_in(folder: str | PathLike[str]) -> list[Place]:
    """The Parquet files in a folder, by name; files that were not finished are none.

    Raises:
        FileError: there is no such folder, or no Parquet file in it.
    """
    place = Place.of("folder", folder)
    outputs = [place.child(name) for name in place.names() if name.endswith(".parquet") and name[0] != "."]
    if not outputs:
        fix = "pass the folder that shards were scored into"
        raise FileError(file_problem(place.address, "has no scores of shards (*.parquet)", fix))
    return outputs


def merge_shards(folder: str | PathLike[str], target: str | PathLike[str]) -> int:
    """Join the outputs of all shards in a folder into one Parquet table, and return its number of rows.

    Shards come in the order of their names, rows in that of their shard. Memory is that of some rows. Uids
    that come twice stay twice: `check_shards` names them. The target appears as a whole or not at all.

    Args:
        folder: outputs of `score_shard`, a path or an address of fsspec.
        target: the Parquet file to write, outside of the folder; a merged table that is there is replaced.

    Raises:
        ValueError: no outputs, one that is damaged or of another signature than the first, or a target that
            is something else or no `.parquet` file by its name.
        OSError: the target cannot be written.
    """
    outputs, end = outputs_in(folder), Place.of("target", target)
    if end.real.parent.is_same(outputs[0].parent):
        found = "in the folder of the shards, where it would count as one"
        raise wrong_option("target", end.address, found, "name a file elsewhere")
    if not end.name.endswith(".parquet"):
        raise wrong_option("target", end.address, "no table by its name", "end it in .parquet")
    if end.exists() and not _is_merged(end):
        raise wrong_option("target", end.address, "there, and no merged table", "name another file")
    problems = Problems()
    signatures: list[str] = []
    for output in outputs:
        try:
            signature = read_note(output)["signature"]
        except FileError as error:
            problems.extend(error.problems)
            continue
        signatures.append(signature)
        if signature != signatures[0]:
            found = f"has the signature {signature!r}, others have {signatures[0]!r}"
            problems.add(file_problem(output.address, found, "merge shards of one signature"))
    problems.raise_if_any()
    about = {"signature": signatures[0], "shards": len(outputs)}
    schema = read_schema(outputs[0]).with_metadata({MERGED: json.dumps(about)})
    rows = 0
    with whole_table(end, schema) as writer:
        for output in outputs:
            for batch in read_batches(output):
                writer.write(pa.Table.from_batches([batch]).cast(schema))
                rows += len(batch)
    return rows


def _is_merged(place: Place) -> bool:
    try:
        return MERGED in metadata_of(place)
    except FileError:
        return False


@dataclass(frozen=True)
class ShardCheck:
    """What is wrong with a folder of outputs; nothing if `ok`.

    shards, rows: how many there are.
    signatures: the shards of each signature; more than one are not comparable.
    duplicates: uids that come more than once: how often in each shard; at most the first 1,000 are named.
    repeated: rows beyond the first of each uid. Above 1,000 such uids it is counted by a hash of 64 bits,
        which may take two uids of 10^9 for one.
    damaged: shards that are not as they were written, or no outputs, and why.
    failed: how many rows of a shard have no score, where any has none.
    without_scores: shards that have rows, and no score.
    unfinished: files that an interrupted run left, which can be deleted when no run is on.
    """

    shards: int
    rows: int
    signatures: dict[str, list[str]]
    duplicates: dict[str, dict[str, int]]
    repeated: int
    damaged: dict[str, str]
    unfinished: list[str] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    without_scores: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every uid comes once, all signatures are equal, every shard is whole and has a score."""
        one = len(self.signatures) <= 1 and not self.repeated
        return one and not self.damaged and not self.without_scores


def check_shards(folder: str | PathLike[str]) -> ShardCheck:
    """Check the outputs of all shards in a folder: every uid once, one signature, every page as written.

    All shards are read once. Uids are compared by hash, 4 million at a time in memory (12 bytes each on disk
    in the temporary folder beyond that, 12 GB for 10^9); those that are named are confirmed by their texts.

    Args:
        folder: outputs of `score_shard`, a path or an address of fsspec.

    Raises:
        FileError: there is no such folder, or no output in it.
    """
    outputs = outputs_in(folder)
    signatures: dict[str, list[str]] = {}
    damaged: dict[str, str] = {}
    failed: dict[str, int] = {}
    empty: list[str] = []
    sizes: dict[int, int] = {}
    for shard, output in enumerate(outputs):
        try:
            note = check_whole(output)
        except DamagedError as error:
            damaged[output.name] = error.found
        except FileError as error:
            damaged[output.name] = str(error).removeprefix(output.address).lstrip(": ")
        else:
            signatures.setdefault(note["signature"], []).append(output.name)
            sizes[shard] = note["rows"]
            if note["failed"]:
                failed[output.name] = note["failed"]
                empty += [output.name] if note["failed"] == note["rows"] else []
    rows = sum(sizes.values())
    duplicates, repeated = _duplicates(outputs, list(sizes), rows)
    place = Place.of("folder", folder)
    unfinished = [name for name in place.names() if name.endswith(PARTIAL)]
    return ShardCheck(
        len(outputs), rows, signatures, duplicates, repeated, damaged, unfinished, failed, empty
    )


def _duplicates(
    outputs: Sequence[Place], shards: Sequence[int], rows: int
) -> tuple[dict[str, dict[str, int]], int]:
    """Uids that come more than once, in which shards how often, and the rows beyond the first of each."""
    suspects: dict[int, set[int]] = {}  # hashes that come twice, and the shards that they come in
    repeated = 0
    for entries in _partitions(outputs, shards, rows):
        entries = entries[np.argsort(entries["hash"])]
        hashes = entries["hash"]
        again = hashes[1:][hashes[1:] == hashes[:-1]]
        repeated += len(again)
        for value in np.unique(again)[: NAMED - len(suspects)]:
            first, last = np.searchsorted(hashes, value), np.searchsorted(hashes, value, "right")
            suspects[int(value)] = set(entries["shard"][first:last].tolist())
    counts: dict[str, Counter[str]] = {}
    for shard in sorted(set().union(*suspects.values())):
        for uid in _uids(outputs[shard]):
            if hash(uid) in suspects:
                counts.setdefault(uid, Counter())[outputs[shard].name] += 1
    named = {uid: dict(own) for uid, own in counts.items() if own.total() > 1}
    if len(suspects) < NAMED:  # all of them are known by their texts
        repeated = sum(sum(own.values()) - 1 for own in named.values())
    return named, repeated


def _partitions(outputs: Sequence[Place], shards: Sequence[int], rows: int) -> Iterator[NDArray[np.void]]:
    """Hashes of all uids with their shards, equal hashes together, as many at a time as memory allows."""
    count = min(_PARTS, -(-rows // LIMITS.sorted_rows))
    if count <= 1:
        parts = (part for shard in shards for part in _entries(outputs, shard))
        yield np.concatenate([np.empty(0, _ENTRY), *parts])
        return
    with tempfile.TemporaryDirectory(prefix="capeval-") as folder:
        paths = [Path(folder, str(i)) for i in range(count)]
        for shard in shards:
            for entries in _entries(outputs, shard):
                part = entries["hash"].astype(np.uint64) % np.uint64(count)
                for i in np.unique(part).tolist():
                    with paths[i].open("ab") as file:
                        file.write(entries[part == i].tobytes())
        for path in paths:
            if path.exists():
                yield np.fromfile(path, dtype=_ENTRY)


def _entries(outputs: Sequence[Place], shard: int) -> Iterator[NDArray[np.void]]:
    for batch in read_batches(outputs[shard], ["uid"]):
        entries = np.empty(len(batch), _ENTRY)
        entries["hash"] = np.fromiter(map(hash, batch.column("uid").to_pylist()), np.int64, len(batch))
        entries["shard"] = shard
        yield entries


def _uids(output: Place) -> Iterator[str]:
    for batch in read_batches(output, ["uid"]):
        yield from batch.column("uid").to_pylist()
