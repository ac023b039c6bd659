"""Metrics on videos, and on texts alone, as users of `evaluate` and of Trainers meet them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import evaluate
import numpy as np
import pytest
import torch
from PIL import Image

import capeval_core
from capeval_core.integrations import CaptionMetrics, reward
from capeval_core.registry import MEDIA_VARIANTS, metric_class
from capeval_core.scores.idf import TokenIdf
from tests.integrations.ranks import run_ranks
from tests.support.counting import counted

ROOT = Path(__file__).parents[2]
CAPTIONS = ["a red circle", "two blue squares", "a small green star", "hearts", "nothing"]
REFERENCES = [["a circle", "a red disc"], ["blue squares"], ["a star"], ["one"], ["a", "b", "c"]]
TEXTS = [name for name in capeval_core.list_metrics() if not metric_class(name).media]
Load = Callable[..., Any]


@pytest.fixture
def load(weights: str, tmp_path: Path) -> Load:
    def load(name: str, configuration: str | None = "video", **keywords: Any) -> Any:
        if metric_class(name).default_weights is not None:
            keywords = {"weights": weights, "device": "cpu", **keywords}
        return evaluate.load(str(ROOT / "metrics" / name), configuration, cache_dir=str(tmp_path), **keywords)

    return load


@pytest.fixture
def clips(videos: Path) -> list[Path]:
    return sorted(videos.iterdir())


def needed(name: str) -> dict[str, Any]:
    return {"references": REFERENCES} if metric_class(name).needs_references else {}


# evaluate


@pytest.mark.parametrize(("name", "medium"), MEDIA_VARIANTS)
def test_a_configuration_gives_what_the_core_gives_in_any_portions(
    name: str, medium: str, load: Load, weights: str, clips: list[Path]
) -> None:
    metric = capeval_core.load(name, media=medium, weights=weights, device="cpu")  # type: ignore[call-overload]
    expected = metric.score(CAPTIONS, videos=clips, **needed(name))
    module = load(name, medium)
    assert list(module.features) == ["predictions", "videos", *needed(name)]
    assert metric.title in module.description and "videos: videos, one per caption" in module.compute.__doc__
    assert f'"{medium}", weights="tiny")' in module.inputs_description
    whole = module.compute(predictions=CAPTIONS, videos=clips, **needed(name), per_caption=True)
    assert whole[expected.key] == pytest.approx(expected.mean, abs=1e-6)
    assert whole["signature"] == expected.signature and f"|media:{medium}|" in expected.signature

    one = {name: values[0] for name, values in needed(name).items()}
    module.add(prediction=CAPTIONS[0], video=clips[0], **one)
    module.add_batch(
        predictions=CAPTIONS[1:3], videos=clips[1:3], **{n: v[1:3] for n, v in needed(name).items()}
    )
    rest = {n: v[3:] for n, v in needed(name).items()}
    parts = module.compute(predictions=CAPTIONS[3:], videos=clips[3:], **rest, per_caption=True)
    # Weights of words are those of all captions together, although each portion was encoded by itself.
    assert parts["signature"] == expected.signature
    assert parts["per_caption"][expected.key] == pytest.approx(expected.scores, abs=1e-6)


def test_two_processes_share_the_weights_of_words(
    load: Load, weights: str, clips: list[Path], tmp_path: Path
) -> None:
    paths = [str(clip) for clip in clips]
    shares = [[{"predictions": CAPTIONS[rows], "videos": paths[rows]}] for rows in (slice(0, 3), slice(3, 5))]
    options = {
        "config_name": "video",
        "weights": weights,
        "device": "cpu",
        "cache_dir": str(tmp_path / "ranks"),
    }
    found = run_ranks(str(ROOT / "metrics" / "pacs"), options, {"halves": shares})["halves"]
    expected = load("pacs").compute(predictions=CAPTIONS, videos=clips, per_caption=True)
    assert found["signature"] == expected["signature"]
    assert found["per_caption"]["pac_s"] == pytest.approx(expected["per_caption"]["pac_s"], abs=1e-6)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        (
            "vidoe",
            "config_name='vidoe': pacs has no such configuration: did you mean 'video'? (known: default, ",
        ),
        ("tiny", "config_name='tiny': pacs has no such configuration; did you mean weights='tiny'? (known"),
    ],
)
def test_unknown_configurations_are_refused(configuration: str, message: str, load: Load) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load("pacs", configuration)


@pytest.mark.parametrize(
    ("configuration", "given", "message"),
    [
        (
            "video",
            {"images": ["a.png"]},
            "no argument 'images': images are scored by evaluate.load(..., 'default')",
        ),
        (
            None,
            {"videos": ["a.mp4"]},
            "no argument 'videos': videos are scored by evaluate.load(..., 'video')",
        ),
        ("video", {}, "videos is missing: pass a list of videos"),
        ("video", {"videos": ["no.mp4"]}, "videos[0]: there is no file 'no.mp4'"),
        ("video", {"videos": [None]}, "videos[0] is None: every caption needs a video"),
        (
            "video",
            {"videos": ["no.mp4"] * 2},
            "len(predictions)=1 but len(videos)=2",
        ),
    ],
)
def test_wrong_visuals_are_refused(
    configuration: str | None, given: dict[str, Any], message: str, load: Load
) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        load("pacs", configuration).compute(predictions=["a"], **given)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_alone_need_no_images(name: str, load: Load, clips: list[Path]) -> None:
    expected = capeval_core.load(name).score(CAPTIONS, references=REFERENCES)
    module = load(name, None)
    assert list(module.features) == ["predictions", "references"]
    with pytest.warns(UserWarning, match=f"{name} compares texts alone: images are ignored") as caught:
        output = module.compute(predictions=CAPTIONS, references=REFERENCES, images=["none.png"] * 5)
        again = module.compute(predictions=CAPTIONS, references=REFERENCES, images=["none.png"] * 5)
    (ignored,) = (one for one in caught if "are ignored" in str(one.message))
    assert ignored.filename == __file__
    assert output == again == pytest.approx(expected.numbers, abs=1e-12)


# Trainers


class Numbers:
    """A processor whose token ids are the numbers of captions."""

    def batch_decode(self, ids: Any, skip_special_tokens: bool) -> list[str]:
        return [CAPTIONS[row[0]] for row in ids]


def evaluation(order: list[int]) -> Any:
    return SimpleNamespace(predictions=np.array(order)[:, None], label_ids=np.arange(5)[:, None])


def test_a_trainer_encodes_frames_once_and_scores_texts_beside_them(weights: str, clips: list[Path]) -> None:
    chosen = {"videos": clips, "references": REFERENCES, "weights": weights, "device": "cpu"}
    metrics = CaptionMetrics(Numbers(), metrics=["pacs", "refpacs", "cider"], **chosen)
    assert repr(metrics).startswith(
        "CaptionMetrics(videos: 5; references: given; pac_s on cpu: capeval:pacs|media:"
    )
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
        captions = [CAPTIONS[i] for i in order]
        with counted(metrics.metrics[0].encoder) as counts:  # type: ignore[attr-defined]
            found = metrics(evaluation(order))
        assert counts.images == (25 if order[0] == 0 else 0)  # 3 + 4 + 5 + 6 + 7 frames
        for name in ("pacs", "refpacs"):
            metric = capeval_core.load(name, media="video", weights=weights, device="cpu")  # type: ignore[call-overload]
            expected = metric.score(captions, videos=clips, **needed(name))
            assert found[expected.key] == pytest.approx(expected.mean, abs=1e-6)
        assert found["cider"] == pytest.approx(
            capeval_core.load("cider").score(captions, references=REFERENCES).mean
        )
    # The document frequencies are those of the references of the first evaluation, whatever was captioned.
    table = capeval_core.load("cider").prepare(REFERENCES)
    assert metrics.metrics[2].options.statistics.fingerprint == table.fingerprint  # type: ignore[attr-defined]


def test_a_trainer_scores_texts_alone_without_visuals(clips: list[Path]) -> None:
    metrics = CaptionMetrics(Numbers(), references=REFERENCES, metrics=TEXTS)
    found = metrics(evaluation([0, 2, 1, 3, 4]))
    captions = [CAPTIONS[i] for i in (0, 2, 1, 3, 4)]
    for name in TEXTS:
        for key, value in capeval_core.load(name).score(captions, references=REFERENCES).numbers.items():
            assert found[key] == pytest.approx(value, abs=1e-12)
    with pytest.raises(ValueError, match="references is missing: pass those of the evaluation set"):
        CaptionMetrics(Numbers(), metrics="bleu")
    with pytest.raises(ValueError, match="gave 4 captions, but there are 5 lists of references"):
        metrics(SimpleNamespace(predictions=np.zeros((4, 1), int), label_ids=None))
    with pytest.warns(UserWarning, match="bleu: only texts are compared, videos are ignored"):
        CaptionMetrics(Numbers(), videos=clips, references=REFERENCES, metrics="bleu")


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({}, ValueError, "images is missing: pass a list of images"),
        ({"images": ["a.png"], "videos": ["b.mp4"]}, TypeError, "pass images or videos, not both"),
        (
            {"videos": ["b.mp4"], "metrics": "clips"},
            ValueError,
            "media='video': clips is no metric on it; pacs and",
        ),
        ({"videos": ["b.mp4"]}, ValueError, "videos[0]: there is no file 'b.mp4'"),
        ({"videos": []}, ValueError, "videos is empty: there is nothing to caption"),
        (
            {"videos": {"a": []}},
            TypeError,
            "videos is a dict: one CaptionMetrics belongs to one evaluation set",
        ),
        (
            {"videos": ["b.mp4"], "metrics": {"name": "pacs", "media": "image"}},
            TypeError,
            "pacs is about images, but videos are given: pass images=...",
        ),
        (
            {"images": ["b.png"], "metrics": {"name": "pacs", "media": "video"}},
            TypeError,
            "pacs is about videos, but images are given: pass videos=...",
        ),
    ],
)
def test_wrong_visuals_are_refused_before_training(
    given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        CaptionMetrics(Numbers(), **{"weights": "tiny", "metrics": "pacs", **given})


# Rewards


def test_a_reward_takes_videos_of_any_make(weights: str, clips: list[Path], videos: Path) -> None:
    table = TokenIdf({320: 1.0}, unseen=2.0)
    rewards = reward("pacs", media="video", weights=weights, device="cpu", statistics=table)
    frames = [np.stack([np.asarray(Image.open(path)) for path in sorted((videos / "clip3").iterdir())])] * 2
    metric = capeval_core.load("pacs", media="video", weights=weights, device="cpu", statistics=table)
    expected = metric.score(CAPTIONS[:2], videos=frames).scores
    tensor = torch.tensor(np.stack(frames)).permute(0, 1, 4, 2, 3)
    for given in (frames, tensor, list(tensor), [list(one) for one in tensor], [videos / "clip3"] * 2):
        assert rewards(CAPTIONS[:2], videos=given) == pytest.approx(expected, abs=1e-6)
        assert rewards(CAPTIONS[:2], video=given, images=None) == pytest.approx(expected, abs=1e-6)
    assert pickle.loads(pickle.dumps(rewards))(CAPTIONS[:2], videos=frames) == pytest.approx(
        expected, abs=1e-6
    )
    with pytest.raises(TypeError, match="reward: pass videos or video, not both"):
        rewards(CAPTIONS[:2], videos=frames, video=frames)
    with pytest.raises(ValueError, match="videos is missing"):
        rewards(CAPTIONS[:2], images=frames)


def test_a_reward_of_texts_alone_ignores_other_columns() -> None:
    rewards = reward("rougel")
    expected = capeval_core.load("rougel").score(CAPTIONS, references=REFERENCES).scores
    assert rewards(CAPTIONS, ["nowhere.png"] * 5, REFERENCES, videos=["x"] * 5, other=3) == expected
    with pytest.raises(ValueError, match="cider needs statistics of the whole corpus"):
        reward("cider")
