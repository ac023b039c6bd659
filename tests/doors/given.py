"""What the doors get: a few captions of packaged drawings and clips, whole and odd, and every option."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import capeval_core
from capeval_core import Result
from capeval_core.demo import demo_clips, demo_set

TEXTS = ("bleu", "rougel", "cider", "ciderd", "chair")
VIDEOS = ("pacs:video", "refpacs:video")
METRICS = (*capeval_core.list_metrics(), *VIDEOS)
Lacks = tuple[str, ...]
CORPUS = ("cider", "ciderd", *VIDEOS)
"""Their scores depend on statistics of all captions, or references."""
HALVES = slice(0, 2), slice(2, None)

_CLIP = {"w": 0.7, "prompt": "a drawing of ", "decoders": 1}
_HICE = {"w": 1.5, "max_regions": 2, "phrase_style": "soft-spice", "mask_transform": "released"}
_HICE |= {"include_whole_image": True, "regions": "colours", "phrases": "chunks"}
_ECO = {"ensemble_weight": 1.0, "consensus_weight": 0.5, "threshold": 2.0, "consensus": "cider_d"}
OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("pacs", "refpacs", "clips", "refclips"), _CLIP),
    "specs": {"scale": "unit", "prompt": "a drawing of ", "decoders": 1},
    "hices": _HICE,
    "refhices": {**_HICE, "reference_reduction": "mean"},
    "umic": {"selection": "lxmert36", "regions": "tiny"},
    "vilbertscore": {"layer": 0, "idf": "corpus", "regions": "tiny", "statistics": "@half"},
    "eco": {**_ECO, "consensus_documents": "doc_image_all_pools", "members": "tiny"},
    "cider": {"statistics": "@half"},
    "ciderd": {"statistics": "@half"},
    "chair": {"synonyms": "tiny", "variant": "original"},
    "pacs:video": {"max_frames": 2, "idf": True, "statistics": "@half"},
    "refpacs:video": {"fps": 2.0, "idf": True, "statistics": "@half"},
}
"""Another value for every option of a metric; `@half`: statistics of half of the texts. Without statistics
videos are scored without idf; frames are chosen by their number or by their times, not by both."""
EVERY = {"device": "cpu", "compat": "released", "batch_size": 3, "exif": "turn"}
"""Of metrics on texts the first alone."""
ODD = {"on_error": "nan", "empty": "score"}
OF_A_RUN = {"weights", "cache", "rows", "evidence", "dtype"}
"""Options that are tested by themselves, or keep something that the next door would find."""


def every(metric: str) -> dict[str, Any]:
    """Another value for the options that metrics share."""
    if metric in TEXTS:
        return {"device": "cpu"}
    return {name: value for name, value in EVERY.items() if name != "exif" or metric not in VIDEOS}


@dataclass(frozen=True, eq=False)
class Given:
    """Captions (of eco pools) beside their images or videos and references, and options as for `load`."""

    metric: str
    captions: Sequence[Any]
    visuals: Sequence[Path]
    references: Sequence[Sequence[str]]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.metric.partition(":")[0]

    @property
    def medium(self) -> str | None:
        """`image` or `video`; None: texts alone are compared."""
        return None if self.metric in TEXTS else "video" if self.metric in VIDEOS else "image"

    @property
    def compares(self) -> bool:
        return bool(opened(self).needs_references)

    @property
    def plain(self) -> dict[str, Any]:
        """The options but for the medium."""
        return {name: value for name, value in self.options.items() if name != "media"}

    def arguments(self, rows: slice = slice(None), captions: str = "captions") -> dict[str, Any]:
        """Of `score`, and of what takes its arguments by these names."""
        found: dict[str, Any] = {captions: list(self.captions[rows])}
        if self.medium:
            found[f"{self.medium}s"] = [str(path) for path in self.visuals[rows]]
        return found | ({"references": list(self.references[rows])} if self.compares else {})

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The same as a table has it."""
        names = {"captions": "caption", "images": "image", "videos": "video"}
        return {names.get(name, name): values for name, values in self.arguments().items()}

    @cached_property
    def alone(self) -> list[Given]:
        """Each caption by itself."""
        rows = zip(self.captions, self.visuals, self.references, strict=True)
        return [Given(self.metric, [text], [path], [own], self.options) for text, path, own in rows]


@cache
def opened(given: Given) -> Any:
    """The metric; what is open stays open, since a test of each door would open its weights anew."""
    return capeval_core.load(given.name, **given.options)


@cache
def expected(given: Given) -> Result:
    """What every door must give."""
    return capeval_core.load(given.name, **given.options).score(**given.arguments())


@cache
def folder(base: Path, video: bool) -> list[Path]:
    """Four drawings or clips, one of them again as `empty`, and a file that is cut off."""
    items = demo_clips() if video else demo_set()
    (base / str(video)).mkdir()
    paths = [Path(shutil.copy(item.image, base / str(video))) for item in items[:4]]
    empty, broken = (paths[2].with_stem(name) for name in ("empty", "broken"))
    shutil.copy(paths[2], empty)
    broken.write_bytes(paths[1].read_bytes()[:60])
    return [*paths, empty, broken]


@cache
def given(metric: str, base: Path, odd: bool = False, stream: bool = False, lacks: Lacks = ()) -> Given:
    """The input of a metric, the same object each time.

    odd: with every option, an empty caption and a broken image. stream: for a door that sees a few captions
    at a time. lacks: what the door does not take: "options", or "statistics" among them, a "broken" image.
    """
    video = metric in VIDEOS
    items = (demo_clips() if video else demo_set())[:4]
    paths = folder(base, video)
    rows = [(item.good, path, list(item.references)) for item, path in zip(items, paths, strict=False)]
    if odd:
        rows.insert(1, ("", paths[4], ["two stars"]))
        rows[3:3] = [("a red star", paths[5], ["a star", "stars"])] if "broken" not in lacks else []
    captions, visuals, references = map(list, zip(*rows, strict=True))
    if metric == "eco":
        captions = [[text, f"{text} here", items[1].unrelated] for text in captions]
    chosen: dict[str, Any] = {} if metric in TEXTS else {"weights": "tiny"}
    chosen |= {"media": "video"} if video else {}
    made = Given(metric, captions, visuals, references, chosen)
    half = opened(made).prepare([list(item.references) for item in demo_set()[::2]])
    if odd:
        chosen = chosen | ODD | ({} if "options" in lacks else {**every(metric), **OPTIONS.get(metric, {})})
    if "statistics" in lacks and chosen.pop("statistics", None) and video:
        chosen["idf"] = False
    if (stream and metric in CORPUS) or "statistics" in chosen:
        chosen["statistics"] = half
    return replace(made, options=chosen)
