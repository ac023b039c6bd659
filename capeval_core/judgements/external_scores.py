"""External scores: of the items of a judged set, or to be joined with ratings."""

from __future__ import annotations

import io
import math
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capeval_core.errors import Problems, described, file_error
from capeval_core.inputs import names
from capeval_core.inputs.columns import value_at
from capeval_core.inputs.files import contents, load_json, some_of
from capeval_core.inputs.joining import Names
from capeval_core.inputs.records import KEY, VALUE, Records
from capeval_core.judgements.correlation import Doubles
from capeval_core.judgements.protocols import (
    STATISTICS,
    Items,
    JudgedSet,
    PairedSet,
    RatedSet,
    RatingColumn,
    Scored,
    Scoring,
)
from capeval_core.judgements.ratings import (
    CaptionTable,
    RatingOptions,
    holds_numbers,
    number_of,
    read_ratings,
    read_table,
    warn_of_other_images,
)

FORMS = (
    "a .npz or .json with an array of numbers per metric, one per caption in the order of the set; of pairs "
    "two columns, or NAME__a and NAME__b; NAME__refs4 is of the scoring with 4 references"
)
_UNKNOWN = "ratings of an unknown image id"
_SEVERAL = "ratings without a caption of an image with several scores"


class _File(NamedTuple):
    """The arrays of a file by label, and the ids, captions and systems that they are of where it has them."""

    arrays: dict[str, Any]
    ids: list[str] | None = None
    captions: Sequence[str | None] | None = None
    systems: list[str] | None = None
    notes: Sequence[str] = ()


def _read(path: Path, options: RatingOptions | None = None) -> _File:
    """Scores of a .npz, of `capeval score --json`, {metric: [scores]}, {id: score}, [scores], or a table."""
    if path.suffix == ".npz":
        data = io.BytesIO(contents(path))
        try:
            with np.load(data, allow_pickle=False) as file:  # a pickled array would run code
                return _File(dict(file))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise file_error(path, f"cannot be read ({error})") from error
    if path.suffix != ".json":
        return _table(path, options or RatingOptions())
    content = load_json(path)
    if isinstance(content, list):
        has_objects = any(isinstance(row, dict) for row in content)
        return _table(path, options or RatingOptions()) if has_objects else _File({path.stem: content})
    if not isinstance(content, dict) or not content:
        fix = "expected a file of `capeval score --json`, {id: score}, a list, or a table"
        raise file_error(path, described(content, none="null"), fix, sentence=True)
    if isinstance(content.get("systems"), list):
        return _of_systems(path, content["systems"])
    if "scores" not in content:  # not a file of ours: {metric: [scores]}, or {id: score}
        # Ids have a number each, metrics a list each.
        if any(isinstance(values, list) for values in content.values()):
            return _File(content)
        return _File({path.stem: list(content.values())}, list(content))
    label = str(content.get("metric", path.stem))
    values = content["scores"]
    ids = content.get("ids")
    captions = content.get("captions")
    for name, column in {"ids": ids, "captions": captions}.items():
        if column is not None and not (isinstance(column, list) and len(column) == len(values)):
            raise file_error(path, f"{name} and scores are not equally many", sentence=True)
    return _File({label: values}, None if ids is None else list(map(str, ids)), captions)


def _of_systems(path: Path, entries: Sequence[Any]) -> _File:
    """The scores of several systems or metrics, as `capeval score --json` writes them."""
    arrays: defaultdict[str, list[Any]] = defaultdict(list)
    ids: list[str] = []
    captions: list[str | None] = []
    systems: list[str] = []
    try:
        for entry in entries:
            ids += map(str, entry["ids"])
            captions += entry["captions"]
            systems += [str(entry["system"])] * len(entry["ids"])
            for result in entry["results"]:
                arrays[result["metric"]] += result["scores"]
    except (KeyError, TypeError) as error:
        raise file_error(path, f"is not a file of `capeval score --json` (no {error})") from error
    for column in (captions, *arrays.values()):
        if len(column) != len(ids):
            raise file_error(path, "ids and scores are not equally many", sentence=True)
    return _File(dict(arrays), ids, captions, systems if len(entries) > 1 else None)


def _table(path: Path, options: RatingOptions) -> _File:
    """The scores of a table: a column `score`, or one of each metric."""
    # What the user names may be a column of the other file, of ratings.
    table = read_table(path, options, _score_columns)
    ids = None
    if table.file.id_columns:
        ids = []
        for index, image_id in enumerate(table.ids()):
            if image_id is None:
                raise file_error(path, "has no id", index=table.place(index))
            ids.append(image_id)
    arrays: dict[str, list[Any]] = {}
    for column in table.columns:
        label = path.stem if column == VALUE or names.is_name(column, "rating") else column
        arrays[label] = [_cell(value_at(row, column)) for row in table.rows]
    has_captions = any(caption is not None for caption in table.captions)
    captions = table.captions if has_captions else None
    notes = (table.sentence("score"), *table.file.notes)
    return _File(arrays, ids, captions, table.systems, notes)


def _score_columns(records: Records) -> list[str]:
    """The columns of scores: those named so, else all numbers that have no other role."""
    if VALUE in records.fields:
        return [VALUE]
    scores = names.levels("rating")[-1]
    for name in records.fields:
        if names.plain(name) in scores:
            return [name]
    columns = []
    for name in records.fields:
        has_role = names.is_rating(name)
        for role in ("id", "split", "system"):
            has_role = has_role or names.is_name(name, role)
        # A part of a metric is `METRIC.PART`; pandas names the numbers of rows `Unnamed: 0`.
        if has_role or "." in name or name == KEY or not name or name.startswith("Unnamed"):
            continue
        if holds_numbers(records, name):
            columns.append(name)
    if not columns:
        listed = some_of(name for name in records.fields if name != KEY)
        fix = "expected a column score, or one of numbers for each metric"
        raise file_error(records.path, f"has {listed}: none of these holds scores", fix)
    return columns


def _cell(value: object) -> object:
    """A cell as a number where its text is one, None where it is empty."""
    if not isinstance(value, str):
        return value
    if not value.strip() or value.strip().lower() in ("nan", "null", "none"):
        return None
    number = number_of(value)
    return value if number is None else number


def _numbers(path: Path, label: str, values: object, ids: Sequence[str] | None = None) -> Doubles:
    """Scores of any shape, NaN for None."""
    array = np.atleast_1d(np.asarray(values, dtype=object))
    problems = Problems()
    for place, value in np.ndenumerate(array):  # of objects, so that a text is refused, and not parsed
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        # NaN passes, as no score; infinity does not.
        if value is not None and not (is_number and not abs(value) > sys.float_info.max):
            index = f"{label}[{place[0]}]" if ids is None else f"id {ids[place[0]]!r}"
            fix = "scores are numbers, or null"
            problems.add(file_error(path, f"is {described(value)}", fix, index=index))
    problems.raise_if_any()
    return array.astype(np.float64)


def read_scores(path: Path, judged: JudgedSet) -> dict[str, list[Scored]]:
    """By label, the scores of each scoring of a set; those that do not name a scoring are of all."""
    file = _read(path)
    problems = Problems()
    if file.ids is not None and file.captions is None:
        fix = "write a list in the order of the set, or the file of `capeval score --json`"
        raise file_error(path, "has scores by id, of which a caption cannot be told", fix)
    _check_captions(path, file.captions, judged)
    scores: dict[str, dict[str | None, Doubles]] = {}  # by label and scoring; None: of all
    scoring_names = {scoring.name for scoring in judged.scorings}
    for name, label, scoring_name, values in _labelled(file.arrays, scoring_names):
        if label in ("rating", "ratings", "human_score"):  # a table of a set with a column of scores added
            continue
        counts = set()
        for scoring in judged.scorings:
            if scoring_name in (None, scoring.name):
                counts.add(len(scoring.items))
        array = _numbers(path, name, values)
        # Pairs may have two columns; their captions are a set's items one after the other.
        of_pairs = isinstance(judged, PairedSet) and array.shape[1:] == (2,)
        if (array.ndim > 1 and not of_pairs) or counts != {array.size}:
            shape = " x ".join(f"{extent:,}" for extent in array.shape)
            expected = " or ".join(f"{count:,}" for count in sorted(counts))
            fix = f"{judged.name} has {expected} captions"
            problems.add(file_error(path, f"{shape} scores", fix, index=name, sentence=True))
            continue
        scores.setdefault(label, {})[scoring_name] = array.reshape(-1)
    problems.raise_if_any()
    if not scores:
        raise file_error(path, "holds no scores", f"expected {FORMS}")
    scored: dict[str, list[Scored]] = {}
    for label, by_scoring in scores.items():
        scored[label] = []
        for scoring in judged.scorings:
            missing = np.full(len(scoring.items), math.nan)
            values = by_scoring.get(scoring.name, by_scoring.get(None, missing))
            scored[label].append(Scored(values, signature=f"scores:{path.name}"))
    return scored


def _check_captions(path: Path, captions: Sequence[str | None] | None, judged: JudgedSet) -> None:
    """Refuse as many captions as the set has that are others, or in another order."""
    # Other numbers of captions are refused by their number, in words that say more.
    words_of_file = [str(caption).split() for caption in captions or []]
    first_difference = None
    for scoring in judged.scorings:
        if len(scoring.items) != len(words_of_file):
            continue
        words_of_set = [caption.split() for caption in scoring.items.captions]
        if words_of_set == words_of_file:
            return
        for row, words in enumerate(words_of_set):
            if first_difference is None and words != words_of_file[row]:
                first_difference = (row, words)
    if first_difference is not None:
        row, words = first_difference
        problem = f"{' '.join(words_of_file[row])!r}, {judged.name} has {' '.join(words)!r} there"
        raise file_error(
            path, problem, "score its captions in its order", index=f"caption {row}", sentence=True
        )


def _labelled(arrays: Mapping[str, Any], scorings: set[str]) -> Iterator[tuple[str, str, str | None, Any]]:
    """Arrays with name, label of their rows and scoring; NAME__a and NAME__b become two columns of NAME."""
    joined = dict(arrays)
    for first in arrays:
        name = first.removesuffix("__a")
        if name != first and f"{name}__b" in arrays:
            first_side = joined.pop(first)
            second_side = joined.pop(f"{name}__b")
            joined[name] = first_side  # of another length than the second, which is refused by its length
            if np.shape(first_side) == np.shape(second_side):
                joined[name] = np.stack((first_side, second_side), axis=-1)
    for name, values in joined.items():
        label, _, suffix = name.rpartition("__")
        match = re.fullmatch(r"refs(\d+)", suffix)
        if match is not None:
            suffix = f"{match[1]} reference{'' if match[1] == '1' else 's'}"
        if label and suffix in scorings:
            yield name, label, suffix, values
        else:
            yield name, name, None, values


# ratings of one's own


def join_ratings(
    scores: Path, ratings: Path, options: RatingOptions | None = None
) -> tuple[RatedSet, dict[str, list[Scored]]]:
    """The ratings of a file, each a row, and by label the scores of the captions that they are about.

    Both are told apart by the image's id, and by the caption or the system where an image has several.
    Without ids in the scores' file, rows are taken in order. Ratings that are missing or no numbers, and rows
    that have no score, are left out and counted. Raises FileError where nothing is left, and where it cannot
    be told which caption a rating is about.
    """
    options = options or RatingOptions()
    file = _read(scores, options)
    # A metric's scores are numbers by caption here; only judged sets have pairs and scorings.
    arrays = {}
    for label, array in file.arrays.items():
        arrays[label] = _one_each(scores, label, array, file.ids)
    counts = {len(array) for array in arrays.values()}
    if not counts:
        raise file_error(scores, "holds no scores", f"expected {FORMS}")
    if len(counts) > 1:
        raise file_error(scores, "its metrics have not equally many scores", sentence=True)
    (count,) = counts
    rated = read_ratings(ratings, options)
    table = rated.table
    dropped = rated.dropped
    places: Sequence[int | str] = range(count)
    ids: Sequence[str | None] = []
    if file.ids is not None:
        captions = _Captions(file, arrays)
        ids = table.ids(captions.find)
        captions.refuse_several(scores, table, ids)
        places = [captions.place_of(index, table, image_id) for index, image_id in enumerate(ids)]
    elif len(table.rows) != count:
        problem = f"has {len(table.rows):,} rows for {count:,} scores without ids"
        raise file_error(ratings, problem, "give as many, or scores with ids")
    item: list[int] = []  # of each rating, the caption that it is about
    values: list[float] = []
    systems: list[str] = []
    for index, place in enumerate(places):
        if isinstance(place, str):  # the reason why there is no place
            dropped[place] += 1
            continue
        item += [place] * len(rated.values[index])
        values += rated.values[index].tolist()
        if table.systems is not None:
            systems += [table.systems[index]] * len(rated.values[index])
        elif file.systems is not None:
            systems += [file.systems[place]] * len(rated.values[index])
    if not item:
        problem = f"has no rating of a scored caption, in {len(table.rows):,} rows"
        if file.ids is not None and set(places) == {_UNKNOWN}:
            listed = some_of(str(image_id) for image_id in ids)
            problem += f" ({listed}; scores are of {some_of(file.ids)})"
        reasons = []
        for reason, number in dropped.items():
            reasons.append(f"{number:,} {reason}")
        fix = "; add a column caption, or system" if _SEVERAL in dropped else ""
        raise file_error(ratings, problem, f"left out are {', '.join(reasons)}{fix}")
    dropped["scores without a rating"] = count - len(set(item))
    # Without ids every caption counts as of an image of its own: intervals take rows for independent.
    images = file.ids or [str(index) for index in range(count)]
    captions_of_scores = [caption or "" for caption in file.captions or [""] * count]
    columns = {}
    for name in STATISTICS:
        columns[name] = RatingColumn(name)
    judged = RatedSet(
        "own ratings",
        (Scoring("", Items(captions_of_scores, images)),),
        np.array(item, dtype=np.int64),
        {"rating": np.array(values, dtype=np.float64)},
        columns,
        systems=systems or None,
        dropped=dropped,
        notes=(*file.notes, rated.sentence(), *table.file.notes),
    )
    warn_of_other_images(ratings, judged)
    scored = {}
    for label, array in arrays.items():
        scored[label] = [Scored(array)]
    return judged.with_systems(), scored


def _one_each(path: Path, label: str, values: object, ids: Sequence[str] | None) -> Doubles:
    """A number for each caption. Raises FileError."""
    array = _numbers(path, label, values, ids)
    if array.ndim > 1:
        raise file_error(path, "has lists of scores", "write one number for each caption")
    return array


def read_scores_of(path: Path, ids: Sequence[str]) -> list[float]:
    """Scores of captions with these ids of images, from any file of scores of one metric. NaN of a caption
    that has none; without ids in the file they are in order."""
    file = _read(path)
    if len(file.arrays) > 1:
        raise file_error(path, f"holds {len(file.arrays)} arrays ({some_of(file.arrays)})", "write one")
    ((label, array),) = file.arrays.items()
    values: list[float] = _one_each(path, label, array, file.ids).tolist()
    if file.ids is None:
        if len(values) != len(ids):
            problem = f"has {len(values):,} scores without ids for {len(ids):,} captions"
            raise file_error(path, problem, "give as many, or ids")
        return values
    names_of_images = Names(ids)
    of_image: defaultdict[str, list[float]] = defaultdict(list)
    for image_id, value in zip(file.ids, values, strict=True):
        images = names_of_images.find(image_id)
        if images:  # a file of scores may be of a larger set
            of_image[images[0]].append(value)
    if not of_image:
        problem = f"has no score of a caption ({some_of(file.ids)}; captions are of {some_of([*ids])})"
        raise file_error(path, problem)
    scores = []
    for image in ids:  # captions of one image are in order
        scores.append(of_image[image].pop(0) if of_image[image] else math.nan)
    return scores


class _Captions:
    """The captions of a file of scores, by the ids of their images."""

    def __init__(self, file: _File, arrays: Mapping[str, Doubles]) -> None:
        self.file = file
        columns = [values.tolist() for values in arrays.values()]
        self.scores = list(zip(*columns, strict=True))  # of each caption, by all metrics
        self.of_image: defaultdict[str, list[int]] = defaultdict(list)
        for place, image in enumerate(file.ids or []):
            self.of_image[image].append(place)
        self.find = cache(Names(self.of_image).find)  # an image has many ratings

    def refuse_several(self, path: Path, table: CaptionTable, ids: Sequence[str | None]) -> None:
        """Refuse ratings of several captions, or systems, of an image where the scores do not name theirs."""
        if self.file.captions is not None:
            return
        texts: list[str | None] = []
        for text in table.captions:
            texts.append(None if text is None else " ".join(text.split()))
        for noun, marks, has_marks in (
            ("captions", texts, False),
            ("systems", table.systems or [], self.file.systems is not None),
        ):
            if has_marks:
                return
            first: dict[str, str] = {}
            for image_id, mark in zip(ids, marks, strict=False):
                if image_id is None or mark is None or len(self.find(image_id)) != 1:
                    continue
                if first.setdefault(image_id, mark) != mark:
                    problem = (
                        f"rates several {noun} of {image_id!r}, and {path} does not say which has a score"
                    )
                    fix = f"give scores with their {noun}: a table with image_id, {noun[:-1]} and score"
                    raise file_error(table.path, problem, fix, sentence=True)

    def place_of(self, index: int, table: CaptionTable, image_id: str | None) -> int | str:
        """The score that a rating is about, or why none is; an id may lack the extension of its file."""
        if image_id is None:
            return "ratings without an image id"
        images = self.find(image_id)
        if len(images) != 1:
            return _UNKNOWN
        places = self.of_image[images[0]]
        if table.systems is not None and self.file.systems is not None:
            system = table.systems[index]
            places = [place for place in places if self.file.systems[place].strip() == system]
            if not places:
                return "ratings of a system that has no score of the image"
        caption = table.captions[index]
        if caption is None or self.file.captions is None:
            return _SEVERAL if len(places) > 1 else places[0]
        words = caption.split()
        places_of_caption = []
        scores = set()
        for place in places:
            # Blanks may differ between the two files.
            if str(self.file.captions[place]).split() == words:
                places_of_caption.append(place)
                scores.add(repr(self.scores[place]))  # as texts: NaN is not equal to itself
        if not scores:
            return "ratings of a caption that has no score"
        if len(scores) > 1:
            return "ratings of a caption that has different scores"
        return places_of_caption[0]
