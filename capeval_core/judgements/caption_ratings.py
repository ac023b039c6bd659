"""Composite, CapEval1k, Nebula, THumB and VATEX-EVAL: ratings of single captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.json_files import load_json
from capeval_core.judgements.correlation import Doubles, Integers
from capeval_core.judgements.files import Dropped, Rows, mapping_of_lists, references_of
from capeval_core.judgements.flickr8k import add_item, rated_set
from capeval_core.judgements.judged_set import Items, Scoring
from capeval_core.judgements.ratings import RatedSet, RatingColumn

_RATED: dict[str, type | tuple[type, ...]] = {"image": str, "candidate": str}
WITHOUT_PEOPLE = "without human captions"


def load_composite(folder: Path) -> RatedSet:
    """Composite (Aditya et al., 2015): ratings from 1 to 5 of three captions of each image.

    `judgements.jsonl` (subset, image, slot, candidate, rating) and `references.json` ({subset/image:
    {references, human_candidate_index}}). The candidate of slot 0 is one of the image's references; it is
    taken out of the references of all three candidates.
    """
    file = Rows(folder / "judgements.jsonl", {**_RATED, "subset": str})
    path = folder / "references.json"
    content = load_json(path)
    references: dict[str, list[str]] = {}
    for key, entry in content.items() if isinstance(content, dict) else ():
        texts, human = (entry.get(name) for name in ("references", "human_candidate_index"))
        if not isinstance(texts, list) or not (human is None or 0 <= human < len(texts)):
            raise FileError(file_problem(path, "no references", index=f"key {key!r}", verb="has"))
        references[key] = [text for index, text in enumerate(texts) if index != human]
    images = [f"{row['subset']}/{row['image']}" for row in file.rows]
    dropped, items, rated = Dropped(), Items([], [], []), []
    for row, image, texts in zip(file.rows, images, references_of(path, references, images), strict=True):
        rated.append((len(items), dropped.rating(row.get("rating"), "rating")))
        add_item(items, row["candidate"], image, texts)
    return rated_set("composite", items, rated, dropped)


def load_capeval1k(folder: Path) -> RatedSet:
    """CapEval1k (Lee et al., ACL 2021): a mean rating from 0 to 1 of four systems' captions of each image.

    `captions.jsonl` (image, candidate, human_score) and `references.json` ({image: references}).
    """
    file = Rows(folder / "captions.jsonl", _RATED)
    path = folder / "references.json"
    texts = references_of(path, mapping_of_lists(path), file.column("image"))
    return _scored_set("capeval1k", file, texts)


def load_nebula(folder: Path) -> RatedSet:
    """Nebula's test split (Matsuda et al., ACCV 2024): a mean rating from 0 to 1.

    `test.jsonl` (image, candidate, references, human_score).
    """
    file = Rows(folder / "test.jsonl", {**_RATED, "references": list})
    return _scored_set("nebula", file, file.column("references"))


def load_own(folder: Path) -> RatedSet:
    """A set of your own: `judgements.jsonl` (image, candidate, ratings: one or several numbers).

    `references.json` ({image: references}) is for metrics that need references. Every rating is a row.
    """
    file = Rows(folder / "judgements.jsonl", {**_RATED, "image": (str, int)})
    images = list(map(str, file.column("image")))
    path = folder / "references.json"
    texts: Sequence[list[str]] = [[]] * len(file)
    if path.exists():
        texts = references_of(path, mapping_of_lists(path), images)
    dropped, items, rated = Dropped(), Items([], [], [] if path.exists() else None, file.names), []
    for row, image, own in zip(file.rows, images, texts, strict=True):
        given = row.get("ratings", row.get("rating"))
        for rating in given if isinstance(given, list) else [given]:
            rated.append((len(items), dropped.rating(rating, "rating")))
        add_item(items, row["candidate"], image, own)
    return rated_set("own", items, rated, dropped)


def _scored_set(name: str, file: Rows, references: Sequence[list[str]]) -> RatedSet:
    dropped, items, rated = Dropped(), Items([], [], []), []
    for row, texts in zip(file.rows, references, strict=True):
        rated.append((len(items), dropped.rating(row.get("human_score"), "human_score")))
        add_item(items, row["candidate"], row["image"], texts)
    return rated_set(name, items, rated, dropped)


def load_thumb(folder: Path) -> RatedSet:
    """THumB 1.0 (Kasai et al., NAACL 2022): precision P and recall R from 1 to 5, and the total with
    penalties.

    `captions.jsonl` (SYS, seg_id, hyp, image, P, R, human_score) and `references.json` ({seg_id:
    references}). Pearson's correlation of the score with each of them; of a metric's own precision with P and
    its recall with R, where it has them, as figure 4 of HICE-S (Zeng et al., ACM MM 2024) does with ratings
    that are not public.
    """
    file = Rows(folder / "captions.jsonl", {"SYS": str, "seg_id": str, "hyp": str, "image": str})
    path = folder / "references.json"
    texts = references_of(path, mapping_of_lists(path), file.column("seg_id"))
    dropped, items = Dropped(), Items([], [], [])
    names = ("P", "R", "human_score")
    ratings: list[list[float]] = []
    for row, own in zip(file.rows, texts, strict=True):
        ratings.append([dropped.rating(row.get(name), name) for name in names])
        add_item(items, row["hyp"], row["image"], own)
    values = np.array(ratings)
    kept = np.isfinite(values).all(axis=1)
    subsets = ["people" if row["SYS"] == "Human" else WITHOUT_PEOPLE for row in file.rows]
    table = {}
    for subset, mark in ((None, ""), (WITHOUT_PEOPLE, f" {WITHOUT_PEOPLE}")):
        for name, title in zip(names, ("P", "R", "total"), strict=True):
            table[title + mark] = RatingColumn("pearson", name, subset=subset)
        for name, part in (("P", "precision"), ("R", "recall")):
            table[f"{part} with {name}{mark}"] = RatingColumn("pearson", name, part=part, subset=subset)
    return RatedSet(
        "thumb",
        (Scoring("", items),),
        np.flatnonzero(kept),
        {name: values[kept, column] for column, name in enumerate(names)},
        table,
        subsets=[subset for subset, one in zip(subsets, kept, strict=True) if one],
        dropped=dropped.counts,
    )


def load_vatex(folder: Path) -> RatedSet:
    """VATEX-EVAL (Shi et al., CVPR 2022): three annotators rate captions of videos from 1 to 5.

    `judgements.jsonl` (video, candidate, ratings: three) and `references.json` ({video: references}, at least
    nine). Without references, with the first one and with the first nine. Scores are rounded to four
    decimals, and a coefficient is its mean over the annotators, rounded to four decimals.
    """
    fields: dict[str, type | tuple[type, ...]] = {"video": str, "candidate": str, "ratings": list}
    file = Rows(folder / "judgements.jsonl", fields)
    path = folder / "references.json"
    texts = references_of(path, mapping_of_lists(path), file.column("video"))
    dropped, items = Dropped(), Items([], [], [])
    rated: list[tuple[int, list[float]]] = []
    annotators = max(len(row["ratings"]) for row in file.rows)
    for row, own in zip(file.rows, texts, strict=True):
        values = [dropped.rating(value, "rating") for value in row["ratings"]]
        if len(values) < annotators:
            dropped.add("captions that not all annotators rated")
        elif all(map(math.isfinite, values)):
            rated.append((len(items), values))
        add_item(items, row["candidate"], row["video"], own)
    scorings, table = [], {}
    for count in (0, 1, 9):
        name = {0: "no reference", 1: "1 reference"}.get(count, f"{count} references")
        chosen = [list(range(min(count, len(own)))) for own in texts]
        scorings.append(Scoring(name, items, chosen))
        for statistic in ("tau_b", "spearman"):
            table[f"{statistic} {name}"] = RatingColumn(statistic, scoring=name)
    item: Integers = np.array([item for item, _ in rated], dtype=np.int64)
    ratings: Doubles = np.array([values for _, values in rated], dtype=np.float64).reshape(-1, annotators)
    return RatedSet(
        "vatex_eval",
        tuple(scorings),
        item,
        {"rating": ratings},
        table,
        by_annotator=True,
        dropped=dropped.counts,
    )
