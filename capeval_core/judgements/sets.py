"""The judged sets by name (`sets.toml`): where each comes from, where it lies, and the reader of its form."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from capeval_core.errors import Problems, described, did_you_mean, file_error, setting
from capeval_core.inputs.files import load_json, some_of
from capeval_core.inputs.joining import Folder
from capeval_core.inputs.openers import read_records
from capeval_core.judgements.correlation import kendall_tau_c, majority
from capeval_core.judgements.flickr8k import read_released
from capeval_core.judgements.protocols import (
    Items,
    JudgedSet,
    PairedSet,
    PoolSet,
    RatedSet,
    RatingColumn,
    Scoring,
    SystemSet,
)
from capeval_core.judgements.ratings import RatingOptions, numbers, read_ratings, warn_of_other_images
from capeval_core.weights.hub import download


class SetEntry(NamedTuple):
    """A judged set of the field, as `sets.toml` has it."""

    name: str
    title: str
    summary: str
    files: Sequence[str]
    form: str
    source: str = ""
    fields: Mapping[str, str] = {}
    folders: Sequence[str] = ()
    media: str = "image"
    loader: str = ""
    rating: str = "rating"
    references: Sequence[int] = ()
    columns: Mapping[str, Any] = {"tau_b": {"statistic": "tau_b"}, "tau_c": {"statistic": "tau_c"}}
    settings: Mapping[str, Sequence[str]] = {}
    released: Sequence[Sequence[str]] = ()
    hub: Mapping[str, Any] = {}

    def advice(self) -> str:
        """Where the set comes from, and in which form it is read."""
        if self.hub:
            return f"`capeval fetch {self.name}` brings it; or put it into a folder in this form: {self.form}"
        origin = f"{self.title} comes from {self.source}. " if self.source else ""
        return f"{origin}Put it into a folder in this form: {self.form}"


_FILE = tomllib.loads(Path(__file__).with_name("sets.toml").read_text(encoding="utf-8"))
SETS: dict[str, SetEntry] = {name: SetEntry(name, **entry) for name, entry in _FILE.items()}


def set_entry(name: str) -> SetEntry:
    """The entry of a set; ValueError where there is none."""
    known = name.lower().replace("-", "_")
    if known not in SETS:
        raise ValueError(f"unknown set {name!r}{did_you_mean(known, SETS)} (known: {', '.join(SETS)})")
    return SETS[known]


def folder_of(entry: SetEntry, data: str | Path) -> Path:
    """The folder of a set: `data`, or the folder of its name in it, not that of another set; else
    `NAME/NAME`, maybe `@revision`, is a data set on the Hub."""
    path, text = Path(data), str(data)
    if not path.exists() and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        path = _downloaded(entry, text)
    elif not path.is_dir():
        found = "is a file, expected a folder" if path.exists() else "there is no such folder"
        raise file_error(path, found)
    candidates = [path, *(path / name for name in (entry.name, *entry.folders))]
    # A folder of sets may hold a file of the same name as one of this set.
    forms = [entry.files, *entry.released]
    if entry.name == "own":
        forms = [[name] for name in OWN_FILES]
    fitting = [place for place in candidates if any(_are_in(place, files) for files in forms)]
    if not fitting:
        missing = [file for file in entry.files if not (path / file).is_file()]
        found = f"there is no {' and no '.join(missing)} of {entry.title} here, nor in {path / entry.name}"
        raise file_error(path, found, entry.advice())
    folder = fitting[-1]
    name = folder.resolve().name.lower().replace("-", "_")
    other = next((one for one in SETS.values() if name in (one.name, *one.folders)), entry)
    if other is not entry and "own" not in (entry.name, other.name):  # one's own may hold any set
        fix = f"`capeval judge {other.name}` judges it; rename the folder if it holds {entry.title}"
        raise file_error(folder, f"is the folder of {other.title}, not of {entry.title}", fix)
    return folder


def _downloaded(entry: SetEntry, dataset: str) -> Path:
    """The folder of a data set repository on the Hub."""

    def unavailable(name: str, why: str) -> Exception:
        found = f"the data set could not be loaded from the Hub ({why})"
        return file_error(dataset, found, "check the id, or name a folder")

    patterns = [*entry.files, "*.json"]
    return download(
        dataset, f"data set {dataset!r}", patterns, lambda _: [], error=unavailable, kind="dataset"
    )


def find_visuals(folder: Path, ids: Sequence[str]) -> dict[str, Path]:
    """The file of each id that has one in a folder, or inside it where a path names: an id is a file's name,
    with or without its extension, a path from that folder, or a COCO number."""
    place = Folder(folder)
    matches = {visual: place.find(visual) for visual in ids}
    found = {visual: folder / files[0] for visual, files in matches.items() if len(files) == 1}
    if not found:
        have = f"it has {some_of(place.names.entries)}" if place.names.entries else "it is empty"
        raise file_error(folder, f"none of the {len(ids):,} ids ({some_of(ids)}) has a file here; {have}")
    return found


# readers

REFERENCES = "references.json"
_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "text": (str, "a text"),
    "list": (list, "a list"),
    "id": ((str, int), "a text or a whole number"),
}  # of `fields` in `sets.toml`


_Loader = TypeVar("_Loader", bound=Callable[..., JudgedSet])
LOADERS: dict[str, Callable[..., JudgedSet]] = {}
"""By the `loader` of an entry, or its name; they take a name, a folder, and the rows of the first file."""


def _loader(name: str) -> Callable[[_Loader], _Loader]:
    """The decorator that registers a loader."""

    def register(load: _Loader) -> _Loader:
        LOADERS[name] = load
        return load

    return register


def load_set(name: str, data: str | Path, **settings: Any) -> JudgedSet:
    """A judged set of `SETS` from what `folder_of` takes, with settings of its loader."""
    entry = set_entry(name)
    if entry.name == "own":
        return load_own(data, **settings)
    folder = folder_of(entry, data)
    first = folder / entry.files[0]
    rows: Any
    if entry.released and not first.is_file():
        rows = read_released(folder, next(files for files in entry.released if _are_in(folder, files)))
    elif entry.fields:
        rows = read_rows(first, entry.fields)
    else:
        rows = _read_texts(first, lists=True)
    return LOADERS[entry.loader or entry.name](entry.name, folder, rows, **settings)


def _are_in(folder: Path, files: Iterable[str]) -> bool:
    return all((folder / file).is_file() for file in files)


# files


def read_rows(path: Path, fields: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a table by their names in messages; `fields` with their kinds are there."""
    problems = Problems()
    records = read_records(path, "caption", problems, fields)
    places = [records.place(index) for index in range(len(records.rows))]
    for place, row in zip(places, records.rows, strict=True):
        for field, kind in fields.items():
            types, noun = _KINDS[kind]
            if not isinstance(row.get(field), types) or isinstance(row[field], bool):
                hint = "" if field in row else did_you_mean(field, row)
                problem = f"{field}: {described(row.get(field), none='nothing')}{hint}"
                problems.add(file_error(path, problem, f"expected {noun}", index=place))
    problems.raise_if_any()
    columns = {name: [row.get(name) for row in records.rows] for name in records.fields}
    return pd.DataFrame(columns, index=places, dtype=object)


def _read_texts(path: Path, *, lists: bool = False) -> dict[str, Any]:
    """A JSON object of texts, or of lists of texts, e.g. {image: [references]}."""
    noun = "a list of texts" if lists else "a text"
    content, problems = load_json(path), Problems()
    if not isinstance(content, dict) or not content:
        raise file_error(path, described(content, none="null"), f"expected an object with {noun} by id")
    for name, value in content.items():
        texts = (value if isinstance(value, list) else []) if lists else [value]
        if not texts or not all(isinstance(text, str) for text in texts):
            where = f"key {name!r}"
            problems.add(file_error(path, described(value, none="null"), f"expected {noun}", index=where))
    problems.raise_if_any()
    return content


def _references(
    path: Path, images: Iterable[str], every: Mapping[str, Sequence[str]] | None = None
) -> list[list[str]]:
    """The references of each image, of a file {image: references}."""
    known, wanted = _read_texts(path, lists=True) if every is None else every, list(images)
    if missing := sorted({image for image in wanted if image not in known}):
        found = f"{len(missing):,} of {len(set(wanted)):,} images ({', '.join(map(repr, missing[:3]))})"
        raise file_error(path, f"{found} have no references")
    return [list(known[image]) for image in wanted]


# ratings


def _column(rows: pd.DataFrame, name: str) -> list[Any]:
    return rows[name].tolist() if name in rows else [None] * len(rows)


def _collapsed(texts: Iterable[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def _table(name: str) -> dict[str, RatingColumn]:
    return {title: RatingColumn(**column) for title, column in SETS[name].columns.items()}


def _rated(
    name: str, items: Items, ratings: Iterable[Sequence[Any]], dropped: Counter[str], of: str = "ratings"
) -> RatedSet:
    """Items with the ratings of each, of which every one is a row."""
    found = [numbers(own, of, dropped) for own in ratings]
    item = np.repeat(np.arange(len(found)), [len(own) for own in found])
    values = np.concatenate([*found, []])
    kept = np.isfinite(values)
    columns = {"rating": values[kept]}
    return RatedSet(name, (Scoring("", items),), item[kept], columns, _table(name), dropped=dropped)


@_loader("captions")
def _captions(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Captions with one rating each, with references in their rows or in a file."""
    images, of = rows.image.tolist(), SETS[name].rating
    there = "references" in SETS[name].fields
    references = rows.references.tolist() if there else _references(folder / REFERENCES, images)
    items = Items(rows.candidate.tolist(), images, references)
    return _rated(name, items, [[rating] for rating in _column(rows, of)], Counter(), f"{of}s")


@_loader("flickr8k_expert")
def _flickr8k_expert(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Candidates that are a reference of their image are left out."""
    captions = _collapsed(rows.candidate)
    texts = rows.references if "references" in rows else _references(folder / REFERENCES, rows.image)
    references = [_collapsed(of_image) for of_image in texts]
    pairs = enumerate(zip(captions, references, strict=True))
    kept = [row for row, (caption, of_image) in pairs if caption not in of_image]
    left_out = int(rows.ratings.map(len).sum() - rows.ratings.iloc[kept].map(len).sum())
    dropped = Counter({"ratings of a candidate that is a reference of its image": left_out})
    items = Items([captions[k] for k in kept], rows.image.iloc[kept].tolist(), [references[k] for k in kept])
    return _rated(name, items, rows.ratings.iloc[kept], dropped)


@_loader("flickr8k_cf")
def _flickr8k_cf(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """The rating is the share of CrowdFlower's votes that say yes."""
    dropped = Counter[str]()
    if "ratings" in rows:  # of the released file, which holds shares and the references that are left
        references = [_collapsed(of_image) for of_image in rows.references]
        items = Items(_collapsed(rows.candidate), rows.image.tolist(), references)
        return _rated(name, items, rows.ratings, dropped)
    if "references" in rows:
        captions = rows.candidate
        texts = rows.references
    else:
        captions = _captions_of(folder / "captions.json", rows.caption_id)
        texts = _references(folder / REFERENCES, rows.image)
    items = Items(_collapsed(captions), rows.image.tolist(), [_collapsed(of_image) for of_image in texts])
    yes = numbers(rows.n_yes, "votes (n_yes)", dropped)
    no = numbers(rows.n_no, "votes (n_no)", dropped)
    with np.errstate(invalid="ignore"):
        shares = yes / (yes + no)
    return _rated(name, items, [[] if np.isnan(share) else [share] for share in shares], dropped)


def _captions_of(path: Path, caption_ids: Iterable[str]) -> list[str]:
    """The captions with these ids, of a file {caption_id: caption}."""
    captions = _read_texts(path)
    unknown = sorted(set(caption_ids) - set(captions))
    if unknown:
        problem = f"has no caption of {', '.join(map(repr, unknown[:3]))}"
        raise file_error(path, problem, "expected {caption_id: caption}")
    return [captions[caption_id] for caption_id in caption_ids]


@_loader("composite")
def _composite(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """The candidate of slot 0 is taken out of the references of all three candidates of its image."""
    path, references = folder / REFERENCES, {}
    try:
        for key, entry in load_json(path).items():
            texts, human = entry["references"], entry.get("human_candidate_index")
            if not isinstance(texts, list) or not (human is None or 0 <= human < len(texts)):
                raise TypeError(f"key {key!r}")
            references[key] = [text for index, text in enumerate(texts) if index != human]
    except (AttributeError, KeyError, TypeError) as error:
        form = "{subset/image: {references, human_candidate_index}}"
        raise file_error(path, f"is not {form} ({error})") from error
    images = (rows.subset + "/" + rows.image).tolist()
    items = Items(rows.candidate.tolist(), images, _references(path, images, references))
    return _rated(name, items, [[rating] for rating in _column(rows, "rating")], Counter())


OWN_FILES = [f"judgements.{end}" for end in ("jsonl", "json", "csv", "tsv", "xlsx", "parquet", "arrow")]


def load_own(data: str | Path, options: RatingOptions | None = None, visuals: Path | None = None) -> RatedSet:
    """Ratings of one's own, of a file, or of a folder that holds `judgements` in any form.

    References are a column, or `references.json` in the folder; visuals: the folder of images, which tells
    ids from other columns.
    """
    path = Path(data)
    if path.suffix and path.is_file():
        folder = path.parent
    else:
        folder = folder_of(SETS["own"], data)
        files = [folder / name for name in OWN_FILES if (folder / name).is_file()]
        if len(files) > 1:
            names_of_files = " and ".join(file.name for file in files)
            raise file_error(folder, f"holds {names_of_files}", "name one of them with --data")
        path = files[0]
    rated = read_ratings(path, options)
    table = rated.table
    find = None if visuals is None else Folder(visuals).find
    ids = table.ids(find)
    problems = Problems()
    for index, (image, caption) in enumerate(zip(ids, table.captions, strict=True)):
        if image is None:
            problem = "the id is missing, or no text or whole number"
            problems.add(file_error(path, problem, index=table.place(index)))
        if caption is None:
            fix = f"name the column of captions with {setting('caption_column', 'NAME')}"
            problems.add(file_error(path, "has no caption", fix, index=table.place(index)))
    problems.raise_if_any()
    images = [str(image) for image in ids]
    references = table.references
    if references is None and (folder / REFERENCES).exists():
        references = _references(folder / REFERENCES, images)
    places = [f"{path.name} {table.place(index)}" for index in range(len(images))]
    items = Items([str(caption) for caption in table.captions], images, references, places)
    item = np.repeat(np.arange(len(images)), [len(values) for values in rated.values])
    ratings = {"rating": np.concatenate([*rated.values, []])}
    systems = None if table.systems is None else [table.systems[place] for place in item]
    notes = (rated.sentence(), *table.file.notes)
    judged = RatedSet("own", (Scoring("", items),), item, ratings, _table("own"), dropped=rated.dropped)
    judged = replace(judged, systems=systems, notes=notes)
    warn_of_other_images(path, judged)
    return judged.with_systems()


@_loader("thumb")
def _thumb(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Pearson's correlation with precision, recall and the total; of a metric's own parts with theirs."""
    dropped, columns = Counter[str](), ("P", "R", "human_score")
    values = {column: numbers(_column(rows, column), column, dropped) for column in columns}
    kept = np.flatnonzero(np.isfinite(list(values.values())).all(axis=0))
    items = Items(rows.hyp.tolist(), rows.image.tolist(), _references(folder / REFERENCES, rows.seg_id))
    ratings = {column: own[kept] for column, own in values.items()}
    subsets = ["people" if rows.SYS.iloc[row] == "Human" else "without human captions" for row in kept]
    scoring = (Scoring("", items),)
    return RatedSet(name, scoring, kept, ratings, _table(name), subsets=subsets, dropped=dropped)


@_loader("longcap_arena")
def _longcap_arena(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """A file of captions for each perspective, with one rating each."""
    entry = SETS[name]
    joined = pd.concat({file.split(".")[1]: read_rows(folder / file, entry.fields) for file in entry.files})
    items = Items(joined.cand.tolist(), joined.file_name.tolist(), joined.refs.tolist())
    rated = _rated(name, items, [[score] for score in _column(joined, "score")], Counter(), "scores")
    return replace(rated, subsets=joined.index.get_level_values(0)[rated.item].tolist())


@_loader("vatex_eval")
def _vatex_eval(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Without references, with the first one and with nine; coefficients are means over the annotators."""
    videos, dropped = rows.video.tolist(), Counter[str]()
    items = Items(rows.candidate.tolist(), videos, _references(folder / REFERENCES, videos))
    values = [numbers(own, "ratings", dropped) for own in rows.ratings]
    annotators = max(map(len, values))
    dropped["captions that not all annotators rated"] = sum(len(own) != annotators for own in values)
    kept = [row for row, own in enumerate(values) if len(own) == annotators and np.isfinite(own).all()]
    ratings = {"rating": np.array([values[row] for row in kept]).reshape(-1, annotators)}
    scorings, item = _first_references(items, (0, 1, 9)), np.array(kept, dtype=np.int64)
    return RatedSet(name, scorings, item, ratings, _table(name), by_annotator=True, dropped=dropped)


def _first_references(items: Items, counts: Sequence[int]) -> tuple[Scoring, ...]:
    """A scoring with each number of the first references of each item."""
    names = {0: "no reference", 1: "1 reference"}
    chosen = [[list(range(min(n, len(own)))) for own in items.references or []] for n in counts]
    pairs = zip(counts, chosen, strict=True)
    return tuple(Scoring(names.get(n, f"{n} references"), items, own) for n, own in pairs)


# pairs


def _pairs(
    rows: pd.DataFrame, columns: tuple[str, str], references: Sequence[list[str]], visual: str = "image"
) -> Items:
    """The first and the second caption of each pair, one after the other."""
    captions = rows[[*columns]].to_numpy().ravel().tolist()
    return Items(captions, rows[visual].repeat(2).tolist(), [own for own in references for _ in range(2)])


@_loader("foil")
def _foil(name: str, folder: Path, rows: pd.DataFrame) -> PairedSet:
    """Right captions against foils; of paragraphs about a video the scores of sentences are averaged."""
    visual, counts = SETS[name].media, SETS[name].references
    items = _pairs(rows, ("true_caption", "foil_caption"), rows.references, visual)
    scorings = _first_references(items, counts) if counts else (Scoring("accuracy", items),)
    paragraphs = (rows.video + "/" + rows.paragraph).tolist() if "paragraph" in rows else None
    labels, visuals = ([0] * len(rows),) * len(scorings), rows[visual].tolist()
    return PairedSet(name, scorings, labels, visuals, by_scoring=True, paragraphs=paragraphs)


@_loader("pascal50s")
def _pascal50s(
    name: str, folder: Path, rows: pd.DataFrame, labels: str = "label", draws: str = "draws"
) -> PairedSet:
    """labels: those of the pairs that count. draws: `draws` of references, or `fixed`: references5.json."""
    references = _references(folder / "references50.json", rows.image)
    path = folder / ("references5.json" if draws == "fixed" else "draws.json")
    if path.exists() or draws == "fixed":
        content = load_json(path)
        every = [_indices(path, draw, references) for draw in ([content] if draws == "fixed" else content)]
    else:
        every = _drawn(references)
    kept = np.flatnonzero([label in ("a", "b") for label in _column(rows, labels)])
    if not len(kept):
        raise file_error(folder / "pairs.jsonl", f"no pair has {labels!r} a or b")
    pairs = rows.iloc[kept]
    items = _pairs(pairs, ("caption_a", "caption_b"), [references[row] for row in kept])
    scorings = _draws(items, [[draw[row] for row in kept] for draw in every])
    preferred = ([int(label == "b") for label in pairs[labels]],) * len(every)
    images, dropped = pairs.image.tolist(), {f"pairs without {labels}": len(rows) - len(kept)}
    return PairedSet(name, scorings, preferred, images, pairs.category.tolist(), dropped=dropped)


@_loader("abstract50s")
def _abstract50s(name: str, folder: Path, rows: pd.DataFrame) -> PairedSet:
    """The label is the majority of the votes; a tied vote is decided at random, as part of a draw."""
    references, path = rows.references.tolist(), folder / "draws.json"
    preferred = []
    if path.exists():
        content = load_json(path)
        draws = [_indices(path, draw["reference_indices"], references) for draw in content]
        for draw in content:
            labels = draw.get("labels", [])
            if len(labels) != len(rows) or not set(labels) <= {"b", "c"}:
                found = f"has {len(labels)} labels, expected b or c for each of {len(rows)} pairs"
                raise file_error(path, found)
            preferred.append([int(label == "c") for label in labels])
    else:
        signs = np.array([int(majority(votes)) for votes in rows.votes])
        rng, draws = np.random.default_rng(0), _drawn(references)
        for _ in draws:
            coins = rng.integers(0, 2, len(signs))
            preferred.append(np.where(signs == 0, coins, signs < 0).tolist())
    items = _pairs(rows, ("caption_b", "caption_c"), references)
    return PairedSet(name, _draws(items, draws), tuple(preferred), rows.image.tolist())


def _drawn(references: Sequence[list[str]]) -> list[list[list[int]]]:
    """Five draws of five distinct references for each pair, with a fixed seed."""
    rng = np.random.default_rng(0)
    counts = [len(own) for own in references]
    return [[rng.choice(n, min(5, n), replace=False).tolist() for n in counts] for _ in range(5)]


def _draws(items: Items, draws: list[list[list[int]]]) -> tuple[Scoring, ...]:
    twice = [[indices for indices in draw for _ in range(2)] for draw in draws]
    return tuple(Scoring(f"draw {number}", items, draw) for number, draw in enumerate(twice, start=1))


def _indices(path: Path, draw: Any, references: Sequence[list[str]]) -> list[list[int]]:
    """A draw's indices, checked against the references of each pair."""
    if not isinstance(draw, list) or len(draw) != len(references):
        found = f"has {len(draw) if isinstance(draw, list) else 'no'} entries of {len(references)} pairs"
        raise file_error(path, found, "expected a list of indices per pair")
    for number, (indices, texts) in enumerate(zip(draw, references, strict=True)):
        if not all(isinstance(index, int) and 0 <= index < len(texts) for index in indices):
            found = f"has {indices}, of {len(texts)} references"
            raise file_error(path, found, index=f"pair {number}")
    return draw


# others


@_loader("hat")
def _hat(name: str, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """A hallucination is a rating of 0, its absence of 1."""
    kept = rows[[isinstance(mark, bool) for mark in _column(rows, "contains_hallucination")]]
    items = Items(kept.caption.tolist(), kept.image.tolist(), kept.references.tolist())
    dropped = Counter({"captions without contains_hallucination": len(rows) - len(kept)})
    return _rated(name, items, [[1 - mark] for mark in _column(kept, "contains_hallucination")], dropped)


@_loader("coco_systems")
def _coco_systems(name: str, folder: Path, references: Mapping[str, list[str]]) -> SystemSet:
    """A file {image id: caption} of each system, beside the references."""
    own, systems, left_out = SETS[name].files[0], [], 0
    for file in sorted(folder.glob("*.json")):
        if file.name in (own, "expected.json"):
            continue
        captions = _read_texts(file)
        images = [image for image in captions if image in references]
        left_out += len(captions) - len(images)
        items = Items([captions[image] for image in images], images, [references[image] for image in images])
        systems.append(Scoring(file.stem, items))
    if not systems:
        fix = "put {image id: caption} there, a file per system"
        raise file_error(folder, f"has no file of a system beside {own}", fix)
    return SystemSet(name, tuple(systems), dropped={"captions of images without references": left_out})


@_loader("nice_pools")
def _nice_pools(name: str, folder: Path, pools: Mapping[str, list[str]]) -> PoolSet:
    """The chosen captions are compared with the references, as the captions of a system are."""
    images = [image for image, candidates in pools.items() for _ in candidates]
    captions = [caption for candidates in pools.values() for caption in candidates]
    return PoolSet(name, (Scoring("", Items(captions, images, _references(folder / REFERENCES, images))),))


# rated captions to train on


class Judgements(NamedTuple):
    """Captions of images, and the score that people gave each."""

    images: list[str]
    captions: list[str]
    scores: list[float]

    def correlation(self, predicted: Sequence[float]) -> float:
        """Kendall's tau-c of predicted scores with these; 0 where either are all equal."""
        tau = kendall_tau_c(predicted, self.scores)
        return 0.0 if tau.undefined else tau.value


def read_judgements(path: Path) -> Judgements:
    """The judgements of a table: rows with an image's id, a caption and a rating."""
    rated = read_ratings(path)
    table = rated.table
    problems = Problems()
    ids = table.ids()
    scores: list[float] = []
    for index, caption in enumerate(table.captions):
        values = rated.values[index]
        scores.append(float(values.mean()) if len(values) else math.nan)
        lacking = ""
        if not len(values):
            lacking = "finite score"
        if ids[index] is None:
            lacking = "image id"
        if caption is None or not caption.strip():
            lacking = "caption"
        if lacking:
            problems.add(file_error(path, f"has no {lacking}", index=table.place(index)))
    problems.raise_if_any()
    if len(set(scores)) < 2:
        problem = f"has {len(scores)} judgements with {len(set(scores))} different scores"
        raise file_error(path, problem, "a correlation needs at least two")
    return Judgements([str(image) for image in ids], [str(text) for text in table.captions], scores)
