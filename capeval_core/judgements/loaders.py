"""Readers of the judged sets, one for each name in `sets.toml`, which has the form of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.text_files import load_json
from capeval_core.judgements.correlation import majority
from capeval_core.judgements.files import (
    Dropped,
    Kinds,
    named_rows,
    read_lists,
    read_references,
    read_rows,
    references_of,
)
from capeval_core.judgements.protocols import (
    Items,
    MarkedSet,
    PairedSet,
    PoolSet,
    RatedSet,
    RatingColumn,
    Scoring,
    SystemSet,
    tau_columns,
)
from capeval_core.values import described

_RATED: Kinds = {"image": str, "candidate": str}
_PAIR: Kinds = {"true_caption": str, "foil_caption": str, "references": list}
REFERENCES = "references.json"
_WITHOUT_PEOPLE = "without human captions"
_DRAWS, _REFERENCES = 5, 5


def _column(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [row.get(name) for row in rows]


def _collapsed(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


def _rated(
    name: str, items: Items, ratings: Iterable[Iterable[Any]], dropped: Dropped, of: str = "rating"
) -> RatedSet:
    """Items with the ratings of each; those that are no numbers are counted and left out."""
    numbers = [[dropped.rating(rating, of) for rating in own] for own in ratings]
    rows = pd.Series(numbers, dtype=object).explode().astype(float).dropna()
    return RatedSet(
        name,
        (Scoring("", items),),
        rows.index.to_numpy(np.int64),
        {"rating": rows.to_numpy()},
        tau_columns(),
        dropped=dropped.counts,
    )


def load_flickr8k_expert(folder: Path) -> RatedSet:
    """Every rating is a row; candidates that are a reference of their image are left out."""
    rows = read_rows(folder / "judgements.jsonl", {**_RATED, "ratings": list})
    table = pd.DataFrame(
        {
            "caption": list(map(_collapsed, _column(rows, "candidate"))),
            "image": _column(rows, "image"),
            "references": read_references(folder / REFERENCES, _column(rows, "image")),
            "ratings": _column(rows, "ratings"),
        }
    )
    table["references"] = [list(map(_collapsed, own)) for own in table.references]
    own = np.array([row.caption in row.references for row in table.itertuples()], bool)
    dropped = Dropped()
    dropped.add(
        "ratings of a candidate that is a reference of its image", int(table.ratings[own].map(len).sum())
    )
    kept = table[~own]
    items = Items(kept.caption.tolist(), kept.image.tolist(), kept.references.tolist())
    return _rated("flickr8k_expert", items, kept.ratings, dropped)


def load_flickr8k_cf(folder: Path) -> RatedSet:
    """The rating is the share of CrowdFlower's votes that say yes."""
    path, fields = folder / "captions.json", {"image": str, "caption_id": str, "n_yes": str, "n_no": str}
    rows = read_rows(folder / "judgements.csv", fields)
    captions = load_json(path)
    if not isinstance(captions, dict):
        raise FileError(file_problem(path, f"{described(captions)}, expected {{caption_id: caption}}"))
    ids, images = _column(rows, "caption_id"), _column(rows, "image")
    if unknown := sorted(set(ids) - set(captions)):
        found = f"no caption of {', '.join(map(repr, unknown[:3]))}"
        raise FileError(file_problem(path, found, "expected {caption_id: caption}", verb="has"))
    references = [list(map(_collapsed, own)) for own in read_references(folder / REFERENCES, images)]
    items = Items([_collapsed(captions[one]) for one in ids], images, references)
    dropped = Dropped()
    yes, no = (
        np.array([dropped.rating(row[name], f"{name} of a row") for row in rows])
        for name in ("n_yes", "n_no")
    )
    with np.errstate(invalid="ignore"):
        shares = yes / (yes + no)
    return _rated("flickr8k_cf", items, ([] if np.isnan(share) else [share] for share in shares), dropped)


def load_composite(folder: Path) -> RatedSet:
    """The candidate of slot 0 is taken out of the references of all three candidates of its image."""
    rows = read_rows(folder / "judgements.jsonl", {**_RATED, "subset": str})
    path = folder / REFERENCES
    content = load_json(path)
    references: dict[str, list[str]] = {}
    for key, entry in content.items() if isinstance(content, dict) else ():
        texts, human = (entry.get(name) for name in ("references", "human_candidate_index"))
        if not isinstance(texts, list) or not (human is None or 0 <= human < len(texts)):
            raise FileError(file_problem(path, "no references", index=f"key {key!r}", verb="has"))
        references[key] = [text for index, text in enumerate(texts) if index != human]
    images = [f"{row['subset']}/{row['image']}" for row in rows]
    items = Items(_column(rows, "candidate"), images, references_of(path, references, images))
    return _rated("composite", items, ([row.get("rating")] for row in rows), Dropped())


def load_capeval1k(folder: Path) -> RatedSet:
    """A mean rating of four systems' captions of each image."""
    rows = read_rows(folder / "captions.jsonl", _RATED)
    images = _column(rows, "image")
    items = Items(_column(rows, "candidate"), images, read_references(folder / REFERENCES, images))
    return _rated("capeval1k", items, ([row.get("human_score")] for row in rows), Dropped(), "human_score")


def load_nebula(folder: Path) -> RatedSet:
    """A mean rating."""
    rows = read_rows(folder / "test.jsonl", {**_RATED, "references": list})
    items = Items(*(_column(rows, name) for name in ("candidate", "image", "references")))
    return _rated("nebula", items, ([row.get("human_score")] for row in rows), Dropped(), "human_score")


def load_own(folder: Path) -> RatedSet:
    """Every rating is a row; references are for metrics that need them."""
    path = folder / "judgements.jsonl"
    rows = read_rows(path, {**_RATED, "image": (str, int)})
    images = list(map(str, _column(rows, "image")))
    there = (folder / REFERENCES).exists()
    references = read_references(folder / REFERENCES, images) if there else None
    names = [f"{path.name} {name}" for name, _ in named_rows(path)]
    given = [row.get("ratings", row.get("rating")) for row in rows]
    ratings = (own if isinstance(own, list) else [own] for own in given)
    return _rated("own", Items(_column(rows, "candidate"), images, references, names), ratings, Dropped())


def load_thumb(folder: Path) -> RatedSet:
    """Pearson's correlation with precision, recall and the total; of a metric's own parts with theirs."""
    rows = read_rows(folder / "captions.jsonl", {"SYS": str, "seg_id": str, "hyp": str, "image": str})
    references = read_references(folder / REFERENCES, _column(rows, "seg_id"))
    names, dropped = ("P", "R", "human_score"), Dropped()
    values = np.array([[dropped.rating(row.get(name), name) for name in names] for row in rows])
    kept = np.flatnonzero(np.isfinite(values).all(axis=1))
    table = {}
    for subset, mark in ((None, ""), (_WITHOUT_PEOPLE, f" {_WITHOUT_PEOPLE}")):
        for name, title in zip(names, ("P", "R", "total"), strict=True):
            table[title + mark] = RatingColumn("pearson", name, subset=subset)
        for name, part in (("P", "precision"), ("R", "recall")):
            table[f"{part} with {name}{mark}"] = RatingColumn("pearson", name, part=part, subset=subset)
    return RatedSet(
        "thumb",
        (Scoring("", Items(_column(rows, "hyp"), _column(rows, "image"), references)),),
        kept,
        {name: values[kept, column] for column, name in enumerate(names)},
        table,
        subsets=["people" if rows[row]["SYS"] == "Human" else _WITHOUT_PEOPLE for row in kept],
        dropped=dropped.counts,
    )


def load_vatex_eval(folder: Path) -> RatedSet:
    """Without references, with the first one and with nine; coefficients are means over the annotators."""
    rows = read_rows(folder / "judgements.jsonl", {"video": str, "candidate": str, "ratings": list})
    videos, dropped = _column(rows, "video"), Dropped()
    items = Items(_column(rows, "candidate"), videos, read_references(folder / REFERENCES, videos))
    annotators = max(len(row["ratings"]) for row in rows)
    values = [[dropped.rating(value, "rating") for value in row["ratings"]] for row in rows]
    complete = [len(own) == annotators for own in values]
    dropped.add("captions that not all annotators rated", complete.count(False))
    kept = [row for row, own in enumerate(values) if complete[row] and np.isfinite(own).all()]
    names = {0: "no reference", 1: "1 reference", 9: "9 references"}
    return RatedSet(
        "vatex_eval",
        tuple(_first(items, count, name) for count, name in names.items()),
        np.array(kept, dtype=np.int64),
        {"rating": np.array([values[row] for row in kept], dtype=np.float64).reshape(-1, annotators)},
        {
            f"{statistic} {name}": RatingColumn(statistic, scoring=name)
            for name in names.values()
            for statistic in ("tau_b", "spearman")
        },
        by_annotator=True,
        dropped=dropped.counts,
    )


def _first(items: Items, count: int, name: str) -> Scoring:
    """A scoring with the first references of each item."""
    return Scoring(name, items, [list(range(min(count, len(own)))) for own in items.references or []])


def _pairs(
    rows: Sequence[dict[str, Any]], first: str, second: str, visual: str, references: Sequence[list[str]]
) -> Items:
    """The first and the second caption of each pair, one after the other."""
    return Items(
        [row[side] for row in rows for side in (first, second)],
        [row[visual] for row in rows for _ in range(2)],
        [texts for texts in references for _ in range(2)],
    )


def _foil_set(name: str, counts: Sequence[int]) -> Callable[[Path], PairedSet]:
    """A reader of right captions against foils, with the first references of each."""

    def load(folder: Path) -> PairedSet:
        rows = read_rows(folder / "pairs.jsonl", {"image": str, **_PAIR})
        items = _pairs(rows, "true_caption", "foil_caption", "image", _column(rows, "references"))
        names = ["1 reference", *(f"{count} references" for count in counts[1:])]
        scorings = tuple(_first(items, count, own) for count, own in zip(counts, names, strict=True))
        labels = ([0] * len(rows),) * len(scorings)
        return PairedSet(name, scorings, labels, _column(rows, "image"), by_scoring=True)

    return load


load_foil = _foil_set("foil", (1, 4))
load_nocaps_foil = _foil_set("nocaps_foil", (1, 4, 9))


def load_activitynet_foil(folder: Path) -> PairedSet:
    """Paragraphs about a video: the scores of their sentences are averaged first."""
    rows = read_rows(folder / "pairs.jsonl", {"video": str, "paragraph": str, **_PAIR})
    items = _pairs(rows, "true_caption", "foil_caption", "video", _column(rows, "references"))
    return PairedSet(
        "activitynet_foil",
        (Scoring("accuracy", items),),
        ([0] * len(rows),),
        _column(rows, "video"),
        by_scoring=True,
        paragraphs=[f"{row['video']}/{row['paragraph']}" for row in rows],
    )


def load_pascal50s(folder: Path, labels: str = "label", draws: str = "draws") -> PairedSet:
    """labels: those of the pairs that count. draws: `draws` of references, or `fixed`: references5.json."""
    fields: Kinds = {"category": str, "image": str, "caption_a": str, "caption_b": str}
    rows = read_rows(folder / "pairs.jsonl", fields)
    references = read_references(folder / "references50.json", _column(rows, "image"))
    kept = [number for number, row in enumerate(rows) if row.get(labels) in ("a", "b")]
    dropped = Dropped()
    dropped.add(f"pairs without {labels}", len(rows) - len(kept))
    if not kept:
        raise FileError(file_problem(folder / "pairs.jsonl", f"no pair has {labels!r} a or b"))
    path = folder / ("references5.json" if draws == "fixed" else "draws.json")
    if draws == "fixed":
        every = [_indices(path, load_json(path), references)]
    elif path.exists():
        every = [_indices(path, draw, references) for draw in load_json(path)]
    else:
        every = _drawn(references)
    pairs = [rows[number] for number in kept]
    items = _pairs(pairs, "caption_a", "caption_b", "image", [references[number] for number in kept])
    return PairedSet(
        "pascal50s",
        _draws(items, [[draw[number] for number in kept] for draw in every]),
        ([int(row[labels] == "b") for row in pairs],) * len(every),
        _column(pairs, "image"),
        _column(pairs, "category"),
        dropped=dropped.counts,
    )


def load_abstract50s(folder: Path) -> PairedSet:
    """The label is the majority of the votes; a tied vote is decided at random, as part of a draw."""
    fields: Kinds = {"image": str, "caption_b": str, "caption_c": str, "references": list, "votes": list}
    rows = read_rows(folder / "pairs.jsonl", fields)
    references, path = _column(rows, "references"), folder / "draws.json"
    preferred = []
    if path.exists():
        content = load_json(path)
        draws = [_indices(path, draw["reference_indices"], references) for draw in content]
        for draw in content:
            labels = draw.get("labels", [])
            if len(labels) != len(rows) or not set(labels) <= {"b", "c"}:
                found = f"{len(labels)} labels, expected b or c for each of {len(rows)} pairs"
                raise FileError(file_problem(path, found, verb="has"))
            preferred.append([int(label == "c") for label in labels])
    else:
        signs = np.array([int(majority(row["votes"])) for row in rows])
        rng, draws = np.random.default_rng(0), _drawn(references)
        for _ in draws:
            coins = rng.integers(0, 2, len(signs))
            preferred.append(np.where(signs == 0, coins, signs < 0).tolist())
    items = _pairs(rows, "caption_b", "caption_c", "image", references)
    return PairedSet("abstract50s", _draws(items, draws), tuple(preferred), _column(rows, "image"))


def _drawn(references: Sequence[list[str]]) -> list[list[list[int]]]:
    """Five draws of five distinct references for each pair, with a fixed seed."""
    rng = np.random.default_rng(0)
    return [
        [rng.choice(len(own), min(_REFERENCES, len(own)), replace=False).tolist() for own in references]
        for _ in range(_DRAWS)
    ]


def _draws(items: Items, draws: list[list[list[int]]]) -> tuple[Scoring, ...]:
    return tuple(
        Scoring(f"draw {number}", items, [indices for indices in draw for _ in range(2)])
        for number, draw in enumerate(draws, start=1)
    )


def _indices(path: Path, draw: Any, references: Sequence[list[str]]) -> list[list[int]]:
    """A draw's indices, checked against the references of each pair."""
    if not isinstance(draw, list) or len(draw) != len(references):
        found = f"{len(draw) if isinstance(draw, list) else 'no'} entries of {len(references)} pairs"
        raise FileError(file_problem(path, found, "expected a list of indices per pair", verb="has"))
    for number, (indices, texts) in enumerate(zip(draw, references, strict=True)):
        if not all(isinstance(index, int) and 0 <= index < len(texts) for index in indices):
            found = f"{indices}, of {len(texts)} references"
            raise FileError(file_problem(path, found, index=f"pair {number}", verb="has"))
    return draw


def load_hat(folder: Path) -> MarkedSet:
    """How well low scores find the captions with a hallucination."""
    every = read_rows(folder / "captions.jsonl", {"image": str, "caption": str, "references": list})
    rows = [row for row in every if isinstance(row.get("contains_hallucination"), bool)]
    dropped = Dropped()
    dropped.add("captions without contains_hallucination", len(every) - len(rows))
    items = Items(*(_column(rows, name) for name in ("caption", "image", "references")))
    marked = _column(rows, "contains_hallucination")
    return MarkedSet("hat", (Scoring("", items),), marked, dropped=dropped.counts)


def load_coco_systems(folder: Path) -> SystemSet:
    """A file {image id: caption} of each system, beside the references."""
    references_file = "reference_captions.json"
    references = read_lists(folder / references_file)
    systems, dropped = [], Dropped()
    for file in sorted(folder.glob("*.json")):
        if file.name in (references_file, "expected.json"):
            continue
        captions = load_json(file)
        if not isinstance(captions, dict) or not captions:
            raise FileError(file_problem(file, f"{described(captions)}, expected {{image id: caption}}"))
        for image, caption in captions.items():
            if not isinstance(caption, str):
                where = f"key {image!r}"
                raise FileError(file_problem(file, described(caption), "expected a caption", index=where))
        images = [image for image in captions if image in references]
        dropped.add("captions of images without references", len(captions) - len(images))
        texts = [references[image] for image in images]
        systems.append(Scoring(file.stem, Items([captions[image] for image in images], images, texts)))
    if not systems:
        found = f"no file of a system beside {references_file}"
        fix = "put {image id: caption} there, a file per system"
        raise FileError(file_problem(folder, found, fix, verb="has"))
    return SystemSet("coco_systems", tuple(systems), dropped=dropped.counts)


def load_nice_pools(folder: Path) -> PoolSet:
    """The chosen captions are compared with the references, as the captions of a system are."""
    pools = read_lists(folder / "pools.json")
    images = [image for image, candidates in pools.items() for _ in candidates]
    captions = [caption for candidates in pools.values() for caption in candidates]
    references = read_references(folder / REFERENCES, images)
    return PoolSet("nice_pools", (Scoring("", Items(captions, images, references)),))
