"""The doors: each takes what `metric.score` takes, in its own shape, and gives numbers and signature."""

from __future__ import annotations

import asyncio
import csv
import inspect
import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import evaluate
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import capeval_core
from capeval_core.cli import main
from capeval_core.integrations import CaptionMetrics, CocoScores, reward
from capeval_core.integrations import lmms_eval as tasks
from capeval_core.integrations.ray import CaptionScorer
from capeval_core.integrations.shards import score_shard
from tests.doors.given import CORPUS, HALVES, METRICS, VIDEOS, Given
from tests.integrations.recorded_inspect import Target, modules, state
from tests.support import seams

RATINGS = [5, 1, 2, 4, 3, 1]
"""Of the captions, for `judge`."""


@dataclass(frozen=True)
class Answer:
    """What came out of a door, as far as it says it; a score is None or NaN where there is none.

    agreement: Pearson's correlation of the scores with `RATINGS`.
    """

    number: float | None = None
    scores: list[float | None] | None = None
    signature: str | None = None
    agreement: float | None = None


def module(given: Given, folder: Path, **keywords: Any) -> Any:
    media, path = given.options.get("media"), capeval_core.module_path(given.name)
    return evaluate.load(path, media, cache_dir=str(folder), **given.plain, **keywords)


def answer(output: Mapping[str, Any]) -> Answer:
    key = next(iter(output["per_caption"]))
    return Answer(output[key], output["per_caption"][key], output["signature"])


def compute(given: Given, folder: Path) -> Answer:
    arguments = given.arguments(captions="predictions")
    return answer(module(given, folder).compute(**arguments, per_caption=True))


def add_batch(given: Given, folder: Path) -> Answer:
    opened = module(given, folder)
    for rows in HALVES:
        opened.add_batch(**given.arguments(rows, "predictions"))
    return answer(opened.compute(per_caption=True))


def combined(given: Given, folder: Path) -> Answer:
    partner = "bleu" if given.name == "rougel" else "rougel"
    both = [module(given, folder), capeval_core.module(partner, cache_dir=str(folder), empty="score")]
    arguments = {**given.arguments(captions="predictions"), "references": given.references}
    found = evaluate.combine(both).compute(**arguments, per_caption=True)
    of_one = {name.removeprefix(f"{given.name}_"): value for name, value in found.items()}
    return answer({**of_one, **found})


def one_of_two(inputs: list[Given], folder: Path, rank: int, results: Any) -> None:
    """A process that has half of the captions of each input."""
    found = []
    with seams.short_synonyms():
        for number, given in enumerate(inputs):
            opened = module(given, folder, num_process=2, process_id=rank, experiment_id=str(number))
            opened.add_batch(**given.arguments(HALVES[rank], "predictions"))
            found.append(opened.compute(per_caption=True))
    if rank == 0:
        results.put([answer(output) for output in found])


def two_processes(inputs: list[Given], folder: Path) -> list[Answer]:
    """All inputs in the same two processes: starting them is what takes time."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=one_of_two, args=(inputs, folder, rank, results), daemon=True)
        for rank in (0, 1)
    ]
    for process in ranks:
        process.start()
    found: list[Answer] = results.get(timeout=600)
    for process in ranks:
        process.join(timeout=60)
    return found


def flags(options: Mapping[str, Any]) -> list[str]:
    made = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "exif":  # which has one value, and so a switch
            made.append(f"{flag}-{value}")
        elif isinstance(value, bool):
            made.append(flag if value else f"--no-{flag[2:]}")
        else:
            made += [flag, str(value)]
    return made


def command(given: Given, folder: Path) -> Answer:
    ids = [path.stem for path in given.visuals]
    (folder / "c.json").write_text(json.dumps(dict(zip(ids, given.captions, strict=True))))
    (folder / "r.json").write_text(json.dumps(dict(zip(ids, given.references, strict=True))))
    files = ["--candidates", folder / "c.json", "--json", folder / "out.json"]
    files += [f"--{given.medium}s", given.visuals[0].parent] if given.medium else []
    files += ["--references", folder / "r.json"] if given.compares else []
    assert main(["score", given.name, *map(str, files), *flags(given.options)]) == 0
    found = json.loads((folder / "out.json").read_text())
    assert found["ids"] == ids
    return Answer(found["mean"], found["scores"], found["signature"])


def judge(given: Given, folder: Path) -> Answer:
    rows = [
        {"image": path.name, "candidate": text, "ratings": [rating]}
        for path, text, rating in zip(given.visuals, given.captions, RATINGS, strict=False)
    ]
    (folder / "judgements.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [path.name for path in given.visuals]
    (folder / "references.json").write_text(json.dumps(dict(zip(names, given.references, strict=True))))
    line = ["judge", "own", "--data", folder, "--metrics", given.name, "--statistics", "pearson"]
    line += ["--resamples", 0, "--out", folder / "out"]
    line += ["--images", given.visuals[0].parent] if given.medium else []
    for name, value in given.options.items():
        line += ["--set", f"{given.name}.{name}={str(value).lower() if value is True else value}"]
    assert main([str(part) for part in line]) == 0
    with (folder / "out" / "own.csv").open(newline="") as file:
        cell = list(csv.DictReader(file))[-1]
    return Answer(agreement=float(cell["value"]) / 100, signature=cell["signature"])


def shard(given: Given, folder: Path) -> Answer:
    columns = {**given.columns, "uid": [path.stem for path in given.visuals]}
    if given.medium:
        columns[given.medium] = [path.read_bytes() for path in given.visuals]
    pq.write_table(pa.table(columns), folder / "0.parquet")
    result = score_shard(folder / "0.parquet", folder / "out.parquet", given.name, **given.options)
    table = pq.read_table(folder / "out.parquet")
    return Answer(None, table["score"].to_pylist(), result.signature)


def batch(given: Given, folder: Path) -> Answer:
    scorer = CaptionScorer(given.name, **given.options)
    return Answer(None, list(scorer(given.columns)["score"]), scorer.signature)


def dataset(given: Given, folder: Path) -> Answer:
    scorer = CaptionScorer(given.name, **given.options)
    found = datasets.Dataset.from_dict(given.columns).map(scorer, batched=True, batch_size=2)
    return Answer(None, list(found["score"]), scorer.signature)


def torchmetrics(given: Given, folder: Path) -> Answer:
    from capeval_core.integrations.torchmetrics import CaptionScore

    score: Any = CaptionScore(given.name, **given.options)
    for rows in HALVES:
        score.update(**given.arguments(rows))
    number = float(score.compute().double())
    return Answer(number, score.result.scores, score.result.signature)


def lmms_eval(given: Given, folder: Path) -> Answer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPEVAL_METRICS", given.name if given.medium else "")
        patch.setenv("CAPEVAL_WEIGHTS", "tiny")
        rows = zip(given.visuals, given.captions, given.references, strict=True)
        items = [
            tasks.process({"image": Image.open(path), "annotations_captions": own}, [text])
            for path, text, own in rows
        ]
        text_keys = {"bleu": "Bleu_4", "rougel": "ROUGE_L", "ciderd": "CIDEr"}
        key = text_keys.get(given.name) or list(items[0])[-1]
        return Answer(tasks.combine([item[key] for item in items]))


def inspect_ai(given: Given, folder: Path) -> Answer:
    name = "capeval_core.integrations.inspect_ai"

    async def scores() -> list[Any]:
        score = import_module(name).caption_score(given.name, **given.options)
        samples = zip(given.captions, given.visuals, given.references, strict=True)
        return [await score(state(text, str(path)), Target(own)) for text, path, own in samples]

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        for module_name, made in modules().items():
            patch.setitem(sys.modules, module_name, made)
        patch.delitem(sys.modules, name, raising=False)
        found = pool.submit(asyncio.run, scores()).result()
        sys.modules.pop(name)
    return Answer(None, [one.value for one in found], found[0].metadata["signature"])


def coco(given: Given, folder: Path) -> Answer:
    name = {"bleu": "Bleu_4", "rougel": "ROUGE_L", "ciderd": "CIDEr"}[given.name]
    captions = {i: [text] for i, text in enumerate(given.captions)}
    found = CocoScores(dict(enumerate(given.references)), captions)
    return Answer(found.eval[name], list(found.arrays[name]))


def rewards(given: Given, folder: Path) -> Answer:
    rewards = reward(given.name, **given.options)
    scores = rewards(**given.arguments(captions="completions"))
    return Answer(None, scores, rewards.metric.signature())


def trainer(given: Given, folder: Path) -> Answer:
    class Words:
        def batch_decode(self, ids: Any, skip_special_tokens: bool) -> list[str]:
            return [given.captions[int(row[0])] for row in ids]

    numbers = np.arange(len(given.captions))[:, None]
    about = {name: value for name, value in given.arguments().items() if name != "captions"}
    metrics = CaptionMetrics(Words(), metrics=[given.name], **about, **given.plain)
    (number, *_) = metrics(SimpleNamespace(predictions=numbers, label_ids=numbers)).values()
    result = metrics.results[given.name]
    return Answer(number if given.name != "bleu" else result.mean, result.scores, result.signature)


def page(given: Given, folder: Path) -> Answer:
    pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")
    from gradio.processing_utils import save_file_to_cache
    from gradio.utils import get_upload_folder

    from capeval_core.integrations import page as pages

    built: Any = pages.build(given.name, given.options.get("weights"), media=given.options.get("media"))
    (score,) = (one.fn for one in built.fns.values() if one.api_name == "score")
    found = []
    for text, path, references in zip(given.captions, given.visuals, given.references, strict=True):
        upload = {"path": save_file_to_cache(path, get_upload_folder()), "meta": {"_type": "gradio.FileData"}}
        values = {given.medium: upload, "about": given.medium, "references": "\n".join(references)}
        values |= {"caption": text if isinstance(text, str) else "\n".join(text)}
        values |= {"weights": given.options.get("weights", "none")}
        found.append(score(*(values.get(name) for name in inspect.signature(score).parameters)))
    return Answer(None, [one["scores"][0] for one in found], found[0]["signature"])


@dataclass(frozen=True)
class Door:
    """A way in.

    takes: its metrics. stream: whether it sees a few captions at a time, so statistics are made before.
    alone: whether each caption is a set of its own. lacks: what it does not take, as in `given`.
    """

    call: Callable[[Given, Path], Answer]
    takes: tuple[str, ...]
    stream: bool = False
    alone: bool = False
    lacks: tuple[str, ...] = ()


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in METRICS if name not in names)


SEEING = ("clips", "refclips", "specs", "refhices")
ALIKE = (*SEEING, "bleu", "ciderd")
"""What a door does with them it does with others, too; only `compute` and `command` have all."""
ALONE = without("eco", *ALIKE)
DOORS = {
    "compute": Door(compute, METRICS),
    "add_batch": Door(add_batch, without(*ALIKE), stream=True),
    "combine": Door(combined, ALONE),
    "command": Door(command, without("eco"), lacks=("statistics",)),
    "judge": Door(judge, without("eco", "chair", *ALIKE, *VIDEOS), lacks=("statistics",)),
    "shard": Door(shard, ALONE, stream=True),
    "CaptionScorer": Door(batch, ALONE, stream=True),
    "datasets": Door(dataset, ALONE, stream=True),
    "torchmetrics": Door(torchmetrics, ALONE, stream=True),
    "lmms_eval": Door(
        lmms_eval, without("eco", "cider", "chair", *SEEING, *VIDEOS), lacks=("options", "broken")
    ),
    "inspect": Door(inspect_ai, without("eco", "chair", *ALIKE, *VIDEOS), stream=True),
    "CocoScores": Door(coco, ("bleu", "rougel", "ciderd"), lacks=("options",)),
    "reward": Door(rewards, ALONE, stream=True),
    "CaptionMetrics": Door(trainer, ALONE, stream=True),
    "page": Door(page, without(*CORPUS, *ALIKE), alone=True),
}
