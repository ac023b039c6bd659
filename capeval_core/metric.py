"""The contract of every metric: check -> prepare -> encode -> aggregate."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from os import PathLike
from typing import Any, ClassVar, Literal, TypedDict, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from capeval_core.cache import FeatureCache, shared_cache
from capeval_core.errors import InputTypeError, Problem, at, warn, wrong_option
from capeval_core.fetching import listed_entry, open_listed
from capeval_core.inputs.notes import Notes
from capeval_core.inputs.samples import Samples, argument_of, check_samples, medium_of, united
from capeval_core.options import Settings, option
from capeval_core.project import __version__
from capeval_core.registry import media_of, network, network_of, package_of
from capeval_core.result import Result, Values, warn_of
from capeval_core.row_store import RowStores, kept_rows
from capeval_core.rows import canonical
from capeval_core.run import Task, encode_tasks
from capeval_core.statistics import CorpusFormula
from capeval_core.store import check_folder
from capeval_core.weights.catalogue import WeightsEntry
from capeval_core.weights.folder import WeightsFolder

Evidence = dict[int, dict[str, Any]]  # per row what `Result.explain` returns


@dataclass(frozen=True, kw_only=True)
class CommonOptions(Settings):
    """The options of every metric; a metric adds its own."""

    weights: str | PathLike[str] | None = option(
        None, "Hub id (`@revision` pins it), folder, or `tiny`; None: the metric's published weights"
    )
    device: str | None = option(None, "torch device, e.g. `cpu`, `cuda:1`; None: CUDA where there is a GPU")
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "numeric type of the encoders", sign="dtype", encodes=True
    )
    batch_size: int | None = option(None, "images or texts per forward pass; None: as many as fit", minimum=1)
    cache: str | PathLike[str] | FeatureCache | None = option(
        None, "folder that keeps features on disk; None: only in memory, 512 MB shared by all metrics"
    )
    rows: str | PathLike[str] | None = option(None, "folder that keeps rows, so an interrupted run goes on")
    on_error: Literal["raise", "nan"] = option(
        "raise", "if an image is unreadable: `raise` before any model runs, or `nan` for its captions alone"
    )
    empty: Literal["error", "score"] = option(
        "error", "how to treat an empty caption: as an `error`, or `score` the bare prompt (and count it)"
    )
    compat: Literal["released"] | None = option(
        None, "`released`: as the released script where it differs from the paper", sign="compat"
    )
    exif: Literal["turn"] | None = option(
        None,
        "`turn`: turn images as their EXIF orientation says; None: score them as they are stored, as the "
        "originals do",
        sign="exif",
        encodes=True,
        flag="exif-turn",
    )
    evidence: bool = option(False, "keep the evidence behind each score, for `result.explain(i)` and --json")

    without_statistics: ClassVar[str] = ""  # how to do without statistics of a corpus, in messages

    @property
    def images_are_ids(self) -> bool:
        """Return whether `images` are ids of images whose features are precomputed."""
        return False

    @property
    def lacks_statistics(self) -> bool:
        """Return whether encoding needs `statistics` of the whole corpus, and there are none."""
        return False

    @property
    def weighs_together(self) -> bool:
        """Return whether a score depends on the other captions of its set, for want of `statistics`."""
        return self.lacks_statistics

    @property
    def corpus_statistics(self) -> CorpusStatistics | None:
        """The statistics of a corpus that were passed; None without any."""
        return None

    def encoding(self) -> dict[str, Any]:
        """The options that rows depend on, and their values in JSON's types."""
        values = {}
        for name, description in self.describe().items():
            if description.encodes:
                values[name] = self._recorded(name)
        if values.get("exif") is None:  # there are rows on disk from before there was this option
            values.pop("exif", None)
        return values

    def signed(self) -> list[str]:
        """`name:value` of each option that moves the score and is not at its default, in their order."""
        fields = []
        for name, description in self.describe().items():
            value = self._recorded(name)
            if description.sign is not None and value is not None:
                fields.append(description.signed(value))
        return self.without_defaults(fields)

    @classmethod
    def without_defaults(cls, fields: Sequence[str]) -> list[str]:
        """The fields of a signature that state no default, so that a new option changes no signature."""
        defaults = {description.default_sign for description in cls.describe().values()}
        return [field for field in fields if field not in defaults]

    def _recorded(self, name: str) -> Any:
        value = getattr(self, name)
        return value.fingerprint if isinstance(value, CorpusStatistics) else value


class CorpusStatistics:
    """Statistics of a corpus that encoding needs, made by `CaptionMetric.prepare`; they can be pickled."""

    @property
    def fingerprint(self) -> str:
        """Digest of the content, for stamps of rows and signatures."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(CommonOptions):
    """The options of a metric whose encoding needs statistics of the whole corpus."""

    statistics: CorpusStatistics | None = option(
        None, "by `prepare`; None: of all texts that are scored", sign="statistics", encodes=True, flag=False
    )

    @property
    def corpus_statistics(self) -> CorpusStatistics | None:
        return self.statistics

    @property
    def lacks_statistics(self) -> bool:
        return self.statistics is None


class RunSettings(TypedDict):
    """The keywords that every encoder takes."""

    cache: FeatureCache
    batch_size: int | None


@dataclass(frozen=True)
class Model:
    """A model that rows depend on: its label in the signature, and the fingerprint in stamps of rows."""

    label: str
    fingerprint: str

    @classmethod
    def of(cls, name: str, fingerprint: str) -> Model:
        """A model without a repository: its label is its name and a digest of its fingerprint."""
        digest = hashlib.blake2b(fingerprint.encode(), digest_size=4).hexdigest()
        return cls(f"{name}@{digest}", fingerprint)


class CaptionMetric(ABC):
    """A caption metric: captions and images are checked and encoded to rows, rows are aggregated to scores.

        captions, images, references
            |  check_options, check_input    wrong input is refused, before weights are opened
        Samples
            |  encode                        neural, each caption by itself: streams, resumes, many processes
        rows, a table of schema ROW
            |  aggregate                     the formula of the paper: cheap, sees all rows
        Values
            |  combine                       mean, counts, groups, signature
        Result

    A subclass writes five things:

        name, title, key, summary, paper, range    its facts; of this package's metrics from `papers.toml`
        Options                                    the dataclass of its options, below `CommonOptions`
        ROW                                        the columns of its rows: raw values, before any option
        encode(batch)                              Samples -> rows
        aggregate(rows)                            rows -> Values

    It inherits `score` and `check`, the opening of weights, rows on disk and resumed runs, the signature,
    pickling, and `evidence_of`. Where encoding needs statistics of the whole corpus, its options are
    `CorpusOptions`, `prepare` makes the statistics, and `encode` reads them from `options.statistics`. Where
    its options or its input need further checks, it extends `check_options` and `check_input`.
    """

    # What it is called, and what its numbers mean
    name: ClassVar[str]
    title: ClassVar[str]
    key: ClassVar[str]  # of the value in an `evaluate` result
    summary: ClassVar[str]
    paper: ClassVar[str]  # authors, title, venue and address
    bibtex: ClassVar[str] = ""
    range: ClassVar[tuple[float, float]]
    higher_is_better: ClassVar[bool] = True
    # What it takes
    needs_references: ClassVar[bool] = False
    media: ClassVar[tuple[str, ...]] = ("image",)  # or "video", "boxes"; none for texts alone
    variant: ClassVar[str | None] = None  # the medium of `load(name, media=...)`, if another is the default
    reads_objects: ClassVar[bool] = False  # whether its references may be names of objects
    counts_words: ClassVar[bool] = False  # whether it compares words, which blanks part
    languages: ClassVar[tuple[str, ...]] = ()  # that its text encoder reads; none: any, or unknown
    crops: ClassVar[bool] = True  # whether its release sees only the square in an image's centre
    part_titles: ClassVar[Mapping[str, str]] = {}  # papers' names of `Result.parts`, where they are others
    relative: ClassVar[str | None] = None  # why scores can be compared within one set only, if so
    advice: ClassVar[Mapping[str, Any]] = {}
    """Reasons to choose it or not: `for` and `blind`, the tokens that it `reads`, whether it is `slow`."""
    plots: ClassVar[bool] = False  # whether the evidence that `Result.explain` returns has a `plot()`
    # Its weights
    default_weights: ClassVar[WeightsEntry | None] = None  # None: the metric has no weights
    network: ClassVar[str | None] = None  # that the option `weights` is for, one of `registry.NETWORKS`
    any_dual_encoder: ClassVar[bool] = False  # whether every network for images and texts can take its place
    tiny: ClassVar[str | None] = None  # folder of the small model inside the package, for `weights="tiny"`
    # How rows become a number
    formula: ClassVar[CorpusFormula | None] = None  # from sums over captions (BLEU); None: a mean of scores
    reference_columns: ClassVar[tuple[str, ...]] = ()
    """List columns of `ROW` with one entry per reference, in their order. If they hold all that depends on
    references, the score with fewer references is another aggregation of the same rows."""
    corpus_texts: ClassVar[str] = "captions + references"  # which texts `corpus` gives, in messages, too
    statistics: ClassVar[type[CorpusStatistics]] = CorpusStatistics  # what `prepare` makes of them
    Options: ClassVar[type[CommonOptions]] = CommonOptions
    ROW: ClassVar[pa.Schema]
    published: ClassVar[Mapping[str, Any]] = {}
    """Values that a paper reports for it with the default weights: `dataset`, `source`, `settings` that
    are not the defaults, and `means` by captions, lowest first."""

    def __init__(self, options: CommonOptions) -> None:
        self.check_options(options)
        # Rows and signature name a package of somebody else with its version.
        self.package = package_of(type(self))
        self.options = options
        self.run = RunSettings(cache=shared_cache(options.cache), batch_size=options.batch_size)
        self.stores = RowStores()
        self.models = self.open_models()

    @cached_property
    def folder(self) -> WeightsFolder:
        """The folder that the option `weights` means, by default the metric's published weights."""
        if self.default_weights is None or self.tiny is None:
            raise ValueError(f"{self.name} has no weights")
        weights = self.options.weights or self.default_weights
        folder = open_listed(weights, metric=self.name, tiny=self.tiny)
        entry = folder.entry
        if entry and entry.metrics and self.name not in entry.metrics:
            purpose = f"{entry.title} ({folder.name}) is for {' and '.join(entry.metrics)}"
            consequence = f"what {self.name} computes with it is not {self.title}"
            warn(f"{purpose}: {consequence}, and its signature says so")
        return folder

    def open_models(self) -> dict[str, Model]:
        """Every model that rows depend on, by its name in the signature: here that of `weights`."""
        if self.network is None:
            return {}
        if self.options.rows is None:
            # With a folder of rows the network is opened where the first row is missing, if any is.
            _ = self.encoder
        fingerprint = self.network_class.fingerprint_of(self.folder)
        return {"weights": Model(self.folder.label(fingerprint), fingerprint)}

    @property
    def network_class(self) -> Any:
        """The class that opens `folder`: of `network`, or of the folder where any dual encoder will do."""
        class_ = network(str(self.network))
        if not self.any_dual_encoder:
            return class_
        from capeval_core.encoders.dual import DualEncoder

        stated = network_of(self.folder)
        return stated if issubclass(stated, DualEncoder) else class_  # which refuses them by name

    @cached_property
    def encoder(self) -> Any:
        """The network of `folder`, opened and checked where it is first needed."""
        if self.network is None:
            raise AttributeError(f"{self.name} has no network")
        encoder = self.network_class.open(self.folder, device=self.options.device, dtype=self.options.dtype)
        self.check_encoder(encoder)
        return encoder

    def check_encoder(self, encoder: Any) -> None:  # noqa: B027
        """Refuse options that do not fit the opened network."""

    @property
    def reads(self) -> int:
        """Number of tokens of a caption that the weights read, by their config; 0: as many as is usual."""
        if self.network is None:
            return 0
        architecture = self.network_class.read_config(self.folder).get("architecture", {})
        return int(architecture.get("text", {}).get("context_length", 0))

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the weights; statistics of a corpus need no more than that."""
        if self.network is None or "encoder" in vars(self):
            return self.encoder.tokenizer
        opened = self.network_class
        return opened.tokenizer_of(opened.read_config(self.folder))

    def prepare(self, texts: Sequence[Any]) -> CorpusStatistics | None:
        """Statistics that encoding needs, from the documents that `corpus` gives; None: no need."""
        return None

    def corpus(self, samples: Samples) -> list[Any]:
        """The documents that `prepare` takes: captions, then references, as `corpus_texts` names them."""
        captions = samples.captions if "captions" in self.corpus_texts else []
        references = samples.references if "references" in self.corpus_texts else None
        return [*captions, *chain.from_iterable(references or [])]

    @classmethod
    def entries(cls, options: Any) -> list[WeightsEntry]:
        """Listed weights and models that opening with these options takes, its own weights first."""
        if cls.default_weights is None:
            return []
        entry = cls.default_weights if options.weights is None else listed_entry(options.weights)
        return [] if entry is None else [entry]

    @abstractmethod
    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        """Tables of schema `ROW` that cover the batch in order; a row does not depend on other rows."""

    @abstractmethod
    def aggregate(self, rows: pa.Table) -> Values:
        """Scores and parts of all rows, sorted by index: the formula of the paper."""

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
            images: n images, one per caption: paths, bytes, PIL, numpy or torch arrays, `datasets` images or
                a whole `datasets` column. Equal images are encoded once; a metric on texts ignores them.
            references: per caption a list of texts, or one text; any number each.
            videos: n videos instead of images, for a metric on videos: paths, lists of frames, arrays.
            rows: folder that keeps rows on disk; a run that finds rows of the same content there reuses them.
            progress: show progress bars, on a terminal only: of images that are checked, of captions.

        Returns:
            A `Result`: one score per caption, in input order, within `self.range` at the default options.

        Raises:
            ValueError, TypeError: all that is wrong with the input, before any model runs; or, if `on_error`
                is "raise", an image that broke after that.
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
        metric = self if rows is None else with_options(self, rows=rows)
        if rows is not None:
            self.check_options(metric.options)
        samples = self.check_input(metric.options, captions, visuals, references, progress=progress)
        metric = prepared(metric, samples)  # combines, too: its signature names the corpus
        table = metric.encode_all(samples, progress=progress)
        result = metric.combine(table, samples=samples)
        warn_of(result)
        notes = Notes([type(self)])
        notes.add(samples)
        notes.tell()
        return result

    @classmethod
    def _visuals_among(cls, visuals: Mapping[str, Any], references: object) -> Any:
        """The visuals that this metric scores, None where it scores texts alone; others are refused."""
        argument = argument_of(cls.media)
        unsuited = []
        for name, value in visuals.items():
            if value is not None and name != argument:
                unsuited.append(name)
        if argument is not None and not unsuited:
            return visuals[argument]
        if argument is not None:
            problem = f"was passed, but {cls.name} scores {argument}"
            fix = f"pass {argument}=..."
            medium = medium_of(unsuited[0])
            if medium in media_of(cls.name):
                fix += f", or open load({cls.name!r}, media={medium!r})"
            raise InputTypeError(Problem(at(unsuited[0]), problem, fix, TypeError))
        if references is None and "images" in unsuited:  # they may have been meant as references
            problem = f"were passed, but {cls.name} compares texts alone"
            fix = "pass references=..."
            raise InputTypeError(Problem(at(unsuited[0]), problem, fix, TypeError))
        for name in unsuited:
            warn(f"{cls.name} compares texts alone: {name} are ignored")
        return None

    @classmethod
    def check_options(cls, options: CommonOptions) -> None:
        """Refuse `Options` that cannot work for this metric, before weights are opened."""
        if options.weights is not None and cls.default_weights is None:
            problem = f"{cls.name} has no weights"
            fix = "leave the option out"
            raise wrong_option("weights", str(options.weights), problem, fix, sentence=True)
        if options.device is not None:
            from capeval_core.models.device import resolve_device  # brings torch

            resolve_device(options.device)
        if options.rows is not None:
            check_folder("rows", options.rows)
        statistics = options.corpus_statistics
        if statistics is not None and not isinstance(statistics, cls.statistics):
            problem = f"is a {type(statistics).__name__}"
            fix = f"make them by prepare({cls.corpus_texts}), or give a {cls.statistics.__name__}"
            raise wrong_option("statistics", statistics, problem, fix, kind=TypeError)

    @classmethod
    def check_input(
        cls,
        options: CommonOptions,
        captions: object,
        images: object,
        references: object = None,
        *,
        decoders: int | None = None,
        progress: bool = False,
    ) -> Samples:
        """The samples of an input, checked with these `Options` before any weights are opened."""
        has_row = None
        if options.rows is not None and options.on_error == "raise":
            has_row = kept_rows(options.rows)
        return check_samples(
            captions,
            images,
            references,
            needs_references=cls.needs_references,
            pools=issubclass(cls, Reranker),
            on_error=options.on_error,
            empty=options.empty,
            media=cls.media,
            decoders=decoders,
            upright=options.exif == "turn",
            has_row=has_row,
            progress=progress,
        )

    @classmethod
    def check_separable(cls, options: CommonOptions, *, scores: bool = True) -> None:
        """Refuse options by which a caption's score, or already its row, depends on the other captions."""
        if scores and cls.relative is not None:
            problem = f"{cls.name} cannot score a collection part by part: {cls.relative}"
            raise ValueError(f"{problem}; score a whole set by its score(...)")
        depends = options.weighs_together if scores else options.lacks_statistics
        if depends:
            medium = f", media={cls.variant!r}" if cls.variant else ""
            example = f"capeval_core.load({cls.name!r}{medium}).prepare({cls.corpus_texts})"
            fix = f"pass statistics={example}{options.without_statistics}"
            problem = f"{cls.name} needs statistics of the whole corpus before it encodes a part"
            raise ValueError(f"{problem}: {fix}")

    def check(self, captions: object, images: object, references: object = None) -> Samples:
        """The input of `score`, checked by this metric's needs and options; `images` may be videos."""
        return self.check_input(self.options, captions, images, references)

    def encode_all(
        self, samples: Samples, *, progress: bool = False, on_rows: Callable[[int], None] | None = None
    ) -> pa.Table:
        """Rows of checked samples, for `combine`, in any order; `progress` is as for `score`.

        on_rows: called with a number of rows whenever so many more are encoded.
        """
        self.check_separable(self.options, scores=False)
        task = Task(self, [samples], [self.options.rows])
        encode_tasks([task], progress=progress, on_rows=on_rows)
        return task.rows[0]

    def combine(self, rows: pa.Table, *, samples: Samples | None = None) -> Result:
        """The result of rows of any processes, the last of each index; with `samples`, in order: evidence."""
        self.stores.flush()  # rows are on the disk before their number is told
        rows = canonical(rows)  # of whatever order, since processes finish as they like
        result = Result.of(self, self.aggregate(rows), rows)
        if not self.options.evidence or samples is None:
            return result
        evidence = self.evidence_of(samples, rows, result.parts)
        return replace(result, evidence=evidence, source=(self, samples, rows))

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        """The value of `Result.explain` for each caption: by default its text, image and parts."""
        evidence: Evidence = {}
        for row, (caption, image) in enumerate(zip(samples.captions, samples.images, strict=True)):
            evidence[row] = {"caption": caption, "image": image.label, **_values_at(parts, row)}
        return evidence

    def signature(self, rows: pa.Table | None = None) -> str:
        """Everything that a score depends on, in one line; `rows` add the number of references."""
        fields = [f"capeval:{self.name}"]
        fields += [f"{name}:{value}" for name, value in self._origin().items()]
        fields += [f"{name}:{model.label}" for name, model in self.models.items()]
        fields += self.options.signed()
        if self.needs_references and rows is not None and len(rows):
            fewest, most = pc.min_max(rows["references"]).as_py().values()
            fields.append(f"refs:{fewest}" if fewest == most else f"refs:{fewest}-{most}")
        return "|".join([*fields, f"v:{__version__}"])

    def stamp(self) -> dict[str, Any]:
        """Everything that rows depend on next to their content, in JSON's types."""
        fingerprints = {name: model.fingerprint for name, model in self.models.items()}
        return {"metric": self.name, **self._origin(), **fingerprints, **self.options.encoding()}

    def _origin(self) -> dict[str, str]:
        """The medium and the package, where they are not the usual ones."""
        origin: dict[str, str] = {}
        if self.variant is not None:
            origin["media"] = self.variant
        if self.package is not None:
            origin["package"] = self.package
        return origin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.signature()})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Options are enough to open the metric in another process; tensors would be copied for nothing.
        return type(self), (self.options,)


Metric = TypeVar("Metric", bound=CaptionMetric)


def prepared(metric: Metric, *systems: Samples) -> Metric:
    """A metric with statistics of the corpus that the samples of all systems form, if it needs them."""
    if not metric.options.lacks_statistics:
        return metric
    corpus = united([metric.corpus(samples) for samples in systems])
    return with_options(metric, statistics=metric.prepare(corpus))


def with_options(metric: Metric, **options: Any) -> Metric:
    """A metric with other options, which its models do not depend on: they stay open."""
    changed = object.__new__(type(metric))  # without __init__, which would open the models again
    vars(changed).update(vars(metric), options=replace(metric.options, **options))
    return changed


class Reranker(CaptionMetric):
    """A metric that takes a pool of candidates per image, and chooses and scores one of them.

    A row is a candidate, a score belongs to an image: `aggregate` gives `Values` with `rows`. Scores compare
    the candidates of one set, so `Result.interval` and `Result.compare` are undefined.
    """

    crops = False

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        """The value of `Result.explain` for each image: its name and its parts."""
        evidence: Evidence = {}
        for image, start in enumerate(samples.starts):
            evidence[image] = {"image": samples.images[start].label, **_values_at(parts, image)}
        return evidence


def _values_at(parts: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The value of each part at an index."""
    return {name: values[index] for name, values in parts.items()}


class LazyEvidence(dict[int, Mapping[str, Any]]):
    """The evidence of each score by its index, made on demand; of pools, all at once."""

    def __init__(self, metric: CaptionMetric, samples: Samples, rows: pa.Table, result: Result) -> None:
        super().__init__()
        if metric.options.weighs_together:
            # Statistics are of all captions, not of the one whose evidence is made.
            metric = with_options(metric, statistics=metric.prepare(metric.corpus(samples)))
        self._metric = metric
        self._samples = samples
        self._rows = canonical(rows)
        self._parts = result.parts

    def __missing__(self, index: int) -> Mapping[str, Any]:
        if isinstance(self._metric, Reranker):
            self.update(self._metric.evidence_of(self._samples, self._rows, self._parts))
        else:
            parts = {name: [values[index]] for name, values in self._parts.items()}
            samples = self._samples.select([index])
            rows = self._rows.slice(index, 1)
            self[index] = self._metric.evidence_of(samples, rows, parts)[0]
        return self[index]
