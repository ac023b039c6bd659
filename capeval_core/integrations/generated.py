"""Captions of a Trainer's evaluation: token ids decoded, padding and rows of other evaluations removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capeval_core.values import described


@dataclass(frozen=True)
class Row:
    """A generated caption and the text of its labels, None where those are no token ids."""

    caption: str
    label: str | None


def rows_of(evaluation: Any, processor: Any) -> list[Row]:
    """The rows of an `EvalPrediction` (or of anything with `predictions` and `label_ids`)."""
    if getattr(evaluation, "predictions", None) is None:
        value = "predictions=None" if hasattr(evaluation, "predictions") else described(evaluation)
        raise TypeError(
            f"there are no predictions to score: expected the EvalPrediction that a Trainer hands to "
            f"compute_metrics, found {value}"
        )
    captions = _decode(evaluation.predictions, processor)
    try:
        labels: Sequence[str | None] = _decode(getattr(evaluation, "label_ids", None), processor)
    except (TypeError, ValueError):  # labels of another task: no score depends on them
        labels = []
    if len(labels) != len(captions):
        labels = [None] * len(captions)
    return [Row(caption, label) for caption, label in zip(captions, labels, strict=True)]


def _token_ids(value: Any, *, within_tuple: bool = False) -> list[list[int]]:
    """Token ids row by row, without the -100 of padding; of a tuple of outputs the first."""
    if isinstance(value, tuple) and value:
        return _token_ids(value[0], within_tuple=True)
    if isinstance(value, list):  # one array per batch, with eval_do_concat_batches=False
        return [row for part in value for row in _token_ids(part, within_tuple=within_tuple)]
    if not hasattr(value, "shape"):
        raise TypeError(f"predictions is {described(value)}: expected an array of token ids")
    shape, dtype = tuple(value.shape), str(value.dtype).rpartition(".")[2]
    if len(shape) == 3 or dtype.startswith(("float", "bfloat")):
        logits = "logits[0]" if within_tuple else "logits"
        raise ValueError(
            f"predictions are logits (shape {shape}, {dtype}), not token ids: let the Trainer generate "
            "captions with Seq2SeqTrainingArguments(predict_with_generate=True), or, to score the likeliest "
            "tokens under teacher forcing, pass preprocess_logits_for_metrics="
            f"lambda logits, labels: {logits}.argmax(-1) to the Trainer"
        )
    if len(shape) != 2 or not dtype.startswith(("int", "uint")):
        raise ValueError(
            f"predictions have shape {shape} and dtype {dtype}: expected token ids (rows, length)"
        )
    ids = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    return [row[row >= 0].tolist() for row in ids]


def _decode(ids: Any, processor: Any) -> list[str]:
    texts: list[str] = processor.batch_decode(_token_ids(ids), skip_special_tokens=True)
    return [text.strip() for text in texts]


def rows_of_evaluation(batches: list[list[Row]], count: int, processes: int, unit: str) -> list[Row]:
    """The `count` rows of the evaluation that ends with the last batch.

    Two kinds of rows are not its own: those of interrupted evaluations, which come before it, and the padding
    of the last batch of several processes, which repeats its first rows. ValueError if others than `count`
    remain. unit: what the user gave `count` of, e.g. `images`.
    """
    start, rows = len(batches), 0
    while start and rows < count:  # without its last batch an evaluation holds fewer rows
        start -= 1
        rows += len(batches[start])
    earlier = [row for batch in batches[:start] for row in batch]
    own = [row for batch in batches[start:] for row in batch]
    padded = processes > 1 and _repeats(own[count:], own[:count] or own)
    if len(own) < count or (len(own) > count and not padded) or not _repeats(earlier, own[:count]):
        raise ValueError(
            f"the evaluation gave {len(earlier) + len(own):,} captions, but there are {count:,} {unit}: "
            f"pass the {unit} (and references) of the evaluation set, one for each of its rows and in its "
            "order. One CaptionMetrics belongs to one evaluation set: to evaluate several, set "
            "trainer.compute_metrics to the one of each before trainer.evaluate"
        )
    return own[:count]


def _repeats(rows: list[Row], own: list[Row]) -> bool:
    """Whether rows are the first rows of `own`, once or several times."""
    index = 0
    for row in rows:
        if index == len(own) or not _equal(row, own[index]):
            index = 0
            if not own or not _equal(row, own[index]):
                return False
        index += 1
    return True


def _equal(first: Row, second: Row) -> bool:
    if first.label is None or second.label is None:
        return first.caption == second.caption
    return first.label == second.label
