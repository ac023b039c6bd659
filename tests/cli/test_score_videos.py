"""`capeval score` of videos, and of texts alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import capeval_core
from capeval_core.registry import MEDIA_VARIANTS, metric_class
from tests.cli.conftest import Ran
from tests.support.counting import counted

CAPTIONS = {"clip1": ["a red circle", "two stars"], "clip2": "a star", "clip3": "hearts", "clip4": "a cross"}
REFERENCES = {
    "clip1": ["a circle"],
    "clip2": ["one star", "a star"],
    "clip3": ["two hearts"],
    "clip4": ["crosses"],
}
PAIRS = [("clip1", "a red circle"), ("clip1", "two stars"), *list(CAPTIONS.items())[1:], ("clip5", "nothing")]
NAMES = {
    "clip1": "clip1.mp4",
    "clip2": "clip2.mkv",
    "clip3": "clip3",
    "clip4": "clip4.avi",
    "clip5": "clip5.gif",
}
TEXTS = [name for name in capeval_core.list_metrics() if not metric_class(name).media]
Score = Callable[..., Ran]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "captions.json").write_text(json.dumps({**CAPTIONS, "clip5": "nothing"}))
    (tmp_path / "references.json").write_text(json.dumps({**REFERENCES, "clip5": ["something"]}))
    return tmp_path


@pytest.fixture
def score(capeval: Callable[..., Ran], files: Path, videos: Path, weights: str) -> Score:
    """`capeval score METRIC --media video` on these files; further arguments follow, and win."""

    def run(metric: str, *arguments: object) -> Ran:
        given = ["--media", "video", "--candidates", files / "captions.json", "--videos", videos]
        if metric_class(metric).needs_references:
            given += ["--references", files / "references.json"]
        return capeval("score", metric, *given, "--weights", weights, "--device", "cpu", *arguments)

    return run


@pytest.mark.parametrize(("name", "medium"), MEDIA_VARIANTS)
def test_the_numbers_are_those_of_the_library(
    name: str, medium: str, score: Score, capeval: Callable[..., Ran], files: Path, videos: Path, weights: str
) -> None:
    ran = score(name, "--json", files / "a.json")
    assert ran.status == 0, ran.err
    content = json.loads((files / "a.json").read_text())
    metric = capeval_core.load(name, media=medium, weights=weights, device="cpu")  # type: ignore[call-overload]
    references = [{**REFERENCES, "clip5": ["something"]}[clip] for clip, _ in PAIRS]
    expected = metric.score(
        [text for _, text in PAIRS],
        references=references if metric.needs_references else None,
        videos=[videos / NAMES[clip] for clip, _ in PAIRS],
    )
    assert content["ids"] == [clip for clip, _ in PAIRS]
    assert content["scores"] == pytest.approx(expected.scores, abs=1e-6)
    assert content["signature"] == expected.signature and content["interval"] is not None
    assert metric.title in ran.out
    compared = capeval("compare", files / "a.json", files / "a.json")
    assert compared.status == 0 and metric.title in compared.out


def test_kept_rows_spare_the_second_run(score: Score, files: Path, weights: str) -> None:
    first = score("pacs", "--rows", files / "rows")
    kept = capeval_core.load("pacs", weights=weights, device="cpu")
    with counted(kept.encoder) as counts:
        assert score("pacs", "--rows", files / "rows").out == first.out
    assert counts.images == counts.texts == 0
    assert (
        "rows of other settings (max_frames" in score("pacs", "--rows", files / "rows", "--max-frames", 2).err
    )


def test_each_score_is_drawn(score: Score, files: Path) -> None:
    ran = score("pacs", "--explain", files / "drawn")
    assert ran.status == 0, ran.err
    assert "explained  6 captions" in ran.out
    assert Image.open(files / "drawn" / "clip1-2.png").width == 1440
    note = json.loads((files / "drawn" / "clip3-1.json").read_text())
    assert len(note["frame_cosines"]) == 5 and note["words"][1]["word"] == "hearts"
    refused = score("pacs", "--media", "image", "--images", files, "--explain", files / "more")
    assert "--videos: pacs is about images, pass --images FOLDER or --media video" in refused.err


def test_a_folder_of_videos_alone_asks_for_the_medium(capeval: Callable[..., Ran], files: Path) -> None:
    refused = capeval("score", "pacs", "--candidates", files / "captions.json", "--videos", files)
    assert refused.status == 2
    assert "--videos: pacs is about images, pass --images FOLDER or --media video" in refused.err
    assert "--candidates, --images" in capeval("score", "pacs").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--media", "vidoe"],
            "--media vidoe: pacs is no metric on it: did you mean 'video'? (known: image, video)",
        ),
        (["--media"], "--media: a value is missing\n(see capeval score pacs --help)"),
        (
            ["--images", "."],
            "--images: pacs --media video is about videos, pass --videos FOLDER or --media image",
        ),
        (["--videos", "no-such"], "no-such: there is no such folder"),
        (["--videos", "captions.json"], "captions.json: is a file, expected a folder of videos"),
        (["--videos", "empty"], "5 of 5 ids ('clip1', 'clip2', 'clip3', 'clip4', 'clip5') have no video"),
        (["--fps", "0"], "--fps 0.0: expected a positive number of frames a second"),
        (["--fps", "1", "--max-frames", "3"], "--max-frames 3"),
    ],
)
def test_wrong_flags_are_told(
    arguments: list[str], message: str, score: Score, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    Path("empty").mkdir()
    ran = score("pacs", *arguments)
    assert ran.status == 2 and message in ran.err, ran.err


def test_a_broken_video_is_named_by_its_id(score: Score, files: Path, videos: Path) -> None:
    shutil.copytree(videos, files / "videos")
    (files / "videos" / "clip2.mkv").write_bytes(b"no video")
    (files / "videos" / "clip3" / "2.png").write_bytes(b"no image")
    ran = score("pacs", "--videos", files / "videos")
    assert ran.status == 2
    assert "video of 'clip2'" in ran.err and "is not a video that can be read" in ran.err
    assert "video of 'clip3'" in ran.err
    some = score("pacs", "--videos", files / "videos", "--on-error", "nan")
    assert some.status == 0 and "2 of 6 captions failed" in some.err and "video of 'clip2'" in some.err


def test_a_metric_that_has_no_variant_says_which_have(capeval: Callable[..., Ran]) -> None:
    ran = capeval("score", "clips", "--media", "video")
    assert "--media video: clips is no metric on it; pacs and refpacs have it (known: image)" in ran.err
    ran = capeval("score", "bleu", "--media", "video")
    assert "bleu is no metric on it" in ran.err and "(known: none, it compares texts alone)" in ran.err


def test_help_shows_the_flags_of_the_medium(capeval: Callable[..., Ran]) -> None:
    image, video, texts = (
        capeval("score", *words, "--help").out
        for words in (["pacs"], ["pacs", "--media", "video"], ["cider"])
    )
    assert "--media {image,video}" in image and "--images FOLDER" in image and "--videos" not in image
    assert "usage: capeval score pacs --media video --candidates FILE --videos FOLDER" in video
    assert "--max-frames" in video and "--images" not in video
    assert not {"--images", "--videos", "--media"} & set(texts.split())
    assert "pacs --media video" in capeval("score", "--help").out


@pytest.mark.parametrize("name", TEXTS)
def test_texts_alone_need_no_folder(name: str, capeval: Callable[..., Ran], files: Path) -> None:
    given = ["--candidates", files / "captions.json", "--references", files / "references.json"]
    ran = capeval("score", name, *given, "--json", files / "a.json")
    assert (ran.status, ran.err) == (0, ""), ran.err
    references = [{**REFERENCES, "clip5": ["something"]}[clip] for clip, _ in PAIRS]
    expected = capeval_core.load(name).score([text for _, text in PAIRS], references=references)
    content: dict[str, Any] = json.loads((files / "a.json").read_text())
    assert content["scores"] == pytest.approx(expected.scores) and content["mean"] == pytest.approx(
        expected.mean
    )
    if name == "bleu":  # no caption here shares four words in a row with a reference
        assert content["interval"] is None
    else:
        assert content["interval"]["images"] == 5
    ran = capeval("score", name, *given, "--images", files / "nowhere")
    assert ran.status == 0 and f"warning: {name} compares texts alone: --images is ignored" in ran.err
