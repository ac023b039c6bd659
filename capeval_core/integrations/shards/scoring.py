"""Scores of plain rows, each by itself: a row that cannot be scored costs itself, and its reason is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.cache import FeatureCache
from capeval_core.errors import ProblemsError, described, naming, place, wrong_option
from capeval_core.inputs.samples import Samples, argument_of, medium_of
from capeval_core.metric import CaptionMetric, CommonOptions
from capeval_core.registry import metric_class
from capeval_core.result import parts_of
from capeval_core.rows import canonical

_CACHE_BYTES, _TEXT_BYTES = 32 << 20, 8 << 20
"""Memory for features of images and of texts: those of a web collection rarely come again."""
_COLUMNS = {"captions": "caption", "images": "image", "videos": "video"}
_ROW = "\n"  # between the number of a row and the place of a problem in it


class BatchScorer:
    """A metric that scores batches of plain rows, columns in and columns out.

    The metric is opened when the first score or the signature is asked for, and anew where it is unpickled.

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
            self.metric_class, chosen = type(metric), metric.options
        elif isinstance(metric, str):
            self.metric_class = metric_class(metric, options.pop("media", None))
            chosen = self.metric_class.Options.of(metric, options)
        else:
            fix = 'expected a name ("pacs"), with options, or a metric of capeval_core.load(...), without'
            raise wrong_option("metric", metric, described(metric), fix, kind=TypeError)
        if chosen.rows is not None:
            fix = "leave it out: a shard's own output keeps its scores"
            raise wrong_option("rows", chosen.rows, "not for rows that are scored one by one", fix)
        chosen.check_separable(self.metric_class)
        self.options = replace(chosen, on_error="nan", evidence=False)
        self.options.check(self.metric_class)
        argument = argument_of(self.metric_class.media)
        self._visual = [] if argument is None else [medium_of(argument)]
        references = ["references"] if self.metric_class.needs_references else []
        self.columns = ["caption", *self._visual, *references]
        self._given = metric if isinstance(metric, CaptionMetric) else None  # keeps its models in memory
        self._opened: CaptionMetric | None = None

    @property
    def metric(self) -> CaptionMetric:
        """The open metric."""
        if self._opened is None:
            self._opened = self.metric_class(self.options)
            self.forget()
        return self._opened

    def forget(self) -> None:
        """Forget features in memory, whose last bits depend on the batch that they were made in."""
        if self._opened is not None and self.options.cache is None:
            self._opened.cache = FeatureCache(_CACHE_BYTES, text_bytes=_TEXT_BYTES)

    @property
    def signature(self) -> str:
        """Everything that a score depends on beside its row."""
        return self.metric.signature()

    def schema(self) -> pa.Schema:
        """The columns that come out; `parts` has a field per component of the metric, a number or a list."""
        empty = self.metric.ROW.empty_table()
        kinds = {
            name: pa.from_numpy_dtype(part.dtype) if isinstance(part, np.ndarray) else pa.list_(pa.float64())
            for name, part in parts_of(self.metric.aggregate(empty), empty).items()
        }
        parts = pa.struct(list(kinds.items())) if kinds else pa.null()
        columns = {"score": pa.float64(), "parts": parts, "truncated": pa.int32(), "error": pa.string()}
        return pa.schema(list(columns.items()))

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """`score`, `parts`, `truncated` and `error` of the rows of a batch; None where there is none.

        batch: `caption`, `image` or `video`, `references`, of which the metric needs `columns`. An `error`
        that is a text is why a row is not scored. Others are ignored.
        """
        if missing := [name for name in self.columns if name not in batch]:
            fix = f"{self.metric_class.name} needs {', '.join(self.columns)}"
            raise wrong_option("batch", list(batch), f"no {' and no '.join(missing)}", fix, verb="has")
        columns = {name: list(batch[name]) for name in self.columns}
        rows = len(columns["caption"])
        given = batch.get("error", [None] * rows)
        errors = [str(error) if error and isinstance(error, str) else None for error in given]  # or NaN
        scores: list[float | None] = [None] * rows
        parts: list[dict[str, Any] | None] = [None] * rows
        truncated = [0] * rows
        samples, scored = self._checked(columns, errors)
        if samples is not None:
            table = canonical(self.metric.encode_all(samples))
            result = self.metric.combine(table)
            for i, (row, cut) in enumerate(zip(scored, table["truncated"].to_pylist(), strict=True)):
                truncated[row], errors[row] = cut, result.errors.get(i)
                if errors[row] is None:
                    scores[row] = result.scores[i]
                    parts[row] = {name: part[i] for name, part in result.parts.items()} or None
        return {"score": scores, "parts": parts, "truncated": truncated, "error": errors}

    def _checked(
        self, columns: Mapping[str, list[Any]], errors: list[str | None]
    ) -> tuple[Samples | None, list[int]]:
        """Checked samples of the rows that can be scored, and which these are; the others get an error."""

        def named(argument: str, path: Sequence[int | str]) -> str:
            return f"{path[0]}{_ROW}{place(argument, path[1:])}"

        while rows := [row for row, error in enumerate(errors) if error is None]:
            chosen = {name: [column[row] for row in rows] for name, column in columns.items()}
            visuals = chosen[self._visual[0]] if self._visual else None
            texts = chosen["caption"], visuals, chosen.get("references")
            try:
                with naming(_COLUMNS, row=named):
                    samples = self.options.check_input(self.metric_class, *texts)
            except ProblemsError as error:
                for problem in error.problems:
                    number, _, where = problem.where.partition(_ROW)
                    row, reason = rows[int(number)], str(problem._replace(where=where, fix=""))
                    errors[row] = "; ".join(filter(None, [errors[row], reason]))
            else:
                images = [image.at(self._visual[0]) if self._visual else image for image in samples.images]
                return replace(samples, images=images), rows
        return None, []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_given": None, "_opened": None}
