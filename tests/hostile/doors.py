"""The doors: each takes a hostile input among good ones, in its own shape, and is to refuse it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import evaluate
import numpy as np

import capeval_core
from capeval_core import registry
from capeval_core.cli import main
from capeval_core.demo import demo_set
from capeval_core.integrations import CaptionMetrics, CocoScores, reward
from capeval_core.integrations.ray import CaptionScorer
from capeval_core.integrations.shards import score_shard
from tests.hostile import world as world_module
from tests.hostile.world import World
from tests.integrations.recorded_inspect import Target, modules, state
from tests.support.seams import greedy_match

TEXTS = ("bleu", "rougel", "cider", "ciderd", "chair")
Arguments = dict[str, Any]
Door = Callable[[World, str, Arguments], object]


class RefusedError(Exception):
    """A refusal that is no exception: a command's exit, a row's error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@cache
def opened(metric: str) -> Any:
    """`pacs`, or `pacs:video` for another medium."""
    name, _, medium = metric.partition(":")
    options: Arguments = {} if name in TEXTS else {"weights": "tiny", "device": "cpu"}
    options |= {"members": "tiny"} if name == "eco" else {}
    options |= {"media": medium} if medium == "video" else {}
    return capeval_core.load(name, **options)


@cache
def opened_module(metric: str) -> Any:
    name, _, medium = metric.partition(":")
    options: Arguments = {} if name in TEXTS else {"weights": "tiny"}
    options |= {"members": "tiny"} if name == "eco" else {}
    return evaluate.load(capeval_core.module_path(name), medium or None, **options)


def predictions(arguments: Arguments) -> Arguments:
    return {"predictions" if name == "captions" else name: value for name, value in arguments.items()}


def columns(arguments: Arguments) -> Arguments:
    names = {"captions": "caption", "images": "image", "videos": "video"}
    return {names.get(name, name): value for name, value in arguments.items()}


def add_batch(world: World, metric: str, arguments: Arguments) -> object:
    module = evaluate.load(
        capeval_core.module_path(metric), **({} if metric in TEXTS else {"weights": "tiny"})
    )
    module.add_batch(**predictions(arguments))
    return module.compute()


def scorer(world: World, metric: str, arguments: Arguments) -> object:
    found = made_scorer(metric)(columns(arguments))
    return of_rows(found["error"], found["score"])


@cache
def made_scorer(metric: str) -> Any:
    name, _, medium = metric.partition(":")
    options: Arguments = {"media": medium, "idf": False} if medium else {}
    return CaptionScorer(name, **options, **({} if name in TEXTS else {"weights": "tiny"}))


def of_rows(errors: Any, scores: Any) -> object:
    """The error of the row that has one and no score."""
    for index, (error, score) in enumerate(zip(errors, scores, strict=True)):
        if error and (score is None or score != score):
            raise RefusedError("row", f"row[{index}]: {error}")
    return list(scores)


def shard(world: World, metric: str, source: Any) -> object:
    return score_shard(source, world.folder / "out.parquet", metric, weights="tiny").error


def torchmetrics(world: World, metric: str, arguments: Arguments) -> object:
    from capeval_core.integrations.torchmetrics import CaptionScore

    score: Any = CaptionScore(opened(metric))
    score.update(**arguments)
    return score.compute()


class Words:
    """The smallest processor of a Trainer."""

    def __init__(self, captions: Any = ("a", "b")) -> None:
        self.captions = captions

    def batch_decode(self, ids: Any, skip_special_tokens: bool) -> Any:
        return [self.captions[int(row[0])] for row in ids]


def trainer(world: World, metric: str, arguments: Arguments) -> object:
    given = {"processor": Words(), "predictions": np.arange(2)[:, None], **arguments}
    given.pop("captions", None)
    ids = given.pop("predictions")
    metrics = CaptionMetrics(given.pop("processor"), metrics=[opened(metric)], **given)
    return metrics(SimpleNamespace(predictions=ids, label_ids=np.zeros((2, 1), int)))


def coco(world: World, metric: str, arguments: Arguments) -> object:
    gts = arguments.pop("references")
    res = arguments.pop("captions")
    return CocoScores(gts, res, **arguments).eval


def inspect_ai(world: World, metric: str, arguments: Arguments) -> object:
    name = "capeval_core.integrations.inspect_ai"
    given = {"caption": "a dog", "images": (str(world.image),), "references": ["a"], **arguments}
    kept = {key: sys.modules.get(key) for key in (*modules(), name)}
    sys.modules.update(modules())
    sys.modules.pop(name, None)
    try:
        score = import_module(name).caption_score(opened(metric))
        one = score(state(given["caption"], *given["images"]), Target(given["references"]))
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(asyncio.run, one).result()
    finally:
        for key, module in kept.items():
            sys.modules.pop(key, None)
            if module is not None:
                sys.modules[key] = module
    return of_rows([found.explanation or found.metadata], [found.value])


@cache
def page(metric: str) -> Any:
    from capeval_core.integrations import page as pages

    name, _, medium = metric.partition(":")
    built: Any = pages.build(name, None if name in TEXTS else "tiny", media=medium or None)
    return next(one.fn for one in built.fns.values() if one.api_name == "score")


def paged(world: World, metric: str, arguments: Arguments) -> object:
    from gradio.processing_utils import save_file_to_cache
    from gradio.utils import get_upload_folder

    def upload(path: Path) -> Arguments:
        cached = save_file_to_cache(path, get_upload_folder())
        return {"path": cached, "meta": {"_type": "gradio.FileData"}}

    values: Arguments = {"caption": "a dog", "references": "a dog", "weights": "tiny", "about": "image"}
    values |= {"image": upload(demo_set()[0].image), **arguments}
    if isinstance(values["image"], bytes):
        values["image"] = upload(world.file("upload.png", values["image"]))
    score = page(metric)
    return score(*(values.get(name) for name in inspect.signature(score).parameters))


def command(arguments: list[Any]) -> object:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(argument) for argument in arguments])
    if status == 0:
        return out.getvalue()
    raise RefusedError(f"exit {status}", err.getvalue())


def opening(world: World, door: str, metric: str, options: Mapping[str, Any]) -> object:
    """Options through a door that opens a metric; the weights do not open, but where it is used."""
    name, _, medium = metric.partition(":")
    given: Arguments = {} if name in TEXTS else {"weights": "tiny" if door == "used" else world.unopened}
    given |= ({"media": medium} if medium else {}) | dict(options)
    if door == "load":
        return capeval_core.load(name, **given)
    if door == "used":
        return capeval_core.load(name, **given).score(["a dog"], [world.image])
    if door == "module":
        module = evaluate.load(capeval_core.module_path(name), **given)
        return module.compute(predictions=["a"], images=[world.image])
    if door == "reward":
        return reward(name, **given)
    if door == "CaptionScorer":
        return CaptionScorer(name, **given)({"caption": ["a"], "image": [str(world.image)]})
    if door == "CaptionMetrics":
        return CaptionMetrics(Words(), images=[world.image], metrics=[name], **given)
    source = world.parquet([{"caption": "a", "image": b"x"}])
    return score_shard(source, "out.parquet", name, **given)


def network(world: World, metric: str, folder: Any) -> object:
    return registry.load(metric, weights=folder, device="cpu").score(["a dog"], [world.image])


def rewarded(world: World, metric: str, arguments: Arguments) -> object:
    named = {"completions" if name == "captions" else name: value for name, value in arguments.items()}
    scores = reward(opened(metric))(**named)
    return of_rows(["no image" if score is None else "" for score in scores], scores)


def use(world: World, expression: str) -> object:
    """What a user does with a metric or a result."""
    names = {"load": capeval_core.load, "opened": opened, "reward": reward, "CaptionScorer": CaptionScorer}
    return eval(expression, vars(world_module) | names | {"world": world})


DOORS: dict[str, Door] = {
    "score": lambda world, metric, given: opened(metric).score(**given),
    "compute": lambda world, metric, given: opened_module(metric).compute(**predictions(given)),
    "add_batch": add_batch,
    "CaptionScorer": scorer,
    "torchmetrics": torchmetrics,
    "reward": rewarded,
    "CaptionMetrics": trainer,
    "CocoScores": coco,
    "inspect": inspect_ai,
    "page": paged,
    "shard": shard,
    "weights": network,
    "match": lambda world, metric, given: greedy_match(*given[0], **given[1]),
}
