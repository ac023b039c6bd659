"""A metric on batches of plain rows, where a row that cannot be scored costs itself alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.errors import ProblemsError, described, naming, place, wrong_option
from capeval_core.inputs.samples import Samples, argument_of, medium_of
from capeval_core.integrations.shards.visuals import SharedVisuals
from capeval_core.matching.cosine import unit
from capeval_core.metric import CaptionMetric, CommonOptions
from capeval_core.registry import metric_class
from capeval_core.result import parts_of
from capeval_core.rows import canonical
from capeval_core.scores.pac import ClipCosine

Columns = Mapping[str, Sequence[Any]]
"""Rows by column: as many values of each name."""
_COLUMN_OF = {"captions": "caption", "images": "image", "videos": "video"}
"""The names of columns, by those of the arguments of a metric."""
_ROW_END = "\n"
"""The mark between the number of a row and the place of a problem within it."""
_IMAGE_BYTES = 32 << 20  # of the cache of a scorer: most images of a collection come once
_TEXT_BYTES = 16 << 20  # a window's texts, which other metrics and `features` read again


def new_cache() -> FeatureCache:
    """A cache for the features of the shard that is being scored."""
    return FeatureCache(_IMAGE_BYTES, text_bytes=_TEXT_BYTES)


@dataclass(frozen=True)
class ScoredRows:
    """Scores of the rows of a batch.

    columns: `score`, `parts`, `truncated` and `error`, None where there is none. keys: content keys of their
    images or videos, None without a score. samples, positions: what was encoded, and of which
    rows.
    """

    columns: dict[str, list[Any]]
    keys: list[str | None]
    samples: Samples | None
    positions: list[int]


class BatchScorer:
    """A metric that scores batches of plain rows, columns in and columns out; it is opened when it is used.

    Args:
        metric: a name, or a metric of `capeval_core.load`, whose models are shared.
        **options: of a metric given by name, and `media="video"` for one on videos, but no `rows`. A broken
            image costs its row, whatever `on_error` says.

    Raises:
        TypeError, ValueError: a metric or an option that does not exist; a metric whose scores depend on what
            else is scored: without `statistics`, or relative to one set as ECO's.
    """

    metric_class: type[CaptionMetric]
    options: CommonOptions
    columns: list[str]
    """The columns that a batch must have."""

    def __init__(self, metric: str | CaptionMetric, **options: Any) -> None:
        if isinstance(metric, CaptionMetric) and not options:
            self.metric_class = type(metric)
            metric_options = metric.options
        elif isinstance(metric, str):
            self.metric_class = metric_class(metric, options.pop("media", None))
            metric_options = self.metric_class.Options.of(metric, options)
        else:
            fix = 'expected a name ("pacs"), with options, or a metric of capeval_core.load(...), without'
            raise wrong_option("metric", metric, f"is {described(metric)}", fix, kind=TypeError)
        # A store of rows is one folder for one set; shards have as many outputs, which resume by themselves.
        if metric_options.rows is not None:
            fix = "leave it out: a shard's own output keeps its scores"
            raise wrong_option("rows", metric_options.rows, "is not for rows that are scored one by one", fix)
        self.metric_class.check_separable(metric_options)
        # A broken picture is expected among millions, and evidence of each would be larger than its row.
        self.options = replace(metric_options, on_error="nan", evidence=False)
        self.metric_class.check_options(self.options)  # now, and not in the worker that opens it
        argument = argument_of(self.metric_class.media)
        self._visual = argument and medium_of(argument)  # "image" or "video"; None of a metric on texts
        self.columns = ["caption"]
        if self._visual:
            self.columns.append(self._visual)
        if self.metric_class.needs_references:
            self.columns.append("references")
        self._shared = metric if isinstance(metric, CaptionMetric) else None  # keeps its models in memory
        self._metric: CaptionMetric | None = None
        self.traits: Counter[str] = Counter()  # of the images that have been scored, how many have each

    @property
    def metric(self) -> CaptionMetric:
        """The open metric."""
        # At its first use: a scorer is sent to workers, and its weights are opened where they are used.
        if self._metric is None:
            self._metric = self.metric_class(self.options)
            self.forget()
        return self._metric

    @property
    def signature(self) -> str:
        """Everything that a score depends on besides its row."""
        return self.metric.signature()

    def forget(self, cache: FeatureCache | None = None) -> None:
        """Forget features in memory: their last bits depend on the batch, and few would come again.

        cache: a new one that several scorers share.
        """
        # A cache that a user passes is his: what is in it stays.
        if self._metric is not None and self.options.cache is None:
            self._metric.run["cache"] = new_cache() if cache is None else cache

    def schema(self) -> pa.Schema:
        """The columns of the output; `parts` has a field per component of the metric, a number or a list."""
        # By a table without rows: a metric of another package states its parts nowhere else, and a shard
        # whose rows all fail has the columns of the others.
        empty = self.metric.ROW.empty_table()
        fields = []
        for name, part in parts_of(self.metric.aggregate(empty), empty).items():
            if isinstance(part, np.ndarray):
                kind = pa.from_numpy_dtype(part.dtype)
            elif name in empty.column_names:
                kind = empty.schema.field(name).type
            else:
                kind = pa.list_(pa.float64())
            fields.append(pa.field(name, kind))
        parts = pa.struct(fields) if fields else pa.null()
        columns = {"score": pa.float64(), "parts": parts, "truncated": pa.int32(), "error": pa.string()}
        return pa.schema(list(columns.items()))

    def __call__(self, batch: Columns) -> dict[str, list[Any]]:
        """As `score_batch`."""
        return self.score_batch(batch)

    def score_batch(
        self, batch: Columns, *, progress: Callable[[int], None] | None = None
    ) -> dict[str, list[Any]]:
        """`score`, `parts`, `truncated` and `error` of the rows of a batch; None where there is none.

        batch: `caption`, `image` or `video`, `references`, of which the metric needs `columns`. An `error`
        that is a text is why a row is not scored. Others are ignored. progress: called with a number of rows
        whenever so many more are encoded.
        """
        return self.scored(batch, progress=progress).columns

    def scored(
        self,
        batch: Columns,
        *,
        visuals: SharedVisuals | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> ScoredRows:
        """The rows of a batch as `score_batch` has them, with keys and samples.

        visuals: of these rows, shared with other scorers.
        """
        columns = {name: list(batch[name]) for name in self.columns}
        count = len(columns["caption"])
        errors = list(map(_error_text, batch.get("error", [None] * count)))
        scores: list[Any] = [None] * count
        parts: list[Any] = [None] * count
        truncated = [0] * count
        keys: list[str | None] = [None] * count
        samples, positions = self._checked(columns, errors)
        if samples is not None:
            # By the values that rows were made of: what a metric makes of them is another object each time.
            if visuals is not None and self._visual is not None:
                values = [columns[self._visual][position] for position in positions]
                samples = replace(samples, images=visuals.of(values, samples.images, self.options))
            table = canonical(self.metric.encode_all(samples, on_rows=progress))
            for image in samples.images:
                self.traits.update(image.source.traits)
            result = self.metric.combine(table)
            token_ids = table["truncated"].to_pylist()
            groups = table["group"].to_pylist()
            # `canonical` has brought rows into the order of `positions`.
            for i, position in enumerate(positions):
                truncated[position] = token_ids[i]
                errors[position] = result.errors.get(i)
                # The score of a failed row is NaN, which in a column of numbers would count as one.
                if errors[position] is None:
                    keys[position] = groups[i]
                    scores[position] = result.scores[i]
                    parts[position] = {name: part[i] for name, part in result.parts.items()} or None
        scored = {"score": scores, "parts": parts, "truncated": truncated, "error": errors}
        return ScoredRows(scored, keys, samples, positions)

    @property
    def has_features(self) -> bool:
        """Whether a feature of the image and one of the caption make the score, as in CLIP-S."""
        return issubclass(self.metric_class, ClipCosine)

    @property
    def dimension(self) -> int:
        """The length of a feature."""
        return int(self.metric.encoder.dimension)

    def features(self, rows: ScoredRows) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """(n, d) features of the images and of the captions of rows, of length 1; NaN where there are none.

        The cache has them from the scores of these rows, so that nothing is encoded again.
        """
        metric = self.metric
        assert isinstance(metric, ClipCosine)
        shape = (len(rows.keys), self.dimension)
        images = np.full(shape, np.nan, np.float16)
        texts = np.full(shape, np.nan, np.float16)
        if rows.samples is None:
            return images, texts
        texts[rows.positions] = unit(metric.text_features(rows.samples.captions).features)
        start = 0
        # Part by part, as they are made: in float32 all of a window are twice as large as the output.
        for part in metric.image_features(rows.samples.images):
            positions = rows.positions[start : start + len(part.keys)]
            images[positions] = unit(part.features)
            start += len(part.keys)
        return images, texts

    def _checked(
        self, columns: Mapping[str, list[Any]], errors: list[str | None]
    ) -> tuple[Samples | None, list[int]]:
        """Checked samples of the rows that can be scored, and their positions; the others get an error."""
        while True:
            positions = [position for position, error in enumerate(errors) if error is None]
            if not positions:
                return None, []
            try:
                samples = self._samples(columns, positions)
            except ProblemsError as error:
                # Each row of a problem gets its error, and what remains is checked again.
                for problem in error.problems:
                    number, _, where = problem.where.partition(_ROW_END)
                    position = positions[int(number)]
                    reason = str(problem._replace(where=where, fix=""))
                    earlier = errors[position]
                    errors[position] = reason if earlier is None else f"{earlier}; {reason}"
            else:
                return samples, positions

    def _samples(self, columns: Mapping[str, list[Any]], positions: Sequence[int]) -> Samples:
        """Samples of rows; a ProblemsError names a row by its number in `positions`."""

        def numbered(argument: str, path: Sequence[int | str]) -> str:
            return f"{path[0]}{_ROW_END}{place(argument, path[1:])}"

        def values(name: str | None) -> list[Any] | None:
            if name is None or name not in columns:
                return None
            return [columns[name][position] for position in positions]

        with naming(_COLUMN_OF, row=numbered):
            samples = self.metric_class.check_input(
                self.options, values("caption"), values(self._visual), values("references")
            )
        if self._visual is None:
            return samples
        # Later errors name the column instead of the number of the row.
        return replace(samples, images=[visual.at(self._visual) for visual in samples.images])

    def __getstate__(self) -> dict[str, Any]:
        # Workers open their own: models would be sent with every task, and those on a GPU to another one.
        return {**vars(self), "_shared": None, "_metric": None}


def _error_text(error: object) -> str | None:
    """An error of a row; pandas writes NaN where there is none."""
    return str(error) if error and isinstance(error, str) else None
