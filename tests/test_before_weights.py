"""What needs no weights is checked before they are opened, for every metric."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import capeval_core
from capeval_core.models.batching import count_forwards
from capeval_core.registry import METRICS, metric_class
from capeval_core.reranking import Reranker
from tests.test_contract import opened, score

EVERY = pytest.mark.parametrize("name", METRICS)

ABSENT = "./no-such-weights"
"""Weights that lie on no disk and on no Hub: messages that do not name them came first."""


def absent(name: str) -> dict[str, str]:
    """The option that names them, for a metric that has any."""
    return {} if metric_class(name).default_weights is None else {"weights": ABSENT}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    return str(caught.value)


@EVERY
def test_options_are_checked_before_weights_are_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for options, message in (
        ({"rows": tmp_path}, "is a folder of something else"),
        ({"rows": tmp_path / "notes.txt"}, "is a file"),
        ({"device": "cuda:77"}, "device='cuda:77'"),
    ):
        assert message in refusal(lambda o=options: capeval_core.load(name, **absent(name), **o))  # type: ignore[misc]


def test_a_prompt_that_leaves_no_room_is_refused_before_weights_are_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"format": 1, "architecture": {"text": {"context_length": 20}}}')
    listed = metric_class("pacs").default_weights.repository
    for weights, words in ((tmp_path, 18), (listed, 75), ("tiny", 75)):
        prompt = "dog " * words
        message = refusal(lambda w=weights, p=prompt: capeval_core.load("pacs", weights=w, prompt=p))  # type: ignore[misc]
        assert f"fills all {words + 2} token ids" in message
        metric_class("pacs").check_options(
            metric_class("pacs").Options.of("pacs", {"weights": weights, "prompt": "dog " * (words - 1)})
        )


@EVERY
def test_input_is_checked_without_weights(name: str, images: list[Path], tmp_path: Path) -> None:
    metric = metric_class(name)
    options = metric.Options.of(name, {**absent(name), "rows": tmp_path})
    texts = [["a dog", ""]] if issubclass(metric, Reranker) else [""]
    message = refusal(lambda: metric.check_input(options, texts, [*images[:1], "no-such.png"]))
    assert "captions[0]" in message and "weights" not in message
    assert ("no-such.png" in message) is bool(metric.media)


@EVERY
def test_rows_of_a_call_are_checked_before_images_are_read(
    name: str, weights: str, tmp_path: Path, images: list[Path]
) -> None:
    (tmp_path / "rows").write_text("mine")
    metric = opened(name, weights)
    with count_forwards() as forwards:
        message = refusal(lambda: score(metric, images, rows=tmp_path / "rows"))
    assert "is a file: pass a folder for the rows" in message
    assert forwards.items == 0
    missing = [Path("no-such.png")] * len(images)
    message = refusal(lambda: score(metric, missing, rows=tmp_path / "rows"))
    assert "is a file: pass a folder for the rows" in message and "no-such" not in message
