"""Scores that were computed elsewhere: of the items of a judged set, or to be joined with ratings."""

from __future__ import annotations

import io
import math
import re
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capeval_core.errors import Problems, described, file_error
from capeval_core.inputs.files import contents, load_json, some_of
from capeval_core.inputs.joining import Names
from capeval_core.inputs.names import ID_FIELDS
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
from capeval_core.judgements.sets import column_of, numbers, read_rows

FORMS = (
    "a .npz or .json with an array of numbers per metric, one per caption in the order of the set; of pairs "
    "two columns, or NAME__a and NAME__b; NAME__refs4 is of the scoring with 4 references"
)
_UNKNOWN = "ratings of an unknown image id"


class _File(NamedTuple):
    """The arrays of a file by label, with the ids and captions that they are of where it has them."""

    arrays: dict[str, Any]
    ids: list[str] | None = None
    captions: list[str] | None = None


def _read(path: Path) -> _File:
    """Scores of a .npz, of `capeval score --json`, {metric: [scores]}, {image id: score}, or [scores]."""
    if path.suffix == ".npz":
        data = io.BytesIO(contents(path))
        try:
            with np.load(data, allow_pickle=False) as file:
                return _File(dict(file))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise file_error(path, f"cannot be read ({error})") from error
    content = load_json(path)
    if isinstance(content, list):
        return _File({path.stem: content})
    if not isinstance(content, dict) or not content:
        fix = "expected a file of `capeval score --json`, {id: score}, or a list"
        raise file_error(path, described(content, none="null"), fix)
    if isinstance(content.get("systems"), list):
        fix = "write the scores of one system by one metric: capeval score METRIC --json"
        raise file_error(path, "holds scores of several systems or metrics", fix)
    if "scores" not in content:
        if any(isinstance(own, list) for own in content.values()):
            return _File(content)
        return _File({path.stem: list(content.values())}, list(content))
    label, values = str(content.get("metric", path.stem)), content["scores"]
    ids, captions = content.get("ids"), content.get("captions")
    for name, column in {"ids": ids, "captions": captions}.items():
        if column is not None and not (isinstance(column, list) and len(column) == len(values)):
            raise file_error(path, f"{name} and scores are not equally many")
    return _File({label: values}, None if ids is None else list(map(str, ids)), captions)


def _numbers(path: Path, label: str, values: Any, ids: Sequence[str] | None = None) -> Doubles:
    """Scores of any shape, NaN for None."""
    array, problems = np.atleast_1d(np.asarray(values, dtype=object)), Problems()
    for place, value in np.ndenumerate(array):
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if value is not None and not (number and not abs(value) > sys.float_info.max):
            index = f"{label}[{place[0]}]" if ids is None else f"id {ids[place[0]]!r}"
            fix = "scores are numbers, or null"
            problems.add(file_error(path, f"is {described(value)}", fix, index=index))
    problems.raise_if_any()
    return array.astype(np.float64)


def read_scores(path: Path, judged: JudgedSet) -> dict[str, list[Scored]]:
    """By label, the scores of each scoring of a set; those that do not name a scoring are of all."""
    file, problems = _read(path), Problems()
    if file.ids is not None and file.captions is None:
        fix = "write a list in the order of the set, or the file of `capeval score --json`"
        raise file_error(path, "has scores by id, of which a caption cannot be told", fix)
    _check_captions(path, file.captions, judged)
    found: dict[str, dict[str | None, Doubles]] = {}
    names = {scoring.name for scoring in judged.scorings}
    for name, label, scoring, values in _labelled(file.arrays, names):
        if label in ("rating", "ratings", "human_score"):
            continue
        counts = {len(s.items) for s in judged.scorings if scoring in (None, s.name)}
        array = _numbers(path, name, values)
        # Pairs may have two columns; their captions are a set's items one after the other.
        of_pairs = isinstance(judged, PairedSet) and array.shape[1:] == (2,)
        if (array.ndim > 1 and not of_pairs) or counts != {array.size}:
            shape = " x ".join(f"{extent:,}" for extent in array.shape)
            fix = f"{judged.name} has {' or '.join(f'{count:,}' for count in sorted(counts))} captions"
            problems.add(file_error(path, f"{shape} scores", fix, index=name))
            continue
        found.setdefault(label, {})[scoring] = array.reshape(-1)
    problems.raise_if_any()
    if not found:
        raise file_error(path, "holds no scores", f"expected {FORMS}")
    lacking = {scoring.name: np.full(len(scoring.items), math.nan) for scoring in judged.scorings}
    return {
        label: [
            Scored(own.get(name, own.get(None, missing)), signature=f"scores:{path.name}")
            for name, missing in lacking.items()
        ]
        for label, own in found.items()
    }


def _check_captions(path: Path, captions: list[str] | None, judged: JudgedSet) -> None:
    """Refuse as many captions as the set has that are others, or stand in another order."""
    given = [str(caption).split() for caption in captions or []]
    own = [s.items.captions for s in judged.scorings if len(s.items) == len(given)]
    expected = [[caption.split() for caption in captions] for captions in own]
    if expected and given not in expected:
        row = next(row for row, words in enumerate(given) if words != expected[0][row])
        found = f"{' '.join(given[row])!r}, {judged.name} has {' '.join(expected[0][row])!r} there"
        raise file_error(path, found, "score its captions in its order", index=f"caption {row}")


def _labelled(arrays: Mapping[str, Any], scorings: set[str]) -> Iterator[tuple[str, str, str | None, Any]]:
    """Arrays with name, label of their rows and scoring; NAME__a and NAME__b become two columns of NAME."""
    joined = dict(arrays)
    for first in arrays:
        name = first.removesuffix("__a")
        if name != first and f"{name}__b" in arrays:
            sides = joined.pop(first), joined.pop(f"{name}__b")
            joined[name] = np.stack(sides, axis=-1) if np.shape(sides[0]) == np.shape(sides[1]) else sides[0]
    for name, values in joined.items():
        label, _, suffix = name.rpartition("__")
        if match := re.fullmatch(r"refs(\d+)", suffix):
            suffix = f"{match[1]} reference{'' if match[1] == '1' else 's'}"
        known = label and suffix in scorings
        yield name, label if known else name, suffix if known else None, values


# ratings of one's own


def join_ratings(scores: Path, ratings: Path) -> tuple[str, RatedSet, Scored]:
    """A metric's label, the ratings of a file (CSV, JSON, JSON lines), each a row, and the scores of another.

    A row has an image's id (`image_id`, `image`, `id` ...) and a rating (`rating`, `score`, `human_score`),
    and a caption where an image has several. Without ids in the scores' file, rows are taken in order.
    Ratings that are missing or no numbers, and rows whose id or caption has no score, are left out and
    counted.
    """
    file = _read(scores)
    label, array = _one_of(scores, file)
    values = array.tolist()
    rows, dropped, count, ids = read_rows(ratings), Counter[str](), len(values), file.ids
    fields = "rating", "score", "human_score", "judgement"
    rated = numbers(rows[column_of(ratings, rows, fields, "rating")], "ratings", dropped)
    places: Sequence[int | str] = range(count)
    if ids is not None:
        keys = rows[column_of(ratings, rows, ID_FIELDS, "image id")].map(str).tolist()
        places = _places(values, ids, file.captions, keys, rows.get("caption", [None] * len(rows)))
    elif len(rows) != count:
        found = f"has {len(rows):,} rows for {count:,} scores without ids"
        raise file_error(ratings, found, "give as many, or scores with ids")
    dropped.update(place for place in places if isinstance(place, str))
    kept = [row for row, place in enumerate(places) if isinstance(place, int) and math.isfinite(rated[row])]
    if not kept:
        found = f"has no rating of a scored caption, in {len(rows):,} rows"
        if ids is not None and set(places) == {_UNKNOWN}:
            found += f" ({some_of(keys)}; scores are of {some_of(ids)})"
        why = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise file_error(ratings, found, f"left out are {why}")
    item = np.array([places[row] for row in kept], dtype=np.int64)
    dropped["scores without a rating"] = count - len(set(item.tolist()))
    items = Items(file.captions or [""] * count, ids or [str(index) for index in range(count)])
    table = {name: RatingColumn(name) for name in STATISTICS}
    scoring = (Scoring("", items),)
    judged = RatedSet("own ratings", scoring, item, {"rating": rated[kept]}, table, dropped=dropped)
    return label, judged, Scored(np.array(values))


def _one_of(path: Path, file: _File) -> tuple[str, Doubles]:
    """The only array of a file, a number for each caption, with its label."""
    (label, own), *more = file.arrays.items()
    if more:
        raise file_error(path, f"holds {len(more) + 1} arrays", "write one")
    array = _numbers(path, label, own, file.ids)
    if array.ndim > 1:
        raise file_error(path, "has lists of scores", "write one number for each caption")
    return label, array


def read_scores_of(path: Path, ids: Sequence[str]) -> list[float]:
    """Scores of captions with these ids of images: of `read_scores`, or rows of CSV or JSON lines with an id
    and a `score`. NaN of a caption that has none; without ids in the file they are in order."""
    if path.suffix.lower() in (".json", ".npz"):
        file = _read(path)
        keys, found = file.ids, _one_of(path, file)[1]
    else:
        rows = read_rows(path)
        keys = rows[column_of(path, rows, ID_FIELDS, "image id")].map(str).tolist()
        found = numbers(rows[column_of(path, rows, ("score", "scores"), "score")], "scores", Counter())
    values: list[float] = found.tolist()
    if keys is None:
        if len(values) != len(ids):
            few = f"has {len(values):,} scores without ids for {len(ids):,} captions"
            raise file_error(path, few, "give as many, or ids")
        return values
    known, of_image = Names(ids), defaultdict[str, list[float]](list)
    for key, value in zip(keys, values, strict=True):
        for image in known.find(key)[:1]:
            of_image[image].append(value)
    if not of_image:
        other = f"has no score of a caption ({some_of(keys)}; captions are of {some_of([*ids])})"
        raise file_error(path, other)
    return [of_image[image].pop(0) if of_image[image] else math.nan for image in ids]


def _places(
    scores: list[float], ids: list[str], texts: list[str] | None, keys: list[str], captions: Sequence[Any]
) -> list[int | str]:
    """The score that each rating is about, or why none is; an id may lack the extension of its file."""
    of_image: dict[str, list[int]] = defaultdict(list)
    for place, image in enumerate(ids):
        of_image[image].append(place)
    names = Names(of_image)

    def place_of(key: str, caption: Any) -> int | str:
        found = names.find(key)
        if len(found) != 1:
            return _UNKNOWN
        places = of_image[found[0]]
        if not isinstance(caption, str) or texts is None:
            several = "ratings without a caption of an image with several scores"
            return several if places[1:] else places[0]
        places = [place for place in places if str(texts[place]).split() == caption.split()]
        if not places:
            return "ratings of a caption that has no score"
        different = len({repr(scores[place]) for place in places}) > 1
        return "ratings of a caption that has different scores" if different else places[0]

    return [place_of(key, caption) for key, caption in zip(keys, captions, strict=True)]
