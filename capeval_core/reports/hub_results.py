"""Results in the forms that the Hub and its leaderboards read.

.eval_results   https://huggingface.co/docs/hub/eval-results, YAML in the repository of a model
Every Eval Ever https://github.com/evaleval/every_eval_ever, schema 0.3.0: one JSON record of an evaluation,
                and a line of JSON for each sample
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from capeval_core.project import __version__
from capeval_core.reports.tables import Cell, MetricFacts, System

_SCHEMA = "0.3.0"


@dataclass(frozen=True)
class Evaluation:
    """The model that wrote captions, the data set that they are of, who scored them, and when.

    model: ORGANISATION/NAME. dataset: of the Hub, ORGANISATION/NAME, or the name of any other.
    """

    model: str
    dataset: str
    split: str | None
    evaluator: str | None
    time: datetime

    @property
    def is_on_hub(self) -> bool:
        """The data set is named as those of the Hub are."""
        return self.dataset.count("/") == 1

    @property
    def folder(self) -> str:
        """The folder of its records, below that of all records."""
        return f"data/{self.dataset.replace('/', '_')}/{self.model}"

    @property
    def id(self) -> str:
        return f"{self.dataset.replace('/', '_')}/{self.model}/{self.time.timestamp()}"


# ---- .eval_results


def eval_results_yaml(entries: Sequence[Any]) -> str:
    """The YAML of entries of `huggingface_hub.EvalResultEntry`."""
    import yaml
    from huggingface_hub import eval_result_entries_to_yaml

    content = eval_result_entries_to_yaml(list(entries))
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def eval_results(system: System, columns: Sequence[Any], evaluation: Evaluation) -> str:
    """The YAML of a system's means, for the repository of the model that wrote its captions."""
    from huggingface_hub import EvalResultEntry

    entries = []
    for column in columns:
        result = system.cells[column.name].result
        for key, value in result.numbers.items():
            if math.isfinite(value):
                notes = f"{column.title}, {key}, {result.counts.captions:,} captions, {result.signature}"
                split = "" if evaluation.split is None else f"{evaluation.split}_"
                entries.append(
                    EvalResultEntry(
                        dataset_id=evaluation.dataset,
                        task_id=f"{split}{key}",
                        value=round(value, 6),
                        date=evaluation.time.isoformat(timespec="seconds"),
                        notes=notes,
                    )
                )
    return eval_results_yaml(entries)


# ---- Every Eval Ever


def every_eval_ever(system: System, columns: Sequence[Any], evaluation: Evaluation) -> dict[str, bytes]:
    """The record of a system's evaluation and its samples, by their paths below the folder of all records.

    Both are named by a digest of what they say, so that the same scores are one record however often they
    are written. A caption without a score has no sample, since the schema has none without a number; the
    record counts them.
    """
    samples = []
    results: list[dict[str, Any]] = []
    for column in columns:
        cell = system.cells[column.name]
        for key, value in cell.result.numbers.items():
            # Further numbers may have the other direction, as the recall beside CHAIR-i.
            has_direction = key == cell.result.key or cell.result.higher_is_better
            if math.isfinite(value) and has_direction:
                results.append(_result(column, cell, key, value, evaluation))
        samples += _samples(system, column, evaluation)
    lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples).encode()
    name = _name([evaluation.model, evaluation.dataset, results, samples], evaluation)
    samples_path = f"{evaluation.folder}/{name}_samples.jsonl"
    organisation, _, model = evaluation.model.partition("/")
    record = {
        "schema_version": _SCHEMA,
        "evaluation_id": evaluation.id,
        "evaluation_timestamp": evaluation.time.isoformat(timespec="seconds"),
        "retrieved_timestamp": str(evaluation.time.timestamp()),
        "source_metadata": {
            "source_name": "capeval score",
            "source_type": "evaluation_run",
            "source_organization_name": evaluation.evaluator or "unknown",
            "evaluator_relationship": "first_party" if evaluation.evaluator == organisation else "other",
        },
        "eval_library": {"name": "capeval", "version": __version__},
        "model_info": {
            "name": model,
            "id": evaluation.model,
            "developer": organisation,
            # Captions come as a file: where the model ran is not known here.
            "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
        },
        "evaluation_results": results,
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": samples_path,
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(lines).hexdigest(),
            "total_rows": len(samples),
        },
    }
    content = json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n"
    return {f"{evaluation.folder}/{name}.json": content, samples_path: lines}


def _name(content: object, evaluation: Evaluation) -> str:
    """A name in the form of a random UUID, which the schema asks for, that the content alone decides."""
    # Without the id, which holds the time: the same scores written later are the same record.
    text = json.dumps(content, sort_keys=True).replace(evaluation.id, "")
    return str(UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4))


def _result_id(evaluation: Evaluation, key: str) -> str:
    return f"{evaluation.id}#{key}"


def _result(
    column: MetricFacts, cell: Cell, key: str, value: float, evaluation: Evaluation
) -> dict[str, Any]:
    """The record of one number of a metric."""
    result = cell.result
    counts = {name: str(count) for name, count in vars(result.counts).items()}  # the schema has texts here
    score: dict[str, Any] = {"score": value, "details": {"signature": result.signature, **counts}}
    # Only the metric's own number has an interval; BLEU-1 beside BLEU-4 has none.
    if key == result.key and cell.interval is not None:
        score["uncertainty"] = {
            "confidence_interval": {
                "lower": cell.interval.low,
                "upper": cell.interval.high,
                "confidence_level": cell.interval.level,
                "method": "Student's t over images, corrected for skewness",
            },
            "num_samples": cell.interval.images,
        }
    least, greatest = result.range
    source: dict[str, Any] = {"dataset_name": evaluation.dataset, "source_type": "other"}
    if evaluation.is_on_hub:
        source |= {"source_type": "hf_dataset", "hf_repo": evaluation.dataset}
        source["samples_number"] = result.counts.captions
        if evaluation.split is not None:
            source["hf_split"] = evaluation.split
    return {
        "evaluation_result_id": _result_id(evaluation, key),
        "evaluation_name": f"{evaluation.dataset} {key}",
        "source_data": source,
        "metric_config": {
            "evaluation_description": column.summary,
            "metric_id": f"capeval.{key}",
            "metric_name": column.title if key == result.key else column.part_titles.get(key, key),
            "metric_kind": column.name,
            "metric_unit": "points",
            "metric_parameters": {"signature": result.signature},
            "lower_is_better": not result.higher_is_better,
            "score_type": "continuous",
            "min_score": _bound(least),
            "max_score": _bound(greatest),
        },
        "score_details": score,
    }


def _bound(value: float) -> float | str:
    """A bound of scores, as the schema writes an infinite one."""
    if math.isfinite(value):
        return value
    # JSON has no infinity, and Python's own writing of it is refused by other readers.
    return "Infinity" if value > 0 else "-Infinity"


def _samples(system: System, column: MetricFacts, evaluation: Evaluation) -> list[dict[str, Any]]:
    """A sample for each caption that a metric has a score of."""
    result = system.cells[column.name].result
    captions_of_image: dict[str, int] = {}
    samples = []
    # Scores of captions are of the metric's own number alone, and so are their samples.
    for index, score in enumerate(result.scores):
        image_id = system.ids[index]
        # Counted before captions without a score are left out: a sample's id does not depend on the metric.
        number = captions_of_image[image_id] = captions_of_image.get(image_id, 0) + 1
        if not math.isfinite(score):
            continue
        references = [] if system.references is None else list(system.references[index])
        # Of the input, not of the caption: samples of two models on one image have one hash.
        digest = hashlib.sha256("\n".join([image_id, *references]).encode()).hexdigest()
        caption = system.captions[index]
        samples.append(
            {
                "schema_version": _SCHEMA,
                "evaluation_id": evaluation.id,
                "model_id": evaluation.model,
                "evaluation_name": f"{evaluation.dataset} {result.key}",
                "evaluation_result_id": _result_id(evaluation, result.key),
                "sample_id": image_id if number == 1 else f"{image_id}#{number}",
                "sample_hash": digest,
                "interaction_type": "single_turn",
                "input": {"raw": image_id, "reference": references},
                "output": {"raw": [caption]},
                "answer_attribution": [
                    {
                        "turn_idx": 0,
                        "source": "output.raw",
                        "extracted_value": caption,
                        "extraction_method": "whole_output",
                        "is_terminal": True,
                    }
                ],
                # The schema needs the answer right or wrong, which a caption's score does not say.
                "evaluation": {"score": score, "is_correct": False},
                "metadata": {"metric": column.name},
            }
        )
    return samples
