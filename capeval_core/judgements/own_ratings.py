"""A user's own ratings, joined with the scores of a file: the statistics of the papers for any data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.errors import FileError, Problems, did_you_mean, file_problem
from capeval_core.inputs.folder import bare, some_of
from capeval_core.inputs.text_files import ID_FIELDS, load_json
from capeval_core.judgements.files import Dropped, named_rows
from capeval_core.judgements.judged_set import Items, Scored, Scoring
from capeval_core.judgements.ratings import STATISTICS, RatedSet, RatingColumn
from capeval_core.values import described

RATING_FIELDS = ("rating", "score", "human_score", "judgement")
NAME = "own ratings"


@dataclass(frozen=True)
class ScoreFile:
    """The scores of a file, with the ids of their images and their captions where the file has them.

    label: the metric. ids: None: scores are joined by their order. captions: None: by id alone.
    """

    label: str
    scores: list[float]
    ids: list[str] | None = None
    captions: list[str] | None = None


def read_score_file(path: Path) -> ScoreFile:
    """Scores of a file of `capeval score --json`, of {image id: score}, or of a list of numbers."""
    content = load_json(path, "write each id once")
    label, ids, captions = path.stem, None, None
    if isinstance(content, dict) and "scores" in content:
        label = str(content.get("metric", label))
        ids, captions = content.get("ids"), content.get("captions")
        values: Any = content["scores"]
    elif isinstance(content, dict) and isinstance(content.get("systems"), list):
        systems = content["systems"]
        metrics = max((len(one.get("results", [])) for one in systems if isinstance(one, dict)), default=0)
        found = f"{_counted(len(systems), 'system')} by {_counted(metrics, 'metric')}"
        fix = "write the scores of one system by one metric: capeval score METRIC --json"
        raise FileError(file_problem(path, found, fix, verb="holds"))
    elif isinstance(content, dict):
        ids, values = list(content), list(content.values())
    else:
        values = content
    if not isinstance(values, list) or not values:
        fix = "expected a file of `capeval score --json`, {id: score}, or a list"
        raise FileError(file_problem(path, described(values, none="null"), fix))
    problems, scores = Problems(), []
    for index, value in enumerate(values):
        score = math.nan if value is None else _score(value)
        if score is None:
            name = f"id {ids[index]!r}" if ids is not None and index < len(ids) else f"score {index}"
            problems.add(
                file_problem(path, described(value), "scores are numbers, or null", index=name, verb="is")
            )
            score = math.nan
        scores.append(score)
    for name, column in (("ids", ids), ("captions", captions)):
        if column is not None and (not isinstance(column, list) or len(column) != len(scores)):
            problems.add(file_problem(path, f"{name} and scores are not equally many"))
    problems.raise_if_any()
    return ScoreFile(label, scores, None if ids is None else list(map(str, ids)), captions)


def join_ratings(scores: ScoreFile, path: Path) -> tuple[RatedSet, Scored]:
    """The ratings of a file (CSV, JSON, JSON lines) with these scores; each row is one rating.

    A row has an image's id (`image_id`, `image`, `id` ...) and a rating (`rating`, `score`, `human_score`),
    and a caption where an image has several. Without ids in the scores' file, rows are taken in order.
    Ratings that are missing or no numbers, and rows whose id or caption has no score, are left out and
    counted.
    """
    dropped = Dropped()
    rows, problems = [], Problems()
    for name, row in named_rows(path):
        if isinstance(row, dict):
            rows.append((name, row))
        else:
            fix = "expected an object with a rating"
            problems.add(file_problem(path, described(row, none="null"), fix, index=name, verb="is"))
    problems.raise_if_any()
    if not rows:
        raise FileError(file_problem(path, "holds no rows"))
    rating_field = _field(path, rows, RATING_FIELDS, "rating")
    by_key = _positions(scores)
    item, ratings, unknown = [], [], []
    if scores.ids is None and len(rows) != len(scores.scores):
        found = f"{len(rows):,} rows for {len(scores.scores):,} scores without ids"
        raise FileError(file_problem(path, found, "give as many, or scores with ids", verb="has"))
    id_field = None if scores.ids is None else _field(path, rows, ID_FIELDS, "image id")
    for number, (_, row) in enumerate(rows):
        rating = dropped.rating(row.get(rating_field), "rating")
        position: int | str = number
        if id_field is not None:
            key = str(row.get(id_field))
            position = _position(by_key, key, row.get("caption"), scores.scores)
        if isinstance(position, str):
            unknown.append(key)
            dropped.add(position)
        elif math.isfinite(rating):
            item.append(position)
            ratings.append(rating)
    if not item:
        found = f"no rating of a scored caption, in {len(rows):,} rows"
        if unknown and not set(by_key).intersection(unknown):
            found += f" ({some_of(unknown)}; scores are of {some_of(scores.ids or [])})"
        why = ", ".join(f"{count:,} {reason}" for reason, count in dropped.counts.items())
        raise FileError(file_problem(path, found, f"left out are {why}", verb="has"))
    dropped.add("scores without a rating", len(scores.scores) - len(set(item)))
    images = scores.ids or [str(index) for index in range(len(scores.scores))]
    items = Items(scores.captions or [""] * len(images), images)
    table = {name: RatingColumn(name) for name in STATISTICS}
    judged = RatedSet(
        NAME,
        (Scoring("", items),),
        np.array(item, dtype=np.int64),
        {"rating": np.array(ratings)},
        table,
        dropped=dropped.counts,
    )
    return judged, Scored(np.array(scores.scores))


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _score(value: Any) -> float | None:
    """A number as a float; None for anything else, and for an integer beyond all floats."""
    try:
        return None if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:
        return None


def _field(path: Path, rows: Sequence[tuple[str, dict[str, Any]]], names: Sequence[str], what: str) -> str:
    """The first of these fields that a row has."""
    known = list(dict.fromkeys(field for _, row in rows for field in row if isinstance(field, str)))
    for name in names:
        if name in known:
            return name
    found = f"no column of the {what} ({', '.join(names)}){did_you_mean(names[0], known)}"
    raise FileError(file_problem(path, found, f"it has {', '.join(known)}", verb="has"))


def _positions(scores: ScoreFile) -> dict[str, dict[str | None, list[int]]]:
    """By id and by file name without extension, by caption, the positions of scores."""
    found: dict[str, dict[str | None, list[int]]] = {}
    names = Counter(bare(image) for image in dict.fromkeys(scores.ids or []))
    for position, image in enumerate(scores.ids or []):
        caption = None if scores.captions is None else " ".join(str(scores.captions[position]).split())
        keys = {image, bare(image)} if names[bare(image)] == 1 else {image}
        for key in keys:
            found.setdefault(key, {}).setdefault(caption, []).append(position)
    return found


def _position(
    by_key: Mapping[str, Mapping[str | None, Sequence[int]]],
    key: str,
    caption: Any,
    scores: Sequence[float],
) -> int | str:
    """The score that a row is about, or why there is none or it is not clear which."""
    of_image = by_key.get(key) or by_key.get(bare(key))
    if of_image is None:
        return "ratings of an unknown image id"
    if isinstance(caption, str) and None not in of_image:
        positions = of_image.get(" ".join(caption.split()))
        if positions is None:
            return "ratings of a caption that has no score"
        if len({"" if math.isnan(scores[p]) else scores[p] for p in positions}) > 1:
            return "ratings of a caption that has different scores"
        return positions[0]
    positions = [position for own in of_image.values() for position in own]
    return "ratings without a caption of an image with several scores" if positions[1:] else positions[0]
