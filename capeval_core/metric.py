"""The contract of every metric: from captions to rows, and from rows to a result."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from capeval_core._version import __version__
from capeval_core.cache import shared_cache
from capeval_core.errors import folder_path
from capeval_core.inputs.samples import Samples, check_samples, windows
from capeval_core.memory import FreedMemory
from capeval_core.options import Options as CommonOptions
from capeval_core.result import Counts, Result
from capeval_core.rows import RowStore, canonical, check_folder, content_key
from capeval_core.weights.catalogue import WeightsEntry
from capeval_core.weights.folder import WeightsFolder, open_weights

if TYPE_CHECKING:
    from capeval_core.models.model import CheckedModel

TEXTS_AT_ONCE = 65_536
"""Captions and references that are encoded together, which bounds memory for any number of captions."""
_TEXTS_BETWEEN_ROWS = 8_192  # where rows are kept on disk, so that a kill loses less


@dataclass(frozen=True)
class Model:
    """A model that rows depend on: its label in the signature, and the fingerprint in stamps of rows."""

    label: str
    fingerprint: str


@dataclass(frozen=True)
class Published:
    """A value that a paper reports, so that a reader can place another one beside it.

    captions: whose captions were scored. value: their mean. dataset: on which images. weights: with which
    weights, a repository of the catalogue. source: paper and table. settings: what it was computed with
    instead of the default options, in words; '' if those were the options.
    """

    captions: str
    value: float
    dataset: str
    weights: str
    source: str
    settings: str = ""


@dataclass(frozen=True)
class Values:
    """scores: (n,) float64, NaN where a row failed. parts: named components, (n,) each.

    of: the place of each score's row, for a metric that does not score every row; None: every row has one.
    """

    scores: np.ndarray[Any, np.dtype[np.float64]]
    parts: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]
    of: np.ndarray[Any, np.dtype[np.int64]] | None = None


class CaptionMetric(ABC):
    """A caption metric: what it is, and how captions become rows and rows a result.

    A subclass states the class attributes, opens its models in `open_models`, and implements `encode`
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
    pools: ClassVar[bool] = False
    """Whether it takes a list of candidates per image, and scores the one that it chooses."""
    relative: ClassVar[str | None] = None
    """Why a score has a meaning within the set that was scored only; None if it stands by itself."""
    media: ClassVar[tuple[str, ...]] = ("image",)
    plots: ClassVar[bool] = False
    """Whether what `Result.explain` gives can be drawn, by its `plot()`."""
    default_weights: ClassVar[WeightsEntry]
    tiny: ClassVar[str]
    """Folder of the embedded small model that `weights="tiny"` means."""
    Options: ClassVar[type[CommonOptions]] = CommonOptions
    ROW: ClassVar[pa.Schema]
    published: ClassVar[tuple[Published, ...]] = ()
    """What papers report for this metric, lowest first; each says how it differs from the default options."""

    def __init__(self, options: CommonOptions) -> None:
        self.check_options(options)
        self.options = options
        self.cache = shared_cache(options.cache)
        self.models = self.open_models()
        self._stores: dict[Path, RowStore] = {}

    @classmethod
    @abstractmethod
    def encoder_class(cls) -> type[CheckedModel]:
        """The class of the encoder that the option `weights` is for, which `capeval convert` makes."""

    @abstractmethod
    def open_models(self) -> dict[str, Model]:
        """Load every model that rows depend on; the keys are their names in the signature."""

    @abstractmethod
    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        """Tables of schema `ROW` that cover the batch in order; a row does not depend on other rows."""

    @abstractmethod
    def aggregate(self, rows: pa.Table) -> Values:
        """Scores and parts of rows that are sorted by index: the formula of the paper.

        It sees all rows, so statistics of the corpus (idf, z-scores) are made here, of what rows hold.
        """

    def weights_folder(self) -> WeightsFolder:
        """The folder that the option `weights` means, by default the metric's published weights."""
        chosen = self.options.weights
        weights = self.default_weights.repository if chosen is None else chosen
        folder = open_weights(weights, metric=self.name, tiny=self.tiny)
        entry = folder.entry
        if entry is not None and entry.metrics and self.name not in entry.metrics:
            warnings.warn(
                f"{entry.title} ({folder.name}) is for {' and '.join(entry.metrics)}: what {self.name} "
                f"computes with it is not {self.title}, and its signature says so",
                stacklevel=2,
            )
        return folder

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        """What `Result.explain` shows of each caption: by default its text, its image and its parts."""
        return {
            row: {"caption": sample.caption, "image": sample.image.name}
            | {name: part[row] for name, part in parts.items()}
            for row, sample in enumerate(samples)
        }

    def score(
        self,
        captions: Sequence[str] | Sequence[Sequence[str]],
        images: Sequence[Any],
        references: Sequence[Sequence[str] | str] | None = None,
        *,
        rows: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> Result:
        """Score captions against their images (and references).

        Args:
            captions: n texts; for a metric that chooses (`pools`), n lists of texts.
            images: n images, one per caption: paths, bytes, PIL, numpy or torch arrays, `datasets` images
                or a whole `datasets` column. Equal images are encoded once.
            references: per caption a list of texts, or one text; any number each.
            rows: folder that keeps rows on disk; a run that finds rows of the same content there reuses them.
            progress: show a progress bar, on a terminal only.

        Returns:
            A `Result` with one score per caption, in input order, each within `self.range` at the
            default options.

        Raises:
            ValueError, TypeError: what is wrong with the input, all of it at once, before any model runs.
            ValueError: an image that broke after it was checked, if `on_error` is "raise".
            MemoryError: the given `batch_size`, or a single item, does not fit into memory.

        >>> import capeval_core, numpy as np
        >>> metric = capeval_core.load("pacs", weights="tiny")
        >>> grey = np.full((48, 48, 3), 128, dtype="uint8")
        >>> result = metric.score(["a red circle", "a grey wall"], [grey, grey])
        >>> len(result.scores), result.counts.captions
        (2, 2)
        """
        if references is not None and not self.needs_references:
            warnings.warn(f"{self.name} needs no references: they are ignored", stacklevel=2)
            references = None
        if rows is not None:
            check_folder(rows)
        samples = self.check(captions, images, references)
        return self.score_samples(samples, rows=rows, progress=progress)

    def score_samples(
        self, samples: Samples, *, rows: str | PathLike[str] | None = None, progress: bool = False
    ) -> Result:
        """The result of input that `check` or `check_input` has found sound; the rest is as for `score`."""
        encoded = self.encode_all(samples, rows=rows, progress=progress)
        self.flush()
        return self.combine(encoded, samples=samples)

    def check(self, captions: Any, images: Any, references: Any = None) -> Samples:
        """Everything that a user handed in, checked by this metric's needs and options.

        Errors are those of `score`, before any model runs.
        """
        return self.check_input(self.options, captions, images, references)

    @classmethod
    def check_options(cls, options: CommonOptions) -> None:
        """Refuse options that cannot work, as far as that shows before any weights are opened.

        Raises:
            ValueError, TypeError: the device is not there, no rows can be kept in the folder, or a prompt
                leaves no room for a caption.
        """
        if options.device is not None:
            from capeval_core.models.device import resolve_device

            resolve_device(options.device)
        if options.rows is not None:
            check_folder(options.rows)

    @classmethod
    def check_input(
        cls, options: CommonOptions, captions: Any, images: Any, references: Any = None
    ) -> Samples:
        """What `check` does with these options, before any weights are opened."""
        return check_samples(
            captions,
            images,
            references,
            needs_references=cls.needs_references,
            on_error=options.on_error,
            empty=options.empty,
            media=cls.media,
        )

    def encode_all(
        self,
        samples: Samples,
        *,
        rows: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> pa.Table:
        """Rows of checked samples, what `combine` makes a result of; a row's index is its sample's.

        Args:
            samples: as `check_samples` gives them; their indices may be a part of a larger input's.
            rows, progress: as for `score`.

        Raises:
            ValueError: an image broke after it was checked, and `on_error` is "raise".
        """
        folder = rows if rows is not None else self.options.rows
        with self.progress_bar(len(samples), progress) as bar:
            store = None if folder is None else self.store(folder, self.ROW, self.stamp())
            return self.fill(samples, self.encode, store, bar)

    def progress_bar(self, captions: int, shown: bool) -> tqdm[Any]:
        """A bar of so many captions; it shows on a terminal only."""
        return tqdm(total=captions, desc=self.name, unit="caption", disable=None if shown else True)

    def fill(
        self,
        samples: Samples,
        encode: Callable[[Samples], Iterator[pa.Table]],
        store: RowStore | None,
        bar: tqdm[Any],
    ) -> pa.Table:
        """Rows of samples: those that the store has, and the others by `encode`, window by window.

        Args:
            encode: as the method.
            store: keeps what is encoded, so that an interrupted run goes on where it stopped; None: nothing
                is kept.
        """
        tables, texts, freed = [], TEXTS_AT_ONCE, FreedMemory()
        if store is not None:
            reused, missing = store.reuse(samples.indices, lambda row: content_key(samples, row))
            bar.update(len(reused))
            tables.append(reused)
            samples, texts = samples.select(missing), _TEXTS_BETWEEN_ROWS
        try:
            for window in windows(samples, texts):
                start = 0
                for table in encode(window):
                    if store is not None:
                        store.append(table, [content_key(window, start + i) for i in range(len(table))])
                    self._refuse_errors(table)
                    tables.append(table)
                    start += len(table)
                    freed.add(len(table))
                    bar.update(len(table))
        except BaseException:
            if store is not None:
                store.flush()  # on errors and Ctrl-C too: nothing that was computed is lost
            raise
        return pa.concat_tables(tables)

    def store(self, folder: str | PathLike[str], schema: pa.Schema, stamp: Mapping[str, Any]) -> RowStore:
        """The rows in a folder, opened once; `flush` writes them.

        Raises:
            TypeError, ValueError: the folder holds rows of another stamp, or is not a folder of rows.
        """
        path = folder_path("rows", folder).resolve()
        if path not in self._stores:
            self._stores[path] = RowStore(folder, schema, stamp)
        return self._stores[path]

    def flush(self) -> None:
        """Write rows that are not on disk yet; `score` does it at its end."""
        for store in self._stores.values():
            store.flush()

    def _refuse_errors(self, table: pa.Table) -> None:
        """An image that broke after it was checked: an error, unless the user wants NaN."""
        if self.options.on_error == "raise" and table["error"].null_count < len(table):
            reasons = table["error"].drop_null().to_pylist()
            raise ValueError("\n".join(reasons))

    def combine(self, rows: pa.Table, *, samples: Samples | None = None) -> Result:
        """The result of rows, gathered in any order and from any number of processes.

        Rows are sorted by index, and of several rows with one index the last counts.
        """
        rows = canonical(rows)
        values = self.aggregate(rows)
        scored = rows if values.of is None else rows.take(pa.array(values.of, pa.int64()))
        error = scored["error"].to_pylist()
        scores = [float(score) for score in values.scores]
        failed = {
            i: error[i] or "the score is not a finite number"
            for i, s in enumerate(scores)
            if not np.isfinite(s)
        }
        parts = {
            name: part.tolist() if isinstance(part, np.ndarray) else list(part)
            for name, part in values.parts.items()
        }
        evidence = None
        if self.options.evidence and samples is not None:
            order = np.argsort(np.asarray(samples.indices), kind="stable")  # as the rows are
            evidence = self.evidence_of(samples.select(order.tolist()), rows, parts)
        return Result(
            metric=self.name,
            key=self.key,
            scores=scores,
            parts=parts,
            groups=scored["group"].to_pylist(),
            signature=self.signature(rows),
            counts=Counts(
                captions=len(scored),
                failed=len(failed),
                truncated=int(np.count_nonzero(scored["truncated"].to_numpy())),
                empty=int(np.count_nonzero(scored["empty"].to_numpy())),
            ),
            errors=failed,
            evidence=evidence,
            relative=self.relative,
        )

    def signature(self, rows: pa.Table | None = None) -> str:
        """Everything that a score depends on, in one line; `rows` add the number of references."""
        models = [f"{name}:{model.label}" for name, model in self.models.items()]
        fields = [f"capeval:{self.name}", *models, *self.options.signed()]
        if self.needs_references and rows is not None and len(rows):
            fewest, most = pc.min_max(rows["references"]).as_py().values()
            fields.append(f"refs:{fewest}" if fewest == most else f"refs:{fewest}-{most}")
        return "|".join([*fields, f"v:{__version__}"])

    def stamp(self) -> dict[str, Any]:
        """Everything that rows depend on beside their content, in JSON's types."""
        models = {name: model.fingerprint for name, model in self.models.items()}
        return {"metric": self.name, **models, **self.options.encoding()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.signature()})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Options are enough to open the metric in another process; tensors would be copied for nothing.
        return type(self), (self.options,)
