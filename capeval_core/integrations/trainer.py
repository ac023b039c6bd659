"""`compute_metrics` of a `transformers` Trainer: the captions of every evaluation, scored while training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from torch import distributed

from capeval_core.cache import FeatureCache
from capeval_core.errors import Problem, Problems, described, naming, warn
from capeval_core.inputs.images import Texts, Visual
from capeval_core.inputs.notes import Notes
from capeval_core.inputs.samples import Samples, argument_of, check_captions, check_samples, medium_of
from capeval_core.integrations.metric_specs import MetricSpec, choose_metrics, warn_failed, warn_ignored
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.result import Result


class Decoder(Protocol):
    """A tokenizer, or a processor that has one."""

    def batch_decode(self, sequences: Any, *, skip_special_tokens: bool) -> Sequence[str]: ...


class CaptionMetrics:
    """Caption metrics for `Trainer(compute_metrics=...)` and `Seq2SeqTrainer`.

        metrics = CaptionMetrics(processor, images=images, references=references)
        arguments = Seq2SeqTrainingArguments(predict_with_generate=True, metric_for_best_model="pac_s", ...)
        trainer = Seq2SeqTrainer(..., args=arguments, compute_metrics=metrics)

    Images, or videos, and references are encoded at the first evaluation and kept; later ones encode new
    captions only. With several processes each scores its share and all return the same numbers. A Trainer
    calls it only where the evaluation set has labels. Captions meet images by their position, so
    `train_sampling_strategy="group_by_length"`, which reorders evaluation sets, cannot be used.

    Args:
        processor: a tokenizer, or anything else with `batch_decode(ids, skip_special_tokens=True)`.
        images, videos: of the evaluation set, one for each of its rows and in its order, as
            `CaptionMetric.score` takes them; with videos, names mean metrics on videos.
        references: per row a list of texts, or one text; None: the row's labels, decoded, are its only
            reference (metrics on texts alone need them given).
        metrics: names, dicts such as `{"name": "pacs", "w": 2.5}`, or metrics of `capeval_core.load`.
        **options: of all metrics that are given by name; `empty="score"` is the default here.

    Raises:
        TypeError, ValueError: everything that is wrong with the input, before training starts.
    """

    captions: list[str]
    """Captions of the last evaluation, decoded."""
    results: dict[str, Result]
    """By the metric's name, the last evaluation: scores of each caption, signature, interval, comparison."""

    def __init__(
        self,
        processor: Decoder,
        *,
        images: Sequence[Any] | None = None,
        videos: Sequence[Any] | None = None,
        references: Sequence[Sequence[str] | str] | None = None,
        metrics: MetricSpec | Sequence[MetricSpec] = ("pacs", "refpacs"),
        **options: Any,
    ) -> None:
        if not hasattr(processor, "batch_decode"):
            problem = f"processor is {described(processor)}, which decodes no captions"
            raise TypeError(f"{problem}: pass a tokenizer, or a processor with one")
        if images is not None and videos is not None:
            raise TypeError("pass images or videos, not both: metrics are about one of them")
        visuals = None  # the name of the argument that is passed
        if images is not None:
            visuals = "images"
        elif videos is not None:
            visuals = "videos"
        self.processor = processor
        self.cache = FeatureCache(math.inf)
        medium = visuals and medium_of(visuals)
        classes = choose_metrics(metrics, options, cache=self.cache, media=medium, has_references=True)
        self._argument: str | None = None  # None: the metrics are about texts alone
        problems = Problems()
        for metric, _ in classes:
            argument = argument_of(metric.media)
            if argument is None:
                continue
            self._argument = self._argument or argument
            if visuals not in (None, argument):
                problem = f"{metric.name} scores {argument}, but {visuals} are passed"
                problems.add(Problem("metrics", problem, f"pass {argument}=...", TypeError, sentence=True))
        problems.raise_if_any()
        self._compares = any(metric.needs_references for metric, _ in classes)
        self._empty = "error" if any(of_metric.empty == "error" for _, of_metric in classes) else "score"
        self._has_references = references is not None and self._compares
        if visuals is not None and self._argument is None:
            warn_ignored(classes[0][0], [visuals])
        if references is not None and not self._compares:
            warn_ignored(classes[0][0], ["references"])
        about: Any = {"images": images, "videos": videos, None: references}[self._argument]
        with naming({"captions": self._argument or "references"}):
            self._samples = check_samples(
                # Captions come with each evaluation; images and references are checked now.
                ["to be written"] * (len(about) if hasattr(about, "__len__") else 1),
                about,
                references,
                needs_references=self._has_references or self._argument is None,
                on_error="raise" if any(of_metric.on_error == "raise" for _, of_metric in classes) else "nan",
                empty=self._empty,
                media=() if self._argument is None else (medium_of(self._argument),),
            )
        self.metrics = [metric(options_of_metric) for metric, options_of_metric in classes]
        self._rows: list[_Row] = []  # of the batches so far, with `batch_eval_metrics=True`
        self._labels: list[str] | None = None
        self.captions = []
        self.results = {}

    def __call__(self, evaluation: Any, compute_result: bool | None = None) -> dict[str, float]:
        """The mean of each metric by its key, e.g. `{"pac_s": 0.81, "refpac_s": 0.84}`.

        Args:
            evaluation: an `EvalPrediction`, or what `trainer.predict` returns.
            compute_result: with `batch_eval_metrics=True`, whether this batch is the last one; the others are
                kept and give `{}`. A Trainer passes it.
        """
        earlier_rows = self._rows if compute_result is not None else []
        self._rows = []  # also where this batch cannot be read
        rows = [*earlier_rows, *_rows_of(evaluation, self.processor)]
        if compute_result is not None and not compute_result:
            self._rows = rows
            return {}
        rank = 0
        size = 1
        if distributed.is_available() and distributed.is_initialized():
            rank = distributed.get_rank()
            size = distributed.get_world_size()
        samples = self._captioned(_of_evaluation(rows, len(self._samples), self._argument, size))
        # Statistics of all references stay those of the first evaluation; each process has all of them.
        self.metrics = [prepared(metric, _for(metric, samples)) for metric in self.metrics]
        # Shares differ by one caption at most.
        part = range(len(samples) * rank // size, len(samples) * (rank + 1) // size)

        def encode(metric: CaptionMetric) -> pa.Table:
            if not part:
                return metric.ROW.empty_table()
            return metric.encode_all(_for(metric, samples).select(part))

        tables = _gathered(size, lambda: [encode(metric) for metric in self.metrics])
        self.captions = samples.captions
        self.results = {}
        for metric, table in zip(self.metrics, tables, strict=True):
            self.results[metric.name] = metric.combine(table, samples=_for(metric, samples))
        self.cache.forget_unused()
        if rank == 0:
            self._warn()
        numbers: dict[str, float] = {}
        for result in self.results.values():
            numbers |= result.numbers
        return numbers

    def __repr__(self) -> str:
        inputs = [] if self._argument is None else [f"{self._argument}: {len(self._samples):,}"]
        if self._compares:
            inputs.append(f"references: {'given' if self._has_references else 'labels'}")
        return f"CaptionMetrics({'; '.join([*inputs, *map(repr, self.metrics)])})"

    def _captioned(self, rows: list[_Row]) -> Samples:
        """The evaluation set with the captions of these rows."""
        problems = Problems()
        with naming({"captions": "predictions"}):
            captions = check_captions([caption for caption, _ in rows], self._empty, problems)
        problems.raise_if_any()
        labels = [label for _, label in rows if label is not None]
        decoded = self._compares and not self._has_references
        if len(labels) == len(rows):
            self._check_order(labels)
        elif decoded:
            problem = "the labels of this evaluation are not token ids, so they cannot be the references"
            raise ValueError(f"{problem}: pass CaptionMetrics(..., references=[[...], ...])")
        references = [[label] for label in labels] if decoded else self._samples.references
        texts = [caption for caption in captions or [] if caption is not None]
        return replace(self._samples, captions=texts, references=references)

    def _check_order(self, labels: list[str]) -> None:
        """Refuse, or warn of, labels by which captions do not meet their own images."""
        if self._labels is None and self._has_references:
            of_images = [set(map(str.strip, texts)) for texts in self._samples.references or []]
            of_all = set[str]().union(*of_images)
            misplaced = []
            for i, label in enumerate(labels):
                if label in of_all and label not in of_images[i]:
                    misplaced.append(i)
            if len(misplaced) > len(labels) / 2:
                first = misplaced[0]
                raise ValueError(
                    f"{len(misplaced):,} of {len(labels):,} labels are references of another image, the "
                    f"first is row {first} ({labels[first]!r}): images and references must be in the order "
                    'of the evaluation set, which train_sampling_strategy="group_by_length" changes'
                )
        self._labels = self._labels or labels
        if labels != self._labels:
            warn(
                "the labels differ from those of the first evaluation: if this is another evaluation set, "
                "its captions are scored against the wrong images; make one CaptionMetrics for each set"
            )

    def _warn(self) -> None:
        """Say what is odd about the last evaluation: empty captions, some without a score, notes."""
        count = len(self.captions)
        empty = sum(not caption.strip() for caption in self.captions)
        if empty > count / 2:
            warn(
                f"{empty:,} of {count:,} captions are empty: their scores are those of the bare prompt "
                "and say little about the captioner; is it untrained, or max_new_tokens too small?"
            )
        notes = Notes([type(metric) for metric in self.metrics])
        notes.add(replace(self._samples, captions=self.captions))
        notes.tell()
        for result in self.results.values():
            warn_failed(result, "row {}", f".results[{result.metric!r}].errors has")


def _for(metric: CaptionMetric, samples: Samples) -> Samples:
    """The samples as a metric takes them: without references that it does not need, or texts alone."""
    if not metric.media:
        visuals = []
        for i, texts in enumerate(samples.references or []):
            visuals.append(Visual(f"references[{i}]", Texts(texts)))
        return replace(samples, images=visuals)
    return samples if metric.needs_references else replace(samples, references=None)


# the captions of an evaluation

_Row = tuple[str, str | None]
"""A generated caption and the text of its labels, None where those are not token ids."""


def _rows_of(evaluation: Any, processor: Decoder) -> list[_Row]:
    """The rows of an `EvalPrediction` (or of anything with `predictions` and `label_ids`)."""
    if getattr(evaluation, "predictions", None) is None:
        value = "predictions=None" if hasattr(evaluation, "predictions") else described(evaluation)
        raise TypeError(f"there are no predictions to score: expected an EvalPrediction, found {value}")
    captions = _decoded(evaluation.predictions, processor)
    labels: Sequence[str | None] = [None] * len(captions)
    with suppress(TypeError, ValueError):  # labels of another task: no score depends on them
        decoded = _decoded(getattr(evaluation, "label_ids", None), processor)
        if len(decoded) == len(captions):
            labels = decoded
    return list(zip(captions, labels, strict=True))


def _decoded(ids: Any, processor: Decoder) -> list[str]:
    return [text.strip() for text in processor.batch_decode(_token_ids(ids), skip_special_tokens=True)]


def _token_ids(value: Any) -> list[list[int]]:
    """Token ids row by row, without the -100 of padding; of a tuple of outputs the first."""
    if isinstance(value, tuple) and value:
        return _token_ids(value[0])
    if isinstance(value, list):  # one array per batch, with eval_do_concat_batches=False
        return [row for part in value for row in _token_ids(part)]
    if not hasattr(value, "shape"):
        raise TypeError(f"predictions is {described(value)}: expected an array of token ids")
    shape = tuple(value.shape)
    dtype = str(value.dtype).rpartition(".")[2]
    if len(shape) != 2 or not dtype.startswith(("int", "uint")):
        raise ValueError(
            f"predictions have shape {shape} and dtype {dtype}, and should be token ids (rows, length); if "
            "they are logits, generate with Seq2SeqTrainingArguments(predict_with_generate=True), or take "
            "the likeliest tokens with preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)"
        )
    ids = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    return [row[row >= 0].tolist() for row in ids]


def _of_evaluation(rows: list[_Row], count: int, unit: str | None, processes: int) -> list[_Row]:
    """The rows without those that fill up the last batch of several processes: the first ones again."""
    keys = [caption if label is None else label for caption, label in rows]
    filled = processes > 1 and all(key == keys[i % count] for i, key in enumerate(keys[count:]))
    if len(rows) < count or (len(rows) > count and not filled):
        raise ValueError(
            f"the evaluation gave {len(rows):,} captions, but there are {count:,} {unit or 'references'}: "
            "pass those of the evaluation set, one for each row; make one CaptionMetrics for each set; start "
            "again after an evaluation that was interrupted"
        )
    return rows[:count]


def _gathered(size: int, work: Callable[[], list[pa.Table]]) -> list[pa.Table]:
    """Tables of this and all other processes; one that fails takes part, so that no other waits for it."""
    if size == 1:
        return work()
    failure: Exception | None = None
    gathered: list[Any] = [None] * size
    try:
        outcome: Any = work()
    except Exception as error:
        failure = error
        outcome = f"{type(error).__name__}: {error}"
    distributed.all_gather_object(gathered, outcome)
    if failure is not None:
        raise failure
    for process, of_process in enumerate(gathered):
        if isinstance(of_process, str):
            raise RuntimeError(f"process {process} of {size} could not score its captions: {of_process}")
    return [pa.concat_tables(parts) for parts in zip(*gathered, strict=True)]
