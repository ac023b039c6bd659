"""`caption_score` of Inspect, against its recorded interface."""

from __future__ import annotations

import asyncio
import base64
import importlib
import math
import re
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import capeval_core
from capeval_core.integrations.extras import needs
from tests.integrations.recorded_inspect import Score, Target, modules, state

MODULE = "capeval_core.integrations.inspect_ai"
CAPTIONS = ["a red circle", "two blue squares", "", "hearts"]
REFERENCES = [["a circle", "a red disc"], ["blue squares"], ["a star"], ["one", "two", "three"]]


@pytest.fixture
def caption_score(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE).caption_score
    sys.modules.pop(MODULE)


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, in a thread of its own: a browser of another test keeps this one's loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def scores(score: Any, images: list[str]) -> list[Score]:
    """All samples at once, as Inspect scores them."""

    async def gathered() -> list[Score]:
        outputs = [f"<think>Is it a star?</think> {caption}" for caption in CAPTIONS]
        states = [state(output, "other.png", image) for output, image in zip(outputs, images, strict=True)]
        return await asyncio.gather(
            *(score(one, Target(texts)) for one, texts in zip(states, REFERENCES, strict=True))
        )

    return finished(gathered())


@pytest.mark.parametrize("name", ["pacs", "refpacs", "hices", "vilbertscore", "rougel"])
def test_samples_give_the_scores_of_the_whole(name: str, caption_score: Any, images: list[Path]) -> None:
    options = {} if name == "rougel" else {"weights": "tiny"}
    metric = capeval_core.load(name, empty="score", **options)
    references = REFERENCES if metric.needs_references else None
    expected = metric.score(CAPTIONS, images[:4] if metric.media else None, references)
    scorer = caption_score(name, **options)
    assert scorer.registered == (name, ["mean", "stderr"])
    found = scores(scorer, [str(path) for path in images[:4]])
    assert [one.value for one in found] == pytest.approx(expected.scores, abs=1e-5)
    assert [one.answer for one in found] == CAPTIONS
    for one in found:
        assert one.metadata is not None and one.metadata.keys() == {*expected.parts, "signature"}
        assert one.metadata["signature"].split("|refs:")[0] == expected.signature.split("|refs:")[0]


def test_a_data_url_is_the_image_in_it(caption_score: Any, images: list[Path]) -> None:
    urls = [f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" for path in images[:4]]
    score = caption_score("pacs", weights="tiny")
    assert scores(score, urls) == scores(score, [str(path) for path in images[:4]])


def test_a_broken_image_leaves_its_sample_unscored(caption_score: Any, images: list[Path]) -> None:
    paths = [str(images[0]), "nowhere.png", *map(str, images[2:4])]
    first, second, *_ = scores(caption_score("pacs", weights="tiny", on_error="nan"), paths)
    assert math.isfinite(first.value) and math.isnan(second.value)
    assert second.explanation is not None and "nowhere.png" in second.explanation
    with pytest.raises(ValueError, match=re.escape("images[0]: there is no file 'nowhere.png'")):
        scores(caption_score("pacs", weights="tiny"), paths)


def test_a_sample_without_an_image_is_an_error(caption_score: Any) -> None:
    score = caption_score("pacs", weights="tiny")
    for one in (state("a star"), state("a star").__class__(input="What?", output=state("a star").output)):
        with pytest.raises(ValueError, match=re.escape("images[0] is None: every caption needs an image")):
            finished(score(one, Target()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "bleu",
            {},
            "metric='bleu': bleu is a number of all captions, and no mean: score its log by `score`",
        ),
        ("pacs", {"media": "video", "weights": "tiny", "idf": False}, "pacs is about videos"),
        ("cider", {}, "cider needs statistics of the whole corpus"),
    ],
)
def test_other_metrics_are_refused(
    name: str, options: dict[str, Any], message: str, caption_score: Any
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        caption_score(name, **options)


def test_a_missing_package_is_an_error_that_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'inspect_ai is not installed: pip install "capeval\[insp'):
        importlib.import_module(MODULE)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such'"), needs("other", "other"):
        importlib.import_module("no_such")


def test_samples_take_turns_at_the_network(
    caption_score: Any, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[MODULE]
    original, busy, most = module.scored, [], []

    def watched(*arguments: Any) -> Any:
        busy.append(None)
        most.append(len(busy))
        time.sleep(0.02)  # for the others to come in, if they may
        try:
            return original(*arguments)
        finally:
            busy.pop()

    monkeypatch.setattr(module, "scored", watched)
    scores(caption_score("pacs", weights="tiny"), [str(path) for path in images[:4]])
    assert most == [1] * len(CAPTIONS)
