"""Readers of the judged sets, one for each name in `sets.toml`, which has the form of their files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.text_files import load_json
from capeval_core.judgements.correlation import majority
from capeval_core.judgements.files import Dropped, Kinds, Rows, mapping_of_lists, references_of
from capeval_core.judgements.judged_set import Items, Scoring
from capeval_core.judgements.others import MarkedSet, PairedSet, PoolSet, SystemSet
from capeval_core.judgements.ratings import RatedSet, RatingColumn, tau_columns
from capeval_core.values import described

RATED: Kinds = {"image": str, "candidate": str}
PAIR: Kinds = {"true_caption": str, "foil_caption": str, "references": list}
REFERENCES = "reference_captions.json"
WITHOUT_PEOPLE = "without human captions"
_DRAWS, _REFERENCES = 5, 5


def _references(folder: Path, images: Iterable[str], name: str = "references.json") -> list[list[str]]:
    """Those of each image, of a file {image: references}."""
    return references_of(folder / name, mapping_of_lists(folder / name), list(images))


def collapsed(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


class Rated:
    """A set of rated captions that is being read."""

    def __init__(self, names: list[str] | None = None, references: bool = True) -> None:
        self.items = Items([], [], [] if references else None, names)
        self.dropped = Dropped()
        self.rows: list[tuple[int, float]] = []

    def add(
        self, caption: str, image: str, references: list[str], ratings: Iterable[Any], name: str = "rating"
    ) -> None:
        """One more caption; its ratings that are no numbers are counted and left out."""
        self.rows += [(len(self.items), self.dropped.rating(rating, name)) for rating in ratings]
        self.items.add(caption, image, references)

    def set(self, name: str) -> RatedSet:
        kept = [(item, rating) for item, rating in self.rows if math.isfinite(rating)]
        return RatedSet(
            name,
            (Scoring("", self.items),),
            np.array([item for item, _ in kept], dtype=np.int64),
            {"rating": np.array([rating for _, rating in kept], dtype=np.float64)},
            tau_columns(),
            dropped=self.dropped.counts,
        )


def load_flickr8k_expert(folder: Path) -> RatedSet:
    """Every rating is a row; candidates that are a reference of their image are left out."""
    file = Rows(folder / "judgements.jsonl", {**RATED, "ratings": list})
    rated = Rated()
    for row, texts in zip(file.rows, _references(folder, file.column("image")), strict=True):
        own, candidate = list(map(collapsed, texts)), collapsed(row["candidate"])
        if candidate in own:
            reason = "ratings of a candidate that is a reference of its image"
            rated.dropped.add(reason, len(row["ratings"]))
        else:
            rated.add(candidate, row["image"], own, row["ratings"])
    return rated.set("flickr8k_expert")


def load_flickr8k_cf(folder: Path) -> RatedSet:
    """The rating is the share of CrowdFlower's votes that say yes."""
    path = folder / "captions.json"
    file = Rows(folder / "judgements.csv", {"image": str, "caption_id": str, "n_yes": str, "n_no": str})
    captions = load_json(path)
    if not isinstance(captions, dict):
        raise FileError(file_problem(path, f"{described(captions)}, expected {{caption_id: caption}}"))
    if unknown := sorted(set(file.column("caption_id")) - set(captions)):
        found = f"no caption of {', '.join(map(repr, unknown[:3]))}"
        raise FileError(file_problem(path, found, "expected {caption_id: caption}", verb="has"))
    rated = Rated()
    for row, texts in zip(file.rows, _references(folder, file.column("image")), strict=True):
        yes, no = (rated.dropped.rating(row[name], f"{name} of a row") for name in ("n_yes", "n_no"))
        rated.rows.append((len(rated.items), yes / (yes + no) if yes + no else math.nan))
        rated.items.add(collapsed(captions[row["caption_id"]]), row["image"], list(map(collapsed, texts)))
    return rated.set("flickr8k_cf")


def load_composite(folder: Path) -> RatedSet:
    """The candidate of slot 0 is taken out of the references of all three candidates of its image."""
    file = Rows(folder / "judgements.jsonl", {**RATED, "subset": str})
    path = folder / "references.json"
    content = load_json(path)
    references: dict[str, list[str]] = {}
    for key, entry in content.items() if isinstance(content, dict) else ():
        texts, human = (entry.get(name) for name in ("references", "human_candidate_index"))
        if not isinstance(texts, list) or not (human is None or 0 <= human < len(texts)):
            raise FileError(file_problem(path, "no references", index=f"key {key!r}", verb="has"))
        references[key] = [text for index, text in enumerate(texts) if index != human]
    images = [f"{row['subset']}/{row['image']}" for row in file.rows]
    rated = Rated()
    for row, image, texts in zip(file.rows, images, references_of(path, references, images), strict=True):
        rated.add(row["candidate"], image, texts, [row.get("rating")])
    return rated.set("composite")


def _scored_set(name: str, file: Rows, references: Sequence[list[str]]) -> RatedSet:
    rated = Rated()
    for row, texts in zip(file.rows, references, strict=True):
        rated.add(row["candidate"], row["image"], texts, [row.get("human_score")], "human_score")
    return rated.set(name)


def load_capeval1k(folder: Path) -> RatedSet:
    """A mean rating of four systems' captions of each image."""
    file = Rows(folder / "captions.jsonl", RATED)
    return _scored_set("capeval1k", file, _references(folder, file.column("image")))


def load_nebula(folder: Path) -> RatedSet:
    """A mean rating."""
    file = Rows(folder / "test.jsonl", {**RATED, "references": list})
    return _scored_set("nebula", file, file.column("references"))


def load_own(folder: Path) -> RatedSet:
    """Every rating is a row; references are for metrics that need them."""
    file = Rows(folder / "judgements.jsonl", {**RATED, "image": (str, int)})
    images = list(map(str, file.column("image")))
    there = (folder / "references.json").exists()
    texts: Sequence[list[str]] = _references(folder, images) if there else [[]] * len(file.rows)
    rated = Rated(file.names, there)
    for row, image, own in zip(file.rows, images, texts, strict=True):
        given = row.get("ratings", row.get("rating"))
        rated.add(row["candidate"], image, own, given if isinstance(given, list) else [given])
    return rated.set("own")


def load_thumb(folder: Path) -> RatedSet:
    """Pearson's correlation with precision, recall and the total; of a metric's own parts with theirs."""
    file = Rows(folder / "captions.jsonl", {"SYS": str, "seg_id": str, "hyp": str, "image": str})
    rated, names = Rated(), ("P", "R", "human_score")
    ratings = []
    for row, own in zip(file.rows, _references(folder, file.column("seg_id")), strict=True):
        ratings.append([rated.dropped.rating(row.get(name), name) for name in names])
        rated.items.add(row["hyp"], row["image"], own)
    values = np.array(ratings)
    kept = np.flatnonzero(np.isfinite(values).all(axis=1))
    table = {}
    for subset, mark in ((None, ""), (WITHOUT_PEOPLE, f" {WITHOUT_PEOPLE}")):
        for name, title in zip(names, ("P", "R", "total"), strict=True):
            table[title + mark] = RatingColumn("pearson", name, subset=subset)
        for name, part in (("P", "precision"), ("R", "recall")):
            table[f"{part} with {name}{mark}"] = RatingColumn("pearson", name, part=part, subset=subset)
    return RatedSet(
        "thumb",
        (Scoring("", rated.items),),
        kept,
        {name: values[kept, column] for column, name in enumerate(names)},
        table,
        subsets=["people" if file.rows[row]["SYS"] == "Human" else WITHOUT_PEOPLE for row in kept],
        dropped=rated.dropped.counts,
    )


def load_vatex_eval(folder: Path) -> RatedSet:
    """Without references, with the first one and with nine; coefficients are means over the annotators."""
    file = Rows(folder / "judgements.jsonl", {"video": str, "candidate": str, "ratings": list})
    texts = _references(folder, file.column("video"))
    rated, rows = Rated(), []
    annotators = max(len(row["ratings"]) for row in file.rows)
    for row, own in zip(file.rows, texts, strict=True):
        values = [rated.dropped.rating(value, "rating") for value in row["ratings"]]
        if len(values) < annotators:
            rated.dropped.add("captions that not all annotators rated")
        elif all(map(math.isfinite, values)):
            rows.append((len(rated.items), values))
        rated.items.add(row["candidate"], row["video"], own)
    names = {0: "no reference", 1: "1 reference", 9: "9 references"}
    return RatedSet(
        "vatex_eval",
        tuple(_first(rated.items, count, name) for count, name in names.items()),
        np.array([item for item, _ in rows], dtype=np.int64),
        {"rating": np.array([values for _, values in rows], dtype=np.float64).reshape(-1, annotators)},
        {
            f"{statistic} {name}": RatingColumn(statistic, scoring=name)
            for name in names.values()
            for statistic in ("tau_b", "spearman")
        },
        by_annotator=True,
        dropped=rated.dropped.counts,
    )


def _first(items: Items, count: int, name: str) -> Scoring:
    """A scoring with the first references of each item."""
    return Scoring(name, items, [list(range(min(count, len(own)))) for own in items.references or []])


def _pairs(
    captions: Iterable[tuple[str, str]], images: Sequence[str], references: Sequence[list[str]]
) -> Items:
    """The first and the second caption of each pair, one after the other."""
    return Items(
        [caption for pair in captions for caption in pair],
        [image for image in images for _ in range(2)],
        [texts for texts in references for _ in range(2)],
    )


def _foils(file: Rows, visual: str) -> Items:
    captions = zip(file.column("true_caption"), file.column("foil_caption"), strict=True)
    return _pairs(captions, file.column(visual), file.column("references"))


def _foil_set(name: str, counts: Sequence[int]) -> Callable[[Path], PairedSet]:
    """A reader of right captions against foils, with the first references of each."""

    def load(folder: Path) -> PairedSet:
        file = Rows(folder / "pairs.jsonl", {"image": str, **PAIR})
        items, names = _foils(file, "image"), ["1 reference", *(f"{n} references" for n in counts[1:])]
        scorings = tuple(_first(items, count, own) for count, own in zip(counts, names, strict=True))
        labels = ([0] * len(file.rows),) * len(scorings)
        return PairedSet(name, scorings, labels, file.column("image"), by_scoring=True)

    return load


load_foil = _foil_set("foil", (1, 4))
load_nocaps_foil = _foil_set("nocaps_foil", (1, 4, 9))


def load_activitynet_foil(folder: Path) -> PairedSet:
    """Paragraphs about a video: the scores of their sentences are averaged first."""
    file = Rows(folder / "pairs.jsonl", {"video": str, "paragraph": str, **PAIR})
    return PairedSet(
        "activitynet_foil",
        (Scoring("accuracy", _foils(file, "video")),),
        ([0] * len(file.rows),),
        file.column("video"),
        by_scoring=True,
        paragraphs=[f"{row['video']}/{row['paragraph']}" for row in file.rows],
    )


def load_pascal50s(folder: Path, labels: str = "label", draws: str = "draws") -> PairedSet:
    """labels: those of the pairs that count. draws: `draws` of references, or `fixed`: references5.json."""
    fields: Kinds = {"category": str, "image": str, "caption_a": str, "caption_b": str}
    file = Rows(folder / "pairs.jsonl", fields)
    references = _references(folder, file.column("image"), "references50.json")
    kept = [number for number, row in enumerate(file.rows) if row.get(labels) in ("a", "b")]
    dropped = Dropped()
    dropped.add(f"pairs without {labels}", len(file.rows) - len(kept))
    if not kept:
        raise FileError(file_problem(folder / "pairs.jsonl", f"no pair has {labels!r} a or b"))
    path = folder / ("references5.json" if draws == "fixed" else "draws.json")
    if draws == "fixed":
        every = [_indices(path, load_json(path), references)]
    elif path.exists():
        every = [_indices(path, draw, references) for draw in load_json(path)]
    else:
        every = drawn([len(texts) for texts in references])
    pairs = [file.rows[number] for number in kept]
    images = [row["image"] for row in pairs]
    captions = [(row["caption_a"], row["caption_b"]) for row in pairs]
    return PairedSet(
        "pascal50s",
        _draws(
            _pairs(captions, images, [references[number] for number in kept]),
            [[draw[number] for number in kept] for draw in every],
        ),
        ([int(row[labels] == "b") for row in pairs],) * len(every),
        images,
        [row["category"] for row in pairs],
        dropped=dropped.counts,
    )


def load_abstract50s(folder: Path) -> PairedSet:
    """The label is the majority of the votes; a tied vote is decided at random, as part of a draw."""
    fields: Kinds = {"image": str, "caption_b": str, "caption_c": str, "references": list, "votes": list}
    file = Rows(folder / "pairs.jsonl", fields)
    references, path = file.column("references"), folder / "draws.json"
    preferred = []
    if path.exists():
        content = load_json(path)
        draws = [_indices(path, draw["reference_indices"], references) for draw in content]
        for draw in content:
            labels = draw.get("labels", [])
            if len(labels) != len(file.rows) or not set(labels) <= {"b", "c"}:
                found = f"{len(labels)} labels, expected b or c for each of {len(file.rows)} pairs"
                raise FileError(file_problem(path, found, verb="has"))
            preferred.append([int(label == "c") for label in labels])
    else:
        signs = np.array([int(majority(row["votes"])) for row in file.rows])
        rng, draws = np.random.default_rng(0), drawn([len(texts) for texts in references])
        for _ in draws:
            coins = rng.integers(0, 2, len(signs))
            preferred.append(np.where(signs == 0, coins, signs < 0).tolist())
    captions = zip(file.column("caption_b"), file.column("caption_c"), strict=True)
    items = _pairs(captions, file.column("image"), references)
    return PairedSet("abstract50s", _draws(items, draws), tuple(preferred), file.column("image"))


def drawn(counts: list[int], seed: int = 0) -> list[list[list[int]]]:
    """Five draws of five distinct references for each pair, of so many references."""
    rng = np.random.default_rng(seed)
    return [
        [rng.choice(count, min(_REFERENCES, count), replace=False).tolist() for count in counts]
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
    file = Rows(folder / "captions.jsonl", {"image": str, "caption": str, "references": list})
    marked = [row.get("contains_hallucination") for row in file.rows]
    dropped, items = Dropped(), Items([], [], [])
    dropped.add("captions without contains_hallucination", sum(not isinstance(m, bool) for m in marked))
    for row, mark in zip(file.rows, marked, strict=True):
        if isinstance(mark, bool):
            items.add(row["caption"], row["image"], row["references"])
    kept = [mark for mark in marked if isinstance(mark, bool)]
    return MarkedSet("hat", (Scoring("", items),), kept, dropped=dropped.counts)


def load_coco_systems(folder: Path) -> SystemSet:
    """A file {image id: caption} of each system, beside the references."""
    references = mapping_of_lists(folder / REFERENCES)
    systems, dropped = [], Dropped()
    for file in sorted(folder.glob("*.json")):
        if file.name in (REFERENCES, "expected.json"):
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
        found = f"no file of a system beside {REFERENCES}"
        fix = "put {image id: caption} there, a file per system"
        raise FileError(file_problem(folder, found, fix, verb="has"))
    return SystemSet("coco_systems", tuple(systems), dropped=dropped.counts)


def load_nice_pools(folder: Path) -> PoolSet:
    """The chosen captions are compared with the references, as the captions of a system are."""
    pools = mapping_of_lists(folder / "pools.json")
    images = [image for image, candidates in pools.items() for _ in candidates]
    captions = [caption for candidates in pools.values() for caption in candidates]
    return PoolSet("nice_pools", (Scoring("", Items(captions, images, _references(folder, images))),))
