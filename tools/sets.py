"""The demo that the package ships, and the drawn scenes and captions that a training does not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tools.captions import describe, foil, holds
from tools.clips import EVENTS, describe_clip, foils_of_clip, sample_clip
from tools.scenes import COLOURS, SHAPES, Scene, draw, sample_scene

HELD_OUT = frozenset(
    (shape, list(COLOURS)[(3 * index + offset) % len(COLOURS)])
    for index, shape in enumerate(SHAPES)
    for offset in (0, 4)
)
"""Pairs of shape and colour, 12 of 48, that trainings with a split do not show."""
DEMO_SEED = 2024
_DEMO_CHANGES = ("colour", "count", "shape", "position") * 3
_DEMO_SIDE = 192


def has_held_out(scene: Scene) -> bool:
    """True if an object of the scene is one of `HELD_OUT`.

    >>> from tools.scenes import SceneObject
    >>> [has_held_out(Scene((SceneObject("circle", c, "small", (0.5, 0.5), 0.2),), "white")) for c in COLOURS]
    [True, False, False, False, True, False, False, False]
    """
    return any((thing.shape, thing.colour) in HELD_OUT for thing in scene.objects)


def is_held_out_template(caption: str) -> bool:
    """True if a caption of `describe` has a beginning and an end that trainings with a split do not combine.

    >>> is_held_out_template("a picture of a red star on a plain background")
    True
    >>> is_held_out_template("a picture of a red star")
    False
    """
    fronted = caption.startswith(("a picture of", "on ", "in ", "at ", "near "))
    return fronted and caption.endswith("on a plain background")


def split_scene(rng: np.random.Generator, held_out: bool) -> Scene:
    """A scene with a pair of `HELD_OUT`, or without any."""
    while has_held_out(scene := sample_scene(rng)) != held_out:
        pass
    return scene


def split_caption(scene: Scene, rng: np.random.Generator, held_out: bool) -> str:
    """A caption whose template is held out, or not; where the scene allows none that is, any."""
    for _ in range(200):
        caption = describe(scene, rng)
        if is_held_out_template(caption) == held_out:
            break
    return caption


def write_demo_set(folder: Path, seed: int = DEMO_SEED) -> None:
    """Draw the twelve images of the demo: `<id>.png` and `demo.json`; the packaged files are of this seed.

        python -c "from pathlib import Path; from tools import sets; sets.write_demo_set(Path('demo'))"

    The scenes are the first of the seed whose caption can be changed in its colour, then in a count, a shape
    and a position, and again, and whose good captions are true of no other scene. No score takes part in
    the choice, and no training draws from this seed.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    scenes: list[Scene] = []
    items: list[dict[str, Any]] = []
    for index, kind in enumerate(_DEMO_CHANGES):
        while True:
            scene = sample_scene(rng)
            good = describe(scene, rng)
            try:
                foil_text = foil(scene, good, kind, rng)
            except ValueError:  # the caption has no word of this kind: the next scene
                continue
            is_true_elsewhere = any(holds(earlier, good, 0.0) for earlier in scenes)
            has_true_caption = any(holds(scene, item["good"], 0.0) for item in items)
            if not is_true_elsewhere and not has_true_caption:
                break
        scenes.append(scene)
        item = {"id": str(index), "image": f"{index}.png", "good": good}
        item |= {"subtly_wrong": foil_text, "changed": kind, "unrelated": ""}
        references: list[str] = []
        while len(references) < 2:
            text = describe(scene, rng)
            if text not in (good, *references):
                references.append(text)
        items.append(item | {"references": references})
        draw(scene, _DEMO_SIDE).save(folder / f"{index}.png", optimize=True)
    _write_items(folder / "demo.json", seed, items)


def write_demo_clips(folder: Path, seed: int = DEMO_SEED) -> None:
    """Draw the clips of the demo anew: `clip<id>.gif` and `clips.json`, one clip for each of `EVENTS`."""
    from PIL.Image import Dither

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    items: list[dict[str, Any]] = []
    while len(items) < len(EVENTS):
        clip = sample_clip(rng)
        good = describe_clip(clip, rng)
        foils = foils_of_clip(clip, good)
        if clip.event != EVENTS[len(items)] or not foils:
            continue
        changed, foil_text = foils[int(rng.integers(len(foils)))]
        name = f"clip{len(items)}.gif"
        item = {
            "id": str(len(items)),
            "image": name,
            "good": good,
            "subtly_wrong": foil_text,
            "changed": changed,
        }
        items.append(item | {"unrelated": "", "references": [describe_clip(clip, rng) for _ in range(2)]})
        first, *later_frames = [frame.quantize(32, dither=Dither.NONE) for frame in clip.frames(_DEMO_SIDE)]
        first.save(folder / name, save_all=True, append_images=later_frames, duration=250, loop=0)
    _write_items(folder / "clips.json", seed, items)


def _write_items(path: Path, seed: int, items: list[dict[str, Any]]) -> None:
    """Write the items of a demo; the unrelated caption of each is the good one of the next."""
    for index, item in enumerate(items):
        item["unrelated"] = items[(index + 1) % len(items)]["good"]
    path.write_text(json.dumps({"seed": seed, "items": items}, indent=1) + "\n", encoding="utf-8")
