"""Scores of one shard: a Parquet file of each metric with a row for each of its rows, whole or not at all.

window of the shard              read once
  slice of 256 rows              of several metrics; of one, the window
    clips   scores, features     decodes the pictures
    pacs    scores, features     finds pixels, and what a common network made of them
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.cache import FeatureCache
from capeval_core.errors import file_error, warn, wrong_option
from capeval_core.integrations.shards.captions import FIELDS, caption_columns
from capeval_core.integrations.shards.failures import FailureCounts
from capeval_core.integrations.shards.outputs import (
    FEATURES,
    FEATURES_NOTE,
    IMAGE_KEY,
    are_features_of,
    read_batches,
    written,
)
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.plan import images_folder, is_same, note_of_target, settings_of
from capeval_core.integrations.shards.readers import Shard, check_columns, format_of
from capeval_core.integrations.shards.scorer import BatchScorer, ScoredRows, new_cache
from capeval_core.integrations.shards.visuals import SharedVisuals
from capeval_core.metric import CaptionMetric
from capeval_core.run import FreedMemory

_SLICE = 256
"""Rows after which the next metric takes its turn: their pixels are in memory."""
# Of 640 x 480 their pixels are 236 MB, and `SharedVisuals` keeps up to 256 MB.
_Path = str | PathLike[str]


@dataclass(frozen=True)
class ShardResult:
    """The outcome of a shard: the addresses of its files, and counts of rows.

    error: of the first row without a score. truncated: rows with a text longer than the encoder reads.
    checksum: SHA-256 of the source. skipped: whether the target was there already. scored: rows that this
    call scored. columns: the names of those that were read, by what they hold. unread: names of columns that
    were not. failures: the first error of each kind, and how many rows have one of this kind. outside: failed
    rows whose image is a file outside of the shard, which a retry mends once the file is there. traits: how
    many of the images that this call scored lie on their side (`turned`), or have 16 bits a channel (`deep`).
    """

    source: str
    target: str
    rows: int
    failed: int
    error: str | None
    truncated: int
    signature: str
    checksum: str
    skipped: bool
    scored: int = 0
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unread: Sequence[str] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    outside: int = 0
    traits: Mapping[str, int] = field(default_factory=dict)


_FROM_NOTE = (
    "rows", "failed", "error", "truncated", "signature", "checksum", "columns_read", "unread", "failures",
    "outside",
)  # fmt: skip


def score_shard(
    source: _Path,
    target: _Path,
    metric: str | CaptionMetric | BatchScorer,
    *,
    images: _Path | None = None,
    columns: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    features: bool = False,
    duplicates: bool = False,
    window: int = 2048,
    progress: Callable[[int], None] | None = None,
    expected: Callable[[int], None] | None = None,
    **options: Any,
) -> ShardResult:
    """Score the rows of one shard into one Parquet file, which appears as a whole or not at all.

    What both hold, and what is kept, refused or made again, is in `docs/scale.md`.

    Args:
        source, target: paths, or addresses of fsspec.
        metric: a name, an open metric, or a `BatchScorer`, which is best for several shards.
        images: folder that paths of images are relative to, or its address; None: that of the source.
        columns: names of columns where they are not found by themselves: {"caption": "alt_text"}.
        retry_failed: score the rows of a finished target again that have an `error`; the other rows stay.
        features: write the features of images and captions too, into `features/` beside the target.
        duplicates: add the column `image_key`, by which `merge_shards` marks rows of equal pictures.
        window: rows that are in memory together; fewer where they have more than 128 MB.
        progress: called with a number of rows whenever so many more are done.
        expected: called with about how many rows there are to score, before each window.
        **options: of a metric given by name, as for `capeval_core.load`.

    Raises:
        TypeError, ValueError: as `BatchScorer`; a source that cannot be read, a target of other scores, a
            metric without features or images.
        OSError: the target cannot be written.
    """
    scorer = metric if isinstance(metric, BatchScorer) and not options else BatchScorer(metric, **options)  # type: ignore[arg-type]
    (result,) = score_by_metrics(
        source,
        [(target, scorer)],
        images=images,
        columns=columns,
        retry_failed=retry_failed,
        features=features,
        duplicates=duplicates,
        window=window,
        progress=progress,
        expected=expected,
    )
    return result


def score_by_metrics(
    source: _Path,
    targets: Sequence[tuple[_Path, BatchScorer]],
    *,
    images: _Path | None = None,
    columns: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    features: bool = False,
    duplicates: bool = False,
    window: int = 2048,
    progress: Callable[[int], None] | None = None,
    expected: Callable[[int], None] | None = None,
) -> list[ShardResult]:
    """Score the rows of one shard by several metrics, each into a target of its own, as `score_shard` does.

    The shard is read once, its pictures are decoded once, and a network that several metrics share runs once.
    A score depends neither on the other metrics, up to rounding (1e-6), nor on their order. The results are
    in the order of `targets`; other arguments and errors are those of `score_shard`.
    """
    source_place = Place.of("source", source)
    column_of = check_columns(columns)
    outputs = []
    for target, scorer in targets:
        place = Place.of("target", target)
        # By what links lead to: the source would be replaced by its scores.
        if source_place.identity == place.identity:
            raise wrong_option("target", place.address, "is the source", "name another file")
        outputs.append(_Output(place, scorer, features=features, duplicates=duplicates))
    format_of(source_place)  # which refuses what is not a shard by its name, before weights are opened
    version = source_place.version()
    folder = source_place.parent if images is None else images_folder(images)
    for output in outputs:
        output.open({**settings_of(output.scorer, column_of), "images": folder.identity}, retry_failed)
        output.skip_unchanged(source_place, version)
    unfinished = [output for output in outputs if not output.skipped]
    if unfinished:
        # Read twice, for its checksum and for its rows: a copy of a store's shard is fetched once for both.
        with source_place.local_copy() as path:
            with path.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
            # A shard that was moved or touched has another version, and the same checksum.
            for output in unfinished:
                output.compare(checksum)
            unfinished = [output for output in unfinished if not output.skipped]
            if unfinished:
                roles: dict[str, None] = {}  # of all metrics, each once
                for output in unfinished:
                    roles |= dict.fromkeys(output.scorer.columns)
                shard = Shard(path, source_place, list(roles), column_of, folder)
                windows = shard.windows(max(1, window))  # which refuses wrong columns before files are begun
                _write(unfinished, shard, windows, version, progress, expected)
    if any(not output.note["rows"] for output in unfinished):
        warn(f"{source_place.address} has no rows: its output has none either")
    return [output.result(source_place) for output in outputs]


def _write(
    outputs: Sequence[_Output],
    shard: Shard,
    windows: Iterator[dict[str, list[Any]]],
    version: str,
    progress: Callable[[int], None] | None,
    expected: Callable[[int], None] | None,
) -> None:
    """Write the outputs of a shard, all of whose files appear when its last row is scored."""
    # By name, so that no last bit depends on the order in which metrics were named.
    outputs = sorted(outputs, key=lambda output: output.scorer.metric_class.name)
    source = shard.source
    memory = FreedMemory()
    cache = new_cache()  # of this shard, so that a rerun, by whichever worker, writes the very same files
    several = len(outputs) > 1
    with ExitStack() as files:
        for output in outputs:
            output.begin(files, source, version, cache)
        for rows in windows:
            count = len(rows["uid"])
            # At each window, since the estimate gets better. Reused rows are not to be scored.
            if expected is not None:
                expected(shard.expected_rows - outputs[-1].reused)
            # One metric takes the window whole: there is no other one for which pixels would have to wait.
            step = min(count, _SLICE) if several else count
            for start in range(0, count, step):
                part = {name: values[start : start + step] for name, values in rows.items()}
                visuals = SharedVisuals() if several else None
                for output in outputs:
                    # A row is done when the last metric is.
                    output.add(part, visuals, progress if output is outputs[-1] else None)
            del rows, part, visuals  # images leave memory before the next ones are read
            for output in outputs:
                output.write()
            memory.add(count)
        # Raised within the block, so that no file appears: its rows would be of two states of the shard. A
        # store's shard was copied before, and cannot change.
        if source.is_local and source.version() != version:
            raise file_error(source.address, "changed while it was read", "score it again", sentence=True)
        for output in outputs:
            output.end(shard)


class _Output:
    """The files of a shard by one metric: scores, and features where they are wanted.

    The note of a finished one says on what it depends; rows of an unfinished one are reused.
    """

    def __init__(self, place: Place, scorer: BatchScorer, *, features: bool, duplicates: bool) -> None:
        self.place = place
        self.scorer = scorer
        self.features_place = place.parent.child(FEATURES).child(place.name) if features else None
        self.has_keys = duplicates and "image" in scorer.columns  # a metric on texts alone has no pictures
        if features and not scorer.has_features:
            name = scorer.metric_class.name
            fix = "leave it out, or score by pacs, clips or specs, with references or without"
            problem = f"{name} is not made of one feature of each"
            raise wrong_option("features", True, problem, fix, sentence=True)
        self.skipped = False
        self.scored = 0
        self.reused = 0  # rows of an earlier output that stay
        self.note: dict[str, Any] = {}  # filled while rows are written, and written last
        self._settings: dict[str, Any] = {}
        self._stored: dict[str, Any] | None = None  # the note of an earlier output
        self._is_finished = False
        self._earlier: pa.Table | None = None  # rows of an output some of which failed
        self._earlier_features: pa.Table | None = None
        self._failures = FailureCounts()
        self._tables: list[pa.Table] = []
        self._feature_tables: list[pa.Table] = []

    def open(self, settings: dict[str, Any], retry_failed: bool) -> None:
        """Read what an earlier run has written here."""
        self._settings = settings
        self._stored = note_of_target(self.place)
        if self._stored is None:
            return
        # Features, or keys, that are wanted now make scores anew: they come of the same forward passes.
        is_complete = not self.has_keys or self._stored.get("image_keys", False)
        if self.features_place is not None and is_complete:
            note = note_of_target(self.features_place, FEATURES_NOTE)
            is_complete = note is not None and are_features_of(note, self._stored)
        if not is_complete:
            is_same(self.place, self._stored, settings)  # raises for scores of other settings
            self._stored = None
            return
        self._is_finished = not (retry_failed and self._stored["failed"])

    def skip_unchanged(self, source: Place, version: str) -> None:
        """Skip a finished output of a shard that has not changed by its version."""
        if self._stored is None or not self._is_finished:
            return
        # Without the checksum, which would read the whole shard: a rerun over thousands takes seconds. A file
        # system that tells no version gives '', which equals nothing that is noted.
        unchanged = (self._stored["source"], self._stored["version"]) == (source.address, version or None)
        if unchanged and is_same(self.place, self._stored, self._settings):
            self._skip(self._stored)

    def compare(self, checksum: str) -> None:
        """Skip a finished output of a shard with this checksum, or reuse rows of an unfinished one."""
        self._settings["checksum"] = checksum
        if self._stored is None or not is_same(self.place, self._stored, self._settings):
            return
        if self._is_finished:
            self._skip(self._stored)
            return
        self._earlier = pa.Table.from_batches(read_batches(self.place))
        if self.features_place is not None:
            batches = read_batches(self.features_place, key=FEATURES_NOTE)
            self._earlier_features = pa.Table.from_batches(batches)

    def _skip(self, note: dict[str, Any]) -> None:
        self.skipped = True
        self.note = note

    def begin(self, files: ExitStack, source: Place, version: str, cache: FeatureCache) -> None:
        """Open the files, which appear when `files` is closed."""
        self.note = {
            **self._settings,
            "source": source.address,
            "version": version,
            "error": None,
            "rows": 0,
            "failed": 0,
            "truncated": 0,
            "outside": 0,
        }
        if self.has_keys:
            self.note["image_keys"] = True
        if self.features_place is not None:
            self.note["features"] = True  # by which `check_shards` misses a table that is gone
        self.scorer.traits.clear()  # counted by shard, while a scorer lives for all of them
        self.scorer.forget(cache)
        fields = [pa.field("uid", pa.string(), nullable=False), *self.scorer.schema(), *FIELDS]
        if self.has_keys:
            fields.append(pa.field(IMAGE_KEY, pa.string()))
        self._schema = pa.schema(fields)
        self._parquet = files.enter_context(written(self.place, self._schema, self.note))
        if self.features_place is None:
            return
        # `element` is what Parquet calls the numbers of a list, and what its schema says when it is read.
        vector = pa.list_(pa.field("element", pa.float16()), self.scorer.dimension)
        columns = {"uid": pa.string(), IMAGE_KEY: pa.string(), "image": vector, "text": vector}
        self._features_schema = pa.schema(list(columns.items()))
        # Closed before the scores, whose file says that the shard is finished.
        self._features = files.enter_context(
            written(self.features_place, self._features_schema, self.note, FEATURES_NOTE)
        )

    def add(
        self,
        rows: dict[str, list[Any]],
        visuals: SharedVisuals | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        """Score rows that have no score in an earlier output; the others stay."""
        count = len(rows["uid"])
        first = self.note["rows"]
        output: dict[str, list[Any]] = {name: [None] * count for name in self._schema.names}
        if self._earlier is not None:
            output |= self._earlier.slice(first, count).to_pydict()
        output["uid"] = rows["uid"]
        output |= caption_columns(rows["caption"])
        missing = [position for position, score in enumerate(output["score"]) if score is None]
        encoded = 0  # of the missing rows

        def add_encoded(more: int) -> None:
            nonlocal encoded
            encoded += more
            if progress is not None and more:
                progress(more)

        if missing:
            roles = self.scorer.columns
            batch: dict[str, list[Any]] = {name: [] for name in (*roles, "error")}
            for position in missing:
                for name in roles:
                    batch[name].append(rows[name][position])
                # By the roles of this metric: a row without references still has a score by pacs.
                batch["error"].append(rows["faults"][position].error(roles))
            scored = self.scorer.scored(batch, visuals=visuals, progress=add_encoded)
            columns = dict(scored.columns)
            if self.has_keys:
                columns[IMAGE_KEY] = scored.keys
            for name, values in columns.items():
                for position, value in zip(missing, values, strict=True):
                    output[name][position] = value
            add_encoded(len(missing) - encoded)  # those that were refused before they were encoded
            if self.features_place is not None:
                self._add_features(first, rows["uid"], missing, scored)
        elif self.features_place is not None:
            self._add_features(first, rows["uid"], missing, None)
        self._tables.append(pa.table(output, schema=self._schema))
        self._count(self._tables[-1], rows["outside"])
        self.scored += len(missing)
        self.reused += count - len(missing)

    def _add_features(
        self, first: int, uids: Sequence[str], missing: Sequence[int], scored: ScoredRows | None
    ) -> None:
        """Features of rows: those of an earlier output, and of rows that are scored now."""
        shape = (len(uids), self.scorer.dimension)  # (rows, numbers of a feature)
        # float16: of numbers up to 1 it is off by 2^-12 at most, and takes half the disk of float32.
        arrays = {name: np.full(shape, np.nan, np.float16) for name in ("image", "text")}
        keys: list[str | None] = [None] * len(uids)
        if self._earlier_features is not None:
            earlier = self._earlier_features.slice(first, len(uids))
            keys = earlier[IMAGE_KEY].to_pylist()
            for name, array in arrays.items():
                # `flatten`, unlike `values`, heeds the slice.
                numbers = [chunk.flatten() for chunk in earlier[name].chunks]
                array[:] = np.concatenate(numbers).reshape(shape)
        if scored is not None:
            arrays["image"][missing], arrays["text"][missing] = self.scorer.features(scored)
            for position, key in zip(missing, scored.keys, strict=True):
                keys[position] = key
        columns: dict[str, Any] = {"uid": uids, IMAGE_KEY: keys}
        for name, array in arrays.items():
            vector = self._features_schema.field(name).type
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), type=vector)
        self._feature_tables.append(pa.table(columns, schema=self._features_schema))

    def _count(self, table: pa.Table, outside: Sequence[bool]) -> None:
        # Of all rows, also those of an earlier run: the note is about the file and not about the run.
        visual = "video" if "video" in self.scorer.columns else "image"
        for error, is_outside in zip(table["error"].to_pylist(), outside, strict=True):
            if error is not None:
                self.note["error"] = self.note["error"] or error
                self._failures.add(error)
                # What is wrong with a caption, or with bytes of the shard, no retry can mend.
                self.note["outside"] += is_outside and error.startswith(visual)
        self.note["rows"] += len(table)
        self.note["failed"] += table["score"].null_count
        self.note["truncated"] += sum(token_ids > 0 for token_ids in table["truncated"].to_pylist())

    def write(self) -> None:
        """Write the rows that were added, as one group of rows."""
        # One group of rows for a window, whose slices alone would be too small to be read fast.
        self._parquet.write_table(pa.concat_tables(self._tables))
        self._tables.clear()
        if self._feature_tables:
            self._features.write_table(pa.concat_tables(self._feature_tables))
            self._feature_tables.clear()

    def end(self, shard: Shard) -> None:
        """Note how the shard was read."""
        roles = self.scorer.columns
        self.note["columns_read"] = shard.used_by(roles)
        self.note["unread"] = shard.unread_by(roles)
        self.note["failures"] = self._failures.rows
        # By which a later run knows whether another folder of images would mean other scores.
        self.note["looked_up"] = shard.looked_up and bool({"image", "video"}.intersection(roles))

    def result(self, source: Place) -> ShardResult:
        """What became of it."""
        outcome = {name: self.note[name] for name in _FROM_NOTE}
        columns_read = outcome.pop("columns_read")
        return ShardResult(
            source.address,
            self.place.address,
            **outcome,
            columns=columns_read,
            skipped=self.skipped,
            scored=self.scored,
            traits={} if self.skipped else dict(self.scorer.traits),  # a copy: the scorer goes on counting
        )
