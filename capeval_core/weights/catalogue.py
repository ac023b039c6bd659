"""Where weights live, Hub repositories and the original releases (`catalogue.toml`), and how CLIP sees."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPT = "A photo depicts "
"""Put before every caption and reference by PAC-S."""
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MASK_MEAN, MASK_STD = 0.5, 0.26
"""How Alpha-CLIP scales masks of zeros and ones."""
LICENCE_NOT_STATED = "not stated by the original"
"""In a config, the licence of weights whose authors state none."""
NAMESPACE = os.environ.get("CAPEVAL_NAMESPACE", "capeval")
"""The Hub namespace of everything that this project publishes."""
EVA_CLIP, FASTER_RCNN, X152 = "eva-clip", "faster-rcnn", "x152"
"""Networks in `capeval convert` that are no metric's own."""

_FILE = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
LICENCES: Mapping[str, str | None] = {name: text or None for name, text in _FILE["licences"].items()}
"""Every licence of listed weights, and what it restricts, word for word; None: nothing."""


def restriction_of(licence: str) -> str | None:
    """What a licence restricts, in its own words; None: nothing, or it is none of `LICENCES`."""
    return next((text for name, text in LICENCES.items() if name.lower() == licence.lower()), None)


@dataclass(frozen=True)
class WeightsEntry:
    """A Hub repository of weights.

    repository: id on the Hub.
    original: where the authors' own release lives.
    checkpoint: file name of that release, with its folder where the name alone may be any other's; None if
        the repository is the authors' or a known mirror.
    licence: one of `LICENCES`, as its authors state it; None if they state none.
    settings: values that their config must have; a repository with others is refused. They are also flags of
        `capeval convert`, for what the tensors do not show.
    metrics: names of those whose published weights these are; none where no metric here is named after them.
    architecture: how encoders describe these weights, without their activation; None: not recorded.
    """

    repository: str
    title: str
    original: str
    checkpoint: str | None
    licence: str | None
    settings: Mapping[str, str]
    metrics: Sequence[str]
    architecture: str | None

    def is_another(self, described: str) -> str | None:
        """The problem of weights that have this entry's name but are described as another model."""
        if self.architecture is None or described.startswith(self.architecture):
            return None
        return f"{self.title} is {self.architecture}, but these weights are {described}"

    @property
    def folder(self) -> str:
        """The repository's name without its namespace, which is also a good name for a local folder."""
        return self.repository.rsplit("/", 1)[-1]

    def convert_command(self, metric: str) -> str:
        """The command that makes these weights of the original checkpoint.

        >>> PACS_B32.convert_command("pacs")
        'capeval convert pacs clip_ViT-B-32.pth --activation quick_gelu --out pacs-clip-vit-b-32'
        """
        flags = "".join(f" --{name} {value}" for name, value in self.settings.items())
        return f"capeval convert {metric} {self.checkpoint}{flags} --out {self.folder}"

    def how_to_convert(self, metric: str) -> str:
        """How to get these weights where the Hub repository could not be loaded."""
        if self.checkpoint is None:
            return (
                f"Where there is a network, download it with\n"
                f"    hf download {self.repository} --local-dir {self.folder}\n"
                f"copy the folder here, "
            )
        return (
            f"The original release is {self.checkpoint} at\n    {self.original}\n"
            f"Download it, run\n    {self.convert_command(metric)}\n"
        )


def _entry(table: dict[str, Any]) -> WeightsEntry:
    owner, _, name = table["repository"].partition("/")
    stated: dict[str, Any] = {
        "checkpoint": None,
        "licence": None,
        "settings": {},
        "metrics": (),
        "architecture": None,
    }
    fields = stated | {key: value for key, value in table.items() if key not in ("member", "for")}
    return WeightsEntry(**{**fields, "repository": f"{NAMESPACE if owner == 'capeval' else owner}/{name}"})


WEIGHTS = tuple(map(_entry, _FILE["weights"]))
_TABLES = list(zip(WEIGHTS, _FILE["weights"], strict=True))
ECO_MEMBERS = {table["member"]: entry for entry, table in _TABLES if "member" in table}
"""Dual encoders of ECO's ensemble by their names in its option `members`."""


def listed(folder: str) -> WeightsEntry:
    """The entry of a repository's name."""
    return next(entry for entry in WEIGHTS if entry.folder == folder)


PACS_B32, CLIP_B32 = listed("pacs-clip-vit-b-32"), listed("vit_base_patch32_clip_224.openai")
ALPHA_L14, BLIP2_COCO = listed("alpha-clip-vit-l-14"), listed("blip2-itm-vit-g-coco")
UMIC, VILBERT = listed("umic-uniter-base"), listed("vilbert-12-in-1")
FASTER_RCNN_VG, X152_VG = listed("faster-rcnn-vg-resnet-101"), listed("faster-rcnn-vg-resnext-152")

CONVERTED_AS: Mapping[str, str] = {
    "clip": "pacs",
    "alpha_clip": "hices",
    "blip2": "eco",
    "uniter": "umic",
    "vilbert": "vilbertscore",
    "scene_regions": "umic",
    "open_clip": "eco",
    "eva_clip": EVA_CLIP,
    "faster_rcnn": FASTER_RCNN,
    "x152": X152,
    "sam": "regions",
}
"""Name of a network, as `encoder` in a config -> of its original releases in `capeval convert`."""
TINY_OF: Mapping[str, str] = {
    "clip": "pacs",
    "alpha_clip": "hices",
    "blip2": "blip2",
    "uniter": "umic",
    "vilbert": "vilbertscore",
    "scene_regions": "scene-regions",
}
"""Name of a network -> folder of its embedded small model."""


def weights_of(metric: str) -> Sequence[WeightsEntry]:
    """The entries that a metric, or a network in `capeval convert`, can use; all where none is known."""
    own = [entry for entry in WEIGHTS if metric in entry.metrics]
    return own or [entry for entry, table in _TABLES if metric in table.get("for", ())] or WEIGHTS


def entry_known_as(name: str, original: str | None) -> WeightsEntry | None:
    """The entry by the name of a repository, in any namespace, or of a folder; else by the original's file.

    >>> entry_known_as("me/PACS-CLIP-ViT-B-32", None) is entry_known_as("x", "clip_ViT-B-32.pth") is PACS_B32
    True
    """
    folder = name.rpartition("/")[2].lower()
    named = (entry for entry in WEIGHTS if entry.folder.lower() == folder)
    converted = (entry for entry in WEIGHTS if entry.checkpoint and entry.checkpoint == original)
    return next(named, None) or next(converted, None)


def entry_of(repository: str) -> WeightsEntry | None:
    """The catalogue's entry of a Hub repository id (ids ignore case), None if it is not listed."""
    return next((entry for entry in WEIGHTS if entry.repository.lower() == repository.lower()), None)
