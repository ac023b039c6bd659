"""`explain(i).plot()`: what is drawn of a score, and when nothing can be."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import capeval_core
from capeval_core.demo import demo_clips, demo_set
from tests.support.seams import draw_histogram

ITEM = demo_set()[1]


def explanation(name: str, media: str | None = None, caption: str = ITEM.subtly_wrong, **options: Any) -> Any:
    given: dict[str, Any] = {"weights": "tiny", "device": "cpu", "evidence": True, "media": media, **options}
    metric = capeval_core.load(name, **given)
    references = [list(ITEM.references)] if metric.needs_references else None
    if media == "video":
        return metric.score([caption], videos=[demo_clips()[0].image]).explain(0)
    return metric.score([caption], images=[ITEM.image], references=references).explain(0)


def share(picture: Image.Image, colour: tuple[int, int, int]) -> float:
    pixels = np.asarray(picture.convert("RGB"), dtype=int)
    return float((np.abs(pixels - colour).max(axis=-1) < 40).mean())


BLUE, ORANGE, GREY, WRONG = (38, 98, 217), (217, 119, 6), (112, 120, 136), (200, 48, 66)


@pytest.mark.parametrize(
    ("name", "media"),
    [("hices", None), ("refhices", None), ("umic", None), ("vilbertscore", None), ("pacs", "video")],
)
def test_a_drawing_has_its_width_and_is_what_a_notebook_shows(name: str, media: str | None) -> None:
    found = explanation(name, media)
    narrow = found.plot(390)
    assert narrow.width == 390 and len(narrow.getcolors(1 << 24) or [0] * 99) > 50
    again = pickle.loads(pickle.dumps(found))
    shown = Image.open(io.BytesIO(again._repr_png_() or b""))
    assert shown.width > 390 and len(shown.getcolors(1 << 24) or [0] * 99) > 50
    with pytest.raises(ValueError, match="width=100"):
        found.plot(100)
    if media == "video":
        assert explanation(name, media, caption="", empty="score").plot(390).width == 390


def test_regions_and_mistakes_have_their_colours() -> None:
    found = explanation("hices")
    overlay, card = found.overlay(800), found.plot(1280)
    unmentioned = [note["unmentioned"] for note in found["regions"]]
    assert any(unmentioned) and not all(unmentioned)
    plain = Image.open(ITEM.image).convert("RGB").resize(overlay.size)
    for colour in (ORANGE, GREY):
        assert share(overlay, colour) > share(plain, colour) + 0.001
    assert share(card, WRONG) > 0.0008
    right = explanation("hices", caption=ITEM.good)
    assert explanation("hices", caption=f"{ITEM.good}, {'blue-' * 12}green").plot(390)  # words of any length
    assert share(right.plot(1280), WRONG) < share(card, WRONG) / 2
    assert found.with_threshold(0.0)["phrases"][0]["mistake"] is False
    # Another threshold for the drawing alone changes all of it: marks of the caption, phrases, regions.
    assert found.plot(390, threshold=0.0) == found.with_threshold(0.0).plot(390)


def test_what_the_tower_does_not_see_is_dimmed_and_framed(tmp_path: Path) -> None:
    mask = np.zeros((200, 300), bool)
    mask[60:140, 110:190] = True
    paths = [tmp_path / "wide.png", tmp_path / "high.png"]
    Image.new("RGB", (300, 200), "white").save(paths[0])
    Image.new("RGB", (200, 300), "white").save(paths[1])
    squares = [[50, 0, 250, 200], [0, 50, 200, 250]]
    for path, region, square in zip(paths, (mask, mask.T), squares, strict=True):
        regions: Any = {path.stem: [region]}
        metric = capeval_core.load("hices", weights="tiny", evidence=True, regions=regions, device="cpu")
        found = metric.score(["a dog"], [path]).explain(0)
        assert found["square"] == square
        overlay = found.overlay(600)
        assert overlay.size == ((600, 400) if path.stem == "wide" else (600, 900))
        pixels = np.asarray(overlay.convert("L"), dtype=int)
        if path.stem == "high":
            pixels = pixels.T
        line = pixels[len(pixels) // 8]  # beside the region: white within the square, greyed outside of it
        first, last = len(line) // 6, len(line) * 5 // 6
        outside = np.r_[line[: first - 5], line[last + 5 :]]
        assert np.abs(outside - (0.3 * 255 + 0.7 * 128)).max() <= 1
        assert (line[first + 5 : last - 5] == 255).all() and line[[first, last]].min() < 150


@pytest.mark.filterwarnings("ignore::UserWarning")  # no idf of one caption, equal captions
@pytest.mark.parametrize("options", [{}, {"max_frames": 3}, {"max_frames": 99}])
def test_frames_of_a_video_are_those_that_were_compared(options: dict[str, Any]) -> None:
    """Read again, also where a short video repeats frames: each alone has its own cosine with the caption."""
    found = explanation("pacs", "video", **options)
    cosines = found["frame_cosines"]
    positions = [*range(0, len(cosines), 2)]
    images = found.frames(positions, 4000)
    assert sorted(images) == positions and options.get("max_frames", len(cosines)) == len(cosines)
    metric = capeval_core.load("pacs", weights="tiny", device="cpu", prompt="")  # as of videos
    pictures = [images[position] for position in positions]
    alone = metric.score([found["caption"]] * len(pictures), pictures).parts["cosine"]
    assert alone == pytest.approx([cosines[position] for position in positions], abs=1e-5)
    assert max(found.frames([0], 40)[0].size) == 40 and found.frames([], 40) == {}


def test_badges_of_many_regions_do_not_cover_each_other(tmp_path: Path) -> None:
    """As many discs as regions, apart from each other, though the regions nearly coincide."""
    masks = []
    for number in range(12):
        mask = np.zeros((240, 320), bool)
        mask[60 + number : 140 + number, 80 + number : 200 + number] = True
        masks.append(mask)
    path = tmp_path / "many.png"
    Image.new("RGB", (320, 240), "black").save(path)
    metric = capeval_core.load("hices", weights="tiny", evidence=True, regions={"many": masks}, device="cpu")
    found = metric.score(["a dog"], [path]).explain(0)
    picture = np.asarray(found.overlay(640).convert("L"), dtype=int)
    scipy = pytest.importorskip("scipy.ndimage")
    # White digits lie within discs; the white edges of outlines are thinner than a disc with its edge.
    discs = scipy.binary_opening(picture > 60, np.ones((15, 15)))
    assert discs.sum() > 11 * 3.14 * 14**2


def test_a_heat_map_is_dark_where_cosines_are_high() -> None:
    found = explanation("vilbertscore", caption=ITEM.references[0])
    same = found.plot(720, reference=0)
    assert share(same, (8, 48, 107)) > 0.01
    with pytest.raises(IndexError, match="reference=99"):
        found.plot(720, reference=99)


def test_without_matplotlib_its_extra_is_named_and_pages_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = explanation("hices")
    assert found.overlay(400).width == 400 and found._repr_png_() is None
    with pytest.raises(ModuleNotFoundError, match=r"capeval\[plot\]"):
        found.plot()


def test_marks_of_a_histogram_do_not_cover_each_other() -> None:
    """Names of near values have as much ink as those of values far apart."""
    edges = np.linspace(0.0, 1.0, 61)
    counts = np.ones(60)
    far, near, high = (
        draw_histogram(
            "scores", (edges, counts), {f"{i}5%": value for i, value in enumerate(values)}, None, ""
        )
        for values in (np.linspace(0.1, 0.7, 7), np.linspace(0.5, 0.502, 7), np.full(7, 1.0))
    )
    top = far.height // 4  # above the bars
    ink = [float((np.asarray(one.convert("L"))[:top] < 160).sum()) for one in (far, near, high)]
    assert min(ink) > 0.8 * ink[0]
