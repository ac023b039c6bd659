"""A check of the outputs of all shards: every uid once, one signature, every file as it was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.errors import FileError
from capeval_core.integrations.shards.failures import FailureCounts
from capeval_core.integrations.shards.outputs import (
    BATCH_ROWS,
    FEATURES,
    FEATURES_NOTE,
    DamagedError,
    are_features_of,
    numbers_on_disk,
    outputs_in,
    read_batches,
    read_note,
)
from capeval_core.integrations.shards.places import Place, files_in
from capeval_core.store import PARTIAL

_MOST_NAMED = 1000  # uids that are named where many come twice


@dataclass
class ShardCheck:
    """The faults of a folder of outputs; none if `ok`.

    signatures: the shards of each. duplicates: the first 1,000 uids that come more than once, how often in
    each shard. repeated: rows beyond the first of each uid, above 1,000 by a hash of 64 bits. damaged: shards
    that are not whole outputs, and why. features: tables of features, such as `features/00000.parquet`, that
    are missing or not whole, and why. foreign: those of both that no run has written, nor will replace.
    failed: rows without a score by shard. failures: their errors, the first of each kind, and how many rows
    have one of this kind. outside: failed rows whose image is a file outside of its shard. without_scores:
    shards that have rows, and no score. unfinished: files that an interrupted run left.
    """

    shards: int
    rows: int = 0
    signatures: dict[str, list[str]] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    repeated: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    features: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    outside: int = 0
    without_scores: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every uid comes once, all signatures are equal, every shard is whole and has a score.

        Features of shards that were scored with them are whole, too.
        """
        if len(self.signatures) > 1 or self.repeated:
            return False
        return not (self.damaged or self.features or self.without_scores)


def check_shards(folder: str | PathLike[str]) -> ShardCheck:
    """Check the outputs of all shards in a folder: every uid once, one signature, every page as written."""
    outputs = outputs_in(folder)
    check = ShardCheck(len(outputs))
    intact: list[Place] = []
    failures = FailureCounts()
    features_folder = Place.of("folder", folder).child(FEATURES)
    names_of_features = {file.name for file in files_in(features_folder)}
    for output in outputs:
        # A damaged output is noted and left out, so that the others are still compared.
        try:
            note = read_note(output, verify_rows=True)
        except FileError as error:
            check.damaged[output.name] = error.problems[0].text
            if not isinstance(error, DamagedError):
                check.foreign.append(output.name)
            continue
        intact.append(output)
        check.signatures.setdefault(note["signature"], []).append(output.name)
        # Failed rows alone are no fault: among millions of pictures some are always broken.
        if note["failed"]:
            check.failed[output.name] = note["failed"]
            check.outside += note["outside"]
            failures.add_all(note["failures"])
            if note["failed"] == note["rows"]:
                check.without_scores.append(output.name)
        check.rows += note["rows"]
        # A table that lies there is looked at whatever the note says: a run without features left it.
        if note.get("features") or output.name in names_of_features:
            _check_features(check, features_folder.child(output.name), note)
    check.failures = failures.rows
    check.duplicates, check.repeated = _duplicates(intact)
    files = files_in(Place.of("folder", folder))
    # Not removed here: another run may be writing them.
    check.unfinished = [file.name for file in files if file.name.endswith(PARTIAL)]
    return check


def _check_features(check: ShardCheck, features: Place, note: Mapping[str, Any]) -> None:
    """Note what is wrong with the features of a shard whose scores have this note."""
    name = f"{FEATURES}/{features.name}"
    try:
        features_note = read_note(features, FEATURES_NOTE, verify_rows=True)
    except FileError as error:
        check.features[name] = error.problems[0].text
        if features.filesystem.exists(features.path) and not isinstance(error, DamagedError):
            check.foreign.append(name)
    else:
        if not are_features_of(features_note, note):
            check.features[name] = "is of other scores than those beside it"


def _duplicates(outputs: Sequence[Place]) -> tuple[dict[str, dict[str, int]], int]:
    """Uids that come more than once, in which shards how often, and the rows beyond the first of each."""
    # By hash, sorted on disk, since all uids may not fit into memory; those that are named are confirmed.
    suspects: set[int] = set()  # hashes that come twice
    repeated = 0
    with numbers_on_disk(outputs, "uid", _hashes, np.int64) as hashes:
        hashes.sort()
        for start in range(0, len(hashes), BATCH_ROWS):
            part = hashes[start : start + BATCH_ROWS + 1]  # one more: the first of the next part
            again = part[1:][part[1:] == part[:-1]]
            repeated += len(again)
            # Bounded: a collection that was scored twice under other names repeats every uid.
            suspects.update(np.unique(again)[: _MOST_NAMED - len(suspects)].tolist())
    counts: dict[str, Counter[str]] = {}  # of each shard, by uid
    for output in outputs if suspects else []:
        for batch in read_batches(output, ["uid"]):
            for uid in batch.column("uid").to_pylist():
                if hash(uid) in suspects:
                    counts.setdefault(uid, Counter())[output.name] += 1
    duplicates: dict[str, dict[str, int]] = {}
    repeated_by_text = 0
    for uid, shards in counts.items():
        if shards.total() > 1:  # two texts may have one hash
            duplicates[uid] = dict(shards)
            repeated_by_text += shards.total() - 1
    if len(suspects) < _MOST_NAMED:  # all of them are confirmed by their texts
        repeated = repeated_by_text
    return duplicates, repeated


def _hashes(uids: pa.Array) -> list[int]:
    """Hashes of 64 bits; they differ between processes, and are compared within this one."""
    return list(map(hash, uids.to_pylist()))
