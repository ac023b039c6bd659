"""The judged sets by name: where each comes from, in which form it lies on disk, and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, did_you_mean, file_problem
from capeval_core.judgements.fifty_sentences import LABELS
from capeval_core.judgements.judged_set import JudgedSet


@dataclass(frozen=True)
class SetEntry:
    """A judged set of the field.

    summary: what people judged, and what is computed. files: that a folder of it must hold. source: where it
    comes from, and under which terms; '' for one's own. loader: `module:function` of the function that reads
    a folder. folders: names that its folder may have inside of a folder of sets. media: of what is described.
    settings: of its loader that a user may choose, with their values.
    """

    name: str
    title: str
    summary: str
    files: tuple[str, ...]
    source: str
    loader: str
    folders: tuple[str, ...] = ()
    media: str = "image"
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def load(self, folder: Path, **settings: Any) -> JudgedSet:
        """The set in a folder; `settings` are those of its loader.

        Raises:
            FileError: a file is missing or cannot be read as it should be.
        """
        module, _, name = self.loader.partition(":")
        read: Callable[..., JudgedSet] = getattr(import_module(f"capeval_core.judgements.{module}"), name)
        return read(folder, **settings)

    def form(self) -> str:
        """The files that a folder must hold, as its loader describes them."""
        module, _, name = self.loader.partition(":")
        text = getattr(import_module(f"capeval_core.judgements.{module}"), name).__doc__ or ""
        return " ".join(text.split())

    def advice(self) -> str:
        """Where the set comes from, and in which form it is read."""
        origin = f"{self.title} comes from {self.source}. " if self.source else ""
        return f"{origin}Put it into a folder in this form: {self.form()}"


_UMIC = "txt_db of github.com/hwanheelee1993/UMIC"
SETS: dict[str, SetEntry] = {
    entry.name: entry
    for entry in (
        SetEntry(
            "flickr8k_expert",
            "Flickr8k-Expert",
            "three experts' ratings of captions, each a row; Kendall's tau-b and tau-c",
            ("judgements.jsonl", "references.json"),
            "the Flickr8k corpus (Hodosh et al., JAIR 2013; offered for research with citation), prepared as "
            "tests/test_data/flickr8k.json of github.com/zhuang-li/FactualSceneGraph",
            "flickr8k:load_expert",
        ),
        SetEntry(
            "flickr8k_cf",
            "Flickr8k-CF",
            "share of yes votes of CrowdFlower; Kendall's tau-b and tau-c",
            ("judgements.csv", "captions.json", "references.json"),
            "CrowdFlowerAnnotations.txt and Flickr8k.token.txt of the Flickr8k corpus (Hodosh et al., JAIR "
            "2013)",
            "flickr8k:load_cf",
        ),
        SetEntry(
            "composite",
            "Composite",
            "ratings of three captions of each image; Kendall's tau-b and tau-c",
            ("judgements.jsonl", "references.json"),
            f"Aditya et al., 2015; ratings and candidates in {_UMIC} (MIT), references of Flickr8k, "
            "Flickr30k and COCO",
            "caption_ratings:load_composite",
        ),
        SetEntry(
            "pascal50s",
            "Pascal-50S",
            "which of two captions people prefer; accuracy by category, mean of five draws of references",
            ("pairs.jsonl", "references50.json"),
            "Vedantam et al., CVPR 2015; github.com/vrama91/cider-matlab and annotations/pascal_50s.json of "
            "github.com/Yebin46/FLEUR (no licence stated)",
            "fifty_sentences:load_pascal",
            settings={"labels": LABELS},
        ),
        SetEntry(
            "abstract50s",
            "Abstract-50S",
            "which of two captions of a clip-art scene people prefer; accuracy, mean of five draws",
            ("pairs.jsonl",),
            "Vedantam et al., CVPR 2015; experimental_data of github.com/gabrielsantosrv/coco-caption (BSD)",
            "fifty_sentences:load_abstract",
        ),
        SetEntry(
            "foil",
            "FOIL",
            "right captions against foils of one word; accuracy with 1 and 4 references",
            ("pairs.jsonl",),
            "Shekhar et al., ACL 2017, foilunitn.github.io, joined with the other COCO captions of each "
            "image",
            "foil:load_foil",
        ),
        SetEntry(
            "nocaps_foil",
            "nocaps-FOIL",
            "right captions against foils of one object; accuracy with 1, 4 and 9 references",
            ("pairs.jsonl",),
            "Petryk et al., NAACL 2024; data/nocaps-val-foil.json of github.com/DavidMChan/aloha (no licence "
            "stated)",
            "foil:load_nocaps_foil",
        ),
        SetEntry(
            "hat",
            "HAT",
            "captions with and without a hallucination; average precision of low scores",
            ("captions.jsonl",),
            "Petryk et al., NAACL 2024; data/hat-trainval.json of github.com/DavidMChan/aloha (no licence "
            "stated)",
            "other_sets:load_hat",
        ),
        SetEntry(
            "capeval1k",
            "CapEval1k",
            "a mean rating of four systems' captions of each image; Kendall's tau-b and tau-c",
            ("captions.jsonl", "references.json"),
            f"Lee et al., ACL 2021; {_UMIC} (MIT)",
            "caption_ratings:load_capeval1k",
        ),
        SetEntry(
            "thumb",
            "THumB 1.0",
            "experts' precision and recall of captions; Pearson's correlation",
            ("captions.jsonl", "references.json"),
            "Kasai et al., NAACL 2022; mscoco/ of github.com/jungokasai/THumB (no licence stated)",
            "caption_ratings:load_thumb",
            ("thumb_mscoco",),
        ),
        SetEntry(
            "nebula",
            "Nebula",
            "a mean rating of captions; Kendall's tau-b and tau-c",
            ("test.jsonl",),
            "Matsuda et al., ACCV 2024; annotations/nebula_test.json of github.com/hjkim811/EXPERT (no "
            "licence stated)",
            "caption_ratings:load_nebula",
            ("nebula_test",),
        ),
        SetEntry(
            "coco_systems",
            "COCO systems",
            "the value of each captioning system on COCO's Karpathy test split",
            ("reference_captions.json",),
            "test_captions/ of github.com/aimagelab/awesome-captioning-evaluation (references: COCO, CC BY "
            "4.0)",
            "other_sets:load_systems",
        ),
        SetEntry(
            "nice_pools",
            "NICE pools",
            "the candidate that a metric chooses for each image, compared with references",
            ("pools.json", "references.json"),
            "the caption re-ranking track of NICE 2024 workshop (CVPR 2024), whose references are not public",
            "other_sets:load_pools",
        ),
        SetEntry(
            "own",
            "Own set",
            "ratings of your own, each a row; Kendall's tau-b and tau-c",
            ("judgements.jsonl",),
            "",
            "caption_ratings:load_own",
        ),
        SetEntry(
            "vatex_eval",
            "VATEX-EVAL",
            "three annotators' ratings of captions of videos; mean tau-b and Spearman's rho over annotators",
            ("judgements.jsonl", "references.json"),
            "Shi et al., CVPR 2022; github.com/ShiYaya/emscore",
            "caption_ratings:load_vatex",
            media="video",
        ),
        SetEntry(
            "activitynet_foil",
            "ActivityNet-FOIL",
            "right paragraphs about videos against foils; accuracy",
            ("pairs.jsonl",),
            "Shi et al., CVPR 2022; github.com/ShiYaya/emscore",
            "foil:load_activitynet_foil",
            media="video",
        ),
    )
}
"""Every judged set by its name."""


def set_entry(name: str) -> SetEntry:
    """The entry of a set.

    Raises:
        ValueError: there is no such set.

    >>> set_entry("flickr8k-expert").title
    'Flickr8k-Expert'
    """
    known = name.lower().replace("-", "_")
    if known not in SETS:
        raise ValueError(f"unknown set {name!r}{did_you_mean(known, SETS)} (known: {', '.join(SETS)})")
    return SETS[known]


def folder_of(entry: SetEntry, data: Path) -> Path:
    """The folder of a set: `data` itself, or the folder of its name in it.

    Raises:
        FileError: none of them holds its files (the message says where the set comes from and in which form
            to put it), or the folder has the name of another set.
    """
    candidates = [data, *(data / name for name in (entry.name, *entry.folders))]
    # A folder of sets may hold a file of the same name as one of this set.
    for folder in reversed(candidates):
        if all((folder / file).is_file() for file in entry.files):
            _refuse_another(entry, folder)
            return folder
    missing = [file for file in entry.files if not (data / file).is_file()]
    found = f"there is no {' and no '.join(missing)} of {entry.title} here, nor in {data / entry.name}"
    raise FileError(file_problem(data, found, entry.advice()))


def _refuse_another(entry: SetEntry, folder: Path) -> None:
    """Refuse the folder of another set, whose files may have the same names; one's own may hold any set."""
    name = folder.resolve().name.lower().replace("-", "_")
    others = (one for one in SETS.values() if name in (one.name, *one.folders))
    other = next(others, entry)
    if other is not entry and "own" not in (entry.name, other.name):
        fix = f"`capeval judge {other.name}` judges it; rename the folder if it holds {entry.title}"
        raise FileError(file_problem(folder, f"is the folder of {other.title}, not of {entry.title}", fix))


def downloaded(entry: SetEntry, dataset: str) -> Path:
    """The folder of a data set repository on the Hub, `NAME/NAME` or with `@revision`.

    Raises:
        FileError: it could not be loaded.
    """
    from huggingface_hub import snapshot_download

    repository, _, revision = dataset.partition("@")
    patterns = [*entry.files, "draws.json", "references5.json", "*.json"]
    try:
        path = snapshot_download(
            repository, repo_type="dataset", revision=revision or None, allow_patterns=patterns
        )
    except Exception as error:  # the Hub's own errors have no common base
        first = str(error).strip().split("\n")[0]
        found = f"the data set could not be loaded from the Hub ({first or type(error).__name__})"
        fix = "check the id and the connection, or name a folder"
        raise FileError(file_problem(dataset, found, fix)) from None
    return Path(path)


def load_set(name: str, data: str | Path, **settings: Any) -> JudgedSet:
    """A judged set from a folder, or from a data set repository on the Hub.

    Args:
        name: one of `SETS`.
        data: its folder, or a folder of such folders; where there is none, the id of a data set on the Hub.
        settings: of its loader, e.g. `labels="label_fleur_run"` for Pascal-50S.

    Raises:
        ValueError: there is no such set. FileError: the files are missing or damaged.
    """
    entry = set_entry(name)
    path = Path(data)
    text = str(data)
    if not path.exists() and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        path = downloaded(entry, text)
    elif not path.is_dir():
        found = "is a file, expected a folder" if path.exists() else "there is no such folder"
        raise FileError(file_problem(path, found))
    return entry.load(folder_of(entry, path), **settings)
