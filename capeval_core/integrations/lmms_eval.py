"""Tasks for lmms-eval: COCO, NoCaps and Flickr30k without Java, and metrics that see the image.

    export CAPEVAL_METRICS=pacs,refpacs CAPEVAL_WEIGHTS=...   # beside BLEU, ROUGE-L and CIDEr, if you like
    lmms-eval --include_path "$(python -m capeval_core.integrations.lmms_eval)" --tasks capeval_nocaps_val ...

The tasks (`lmms_tasks/*.yaml`) name the functions below. Each document gives rows of plain numbers at once,
which processes gather, and no image waits for the end; `combine` makes them one number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from capeval_core.errors import wrong_option
from capeval_core.integrations.coco import CocoScores
from capeval_core.integrations.metric_specs import choose_metrics, combine_tables
from capeval_core.metric import CaptionMetric

TASKS = Path(__file__).with_name("lmms_tasks")
"""The folder for `--include_path`."""
TEXT_NUMBERS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr")
"""By COCO's names; CIDEr is CIDEr-D."""
_REFERENCES = ("answer", "annotations_captions", "caption")
"""Where documents of COCO, NoCaps and Flickr30k have their references."""


def images(doc: Mapping[str, Any]) -> list[Any]:
    """The image that a document shows to the model."""
    return [doc["image"].convert("RGB")]


def process(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The caption with its references for each number of texts, and a row of each chosen metric."""
    caption = results[0] if results else ""
    references: list[str] = []
    for name in _REFERENCES:
        if name in doc:
            references = list(doc[name])
            break
    # lmms-eval gathers the values of each number on its own, so every number has the texts.
    items: dict[str, dict[str, Any]] = {}
    for number in TEXT_NUMBERS:
        items[number] = {"number": number, "caption": caption, "references": references}
    for metric in _metrics(os.environ.get("CAPEVAL_METRICS", ""), os.environ.get("CAPEVAL_WEIGHTS")):
        samples = metric.check([caption], [doc["image"]], [references] if metric.needs_references else None)
        # Of Python's own types: lmms-eval pickles them between processes.
        (row,) = metric.encode_all(samples).to_pylist()
        items[metric.key] = {"number": metric.key, "row": row}
    return items


def combine(items: Sequence[dict[str, Any]]) -> float:
    """The metric's number over all documents of all processes."""
    number = items[0]["number"]
    if number in TEXT_NUMBERS:
        # In tuples, as keys of the cache: six numbers come with the same texts.
        texts = []
        for item in items:
            texts.append((item["caption"], tuple(item["references"])))
        return _text_scores(tuple(texts))[number]
    metrics = _metrics(os.environ["CAPEVAL_METRICS"], os.environ.get("CAPEVAL_WEIGHTS"))
    metric_of_key = {metric.key: metric for metric in metrics}
    metric = metric_of_key[number]
    rows = pa.Table.from_pylist([item["row"] for item in items], metric.ROW)
    return combine_tables(metric, [rows]).mean


@lru_cache(maxsize=1)
def _text_scores(texts: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, float]:
    """COCO's numbers of captions and their references, tokenized once for all of them."""
    captions = {}
    references = {}
    for number, (caption, of_caption) in enumerate(texts):
        captions[number] = [caption]
        references[number] = list(of_caption)
    return CocoScores(references, captions).eval


@lru_cache(maxsize=1)
def _metrics(names: str, weights: str | None) -> list[CaptionMetric]:
    """The metrics of CAPEVAL_METRICS, open, with the weights of CAPEVAL_WEIGHTS or their own."""
    stripped = map(str.strip, names.split(","))
    metric_names = list(filter(None, stripped))
    classes = choose_metrics(metric_names, {"weights": weights}) if metric_names else []
    # A second BLEU under the same key would be another number of the same texts.
    for metric, _ in classes:
        if not metric.media:
            fix = "BLEU, ROUGE-L and CIDEr-D are always computed"
            raise wrong_option(
                "CAPEVAL_METRICS", names, f"{metric.name} compares texts alone", fix, sentence=True
            )
    return [metric(options) for metric, options in classes]


if __name__ == "__main__":
    print(TASKS)
