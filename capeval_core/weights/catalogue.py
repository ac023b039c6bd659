"""Where weights live, Hub repositories and the original releases (`catalogue.toml`), and how CLIP sees."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROMPT = "A photo depicts "  # put before every caption and reference by PAC-S
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MASK_MEAN = 0.5  # with which Alpha-CLIP scales masks of zeros and ones
MASK_STD = 0.26
LICENCE_NOT_STATED = "not stated by the original"
"""In a config, the licence of weights whose authors state none."""
NAMESPACE = os.environ.get("CAPEVAL_NAMESPACE", "capeval")
"""The Hub namespace of everything that this project publishes."""
# Networks in `capeval convert` that belong to no metric.
EVA_CLIP = "eva-clip"
FASTER_RCNN = "faster-rcnn"
X152 = "x152"

_FILE = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
_RESTRICTIONS: Mapping[str, str] = {name.lower(): words for name, words in _FILE["licences"].items()}


def is_open(licence: str | None) -> bool:
    """True if a listed licence lets anyone use weights for anything.

    >>> is_open("MIT"), is_open("research only"), is_open(None)
    (True, False, False)
    """
    return licence is not None and _RESTRICTIONS.get(licence.lower()) == ""


def restriction_of(licence: str) -> str | None:
    """The words in which a licence restricts something; None: it does not, or no listed weights have it."""
    return _RESTRICTIONS.get(licence.lower()) or None


@dataclass(frozen=True)
class ReleaseFile:
    """A file of an original release; the head of `catalogue.toml` says what its values are."""

    name: str
    addresses: Sequence[str] = ()
    size: int | None = None
    sha256: str | None = None
    setting: str | None = None
    note: str = ""


@dataclass(frozen=True)
class WeightsEntry:
    """A Hub repository of weights; the head of `catalogue.toml` says what its values are. architecture: how
    encoders describe these weights, without their activation; None: not recorded. size, sha256: of its
    tensors, where it is taken as it is."""

    repository: str
    title: str
    original: str
    checkpoint: str | None = None
    licence: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[str] = ()
    context_length: int = 77
    architecture: str | None = None
    users: Sequence[str] = ()
    member: str | None = None
    network: str = "clip"
    size: int | None = None
    sha256: str | None = None
    files: Sequence[ReleaseFile] = ()

    def is_another(self, described: str) -> str | None:
        """The problem of weights that have this entry's name but are described as another model, or None."""
        # By the beginning: what follows, such as the activation, may be told or left out.
        if self.architecture is None or described.startswith(self.architecture):
            return None
        return f"{self.title} is {self.architecture}, but these weights are {described}"

    def is_released_as(self, path: str) -> bool:
        """True for the file of the release; weights that are taken as they are have only an address."""
        if self.checkpoint is None:
            return self.original.endswith(path[path.rindex("/") :])  # with the slash: the whole name
        return path.endswith(f"/{self.checkpoint}")

    @property
    def folder(self) -> str:
        """The repository's name without its namespace, which is also a good name for a local folder."""
        return self.repository.rsplit("/", 1)[-1]

    @property
    def name(self) -> str:
        """The value of the option `weights`: a Hub id where they are as on the Hub, else the folder."""
        return self.folder if self.files else self.repository


def _entry(table: Mapping[str, Any]) -> WeightsEntry:
    files = tuple(ReleaseFile(**file) for file in table.get("files", ()))
    # A fork publishes under a namespace of its own; repositories of the authors stay where they are.
    repository = table["repository"].replace("capeval/", f"{NAMESPACE}/")
    return WeightsEntry(**{**table, "repository": repository, "files": files})


WEIGHTS = tuple(map(_entry, _FILE["weights"]))
PARTS = tuple(map(_entry, _FILE["parts"]))
"""Models that metrics use beside their weights, in transformers' format."""
DATA = tuple(map(_entry, _FILE["data"]))
"""Files of metrics without a network."""
SYNONYMS = DATA[0]
ECO_MEMBERS = {entry.member: entry for entry in WEIGHTS if entry.member}
"""Dual encoders of ECO's ensemble by their names in its option `members`."""


def listed(folder: str) -> WeightsEntry:
    """The entry of a repository's name."""
    return next(entry for entry in WEIGHTS if entry.folder == folder)


PACS_B32 = listed("pacs-clip-vit-b-32")
BLIP2_COCO = listed("blip2-itm-vit-g-coco")
FASTER_RCNN_VG = listed("faster-rcnn-vg-resnet-101")
X152_VG = listed("faster-rcnn-vg-resnext-152")


def weights_of(metric: str) -> Sequence[WeightsEntry]:
    """The entries that a metric, or a network in `capeval convert`, can use; all where none is known."""
    trained_for_it: list[WeightsEntry] = []
    usable: list[WeightsEntry] = []
    for entry in WEIGHTS:
        if metric in entry.metrics:
            trained_for_it.append(entry)
        if metric in entry.users:
            usable.append(entry)
    # A plain CLIP is only proposed where a metric has no weights of its own: it gives another number.
    return trained_for_it or usable or WEIGHTS


def entry_known_as(name: str, original: str | None) -> WeightsEntry | None:
    """The entry by the name of a repository, in any namespace, or of a folder; else by the original's file.

    >>> entry_known_as("me/PACS-CLIP-ViT-B-32", None) is entry_known_as("x", "clip_ViT-B-32.pth") is PACS_B32
    True
    """
    folder = name.rpartition("/")[2].lower()
    for entry in WEIGHTS:
        if entry.folder.lower() == folder:
            return entry
    # A folder of another name still says from which file it was converted.
    for entry in WEIGHTS:
        if entry.checkpoint is not None and entry.checkpoint == original:
            return entry
    return None


def entry_of(repository: str) -> WeightsEntry | None:
    """The catalogue's entry of a Hub repository id (ids ignore case), None if it is not listed."""
    for entry in WEIGHTS:
        if entry.repository.lower() == repository.lower():
            return entry
    return None


def entry_named(name: str) -> WeightsEntry | None:
    """The entry of weights that are fetched, by their short name: `pacs-clip-vit-b-32`."""
    for entry in WEIGHTS:
        # What is taken as it is on the Hub has no short name: its id is the one that everybody knows.
        if entry.files and entry.folder == name.lower():
            return entry
    return None


def part_of(repository: str) -> WeightsEntry | None:
    """The entry of a model that metrics use beside their weights, None if it is not listed."""
    for entry in PARTS:
        if entry.repository == repository:
            return entry
    return None
