"""`compute_metrics` of a `transformers` Trainer: the captions of every evaluation, scored while training."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from capeval_core.cache import UNBOUNDED, FeatureCache
from capeval_core.errors import Problems, naming, warn
from capeval_core.inputs.samples import Samples
from capeval_core.inputs.texts import check_captions
from capeval_core.integrations.evaluation_set import EvaluationSet, GivenVisuals, samples_for
from capeval_core.integrations.generated import Row, rows_of, rows_of_evaluation
from capeval_core.integrations.opening import choose_metrics
from capeval_core.integrations.processes import gather_tables, processes, share
from capeval_core.integrations.rewards import shown
from capeval_core.metric import CaptionMetric
from capeval_core.result import Result
from capeval_core.values import described


class CaptionMetrics:
    """Caption metrics for `Trainer(compute_metrics=...)` and `Seq2SeqTrainer`.

        trainer = Seq2SeqTrainer(
            ...,
            args=Seq2SeqTrainingArguments(
                predict_with_generate=True, metric_for_best_model="pac_s", greater_is_better=True, ...
            ),
            compute_metrics=CaptionMetrics(processor, images=images, references=references),
        )

    Images, or videos, and references are encoded at the first evaluation and kept as long as this object
    lives, whatever their number; later evaluations encode new captions only. Memory holds the features of
    images (or of all frames), references and the captions of one evaluation, about 2.5 KB each with ViT-B/32.

    Metrics on texts alone stand beside the others: `metrics=["pacs", "cider"]`. Statistics of the references,
    such as CIDEr's document frequencies, are made of those of the whole evaluation set, once.

    Works with `batch_eval_metrics=True` too. With several processes each scores its share and all return the
    same numbers, so all of them must call it, as Trainers do. A Trainer calls it only where the evaluation
    set has labels.

    Args:
        processor: decodes captions: a tokenizer, a processor, or anything with
            `batch_decode(ids, skip_special_tokens=True)`.
        images: images of the evaluation set, one for each of its rows and in its order: whatever
            `CaptionMetric.score` takes, such as paths or a `datasets` column. Read and checked now.
            None for metrics on videos, or on texts alone.
        videos: videos of the evaluation set instead of images; names then mean metrics on videos.
        references: per row a list of texts, or one text, for metrics that compare with references; None: the
            row's labels, decoded, are its only reference (metrics on texts alone need them given).
        metrics: names, dicts such as `{"name": "pacs", "w": 2.5}`, or metrics of `capeval_core.load`.
        **options: of all metrics that are given by name, e.g. `weights`, `device`, `batch_size`. Empty
            captions are scored as the bare prompt: `empty="score"` is the default here.

    Raises:
        TypeError, ValueError: everything that is wrong with images, videos and references, before training
            starts; a metric or an option that does not exist; weights that could not be loaded; no
            `statistics` for a metric that needs those of captions, which change with each evaluation.

    The order matters: captions meet images by their position. `train_sampling_strategy="group_by_length"`
    reorders evaluation sets too, so it cannot be used.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> class Words:
    ...     def batch_decode(self, ids, skip_special_tokens):
    ...         return [" ".join(["a", "red", "circle"][i] for i in row) for row in ids]
    >>> grey = np.full((48, 48, 3), 128, dtype="uint8")
    >>> metrics = CaptionMetrics(Words(), images=[grey], metrics=["pacs"], weights="tiny")
    >>> evaluation = SimpleNamespace(predictions=np.array([[0, 1, 2, -100]]), label_ids=np.array([[0, 2]]))
    >>> list(metrics(evaluation)), metrics.captions
    (['pac_s'], ['a red circle'])
    """

    captions: list[str]
    """Captions of the last evaluation, decoded."""
    cache: FeatureCache
    """Features of the images or frames, the references and the last captions."""
    results: dict[str, Result]
    """By the metric's name, the last evaluation: scores of each caption, signature, interval, comparison."""

    def __init__(
        self,
        processor: Any,
        *,
        images: Any = None,
        videos: Any = None,
        references: Any = None,
        metrics: Any = ("pacs", "refpacs"),
        **options: Any,
    ) -> None:
        if not hasattr(processor, "batch_decode"):
            raise TypeError(
                f"processor is {described(processor)}, which decodes no captions: pass a tokenizer, or a "
                "processor with one, as AutoTokenizer and AutoProcessor give it"
            )
        self.processor = processor
        self.cache = FeatureCache(UNBOUNDED)
        given = GivenVisuals.among(images=images, videos=videos)
        chosen = choose_metrics(metrics, options, self.cache, media=given.medium, has_references=True)
        self._compares = any(one.metric.needs_references for one in chosen)
        self._empty = "error" if any(one.options.empty == "error" for one in chosen) else "score"
        self._set = EvaluationSet.checked(given, references, chosen, self._empty)
        self.metrics = [one.open() for one in chosen]
        self._batches: list[list[Row]] = []
        self._labels: list[str] | None = None
        self.captions, self.results = [], {}

    def __call__(self, evaluation: Any, compute_result: bool | None = None) -> dict[str, float]:
        """The mean of each metric by its key, e.g. `{"pac_s": 0.81, "refpac_s": 0.84}`.

        Args:
            evaluation: an `EvalPrediction`, or what `trainer.predict` returns.
            compute_result: with `batch_eval_metrics=True`, whether this batch is the last one; the others are
                kept and give `{}`. A Trainer passes it.

        Raises:
            TypeError, ValueError: logits where token ids are expected, a number of captions that is not the
                number of images, labels that belong to other images. The batches before are then forgotten.
        """
        batches, self._batches = self._batches if compute_result is not None else [], []
        batches.append(rows_of(evaluation, self.processor))
        if compute_result is not None and not compute_result:
            self._batches = batches
            return {}
        rank, size = processes()
        samples = self._samples(rows_of_evaluation(batches, len(self._set), size, self._set.unit))
        # Statistics of all references stay those of the first evaluation; each process has all of them.
        self.metrics = [metric.prepared(samples_for(metric, samples)) for metric in self.metrics]
        tables = gather_tables(lambda: [self._encode(metric, samples) for metric in self.metrics])
        self.captions = samples.captions
        self.results = {
            metric.name: metric.combine(table, samples=samples_for(metric, samples))
            for metric, table in zip(self.metrics, tables, strict=True)
        }
        self.cache.forget_unused()
        if rank == 0:
            _warn_of_empty(self.captions)
            for result in self.results.values():
                _warn_of_failures(result)
        return {key: value for result in self.results.values() for key, value in result.numbers.items()}

    def __repr__(self) -> str:
        inputs = [str(self._set)]
        if self._compares:
            inputs.append(f"references: {'labels' if self._set.references is None else 'given'}")
        return f"CaptionMetrics({'; '.join(filter(None, [*inputs, *map(shown, self.metrics)]))})"

    def _samples(self, rows: list[Row]) -> Samples:
        """The evaluation set with the captions of these rows."""
        problems = Problems()
        with naming({"captions": "predictions"}):
            captions = check_captions([row.caption for row in rows], self._empty, problems)
        problems.raise_if_any()
        labels = [row.label for row in rows if row.label is not None]
        references = self._set.references
        if references is None and self._compares:
            if len(labels) != len(rows):
                raise ValueError(
                    "the labels of this evaluation are no token ids, so they cannot be the references: pass "
                    "CaptionMetrics(..., references=[[...], ...])"
                )
            references = [[label] for label in labels]
        if len(labels) == len(rows):
            self._compare_with_first(labels)
        return self._set.samples([caption for caption in captions or [] if caption is not None], references)

    def _compare_with_first(self, labels: list[str]) -> None:
        """Labels show whether captions meet their own images, as far as labels can."""
        if self._labels is None:
            if self._set.references is not None:
                _refuse_misplaced(labels, self._set.references)
            self._labels = labels
        elif labels != self._labels:
            warn(
                "the labels differ from those of the first evaluation: if this is another evaluation set, "
                "its captions are scored against the wrong images; make one CaptionMetrics for each set"
            )

    def _encode(self, metric: CaptionMetric, samples: Samples) -> pa.Table:
        """Rows of this process's share of the captions."""
        part = samples_for(metric, samples).select(share(len(samples)))
        if not len(part):
            return metric.ROW.empty_table()
        table = metric.encode_all(part)
        metric.flush()
        return table


def _refuse_misplaced(labels: list[str], references: list[list[str]]) -> None:
    """Labels that are references of other images show that the evaluation set has another order."""
    everywhere = {text.strip() for texts in references for text in texts}
    own = [label in {text.strip() for text in texts} for label, texts in zip(labels, references, strict=True)]
    elsewhere = [not at_home and label in everywhere for label, at_home in zip(labels, own, strict=True)]
    if sum(elsewhere) > max(sum(own), len(labels) / 2):
        first = elsewhere.index(True)
        raise ValueError(
            f"{sum(elsewhere):,} of {len(labels):,} labels are references of another image, the first is "
            f"row {first} ({labels[first]!r}): images and references must be in the order of the evaluation "
            'set, which train_sampling_strategy="group_by_length" changes'
        )


def _warn_of_empty(captions: list[str]) -> None:
    empty = sum(not caption.strip() for caption in captions)
    if empty > len(captions) / 2:
        warn(
            f"{empty:,} of {len(captions):,} captions are empty: their scores are those of the bare prompt "
            "and say little about the captioner; is it untrained, or max_new_tokens too small?"
        )


def _warn_of_failures(result: Result) -> None:
    if result.counts.failed:
        index, reason = next(iter(result.errors.items()))
        warn(
            f"{result.metric}: {result.counts.failed:,} of {result.counts.captions:,} captions have no score "
            f"and are left out of the mean; the first is row {index} ({reason}), "
            f".results[{result.metric!r}].errors has all"
        )
