"""Input drawn from a seed: captions, references and images, videos or boxes; whole, odd and broken ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.inputs.video_writing import LOSSLESS, written
from tools.captions import describe
from tools.scenes import draw, sample_scene

Row = tuple[str, Any, list[str] | str]
"""A caption, its visual and its references."""
ORIENTATION = 0x0112
BROKEN_AT, EMPTY_AT = (4, 5, 10, 15), (2, 7, 12)


def rows(media: str, folder: Path, *, empty: bool, broken: bool) -> list[Row]:
    """The input on "image", "video", "boxes", or "ids" of boxes in the folder "features" of the folder."""
    whole, odd = {"image": _images, "video": _videos, "boxes": _boxes, "ids": _ids}[media](folder)
    texts = _texts(len(whole))
    given = [(caption, visual, own) for (caption, own), visual in zip(texts, whole, strict=True)]
    for place, visual in zip(BROKEN_AT, odd if broken else [], strict=broken):
        given.insert(place, (texts[place % 7][0], visual, texts[place % 5][1]))
    for place, text in zip(EMPTY_AT, ("", " \n", "a star") if empty else (), strict=empty):
        given.insert(place, (text, whole[place % 4], ["", "two stars"][: 1 + place % 2]))
    return given


def pools(captions: list[str]) -> list[list[str]]:
    """Each caption among up to four others; some stand there twice."""
    others = [captions[i // 2 : i // 2 + i % 4] for i in range(len(captions))]
    return [[own, *others[i], *[own] * (i % 5 == 3)] for i, own in enumerate(captions)]


@cache
def _drawn() -> tuple[list[Image.Image], list[str], list[list[str]]]:
    """24 scenes of 96 pixels, a caption of each, and four references."""
    rng = np.random.default_rng(26)
    scenes = [sample_scene(rng) for _ in range(24)]
    captions = [describe(scene, rng) for scene in scenes]
    references = [[describe(scene, rng) for _ in range(4)] for scene in scenes]
    return [draw(scene).resize((96, 96)) for scene in scenes], captions, references


def _texts(count: int) -> list[tuple[str, Any]]:
    """Captions with ragged references: some repeated, truncated, in capitals, or of no known word."""
    _, captions, references = _drawn()
    texts: list[tuple[str, Any]] = [(captions[i], references[i][: 1 + i % 4]) for i in range(count)]
    texts[1] = texts[0]
    texts[3] = captions[0], references[3][:2]
    texts[4] = "a red circle " * 60, ["a large blue star " * 40, references[4][0]]
    texts[5] = captions[5].upper() + " !", references[5][0]
    texts[6] = "¡Hola! 犬 😺", ["hello", "a cat", "a cat"]
    texts[8] = captions[8], [captions[8], *references[8]]
    texts[-1] = captions[2], references[2][:3]
    return texts


@cache
def _images(folder: Path) -> tuple[list[Any], list[Any]]:
    def saved(image: Image.Image, name: str, **options: Any) -> Path:
        image.save(folder / name, **options)
        return folder / name

    scenes, *_ = _drawn()
    turned, mirrored = Image.Exif(), Image.Exif()
    turned[ORIENTATION], mirrored[ORIENTATION] = 6, 4
    clear, wide = scenes[3].convert("RGBA"), scenes[9].resize((160, 70))
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    huge = scenes[8].resize((1800, 1400), Image.Resampling.NEAREST)
    whole = [
        scenes[0],
        {"bytes": saved(scenes[0], "0.png").read_bytes(), "path": None},
        saved(scenes[2].crop((0, 0, 96, 70)), "turned.jpg", exif=turned),
        saved(clear, "clear.png"),
        np.asarray(scenes[4]),
        torch.from_numpy(np.array(scenes[5])).permute(2, 0, 1),
        scenes[6].resize((2, 2)),
        scenes[7].resize((3, 40)),
        str(saved(huge, "huge.png")),
        saved(wide, "wide.png", exif=mirrored).read_bytes(),
        scenes[10].resize((400, 24)),
        Image.new("L", scenes[11].size, 255),
        saved(scenes[12].convert("P"), "12.gif").read_bytes(),
        saved(scenes[13].convert("CMYK"), "13.jpg").read_bytes(),
        clear.convert("LA"),
        scenes[0].copy(),
        scenes[2],
    ]
    cut = saved(wide, "cut.png")
    cut.write_bytes(cut.read_bytes()[:-40])
    return whole, [b"broken", cut, scenes[6].resize((1, 1)), folder / "missing.png"]


@cache
def _videos(folder: Path) -> tuple[list[Any], list[Any]]:
    scenes, *_ = _drawn()
    images, _ = _images(folder)
    frames = [np.asarray(scene.resize((48, 32))) for scene in scenes]
    few, many = np.stack(frames[:5]), np.stack(frames[7:16])
    timed = written(many, times=[0, 40, 80, 300, 340, 900, 1300, 1340, 2000], **LOSSLESS)
    (folder / "clip.mkv").write_bytes(written(few, **LOSSLESS))
    (folder / "clip.gif").write_bytes(written(few, fmt="gif", codec="gif", pix_fmt="rgb8"))
    whole: list[Any] = [
        folder / "clip.mkv",
        few,
        (folder / "clip.mkv").read_bytes(),
        images[:4],
        [images[4]],
        [images[6], images[8], images[10]],
        [scenes[7]] * 6,
        timed,
        torch.from_numpy(many),
        np.repeat(many, 5, axis=0),
        str(folder / "clip.gif"),
        [Image.fromarray(frame) for frame in many],
        timed[: len(timed) // 2],
        timed,
    ]
    return whole, [b"broken", [scenes[0], b"broken", scenes[1]], timed[:50], folder / "missing.mp4"]


def _boxes(folder: Path) -> tuple[list[Any], list[Any]]:
    """Boxes as a detector finds them, the best first, in an image of 120x90."""
    rng, found = np.random.default_rng(26), []
    for count in (5, 5, 1, 12, 50, 36, 120, 3, 8, 20, 2, 40, 4, 4, 4):
        low = rng.uniform(0, 60, (count, 2))
        boxes = np.concatenate([low, low + rng.uniform(5, 30, (count, 2))], axis=1).astype(np.float32)
        features = np.maximum(rng.normal(size=(count, 64)), 0).astype(np.float32)
        scores = np.sort(rng.uniform(0, 1, count).astype(np.float32))[::-1].copy()
        found.append({"boxes": boxes, "features": features, "size": np.array([120, 90]), "scores": scores})
    *whole, nan, wide, few = found
    whole[1] = dict(whole[0])
    del whole[3]["scores"]
    nan["features"][2, 5] = np.nan
    return whole, [
        nan,
        wide | {"features": np.ones((4, 65))},
        few | {"boxes": few["boxes"][:2]},
        {"size": (1, 1)},
    ]


def _ids(folder: Path) -> tuple[list[str], list[str]]:
    (folder / "features").mkdir(exist_ok=True)
    made = _boxes(folder)
    for number, boxes in enumerate([*made[0], *made[1]]):
        np.savez(folder / "features" / f"image{number}.npz", **boxes)
    ids = [f"image{number}" for number in range(16)]
    return ids[: len(made[0])], ids[len(made[0]) :]


def masks(given: list[Row]) -> dict[str, list[Any]]:
    """Two masks of each image that is a file."""
    mask = np.array([[True, False, False], [True, True, False]])
    sizes = {"turned": (70, 96), "clear": (96, 96), "huge": (1400, 1800)}
    each = {name: np.kron(mask, np.ones((h // 2, w // 3), bool)) for name, (h, w) in sizes.items()}
    return {name: [one, ~one] for name, one in each.items()}


def halves(given: list[Row]) -> dict[str, list[str]]:
    """Phrases of every text: what stands before and behind "and"."""
    return {text: [part for part in text.split(" and ") if part.strip()] for text in every_text(given)}


def every_text(given: list[Row]) -> list[str]:
    """Captions, then references."""
    references = [[own] if isinstance(own, str) else own for _, _, own in given]
    return [*(caption for caption, _, _ in given), *(text for own in references for text in own)]
