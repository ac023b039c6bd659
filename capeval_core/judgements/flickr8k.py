"""Flickr8k-Expert and Flickr8k-CF (Hodosh, Young and Hockenmaier, JAIR 47, 2013).

Expert: three experts rate each caption from 1 to 4. Every rating is a row, nothing is averaged; candidates
that are a reference of their image are left out. CF: the rating is the share of CrowdFlower's votes that say
yes; a candidate that is a reference of an image is taken out of the references of that image.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.json_files import load_json
from capeval_core.judgements.files import Dropped, Rows, csv_rows, mapping_of_lists, references_of
from capeval_core.judgements.judged_set import Items, Scoring
from capeval_core.judgements.ratings import RatedSet, tau_columns


def load_expert(folder: Path) -> RatedSet:
    """`judgements.jsonl` (image, candidate, ratings) and `references.json` ({image: references})."""
    file = Rows(folder / "judgements.jsonl", {"image": str, "candidate": str, "ratings": list})
    path = folder / "references.json"
    references = mapping_of_lists(path)
    dropped = Dropped()
    items = Items([], [], [])
    rated: list[tuple[int, float]] = []
    for row, texts in zip(file.rows, references_of(path, references, file.column("image")), strict=True):
        texts = [collapsed(text) for text in texts]
        candidate = collapsed(row["candidate"])
        if candidate in texts:
            dropped.add("ratings of a candidate that is a reference of its image", len(row["ratings"]))
            continue
        rated += [(len(items), dropped.rating(rating, "rating")) for rating in row["ratings"]]
        add_item(items, candidate, row["image"], texts)
    return rated_set("flickr8k_expert", items, rated, dropped)


def load_cf(folder: Path) -> RatedSet:
    """`judgements.csv` (image, caption_id, n_yes, n_no), `captions.json` and `references.json`.

    The references are those that are left when each candidate was taken out of its own image's once, as the
    published table has them. One image has a candidate twice among its five: the other one stays.
    """
    rows = csv_rows(folder / "judgements.csv", ["image", "caption_id", "n_yes", "n_no"])
    path, captions_path = folder / "references.json", folder / "captions.json"
    captions = load_json(captions_path)
    unknown = (
        sorted({row["caption_id"] for row in rows} - set(captions)) if isinstance(captions, dict) else []
    )
    if unknown or not isinstance(captions, dict):
        found = f"no caption of {', '.join(map(repr, unknown[:3])) or 'any id'}"
        raise FileError(file_problem(captions_path, found, "expected {caption_id: caption}", verb="has"))
    images = [row["image"] for row in rows]
    dropped = Dropped()
    kept = {image: [collapsed(text) for text in texts] for image, texts in mapping_of_lists(path).items()}
    items = Items([], [], [])
    rated = []
    for row, texts in zip(rows, references_of(path, kept, images), strict=True):
        yes, no = (dropped.rating(row[name], f"{name} of a row") for name in ("n_yes", "n_no"))
        rated.append((len(items), yes / (yes + no) if yes + no else math.nan))
        add_item(items, collapsed(captions[row["caption_id"]]), row["image"], texts)
    return rated_set("flickr8k_cf", items, rated, dropped)


def rated_set(name: str, items: Items, rated: list[tuple[int, float]], dropped: Dropped) -> RatedSet:
    """A set with one kind of ratings; those that are NaN are left out."""
    kept = [(item, rating) for item, rating in rated if math.isfinite(rating)]
    return RatedSet(
        name,
        (Scoring("", items),),
        np.array([item for item, _ in kept], dtype=np.int64),
        {"rating": np.array([rating for _, rating in kept], dtype=np.float64)},
        tau_columns(),
        dropped=dropped.counts,
    )


def add_item(items: Items, caption: str, image: str, references: list[str]) -> None:
    """One more item of a set that is being read."""
    items.captions.append(caption)
    items.images.append(image)
    if items.references is not None:
        items.references.append(references)


def collapsed(text: str) -> str:
    """A text with single spaces.

    >>> collapsed(" a  dog ")
    'a dog'
    """
    return " ".join(text.split())
