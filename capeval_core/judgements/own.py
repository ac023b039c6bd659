"""A user's own human judgements: ratings joined with the scores of a file, and rated captions to train on."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from capeval_core.errors import FileError, Problems, described, did_you_mean, file_problem
from capeval_core.inputs.folder import bare, some_of
from capeval_core.inputs.text_files import ID_FIELDS, load_json
from capeval_core.judgements.correlation import kendall_tau_c
from capeval_core.judgements.loaders import numbers, read_rows
from capeval_core.judgements.protocols import STATISTICS, Items, RatedSet, RatingColumn, Scored, Scoring

_RATING_FIELDS = ("rating", "score", "human_score", "judgement")
_UNKNOWN = "ratings of an unknown image id"


class _ScoreFile(NamedTuple):
    """A metric's scores; ids: None: joined by their order. captions: None: by id alone."""

    label: str
    scores: list[float]
    ids: list[str] | None = None
    captions: list[str] | None = None


def read_score_file(path: Path) -> _ScoreFile:
    """Scores of a file of `capeval score --json`, of {image id: score}, or of a list of numbers."""
    content = load_json(path, "write each id once")
    label, ids, captions, values = path.stem, None, None, content
    if isinstance(content, dict) and "scores" in content:
        label, values = str(content.get("metric", label)), content["scores"]
        ids, captions = content.get("ids"), content.get("captions")
    elif isinstance(content, dict) and isinstance(content.get("systems"), list):
        counts = [len(content["systems"]), *(len(one.get("results", [])) for one in content["systems"][:1])]
        found = f"scores of several systems or metrics ({' by '.join(map(str, counts))})"
        fix = "write the scores of one system by one metric: capeval score METRIC --json"
        raise FileError(file_problem(path, found, fix, verb="holds"))
    elif isinstance(content, dict):
        ids, values = list(content), list(content.values())
    if not isinstance(values, list) or not values:
        fix = "expected a file of `capeval score --json`, {id: score}, or a list"
        raise FileError(file_problem(path, described(values, none="null"), fix))
    problems = Problems()
    for index, value in enumerate(values):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and (not number or abs(value) > sys.float_info.max):
            name = f"id {ids[index]!r}" if ids is not None and index < len(ids) else f"score {index}"
            fix = "scores are numbers, or null"
            problems.add(file_problem(path, described(value), fix, index=name, verb="is"))
    for name, column in (("ids", ids), ("captions", captions)):
        if column is not None and (not isinstance(column, list) or len(column) != len(values)):
            problems.add(file_problem(path, f"{name} and scores are not equally many"))
    problems.raise_if_any()
    scores = numbers(values, "score", Counter()).tolist()
    return _ScoreFile(label, scores, None if ids is None else list(map(str, ids)), captions)


def join_ratings(scores: _ScoreFile, path: Path) -> tuple[RatedSet, Scored]:
    """The ratings of a file (CSV, JSON, JSON lines) with these scores; each row is one rating.

    A row has an image's id (`image_id`, `image`, `id` ...) and a rating (`rating`, `score`, `human_score`),
    and a caption where an image has several. Without ids in the scores' file, rows are taken in order.
    Ratings that are missing or no numbers, and rows whose id or caption has no score, are left out and
    counted.
    """
    rows, dropped, count = read_rows(path), Counter[str](), len(scores.scores)
    ratings = numbers(rows[_field(path, rows, _RATING_FIELDS, "rating")], "rating", dropped)
    ids: list[str] = []
    if scores.ids is not None:
        ids = rows[_field(path, rows, ID_FIELDS, "image id")].map(str).tolist()
        places = _places(scores, ids, rows.get("caption", [None] * len(rows)))
    elif len(rows) == count:
        places = list(range(count))
    else:
        found = f"{len(rows):,} rows for {count:,} scores without ids"
        raise FileError(file_problem(path, found, "give as many, or scores with ids", verb="has"))
    dropped.update(place for place in places if isinstance(place, str))
    kept = [row for row, place in enumerate(places) if isinstance(place, int) and math.isfinite(ratings[row])]
    if not kept:
        found = f"no rating of a scored caption, in {len(rows):,} rows"
        if set(places) == {_UNKNOWN}:
            found += f" ({some_of(ids)}; scores are of {some_of(scores.ids or [])})"
        why = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise FileError(file_problem(path, found, f"left out are {why}", verb="has"))
    item = np.array([places[row] for row in kept], dtype=np.int64)
    dropped["scores without a rating"] = count - len(set(item.tolist()))
    images = scores.ids or [str(index) for index in range(count)]
    judged = RatedSet(
        "own ratings",
        (Scoring("", Items(scores.captions or [""] * count, images)),),
        item,
        {"rating": ratings[kept]},
        {name: RatingColumn(name) for name in STATISTICS},
        dropped=dropped,
    )
    return judged, Scored(np.array(scores.scores))


def _places(scores: _ScoreFile, ids: Sequence[str], captions: Sequence[Any]) -> list[int | str]:
    """The score that each rating is about, or why none is; an id may lack the extension of its file."""
    of_image: dict[str, list[int]] = defaultdict(list)
    for place, image in enumerate(scores.ids or []):
        of_image[image].append(place)
    alike = Counter(map(bare, of_image))
    names = {bare(image): image for image in of_image if alike[bare(image)] == 1} | {i: i for i in of_image}

    def place_of(key: str, caption: Any) -> int | str:
        places = of_image.get(names.get(key) or names.get(bare(key)) or "", [])
        if not places:
            return _UNKNOWN
        if not isinstance(caption, str) or scores.captions is None:
            several = "ratings without a caption of an image with several scores"
            return several if places[1:] else places[0]
        places = [place for place in places if str(scores.captions[place]).split() == caption.split()]
        if not places:
            return "ratings of a caption that has no score"
        different = len({repr(scores.scores[place]) for place in places}) > 1
        return "ratings of a caption that has different scores" if different else places[0]

    return [place_of(key, caption) for key, caption in zip(ids, captions, strict=True)]


def _field(path: Path, rows: pd.DataFrame, names: Sequence[str], what: str) -> str:
    """The first of these fields that a row has."""
    known = list(rows)
    for name in names:
        if name in known:
            return name
    found = f"no column of the {what} ({', '.join(names)}){did_you_mean(names[0], known)}"
    raise FileError(file_problem(path, found, f"it has {', '.join(known)}", verb="has"))


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
    """The judgements of a JSON list, JSON lines, or CSV: rows with an image's id, a caption and a score."""
    rows, problems = read_rows(path), Problems()
    scores = numbers(rows.get("score", [None] * len(rows)), "score", Counter())
    images, captions = [], []
    for name, row, score in zip(rows.index, rows.to_dict("records"), scores, strict=True):
        images.append(next((str(row[field]) for field in ID_FIELDS if row.get(field) not in (None, "")), ""))
        captions.append(row.get("caption"))
        lacking = "" if math.isfinite(score) else f"finite score{did_you_mean('score', row)}"
        if not isinstance(captions[-1], str) or not captions[-1].strip():
            lacking = "caption"
        if not images[-1]:
            lacking = " or ".join(ID_FIELDS)
        if lacking:
            problems.add(file_problem(path, f"no {lacking}", index=name, verb="has"))
    problems.raise_if_any()
    if len(set(scores)) < 2:
        found = f"{len(scores)} judgements with {len(set(scores))} different scores"
        raise FileError(file_problem(path, found, "a correlation needs at least two", verb="has"))
    return Judgements(images, captions, scores.tolist())
