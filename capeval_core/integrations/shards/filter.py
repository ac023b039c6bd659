"""Kept rows of scored shards, in the form of their shards: Parquet, tars member by member, JSON lines.

    scores/00000.parquet   what each row of the shard got, and from which shard (its note)
    00000.tar              the shard; its SHA-256 has to be the one that was scored
    kept/00000.tar         the records of which a caption is kept, bit for bit
    kept/filter/00000.tar.json    what was kept by which rule: the last file to appear, so that a run resumes

A record with several captions stays whole if one of them is kept.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import math
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capeval_core.errors import file_error, wrong_option
from capeval_core.integrations.shards.failures import FailureCounts
from capeval_core.integrations.shards.histogram import part_of, score_histogram
from capeval_core.integrations.shards.outputs import outputs_in, read_batches, read_note
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.readers import Shard, format_of, is_in_record, split_of
from capeval_core.limits import LIMITS

NOTES = "filter"
"""The folder, in that of the kept shards, of what was kept by which rule."""
_BLOCK = 512
"""Bytes of a block of a tar."""
_RECORD = 20 * _BLOCK
"""Bytes to a multiple of which a tar is filled up."""
_ROWS = 64  # of Parquet that are decoded together: some have megabytes each
_TAKEN = 1 << 20  # bytes that are copied together


@dataclass(frozen=True)
class Rule:
    """Which rows are kept: those with a score, or a part of it, of at least `least`.

    part: the name of the part, None for the score. share: that `least` was made from, to be shown.
    """

    least: float
    part: str | None = None
    share: float | None = None

    @property
    def name(self) -> str:
        return self.part or "score"


@dataclass
class FilterCounts:
    """Rows and records by what became of them.

    below: rows under the threshold. failed: rows without a score, and `failures` why. records: of shards,
    of which so many were kept. skipped: shards that an earlier run had finished.
    """

    rows: int = 0
    rows_kept: int = 0
    below: int = 0
    failed: int = 0
    records: int = 0
    records_kept: int = 0
    shards: int = 0
    skipped: int = 0
    failures: FailureCounts = field(default_factory=FailureCounts)

    def add(self, shard: Mapping[str, Any]) -> None:
        """Add the counts of a shard."""
        for name in ("rows", "rows_kept", "below", "failed", "records", "records_kept"):
            setattr(self, name, getattr(self, name) + shard[name])
        self.failures.add_all(shard["failures"])


def rule_of(
    folder: str | PathLike[str],
    *,
    keep: float | None = None,
    least: float | None = None,
    part: str | None = None,
) -> Rule:
    """The rule of a share of all rows that have a score, or of a threshold.

    keep: above 0, at most 1: the best rows; more than wanted where several have that very score. least: a
    number that a kept row has at least. Raises ValueError unless one of them is given.
    """
    if (keep is None) == (least is None):
        raise ValueError("pass either keep, such as 0.3, or least, such as 0.28")
    if least is not None:
        # No score is above NaN, so that nothing would be kept without a word.
        if not math.isfinite(least):
            raise wrong_option("least", least, "", "expected a number")
        return Rule(float(least), part)
    histogram = score_histogram(folder, keep=keep, part=part)
    return Rule(histogram.threshold, part, keep)


def filter_shards(
    folder: str | PathLike[str],
    output: str | PathLike[str],
    rule: Rule,
    *,
    progress: Callable[[int], None] | None = None,
) -> FilterCounts:
    """Write the kept records of every scored shard into a folder, under the shard's own name.

    folder: of the outputs of `score_shard`. output: another folder; shards that are there by the same rule
    stay. progress: called with a number of finished shards.

    Raises:
        FileError: a shard is not there, or not the one that was scored; the output has shards kept by another
            rule.
        OSError: a kept shard cannot be written.
    """
    outputs = outputs_in(folder)
    target = Place.of("output", output)
    # All notes first: a fault of the last shard is reported before the first one is written.
    notes = list(map(read_note, outputs))
    sources = [Place.of("source", note["source"]) for note in notes]
    _check_target(target, outputs, sources)
    counts = FilterCounts()
    for scores, note, source in zip(outputs, notes, sources, strict=True):
        # `shards score --retry-failed` changes scores, and neither the signature nor the shard's checksum.
        scores_checksum = _digest_of(scores)
        stored = _finished(target, source, rule, note)
        if stored is None or stored["scores_checksum"] != scores_checksum:
            stored = _filter_shard(scores, source, target, rule, {**note, "scores": scores_checksum})
        else:
            counts.skipped += 1
        counts.shards += 1
        counts.add(stored)
        if progress is not None:
            progress(1)
    return counts


def _check_target(target: Place, outputs: Sequence[Place], sources: Sequence[Place]) -> None:
    """Refuse a folder in which a shard, or scores, would be overwritten."""
    fix = "choose another folder"
    if target.identity == outputs[0].parent.identity:
        raise wrong_option("output", target.address, "is the folder of the scores", fix)
    addresses: dict[str, str] = {}
    for source in sources:
        # By what links lead to: a folder of links to shards is another folder, and its files are the shards.
        if source.parent.identity == target.identity or source.identity == target.child(source.name).identity:
            raise wrong_option("output", target.address, "is a folder of the shards", fix)
        first = addresses.setdefault(source.name, source.address)
        if first != source.address:
            problem = f"{first} and {source.address} would both be {source.name} in it"
            raise wrong_option(
                "output", target.address, problem, "filter the scores of one folder at a time", sentence=True
            )


def kept_uids(folder: str | PathLike[str], rule: Rule) -> Iterator[list[str]]:
    """The uids of kept rows, some at a time, in the order of shards."""
    for scores in outputs_in(folder):
        for batch in read_batches(scores):
            yield batch["uid"].filter(pa.array(_mask(batch, rule))).to_pylist()


def write_uids(folder: str | PathLike[str], file: str | PathLike[str], rule: Rule) -> int:
    """Write the uids of kept rows, and return their number.

    file: `.parquet`, a column `uid`; or `.npy` as DataComp has it, sorted pairs of the two halves of 32
    hexadecimal digits (dtype `u8,u8`). Raises ValueError for other names, and for other uids in `.npy`.
    """
    place = Place.of("uids", file)
    if place.parent.identity == Place.of("folder", folder).identity:
        raise wrong_option("uids", place.address, "is in the folder of the scores", "choose another place")
    if place.name.endswith(".parquet"):
        schema = pa.schema([pa.field("uid", pa.string(), nullable=False)])
        rows = 0
        # Batch by batch: uids of a billion rows do not fit into memory.
        with place.whole() as partial, pq.ParquetWriter(partial, schema) as parquet:
            for uids in kept_uids(folder, rule):
                parquet.write_table(pa.table({"uid": uids}, schema=schema))
                rows += len(uids)
        return rows
    if not place.name.endswith(".npy"):
        raise wrong_option(
            "uids", place.address, "is not a table by its name", "one ends in .parquet or .npy"
        )
    halves: list[tuple[int, int]] = []  # all of them, as they are sorted in the end
    for uids in kept_uids(folder, rule):
        for uid in uids:
            try:
                if len(uid) != 32:
                    raise ValueError
                halves.append((int(uid[:16], 16), int(uid[16:], 16)))
            except ValueError:
                problem = f"cannot hold the uid {uid[:60]!r}: DataComp's have 32 hexadecimal digits"
                raise wrong_option(
                    "uids", place.address, problem, "name a .parquet file", sentence=True
                ) from None
    with place.whole() as partial, Path(partial).open("wb") as opened:
        np.save(opened, np.sort(np.array(halves, dtype="u8,u8")))
    return len(halves)


def share_above(folder: str | PathLike[str], rule: Rule) -> float:
    """The share of the rows with a score that a rule keeps; NaN where none has one."""
    rows_above = 0
    rows_scored = 0
    for scores in outputs_in(folder):
        for batch in read_batches(scores):
            numbers = _numbers(batch, rule)  # NaN compares as False, so that a failed row is not above
            rows_above += int((numbers >= rule.least).sum())
            rows_scored += int(np.isfinite(numbers).sum())
    return rows_above / rows_scored if rows_scored else math.nan


def cosine_factor(folder: str | PathLike[str]) -> float:
    """By what a cosine is multiplied to be the score, as CLIP-S and PAC-S do; 0 where scores have none."""
    for scores in outputs_in(folder):
        for batch in read_batches(scores):
            parts = batch["parts"]
            if not pa.types.is_struct(parts.type) or parts.type.get_field_index("cosine") < 0:
                return 0.0
            if not pa.types.is_floating(parts.type.field("cosine").type):
                return 0.0
            column = part_of(parts, "cosine").cast(pa.float64())
            cosines = column.fill_null(0.0).to_numpy(zero_copy_only=False)
            totals = batch["score"].fill_null(0.0).to_numpy(zero_copy_only=False)
            # Scores are cut at 0, where they say nothing of the factor.
            above = (cosines > 0) & (totals > 0)
            if above.any():
                factors = totals[above] / cosines[above]
                # Equal up to float32's rounding, or the score is something else, such as one with references.
                return float(np.median(factors)) if np.ptp(factors) < 1e-4 * factors.max() else 0.0
    return 0.0


def _numbers(batch: pa.RecordBatch, rule: Rule) -> NDArray[np.float64]:
    """(rows,) what a rule looks at; NaN where a row has no score."""
    # Parts may be float32 or integers, and a threshold is compared in the precision in which it was made.
    column = batch["score"] if rule.part is None else part_of(batch["parts"], rule.part)
    numbers: NDArray[np.float64] = (
        column.cast(pa.float64()).fill_null(math.nan).to_numpy(zero_copy_only=False)
    )
    return numbers


def _mask(batch: pa.RecordBatch, rule: Rule) -> NDArray[np.bool_]:
    """(rows,) whether each is kept."""
    return _numbers(batch, rule) >= rule.least


def _description(rule: Rule, note: Mapping[str, Any]) -> dict[str, Any]:
    """What a kept shard depends on."""
    # Not the share, but the threshold that it gave: with more shards it gives another one.
    return {
        "least": rule.least,
        "part": rule.part,
        "signature": note["signature"],
        "source": note["source"],
        "checksum": note["checksum"],
    }


def _note_place(target: Place, name: str) -> Place:
    return target.child(NOTES).child(name + ".json")


def _finished(target: Place, source: Place, rule: Rule, note: Mapping[str, Any]) -> dict[str, Any] | None:
    """The counts of a shard that an earlier run has finished by this rule, None where it is to be made.

    FileError for one that was kept by another rule.
    """
    place = _note_place(target, source.name)
    kept_shard = target.child(source.name)
    with place.reading():
        if not place.filesystem.exists(place.path):
            # Without a note it is somebody's file.
            if kept_shard.filesystem.exists(kept_shard.path):
                problem = "is there already, and no filter has written it"
                raise file_error(kept_shard.address, problem, "choose another output")
            return None
        with place.filesystem.open(place.path, "rb") as file:
            content = file.read()
    differences = []
    try:
        stored: dict[str, Any] = json.loads(content)
        for name, value in _description(rule, note).items():
            if stored[name] != value:
                differences.append(f"{name}: {stored[name]!r} there, {value!r} now")
    except (ValueError, KeyError, TypeError):
        return None  # cut off: it is made again
    if not differences and stored.get("kept_checksum") is None:
        return None  # a run was killed while it wrote
    if differences:
        problem = f"was kept by another rule ({'; '.join(differences)})"
        raise file_error(kept_shard.address, problem, "choose another output", sentence=True)
    with kept_shard.reading():
        if not kept_shard.filesystem.exists(kept_shard.path):
            return None
        # Read whole: a tar has no checksums of its contents, and nothing else would notice a flipped bit.
        with kept_shard.local_copy() as path:
            is_whole = _digest(path) == stored["kept_checksum"]
    return stored if is_whole else None


def _digest_of(place: Place) -> str:
    """The SHA-256 of a file, in an object store too."""
    with place.local_copy() as path:
        return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _filter_shard(
    scores: Place, source: Place, target: Place, rule: Rule, note: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the kept records of a shard, then what was kept; the counts."""
    with source.local_copy() as path:
        # Scores are rows in an order: of a shard that was packed again they would be those of other rows.
        if _digest(path) != note["checksum"]:
            problem = "is not the file that was scored: its SHA-256 is another"
            raise file_error(source.address, problem, "score it again")
        counts: dict[str, Any] = dict.fromkeys(
            ("rows", "rows_kept", "below", "failed", "records", "records_kept"), 0
        )
        counts["failures"] = note["failures"]
        stays = _records_kept(path, source, scores, rule, note, counts)
        # Without a checksum it says that the shard is being written, so that a killed run resumes: without a
        # note it would find a file that nobody has written, and refuse it.
        _write_note(target, source, {**_description(rule, note), "kept_checksum": None})
        with target.child(source.name).whole() as partial:
            _WRITERS[_kind(source)](_shard(path, source, note), Path(partial), stays)
            checksum = _digest(Path(partial))
    content = {
        **_description(rule, note),
        **counts,
        "scores_checksum": note["scores"],
        "kept_checksum": checksum,
    }
    _write_note(target, source, content)
    return content


def _write_note(target: Place, source: Place, content: Mapping[str, Any]) -> None:
    """Write what was kept of a shard, and by which rule."""
    with _note_place(target, source.name).whole() as partial:
        Path(partial).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _records_kept(
    path: Path, source: Place, scores: Place, rule: Rule, note: Mapping[str, Any], counts: dict[str, Any]
) -> list[bool]:
    """Whether each record of a shard stays. FileError where its rows are not those of the scores."""
    shard = _shard(path, source, note)
    rows = _scored_rows(scores, rule, counts)
    stays: list[bool] = []
    for uids in shard.uids():
        has_kept_row = False
        for uid in uids:
            scored_uid, is_kept = next(rows, (None, False))
            if scored_uid != uid:
                problem = f"has a row {uid!r} where the scores have {scored_uid!r}"
                raise file_error(source.address, problem, "score it again")
            has_kept_row |= is_kept
        stays.append(has_kept_row)
    if next(rows, None) is not None:
        raise file_error(source.address, "has fewer rows than its scores", "score it again")
    counts["records"] = len(stays)
    counts["records_kept"] = sum(stays)
    return stays


def _shard(path: Path, source: Place, note: Mapping[str, Any]) -> Shard:
    """The shard as it was read for its scores, whose roles say how names in a tar are split."""
    # By other roles a tar could be split at other dots, into other rows.
    needed = [role for role in note["columns_read"] if role != "uid"]
    return Shard(path, source, needed or ["caption"], note["columns"], source.parent)


def _scored_rows(scores: Place, rule: Rule, counts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The uid of each row, and whether it is kept; counted by what becomes of it."""
    for batch in read_batches(scores):
        mask = _mask(batch, rule)
        errors = batch["error"].to_pylist()
        for uid, is_kept, error in zip(batch["uid"].to_pylist(), mask.tolist(), errors, strict=True):
            counts["rows"] += 1
            if is_kept:
                counts["rows_kept"] += 1
            # A row without a score is below every threshold, and yet no judgement about it.
            elif error is None:
                counts["below"] += 1
            else:
                counts["failed"] += 1
            yield uid, is_kept


# ---- forms


def _kind(source: Place) -> str:
    """`parquet`, `tar` or `lines`."""
    end = format_of(source)
    if end in (".parquet", ".pq"):
        return "parquet"
    return "tar" if end.startswith((".tar", ".tgz")) else "lines"


def _write_parquet(shard: Shard, target: Path, stays: Sequence[bool]) -> None:
    """The rows with all columns, metadata and the compression of the first column."""
    with pq.ParquetFile(shard.path, page_checksum_verification=True, pre_buffer=False) as file:
        schema = file.schema_arrow
        groups = file.metadata.num_row_groups
        compression = file.metadata.row_group(0).column(0).compression if groups else "SNAPPY"
        # Arrow reads the one name and writes by the other.
        compression = "NONE" if compression == "UNCOMPRESSED" else compression
        start = 0
        waiting: list[pa.Table] = []
        with pq.ParquetWriter(target, schema, compression=compression, write_page_checksum=True) as writer:
            for batch in file.iter_batches(_ROWS):
                mask = pa.array(stays[start : start + len(batch)])
                start += len(batch)
                waiting.append(pa.Table.from_batches([batch]).filter(mask))
                # A row group of its own for each batch would make the file slow to read.
                if sum(table.nbytes for table in waiting) > LIMITS.window_bytes:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if any(map(len, waiting)):
                writer.write_table(pa.concat_tables(waiting))


def _write_lines(shard: Shard, target: Path, stays: Sequence[bool]) -> None:
    """The lines as they are; blank ones, which are no records, go."""
    with _opened(shard.path, shard.source, "rb") as lines, _opened(target, shard.source, "wb") as output:
        record = 0
        for line in lines:
            if not line.strip():
                continue
            if stays[record]:
                # The last line may have no end, and the one behind it would be joined to it.
                output.write(line if line.endswith(b"\n") else line + b"\n")
            record += 1


def _write_tar(shard: Shard, target: Path, stays: Sequence[bool]) -> None:
    """The members of kept records with their headers, byte for byte, and those that belong to no record."""
    with tempfile.TemporaryDirectory(prefix="capeval-") as folder:
        # Members are copied by their offsets, which are those of the unpacked archive.
        plain = shard.path
        if not shard.source.name.lower().endswith(".tar"):
            plain = Path(folder, "shard.tar")
            with _opened(shard.path, shard.source, "rb") as packed, plain.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, _TAKEN)
        with plain.open("rb") as file, _opened(target, shard.source, "wb") as output:
            copy = _TarCopy(file, output)
            for start, end, record in _members(plain, shard):
                if record is None or stays[record]:
                    copy.add(start, end)
            copy.finish()


def _members(plain: Path, shard: Shard) -> Iterator[tuple[int, int, int | None]]:
    """Where each member of a tar begins and ends, and the number of its record; None: of no record."""
    split = split_of(shard)
    number = -1
    key_of_record = ""
    extensions: set[str] = set()
    end = 0
    with tarfile.open(plain, "r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # tarfile keeps a list of all
            # Global headers of pax, which tarfile reads on its way to a member.
            if member.offset > end:
                yield end, member.offset, None
            end = tar.offset
            key, extension = split(member.name)
            if not is_in_record(member, key, extension):
                yield member.offset, end, None
                continue
            # As the reader groups them, or a record would lose members to its neighbour.
            if key != key_of_record or extension in extensions:
                number += 1
                key_of_record = key
                extensions = set()
            extensions.add(extension)
            yield member.offset, end, number


class _TarCopy:
    """A tar that is written by copying blocks of another one."""

    def __init__(self, source: IO[bytes], target: IO[bytes]) -> None:
        self._source = source
        self._target = target
        self._bytes = 0

    def add(self, start: int, end: int) -> None:
        """Copy the bytes of the source from `start` to `end`."""
        self._source.seek(start)
        remaining = end - start
        while remaining > 0:
            data = self._source.read(min(remaining, _TAKEN))
            # The shard changed since its members were listed: an empty read would go on for ever.
            if not data:
                raise OSError("the archive ended while it was copied")
            self._target.write(data)
            remaining -= len(data)
        self._bytes += end - start

    def finish(self) -> None:
        """End the archive as tars end: two blocks of zeros, filled up."""
        size = self._bytes + 2 * _BLOCK
        # As GNU tar and tarfile fill up records, so that a whole shard that is kept is the very same file.
        self._target.write(bytes(2 * _BLOCK + -size % _RECORD))


_WRITERS: dict[str, Callable[[Shard, Path, Sequence[bool]], None]] = {
    "parquet": _write_parquet,
    "lines": _write_lines,
    "tar": _write_tar,
}


@contextmanager
def _opened(path: Path, source: Place, mode: Literal["rb", "wb"]) -> Iterator[Any]:
    """A file in the compression of a shard, by the shard's name."""
    end = source.name.lower().rpartition(".")[2]
    with ExitStack() as stack:
        raw = stack.enter_context(path.open(mode))
        if end in ("gz", "tgz"):
            # Without a name and a time, so that a rerun writes the very same bytes.
            yield stack.enter_context(gzip.GzipFile("", mode, fileobj=raw, mtime=0))
        elif end == "bz2":
            yield stack.enter_context(bz2.BZ2File(raw, mode))
        elif end == "xz":
            yield stack.enter_context(lzma.LZMAFile(raw, mode))
        else:
            yield raw
