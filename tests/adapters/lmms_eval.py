"""The tasks of `lmms_tasks` in lmms-eval, over small data sets on disk in the form of the real ones."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import capeval_core
from tests.adapters import CAPTIONS, IMAGES, REFERENCES, Comparison

METRICS = ("pacs", "refpacs", "clips", "umic")
TASKS = {"capeval_coco2017_val": "answer", "capeval_nocaps_val": "annotations_captions"}
TASKS |= {"capeval_coco2014_val": "answer", "capeval_flickr30k_test": "caption"}
"""Each task, and the column of its references."""
TEXTS = {"Bleu_4": "bleu", "ROUGE_L": "rougel", "CIDEr": "ciderd"}


def task_folder(folder: Path) -> None:
    """Copies of the tasks whose data lie on disk; everything else is as it is shipped."""
    import datasets

    from capeval_core.integrations.lmms_eval import TASKS as SHIPPED

    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    for task, column in TASKS.items():
        data = datasets.Dataset.from_dict({"image": [str(path) for path in IMAGES], column: REFERENCES})
        data.cast_column("image", datasets.Image()).to_parquet(folder / f"{task}.parquet")
        path = folder / f"{task}.yaml"
        lines = path.read_text().splitlines()
        (split,) = (line.split(": ")[1] for line in lines if line.startswith("test_split"))
        kept = [line for line in lines if not line.startswith(("dataset_path", "dataset_kwargs"))]
        files = f"dataset_kwargs: {{data_files: {{{split}: {folder}/{task}.parquet}}}}"
        path.write_text("\n".join([*kept, "dataset_path: parquet", files]) + "\n")


def evaluate(folder: Path) -> dict[str, dict[str, Any]]:
    """What lmms-eval reports for each task, of a model that gives the captions."""
    from lmms_eval import evaluator
    from lmms_eval.api.model import lmms
    from lmms_eval.tasks import TaskManager

    class Captioner(lmms):  # type: ignore[misc]
        def generate_until(self, requests: list[Any]) -> list[str]:
            return [CAPTIONS[request.args[3]] for request in requests]

        def loglikelihood(self, requests: list[Any]) -> list[Any]:
            raise NotImplementedError

        def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
            raise NotImplementedError

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = evaluator.evaluate(
        lm=Captioner(),
        task_dict=manager.load_task_or_group(list(TASKS)),
        cli_args=argparse.Namespace(output_path=str(folder), process_with_media=False),
        bootstrap_iters=0,
    )
    found: dict[str, dict[str, Any]] = results["results"]
    return found


def java_scores(folder: Path) -> dict[str, float]:
    """The numbers of lmms-eval's own task on COCO, whose tokenizer is a program in Java; none without it."""
    if shutil.which("java") is None:
        return {}
    from lmms_eval.tasks.coco_cap import utils

    docs = [
        {"question_id": f"COCO_val2014_{i:012}.jpg", "id": i, "answer": references}
        for i, references in enumerate(REFERENCES)
    ]
    items = [utils.coco_process_result(doc, [caption]) for doc, caption in zip(docs, CAPTIONS, strict=True)]
    arguments = argparse.Namespace(output_path=str(folder))
    functions = {"Bleu_4": utils.coco_bleu4, "ROUGE_L": utils.coco_rougel, "CIDEr": utils.coco_cider}
    return {
        number: float(function([item[f"coco_{number}"] for item in items], arguments))
        for number, function in functions.items()
    }


def trial() -> list[Comparison]:
    os.environ |= {"CAPEVAL_METRICS": ",".join(METRICS), "CAPEVAL_WEIGHTS": "tiny"}
    with tempfile.TemporaryDirectory() as folder:
        task_folder(Path(folder))
        found = evaluate(Path(folder))
        java = java_scores(Path(folder))
    expected = {}
    for name in METRICS:
        metric = capeval_core.load(name, weights="tiny")
        references = REFERENCES if metric.needs_references else None
        expected[metric.key] = metric.score(CAPTIONS, IMAGES, references).mean
    for number, name in TEXTS.items():
        expected[number] = capeval_core.load(name).score(CAPTIONS, references=REFERENCES).mean
    own = [
        Comparison(f"lmms-eval's own COCO task, with Java: {number}", expected[number], value)
        for number, value in java.items()
    ]
    return own + [
        Comparison(f"{task}: {number}", value, found[task][f"{number},none"])
        for task in TASKS
        for number, value in expected.items()
    ]
