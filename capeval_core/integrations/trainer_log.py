"""What `CaptionMetrics.watch` adds to the log of a `transformers` Trainer and to its trackers."""

from __future__ import annotations

from collections.abc import Callable, Sized
from contextlib import suppress
from functools import partial, wraps
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from capeval_core.integrations.answers import Answers
from capeval_core.integrations.trainer import CaptionMetrics, Evaluation
from capeval_core.reports.diversity import diversity
from capeval_core.reports.examples import Pictures, examples_of
from capeval_core.reports.trackers import Guard, TableTracker, TensorBoardTracker, Tracker


class EvaluationLog(TrainerCallback):
    """A second line of the Trainer's log for each evaluation, and tables of examples for its trackers."""

    def __init__(self, metrics: CaptionMetrics, trainer: Trainer) -> None:
        _check(metrics, trainer)
        self._metrics = metrics
        self._trainer = trainer
        self._prefix: str | None = None  # of the evaluation that ended last, until it is logged
        self._guard = Guard()  # what a tracker raises is warned of, and costs no training
        loop: Callable[..., Any] = trainer.evaluation_loop

        # `compute_metrics` is not told which set is evaluated, nor is any callback before it: the prefix of
        # the numbers, which `evaluate` and `predict` hand to the loop by name, is all there is.
        @wraps(loop)
        def evaluation_loop(*args: Any, metric_key_prefix: str = "eval", **keywords: Any) -> Any:
            self._prefix = None
            count = len(metrics.results)
            with metrics.evaluating(metric_key_prefix, trainer.state.global_step):
                output = loop(*args, metric_key_prefix=metric_key_prefix, **keywords)
            if len(metrics.results) > count:  # a set without labels is not scored
                self._prefix = metric_key_prefix
            return output

        trainer.evaluation_loop = evaluation_loop  # type: ignore[method-assign]
        trainer.add_callback(self)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        # Behind the Trainer's own line, so that a log reads in the order of evaluations.
        prefix = self._prefix
        self._prefix = None
        if prefix is None:
            return
        # A line of its own: `metric_for_best_model`, and searches that sum a line, read the Trainer's.
        numbers = {f"{prefix}_{name}": value for name, value in self._numbers().items()}
        # In every process, as the Trainer's own line; its callbacks send that of the first one to trackers.
        self._guard.log("the Trainer's log", lambda: self._trainer.log(numbers))
        if state.is_world_process_zero:  # a table from each process would come twice
            self._log_examples(prefix, state.global_step)

    def _numbers(self) -> dict[str, float]:
        """Intervals, changes since the evaluation of this set before, and the diversity of the captions."""
        numbers: dict[str, float] = {}
        place = len(self._metrics.results) - 1
        evaluation = self._metrics.results[place]
        before = self._metrics.results.before(place)
        truncated = 0
        for metric, result in evaluation.items():
            truncated = max(truncated, result.counts.truncated)
            with suppress(ValueError):  # too few images, or all have one score
                interval = result.interval()
                numbers |= {f"{result.key}_low": interval.low, f"{result.key}_high": interval.high}
            if before is None:
                continue
            with suppress(ValueError):
                change = result.compare(before[metric])
                numbers |= {
                    f"{result.key}_difference": change.difference,
                    f"{result.key}_difference_low": change.interval.low,
                    f"{result.key}_difference_high": change.interval.high,
                    f"{result.key}_difference_p": change.p_value,
                }
        texts = self._metrics.training_captions
        return numbers | diversity(evaluation.captions, texts, truncated=truncated).numbers()

    def _log_examples(self, prefix: str, step: int) -> None:
        """Send a table of examples by each metric to each tracker."""
        trackers = _trackers_of(self._trainer)
        if not trackers:
            return
        place = len(self._metrics.results) - 1
        evaluation: Evaluation = self._metrics.results[place]
        before = self._metrics.results.before(place)
        samples = self._metrics.samples_of(evaluation)
        pictures = Pictures(samples.images.__getitem__)
        for metric, result in evaluation.items():
            examples = examples_of(
                result.scores,
                evaluation.captions,
                pictures.of,
                higher_is_better=result.higher_is_better,
                references=samples.references,
                scores_before=None if before is None else before[metric].scores,
                captions_before=None if before is None else before.captions,
            )
            # As transformers names its numbers: eval_coco_pac_s is eval/coco_pac_s in a tracker.
            tag = f"{prefix}_{result.key}_examples".replace("_", "/", 1)
            for tracker in trackers:
                self._guard.log(tracker.name, partial(tracker.log_examples, tag, examples, step))


def _check(metrics: CaptionMetrics, trainer: Trainer) -> None:
    """Refuse a Trainer whose evaluations these metrics cannot score."""
    if getattr(trainer, "compute_metrics", None) is not metrics:
        raise ValueError("watch: the Trainer has other metrics: make it with compute_metrics=metrics first")
    generates = getattr(trainer.args, "predict_with_generate", False)
    # Whoever passes `preprocess_logits_for_metrics` may turn logits into token ids himself.
    if not generates and getattr(trainer, "preprocess_logits_for_metrics", None) is None:
        raise ValueError(
            "watch: this Trainer predicts logits, not captions: use a Seq2SeqTrainer with "
            "Seq2SeqTrainingArguments(predict_with_generate=True)"
        )
    config = getattr(trainer.model, "config", None)
    # BLIP's is `pixel_values`: without a prompt it generates the caption alone.
    reads_prompt = getattr(trainer.model, "main_input_name", "") == "input_ids"
    decodes_only = config is not None and not getattr(config, "is_encoder_decoder", False)
    if generates and decodes_only and reads_prompt and not isinstance(metrics.processor, Answers):
        raise ValueError(
            f"watch: {type(trainer.model).__name__} is decoder-only: with predict_with_generate it generates "
            "its prompt again, which would be scored as a part of each caption; pass "
            "CaptionMetrics(Answers(processor), ...)"
        )
    sets = trainer.eval_dataset
    if isinstance(sets, dict) and sets.keys() != metrics.sets.keys():
        ours = ", ".join(map(repr, metrics.sets)) if "" not in metrics.sets else "one set without a name"
        raise ValueError(
            f"watch: eval_dataset has the sets {', '.join(map(repr, sets))}, and these metrics {ours}: pass "
            "images={...} and references={...} by the same names"
        )
    for name, count in metrics.sets.items():
        place = f'eval_dataset["{name}"]' if isinstance(sets, dict) else "eval_dataset"
        evaluated = sets[name] if isinstance(sets, dict) else sets
        if len(metrics.sets) > 1 and not isinstance(sets, dict):
            break  # sets that `evaluate` is handed one by one
        if isinstance(evaluated, Sized) and len(evaluated) != count:
            raise ValueError(
                f"watch: {place} has {len(evaluated):,} rows, and these metrics {count:,}: pass images and "
                "references of all its rows, in its order"
            )


def _trackers_of(trainer: Trainer) -> list[Tracker]:
    """The trackers that the Trainer reports to and that take tables."""
    # By the Trainer's callbacks and not by its `report_to`: a user may add one by hand, and at any time.
    from transformers.integrations.integration_utils import (
        TensorBoardCallback,
        TrackioCallback,
        WandbCallback,
    )

    trackers: list[Tracker] = []
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
            trackers.append(TensorBoardTracker(callback.tb_writer))
        elif isinstance(callback, WandbCallback):
            import wandb

            if wandb.run is not None:  # its callback starts a run in the first process only
                trackers.append(TableTracker(wandb))
        elif isinstance(callback, TrackioCallback):
            import trackio

            trackers.append(TableTracker(trackio))
    return trackers
