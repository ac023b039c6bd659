"""The contract of every metric, and the list of them."""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from capeval_core._version import __version__
from capeval_core.cache import SHARED, FeatureCache
from capeval_core.inputs.pictures import PictureError
from capeval_core.inputs.samples import Samples, check_samples
from capeval_core.options import Options as CommonOptions
from capeval_core.result import Counts, Result
from capeval_core.rows import RowStore, canonical
from capeval_core.suggestion import did_you_mean
from capeval_core.weights.catalogue import WeightsEntry
from capeval_core.weights.folder import WeightsFolder, open_weights

METRICS: dict[str, str] = {
    "pacs": "capeval_core.scores.pac:PacS",
    "refpacs": "capeval_core.scores.pac:RefPacS",
    "clips": "capeval_core.scores.clips:ClipS",
    "refclips": "capeval_core.scores.clips:RefClipS",
}
"""Every metric's name and class. To add a metric is to add its score file, module, card and a line here."""

TEXTS_AT_ONCE = 65_536
"""Captions and references that are encoded together, which bounds memory for any number of captions."""
_TEXTS_BETWEEN_ROWS = 8_192  # where rows are kept on disk, so that a kill loses less


class CorpusStats:
    """Base of what a metric learns from all texts before it encodes, e.g. an idf table."""


@dataclass(frozen=True)
class Values:
    """scores: (n,) float64, NaN where a row failed. parts: named components, (n,) each."""

    scores: np.ndarray[Any, np.dtype[np.float64]]
    parts: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]


class CaptionMetric(ABC):
    """A caption metric: what it is, and how captions become rows and rows a result.

    A subclass states the class attributes, opens its encoders in `open_encoders`, and implements `encode`
    (neural, per caption) and `aggregate` (cheap, sees all rows).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    key: ClassVar[str]
    """Name of the value in an `evaluate` result."""
    summary: ClassVar[str]
    paper: ClassVar[str]
    """Authors, title, venue and address."""
    range: ClassVar[tuple[float, float]]
    higher_is_better: ClassVar[bool] = True
    needs_references: ClassVar[bool] = False
    media: ClassVar[tuple[str, ...]] = ("image",)
    default_weights: ClassVar[WeightsEntry]
    tiny: ClassVar[str]
    """Folder of the embedded small model that `weights="tiny"` means."""
    Options: ClassVar[type[CommonOptions]] = CommonOptions
    ROW: ClassVar[pa.Schema]

    def __init__(self, options: CommonOptions) -> None:
        chosen = options.weights if options.weights is not None else self.default_weights.repository
        self.options = options
        self.weights: WeightsFolder = open_weights(chosen, metric=self.name, tiny=self.tiny)
        self.cache = _cache_of(options.cache)
        self.open_encoders()

    @abstractmethod
    def open_encoders(self) -> None:
        """Load the models that `encode` needs from `self.weights`."""

    @abstractmethod
    def encoding(self) -> dict[str, Any]:
        """Everything that rows depend on (weights, preprocessing, prompt, dtype), in JSON's types."""

    @abstractmethod
    def encode(self, batch: Samples, stats: CorpusStats | None = None) -> Iterator[pa.Table]:
        """Tables of schema `ROW` that cover the batch in order; a row does not depend on other rows."""

    @abstractmethod
    def aggregate(self, rows: pa.Table, stats: CorpusStats | None) -> Values:
        """Scores and parts of rows that are sorted by index; the formula of the paper."""

    def prepare(self, texts: Iterable[str]) -> CorpusStats | None:
        """Statistics of all texts that encoding or aggregation needs; no model runs."""
        return None

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        """What `Result.explain` shows of each caption: by default its text, its picture and its parts."""
        return {
            row: {"caption": sample.caption, "picture": sample.picture.name}
            | {name: part[row] for name, part in parts.items()}
            for row, sample in enumerate(samples)
        }

    def score(
        self,
        captions: Sequence[str],
        images: Sequence[Any],
        references: Sequence[Sequence[str] | str] | None = None,
        *,
        rows: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> Result:
        """Score captions against their pictures (and references).

        Args:
            captions: n texts.
            images: n pictures, one per caption: paths, bytes, PIL, numpy or torch arrays, `datasets` images
                or a whole `datasets` column. Equal pictures are encoded once.
            references: per caption a list of texts, or one text; any number each.
            rows: folder that keeps rows on disk; a run that finds rows of the same content there reuses them.
            progress: show a progress bar, on a terminal only.

        Returns:
            A `Result` with one score per caption, in input order.

        Raises:
            ValueError, TypeError: what is wrong with the input, all of it at once, before any model runs.
        """
        if references is not None and not self.needs_references:
            warnings.warn(f"{self.name} needs no references: they are ignored", stacklevel=2)
            references = None
        samples = check_samples(
            captions,
            images,
            references,
            needs_references=self.needs_references,
            on_error=self.options.on_error,
            empty=self.options.empty,
        )
        stats = self.prepare(_texts(samples))
        encoded = self.encode_all(samples, stats, rows=rows, progress=progress)
        return self.combine(encoded, stats, samples=samples)

    def encode_all(
        self,
        samples: Samples,
        stats: CorpusStats | None = None,
        *,
        rows: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> pa.Table:
        """Rows of checked samples, what `combine` makes a result of; a row's index is its sample's.

        Args:
            samples: as `check_samples` gives them; their indices may be a part of a larger input's.
            stats: what `prepare` gave.
            rows, progress: as for `score`.

        Raises:
            ValueError: a picture broke after it was checked, and `on_error` is "raise".
        """
        folder = rows if rows is not None else self.options.rows
        with tqdm(
            total=len(samples), desc=self.name, unit="caption", disable=None if progress else True
        ) as bar:
            if folder is None:
                return self._encode_windows(samples, stats, TEXTS_AT_ONCE, bar)
            return self._encode_missing(samples, stats, folder, bar)

    def _encode_windows(
        self, samples: Samples, stats: CorpusStats | None, texts: int, bar: tqdm[Any]
    ) -> pa.Table:
        tables = []
        for window in _windows(samples, texts):
            for table in self.encode(window, stats):
                self._refuse_errors(table)
                tables.append(table)
                bar.update(len(table))
        return pa.concat_tables(tables)

    def _encode_missing(
        self, samples: Samples, stats: CorpusStats | None, folder: str | PathLike[str], bar: tqdm[Any]
    ) -> pa.Table:
        stamp = {"metric": self.name, **self.encoding()}
        failed = []
        with RowStore(folder, self.ROW, stamp) as store:
            _, known = store.read()
            missing = [
                row for row, i in enumerate(samples.indices) if known.get(i) != _content(samples, row)
            ]
            bar.update(len(samples) - len(missing))
            for window in _windows(samples.select(missing), _TEXTS_BETWEEN_ROWS):
                start = 0
                for table in self.encode(window, stats):
                    content = [_content(window, start + i) for i in range(len(table))]
                    store.append(table, content)
                    self._refuse_errors(table)
                    failed.append(table.filter(pa.compute.is_valid(table["error"])))
                    start += len(table)
                    bar.update(len(table))
            stored, _ = store.read()
        ours = stored.filter(pa.compute.is_in(stored["index"], pa.array(samples.indices, pa.int64())))
        return pa.concat_tables([ours, *failed])

    def _refuse_errors(self, table: pa.Table) -> None:
        """A picture that broke after it was checked: an error, unless the user wants NaN."""
        if self.options.on_error == "raise" and table["error"].null_count < len(table):
            reasons = table["error"].drop_null().to_pylist()
            raise ValueError("\n".join(reasons))

    def combine(
        self, rows: pa.Table, stats: CorpusStats | None = None, *, samples: Samples | None = None
    ) -> Result:
        """The result of rows, gathered in any order and from any number of processes.

        Rows are sorted by index, and of several rows with one index the last counts.
        """
        rows = canonical(rows)
        values = self.aggregate(rows, stats)
        error = rows["error"].to_pylist()
        scores = [float(score) for score in values.scores]
        failed = {
            i: error[i] or "the score is not a finite number"
            for i, s in enumerate(scores)
            if not np.isfinite(s)
        }
        parts = {name: np.asarray(part).tolist() for name, part in values.parts.items()}
        evidence = None
        if self.options.evidence and samples is not None:
            evidence = self.evidence_of(samples, rows, parts)
        return Result(
            metric=self.name,
            key=self.key,
            scores=scores,
            parts=parts,
            groups=rows["group"].to_pylist(),
            signature=self.signature(rows),
            counts=Counts(
                captions=len(rows),
                failed=len(failed),
                truncated=int(np.count_nonzero(rows["truncated"].to_numpy())),
                empty=int(np.count_nonzero(rows["empty"].to_numpy())),
            ),
            errors=failed,
            evidence=evidence,
        )

    def signature(self, rows: pa.Table | None = None) -> str:
        """Everything that a score depends on, in one line; `rows` add the number of references."""
        fields = [f"capeval:{self.name}", f"weights:{self.weights.label}", *self.options.signed()]
        if self.needs_references and rows is not None and len(rows):
            fields.append(f"refs:{self.reference_counts(rows)}")
        return "|".join([*fields, f"v:{__version__}"])

    def reference_counts(self, rows: pa.Table) -> str:
        """References per caption, as `5` or `3-5`, for metrics whose rows have `reference_cosines`."""
        counts = pa.compute.list_value_length(rows["reference_cosines"]).drop_null().to_numpy()
        if not len(counts):
            return "0"
        low, high = counts.min(), counts.max()
        return f"{low}" if low == high else f"{low}-{high}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Options are enough to open the metric in another process; tensors would be copied for nothing.
        return type(self), (self.options,)


def metric_class(name: str) -> type[CaptionMetric]:
    """The class of a metric by name; an unknown name is an error with the nearest known one."""
    if name not in METRICS:
        known = ", ".join(METRICS)
        raise ValueError(f"unknown metric {name!r}{did_you_mean(str(name), METRICS)} (known: {known})")
    module, _, class_name = METRICS[name].partition(":")
    found: type[CaptionMetric] = getattr(import_module(module), class_name)
    return found


def load(name: str, **options: Any) -> CaptionMetric:
    """Open a metric with its weights.

    Args:
        name: one of `list_metrics()`.
        **options: see `metric_class(name).Options`: `weights`, `device`, `dtype`, ...

    Raises:
        ValueError: unknown metric or device, weights that cannot be had or read.
        TypeError: unknown option, or a value of the wrong type.

    >>> metric = load("pacs", weights="tiny")
    >>> metric.signature()
    "capeval:pacs|weights:tiny@...|dtype:float32|w:2|prompt:'A photo depicts '|v:0.1.0"
    """
    found = metric_class(name)
    return found(found.Options.of(name, options))


def list_metrics() -> list[str]:
    """Names of all metrics.

    >>> list_metrics()
    ['pacs', 'refpacs', 'clips', 'refclips']
    """
    return list(METRICS)


def _cache_of(cache: str | PathLike[str] | FeatureCache | None) -> FeatureCache:
    if isinstance(cache, FeatureCache):
        return cache
    return SHARED if cache is None else FeatureCache(folder=cache)


def _texts(samples: Samples) -> Iterator[str]:
    yield from samples.captions
    for references in samples.references or []:
        yield from references


def _windows(samples: Samples, texts: int) -> Iterator[Samples]:
    """Consecutive samples of at most so many captions and references together (at least one caption)."""
    start = held = 0
    for i in range(len(samples)):
        needed = 1 + (len(samples.references[i]) if samples.references else 0)
        if i > start and held + needed > texts:
            yield samples.select(range(start, i))
            start, held = i, 0
        held += needed
    if len(samples) > start:
        yield samples.select(range(start, len(samples)))


def _content(samples: Samples, row: int) -> str:
    """Key of what row `row` was made from."""
    references = samples.references[row] if samples.references else []
    try:
        picture = samples.pictures[row].key
    except PictureError:
        picture = ""  # its row will hold the error, and is computed again in the next run
    parts = json.dumps([samples.captions[row], picture, references])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
