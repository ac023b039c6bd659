"""`compute_metrics` of a `transformers` Trainer: the captions of every evaluation, scored while training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from torch import distributed

from capeval_core.cache import FeatureCache
from capeval_core.errors import Problem, Problems, counted, described, naming, warn
from capeval_core.inputs.images import Texts, Visual
from capeval_core.inputs.notes import Notes
from capeval_core.inputs.samples import Samples, argument_of, check_captions, check_samples, medium_of
from capeval_core.integrations.answers import Answers, Decoder, answer_prompt
from capeval_core.integrations.metric_specs import MetricSpec, choose_metrics, warn_failed, warn_ignored
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.result import Result
from capeval_core.statistics import Comparison

if TYPE_CHECKING:
    from transformers import Trainer


class Evaluation(dict[str, Result]):
    """The results of one evaluation by the metric's name.

    captions: decoded, in the order of the set. set: the name of the evaluation set, "" of the only one. step:
    of the training; None where no Trainer is watched.
    """

    def __init__(
        self, results: Mapping[str, Result], captions: list[str], name: str, step: int | None
    ) -> None:
        super().__init__(results)
        self.captions = captions
        self.set = name
        self.step = step


class Evaluations(Sequence[Any]):
    """Evaluations in their order: `results[2]["pacs"]` of the third, `results["pacs"]` of the last one."""

    def __init__(self) -> None:
        self._evaluations: list[Evaluation] = []

    def __len__(self) -> int:
        return len(self._evaluations)

    def __getitem__(self, place: int | slice | str) -> Any:
        # By the metric's name it is the last evaluation's: what a script asks for after `trainer.evaluate()`.
        if not isinstance(place, str):
            return self._evaluations[place]
        if not self._evaluations:
            raise KeyError(f"{place}: nothing has been evaluated")
        return self._evaluations[-1][place]

    def append(self, evaluation: Evaluation) -> None:
        self._evaluations.append(evaluation)

    def before(self, place: int) -> Evaluation | None:
        """The evaluation of the same set before this one; None before the first."""
        name = self._evaluations[place].set
        # Of several sets each is compared with itself: a Trainer evaluates one after the other.
        for evaluation in reversed(self._evaluations[:place]):
            if evaluation.set == name:
                return evaluation
        return None


class CaptionMetrics:
    """Caption metrics for `Trainer(compute_metrics=...)` and `Seq2SeqTrainer`.

        metrics = CaptionMetrics(processor, images=images, references=references)
        arguments = Seq2SeqTrainingArguments(predict_with_generate=True, metric_for_best_model="pac_s", ...)
        trainer = Seq2SeqTrainer(..., args=arguments, compute_metrics=metrics)
        metrics.watch(trainer)  # more in its log: intervals, comparisons, diversity, tables of examples

    Images, or videos, and references are encoded at the first evaluation and kept; later ones encode new
    captions only. With several processes each scores its share and all return the same numbers. A Trainer
    calls it only where the evaluation set has labels. Captions meet images by their position, so
    `train_sampling_strategy="group_by_length"`, which reorders evaluation sets, cannot be used.

    Args:
        processor: a tokenizer, or anything else with `batch_decode(ids, skip_special_tokens=True)`;
            `Answers(processor)` for a model that generates its prompt again.
        images, videos: of the evaluation set, one for each of its rows and in its order, as
            `CaptionMetric.score` takes them; with videos, names mean metrics on videos. Of several evaluation
            sets a dict by the names that `eval_dataset={"coco": ..., "nocaps": ...}` has; then `watch`.
        references: per row a list of texts, or one text; None: the row's labels, decoded, are its only
            reference (metrics on texts alone need them given). Of several sets a dict, like images.
        metrics: names, dicts such as `{"name": "pacs", "w": 2.5}`, or metrics of `capeval_core.load`.
        training_captions: what the captioner learns, for the share of captions that equal one.
        **options: of all metrics that are given by name; `empty="score"` is the default here.

    Raises:
        TypeError, ValueError: everything that is wrong with the input, before training starts.
    """

    results: Evaluations
    """Each evaluation by its number, from 0: `results[2]["pacs"]` has the scores of its captions, signature,
    interval; `results[2].captions`, `.set` and `.step`. `results["pacs"]` is of the last one."""

    def __init__(
        self,
        processor: Decoder,
        *,
        images: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        videos: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        references: Sequence[Sequence[str] | str] | Mapping[str, Sequence[Sequence[str] | str]] | None = None,
        metrics: MetricSpec | Sequence[MetricSpec] = ("pacs", "refpacs"),
        training_captions: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        if not hasattr(processor, "batch_decode"):
            problem = f"processor is {described(processor)}, which decodes no captions"
            raise TypeError(f"{problem}: pass a tokenizer, or a processor with one")
        if images is not None and videos is not None:
            raise TypeError("pass images or videos, not both: metrics are about one of them")
        if isinstance(training_captions, str):
            raise TypeError("training_captions is a single string: pass a list of them")
        argument = None  # the name of the argument that is passed
        if images is not None:
            argument = "images"
        elif videos is not None:
            argument = "videos"
        self.processor = processor
        # A generator would be empty at the second evaluation.
        self.training_captions = None if training_captions is None else list(training_captions)
        sets = _by_set(argument, videos if images is None else images, references)
        self._sets: dict[str, _EvaluationSet] = {}
        for name, (visuals, texts) in sets.items():
            self._sets[name] = _EvaluationSet(name, argument, visuals, texts, metrics, options)
        # Each is checked before any weights are opened: a wrong path must not wait for a download.
        for each in self._sets.values():
            each.open()
        self._rows: list[_Row] = []  # of the batches so far, with `batch_eval_metrics=True`
        self._prefix = ""  # of the Trainer's numbers in the evaluation that runs, e.g. eval_coco
        self._step: int | None = None
        self.results = Evaluations()

    @property
    def captions(self) -> list[str]:
        """Captions of the last evaluation, decoded."""
        return self.results[-1].captions if len(self.results) else []

    @property
    def metrics(self) -> list[CaptionMetric]:
        """The open metrics; of several evaluation sets those of the first."""
        return next(iter(self._sets.values())).metrics

    @property
    def cache(self) -> FeatureCache:
        """Features of images and references; of several evaluation sets those of the first."""
        return next(iter(self._sets.values())).cache

    def __call__(self, evaluation: object, compute_result: bool | None = None) -> dict[str, float]:
        """The mean of each metric by its key, e.g. `{"pac_s": 0.81, "refpac_s": 0.84}`.

        Args:
            evaluation: an `EvalPrediction`, or what `trainer.predict` returns.
            compute_result: with `batch_eval_metrics=True`, whether this batch is the last one; the others are
                kept and give `{}`. A Trainer passes it.
        """
        earlier_rows = self._rows if compute_result is not None else []
        self._rows = []  # also where this batch cannot be read
        rows = [*earlier_rows, *_rows_of(evaluation, self.processor)]
        # Without `batch_eval_metrics` nothing is passed; with it, False for all batches but the last one.
        if compute_result is not None and not compute_result:
            self._rows = rows
            return {}
        name = self._set_of(self._prefix)
        captions, results = self._sets[name].score(rows)
        self.results.append(Evaluation(results, captions, name, self._step))
        # Numbers only: a Trainer logs whatever this returns, and trackers take nothing else.
        numbers: dict[str, float] = {}
        for result in results.values():
            numbers |= result.numbers
        return numbers

    def compare(self, first: int, second: int, level: float = 0.95) -> dict[str, Comparison]:
        """Paired tests of two evaluations of one set, by the metric's name, as `Result.compare`.

        first, second: their numbers in `results`, from 0; negative ones count from the last. A difference is
        the first minus the second: `compare(-1, -2)["pacs"].difference` is the latest gain.

        Raises:
            IndexError, ValueError: no such evaluation; two sets; no test, e.g. of fewer than five images.
        """
        evaluations = []
        for argument, number in (("first", first), ("second", second)):
            if not -len(self.results) <= number < len(self.results):
                count = counted(len(self.results), "evaluation")
                raise IndexError(f"{argument}={number}: there are {count}, counted from 0")
            evaluations.append(self.results[number])
        evaluation, baseline = evaluations
        # A paired test needs the same images.
        if evaluation.set != baseline.set:
            sets = f"second={second} is of set {baseline.set}, first={first} of {evaluation.set}"
            raise ValueError(f"{sets}: compare two of one set")
        comparisons = {}
        for metric, result in evaluation.items():
            comparisons[metric] = result.compare(baseline[metric], level)
        return comparisons

    def watch(self, trainer: Trainer) -> None:
        """Log more of each evaluation of a Trainer, and learn from it which set is evaluated.

        Call it once, after the Trainer is made with `compute_metrics=metrics`. Each `evaluate` then has
        a second line in the Trainer's log: intervals (`eval_pac_s_low`, `_high`), the change since the
        evaluation before (`eval_pac_s_difference`, with `_difference_low`, `_difference_high` and
        `_difference_p` of a paired test) and the diversity of the captions (`eval_distinct_1`, ...).
        TensorBoard, Weights & Biases and trackio, as `report_to` names them, also get a table of the worst,
        best and most changed captions. A tracker that fails costs a warning, never the training.

        Raises:
            ValueError: the Trainer has other metrics; logits instead of captions would be scored; the model
                generates its prompt again, which `Answers` cuts off; evaluation sets without images here.
        """
        # Here, since transformers takes seconds to import, and numbers alone need none of it.
        from capeval_core.integrations.trainer_log import EvaluationLog

        EvaluationLog(self, trainer)

    @contextmanager
    def evaluating(self, prefix: str, step: int) -> Iterator[None]:
        """An evaluation by a Trainer that is watched; `prefix`: of its numbers, e.g. `eval_coco`."""
        self._prefix = prefix
        self._step = step
        self._rows = []  # of an evaluation that was interrupted
        # Also after an interrupt: an `evaluate` by hand behind it has no prefix.
        try:
            yield
        finally:
            self._prefix = ""
            self._step = None

    def samples_of(self, evaluation: Evaluation) -> Samples:
        """The images and references of an evaluation, with its captions."""
        return replace(self._sets[evaluation.set].samples, captions=evaluation.captions)

    def __repr__(self) -> str:
        parts = []
        for name, evaluation_set in self._sets.items():
            text = evaluation_set.described
            if name:
                text = f"{name}: {text}"
            if text:
                parts.append(text)
        return f"CaptionMetrics({'; '.join([*parts, *map(repr, self.metrics)])})"

    @property
    def sets(self) -> dict[str, int]:
        """The number of rows of each evaluation set, by its name; "" is the name of the only one."""
        return {name: len(each.samples) for name, each in self._sets.items()}

    def _set_of(self, prefix: str) -> str:
        """The name of the set that a Trainer evaluates, by the prefix of its numbers."""
        if len(self._sets) == 1:
            return next(iter(self._sets))
        names = []
        # `eval_coco` of `evaluate`, and `test_coco` or `coco` where somebody chose `metric_key_prefix`.
        for name in self._sets:
            if prefix == name or prefix.endswith(f"_{name}"):
                names.append(name)
        if not names:
            listed = ", ".join(self._sets)
            if not prefix:
                raise ValueError(
                    f"there are {len(self._sets)} evaluation sets ({listed}): call metrics.watch(trainer) "
                    "before evaluating, which tells which one it is"
                )
            raise ValueError(
                f"the Trainer evaluates as {prefix!r}, which names none of the sets {listed}: pass "
                f'metric_key_prefix="{prefix}_{next(iter(self._sets))}" for that one'
            )
        return max(names, key=len)  # `eval_val_coco` ends with `coco` and with `val_coco`


def _by_set(argument: str | None, visuals: object, references: object) -> dict[str, tuple[Any, Any]]:
    """Visuals and references of each evaluation set by its name; "" where there is one without a name."""
    columns = {"references": references}
    if argument is not None:
        columns[argument] = visuals
    named: dict[str, Mapping[str, Any]] = {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            named[name] = column
    if not named:
        return {"": (visuals, references)}
    problems = Problems()
    first = next(iter(reversed(named)))  # images before references
    for name, column in columns.items():
        if column is None:
            continue
        if name not in named:
            problem = f"is {described(column)}, but {first} is a dict of evaluation sets"
            problems.add(Problem(name, problem, "pass a dict of both", TypeError))
            continue
        for missing in named[first].keys() - named[name].keys():
            problems.add(Problem(name, f"has no evaluation set {missing!r}", f"{first} has it: pass both"))
        for further in named[name].keys() - named[first].keys():
            problems.add(Problem(first, f"has no evaluation set {further!r}", f"{name} has it: pass both"))
    if not named[first]:
        problems.add(Problem(first, "is an empty dict", "name at least one evaluation set"))
    problems.raise_if_any()
    sets = {}
    for name in named[first]:
        of_set = {argument: column[name] for argument, column in named.items()}
        sets[name] = (of_set.get(argument or ""), of_set.get("references"))
    return sets


class _EvaluationSet:
    """An evaluation set, checked, and the metrics that score its captions, with their features."""

    def __init__(
        self,
        name: str,
        visuals_argument: str | None,
        visuals: Sequence[Any] | None,
        references: Sequence[Sequence[str] | str] | None,
        metrics: MetricSpec | Sequence[MetricSpec],
        options: Mapping[str, Any],
    ) -> None:
        self.name = name
        # A cache of its own: what an evaluation did not use is forgotten after it.
        self.cache = FeatureCache(math.inf)
        medium = visuals_argument and medium_of(visuals_argument)
        classes = choose_metrics(metrics, options, cache=self.cache, media=medium, has_references=True)
        self._classes = classes
        self._argument = self._argument_for(visuals_argument)  # None: the metrics are about texts alone
        self._compares = any(metric.needs_references for metric, _ in classes)
        self._empty = "error" if any(of_metric.empty == "error" for _, of_metric in classes) else "score"
        self._has_references = references is not None and self._compares
        # Warned of now, and not at each evaluation.
        if visuals_argument is not None and self._argument is None:
            warn_ignored(classes[0][0], [visuals_argument])
        if references is not None and not self._compares:
            warn_ignored(classes[0][0], ["references"])
        self.samples = self._checked(visuals, references)
        self.metrics: list[CaptionMetric] = []
        self._labels: list[str] | None = None  # of the first evaluation
        self._groups: dict[str, list[str]] = {}  # of rows, by the metric's name

    def _argument_for(self, visuals_argument: str | None) -> str | None:
        """The argument for what the metrics look at; a TypeError if another one is passed."""
        argument_of_first = None
        problems = Problems()
        for metric, _ in self._classes:
            argument = argument_of(metric.media)
            if argument is None:
                continue
            argument_of_first = argument_of_first or argument
            if visuals_argument not in (None, argument):
                problem = f"{metric.name} scores {argument}, but {visuals_argument} are passed"
                problems.add(Problem("metrics", problem, f"pass {argument}=...", TypeError, sentence=True))
        problems.raise_if_any()
        return argument_of_first

    def _checked(
        self, visuals: Sequence[Any] | None, references: Sequence[Sequence[str] | str] | None
    ) -> Samples:
        """The set as samples, whose captions come with each evaluation."""
        about: object = references if self._argument is None else visuals
        count = len(about) if isinstance(about, Sized) else 1
        # There are as many captions as images: a problem of their number is one of the images.
        names = {"captions": self._argument or "references"}
        if self.name:
            for argument in ("images", "videos", "references"):
                names[argument] = f'{argument}["{self.name}"]'
            names["captions"] = names[self._argument or "references"]
        raises = any(of_metric.on_error == "raise" for _, of_metric in self._classes)
        with naming(names):
            return check_samples(
                ["to be written"] * count,
                about,
                references,
                needs_references=self._has_references or self._argument is None,
                on_error="raise" if raises else "nan",
                empty=self._empty,
                media=() if self._argument is None else (medium_of(self._argument),),
            )

    def open(self) -> None:
        """Open the weights: after every set is checked."""
        self.metrics = [metric(options) for metric, options in self._classes]

    @property
    def described(self) -> str:
        """What there is to evaluate, for `repr`."""
        inputs = [] if self._argument is None else [f"{self._argument}: {len(self.samples):,}"]
        if self._compares:
            inputs.append(f"references: {'given' if self._has_references else 'labels'}")
        return "; ".join(inputs)

    def score(self, rows: list[_Row]) -> tuple[list[str], dict[str, Result]]:
        """The captions of these rows, and their results by the metric's name; the same in all processes."""
        rank = 0
        size = 1
        if distributed.is_available() and distributed.is_initialized():
            rank = distributed.get_rank()
            size = distributed.get_world_size()
        # Every process has all captions, since a Trainer gathers predictions before `compute_metrics`.
        samples = self._captioned(_of_evaluation(rows, len(self.samples), self._argument, size))
        # Statistics of all references stay those of the first evaluation; each process has all of them.
        self.metrics = [prepared(metric, _for(metric, samples)) for metric in self.metrics]
        # Shares differ by one caption at most.
        part = range(len(samples) * rank // size, len(samples) * (rank + 1) // size)

        def encode(metric: CaptionMetric) -> pa.Table:
            if not part:  # fewer captions than processes
                return metric.ROW.empty_table()
            return metric.encode_all(_for(metric, samples).select(part))

        tables = _gathered(size, lambda: [encode(metric) for metric in self.metrics])
        results = {}
        for metric, table in zip(self.metrics, tables, strict=True):
            result = metric.combine(table, samples=_for(metric, samples))
            # Every evaluation is kept, and the keys of its images are the larger part of it.
            groups = self._groups.setdefault(metric.name, result.groups)
            if result.groups == groups:
                result = replace(result, groups=groups)
            results[metric.name] = result
        # Captions of a step do not come again: without this memory would grow by every evaluation.
        self.cache.forget_unused()
        if rank == 0:  # or each warning would come once for each process
            self._warn(samples, results)
        return samples.captions, results

    def _captioned(self, rows: list[_Row]) -> Samples:
        """The evaluation set with the captions of these rows."""
        problems = Problems()
        with naming({"captions": "predictions"}):
            captions = check_captions([caption for caption, _ in rows], self._empty, problems)
        problems.raise_if_any()
        # All rows have labels, or none: those of another task are no token ids in any row.
        labels = [label for _, label in rows if label is not None]
        decoded = self._compares and not self._has_references
        if len(labels) == len(rows):
            self._check_order(labels)
        elif decoded:
            problem = "the labels of this evaluation are not token ids, so they cannot be the references"
            raise ValueError(f"{problem}: pass CaptionMetrics(..., references=[[...], ...])")
        references = [[label] for label in labels] if decoded else self.samples.references
        texts = [caption for caption in captions or [] if caption is not None]
        return replace(self.samples, captions=texts, references=references)

    def _check_order(self, labels: list[str]) -> None:
        """Refuse, or warn of, labels by which captions do not meet their own images."""
        # Once: later evaluations are compared with the first one.
        if self._labels is None and self._has_references:
            of_images = [set(map(str.strip, texts)) for texts in self.samples.references or []]
            of_all = set[str]().union(*of_images)
            # Labels that are no image's reference say nothing: they may be other texts of the same images.
            misplaced = []
            for i, label in enumerate(labels):
                if label in of_all and label not in of_images[i]:
                    misplaced.append(i)
            # More than half: a single label may by chance be the reference of another image alone.
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
                "its captions are scored against the wrong images; pass images and references of both sets"
            )

    def _warn(self, samples: Samples, results: Mapping[str, Result]) -> None:
        """Say what is odd about the last evaluation: empty captions, some without a score, notes."""
        count = len(samples)
        empty = 0
        for caption in samples.captions:
            empty += not caption.strip()
        # A young captioner writes some, which is no news.
        if empty > count / 2:
            warn(
                f"{empty:,} of {count:,} captions are empty: their scores are those of the bare prompt "
                "and say little about the captioner; is it untrained, or max_new_tokens too small?"
            )
        notes = Notes([type(metric) for metric in self.metrics])
        notes.add(replace(self.samples, captions=samples.captions))
        notes.tell()
        for result in results.values():
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


def _rows_of(evaluation: object, processor: Decoder) -> list[_Row]:
    """The rows of an `EvalPrediction` (or of anything with `predictions` and `label_ids`)."""
    predictions = getattr(evaluation, "predictions", None)
    if predictions is None:
        value = "predictions=None" if hasattr(evaluation, "predictions") else described(evaluation)
        raise TypeError(f"there are no predictions to score: expected an EvalPrediction, found {value}")
    ids = _token_ids(predictions)
    _check_without_prompt(ids, processor)
    captions = _decoded(ids, processor)
    labels: Sequence[str | None] = [None] * len(captions)
    with suppress(TypeError, ValueError):  # labels of another task: no score depends on them
        decoded = _decoded(_token_ids(getattr(evaluation, "label_ids", None)), processor)
        if len(decoded) == len(captions):
            labels = decoded
    return list(zip(captions, labels, strict=True))


def _check_without_prompt(ids: list[list[int]], processor: Decoder) -> None:
    """Refuse captions of a chat model that begin with their prompt: it would be scored as a part of each."""
    prompt = None if isinstance(processor, Answers) else answer_prompt(processor)
    if prompt is None or not ids:
        return
    # With special tokens, which may end a prompt.
    texts = processor.batch_decode(ids, skip_special_tokens=False)
    if all(prompt.strip() in text for text in texts):
        raise ValueError(
            f"predictions hold their prompt: all of them have {prompt.strip()!r}, by which the chat template "
            "begins an answer, since a decoder-only model generates its prompt again; pass "
            "CaptionMetrics(Answers(processor), ...)"
        )


def _decoded(ids: list[list[int]], processor: Decoder) -> list[str]:
    return [text.strip() for text in processor.batch_decode(ids, skip_special_tokens=True)]


def _token_ids(value: object) -> list[list[int]]:
    """Token ids row by row, without the -100 of padding; of a tuple of outputs the first."""
    if isinstance(value, tuple) and value:
        return _token_ids(value[0])
    if isinstance(value, list):  # one array per batch, with eval_do_concat_batches=False
        rows = []
        for part in value:
            rows += _token_ids(part)
        return rows
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise TypeError(f"predictions is {described(value)}: expected an array of token ids")
    shape = tuple(value.shape)
    dtype = str(value.dtype).rpartition(".")[2]  # `int64` of numpy, `torch.int64` of torch
    if len(shape) != 2 or not dtype.startswith(("int", "uint")):
        raise ValueError(
            f"predictions have shape {shape} and dtype {dtype}, and should be token ids (rows, length); if "
            "they are logits, generate with Seq2SeqTrainingArguments(predict_with_generate=True), or take "
            "the likeliest tokens with preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)"
        )
    ids = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    # No tokenizer has a token -100.
    return [row[row >= 0].tolist() for row in ids]


def _of_evaluation(rows: list[_Row], count: int, unit: str | None, processes: int) -> list[_Row]:
    """The rows without those that fill up the last batch of several processes: the first ones again."""
    # By labels, where there are some: a captioner that samples writes another caption at the second time.
    keys = [caption if label is None else label for caption, label in rows]
    filled = processes > 1 and all(key == keys[i % count] for i, key in enumerate(keys[count:]))
    if len(rows) < count or (len(rows) > count and not filled):
        raise ValueError(
            f"the evaluation gave {len(rows):,} captions, but there are {count:,} {unit or 'references'}: "
            "pass those of the evaluation set, one for each row, and of several sets a dict of each; start "
            "again after an evaluation that was interrupted"
        )
    return rows[:count]


def _gathered(size: int, work: Callable[[], list[pa.Table]]) -> list[pa.Table]:
    """Tables of this and all other processes; one that fails takes part, so that no other waits for it."""
    if size == 1:
        return work()
    failure: Exception | None = None
    gathered: list[Any] = [None] * size
    outcome: list[pa.Table] | str
    try:
        outcome = work()
    except Exception as error:
        failure = error
        outcome = f"{type(error).__name__}: {error}"
    distributed.all_gather_object(gathered, outcome)
    if failure is not None:
        raise failure
    for process, of_process in enumerate(gathered):
        if isinstance(of_process, str):
            raise RuntimeError(f"process {process} of {size} could not score its captions: {of_process}")
    # Of each metric the shares of all processes, in the order of rows.
    return list(map(pa.concat_tables, zip(*gathered, strict=True)))
