"""The contract of every metric: check -> prepare -> encode -> aggregate."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tqdm import tqdm

from capeval_core._version import __version__
from capeval_core.cache import shared_cache
from capeval_core.errors import InputTypeError, Problem, at, folder_path, warn, wrong_option
from capeval_core.inputs.samples import Pools, Samples, argument_of, check_pools, check_samples
from capeval_core.inputs.texts import united
from capeval_core.kept import check_folder
from capeval_core.options import CorpusStatistics
from capeval_core.options import Options as CommonOptions
from capeval_core.registry import media_of, network, package_of
from capeval_core.result import Published, Result, Values, stands_for_zero
from capeval_core.rows import RowCollector, RowStore, canonical, kept_rows
from capeval_core.statistics import CorpusFormula
from capeval_core.weights.catalogue import WeightsEntry
from capeval_core.weights.folder import WeightsFolder, open_weights

Self = TypeVar("Self", bound="CaptionMetric")


@dataclass(frozen=True)
class Model:
    """A model that rows depend on: its label in the signature, and the fingerprint in stamps of rows."""

    label: str
    fingerprint: str

    @classmethod
    def of(cls, name: str, fingerprint: str) -> Model:
        """What has no repository: its label is its name and a digest of its fingerprint."""
        digest = hashlib.blake2b(fingerprint.encode(), digest_size=4).hexdigest()
        return cls(f"{name}@{digest}", fingerprint)


class CaptionMetric(ABC):
    """A caption metric: captions and images are checked and encoded to rows, rows are aggregated to scores.

    A subclass states the facts and implements `encode` (neural, per caption) and `aggregate` (cheap, sees all
    rows). If encoding needs statistics of the whole corpus, its options are `CorpusOptions`, `prepare` makes
    them, and `encode` reads them from `options.statistics`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    key: ClassVar[str]
    """Name of the value in an `evaluate` result."""
    summary: ClassVar[str]
    paper: ClassVar[str]
    """Authors, title, venue and address."""
    bibtex: ClassVar[str] = ""
    """The paper's entry."""
    range: ClassVar[tuple[float, float]]
    higher_is_better: ClassVar[bool] = True
    needs_references: ClassVar[bool] = False
    media: ClassVar[tuple[str, ...]] = ("image",)
    """Kinds of visuals that captions are about: "image", "video", "boxes"; none for texts alone."""
    variant: ClassVar[str | None] = None
    """The medium that `load(name, media=...)` chooses this class by, where another class is the default."""
    crops: ClassVar[bool] = True
    """Whether it sees the square in an image's centre only."""
    part_titles: ClassVar[Mapping[str, str]] = {}
    """What papers call the parts of its scores, by their names in `Result.parts`, where it is another."""
    relative: ClassVar[str | None] = None
    """Why its scores can be compared within one set only; None if with those of other sets, too."""
    plots: ClassVar[bool] = False
    """Whether the evidence that `Result.explain` returns has a `plot()`."""
    default_weights: ClassVar[WeightsEntry | None] = None
    """None: the metric has no weights."""
    network: ClassVar[str | None] = None
    """Kind of the network that the option `weights` is for, one of `registry.NETWORKS`."""
    tiny: ClassVar[str | None] = None
    """Folder of the embedded small model that `weights="tiny"` means."""
    formula: ClassVar[CorpusFormula | None] = None
    """How its number comes from sums over captions (BLEU), its values' names in `evaluate` included; None:
    it is the mean of the scores."""
    reference_columns: ClassVar[tuple[str, ...]] = ()
    """List columns of `ROW` with one entry per reference, in their order. Where all that depends on
    references stands in them, the score with fewer references is another aggregation of the same rows."""
    corpus_texts: ClassVar[str] = "captions + references"
    """Which texts `corpus` gives, by these words; in messages."""
    Options: ClassVar[type[CommonOptions]] = CommonOptions
    ROW: ClassVar[pa.Schema]
    published: ClassVar[tuple[Published, ...]] = ()
    """Means that papers report for this metric, lowest first."""
    encoder: Any
    folder: WeightsFolder

    def __init__(self, options: CommonOptions) -> None:
        self.check_options(options)
        self.package = package_of(type(self))
        self.options = options
        self.cache = shared_cache(options.cache)
        self.models = self.open_models()
        self._stores: dict[tuple[Path, str], RowStore] = {}

    @classmethod
    def encoder_class(cls) -> type[Any]:
        """The class of the encoder that the option `weights` is for, which `capeval convert` makes."""
        if cls.network is None:
            raise ValueError(f"{cls.name} has no weights")
        return network(cls.network)

    def open_models(self) -> dict[str, Model]:
        """Load every model that rows depend on, by its name in the signature: here that of `weights`."""
        if self.network is None:
            return {}
        self.folder = self.weights_folder()
        self.encoder = self.encoder_class().open(
            self.folder, device=self.options.device, dtype=self.options.dtype
        )
        return {"weights": Model(self.folder.label(self.encoder.fingerprint), self.encoder.fingerprint)}

    def prepare(self, texts: Sequence[Any]) -> CorpusStatistics | None:
        """Statistics that encoding needs, from the documents that `corpus` gives; None: no need."""
        return None

    def corpus(self, samples: Samples) -> list[Any]:
        """The documents that `prepare` takes: captions, then references, as `corpus_texts` names them."""
        captions = samples.captions if "captions" in self.corpus_texts else []
        references = samples.references if "references" in self.corpus_texts else None
        return [*captions, *(text for row in references or [] for text in row)]

    @abstractmethod
    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        """Tables of schema `ROW` that cover the batch in order; a row does not depend on other rows."""

    @abstractmethod
    def aggregate(self, rows: pa.Table) -> Values:
        """Scores and parts of all rows, sorted by index: the formula of the paper."""

    def weights_folder(self) -> WeightsFolder:
        """The folder that the option `weights` means, by default the metric's published weights."""
        if self.default_weights is None or self.tiny is None:
            raise ValueError(f"{self.name} has no weights")
        chosen = self.options.weights
        weights = self.default_weights.repository if chosen is None else chosen
        folder = open_weights(weights, metric=self.name, tiny=self.tiny)
        entry = folder.entry
        if entry is not None and entry.metrics and self.name not in entry.metrics:
            warn(
                f"{entry.title} ({folder.name}) is for {' and '.join(entry.metrics)}: what {self.name} "
                f"computes with it is not {self.title}, and its signature says so"
            )
        return folder

    def score(
        self,
        captions: Sequence[str] | Sequence[Sequence[str]],
        images: Sequence[Any] | None = None,
        references: Sequence[Sequence[str] | str] | None = None,
        *,
        videos: Sequence[Any] | None = None,
        rows: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> Result:
        """Score captions against their images (and references).

        Args:
            captions: n texts; for a `Reranker` n lists of candidates.
            images: n images, one per caption: paths, bytes, PIL, numpy or torch arrays, `datasets` images
                or a whole `datasets` column. Equal images are encoded once. A metric on texts alone ignores
                them.
            references: per caption a list of texts, or one text; any number each.
            videos: n videos instead of images, for a metric on videos: paths, lists of frames, arrays.
            rows: folder that keeps rows on disk; a run that finds rows of the same content there reuses them.
            progress: show progress bars, on a terminal only: of images that are checked, of captions.

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
        visuals = self._visuals_among({"images": images, "videos": videos}, references)
        if references is not None and not self.needs_references:
            warn(f"{self.name} needs no references: they are ignored")
            references = None
        if rows is not None:
            check_folder("rows", rows)
        options = self.options if rows is None else replace(self.options, rows=rows)
        samples = self.check_input(options, captions, visuals, references, progress=progress)
        prepared = self.prepared(samples)  # combines, too: its signature names the corpus
        table = prepared.encode_all(samples, rows=rows, progress=progress)
        result = prepared.combine(table, samples=samples)
        if message := stands_for_zero(result):
            warn(message)
        return result

    @classmethod
    def _visuals_among(cls, given: Mapping[str, Any], references: Any) -> Any:
        """Those visuals that this metric is about, None where it is on texts; others are refused."""
        argument = argument_of(cls.media)
        others = [name for name, value in given.items() if value is not None and name != argument]
        if argument is None and references is None and "images" in others:
            found = f"are given, but {cls.name} compares texts alone"
            raise InputTypeError(Problem(at("images"), found, "pass references=... by its name", TypeError))
        if argument is None:
            for name in others:
                warn(f"{cls.name} compares texts alone: {name} are ignored")
            return None
        if others:
            found, other = f"is given, but this {cls.name} is about {argument}", others[0][:-1]
            opened = f", or open load({cls.name!r}, media={other!r})" if other in media_of(cls.name) else ""
            fix = f"pass {argument}=...{opened}"
            raise InputTypeError(Problem(at(others[0]), found, fix, TypeError))
        return given[argument]

    def check(self, captions: Any, images: Any, references: Any = None) -> Samples:
        """The input of `score`, checked by this metric's needs and options; `images` may be videos."""
        return self.check_input(self.options, captions, images, references)

    @classmethod
    def check_options(cls, options: CommonOptions) -> None:
        """Refuse options that cannot work, as far as that shows before any weights are opened."""
        if options.weights is not None and cls.default_weights is None:
            found = f"{cls.name} has no weights"
            raise wrong_option("weights", str(options.weights), found, "leave the option out", verb="")
        if options.device is not None:
            from capeval_core.models.device import resolve_device

            resolve_device(options.device)
        if options.rows is not None:
            check_folder("rows", options.rows)
        options.check(cls)

    @classmethod
    def check_input(cls, options: CommonOptions, *inputs: Any, progress: bool = False) -> Samples:
        """`check` by these options, before any weights are opened; `inputs` are the arguments of `check`."""
        kept = kept_rows(options.rows) if options.rows is not None and options.on_error == "raise" else None
        return check_samples(
            *inputs,
            needs_references=cls.needs_references,
            on_error=options.on_error,
            empty=options.empty,
            media=cls.media,
            decoders=getattr(options, "decoders", None),
            kept=kept,
            progress=progress,
        )

    @classmethod
    def check_separable(cls, options: CommonOptions, *, scores: bool = True) -> None:
        """Refuse options by which a caption's score, or already its row, depends on the other captions."""
        if scores and cls.relative is not None:
            raise ValueError(
                f"{cls.name} cannot score a collection part by part: {cls.relative}; score a whole set by "
                f"capeval_core.load({cls.name!r}, ...).score(...)"
            )
        if options.weighs_together if scores else options.lacks_statistics:
            media = "" if cls.variant is None else f"media={cls.variant!r}, "
            raise ValueError(
                f"{cls.name} needs statistics of the whole corpus before it encodes a part: make them by "
                f"capeval_core.load({cls.name!r}, {media}...).prepare({cls.corpus_texts}) and pass "
                f"statistics=...{options.without_statistics}"
            )

    def prepared(self: Self, samples: Samples, *others: Samples) -> Self:
        """This metric with statistics of a corpus, if it needs them; `others` are further systems."""
        if not self.options.lacks_statistics:
            return self
        return self.with_statistics(self.prepare(united([self.corpus(own) for own in (samples, *others)])))

    def with_statistics(self: Self, statistics: CorpusStatistics | None) -> Self:
        """This metric with statistics of a corpus."""
        prepared = object.__new__(type(self))  # the models stay open, which a new metric would open again
        options: Any = self.options
        vars(prepared).update(vars(self), options=replace(options, statistics=statistics))
        return prepared

    def encode_all(
        self, samples: Samples, *, rows: str | PathLike[str] | None = None, progress: bool = False
    ) -> pa.Table:
        """Rows of checked samples, for `combine`, in any order; `rows` and `progress` are as for `score`."""
        self.check_separable(self.options, scores=False)
        folder = self.options.rows if rows is None else rows
        with (
            self._progress_bar(len(samples), progress) as bar,
            self.collector(samples, self.ROW, folder, self.stamp(), bar) as collector,
        ):
            for window in collector.windows():
                for table in self.encode(window):
                    collector.add(table)
        return collector.table()

    def _progress_bar(self, captions: int, shown: bool) -> tqdm[Any]:
        """A bar of so many captions; it shows on a terminal only."""
        return tqdm(total=captions, desc=self.name, unit="caption", disable=None if shown else True)

    def collector(
        self,
        samples: Samples,
        schema: pa.Schema,
        folder: str | PathLike[str] | None,
        stamp: Mapping[str, Any],
        bar: tqdm[Any],
    ) -> RowCollector:
        """The collector of samples' rows; `folder` and `stamp` are of its store, if it has one."""
        store = None if folder is None else self._store(folder, schema, stamp)
        return RowCollector(samples, schema, store, bar, refuse_errors=self.options.on_error == "raise")

    def _store(self, folder: str | PathLike[str], schema: pa.Schema, stamp: Mapping[str, Any]) -> RowStore:
        """The rows in a folder, opened once; `flush` writes them."""
        key = folder_path("rows", folder).resolve(), json.dumps(stamp, sort_keys=True)
        if key not in self._stores:
            self._stores[key] = RowStore(folder, schema, stamp)
        return self._stores[key]

    def flush(self) -> None:
        """Write rows that are not on disk yet; `combine` does it, too."""
        for store in self._stores.values():
            store.flush()

    def combine(self, rows: pa.Table, *, samples: Samples | None = None) -> Result:
        """The result of rows from any number of processes; of several with one index the last counts."""
        self.flush()
        rows = canonical(rows)
        values = self.aggregate(rows)
        result = Result.of(
            values,
            values.scored(rows),
            metric=self.name,
            key=self.key,
            signature=self.signature(rows),
            relative=self.relative,
            formula=self.formula,
            range=values.range or self.range,
        )
        if not self.options.evidence or samples is None:
            return result
        order = np.argsort(np.asarray(samples.indices), kind="stable")  # as the rows are
        return replace(result, evidence=self.evidence_of(samples.select(order.tolist()), rows, result.parts))

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        """What `Result.explain` returns for each caption: by default its text, image and parts."""
        return {
            row: {"caption": caption, "image": image.label}
            | {name: part[row] for name, part in parts.items()}
            for row, (caption, image) in enumerate(zip(samples.captions, samples.images, strict=True))
        }

    def signature(self, rows: pa.Table | None = None) -> str:
        """Everything that a score depends on, in one line; `rows` add the number of references."""
        models = [f"{name}:{model.label}" for name, model in self.models.items()]
        media = [] if self.variant is None else [f"media:{self.variant}"]
        package = [] if self.package is None else [f"package:{self.package}"]
        fields = [f"capeval:{self.name}", *media, *package, *models, *self.options.signed()]
        if self.needs_references and rows is not None and len(rows):
            fewest, most = pc.min_max(rows["references"]).as_py().values()
            fields.append(f"refs:{fewest}" if fewest == most else f"refs:{fewest}-{most}")
        return "|".join([*fields, f"v:{__version__}"])

    def stamp(self) -> dict[str, Any]:
        """Everything that rows depend on beside their content, in JSON's types."""
        models = {name: model.fingerprint for name, model in self.models.items()}
        media = {} if self.variant is None else {"media": self.variant}
        package = {} if self.package is None else {"package": self.package}
        return {"metric": self.name, **media, **package, **models, **self.options.encoding()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.signature()})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Options are enough to open the metric in another process; tensors would be copied for nothing.
        return type(self), (self.options,)


@dataclass(frozen=True)
class Choices(Values):
    """Scores of the candidates that were chosen, one per image, whose positions among all rows are `rows`."""

    rows: NDArray[np.int64]

    def scored(self, rows: pa.Table) -> pa.Table:
        """The rows of the chosen candidates."""
        return rows.take(pa.array(self.rows, pa.int64()))


class Reranker(CaptionMetric):
    """A metric that takes a pool of candidates per image, and chooses and scores one of them.

    A row is a candidate, a score belongs to an image. `aggregate` returns `Choices`. Scores compare the
    candidates of one set, so `Result.interval` and `Result.compare` are undefined.
    """

    crops = False

    @classmethod
    def check_input(cls, options: CommonOptions, *inputs: Any, progress: bool = False) -> Samples:
        captions, images = inputs[:2]
        how: Any = {"on_error": options.on_error, "empty": options.empty, "media": cls.media}
        return check_pools(captions, images, progress=progress, **how)

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        """What `Result.explain` returns for each image: its name and its parts."""
        return {
            image: {"image": samples.images[start].label}
            | {name: part[image] for name, part in parts.items()}
            for image, start in enumerate(pools_of(samples).starts)
        }


def pools_of(samples: Samples) -> Pools:
    """Samples of a `Reranker`, which come in pools."""
    if not isinstance(samples, Pools):
        raise TypeError("expected pools of candidates, as check() of a Reranker returns them")
    return samples
