"""The judged sets by name (`sets.toml`): the source, the folder and the reader of each."""

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

from capeval_core.errors import Problems, described, did_you_mean, file_error, setting, warn
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
from capeval_core.project import entry_points_of
from capeval_core.weights.hub import download


class SetEntry(NamedTuple):
    """A judged set of the field, as `sets.toml` has it."""

    name: str
    title: str
    summary: str
    files: Sequence[str]  # the first one has the rows
    form: str  # the files in words, for messages
    source: str = ""
    fields: Mapping[str, str] = {}  # kinds, of `_KINDS`, by column of the first file
    folders: Sequence[str] = ()  # other names that its folder has in releases
    media: str = "image"
    loader: str | Callable[..., JudgedSet] = ""  # "": the loader of its name
    rating: str = "rating"
    references: Sequence[int] = ()  # numbers of references, a scoring each
    columns: Mapping[str, Any] = {"tau_b": {"statistic": "tau_b"}, "tau_c": {"statistic": "tau_c"}}
    settings: Mapping[str, Sequence[str]] = {}
    released: Sequence[Sequence[str]] = ()  # other sets of files, as their authors publish them
    hub: Mapping[str, Any] = {}

    def advice(self) -> str:
        """Where the set comes from, and in which form it is read."""
        if self.hub:
            return f"`capeval fetch {self.name}` brings it; or put it into a folder in this form: {self.form}"
        origin = f"{self.title} comes from {self.source}. " if self.source else ""
        return f"{origin}Put it into a folder in this form: {self.form}"

    def rating_columns(self) -> dict[str, RatingColumn]:
        """The columns of its table of ratings, by title."""
        columns = {}
        for title, column in self.columns.items():
            columns[title] = RatingColumn(**column)
        return columns


_FILE = tomllib.loads(Path(__file__).with_name("sets.toml").read_text(encoding="utf-8"))
SETS: dict[str, SetEntry] = {name: SetEntry(name, **entry) for name, entry in _FILE.items()}
"""The sets of this package; other packages add theirs by entry points of `capeval.sets`."""
_GROUP = "capeval.sets"


def judged_sets() -> dict[str, SetEntry]:
    """Every judged set by name: this package's, then those of other packages.

    An entry point of `capeval.sets` is a `SetEntry`, whose `loader` is that of a set here, or a function of
    the entry, the folder and the rows of the first file.
    """
    sets = dict(SETS)
    for point in entry_points_of(_GROUP):
        try:
            entry = point.load()
        except Exception as error:  # whatever another package raises as it is imported
            warn(f"the judged set {point.name!r} ({point.value}) could not be loaded: {error}")
            continue
        if isinstance(entry, SetEntry):
            # Never in place of a set of ours: `judge flickr8k_expert` means the same on every machine.
            sets.setdefault(entry.name, entry)
        else:
            warn(f"the judged set {point.name!r} ({point.value}) is {described(entry)}: expected a SetEntry")
    return sets


def set_entry(name: str) -> SetEntry:
    """The entry of a set; ValueError where there is none."""
    sets = judged_sets()
    plain_name = name.lower().replace("-", "_")
    if plain_name not in sets:
        raise ValueError(f"unknown set {name!r}{did_you_mean(plain_name, sets)} (known: {', '.join(sets)})")
    return sets[plain_name]


def folder_of(entry: SetEntry, data: str | Path) -> Path:
    """The folder of a set: `data`, or the folder of its name in it, not that of another set; else
    `NAME/NAME`, maybe `@revision`, is a data set on the Hub."""
    path = Path(data)
    text = str(data)
    if not path.exists() and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        # A folder of this name would have come first: nothing is fetched in its place.
        path = _downloaded(entry, text)
    elif not path.is_dir():
        problem = "is a file, expected a folder" if path.exists() else "there is no such folder"
        raise file_error(path, problem, sentence=not path.exists())
    forms = [entry.files, *entry.released]
    if entry.name == "own":
        forms = [[name] for name in OWN_FILES]
    places = [path]
    for name in (entry.name, *entry.folders):
        places.append(path / name)
    folder = None
    # A folder of sets may hold a file of the same name as one of this set: the innermost folder counts.
    for place in places:
        for files in forms:
            if not _missing_files(place, files):
                folder = place
    if folder is None:
        missing = _missing_files(path, entry.files)
        problem = f"there is no {' and no '.join(missing)} of {entry.title} here, nor in {path / entry.name}"
        raise file_error(path, problem, entry.advice(), sentence=True)
    # Sets share names of files, such as `pairs.jsonl`: a table under the wrong title would be wrong silently.
    owner = _set_of_folder(folder)
    if owner is not None and owner is not entry and "own" not in (entry.name, owner.name):
        fix = f"`capeval judge {owner.name}` judges it; rename the folder if it holds {entry.title}"
        raise file_error(folder, f"is the folder of {owner.title}, not of {entry.title}", fix)
    return folder


def _set_of_folder(folder: Path) -> SetEntry | None:
    """The set that a folder is named after, if any."""
    name = folder.resolve().name.lower().replace("-", "_")
    for entry in SETS.values():
        if name in (entry.name, *entry.folders):
            return entry
    return None


def _downloaded(entry: SetEntry, dataset: str) -> Path:
    """The folder of a data set repository on the Hub."""

    def unavailable(name: str, why: str) -> Exception:
        problem = f"the data set could not be loaded from the Hub ({why})"
        return file_error(dataset, problem, "check the id, or name a folder", sentence=True)

    # References and draws lie in further JSON files, which the entry does not list.
    patterns = [*entry.files, "*.json"]
    return download(
        dataset, f"data set {dataset!r}", patterns, lambda _: [], error=unavailable, kind="dataset"
    )


def find_visuals(folder: Path, ids: Sequence[str]) -> dict[str, Path]:
    """The file of each id that has one in a folder, or inside it where a path names: an id is a file's name,
    with or without its extension, a path from that folder, or a COCO number."""
    files = Folder(folder)
    visuals: dict[str, Path] = {}
    for visual_id in ids:
        matches = files.find(visual_id)
        # Of several (`1.jpg` and `1.png`) none is taken: a guess would score another image without a word.
        if len(matches) == 1:
            visuals[visual_id] = folder / matches[0]
    # Some missing images are counted in the table; none at all is a wrong folder.
    if not visuals:
        content = f"it has {some_of(files.names.entries)}" if files.names.entries else "it is empty"
        problem = f"none of the {len(ids):,} ids ({some_of(ids)}) has a file here; {content}"
        raise file_error(folder, problem, sentence=True)
    return visuals


# readers

REFERENCES = "references.json"
_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "text": (str, "a text"),
    "list": (list, "a list"),
    "id": ((str, int), "a text or a whole number"),
}  # of `fields` in `sets.toml`


_Loader = TypeVar("_Loader", bound=Callable[..., JudgedSet])
_Entry = TypeVar("_Entry")
LOADERS: dict[str, Callable[..., JudgedSet]] = {}
"""By the `loader` of an entry, or its name; they take the entry, a folder, and the rows of the first file."""


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
        rows = _released_rows(entry, folder)
    elif entry.fields:
        rows = read_rows(first, entry.fields)
    else:
        rows = _read_texts(first, lists=True)
    load = entry.loader if callable(entry.loader) else LOADERS[entry.loader or entry.name]
    return load(entry, folder, rows, **settings)


def _released_rows(entry: SetEntry, folder: Path) -> pd.DataFrame:
    """The rows of the released form whose files are all in a folder."""
    for files in entry.released:
        if not _missing_files(folder, files):
            return read_released(folder, files)
    raise file_error(folder, f"has no files of {entry.title}", entry.advice())


def _missing_files(folder: Path, files: Iterable[str]) -> list[str]:
    """Those of these files that are not in a folder."""
    return [file for file in files if not (folder / file).is_file()]


# files


def read_rows(path: Path, fields: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a table by their names in messages; `fields` with their kinds are there."""
    problems = Problems()
    records = read_records(path, "caption", problems, fields)
    places = []
    for index, row in enumerate(records.rows):
        place = records.place(index)
        places.append(place)
        for field, kind in fields.items():
            types, noun = _KINDS[kind]
            # True is an int in Python, and not an id.
            if not isinstance(row.get(field), types) or isinstance(row[field], bool):
                hint = "" if field in row else did_you_mean(field, row)
                problem = f"{field}: {described(row.get(field), none='nothing')}{hint}"
                problems.add(file_error(path, problem, f"expected {noun}", index=place, sentence=True))
    problems.raise_if_any()
    columns = {}
    for name in records.fields:
        columns[name] = [row.get(name) for row in records.rows]
    # As objects: pandas would make floats of whole numbers beside a missing one, and 12 the id "12.0".
    return pd.DataFrame(columns, index=places, dtype=object)


def _read_texts(path: Path, *, lists: bool = False) -> dict[str, Any]:
    """A JSON object of texts, or of lists of texts, e.g. {image: [references]}."""
    noun = "a list of texts" if lists else "a text"
    content = load_json(path)
    problems = Problems()
    if not isinstance(content, dict) or not content:
        fix = f"expected an object with {noun} by id"
        raise file_error(path, described(content, none="null"), fix, sentence=True)
    for name, value in content.items():
        texts = [value]
        if lists:
            texts = value if isinstance(value, list) else []
        if not texts or not _are_texts(texts):
            where = f"key {name!r}"
            problem = described(value, none="null")
            problems.add(file_error(path, problem, f"expected {noun}", index=where, sentence=True))
    problems.raise_if_any()
    return content


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _references(path: Path, images: Iterable[str]) -> list[list[str]]:
    """The references of each image, of a file {image: references}."""
    return _references_of(_read_texts(path, lists=True), images, path)


def _references_of(
    references: Mapping[str, Sequence[str]], images: Iterable[str], path: Path
) -> list[list[str]]:
    """The references of each image, by image; FileError names the file that lacks some."""
    images = list(images)
    missing = sorted(set(images) - set(references))
    if missing:
        share = f"{len(missing):,} of {len(set(images)):,} images ({', '.join(map(repr, missing[:3]))})"
        raise file_error(path, f"{share} have no references", sentence=True)
    return [list(references[image]) for image in images]


# ratings


def _column(rows: pd.DataFrame, name: str) -> list[Any]:
    # A column that is in no row counts as missing ratings, with their reason, as empty cells do.
    return rows[name].tolist() if name in rows else [None] * len(rows)


def _collapsed(texts: Iterable[str]) -> list[str]:
    """Texts with one space between words."""
    return [" ".join(text.split()) for text in texts]


def _all_collapsed(lists: Iterable[Iterable[str]]) -> list[list[str]]:
    return [_collapsed(texts) for texts in lists]


def _one_each(values: Iterable[Any]) -> list[list[Any]]:
    """The ratings of items that have one each."""
    return [[value] for value in values]


def _rated(
    entry: SetEntry,
    items: Items,
    ratings: Iterable[Iterable[Any]],
    dropped: Counter[str],
    noun: str = "ratings",
) -> RatedSet:
    """Items with the ratings of each, of which every one is a row; those that are not numbers are dropped.

    noun: what the ratings are called where some are dropped.
    """
    values_of_items = []
    counts = []
    for of_item in ratings:
        numbers_of_item = numbers(of_item, noun, dropped)
        values_of_items.append(numbers_of_item)
        counts.append(len(numbers_of_item))
    item = np.repeat(np.arange(len(counts)), counts)  # (ratings,)
    values = np.concatenate([*values_of_items, []])  # numpy concatenates no empty list
    finite = np.isfinite(values)
    return RatedSet(
        entry.name,
        (Scoring("", items),),
        item[finite],
        {"rating": values[finite]},
        entry.rating_columns(),
        dropped=dropped,
    )


@_loader("captions")
def _captions(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Captions with one rating each, with references in their rows or in a file."""
    images = rows.image.tolist()
    if "references" in entry.fields:
        references = rows.references.tolist()
    else:
        references = _references(folder / REFERENCES, images)
    items = Items(rows.candidate.tolist(), images, references)
    ratings = _one_each(_column(rows, entry.rating))
    return _rated(entry, items, ratings, Counter(), f"{entry.rating}s")


@_loader("flickr8k_expert")
def _flickr8k_expert(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Candidates that are a reference of their image are left out."""
    captions = _collapsed(rows.candidate)
    texts = rows.references if "references" in rows else _references(folder / REFERENCES, rows.image)
    # As CLIPScore's script of this table does, before candidates are looked for among the references.
    references = _all_collapsed(texts)
    counted = []
    for row, caption in enumerate(captions):
        if caption not in references[row]:  # else it would agree perfectly with itself
            counted.append(row)
    left_out = int(rows.ratings.map(len).sum() - rows.ratings.iloc[counted].map(len).sum())
    dropped = Counter({"ratings of a candidate that is a reference of its image": left_out})
    items = Items(captions, rows.image.tolist(), references).take(counted)
    return _rated(entry, items, rows.ratings.iloc[counted], dropped)


@_loader("flickr8k_cf")
def _flickr8k_cf(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """The rating is the share of CrowdFlower's votes that say yes."""
    dropped = Counter[str]()
    if "ratings" in rows:  # of the released file, which holds shares and the references that are left
        references = _all_collapsed(rows.references)
        items = Items(_collapsed(rows.candidate), rows.image.tolist(), references)
        return _rated(entry, items, rows.ratings, dropped)
    if "references" in rows:
        captions = rows.candidate
        texts = rows.references
    else:
        captions = _captions_of(folder / "captions.json", rows.caption_id)
        texts = _references(folder / REFERENCES, rows.image)
    items = Items(_collapsed(captions), rows.image.tolist(), _all_collapsed(texts))
    yes = numbers(rows.n_yes, "votes (n_yes)", dropped)
    no = numbers(rows.n_no, "votes (n_no)", dropped)
    with np.errstate(invalid="ignore"):  # a candidate without votes has no share
        shares = yes / (yes + no)
    # The votes were counted as missing already: a share that is NaN would be counted a second time.
    ratings = [share[~np.isnan(share)] for share in shares.reshape(-1, 1)]
    return _rated(entry, items, ratings, dropped)


def _captions_of(path: Path, caption_ids: Iterable[str]) -> list[str]:
    """The captions with these ids, of a file {caption_id: caption}."""
    captions = _read_texts(path)
    unknown = sorted(set(caption_ids) - set(captions))
    if unknown:
        problem = f"has no caption of {', '.join(map(repr, unknown[:3]))}"
        raise file_error(path, problem, "expected {caption_id: caption}")
    return [captions[caption_id] for caption_id in caption_ids]


@_loader("composite")
def _composite(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """The candidate of slot 0 is taken out of the references of all three candidates of its image."""
    path = folder / REFERENCES
    references = {}
    try:
        for key, of_image in load_json(path).items():
            texts = of_image["references"]
            human = of_image.get("human_candidate_index")
            # A negative index would take the last reference out, silently.
            if not isinstance(texts, list) or not (human is None or 0 <= human < len(texts)):
                raise TypeError(f"key {key!r}")
            references[key] = [text for index, text in enumerate(texts) if index != human]
    except (AttributeError, KeyError, TypeError) as error:
        form = "{subset/image: {references, human_candidate_index}}"
        raise file_error(path, f"is not {form} ({error})") from error
    # An image is named within its subset: of Flickr8k, Flickr30k or COCO.
    images = (rows.subset + "/" + rows.image).tolist()
    items = Items(rows.candidate.tolist(), images, _references_of(references, images, path))
    return _rated(entry, items, _one_each(_column(rows, "rating")), Counter())


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
        files = []
        for name in OWN_FILES:
            if (folder / name).is_file():
                files.append(name)
        if len(files) > 1:
            raise file_error(folder, f"holds {' and '.join(files)}", "name one of them with --data")
        path = folder / files[0]
    rated = read_ratings(path, options)
    table = rated.table
    find = None if visuals is None else Folder(visuals).find
    ids = table.ids(find)
    problems = Problems()
    for index, (image, caption) in enumerate(zip(ids, table.captions, strict=True)):
        if image is None:
            problem = "the id is missing, or not a text or whole number"
            problems.add(file_error(path, problem, index=table.place(index), sentence=True))
        if caption is None:
            fix = f"name the column of captions with {setting('caption_column', 'NAME')}"
            problems.add(file_error(path, "has no caption", fix, index=table.place(index)))
    problems.raise_if_any()
    images = []
    captions = []
    places = []
    item = []  # of each rating, the record that it is about
    for index, caption in enumerate(table.captions):
        images.append(str(ids[index]))
        captions.append(str(caption))
        places.append(f"{path.name} {table.place(index)}")
        item += [index] * len(rated.values[index])
    # A column of the table is nearer to its captions than a file beside it.
    references = table.references
    if references is None and (folder / REFERENCES).exists():
        references = _references(folder / REFERENCES, images)
    items = Items(captions, images, references, places)
    ratings = {"rating": np.concatenate([*rated.values, []])}
    systems = None
    if table.systems is not None:
        systems = [table.systems[index] for index in item]
    notes = (rated.sentence(), *table.file.notes)
    judged = RatedSet(
        "own",
        (Scoring("", items),),
        np.array(item, dtype=np.int64),
        ratings,
        SETS["own"].rating_columns(),
        dropped=rated.dropped,
    )
    judged = replace(judged, systems=systems, notes=notes)
    warn_of_other_images(path, judged)
    return judged.with_systems()


@_loader("thumb")
def _thumb(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Pearson's correlation with precision, recall and the total; of a metric's own parts with theirs."""
    dropped = Counter[str]()
    columns = []
    for name in ("P", "R", "human_score"):
        columns.append(numbers(_column(rows, name), name, dropped))
    precision, recall, total = columns
    # All columns of a table are of the same captions, so that their coefficients can be compared.
    rated = np.flatnonzero(np.isfinite(columns).all(axis=0))
    ratings = {"P": precision[rated], "R": recall[rated], "human_score": total[rated]}
    references = _references(folder / REFERENCES, rows.seg_id)
    items = Items(rows.hyp.tolist(), rows.image.tolist(), references)
    # The paper prints both, since metrics rank captions by people lower than people do.
    by_people = rows.SYS.iloc[rated] == "Human"
    return RatedSet(
        entry.name,
        (Scoring("", items),),
        rated,
        ratings,
        entry.rating_columns(),
        subsets=np.where(by_people, "people", "without human captions").tolist(),
        dropped=dropped,
    )


@_loader("longcap_arena")
def _longcap_arena(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """A file of captions for each perspective, with one rating each."""
    tables = {}
    for file in entry.files:
        perspective = file.split(".")[1]  # e.g. of `test.desc.jsonl`
        tables[perspective] = read_rows(folder / file, entry.fields)
    joined = pd.concat(tables)  # whose first level of the index is the perspective
    items = Items(joined.cand.tolist(), joined.file_name.tolist(), joined.refs.tolist())
    rated = _rated(entry, items, _one_each(_column(joined, "score")), Counter(), "scores")
    perspectives = joined.index.get_level_values(0)
    return replace(rated, subsets=perspectives[rated.item].tolist())


@_loader("vatex_eval")
def _vatex_eval(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """Without references, with the first one and with nine; coefficients are means over the annotators."""
    videos = rows.video.tolist()
    dropped = Counter[str]()
    items = Items(rows.candidate.tolist(), videos, _references(folder / REFERENCES, videos))
    ratings = [numbers(of_caption, "ratings", dropped) for of_caption in rows.ratings]
    annotators = max(map(len, ratings))
    rated = []  # captions that all annotators rated: a coefficient is computed by annotator
    ratings_of_rated = []
    for row, of_caption in enumerate(ratings):
        if len(of_caption) < annotators:
            dropped["captions that not all annotators rated"] += 1
        elif np.isfinite(of_caption).all():  # the others were counted by `numbers`
            rated.append(row)
            ratings_of_rated.append(of_caption)
    matrix = np.array(ratings_of_rated).reshape(-1, annotators)  # (0, annotators) of none
    return RatedSet(
        entry.name,
        _first_references(items, (0, 1, 9)),
        np.array(rated, dtype=np.int64),
        {"rating": matrix},
        entry.rating_columns(),
        by_annotator=True,
        dropped=dropped,
    )


def _first_references(items: Items, counts: Sequence[int]) -> tuple[Scoring, ...]:
    """A scoring with each number of the first references of each item."""
    names = {0: "no reference", 1: "1 reference"}
    scorings = []
    for count in counts:
        positions = []
        for texts in items.references or []:
            positions.append(range(min(count, len(texts))))
        # The same items in each: what needs no references is scored once for all of them.
        scorings.append(Scoring(names.get(count, f"{count} references"), items, positions))
    return tuple(scorings)


# pairs


def _pairs(
    rows: pd.DataFrame, columns: tuple[str, str], references: Sequence[list[str]], visual: str = "image"
) -> Items:
    """The first and the second caption of each pair, one after the other."""
    captions = rows[[*columns]].to_numpy().ravel().tolist()
    return Items(captions, rows[visual].repeat(2).tolist(), _twice(references))


def _twice(entries: Iterable[_Entry]) -> list[_Entry]:
    """The entries of pairs for their captions: each twice, one after the other."""
    doubled = []
    for entry in entries:
        doubled += [entry, entry]
    return doubled


@_loader("foil")
def _foil(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> PairedSet:
    """Right captions against foils; of paragraphs about a video the scores of sentences are averaged."""
    items = _pairs(rows, ("true_caption", "foil_caption"), rows.references, entry.media)
    scorings: tuple[Scoring, ...] = (Scoring("accuracy", items),)
    if entry.references:
        scorings = _first_references(items, entry.references)
    # Paragraphs are numbered within their video.
    paragraphs = (rows.video + "/" + rows.paragraph).tolist() if "paragraph" in rows else None
    first_preferred = [0] * len(rows)  # the right caption is the first of each pair
    return PairedSet(
        entry.name,
        scorings,
        (first_preferred,) * len(scorings),
        rows[entry.media].tolist(),
        by_scoring=True,
        paragraphs=paragraphs,
    )


@_loader("pascal50s")
def _pascal50s(
    entry: SetEntry, folder: Path, rows: pd.DataFrame, labels: str = "label", draws: str = "draws"
) -> PairedSet:
    """labels: those of the pairs that count. draws: `draws` of references, or `fixed`: references5.json."""
    references = _references(folder / "references50.json", rows.image)
    path = folder / ("references5.json" if draws == "fixed" else "draws.json")
    if draws == "fixed":
        positions_of_draws = [_indices(path, load_json(path), references)]
    elif path.exists():
        positions_of_draws = []
        for draw in load_json(path):
            positions_of_draws.append(_indices(path, draw, references))
    else:
        positions_of_draws = _drawn(references)
    labelled = np.flatnonzero(pd.Series(_column(rows, labels), dtype=object).isin(["a", "b"]))
    if not len(labelled):
        raise file_error(folder / "pairs.jsonl", f"no pair has {labels!r} a or b", sentence=True)
    pairs = rows.iloc[labelled]
    items = _pairs(pairs, ("caption_a", "caption_b"), [references[row] for row in labelled])
    # Drawn for all pairs and selected afterwards: a pair has the same references whatever labels count.
    draws_of_pairs = []
    for draw in positions_of_draws:
        draws_of_pairs.append([draw[row] for row in labelled])
    scorings = _draws(items, draws_of_pairs)
    preferred = (pairs[labels] == "b").astype(int).tolist()
    return PairedSet(
        entry.name,
        scorings,
        (preferred,) * len(scorings),
        pairs.image.tolist(),
        pairs.category.tolist(),
        dropped={f"pairs without {labels}": len(rows) - len(labelled)},
    )


@_loader("abstract50s")
def _abstract50s(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> PairedSet:
    """The label is the majority of the votes; a tied vote is decided at random, as part of a draw."""
    references = rows.references.tolist()
    path = folder / "draws.json"
    preferred = []
    draws = []
    if path.exists():
        for draw in load_json(path):
            draws.append(_indices(path, draw["reference_indices"], references))
            labels = draw.get("labels", [])
            if len(labels) != len(rows) or not set(labels) <= {"b", "c"}:
                problem = f"has {len(labels)} labels, expected b or c for each of {len(rows)} pairs"
                raise file_error(path, problem)
            preferred.append((np.array(labels) == "c").astype(int).tolist())
    else:
        # Pair by pair: they may have unequally many votes.
        signs = np.array([int(majority(votes)) for votes in rows.votes])
        draws = _drawn(references)
        # A generator of its own, so that the draws of references are the same whatever the votes are.
        rng = np.random.default_rng(0)
        for _ in draws:
            # A coin for every pair, not only the tied ones: another vote moves no other pair's coin.
            coins = rng.integers(0, 2, len(signs))
            preferred.append(np.where(signs == 0, coins, signs < 0).tolist())
    items = _pairs(rows, ("caption_b", "caption_c"), references)
    return PairedSet(entry.name, _draws(items, draws), tuple(preferred), rows.image.tolist())


def _drawn(references: Sequence[list[str]]) -> list[list[list[int]]]:
    """Five draws of five distinct references for each pair, with a fixed seed."""
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(5):
        draw = []
        for texts in references:
            count = len(texts)
            draw.append(rng.choice(count, min(5, count), replace=False).tolist())
        draws.append(draw)
    return draws


def _draws(items: Items, draws: list[list[list[int]]]) -> tuple[Scoring, ...]:
    """A scoring of pairs for each draw, which holds the positions of references of each pair."""
    scorings = []
    for number, draw in enumerate(draws, start=1):
        scorings.append(Scoring(f"draw {number}", items, _twice(draw)))
    return tuple(scorings)


def _indices(path: Path, draw: Any, references: Sequence[list[str]]) -> list[list[int]]:
    """A draw's indices, checked against the references of each pair."""
    if not isinstance(draw, list) or len(draw) != len(references):
        entries = len(draw) if isinstance(draw, list) else "no"
        problem = f"has {entries} entries of {len(references)} pairs"
        raise file_error(path, problem, "expected a list of indices per pair")
    for number, (indices, texts) in enumerate(zip(draw, references, strict=True)):
        for index in indices:
            # A negative index would count from the end, and be some other reference.
            if not isinstance(index, int) or not 0 <= index < len(texts):
                problem = f"has {indices}, of {len(texts)} references"
                raise file_error(path, problem, index=f"pair {number}")
    return draw


# others


@_loader("hat")
def _hat(entry: SetEntry, folder: Path, rows: pd.DataFrame) -> RatedSet:
    """A hallucination is a rating of 0, its absence of 1."""
    marked = []  # rows that say whether there is one
    ratings = []
    for row, mark in enumerate(_column(rows, "contains_hallucination")):
        if isinstance(mark, bool):
            marked.append(row)
            # The better caption has the higher rating, as in other sets.
            ratings.append([1 - mark])
    items = Items(rows.caption.tolist(), rows.image.tolist(), rows.references.tolist()).take(marked)
    dropped = Counter({"captions without contains_hallucination": len(rows) - len(marked)})
    return _rated(entry, items, ratings, dropped)


@_loader("coco_systems")
def _coco_systems(entry: SetEntry, folder: Path, references: Mapping[str, list[str]]) -> SystemSet:
    """A file {image id: caption} of each system, next to the references."""
    file_of_references = entry.files[0]
    systems = []
    left_out = 0
    for file in sorted(folder.glob("*.json")):
        if file.name in (file_of_references, "expected.json"):
            continue
        texts = _read_texts(file)
        images = [image for image in texts if image in references]  # a system may have captioned more
        left_out += len(texts) - len(images)
        captions = []
        references_of_images = []
        for image in images:
            captions.append(texts[image])
            references_of_images.append(references[image])
        systems.append(Scoring(file.stem, Items(captions, images, references_of_images)))
    if not systems:
        fix = "put {image id: caption} there, a file per system"
        raise file_error(folder, f"has no file of a system beside {file_of_references}", fix)
    return SystemSet(entry.name, tuple(systems), dropped={"captions of images without references": left_out})


@_loader("nice_pools")
def _nice_pools(entry: SetEntry, folder: Path, pools: Mapping[str, list[str]]) -> PoolSet:
    """The chosen captions are compared with the references, as the captions of a system are."""
    images = []
    captions = []
    for image, candidates in pools.items():
        images += [image] * len(candidates)
        captions += candidates
    items = Items(captions, images, _references(folder / REFERENCES, images))
    return PoolSet(entry.name, (Scoring("", items),))


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
    images: list[str] = []
    captions: list[str] = []
    scores: list[float] = []
    for index, caption in enumerate(table.captions):
        images.append(str(ids[index]))
        captions.append(str(caption))
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
    return Judgements(images, captions, scores)
